"""Steps of rank 0, repeated by the other tensor-parallel ranks.

Rank 0 alone schedules, samples and decides; the other ranks only follow: each step's integers are broadcast, then
every rank runs the same forward pass, whose all-reduces tie them together. Nothing in here waits
without a bound: a `Watchdog` ends the process when a collective hangs, so that a hang looks like any
other death of a rank and the group is rebuilt as a unit.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from actors.engine.jobs import NoFeatures
from actors.engine.step import Best, FindsBest, Int32s, KeepsFeatures, ModelRunner, StepInput
from actors.messages import Halves
from actors.priority import step_back

log = logging.getLogger(__name__)

FRAME_LEN = 1024  # int32s of the first broadcast of a message; most steps fit in it, so one hop is enough
_HEADER_LEN = 2  # opcode, payload length


class Opcode(enum.IntEnum):
    """What a broadcast frame asks the followers to do."""

    STEP = 1
    HEARTBEAT = 2  # rank 0 is alive but idle; followers answer, so that a stalled one is found out as well
    STOP = 3


class Channel(Protocol):
    """The two collectives the protocol needs."""

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite `values` on every rank by rank 0's, in place."""
        ...

    def acknowledge(self) -> None:
        """Return once every rank has called it."""
        ...


class GroupChannel:
    """`Channel` over a torch.distributed group of CPU tensors; its collectives raise after the group's timeout."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def broadcast(self, values: torch.Tensor) -> None:
        """See `Channel.broadcast`."""
        dist.broadcast(values, group=self._group, group_src=0)

    def acknowledge(self) -> None:
        """See `Channel.acknowledge`. An all-reduce: a broadcast returns to its sender before anyone read it."""
        dist.all_reduce(torch.zeros(1, dtype=torch.int32), group=self._group)


def die(reason: str) -> None:
    """End this process at once, whatever its other threads wait for; the actor's death is the message."""
    log.critical("ending this rank: %s", reason)
    logging.shutdown()
    os._exit(1)


class Watchdog:
    """Calls `on_hang` once when a guarded section runs for longer than `timeout_s` seconds.

    `clock` (seconds) and `poll_s` are injected so that tests need no waiting: with `poll_s` None no thread is
    started and `check` is called by hand.
    """

    def __init__(
        self, timeout_s: float, on_hang: Callable[[str], None] = die,
        clock: Callable[[], float] = time.monotonic, poll_s: float | None = 0.25,
    ) -> None:
        if timeout_s <= 0:
            raise ValueError(f"step_timeout_s is {timeout_s}: give a positive number of seconds")
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[int, tuple[str, float]] = {}  # by token: what, since when
        self._next_token = 0
        self._fired = False
        self._closed = threading.Event()
        if poll_s is not None:
            threading.Thread(target=self._poll, args=(poll_s,), name="watchdog", daemon=True).start()

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """A section that must end within the timeout; sections may nest and overlap across threads."""
        with self._lock:
            token = self._next_token
            self._next_token += 1
            self._running[token] = (what, self._clock())
        try:
            yield
        finally:
            with self._lock:
                del self._running[token]

    def check(self) -> bool:
        """True when a section is (or was) overdue; reports the first one found."""
        with self._lock:
            if self._fired:
                return True
            now = self._clock()
            late = [(what, now - since) for what, since in self._running.values() if now - since > self._timeout_s]
            self._fired = bool(late)
        if late:
            what, age_s = max(late, key=lambda item: item[1])
            self._on_hang(f"{what} has been running for {age_s:.1f} s, more than {self._timeout_s:g} s")
        return self._fired

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _poll(self, poll_s: float) -> None:
        while not self._closed.wait(min(poll_s, self._timeout_s / 4)):
            if self.check():
                return


