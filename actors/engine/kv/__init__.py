"""Bookkeeping of the paged KV cache: who owns which page, and where a position lives. No tensors.

Three objects kept apart: the physical free list (`pool`), the ownership ledger with its prefix cache
(`ledger`) and the index arithmetic (`table`). `manager.KVManager` is the facade that the engine uses.
"""

from actors.engine.kv.copies import parallel_copies
from actors.engine.kv.errors import IntegrityError, UnknownSequence
from actors.engine.kv.manager import KVManager

__all__ = ["IntegrityError", "KVManager", "UnknownSequence", "parallel_copies"]
