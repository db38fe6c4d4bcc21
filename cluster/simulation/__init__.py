"""Emulated pools in simulated time: the real coordinator over devices that only take time, for planning.

Nothing here runs a model or touches a network: what comes out is an estimate and says so.
"""
