"""What runs on an accelerator: engine, sampling, drafters, loading, and the Ray actors around them.

Nothing here imports `cluster`.
"""

import os

# An OpenMP thread that has nothing to do spins for some 10 ms before it sleeps, which is a draft's thread taking a core
# from the target's pass. About 0.5 ms bridges the pause between two passes of one model. Read when PyTorch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
