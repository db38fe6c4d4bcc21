"""What runs on an accelerator: engine, sampling, drafters, loading, and the Ray actors around them.

Nothing here imports `cluster`.
"""
