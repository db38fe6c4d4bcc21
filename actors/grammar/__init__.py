"""Structured output: which tokens a grammar allows after a text, as a function of the text alone."""
