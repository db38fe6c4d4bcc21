"""Passes through some of the model's layers only: how a target drafts for itself, on its own weights and KV memory.

Early exit runs the first layers (LayerSkip, 2404.16710; Kangaroo, 2404.18911), layer skipping leaves some out (Draft &
Verify, 2309.08168; SWIFT, 2410.06916). The layers left out write no keys and values, so such rows are provisional
(`Job.num_whole`): they serve the draft, and the pass that verifies it runs them again, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from actors.engine.step import Int32s

ExitLogits = Callable[[torch.Tensor], torch.Tensor]  # [num_rows, hidden] float32 -> [num_rows, vocab_size] float32
Kind = TypeVar("Kind", bound=Hashable)

WHOLE_COST = 1.0  # of a pass through all layers


@dataclass(frozen=True, slots=True, eq=False)
class Shallow:
    """A kind of pass; those of calls with the same object run together."""

    layers: Int32s  # [num_run] layers that run, ascending, 0: the first
    cost: float  # of a pass, beside `WHOLE_COST`
    exit: ExitLogits | None = None  # of the residual stream after the last of them; None: the model's own norm and head
    known_ids: npt.NDArray[np.int64] | None = None  # that the exit drafts, ascending; None: all


class LayersUnrun(Exception):
    """A shallow call stands on tokens that have not been through all layers here (yet): whoever does that first, as
    the verifier does with every round, can then draft."""


class Turns:
    """Which kind of pass is next, where calls wait for several: they cannot share one.

    Every kind has an equal share of the time by cost (self-clocked fair queueing, Golestani 1994): so cheap passes go
    first, until together they have cost as much as the expensive one that waits.
    """

    def __init__(self) -> None:
        self._now = 0.0  # in costs of passes
        self._due: dict[Hashable, float] = {}  # when the next pass of a waiting kind would end at its share

    def order(self, waiting: Mapping[Kind, float]) -> list[Kind]:
        """The kinds of `waiting` (kind -> cost of a pass), the one whose turn it is first."""
        self._due = {kind: self._due.get(kind, self._now + cost) for kind, cost in waiting.items()}
        return sorted(waiting, key=lambda kind: (self._due[kind], waiting[kind]))

    def charge(self, kind: Hashable) -> None:
        """A pass of this kind was run."""
        self._now = self._due.pop(kind)
