"""What the sections of `bench ladder` share: settings, services, findings, and what is told of each figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cluster.bench.ladder.measured import Measured
from cluster.bench.ladder.stage import Stage
from cluster.bench.report import Findings
from cluster.bench.serve.service import Service
from cluster.bench.stats import Spread
from cluster.bench.texts import BUILT_IN, Prompt
from cluster.bench.watch import Watcher
from cluster.config import Config

EMULATED = "EMULATED devices"
SIMULATED = "EMULATED devices in simulated time"
REAL = "real models"
SECTIONS = ("sync", "overlap", "trees", "tiers", "control", "cpu", "blocks", "plan")


class LadderFailed(RuntimeError):
    """A section cannot be measured; one line that says why."""


class TextsDiffer(RuntimeError):
    """Speculation changed a text: whatever was measured is worth nothing."""


@dataclass(frozen=True)
class LadderSettings:
    """What `bench ladder` measures. The defaults take minutes on two cores; a test takes less of everything."""

    sections: tuple[str, ...] = SECTIONS
    prompts: Sequence[Prompt] = BUILT_IN
    num_prompts: int = 6  # per variant on emulated devices, at least 1
    num_tokens: int = 176  # of each answer there
    plain_tokens: int = 24  # of each answer of the target alone, whose pace is known after a few
    lookaheads: tuple[int, ...] = (3, 5, 8, 12)
    cpu_prompts: int = 4
    cpu_tokens: int = 96
    block_prompts: int = 8
    block_rounds: int = 24  # per prompt
    workers: int = 2  # processes that simulate


@dataclass(frozen=True, slots=True)
class Row:
    """One variant of a section, as the tables and the plot show it."""

    section: str
    realm: str  # EMULATED, SIMULATED or REAL
    name: str
    speedup: float
    theory: float | None
    measured: Measured | None = None  # None: not through gRPC

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        found: dict[str, object] = {
            "section": self.section, "realm": self.realm, "emulated": self.realm != REAL, "name": self.name,
            "speedup": round(self.speedup, 4), "theory": None if self.theory is None else round(self.theory, 4),
        }
        return found if self.measured is None else {**found, **self.measured.as_json()}


@dataclass
class LadderBench:
    """What the sections share."""

    settings: LadderSettings
    stage: Stage
    findings: Findings
    watcher: Watcher
    rows: list[Row] = field(default_factory=list)
    texts: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)  # (voice of a target, number of
    # tokens) -> prompt -> the target's own text
    realms: dict[str, str] = field(default_factory=dict)  # figure -> where it comes from
    best_sync_speedup: float = 0.0  # of the fastest synchronous chain of the emulated pair; 0: not measured yet

    @contextmanager
    def services(self, **configs: Config) -> Iterator[Mapping[str, Service]]:
        """One service per configuration, for the length of the block."""
        self.watcher.section(f"starting: {', '.join(configs)}", 1)
        with self.stage.services(configs) as services:
            self.watcher.run_done()
            yield services

    def add(self, name: str, value: float, realm: str, spread: Spread | None = None) -> None:
        """Record a figure, and on what it was measured."""
        self.findings.add(name, value)
        self.realms[name] = realm
        if spread is not None:
            self.findings.spreads[name] = spread

    def prompts(self, count: int) -> list[Prompt]:
        """The first `count` of them, round and round."""
        return [self.settings.prompts[i % len(self.settings.prompts)] for i in range(count)]
