"""Shared memory in which the ranks of one machine add up their partial results (`src/exchange.c`).

Measured at two ranks: one sum of a step's rows takes a few microseconds here, tens to hundreds through the
process group, and a pass has two sums per layer.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from actors.engine.native.library import ExchangeArgs

log = logging.getLogger(__name__)

_DIRECTORY = Path("/dev/shm")
_FLAG_BYTES = 64  # a cache line per rank


class Exchange:
    """One rank's view of the group's memory. `capacity` is the floats of the largest partial result."""

    def __init__(self, rank: int, num_ranks: int, capacity: int, timeout_s: float, memory: mmap.mmap) -> None:
        self._memory = memory
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        flags, slots = base, base + _FLAG_BYTES * num_ranks
        self.args = ExchangeArgs(rank, num_ranks, capacity, timeout_s, flags, slots, 0)


def num_bytes(num_ranks: int, capacity: int) -> int:
    """Size of the memory: a flag per rank, two sets of slots."""
    return _FLAG_BYTES * num_ranks + 2 * num_ranks * capacity * 4


def open_exchange(capacity: int, timeout_s: float) -> Exchange | None:
    """Collective: an exchange over all ranks, or None on all of them if they cannot share memory."""
    rank, world = dist.get_rank(), dist.get_world_size()
    size = num_bytes(world, capacity)
    path = _create(size) if rank == 0 else None
    shared: list[str | None] = [path]
    dist.broadcast_object_list(shared, src=0)
    memory = _open(shared[0], size)
    agreed = torch.tensor([int(memory is not None)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)  # also: all have it open before it loses its name
    if path is not None:
        os.unlink(path)
    if memory is None or not int(agreed):
        log.warning("the tensor-parallel ranks cannot share memory: sums go through the process group")
        return None
    return Exchange(rank, world, capacity, timeout_s, memory)


def _create(size: int) -> str | None:
    try:
        handle, path = tempfile.mkstemp(prefix="outrider-", dir=_DIRECTORY)
    except OSError as error:
        log.warning("no shared memory: %s", error)
        return None
    try:
        os.posix_fallocate(handle, 0, size)  # now, rather than a bus error later
    except OSError as error:
        log.warning("no room for %d bytes of shared memory: %s", size, error)
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path


def _open(path: str | None, size: int) -> mmap.mmap | None:
    if path is None:
        return None
    try:
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), size)
    except OSError:  # another machine, or a container with shared memory of its own
        return None