class BroadcastRunner:
    """Rank 0's `ModelRunner`: tells the other ranks, then runs the step itself.

    A failure inside a step leaves the ranks out of step with each other, which nothing can repair from
    within: it is handed to `on_failure` (by default the process ends).
    """

    def __init__(
        self, local: ModelRunner, channel: Channel, step_timeout_s: float,
        on_failure: Callable[[str], None] = die, heartbeat_s: float | None = None,
    ) -> None:
        self._local = local
        self._channel = channel
        self._on_failure = on_failure
        self._heartbeat_s = heartbeat_s or min(5.0, step_timeout_s / 4)
        self._watchdog = Watchdog(step_timeout_s, on_failure)
        self._lock = threading.Lock()  # one message at a time: collectives pair up by order alone
        self._last_sent_s = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""
        return self._local.vocab_size

    @property
    def shares_head(self) -> bool:
        """See `ModelRunner`."""
        return self._local.shares_head

    @property
    def features_kept(self) -> int:
        """See `KeepsFeatures`: rank 0 alone keeps them, for the residual stream is whole on every rank."""
        return self._local.features_kept if isinstance(self._local, KeepsFeatures) else 0

    def features_at(self, slots: Int32s) -> Halves:
        """See `KeepsFeatures`."""
        if not isinstance(self._local, KeepsFeatures):
            raise NoFeatures("this model keeps no features: give it feature_layers")
        return self._local.features_at(slots)

    @property
    def best(self) -> Best | None:
        """See `FindsBest`."""
        return self._local.best if isinstance(self._local, FindsBest) else None

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits of `step.logit_rows`: [num_logits, vocab_size] float32 on CPU."""
        # Only rank 0 reads logits: unless the ranks share the output head, the others skip it.
        told = step if self._local.shares_head else dataclasses.replace(step, logit_rows=step.logit_rows[:0])
        with self._lock, self._watchdog.guard("a tensor-parallel step"):
            if self._stopped.is_set():
                raise RuntimeError("the tensor-parallel group has been stopped")
            try:
                self._send(Opcode.STEP, told.pack())
                return self._local.forward(step)
            except Exception as error:
                self._on_failure(f"a tensor-parallel step failed on rank 0: {error!r}")
                raise

    def stop(self) -> None:
        """Let the followers' loops return. Idempotent."""
        with self._lock, self._watchdog.guard("stopping the group"):
            if not self._stopped.is_set():
                self._stopped.set()
                try:
                    self._send(Opcode.STOP, np.empty(0, np.int32))
                except RuntimeError as error:
                    log.info("a rank was gone before it could be stopped: %s", error)
        self._watchdog.close()

    def _send(self, opcode: Opcode, payload: Int32s) -> None:
        inline = payload[: FRAME_LEN - _HEADER_LEN]
        frame = np.zeros(FRAME_LEN, np.int32)
        frame[:_HEADER_LEN] = opcode, len(payload)
        frame[_HEADER_LEN : _HEADER_LEN + len(inline)] = inline
        self._channel.broadcast(torch.from_numpy(frame))
        if len(payload) > len(inline):
            self._channel.broadcast(torch.from_numpy(payload[len(inline) :].copy()))
        self._last_sent_s = time.monotonic()

    def _beat(self) -> None:
        while not self._stopped.wait(self._heartbeat_s / 2):
            with self._lock, self._watchdog.guard("a heartbeat"):
                if self._stopped.is_set() or time.monotonic() - self._last_sent_s < self._heartbeat_s:
                    continue
                try:
                    self._send(Opcode.HEARTBEAT, np.empty(0, np.int32))
                    self._channel.acknowledge()
                except RuntimeError as error:
                    self._on_failure(f"a heartbeat failed on rank 0: {error!r}")
                    return


def receive(channel: Channel) -> tuple[Opcode, Int32s]:
    """The next message of rank 0. Raises RuntimeError when rank 0 is gone or silent for the group's timeout."""
    frame = torch.zeros(FRAME_LEN, dtype=torch.int32)
    channel.broadcast(frame)
    opcode, length = Opcode(int(frame[0])), int(frame[1])
    payload = frame[_HEADER_LEN : _HEADER_LEN + length].numpy()
    if length > len(payload):
        rest = torch.zeros(length - len(payload), dtype=torch.int32)
        channel.broadcast(rest)
        payload = np.concatenate([payload, rest.numpy()])
    return opcode, payload


def follow(
    local: ModelRunner, channel: Channel, step_timeout_s: float, on_failure: Callable[[str], None] = die,
) -> None:
    """Repeat rank 0's steps until it says stop; blocks. Every failure ends in `on_failure`."""
    step_back()
    watchdog = Watchdog(step_timeout_s, on_failure)
    try:
        while True:
            # Waiting is bounded by the group's timeout; heartbeats keep an idle leader within it.
            opcode, payload = receive(channel)
            if opcode is Opcode.STOP:
                return
            with watchdog.guard(f"a follower's {opcode.name.lower()}"):
                if opcode is Opcode.HEARTBEAT:
                    channel.acknowledge()
                else:
                    local.forward(StepInput.unpack(payload))
    except Exception as error:
        on_failure(f"this rank lost the group: {error!r}")
    finally:
        watchdog.close()
