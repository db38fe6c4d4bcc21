"""Emulated devices: a language model that costs a set time instead of work, below the real engine.

Everything above the `ModelRunner` is the real thing. Whatever such a tier reports is labelled "emulated:...".
"""
