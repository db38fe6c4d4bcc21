"""One packed forward pass: rows of many sequences in one ragged batch, no padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from actors.messages import Halves

Int32s = npt.NDArray[np.int32]


_NUM_PARTS = 15


# Of fields that most steps do not use: made once, for nobody writes to them.
NONE: Int32s = np.empty(0, np.int32)
NO_PAIRS: Int32s = np.empty((0, 2), np.int32)
NO_FEATURES: Halves = np.empty((0, 0), np.float16)


def _none() -> Int32s:
    return NONE


def _no_pairs() -> Int32s:
    return NO_PAIRS


def _no_features() -> Halves:
    return NO_FEATURES


@dataclass(frozen=True, slots=True)
class StepInput:
    """Rows of `num_sequences` sequences, one after another.

    Sequence s owns rows `[cu_query[s], cu_query[s + 1])`; after the pass it holds `kv_len[s]` keys, in the
    pages `pages[cu_pages[s]:cu_pages[s + 1]]` (page i holds positions `[i * page, (i + 1) * page)`).

    A sequence whose rows are a drafted tree keeps the row order in its pages: row r of it is written where position
    `kv_len - num_rows + r` of a chain would be, but its position is that along its path, and it sees the keys before
    the step's rows, its ancestors among these, and itself (`actors.engine.tree`).
    """

    input_ids: Int32s  # [num_rows]
    positions: Int32s  # [num_rows] absolute
    slots: Int32s  # [num_rows] where each row's key and value are written
    cu_query: Int32s  # [num_sequences + 1]
    kv_len: Int32s  # [num_sequences]
    pages: Int32s  # [total pages]
    cu_pages: Int32s  # [num_sequences + 1]
    logit_rows: Int32s  # [num_logits] rows whose logits are wanted
    copies: Int32s  # [num_copies, 2] pages (from, to) copied before the pass (copy on write), after the moves
    moves: Int32s = field(default_factory=_no_pairs)  # [num_moves, 2] slots (from, to): single tokens, one after
    # another, before all else (a verified tree's accepted path goes where a chain would have it)
    parents: Int32s = field(default_factory=_none)  # [num_rows] each row's parent among its sequence's rows, -1: the
    # keys before them; empty: no tree in this step
    layers: Int32s = field(default_factory=_none)  # [num_run] indices of the layers that run, ascending, 0: the first
    # (`actors.engine.shallow`); empty: all
    wants_hidden: bool = False  # answer the residual stream after the last of them instead of logits
    features: Halves = field(default_factory=_no_features)  # [num_given, width] of another model, for runners that take
    # them (`TakesFeatures`): they go into the plane before any row reads it
    feature_slots: Int32s = field(default_factory=_none)  # [num_given] the slots of the positions that they belong to

    def before(self, page_tokens: int) -> Int32s:
        """[num_rows] slot of the token before each row's on its path, of a tree's row that of its parent; -1: none."""
        lengths = np.diff(self.cu_query)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        parents = self.parents if len(self.parents) else self.chain()
        place = self.kv_len[sequence] - lengths[sequence] + parents
        page = self.pages[self.cu_pages[sequence] + np.maximum(place, 0) // page_tokens]
        slots: Int32s = np.where(place < 0, -1, page * page_tokens + place % page_tokens)
        return slots

    def chain(self) -> Int32s:
        """[num_rows] `parents` as they would be if every sequence's rows were a chain."""
        turns: Int32s = np.arange(-1, len(self.input_ids) - 1, dtype=np.int32)
        turns -= np.repeat(self.cu_query[:-1], np.diff(self.cu_query))
        return turns

    def pack(self) -> Int32s:
        """One int32 vector, for broadcasting to tensor-parallel ranks."""
        parts = [
            self.input_ids, self.positions, self.slots, self.cu_query, self.kv_len,
            self.pages, self.cu_pages, self.logit_rows, self.copies.reshape(-1), self.moves.reshape(-1), self.parents,
            self.layers, np.array([self.wants_hidden], np.int32), self.feature_slots,
            np.ascontiguousarray(self.features).reshape(-1).view(np.int32),  # pairs of halves: widths are even
        ]
        return np.concatenate([np.array([len(p) for p in parts], np.int32), *parts]).astype(np.int32)

    @classmethod
    def unpack(cls, packed: Int32s) -> StepInput:
        """Inverse of `pack`."""
        lengths = packed[:_NUM_PARTS]
        parts = np.split(packed[_NUM_PARTS:], np.cumsum(lengths)[:-1])
        ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies, moves, parents, *others = parts
        layers, wants_hidden, feature_slots, pairs = others
        features = pairs.view(np.float16).reshape(len(feature_slots), -1) if len(feature_slots) else NO_FEATURES
        return cls(
            ids, positions, slots, cu_query, kv_len, pages, cu_pages, logit_rows, copies.reshape(-1, 2),
            moves.reshape(-1, 2), parents, layers, bool(wants_hidden[0]), features, feature_slots,
        )


