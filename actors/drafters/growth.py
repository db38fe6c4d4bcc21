"""Growing a token tree, level by level, on forked KV: every node that gets children is run on a sibling of its own.

Static trees have fixed widths. Dynamic ones (EAGLE-2, 2406.16858, section 4) grow where the product of the drafter's
confidences along the path is largest. In greedy and coupled requests each node run offers its best children, and of
all of them the best are kept. Where tokens are sampled no drawn node may be dropped, so how many children a node gets
is settled before they are drawn: each level has an even share of what is left, and within a level the places go to
the likeliest tokens by the laws (`actors.sampling.siblings` says what is allowed).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from actors.answer import Answer
from actors.drafters.copies import Copies
from actors.drafters.guesses import NUM_GUESSES, guess
from actors.drafters.tail import Tail
from actors.engine.jobs import Fork, Job
from actors.engine.sequences import branch_id
from actors.messages import Context, Draft, DraftShape, Ids
from actors.sampling import laws as draft_laws
from actors.sampling.draw import Drawn
from actors.sampling.laws import SparseLaw
from actors.sampling.params import VerifyMode
from actors.sampling.processors import can_go_on
from actors.sampling.rows import LogitRows, concat
from actors.sampling.siblings import confidences, draw_children

_WIDEST = NUM_GUESSES  # children that a node of a dynamic tree offers
_NO_IDS = np.empty(0, np.int32)


class Growth:
    """A tree under way. `on_done` is called once, when nothing of it runs any more, with why it ended early, if so."""

    def __init__(
        self, context: Context, shape: DraftShape, depth: int, tier: int, law_support: int,
        rng: np.random.Generator | None, on_done: Callable[[Exception | None], None], copies: Copies | None = None,
    ) -> None:
        """`context`: what the root continues, by the id of the sequence or branch that it is run on."""
        self.context = context
        self.deadline_s: float | None = None
        self.model_seconds = 0.0  # of the levels below the root
        self.pass_rows, self.pass_seconds = 0, 0.0
        self._shape = shape
        self._max_depth = min(depth, len(shape.widths)) if shape.widths else depth
        self._tier = tier
        self._law_support = law_support
        self._rng = rng
        self._on_done = on_done
        self._copies = copies
        self._is_sampled = context.sampling.mode in (VerifyMode.REJECTION, VerifyMode.BLOCK)
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._laws: list[SparseLaw] = []
        self._scores: list[float] = []  # product of the confidences along the path
        self._homes = {-1: (context.sequence_id, context.num_tokens)}  # node run -> its sequence, and length with it
        self._rows: dict[int, tuple[LogitRows, Ids]] = {}  # of nodes whose number of children waits for their level
        self._level = [-1]  # nodes being run
        self._waiting = {-1}
        self._num_levels = 0  # drawn
        self._level_start = 0  # first node of the newest one
        self._level_seconds = 0.0
        self._ended_by: Exception | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether anything was drafted."""
        return bool(self._tokens)

    def feed(self, node: int, logits: LogitRows, history_ids: Ids, job: Job) -> list[Job]:
        """A node was run by `job`; returns the calls that run the next level, once this one is complete."""
        context = self.context
        if self._copies is not None:
            logits = self._copies.mix(logits, 0, context.sampling, history_ids)
        if not can_go_on(logits, 0, context.sampling, history_ids, context.num_prompt_tokens):
            pass  # a leaf
        elif self._is_sampled and not self._shape.widths:
            self._rows[node] = concat([logits]), history_ids.copy()
        else:
            widths = self._shape.widths
            count = widths[self._num_levels] if widths else min(_WIDEST, self._shape.num_nodes)
            self._draw(node, logits, history_ids, count)
        if node >= 0:
            self._level_seconds = max(self._level_seconds, job.model_seconds)
        self.pass_rows, self.pass_seconds = job.pass_rows, job.pass_seconds
        self._waiting.discard(node)
        return [] if self._waiting else self._next_level()

    def lose(self, node: int, error: Exception) -> None:
        """A node could not be run: the tree ends with what has been drawn."""
        self._ended_by = self._ended_by or error
        self._waiting.discard(node)
        if not self._waiting:
            self._on_done(self._ended_by)

    def draft(self, job: Job) -> Draft:
        """The tree as far as it got; `job` is the one that began it."""
        nodes = list(range(len(self._tokens)))
        limit = self._shape.num_nodes
        if not self._shape.widths and not self._is_sampled and len(nodes) > limit:
            # A node's score is at most its parent's, and ties go to the earlier one: what is kept is a tree.
            nodes = sorted(sorted(nodes, key=lambda i: (-self._scores[i], i))[:limit])
        renamed = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return Draft(
            tokens=np.array([self._tokens[i] for i in nodes], np.int32),
            laws=draft_laws.build([self._laws[i] for i in nodes]) if self._laws else None,
            tier=self._tier, seconds=job.seconds, model_seconds=job.model_seconds + self.model_seconds,
            num_cached_tokens=job.num_cached_tokens,
            parents=np.array([renamed[self._parents[i]] for i in nodes], np.int32),
            pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
        )

    def _draw(self, node: int, logits: LogitRows, history_ids: Ids, count: int) -> None:
        children, confidence = self._children(logits, history_ids, count)
        score = self._scores[node] if node >= 0 else 1.0
        for child, sure in zip(children, confidence, strict=False):
            self._tokens.append(child.token)
            self._parents.append(node)
            self._scores.append(score * min(sure, 1.0))
            if child.law is not None:
                self._laws.append(child.law)

    def _children(self, logits: LogitRows, history_ids: Ids, count: int) -> tuple[list[Drawn], list[float]]:
        """Children of a node whose path ends `history_ids`, and how sure the drafter is of each."""
        context = self.context
        if self._shape.widths or self._is_sampled:
            children = draw_children(
                logits, 0, context.sampling, history_ids, context.num_prompt_tokens, self._rng, self._law_support, count
            )
            # In a static tree nobody asks.
            return children, [1.0] * count if self._shape.widths else confidences(logits, 0, children)
        # The same children, with confidences that fall in their order: an elder one is never dropped first.
        likely = guess(logits, 0, context.sampling, history_ids, context.num_prompt_tokens, self._law_support)
        return [Drawn(token, None) for token in likely.ids[:count]], list(likely.probs)

    def _next_level(self) -> list[Job]:
        self._share_out()
        self.model_seconds += self._level_seconds
        self._level_seconds = 0.0
        self._num_levels += 1
        self._level = [] if self._ended_by or self._num_levels >= self._max_depth else self._worth_running()
        self._level_start = len(self._tokens)
        self._waiting = set(self._level)
        if not self._level:
            self._on_done(self._ended_by)
            return []
        return [self._walk(node) for node in self._level]

    def _share_out(self) -> None:
        """Draw the children of a level whose number was to be settled by the whole level."""
        if not self._rows:
            return
        context = self.context
        num_left = self._shape.num_nodes - len(self._tokens)
        share = math.ceil(num_left / (self._max_depth - self._num_levels))
        places: list[tuple[float, int]] = []
        for node, (logits, history_ids) in self._rows.items():
            score = self._scores[node] if node >= 0 else 1.0
            likely = guess(logits, 0, context.sampling, history_ids, context.num_prompt_tokens, self._law_support)
            places.extend((score * prob, node) for prob in likely.probs)
        places.sort(key=lambda place: (-place[0], place[1]))
        chosen = [node for _, node in places[:share]]
        for node in sorted(self._rows):
            if node in chosen:
                self._draw(node, *self._rows[node], chosen.count(node))
        self._rows = {}

    def _worth_running(self) -> list[int]:
        """Of the newest level, the nodes that shall have children."""
        fresh = range(self._level_start, len(self._tokens))
        if self._shape.widths:
            return list(fresh)
        limit = self._shape.num_nodes
        if self._is_sampled:  # no more of them than there are places for children
            beam = math.ceil(max(0, limit - len(self._tokens)) / (self._max_depth - self._num_levels))
        else:
            beam = max(2, math.ceil(limit / self._max_depth))
        best = sorted(fresh, key=lambda i: (-self._scores[i], i))[:beam]
        if not self._is_sampled and len(self._tokens) >= limit:
            least = sorted(self._scores, reverse=True)[limit - 1]
            best = [i for i in best if self._scores[i] > least]  # others have no child that could be kept
        return sorted(best)

    def _walk(self, node: int) -> Job:
        """Run a node: its parent's first one goes on where the parent was run, the others on forks."""
        home, length = self._homes[self._parents[node]]
        is_first = self._parents[node] >= 0 and not any(
            other < node and self._parents[other] == self._parents[node] for other in self._level
        )
        sequence_id = home if is_first else branch_id(self.context.sequence_id, f"{self.context.round}/{node}")
        self._homes[node] = sequence_id, length + 1
        context = replace(
            self.context, sequence_id=sequence_id, start=length, tokens=np.array([self._tokens[node]], np.int32)
        )
        walk = WalkJob(self, node, context)
        walk.fork = Fork(home, length)
        walk.deadline_s = self.deadline_s
        return walk


class WalkJob(Job):
    """Runs one node of a growing tree."""

    def __init__(self, growth: Growth, node: int, context: Context) -> None:
        super().__init__(context, Answer())
        self._growth = growth
        self._node = node

    def draft_ids(self) -> Ids:
        """Nothing is fed beyond the context."""
        return _NO_IDS

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """Should this become the sequence, nothing has been drafted after it."""
        return Tail(self.context.num_tokens, self.context.sampling)

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw children; the last of a level starts the next one."""
        self.spawned.extend(self._growth.feed(self._node, logits, history_ids, self))
        self.future.set_result(None)
        return None

    def fail(self, error: Exception) -> None:
        """The tree ends here."""
        if not self.future.done():
            self.future.set_result(None)
            self._growth.lose(self._node, error)
