"""Drafting with Medusa heads (2401.10774): the target's last hidden state tells several tokens ahead at once.

What a draft needs is one row: the features of the position before the newest token, which the target's pass that gave
that token has made. All places' logits come of it in one small pass, so a tree costs no more than a chain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from actors.drafter_specs import MedusaSpec
from actors.drafters.copies import Copies
from actors.drafters.one_pass import Ask, OnePassDrafter
from actors.heads.format import check_fits, load_config
from actors.heads.medusa import MedusaConfig, MedusaHeads
from actors.heads.serving import make_ready, precision
from actors.loading import checkpoint
from actors.loading.ends import load_ends
from actors.messages import Halves, ReplicaInfo
from actors.sampling.rows import LogitRows
from actors.spec import ModelSpec


class LastRow:
    """Features of one position, the newest."""

    def __init__(self) -> None:
        self._end = 0
        self.row: Halves | None = None  # [feature_size], of position `end` - 1

    @property
    def start(self) -> int:
        """First position held."""
        return self._end if self.row is None else self._end - 1

    @property
    def end(self) -> int:
        """Position after it."""
        return self._end

    @property
    def num_tokens(self) -> int:
        """Not worth counting."""
        return 0

    def num_tokens_with(self, end: int) -> int:
        """Not worth counting."""
        return 0

    def cut(self, end: int) -> None:
        """Hold nothing from position `end` on."""
        if end < self._end:
            self.begin_at(end)

    def forget_before(self, start: int) -> None:
        """There is only one position."""

    def begin_at(self, position: int) -> None:
        """Hold nothing."""
        self._end, self.row = position, None

    def put(self, position: int, row: Halves) -> None:
        """Hold the features of `position`."""
        self._end, self.row = position + 1, np.array(row)  # of its own: what it came in may be large


class MedusaModel:
    """The heads, and their pass."""

    window = 1

    def __init__(self, heads: MedusaHeads, spec: ModelSpec) -> None:
        """`heads` are made ready in place. `spec`: how the tier runs."""
        self._config = heads.config
        self.vocabulary = heads.vocabulary
        self._spec = spec
        self._heads = heads
        make_ready(heads, spec)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The target's last layer."""
        return self._config.feature_layers

    @property
    def feature_size(self) -> int:
        """Values of a position's features."""
        return self._config.feature_size

    @property
    def max_tokens(self) -> int:
        """One for each head."""
        return self._config.num_heads

    def open(self) -> LastRow:
        """Memory of a new sequence."""
        return LastRow()

    def run(self, asks: Sequence[Ask[LastRow]]) -> list[LogitRows]:
        """The first `num_rows` heads over each sequence's row."""
        for ask in asks:
            if ask.fresh is not None:
                ask.memory.put(ask.fresh.end - 1, ask.fresh.rows[-1])
        rows = np.stack([ask.memory.row for ask in asks if ask.memory.row is not None])
        wanted = [ask.num_rows for ask in asks]
        with precision(self._spec):
            states = self._heads.states(torch.from_numpy(rows).to(self._spec.device), range(max(wanted)))
            needed = torch.cat([states[i, :count] for i, count in enumerate(wanted)])
            logits = self._heads.head(needed).float()
        return split(LogitRows(logits), wanted)


def split(rows: LogitRows, counts: Sequence[int]) -> list[LogitRows]:
    """`rows`, `counts[i]` of them to each."""
    ends = np.cumsum(counts).tolist()
    return [rows.part(end - count, end) for end, count in zip(ends, counts, strict=True)]


def load_medusa(spec: ModelSpec, drafter: MedusaSpec) -> MedusaHeads:
    """The heads, for the target that `spec.model` names.

    Raises:
        BadHead: there are no such heads, or they were trained for another target.
        ModelNotFound: the target's output matrix cannot be had.
    """
    check_fits(load_config(drafter.head, MedusaConfig), checkpoint.load_config(spec.model), drafter.head, spec.model)
    return MedusaHeads.load(drafter.head, load_ends(spec).output)


def medusa_drafter(
    heads: MedusaHeads, spec: ModelSpec, info: ReplicaInfo, law_support: int, copies: Copies | None = None
) -> OnePassDrafter[LastRow]:
    """A drafter of `heads`, run as `spec` says."""
    return OnePassDrafter(
        MedusaModel(heads, spec), info, law_support=law_support, max_sequences=spec.max_sequences,
        idle_timeout_s=spec.idle_timeout_s, copies=copies,
    )
