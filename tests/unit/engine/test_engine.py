"""The engine's thread: whatever is asked of it and whatever breaks, every call gets an answer and it lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.jobs import ReplicaFull, StaleCall
from actors.messages import Context, DraftShape, Ids, ReplicaInfo
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from actors.spec import ModelSpec
from actors.verifier import Verifier
from tests.unit.engine.fakes import VOCAB, Decode, Runner, call

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


@pytest.mark.parametrize("seed", range(8))
def test_random_pressure_answers_every_call(make: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    engine, runner = make(max_batch_tokens=int(rng.integers(2, 80)), idle_timeout_s=0.1)
    jobs = [call(f"s{i}", int(rng.integers(1, 120)), num_steps=int(rng.integers(1, 30))) for i in range(20)]
    now, later = jobs[:10], iter(jobs[10:])
    for step in range(10):
        runner.before_step[3 * step] = lambda: engine.submit(next(later))
    submit_all(engine, now)
    assert [job.future.result(60) for job in jobs] == ["done"] * 20


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


def test_calls_under_way_fail_at_shutdown(make: Make) -> None:
    engine, runner = make()
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(30)

    runner.before_step[0] = hold
    job = call("a", 4, num_steps=100)
    engine.submit(job)
    assert entered.wait(30)
    stopping = threading.Thread(target=engine.shutdown)
    stopping.start()
    go_on.set()
    stopping.join(60)
    with pytest.raises(StaleCall):
        job.future.result(5)


def test_calls_beyond_what_can_wait_are_refused_at_once_and_closes_are_not(make: Make) -> None:
    closed: list[str] = []
    engine, runner = make(on_closed=closed.append, max_sequences=2)
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(60)

    runner.before_step[0] = hold
    first = call("a", 4)
    engine.submit(first)
    assert entered.wait(30)
    jobs = [call("b", 4, round=i) for i in range(9)]
    submit_all(engine, jobs)
    engine.close("a")
    refused = [job for job in jobs if job.future.done()]
    assert len(refused) == 5  # four wait: two per sequence
    for job in refused:
        with pytest.raises(ReplicaFull, match="add replicas"):
            job.future.result()
    assert engine.stats().extra["num_refused_calls"] == 5
    assert engine.stats().extra["num_waiting_calls"] == 5
    go_on.set()
    assert first.future.result(30) == "done"
    assert jobs[3].future.result(30) == "done"
    engine.check_integrity()
    assert closed == ["a"]


def test_an_expected_call_takes_no_place_of_one_that_has_come(make: Make) -> None:
    engine, runner = make(max_sequences=1)
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(60)

    runner.before_step[0] = hold
    first, second = call("a", 4, num_steps=2), call("a", 4, round=2)
    engine.submit(first)
    assert entered.wait(30)
    for round_ in range(3, 9):
        engine.expect(call("a", 4, round=round_).context)
    assert engine.stats().extra["num_waiting_calls"] == 0
    engine.submit(second)
    go_on.set()
    assert second.future.result(30) == "done"


def test_a_fault_while_a_call_is_expected_touches_no_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = make()
    failed = threading.Event()

    def fail(context: Context) -> None:
        failed.set()
        raise RuntimeError("boom")

    first = call("a", 4)
    engine.submit(first)
    assert first.future.result(30) == "done"
    engine.check_integrity()  # nothing is under way any more
    monkeypatch.setattr(engine._batch._table, "expect", fail)
    engine.expect(call("a", 6, round=2).context)
    good = call("a", 6, round=2)
    engine.submit(good)
    assert good.future.result(30) == "done"
    assert failed.is_set()


def test_a_refused_verify_call_raises_and_a_refused_proposal_is_an_empty_draft(make: Make) -> None:
    """The one must go elsewhere, the other can be done without."""
    engine, runner = make(max_sequences=1)
    info = ReplicaInfo(1, "x", VOCAB, 1024, 10, 16, "")
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go_on.wait(60)

    runner.before_step[0] = hold
    engine.submit(call("a", 4))
    assert entered.wait(30)
    context = call("b", 4).context
    verifier, drafter = Verifier(engine, info, 64), ModelDrafter(engine, info, 64)
    waiting = [verifier.verify(context, []) for _ in range(2)]
    with pytest.raises(ReplicaFull):
        verifier.verify(context, []).result(1)
    draft = drafter.propose(context, DraftShape(4)).result(1)
    assert len(draft.tokens) == 0 and draft.error is not None and "add replicas" in draft.error
    go_on.set()
    assert waiting[1].result(30).error is None


def test_idle_sequences_are_freed_while_others_keep_the_engine_busy(make: Make) -> None:
    closed = threading.Event()
    engine, _ = make(on_closed=lambda _: closed.set(), idle_timeout_s=0.05)
    orphan = call("orphan", 4)
    engine.submit(orphan)
    orphan.future.result(10)
    stop = threading.Event()

    class Endless(Decode):
        def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
            """Runs the same row count for ever, slowly filling its memory only once per look."""
            stop.wait(0.03)
            if stop.is_set():
                self.future.set_result("done")
                return None
            return 1

    busy = Endless(call("busy", 4).context)
    engine.submit(busy)
    assert closed.wait(60)
    stop.set()
    assert busy.future.result(10) == "done"


def test_a_pass_waits_for_those_whom_the_last_one_answered_and_for_nobody_who_has_left(make: Make) -> None:
    engine, runner = make(gather_s=30.0)
    long, short = call("long", 5, num_steps=5), [call("short", 5, num_steps=1, round=n) for n in range(4)]
    seen: list[int] = []
    for job, following in zip(short, [*short[1:], None], strict=True):

        def later(done: object, following: Decode | None = following) -> None:
            seen.append(len(runner.steps[-1].kv_len))
            if following is None:
                engine.close("short")
            else:
                threading.Timer(0.01, engine.submit, [following]).start()

        job.future.add_done_callback(later)
    submit_all(engine, [long, short[0]])
    assert long.future.result(20) == "done"
    assert seen[1:] == [2, 2, 2]  # never alone, once both were there


def test_what_waits_for_the_end_of_a_step_waits_for_its_other_calls_and_for_nothing_else(make: Make) -> None:
    """The act of the first call runs once both are resolved; that of a lone one while it is being resolved."""
    for names in (("first", "second"), ("lone",)):
        engine, runner = make()
        order: list[str] = []
        gate, ran = threading.Event(), threading.Event()

        def later(name: str, engine: Engine = engine, order: list[str] = order) -> None:
            order.append(name)
            engine.between_steps(lambda: order.append(f"after {name}"))
            order.append(f"{name} is told")

        runner.before_step[0] = gate.wait  # of a pass for neither: both share the one after it
        jobs = [call(name, 3) for name in names]
        for name, job in zip(names, jobs, strict=True):
            job.future.add_done_callback(lambda _, name=name: later(name))
        submit_all(engine, [call("before", 3), *jobs])
        gate.set()
        for job in jobs:
            assert job.future.result(60) == "done"
        engine.between_steps(ran.set)
        assert ran.wait(60)
        if names == ("lone",):
            assert order == ["lone", "after lone", "lone is told"]
        else:
            assert order.index("after first") > order.index("second")
