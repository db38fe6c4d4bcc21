"""Suffix decoding: propose what followed before where a text ended like this one, here or in past outputs.

No model. Source: "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2411.04975: a suffix tree
of the request's own text and one of past outputs, with drafts as long as the match is long and their tokens were
frequent. Here both are suffix automata, which take a token in a few microseconds and never have to be rolled back:
only committed tokens enter them, and what is not decided yet is merely looked up.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from actors.drafter_specs import SuffixSpec
from actors.drafters.base import Drafter
from actors.drafters.legal import legal_nodes
from actors.drafters.suffix_automaton import Cursor, SuffixAutomaton
from actors.drafters.suffix_search import Limits, grow, starts
from actors.drafters.suffix_store import Entry, SuffixStore
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaStats

NO_IDS = np.empty(0, np.int32)
_MOST_READ = 2048  # tokens that one proposal reads: a few microseconds each, while other sequences wait
_LEAD = 8  # prompt tokens before an output that are remembered with it: without them its beginning is never found


class _Sequence:
    """One sequence. `tokens[:num_read]` are committed and in the automaton."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[int] = []
        self.num_prompt_tokens = 0
        self.round = -1
        self.used_at = 0.0  # seconds of the drafter's clock
        self.num_read = 0
        self.automaton = SuffixAutomaton(depth)
        self.cursor = Cursor()
        self.entry = Entry()
        self.num_stored = 0  # tokens that the store has, or does not want

    def tell(self, start: int, told: list[int]) -> None:
        """Make `tokens` end in what was told, `[0, start)` being known."""
        held = self.tokens[start : start + len(told)]
        pairs = zip(held, told, strict=False)
        common = start + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        del self.tokens[common:]
        self.tokens.extend(told[common - start :])
        if common < self.num_read:  # somebody was wrong about what is committed
            self.num_read = 0
            self.automaton, self.cursor = SuffixAutomaton(self.depth), Cursor()

    def read(self, num_committed: int) -> None:
        """Take committed tokens into the automaton; a long prompt takes several calls."""
        end = min(num_committed, len(self.tokens), self.num_read + _MOST_READ)
        append, cursor = self.automaton.append, self.cursor
        for token in self.tokens[self.num_read : end]:
            append(cursor, token)
        self.num_read = max(self.num_read, end)

    def store(self, into: SuffixStore, num_committed: int) -> None:
        """Let the store have what is committed of the output."""
        start = max(self.num_stored, self.num_prompt_tokens - _LEAD)
        if num_committed > max(start, self.num_prompt_tokens):
            into.extend(self.entry, self.tokens[start:num_committed])
            self.num_stored = num_committed


