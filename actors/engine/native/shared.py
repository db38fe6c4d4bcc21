"""Memory that the ranks of one machine share."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger(__name__)

CACHE_LINE_BYTES = 64
_DIRECTORY = Path("/dev/shm")


def open_shared(num_bytes: int) -> mmap.mmap | None:
    """Collective over all ranks: zeroed memory, the same on all of them, or None on all if they cannot share any."""
    rank = dist.get_rank()
    path = _create(num_bytes) if rank == 0 else None
    shared: list[str | None] = [path]
    dist.broadcast_object_list(shared, src=0)
    memory = _open(shared[0], num_bytes)
    agreed = torch.tensor([int(memory is not None)])
    dist.all_reduce(agreed, op=dist.ReduceOp.MIN)  # also: all have it open before it loses its name
    if path is not None:
        os.unlink(path)
    if not int(agreed):
        log.warning("the tensor-parallel ranks cannot share memory: they talk through the process group")
        return None
    return memory


def address_of(memory: mmap.mmap) -> int:
    """Where the memory begins; it stays mapped for as long as something refers to `memory`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _create(num_bytes: int) -> str | None:
    try:
        handle, path = tempfile.mkstemp(prefix="outrider-", dir=_DIRECTORY)
    except OSError as error:
        log.warning("no shared memory: %s", error)
        return None
    try:
        os.posix_fallocate(handle, 0, num_bytes)  # now, rather than a bus error later
    except OSError as error:
        log.warning("no room for %d bytes of shared memory: %s", num_bytes, error)
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path


def _open(path: str | None, num_bytes: int) -> mmap.mmap | None:
    if path is None:
        return None
    try:
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), num_bytes)
    except OSError:  # another machine, or a container with shared memory of its own
        return None
