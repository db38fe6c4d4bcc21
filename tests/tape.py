"""Sequences fed through a runner by hand, without an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from actors.engine.step import StepInput
from actors.engine.tree import depths


class Tape:
    """Feeds sequences through a runner by hand, over page tables of the test's choosing."""

    def __init__(self, runner: Any, num_sequences: int, seed: int, page_tokens: int = 64) -> None:
        self.runner = runner
        self.page = page_tokens
        order = np.random.default_rng(seed).permutation(runner.num_pages).astype(np.int32)
        self.tables = np.array_split(order, num_sequences)

    def run(
        self, parts: list[tuple[int, int, np.ndarray]], parents: list[np.ndarray] | None = None,
        moves: list[tuple[int, int]] | None = None,
    ) -> torch.Tensor:
        """One step over `(sequence, start, ids)`: logits of every row. `parents` of each part where some are trees."""
        ids = np.concatenate([p[2] for p in parts]).astype(np.int32)
        positions = [np.arange(start, start + len(x), dtype=np.int32) for _, start, x in parts]
        tables = [self.tables[s] for s, _, _ in parts]
        depth = positions
        if parents is not None:
            depth = [start + depths(p) for (_, start, _), p in zip(parts, parents, strict=True)]
        used = [t[: -(-(start + len(x)) // self.page)] for t, (_, start, x) in zip(tables, parts, strict=True)]
        return self.runner.forward(
            StepInput(
                input_ids=ids,
                positions=np.concatenate(depth).astype(np.int32),
                slots=np.concatenate(
                    [t[p // self.page] * self.page + p % self.page for t, p in zip(tables, positions, strict=True)]
                ).astype(np.int32),
                cu_query=np.cumsum([0, *(len(x) for _, _, x in parts)]).astype(np.int32),
                kv_len=np.array([start + len(x) for _, start, x in parts], np.int32),
                pages=np.concatenate(used).astype(np.int32),
                cu_pages=np.cumsum([0, *(len(u) for u in used)]).astype(np.int32),
                logit_rows=np.arange(len(ids), dtype=np.int32),
                copies=np.empty((0, 2), np.int32),
                moves=np.array(moves or [], np.int32).reshape(-1, 2),
                parents=np.concatenate([[], *(parents or [])]).astype(np.int32),
            )
        )

    def slot(self, sequence: int, position: int) -> int:
        """Where a chain has a position."""
        return int(self.tables[sequence][position // self.page]) * self.page + position % self.page

    def feed(self, sequence: int, ids: np.ndarray, chunk: int) -> torch.Tensor:
        """The whole sequence in chunks of `chunk`."""
        return torch.cat([self.run([(sequence, i, ids[i : i + chunk])]) for i in range(0, len(ids), chunk)])
