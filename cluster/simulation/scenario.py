"""A load on a ladder of emulated pools, and what becomes of it in simulated time.

The coordinator is the real one; its replicas are emulated, so every figure is an estimate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from actors.emulation.pace import Pace
from actors.emulation.voice import Speaker
from actors.sampling.params import SamplingParams
from actors.spec import EmulationSpec
from cluster.coordinator import figures
from cluster.coordinator.control.controller import Controller
from cluster.coordinator.control.plan import ControlLimits
from cluster.coordinator.errors import GenerationFailed
from cluster.coordinator.generate import generate
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import Finish, GenerationRequest
from cluster.coordinator.settings import CoordinatorSettings
from cluster.coordinator.tier import Tier
from cluster.simulation import clock
from cluster.simulation.device import Device
from cluster.simulation.growing import NUM_WORDS
from cluster.simulation.load import Load
from cluster.simulation.outcome import Outcome, ReplicaRun, Stream
from cluster.simulation.pool import Pool
from cluster.simulation.replica import Replica

GREEDY = SamplingParams()
DRAFT_TIMEOUT_S = 2.0  # as the configuration's default


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One tier: how many emulated devices, and what each is like."""

    name: str
    emulation: EmulationSpec
    replicas: int = 1
    max_sequences: int = 64  # of one replica
    max_rows: int = 512  # of one pass
    gather_s: float = 0.0  # how long a device waits for calls that follow its answers (`Device`)
    lease_wait_s: float = 30.0  # how long a sequence waits for a place

    def __post_init__(self) -> None:
        if min(self.replicas, self.max_sequences, self.max_rows) < 1:
            raise ValueError(f"tier {self.name}: replicas, max_sequences and max_rows must be at least 1")


class Policy(Protocol):
    """Who decides how much is drafted."""

    def ladder(self, tiers: Sequence[Tier], windows: Sequence[int], settings: CoordinatorSettings) -> Ladder:
        """The coordinator's ladder, made once for all streams."""

    @property
    def lookahead(self) -> int | None:
        """Of every request; 0: plain decoding; None: the controller's choice."""


@dataclass(frozen=True, slots=True)
class FixedLookahead:
    """Synchronous rounds of `lookahead` draft tokens; 0: plain decoding."""

    lookahead: int

    def ladder(self, tiers: Sequence[Tier], windows: Sequence[int], settings: CoordinatorSettings) -> Ladder:
        """A ladder without a controller."""
        return Ladder(tiers, windows, settings)


@dataclass(frozen=True, slots=True)
class Controlled:
    """The goodput controller plans every round, within `limits`. It begins each simulation knowing nothing."""

    limits: ControlLimits

    @property
    def lookahead(self) -> None:
        """The controller's choice."""
        return None

    def ladder(self, tiers: Sequence[Tier], windows: Sequence[int], settings: CoordinatorSettings) -> Ladder:
        """A ladder with a controller of its own."""
        return Ladder(tiers, windows, settings, Controller(self.limits))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides an outcome: equal scenarios have equal outcomes."""

    tiers: tuple[PoolSpec, ...]  # the target last
    load: Load
    policy: Policy
    windows: tuple[int, ...] = ()  # as in `Ladder`
    num_tokens: int = 24  # of every sequence
    num_prompt_tokens: int = 8
    seed: int = 0  # of prompts and arrivals; the voices have seeds of their own
    settings: CoordinatorSettings = field(default_factory=lambda: CoordinatorSettings(draft_timeout_s=DRAFT_TIMEOUT_S))

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ValueError("the scenario has no tiers: give at least the target")
        if self.num_tokens < 1 or self.num_prompt_tokens < 1:
            raise ValueError("num_tokens and num_prompt_tokens must be at least 1")

    def prompt(self, index: int) -> tuple[int, ...]:
        """Prompt ids of the sequence with that index: its own number, then what the seed says."""
        rng = np.random.default_rng((self.seed, index))
        return tuple(rng.integers(0, NUM_WORDS, self.num_prompt_tokens).tolist())


def simulate(scenario: Scenario) -> Outcome:
    """Run a scenario to its end.

    Blocks this thread and keeps the coordinator's log quiet meanwhile: what degrades is counted in the outcome.
    """
    with _quiet(figures.logger):
        return clock.run(_run(scenario))


async def _run(scenario: Scenario) -> Outcome:
    loop = clock.running_loop()
    pools = [_pool(spec, index, loop) for index, spec in enumerate(scenario.tiers)]
    ladder = scenario.policy.ladder(pools, scenario.windows, scenario.settings)
    arrivals = scenario.load.arrivals(np.random.default_rng((scenario.seed, scenario.load.num_sequences)))
    places = asyncio.Semaphore(scenario.load.max_streams)
    streams = await asyncio.gather(
        *(_stream(scenario, ladder, index, due_s, places) for index, due_s in enumerate(arrivals))
    )
    replicas = tuple(
        ReplicaRun(tier, replica.replica_id, tuple(replica.device.passes))
        for tier, pool in enumerate(pools) for replica in pool.replicas
    )
    return Outcome(streams=tuple(streams), replicas=replicas, end_s=loop.time())


def _pool(spec: PoolSpec, tier: int, loop: clock.VirtualLoop) -> Pool:
    emulation = spec.emulation
    speaker, author = Speaker(emulation.voices, NUM_WORDS), Speaker(emulation.voices[-1:], NUM_WORDS)
    pace = Pace(emulation.pass_s, emulation.flat_rows, emulation.row_s)
    replicas = [
        Replica(f"{spec.name}/{index}", tier, speaker, author, Device(loop, pace, spec.max_rows, spec.gather_s), loop)
        for index in range(spec.replicas)
    ]
    return Pool(loop, replicas, spec.max_sequences, emulation.hop_s, spec.lease_wait_s)


async def _stream(
    scenario: Scenario, ladder: Ladder, index: int, due_s: float, places: asyncio.Semaphore
) -> Stream:
    loop = clock.running_loop()
    await asyncio.sleep(due_s)
    async with places:
        request = GenerationRequest(
            request_id=str(index), prompt_ids=np.array(scenario.prompt(index), np.int32), sampling=GREEDY,
            max_tokens=scenario.num_tokens, lookahead=scenario.policy.lookahead,
        )
        began_s = loop.time()
        times_s: list[float] = []
        counts: list[int] = []
        ids: list[int] = []
        finish: Finish | None = None
        failure: str | None = None
        try:
            async with contextlib.aclosing(generate(request, ladder, loop.time)) as items:
                async for item in items:
                    if isinstance(item, Finish):
                        finish = item
                        continue
                    times_s.append(loop.time())
                    counts.append(len(item.token_ids))
                    ids += item.token_ids.tolist()
        except GenerationFailed as error:
            finish, failure = error.finish, error.code.value
        assert finish is not None
        return Stream(
            arrives_s=scenario.load.sent_s(due_s, began_s), begin_s=began_s, end_s=loop.time(),
            times_s=tuple(times_s), counts=tuple(counts),
            token_ids=tuple(ids), figures=finish.figures, failure=failure,
        )


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
