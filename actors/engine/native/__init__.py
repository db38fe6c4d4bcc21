"""CPU kernels in C, compiled once for the machine they run on.

Measured before they were written (SmolLM2-135M, two cores, one row): of an int8 step through the framework's
small operations more than half was overhead, and oneDNN's packed fp32 product took 1.4 times a row's cost for
five rows, 2.6 times through `nn.Linear`. One call per pass and kernels that read each weight once for all
rows bring a step close to the time that reading the weights takes.
"""
