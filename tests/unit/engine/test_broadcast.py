"""The broadcast protocol and its watchdog, without processes: ranks are threads, time is injected."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
import torch

from actors.engine.broadcast import FRAME_LEN, BroadcastRunner, Opcode, Watchdog, follow, receive
from actors.engine.jobs import NoFeatures
from actors.engine.step import Int32s, KeepsFeatures, StepInput
from actors.messages import Halves


class Wire:
    """Two ranks joined by queues; a message is what one `broadcast` call carries."""

    def __init__(self) -> None:
        self.down: queue.Queue[torch.Tensor] = queue.Queue()
        self.acks: queue.Queue[None] = queue.Queue()


class Leader:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def broadcast(self, values: torch.Tensor) -> None:
        self.wire.down.put(values.clone())

    def acknowledge(self) -> None:
        try:
            self.wire.acks.get(timeout=5)
        except queue.Empty as error:
            raise RuntimeError("no answer") from error


class Follower:
    def __init__(self, wire: Wire, timeout_s: float = 5) -> None:
        self.wire = wire
        self.timeout_s = timeout_s

    def broadcast(self, values: torch.Tensor) -> None:
        try:
            values.copy_(self.wire.down.get(timeout=self.timeout_s))
        except queue.Empty as error:
            raise RuntimeError("timed out") from error

    def acknowledge(self) -> None:
        self.wire.acks.put(None)


class Recorder:
    """A model runner that remembers its steps."""

    shares_head = False
    vocab_size = 7

    def __init__(self, error: Exception | None = None) -> None:
        self.steps: list[StepInput] = []
        self.error = error

    def forward(self, step: StepInput) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        self.steps.append(step)
        return torch.zeros(len(step.logit_rows), self.vocab_size)


def step_of(num_rows: int) -> StepInput:
    rows = np.arange(num_rows, dtype=np.int32)
    return StepInput(
        input_ids=rows + 5, positions=rows, slots=rows + 64, cu_query=np.array([0, num_rows], np.int32),
        kv_len=np.array([num_rows], np.int32), pages=np.arange(1, 3, dtype=np.int32),
        cu_pages=np.array([0, 2], np.int32), logit_rows=rows[-1:], copies=np.array([[1, 2], [3, 4]], np.int32),
        moves=np.array([[70, 65], [71, 66], [80, 67]], np.int32), parents=rows // 2 - 1,
    )


def start_follower(runner: Recorder, wire: Wire, failures: list[str]) -> threading.Thread:
    thread = threading.Thread(target=follow, args=(runner, Follower(wire), 5.0, failures.append), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("num_rows", [1, 16, FRAME_LEN, 4 * FRAME_LEN])
def test_followers_run_the_same_steps_without_the_output_head(num_rows: int) -> None:
    wire, here, there, failures = Wire(), Recorder(), Recorder(), list[str]()
    thread = start_follower(there, wire, failures)
    runner = BroadcastRunner(here, Leader(wire), 5.0, failures.append)
    step = step_of(num_rows)
    for _ in range(3):
        assert runner.forward(step).shape == (1, 7)
    runner.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert not failures
    assert len(there.steps) == 3
    for name in ("input_ids", "positions", "slots", "cu_query", "kv_len", "pages", "cu_pages", "copies", "moves",
                 "parents"):
        np.testing.assert_array_equal(getattr(there.steps[-1], name), getattr(step, name))
    assert len(there.steps[-1].logit_rows) == 0
    assert here.steps[-1] is step


def test_an_idle_leader_keeps_its_followers_alive_with_heartbeats() -> None:
    wire, failures = Wire(), list[str]()
    follower = Follower(wire, timeout_s=1.0)
    thread = threading.Thread(target=follow, args=(Recorder(), follower, 1.0, failures.append), daemon=True)
    thread.start()
    runner = BroadcastRunner(Recorder(), Leader(wire), 5.0, failures.append, heartbeat_s=0.1)
    thread.join(1.6)  # longer than the follower's patience
    assert thread.is_alive()
    assert not failures
    runner.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_a_silent_leader_is_a_failure_for_its_followers() -> None:
    failures: list[str] = []
    follow(Recorder(), Follower(Wire(), timeout_s=0.05), 5.0, failures.append)
    assert len(failures) == 1
    assert "lost the group" in failures[0]


def test_a_failing_step_is_a_failure_of_the_rank_wherever_it_happens() -> None:
    wire, failures = Wire(), list[str]()
    runner = BroadcastRunner(Recorder(ValueError("boom")), Leader(wire), 5.0, failures.append)
    with pytest.raises(ValueError, match="boom"):
        runner.forward(step_of(1))
    assert "boom" in failures[0]
    runner.stop()
    follow(Recorder(ValueError("bang")), Follower(wire), 5.0, failures.append)
    assert "bang" in failures[1]


def test_a_stopped_group_refuses_steps_and_stops_once() -> None:
    wire = Wire()
    runner = BroadcastRunner(Recorder(), Leader(wire), 5.0)
    runner.stop()
    runner.stop()
    assert receive(Follower(wire))[0] is Opcode.STOP
    assert wire.down.empty()
    with pytest.raises(RuntimeError, match="stopped"):
        runner.forward(step_of(1))


def test_the_watchdog_fires_once_and_only_for_an_overdue_section() -> None:
    now, reports = [100.0], list[str]()
    dog = Watchdog(10.0, reports.append, clock=lambda: now[0], poll_s=None)
    assert not dog.check()
    with dog.guard("first"):
        now[0] += 10.0
        assert not dog.check()
    now[0] += 1000.0  # idle time is nobody's fault
    assert not dog.check()
    with dog.guard("second"):
        now[0] += 5.0
        with dog.guard("inner"):
            now[0] += 5.5
            assert dog.check()
            assert dog.check()
    assert len(reports) == 1
    assert "second has been running for 10.5 s" in reports[0]


def test_the_watchdog_thread_reports_a_hang_by_itself() -> None:
    reported = threading.Event()
    dog = Watchdog(0.05, lambda _: reported.set(), poll_s=0.01)
    with dog.guard("a hang"):
        assert reported.wait(5)
    dog.close()


def test_a_watchdog_needs_a_positive_timeout() -> None:
    with pytest.raises(ValueError, match="positive"):
        Watchdog(0.0, poll_s=None)


def test_the_leader_keeps_the_features_of_its_own_rank() -> None:
    class Keeping(Recorder):
        features_kept = 4

        def features_at(self, slots: Int32s) -> Halves:
            return np.repeat(slots.astype(np.float16)[:, None], 4, axis=1)

    plain, keeping = (BroadcastRunner(r, Leader(Wire()), 5, heartbeat_s=60) for r in (Recorder(), Keeping()))
    assert isinstance(plain, KeepsFeatures) and plain.features_kept == 0
    assert keeping.features_kept == 4
    assert keeping.features_at(np.array([3, 1], np.int32)).tolist() == [[3.0] * 4, [1.0] * 4]
    with pytest.raises(NoFeatures, match="feature_layers"):
        plain.features_at(np.zeros(1, np.int32))
    plain.stop()
    keeping.stop()
