"""Steps over a hand-made page table, and graphs that fail where a captured one would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engine.step import Int32s, StepInput
from actors.engine.tree import depths

_HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2")


class HostRead(RuntimeError):
    """A body that is being recorded looked at a value."""


class NoHostReads(TorchDispatchMode):
    """Refuses what a stream that is being captured refuses: operations that wait for a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _HOST_READS:
            raise HostRead(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Recorded:
    """Replays by running the body again, over whatever its tensors hold now."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._body = body

    def replay(self) -> None:
        with NoHostReads():
            self._body()


class FakeGraphs:
    """`GraphMaker` without a device; `fail` makes every capture fail."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.num_captured = 0

    def capture(self, body: Callable[[], None]) -> Recorded:
        body()
        if self.fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        with NoHostReads():
            body()
        self.num_captured += 1
        return Recorded(body)


class Pages:
    """Page tables of several sequences, scattered over a store."""

    def __init__(self, num_pages: int, page_tokens: int, num_sequences: int, seed: int = 0) -> None:
        order = np.random.default_rng(seed).permutation(num_pages).astype(np.int32)
        self.page_tokens = page_tokens
        self.tables = np.array_split(order, num_sequences)

    def slots(self, sequence: int, start: int, end: int) -> Int32s:
        at = np.arange(start, end)
        table = self.tables[sequence]
        return (table[at // self.page_tokens] * self.page_tokens + at % self.page_tokens).astype(np.int32)

    def step(self, parts: list[tuple[int, int, Int32s]], parents: list[Int32s] | None = None) -> StepInput:
        """One step over `(sequence, start, ids)` with logits of every row; `parents` of each part for trees."""
        num_rows = [len(ids) for _, _, ids in parts]
        offsets = [np.arange(n) for n in num_rows] if parents is None else [depths(p) for p in parents]
        ends = [start + len(ids) for _, start, ids in parts]
        used = [self.tables[s][: -(-end // self.page_tokens)] for (s, _, _), end in zip(parts, ends, strict=True)]
        return StepInput(
            input_ids=np.concatenate([ids for _, _, ids in parts]).astype(np.int32),
            positions=np.concatenate([start + o for (_, start, _), o in zip(parts, offsets, strict=True)]).astype(
                np.int32
            ),
            slots=np.concatenate([self.slots(s, start, start + len(ids)) for s, start, ids in parts]),
            cu_query=np.cumsum([0, *num_rows]).astype(np.int32),
            kv_len=np.array(ends, np.int32),
            pages=np.concatenate(used).astype(np.int32),
            cu_pages=np.cumsum([0, *(len(u) for u in used)]).astype(np.int32),
            logit_rows=np.arange(sum(num_rows), dtype=np.int32),
            copies=np.empty((0, 2), np.int32),
            parents=np.concatenate([[], *(parents or [])]).astype(np.int32),
        )


def random_tree(num_rows: int, rng: np.random.Generator) -> Int32s:
    """Parents of a random tree that is no chain (for more than two rows)."""
    parents = np.array([int(rng.integers(-1, row)) for row in range(num_rows)], np.int32)
    if num_rows > 2:
        parents[-1] = -1
    return parents
