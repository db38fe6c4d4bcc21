"""Prompt lookup: propose what followed the last time the text ended in the same n-gram.

No model: the draft is a copy from the sequence's own past, which is right often where answers repeat
their input (summaries, code edits, retrieval). Source: "Prompt Lookup Decoding", A. Saxena, 2023; the
same rule is studied as n-gram drafting in Spec-Bench (Xia et al., 2024, section 4).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import numpy as np

from actors.drafter_specs import NgramSpec
from actors.drafters.base import Drafter
from actors.drafters.legal import legal_nodes
from actors.messages import Context, Draft, DraftShape, Ids, ReplicaStats

NO_IDS = np.empty(0, np.int32)


class NgramIndex:
    """The tokens of one sequence and where each of their n-grams ends, kept up to date at both ends.

    An n-gram that ends at `e` (exclusive) is `tokens[e - n:e]`. Each list of ends is ascending, so that
    appending pushes and truncating pops: both cost O(tokens moved), whatever the sequence's length.
    """

    def __init__(self, ngram_min: int, ngram_max: int) -> None:
        self.tokens: list[int] = []
        self._sizes = range(ngram_min, ngram_max + 1)
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.tokens.append(token)
            end = len(self.tokens)
            for gram in self._grams_at(end):
                self._ends.setdefault(gram, []).append(end)

    def truncate(self, new_len: int) -> None:
        """Keep the first `new_len` tokens; no effect when there are not more."""
        while len(self.tokens) > new_len:
            for gram in self._grams_at(len(self.tokens)):
                ends = self._ends[gram]
                ends.pop()
                if not ends:
                    del self._ends[gram]
            self.tokens.pop()

    def continuation(self, num_tokens: int) -> list[int]:
        """What followed the most recent earlier occurrence of the longest known suffix; [] without one.

        A copy that reaches the end of the sequence goes on reading its own output (as LZ77 does), so a
        text that repeats with a short period yields a full draft.
        """
        num_held = len(self.tokens)
        for size in reversed(self._sizes):
            if size > num_held:
                continue
            ends = self._ends[tuple(self.tokens[num_held - size :])]
            if len(ends) < 2:  # the last end is the suffix itself
                continue
            source = ends[-2]
            copied = self.tokens[source : source + num_tokens]
            period = num_held - source
            while len(copied) < num_tokens:
                copied.append(copied[len(copied) - period])
            return copied
        return []

    def _grams_at(self, end: int) -> Iterable[tuple[int, ...]]:
        """Every indexed n-gram that ends at `end`."""
        return (tuple(self.tokens[end - size : end]) for size in self._sizes if size <= end)


class _Sequence:
    """One sequence: its index, the newest round that called, and when."""

    def __init__(self, spec: NgramSpec, now: float) -> None:
        self.index = NgramIndex(spec.ngram_min, spec.ngram_max)
        self.round = -1
        self.used_at = now  # seconds of the drafter's clock


class NgramDrafter(Drafter):
    """Deterministic drafts by prompt lookup; `laws` is None, which a verifier reads as a point mass.

    A proposal costs O(new tokens + k). Safe to call from several threads. Raises `ValueError` for
    n-gram sizes that no lookup can use.
    """

    def __init__(
        self,
        spec: NgramSpec,
        *,
        tier: int = 0,
        idle_timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= spec.ngram_min <= spec.ngram_max:
            raise ValueError(
                f"ngram_min {spec.ngram_min}, ngram_max {spec.ngram_max}: use 1 <= ngram_min <= ngram_max"
            )
        self._spec = spec
        self._tier = tier
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sequences: dict[str, _Sequence] = {}  # sequence id -> state, least recently used first
        self._closed = False
        self._num_proposals = 0
        self._num_hits = 0  # proposals that found a match
        self._num_rows = 0  # draft tokens proposed

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """A completed future: up to `shape.num_tokens` copied tokens, none when no suffix is known."""
        started = time.perf_counter()
        with self._lock:
            tokens, error, prefix_missing = self._propose(context, shape.num_tokens)
        future: Future[Draft] = Future()
        future.set_result(
            Draft(
                tokens=np.array(tokens, np.int32) if tokens else NO_IDS,
                tier=self._tier,
                seconds=time.perf_counter() - started,
                error=error,
                prefix_missing=prefix_missing,
            )
        )
        return future

    def _propose(self, context: Context, num_tokens: int) -> tuple[list[int], str | None, bool]:
        """Draft tokens, why there are none, and whether the prefix is missing here."""
        if self._closed:
            return [], "the drafter is shut down", False
        if num_tokens <= 0:
            return [], f"asked for {num_tokens} draft tokens: ask for at least one", False
        now = self._clock()
        self._drop_idle(now)
        sequence = self._sequences.pop(context.sequence_id, None) or _Sequence(self._spec, now)
        self._sequences[context.sequence_id] = sequence  # popped and put back: most recently used last
        sequence.used_at = now
        if context.round < sequence.round:
            return [], f"stale call: round {context.round} after round {sequence.round}", False
        if context.start > len(sequence.index.tokens):
            return [], None, True
        sequence.round = context.round
        self._catch_up(sequence.index, context)
        tokens = sequence.index.continuation(num_tokens)
        if tokens and context.sampling.grammar is not None:
            output = sequence.index.tokens[context.num_prompt_tokens :]
            tokens = tokens[: len(legal_nodes(context.sampling.grammar, output, tokens, None))]
        self._num_proposals += 1
        self._num_hits += bool(tokens)
        self._num_rows += len(tokens)
        return tokens, None, False

    def _catch_up(self, index: NgramIndex, context: Context) -> None:
        """Make the index hold exactly the context's tokens, keeping the common prefix."""
        told: list[int] = context.tokens.tolist()
        held = index.tokens[context.start : context.start + len(told)]
        pairs = zip(held, told, strict=False)
        num_common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        index.truncate(context.start + num_common)
        index.extend(told[num_common:])

    def _drop_idle(self, now: float) -> None:
        """Forget sequences nobody called for `idle_timeout_s`: their owner may have died."""
        while self._sequences:
            oldest = next(iter(self._sequences))
            if now - self._sequences[oldest].used_at <= self._idle_timeout_s:
                return
            del self._sequences[oldest]

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence; unknown ids are ignored. A look-up has nothing that a later prompt could use."""
        with self._lock:
            self._sequences.pop(sequence_id, None)

    def stats(self) -> ReplicaStats:
        """Counters; this drafter has no pages. `extra`: proposals, hits, tokens held."""
        with self._lock:
            num_held = sum(len(s.index.tokens) for s in self._sequences.values())
            return ReplicaStats(
                num_sequences=len(self._sequences),
                num_free_pages=0,
                num_cached_pages=0,
                num_pages=0,
                num_steps=self._num_proposals,
                num_rows=self._num_rows,
                extra={"num_hits": float(self._num_hits), "num_held_tokens": float(num_held)},
            )

    def shutdown(self) -> None:
        """Forget everything; later proposals end with an error draft."""
        with self._lock:
            self._closed = True
            self._sequences.clear()
