"""Paged keys and values as the kernels read them."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from actors.engine.native.library import KV_KINDS, LANES, KVArgs, address, library

MOST_PAGE_TOKENS = 256
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


def _padded(n: int) -> int:
    return -(-n // LANES) * LANES


class NativeKV:
    """Keys and values of every layer, one more page than can be owned (it stays zero).

    A page of keys is [head_dim, page_tokens] per head, of values [page_tokens, head_dim], both sides padded to 16.
    `kind`: float32, bfloat16, or int8 with one scale per token and head.
    """

    def __init__(self, layers: list[tuple[int, int]], num_pages: int, page_tokens: int, kind: str) -> None:
        if page_tokens > MOST_PAGE_TOKENS:
            raise ValueError(f"page_tokens {page_tokens} exceeds {MOST_PAGE_TOKENS}: use 64")
        if kind not in KV_KINDS:
            raise ValueError(f"kv_dtype {kind!r} is not one of {', '.join(KV_KINDS)} on a CPU; use float32")
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        self.kind = kind
        self.geometry = layers
        self._stores: list[list[torch.Tensor]] = []
        for heads, dim in layers:
            cells = (num_pages + 1, heads)
            shape = (*cells, _padded(dim) * _padded(page_tokens))
            stores = [torch.zeros(shape, dtype=_DTYPES[kind]) for _ in range(2)]
            if kind == "int8":
                stores += [torch.zeros(*cells, _padded(page_tokens)) for _ in range(2)]
            self._stores.append(stores)

    def args(self, layer: int) -> KVArgs:
        """The C view of one layer; this object must outlive it."""
        heads, dim = self.geometry[layer]
        return KVArgs(
            KV_KINDS[self.kind], heads, _padded(dim), _padded(self.page_tokens),
            *(address(store) for store in self._stores[layer]),
        )  # fmt: skip

    def copy_pages(self, copies: np.ndarray) -> None:
        """Copy whole pages in every layer; `copies` [num_copies, 2] int32 (from, to)."""
        pages = torch.from_numpy(copies).long()
        for stores in self._stores:
            for store in stores:
                store[pages[:, 1]] = store[pages[:, 0]]

    def move_slots(self, moves: np.ndarray) -> None:
        """Move single tokens in every layer; `moves` [num_moves, 2] int32 slots (from, to), one after another."""
        flat = np.ascontiguousarray(moves, np.int32)
        for layer in range(len(self.geometry)):
            library().kv_move(ctypes.byref(self.args(layer)), self.page_tokens, address(flat), len(flat))

    @property
    def num_bytes(self) -> int:
        """Memory held."""
        return sum(s.numel() * s.element_size() for stores in self._stores for s in stores)
