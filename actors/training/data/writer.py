"""Lets the target write: many prompts at once over the engine's own steps, each text a function of prompt and seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from concurrent.futures import Future

import numpy as np

from actors.engine.batch import Batch
from actors.engine.jobs import Job
from actors.engine.step import ModelRunner
from actors.messages import Context, Ids
from actors.sampling.draw import draw
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.spec import ModelSpec
from actors.training.data.filters import LOOP_CHECK_TOKENS, loop_start


class WriteJob(Job):
    """Goes on with a prompt until the text ends, loops or is long enough."""

    future: Future[Ids]

    def __init__(self, context: Context, max_tokens: int, end_ids: Collection[int]) -> None:
        super().__init__(context, Future())
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._written: list[int] = []

    def draft_ids(self) -> Ids:
        """Nothing is fed beyond the context."""
        return np.empty(0, np.int32)

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw the next token: the argmax of log p + g, with noise named by seed and position (exact in law)."""
        context = self.context
        drawn = draw(logits, 0, context.sampling, history_ids, context.num_prompt_tokens, None, 0)
        self._written.append(drawn.token)
        count = len(self._written)
        over = drawn.token in self._end_ids or count >= self._max_tokens
        if over or (count % LOOP_CHECK_TOKENS == 0 and loop_start(np.array(self._written)) is not None):
            self.future.set_result(np.array(self._written, np.int32))
            return None
        return drawn.token

    def fail(self, error: Exception) -> None:
        """The writer raises it."""
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """Texts in the making, up to `num_parallel` at once: give `start` a prompt and what is to happen with the text."""

    def __init__(self, runner: ModelRunner, spec: ModelSpec, max_context_tokens: int, end_ids: Collection[int]) -> None:
        self._batch = Batch(runner, spec, max_context_tokens)
        self._end_ids = frozenset(end_ids)
        self._names = itertools.count()
        self._finished: list[tuple[str, Future[Ids], Callable[[Ids], None]]] = []
        self.num_parallel = spec.max_sequences
        self.max_context_tokens = max_context_tokens
        self.num_written = 0  # tokens

    @property
    def num_active(self) -> int:
        """Texts in the making."""
        return self._batch.num_active

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a text."""
        return self._end_ids

    def start(
        self, prompt: Ids, max_tokens: int, temperature: float, seed: int, then: Callable[[Ids], None]
    ) -> None:
        """Have `then(text)` called when the text is written, its end id included where it came to one.

        The text is the target's own law at `temperature`, cut where it loops or becomes too long.
        """
        name = f"text-{next(self._names)}"
        sampling = SamplingParams(temperature=temperature, seed=seed)
        context = Context(name, 0, prompt, len(prompt), len(prompt), sampling, 0)
        job = WriteJob(context, min(max_tokens, self.max_context_tokens - len(prompt)), self._end_ids)

        def done(future: Future[Ids]) -> None:
            self._finished.append((name, future, then))

        job.future.add_done_callback(done)
        self._batch.attach(job)

    def step(self) -> None:
        """One pass for all texts in the making; calls back for those that end with it. Raises what made one fail."""
        self._batch.step()
        finished, self._finished = self._finished, []
        for name, future, then in finished:
            self._batch.close(name)
            text = future.result()
            self.num_written += len(text)
            then(text)