class SuffixDrafter(Drafter):
    """Deterministic drafts by suffix look-up; `laws` is None, which a verifier reads as a point mass.

    Chains are cut where they get unlikely; trees of any shape hold the likeliest continuations. Safe to call from
    several threads. A proposal costs some microseconds for each new token and each token drafted.
    """

    def __init__(
        self,
        spec: SuffixSpec,
        *,
        tier: int = 0,
        idle_timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._depth = spec.max_depth
        self._limits = Limits(spec.spec_factor, spec.min_token_prob)
        self._tier = tier
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._store = SuffixStore(spec.max_depth, spec.max_cached_requests, spec.max_cached_tokens)
        self._sequences: dict[str, _Sequence] = {}  # least recently used first
        self._closed = False
        self._num_proposals = 0
        self._num_hits = 0  # proposals that found a match
        self._num_rows = 0  # draft tokens proposed

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """A completed future: at most what `shape` says, less where the past says less, none without a match."""
        started = time.perf_counter()
        with self._lock:
            tokens, parents, error, prefix_missing = self._propose(context, shape)
        future: Future[Draft] = Future()
        future.set_result(
            Draft(
                tokens=np.array(tokens, np.int32) if tokens else NO_IDS,
                parents=None if parents is None else np.array(parents, np.int32),
                tier=self._tier, seconds=time.perf_counter() - started, error=error, prefix_missing=prefix_missing,
            )
        )
        return future

    def _propose(
        self, context: Context, shape: DraftShape
    ) -> tuple[list[int], list[int] | None, str | None, bool]:
        """Draft tokens, the parents of a tree, why there are none, and whether the prefix is missing here."""
        if self._closed:
            return [], None, "the drafter is shut down", False
        if shape.num_tokens <= 0:
            return [], None, f"asked for {shape.num_tokens} draft tokens: ask for at least one", False
        now = self._clock()
        self._drop_idle(now)
        sequence = self._sequences.pop(context.sequence_id, None) or _Sequence(self._depth)
        self._sequences[context.sequence_id] = sequence  # popped and put back: most recently used last
        sequence.used_at = now
        if context.round < sequence.round:
            return [], None, f"stale call: round {context.round} after round {sequence.round}", False
        if context.start > len(sequence.tokens):
            return [], None, None, True
        sequence.round = context.round
        sequence.num_prompt_tokens = context.num_prompt_tokens
        sequence.tell(context.start, context.tokens.tolist())
        sequence.read(context.num_committed)
        sequence.store(self._store, min(context.num_committed, len(sequence.tokens)))
        tokens, parents = self._draft(sequence, shape)
        if tokens and context.sampling.grammar is not None:
            output = sequence.tokens[context.num_prompt_tokens :]
            kept = legal_nodes(context.sampling.grammar, output, tokens, parents)
            if parents is not None:
                names = {-1: -1} | {node: name for name, node in enumerate(kept)}
                parents = [names[parents[node]] for node in kept]
            tokens = [tokens[node] for node in kept]
        self._num_proposals += 1
        self._num_hits += bool(tokens)
        self._num_rows += len(tokens)
        return tokens, parents, None, False

    def _draft(self, sequence: _Sequence, shape: DraftShape) -> tuple[list[int], list[int] | None]:
        automata = [sequence.automaton, *self._store.automata]
        places = starts(automata, sequence.tokens[-self._depth :], shape.num_tokens, self._limits)
        if not places:
            return [], None
        if shape.is_chain:
            return places[0].tokens, None
        tree = grow(places, shape, self._limits)
        return tree.tokens, tree.parents

    def _drop_idle(self, now: float) -> None:
        """Forget sequences nobody called for `idle_timeout_s`: their owner may have died."""
        while self._sequences:
            oldest = next(iter(self._sequences))
            if now - self._sequences[oldest].used_at <= self._idle_timeout_s:
                return
            del self._sequences[oldest]

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence; unknown ids are ignored. The output stays in the store, to its end if `truth` tells it."""
        with self._lock:
            sequence = self._sequences.pop(sequence_id, None)
            if sequence is None or truth is None or self._closed:
                return
            whole: list[int] = truth.tolist()
            if whole[: sequence.num_stored] == sequence.tokens[: sequence.num_stored]:
                sequence.tokens = whole
                sequence.store(self._store, len(whole))

    def stats(self) -> ReplicaStats:
        """Counters; there are no pages. `extra`: proposals that found a match, tokens held, outputs remembered."""
        with self._lock:
            num_held = sum(len(s.tokens) for s in self._sequences.values())
            return ReplicaStats(
                num_sequences=len(self._sequences),
                num_free_pages=0,
                num_cached_pages=0,
                num_pages=0,
                num_steps=self._num_proposals,
                num_rows=self._num_rows,
                extra={
                    "num_hits": float(self._num_hits), "num_held_tokens": float(num_held),
                    "num_stored_requests": float(self._store.num_requests),
                    "num_stored_tokens": float(self._store.num_tokens),
                },
            )

    def shutdown(self) -> None:
        """Forget everything; later proposals end with an error draft."""
        with self._lock:
            self._closed = True
            self._sequences.clear()
            self._store = SuffixStore(self._depth, 0, 0)
