"""What the engine runs: a sequence's pending rows, and what to do with their logits."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from actors.engine.shallow import Shallow
from actors.messages import Context, Halves, Ids
from actors.sampling.rows import LogitRows


class PrefixMissing(Exception):
    """The engine does not hold `[0, start)` of this sequence; call again with the whole prefix."""


class StaleCall(Exception):
    """A later call of the same sequence has replaced this one, or the sequence was closed."""


class SequenceRejected(Exception):
    """The sequence cannot be run by this model as configured (too long, KV memory too small); one clear sentence."""


class ReplicaFull(Exception):
    """This replica has no room for the call now: it may be served elsewhere, or here later; one clear sentence."""


class NoFeatures(Exception):
    """Features were asked for where none are kept; one clear sentence."""


class TimeUp(Exception):
    """The time that a call was given is over: what it has is its answer."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a branch leaves its sequence: it begins on the pages of the first `num_tokens` tokens."""

    sequence_id: str
    num_tokens: int


def no_features(places: Ids) -> Halves:
    """Of a runner that keeps none."""
    raise NoFeatures("this tier keeps no features: give its model the feature_layers of the drafter")


class Job(abc.ABC):
    """One call on one sequence: rows to feed, then a decision on their logits, possibly repeated.

    The engine's thread alone touches a job after `submit`.
    """

    def __init__(self, context: Context, future: Future[Any]) -> None:
        self.context = context
        self.future = future
        self.created_s = time.monotonic()
        # Set by the engine:
        self.arrival = 0  # order of the calls
        self.num_cached_tokens = 0  # found in the prefix cache when the sequence was opened
        self.first_logit = 0  # position from which on logits are wanted
        self.pending: list[LogitRows] = []  # of a pass that took several steps, oldest first
        self.model_seconds = 0.0  # of forward passes while this call was here, waiting or taking part
        self.pass_rows, self.pass_seconds = 0, 0.0  # of the last of them, other sequences' rows included
        self.read_features = no_features  # float16 [len(places), width] that the runner keeps of places in the
        # sequence's pages (a tree's nodes are still where they were fed), while `on_logits` runs
        # Set by the job:
        self.fork: Fork | None = None  # of a call on a branch: where to open it
        self.spawned: list[Job] = []  # calls on branches of the sequence, taken up by the engine and removed from here
        self.deadline_s: float | None = None  # monotonic; no pass begins at or after it: the job fails with `TimeUp`
        self.num_known = 0  # of `draft_ids`: tokens whose logits, and those of the ones before, are not wanted again
        self.path: tuple[int, ...] = ()  # of a tree: nodes that stay, from its root on; the others are dropped
        self.num_decided = 0  # tokens of the sequence that this tier has decided: they may enter the prefix cache
        self.num_whole: int | None = None  # rows from this position on are provisional: their keys and values (made by
        # a part of the layers, of mask tokens, ...) serve this call and its branches, then they are dropped; None: none
        self.shallow: Shallow | None = None  # which layers its passes run, and those of the calls that it spawns; the
        # rows are provisional, and `num_whole` says so. None: all
        self.extends = False  # goes on from what is provisional instead of dropping it, as calls on branches always do

    @abc.abstractmethod
    def draft_ids(self) -> Ids:
        """Unverified ids fed after the context, [num_draft] int32."""

    def draft_parents(self) -> Ids | None:
        """Of a draft that is a tree, each node's parent (`actors.engine.tree`), [num_draft] int32; None: a chain.

        A tree is run in one step, and is gone after the decision but for `path`, which is then as if fed as a chain.
        """
        return None

    def num_greedy(self) -> int:
        """Passes whose likeliest id this job would take and feed to the next one, whatever it is; 1: it wants to look.

        As many, or fewer, may be made at once: then `on_best` is called instead of `on_logits`.
        """
        return 1

    def on_best(self, ids: Sequence[int]) -> int | None:
        """The likeliest ids of so many passes, one at least, each fed to the next one; answers as `on_logits` does."""
        raise NotImplementedError(f"{type(self).__name__} looks at every pass")

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """The sequence has been found: `notes` are what its last call left here. Returns what to leave instead.

        The first `num_common` tokens of the context and of `draft_ids` are as the sequence knew them. The job may now
        change `draft_ids` and `num_known`, or resolve its future: then no pass is run.
        """
        return None

    @abc.abstractmethod
    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Decide on the logits of the last token of `history_ids` and of the ids fed after it.

        `history_ids` (a view, for the time of the call) is the context with whatever this job appended.
        Returns an id to append and run next, or None when the future has been resolved.
        """

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Resolve the future with `error` in the job's own terms."""

    @property
    def seconds(self) -> float:
        """Wall time since the job was made, queue included."""
        return time.monotonic() - self.created_s
