"""The step loop under pressure: whatever happens, every call gets an answer and the thread lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.engine import Engine
from actors.engine.jobs import Job, PrefixMissing, SequenceRejected, StaleCall
from actors.engine.step import StepInput
from actors.messages import Context
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec

VOCAB = 50


class Runner:
    """Logits that say nothing. `before_step[i]` runs in step i, for calls that shall come at that moment."""

    vocab_size = VOCAB

    def __init__(self) -> None:
        self.before_step: dict[int, Callable[[], None]] = {}
        self.num_steps = 0

    def forward(self, step: StepInput) -> torch.Tensor:
        """Zeros of the wanted rows."""
        self.before_step.get(self.num_steps, lambda: None)()
        self.num_steps += 1
        return torch.zeros(len(step.logit_rows), VOCAB)


class Decode(Job):
    """Appends token 1 until `num_steps` rows were looked at."""

    def __init__(self, context: Context, num_steps: int = 1) -> None:
        super().__init__(context, Future())
        self.num_left = num_steps

    def draft_ids(self) -> np.ndarray:
        """None."""
        return np.empty(0, np.int32)

    def on_logits(self, logits: torch.Tensor) -> int | None:
        """Token 1, or done."""
        self.num_left -= 1
        if self.num_left:
            return 1
        self.future.set_result("done")
        return None

    def fail(self, error: Exception) -> None:
        """As it is."""
        if not self.future.done():
            self.future.set_exception(error)


def call(name: str, num_tokens: int, round: int = 1, num_steps: int = 1) -> Decode:
    tokens = np.full(num_tokens, 2 + sum(map(ord, name)) % 40, np.int32)
    return Decode(Context(name, 0, tokens, num_tokens, num_tokens, SamplingParams(), round), num_steps)


Make = Callable[..., tuple[Engine, Runner]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes engines; afterwards none has leaked a page."""
    engines: list[Engine] = []

    def build(on_closed: Callable[[str], None] | None = None, **changes: Any) -> tuple[Engine, Runner]:
        runner = Runner()
        settings: dict[str, Any] = {"tier": 1, "model": "x", "page_tokens": 16, "kv_tokens": 160, **changes}
        engine = Engine(runner, ModelSpec(**settings), 1024, on_closed)
        engines.append(engine)
        return engine, runner

    yield build
    for engine in engines:
        if engine._thread.is_alive():
            engine.check_integrity()
            engine.shutdown()


def submit_all(engine: Engine, jobs: list[Decode]) -> None:
    for job in jobs:
        engine.submit(job)


def test_prefills_that_do_not_fit_together_all_end(make: Make) -> None:
    """The older sequence has the younger call: it must not take the whole step again and again."""
    engine, runner = make(max_batch_tokens=32)
    young = call("b", 1)
    engine.submit(young)
    young.future.result(10)
    jobs = [call("a", 150), call("b", 120, round=2)]
    jobs[1].created_s += 1
    runner.before_step[4] = lambda: engine.submit(jobs[1])  # "a" holds most pages by then
    engine.submit(jobs[0])
    assert [job.future.result(10) for job in jobs] == ["done"] * 2


def test_short_backlogs_without_pages_do_not_keep_out_a_sequence_that_holds_them(make: Make) -> None:
    engine, runner = make(max_batch_tokens=48)
    shorts = [call(f"short{i}", 30) for i in range(8)]
    runner.before_step[2] = lambda: submit_all(engine, shorts)
    long = call("long", 155)
    engine.submit(long)
    assert [job.future.result(10) for job in [long, *shorts]] == ["done"] * 9


def test_a_sequence_that_outgrows_the_memory_fails_alone(make: Make) -> None:
    engine, _ = make()
    jobs = [call("huge", 100, num_steps=500), *(call(f"s{i}", 40) for i in range(4))]
    submit_all(engine, jobs)
    assert [job.future.result(10) for job in jobs[1:]] == ["done"] * 4
    with pytest.raises(SequenceRejected, match="KV memory is too small"):
        jobs[0].future.result(10)


@pytest.mark.parametrize("seed", range(8))
def test_random_pressure_answers_every_call(make: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, runner = make(max_batch_tokens=int(rng.integers(1, 80)))
    jobs = [call(f"s{i}", int(rng.integers(1, 120)), num_steps=int(rng.integers(1, 30))) for i in range(20)]
    now, later = jobs[:10], iter(jobs[10:])
    for step in range(10):
        runner.before_step[3 * step] = lambda: engine.submit(next(later))
    submit_all(engine, now)
    assert [job.future.result(20) for job in jobs] == ["done"] * 20


def test_a_preempted_short_call_does_not_take_its_page_back_before_older_prefills(make: Make) -> None:
    engine, runner = make(max_batch_tokens=16)
    jobs = [call("a", 100), call("d", 100), call("b", 30)]
    jobs[0].created_s, jobs[1].created_s, jobs[2].created_s = 1.0, 2.0, 3.0
    runner.before_step[3] = lambda: submit_all(engine, jobs[1:2])
    runner.before_step[5] = lambda: submit_all(engine, jobs[2:])
    submit_all(engine, jobs[:1])
    assert [job.future.result(10) for job in jobs] == ["done"] * 3


def test_sequences_left_behind_make_room_for_new_ones(make: Make) -> None:
    engine, _ = make(max_sequences=2)
    for name in "abcd":
        job = call(name, 20)
        engine.submit(job)
        assert job.future.result(10) == "done"
    gone = Decode(Context("a", 19, np.full(2, 3, np.int32), 20, 20, SamplingParams(), 2))
    engine.submit(gone)
    with pytest.raises(PrefixMissing):
        gone.future.result(10)


def test_a_failing_on_closed_does_not_stop_the_engine(make: Make) -> None:
    def broken(sequence_id: str) -> None:
        raise RuntimeError(sequence_id)

    engine, _ = make(on_closed=broken)
    engine.submit(call("a", 4))
    engine.close("a")
    job = call("b", 4)
    engine.submit(job)
    assert job.future.result(10) == "done"


def test_a_malformed_context_fails_alone(make: Make) -> None:
    engine, _ = make()
    bad = Decode(Context("a", 0, np.zeros((2, 2), np.int32), 2, 2, SamplingParams(), 1))
    engine.submit(bad)
    assert isinstance(bad.future.exception(10), Exception)
    good = call("b", 4)
    engine.submit(good)
    assert good.future.result(10) == "done"


def test_a_call_after_shutdown_is_answered(make: Make) -> None:
    engine, _ = make()
    engine.shutdown()
    job = call("a", 4)
    engine.submit(job)
    with pytest.raises(StaleCall):
        job.future.result(5)


def test_idle_sequences_are_freed_while_others_keep_the_engine_busy(make: Make) -> None:
    closed = threading.Event()
    engine, _ = make(on_closed=lambda _: closed.set(), idle_timeout_s=0.05)
    orphan = call("orphan", 4)
    engine.submit(orphan)
    orphan.future.result(10)
    stop = threading.Event()

    class Endless(Decode):
        def on_logits(self, logits: torch.Tensor) -> int | None:
            """Runs the same row count for ever, slowly filling its memory only once per look."""
            stop.wait(0.03)
            if stop.is_set():
                self.future.set_result("done")
                return None
            return 1

    busy = Endless(call("busy", 4).context)
    engine.submit(busy)
    assert closed.wait(4)
    stop.set()
    assert busy.future.result(10) == "done"
