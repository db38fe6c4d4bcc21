"""Rank 0's messages to the ranks of the same machine, through memory that they share (`src/channel.c`)."""

from __future__ import annotations

import ctypes
import mmap

import torch

from actors.engine.native.library import ChannelArgs, library
from actors.engine.native.shared import CACHE_LINE_BYTES, address_of, open_shared

CAPACITY_BYTES = 1 << 16  # longer messages go in pieces


class ChannelClosed(RuntimeError):
    """A rank is gone or silent for the channel's timeout."""


class SharedChannel:
    """`actors.engine.broadcast.Channel` over a mailbox in shared memory."""

    def __init__(self, rank: int, num_ranks: int, timeout_s: float, memory: mmap.mmap) -> None:
        self._memory = memory
        self._rank = rank
        sent = address_of(memory)
        read = sent + CACHE_LINE_BYTES
        data = read + CACHE_LINE_BYTES * num_ranks
        self._args = ChannelArgs(rank, num_ranks, CAPACITY_BYTES, timeout_s, sent, read, data, 0)
        self._library = library()

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite contiguous `values` on every rank by rank 0's. Raises `ChannelClosed`."""
        move = self._library.channel_send if self._rank == 0 else self._library.channel_receive
        start, left = values.data_ptr(), values.numel() * values.element_size()
        while left > 0:
            piece = min(left, CAPACITY_BYTES)
            if move(ctypes.byref(self._args), start, piece) != 0:
                raise ChannelClosed("a tensor-parallel rank is gone or hangs")
            start, left = start + piece, left - piece

    def acknowledge(self) -> None:
        """Return, on rank 0, once every rank has read all messages; the others have by coming here."""
        if self._rank == 0 and self._library.channel_flush(ctypes.byref(self._args)) != 0:
            raise ChannelClosed("a tensor-parallel rank is gone or hangs")


def num_bytes(num_ranks: int) -> int:
    """Size of the memory."""
    return CACHE_LINE_BYTES * (1 + num_ranks) + CAPACITY_BYTES


def open_channel(rank: int, num_ranks: int, timeout_s: float) -> SharedChannel | None:
    """Collective: a channel over all ranks, or None on all of them if they cannot share memory."""
    memory = open_shared(num_bytes(num_ranks))
    return None if memory is None else SharedChannel(rank, num_ranks, timeout_s, memory)
