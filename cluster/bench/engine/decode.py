"""Greedy decoding by the engine alone, one sequence or many together, each call following at once upon its answer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from actors.messages import Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from cluster.bench.stats import steady_rate
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.sequence import Held
from cluster.coordinator.sequence import Sequence as Tokens

TIMEOUT_S = 3600.0


class DecodingFailed(RuntimeError):
    """A pass ended with an error."""


@dataclass
class Stream:
    """One sequence: what came, and when (seconds, a clock that only runs forwards)."""

    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Decoded:
    """All sequences of a run."""

    streams: tuple[Stream, ...]
    wall_s: float  # from the first call to the last answer, prefills included

    @property
    def tokens_per_s(self) -> float:
        """Of all sequences together while all were running (prefills and ramps left out)."""
        return steady_rate([stream.times for stream in self.streams])

    @property
    def seconds_per_token(self) -> float:
        """Its inverse."""
        return 1.0 / self.tokens_per_s


def decode(verifier: Verifier, prompts: Sequence[Ids], num_tokens: int) -> Decoded:
    """Greedy, without drafts, `num_tokens` per prompt, all prompts at once.

    Each next call is made by the thread that brings the answer, so that the engine always finds all
    sequences waiting: the most that it can do, with no other thread in its way. Raises `DecodingFailed`.
    """
    run = _Run(verifier, prompts, num_tokens)
    return run.wait()


class _Run:
    def __init__(self, verifier: Verifier, prompts: Sequence[Ids], num_tokens: int) -> None:
        self._verifier = verifier
        self._num_tokens = num_tokens
        self._streams = tuple(Stream() for _ in prompts)
        self._left = len(prompts)
        self._done = threading.Event()
        self._error: str | None = None
        self._started = time.perf_counter()
        prefix = uuid.uuid4().hex
        self._tokens = [
            Tokens(GenerationRequest(
                request_id=f"{prefix}-{index}", prompt_ids=prompt, sampling=SamplingParams(temperature=0.0),
                max_tokens=num_tokens,
            ))
            for index, prompt in enumerate(prompts)
        ]
        self._names = [f"{prefix}-{index}" for index in range(len(prompts))]
        for index in range(len(prompts)):
            self._call(index, held=None)

    def wait(self) -> Decoded:
        finished = self._done.wait(TIMEOUT_S)
        wall_s = time.perf_counter() - self._started
        for name in self._names:
            self._verifier.close(name)
        if self._error is not None or not finished:
            raise DecodingFailed(self._error or f"decoding took longer than {TIMEOUT_S:g} s")
        return Decoded(self._streams, wall_s)

    def _call(self, index: int, held: Held | None) -> None:
        context = self._tokens[index].context(held)
        future = self._verifier.verify(context, [])
        future.add_done_callback(lambda done: self._on_done(index, done))

    def _on_done(self, index: int, done: Future[Verdict]) -> None:
        """In the engine's thread. What it raised would be swallowed there, so it is kept for `wait`."""
        try:
            self._take(index, done.result())
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            self._done.set()

    def _take(self, index: int, verdict: Verdict) -> None:
        if verdict.error is not None or len(verdict.tokens) != 1:
            raise DecodingFailed(f"a plain step answered {len(verdict.tokens)} tokens: {verdict.error}")
        tokens, stream = self._tokens[index], self._streams[index]
        held = Held(tokens.num_tokens)
        tokens.commit(verdict.tokens)
        stream.ids.append(int(verdict.tokens[0]))
        stream.times.append(time.perf_counter())
        if tokens.remaining:
            self._call(index, held)
            return
        self._left -= 1  # only this thread counts
        if self._left == 0:
            self._done.set()


def slices(ids: Ids, count: int, num_tokens: int) -> list[Ids]:
    """`count` prompts of `num_tokens` from one text, at evenly spread places (they overlap if it is too short)."""
    starts = np.linspace(0, len(ids) - num_tokens, count).astype(int).tolist()
    return [np.ascontiguousarray(ids[start : start + num_tokens]) for start in starts]