class ModelRunner(Protocol):
    """Runs packed steps on one model; the only thing in the engine that touches tensors of the model."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        ...

    @property
    def shares_head(self) -> bool:
        """Whether every tensor-parallel rank works on the logits, and so must know which rows are wanted."""
        ...

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits of `step.logit_rows`: [num_logits, vocab_size] float32 on CPU.

        With `step.wants_hidden` [num_logits, hidden] of the residual stream, before the final norm, instead.
        """
        ...


@dataclass(frozen=True, slots=True)
class Best:
    """The likeliest id of each row, the smallest on ties, and its logit, which is NaN where any of the row is."""

    ids: Int32s  # [num_rows], of several passes [num_passes, num_rows]
    tops: npt.NDArray[np.float32]  # alike


@runtime_checkable
class FindsBest(Protocol):
    """A `ModelRunner` that looks for the likeliest ids while it has the logits at hand."""

    @property
    def best(self) -> Best | None:
        """Of the rows that the last `forward` answered; None: nobody looked."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A `ModelRunner` that can make several passes in one call, each fed with what the one before found likeliest.

    Between two passes of a small model, what Python does would take a third as long as a pass.
    """

    @property
    def decodes(self) -> bool:
        """Whether this one can."""
        ...

    def decode(self, step: StepInput, num_passes: int, stop: Int32s) -> Best:
        """Up to `num_passes` passes: `step`, which wants logits of the last row of each sequence, then a row of each.

        `step.pages` have room for all of it. Fewer passes, but one at least, when `stop` [1] is set to 1 meanwhile, and
        after a pass that found a logit that is no finite number.
        """
        ...


@runtime_checkable
class TakesFeatures(Protocol):
    """A `ModelRunner` whose rows read, beside their token, a state of the position before (EAGLE, 2401.15077).

    It keeps a plane with one state a slot. Its `forward(step)` makes `step.moves` and `step.copies` in the plane as in
    the KV, puts `step.features` (fused or as they are, as it likes) at `step.feature_slots`, then runs the rows: each
    reads the plane at `step.before(page_tokens)` (at -1, of position 0, a state of zeros or whatever the drafter was
    trained with), and last puts the row's own state at `step.slots`, but where features were given in this step.

    The engine sees to it that what a row reads is there before the pass: given, now or earlier, or the own state of a
    row that an earlier pass ran. The latter rows are provisional (`Job.num_whole`).
    """

    @property
    def features_taken(self) -> int:
        """Width of `step.features`."""
        ...


@runtime_checkable
class KeepsFeatures(Protocol):
    """A `ModelRunner` that keeps the residual stream after some layers, a row a slot (`ModelSpec.feature_layers`).

    The rows are written as the slots' keys and values are, and go with them in moves and copies.
    """

    @property
    def features_kept(self) -> int:
        """Width of a row: layers * hidden; 0: it keeps none."""
        ...

    def features_at(self, slots: Int32s) -> Halves:
        """[len(slots), width] float16, a copy: what the passes so far have left there."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A `ModelRunner` whose first pass of a kind takes long, unless it was told of the kind before."""

    def prepare(self, layers: Int32s, wants_hidden: bool) -> None:
        """Make ready for passes with these `StepInput.layers` and `wants_hidden`."""
        ...


@runtime_checkable
class KnowsPart(Protocol):
    """A `ModelRunner` whose output head knows a part of the vocabulary: nothing else may come."""

    @property
    def known_ids(self) -> npt.NDArray[np.int64] | None:
        """Ascending; their logits are above those of all other ids. None: it knows all."""
        ...
