"""Packed steps on a CUDA device: paged attention in Triton, static inputs, CUDA graphs of bucketed shapes.

Importing this package needs neither Triton nor a GPU; `kernels` alone does, and only `launch` imports it.
"""
