"""A model that says nothing, jobs that want little, and a clock moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import torch

from actors.engine.batch import Batch
from actors.engine.jobs import Job
from actors.engine.step import StepInput
from actors.messages import Context, Ids
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows

VOCAB = 50


class Runner:
    """Zero logits. `before_step[i]` runs in step i, for calls that shall come at that moment."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        self.before_step: dict[int, Callable[[], None]] = {}
        self.steps: list[StepInput] = []

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def forward(self, step: StepInput) -> torch.Tensor:
        """Zeros of the wanted rows."""
        self.before_step.get(self.num_steps, lambda: None)()
        self.steps.append(step)
        return torch.zeros(len(step.logit_rows), VOCAB)


class Decode(Job):
    """Feeds `draft`, then appends token 1 until `num_steps` decisions were made."""

    def __init__(self, context: Context, num_steps: int = 1, draft: Ids | None = None) -> None:
        super().__init__(context, Future())
        self.num_left = num_steps
        self.draft = np.empty(0, np.int32) if draft is None else draft
        self.seen: list[tuple[int, int]] = []  # (rows of logits, ids before them) of each decision

    def draft_ids(self) -> Ids:
        """As told."""
        return self.draft

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Token 1, or done."""
        self.seen.append((len(logits), len(history_ids)))
        self.num_left -= 1
        if self.num_left:
            return 1
        self.future.set_result("done")
        return None

    def fail(self, error: Exception) -> None:
        """As it is."""
        if not self.future.done():
            self.future.set_exception(error)


def call(name: str, num_tokens: int, round: int = 1, num_steps: int = 1, num_draft: int = 0) -> Decode:
    """A call on a text of one token repeated, which differs between names."""
    tokens = np.full(num_tokens, 2 + sum(map(ord, name)) % 40, np.int32)
    context = Context(name, 0, tokens, num_tokens, num_tokens, SamplingParams(), round)
    return Decode(context, num_steps, np.full(num_draft, 3, np.int32))


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(batch: Batch, clock: Clock, *jobs: Decode, max_steps: int = 5000) -> int:
    """Steps until all jobs are answered; time passes only when every call waits. Returns the number of steps."""
    for steps in range(max_steps):
        if all(job.future.done() for job in jobs):
            return steps
        if not batch.step():
            clock.now += 0.5
    raise AssertionError(f"{sum(not job.future.done() for job in jobs)} calls without an answer: livelock")
