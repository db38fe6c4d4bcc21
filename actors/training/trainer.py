"""The one loop: batches, loss, step, checkpoint; the same for every kind, on one process or several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from actors.training import checkpoint
from actors.training.checkpoint import State
from actors.training.data.batches import Batcher, Order
from actors.training.kind import Trainee
from actors.training.optimiser import OptimiserSettings, PlainStepper, Stepper, ZeroStepper
from actors.training.ranks import Ranks
from actors.training.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How long and how fast."""

    num_steps: int
    schedule: Schedule
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    precision: str = "fp32"  # "fp32" | "bf16": autocast
    minutes: float = 0.0  # a longer run ends then, its learning rate having gone down by that time; 0: no bound
    checkpoint_every: int = 200  # steps; 0: only at the end
    report_every: int = 10  # steps that are averaged in a report
    zero_stage: int = 0  # of DeepSpeed; 0: no DeepSpeed, which one process can do without


@dataclass(frozen=True, slots=True)
class Report:
    """Means over the last steps."""

    step: int
    num_steps: int
    loss: float
    metrics: dict[str, float]
    rate: float
    grad_norm: float
    tokens_per_s: float  # of text, padding not counted, all ranks together
    progress: float  # 0 to 1, by steps or by time, whichever is further


class Diverged(RuntimeError):
    """The loss is no number; one line that names the fix."""


class Trainer:
    """Trains one trainee, from where its last checkpoint left it."""

    def __init__(
        self, trainee: Trainee, batcher: Batcher, order: Order, settings: TrainerSettings, run: dict[str, Any],
        directory: Path, ranks: Ranks | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` says what makes the run what it is: a checkpoint of another one is refused (`BadCheckpoint`)."""
        self._trainee = trainee
        self._batcher = batcher
        self._order = order
        self._settings = settings
        self._run = run
        self._directory = directory / checkpoint.DIRECTORY
        self._ranks = ranks or Ranks()
        self._clock = clock
        precision = {"fp32": None, "bf16": torch.bfloat16}[settings.precision]
        self._stepper: Stepper
        if settings.zero_stage:
            self._stepper = ZeroStepper(trainee, settings.optimiser, precision, settings.zero_stage)
        else:
            self._stepper = PlainStepper(trainee, settings.optimiser, precision)
        found = checkpoint.load(self._directory, run, self._stepper, self._ranks.rank)
        self.state = found or State()
        self.resumed = found is not None

    @property
    def progress(self) -> float:
        """0 to 1."""
        by_time = self.state.elapsed_s / (60 * self._settings.minutes) if self._settings.minutes else 0.0
        return min(1.0, max(self.state.step / self._settings.num_steps, by_time))

    def run(
        self, on_report: Callable[[Report], None] = lambda _: None, stop: Callable[[], bool] = lambda: False
    ) -> State:
        """Train to the end, or until `stop()`; a checkpoint is there afterwards. Raises `Diverged`."""
        settings, state, ranks = self._settings, self.state, self._ranks
        batches = self._order.from_position(state.position, ranks.rank, ranks.count)
        self._trainee.train()
        began_s = self._clock() - state.elapsed_s
        window = _Window(self._clock)
        while not ranks.any(self.progress >= 1.0 or stop()):
            progress, rate = self.progress, 0.0
            for _ in range(settings.optimiser.accumulate):
                batch = self._batcher.batch(next(batches))
                state.position += 1
                result = self._stepper.loss(batch)
                self._stepper.backward(result.loss)
                num_tokens = int(batch.lengths.sum()) * ranks.count
                state.num_tokens += num_tokens
                window.add(float(result.loss.detach()), result.metrics, num_tokens)
                rate = settings.schedule.rate(progress)
                if settings.zero_stage:
                    window.grad_norm = self._stepper.step(rate)
            if not settings.zero_stage:
                window.grad_norm = self._stepper.step(rate)
            state.step += 1
            state.elapsed_s = self._clock() - began_s
            if not window.is_finite:
                raise Diverged(
                    f"the loss is no number at step {state.step}: train with a smaller --lr (and "
                    "--restart)"
                )
            if state.step % settings.report_every == 0:
                report = window.report(state.step, settings.num_steps, rate, self.progress)
                state.history.append({"step": state.step, "loss": report.loss, **report.metrics})
                on_report(report)
                window = _Window(self._clock)
            if settings.checkpoint_every and state.step % settings.checkpoint_every == 0:
                self._save()
        self._save()
        return state

    def whole_state(self) -> dict[str, torch.Tensor] | None:
        """As in `Stepper`."""
        return self._stepper.whole_state()

    def _save(self) -> None:
        checkpoint.save(self._directory, self._run, self.state, self._stepper, self._ranks.rank, self._ranks.barrier)


class _Window:
    """Sums since the last report."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._num = 0
        self._loss = 0.0
        self._metrics: dict[str, float] = {}
        self._tokens = 0
        self.grad_norm = 0.0

    def add(self, loss: float, metrics: dict[str, torch.Tensor], num_tokens: int) -> None:
        self._num += 1
        self._loss += loss
        self._tokens += num_tokens
        for name, value in metrics.items():
            self._metrics[name] = self._metrics.get(name, 0.0) + float(value)

    @property
    def is_finite(self) -> bool:
        """Whether every loss so far was a number."""
        return abs(self._loss) < float("inf")  # false for NaN, too

    def report(self, step: int, num_steps: int, rate: float, progress: float) -> Report:
        count = max(self._num, 1)
        metrics = {name: value / count for name, value in self._metrics.items()}
        seconds = max(self._clock() - self._began_s, 1e-9)
        return Report(
            step, num_steps, self._loss / count, metrics, rate, self.grad_norm, self._tokens / seconds, progress
        )
