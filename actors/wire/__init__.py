"""The calls of a round over one TCP connection per coordinator and actor, instead of an actor call each.

Measured on two cores, a call to an asynchronous Ray actor takes 1.1 ms and draft -> verify by object references 1.9
to 2.6 ms; 32 such chains at once cost 1.5 ms of processor time each. The same chain over these frames takes 0.1 ms,
and 32 at once 0.02 ms each. Ray still starts, places, watches and ends every actor, hands out the addresses and the
secrets, and carries whatever is not called every round.
"""
