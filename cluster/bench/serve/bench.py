"""What the parts of `bench serve` share: settings, the service, and how a load is put on it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.bench.report import Findings
from cluster.bench.serve.asks import OK, Ask, Outcome
from cluster.bench.serve.client_process import Closed, Open, put_load
from cluster.bench.serve.figures import LatencyTarget, LoadFigures
from cluster.bench.serve.service import Service
from cluster.bench.texts import BUILT_IN, Prompt, fixed_text
from cluster.bench.watch import Watcher

PROBE_CHARS = 200
MANY = 32  # streams at which a loaded service is judged


class LoadFailed(RuntimeError):
    """A part cannot be measured: the service refused or failed what should have gone well."""


@dataclass(frozen=True)
class ServeSettings:
    """What `bench serve` measures."""

    prompts: Sequence[Prompt] = BUILT_IN
    streams: tuple[int, ...] = (1, 8, MANY)
    rates: tuple[float, ...] | None = None  # requests/s of the open loops; None: shares of the closed loops' best
    duration_s: float = 30.0  # of each level
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int | None = None
    lookahead: int | None = None
    speculation: bool = True
    rounds: int = 3  # of the batch comparison and of the chats
    target: LatencyTarget = LatencyTarget(2000.0, 250.0)
    sections: tuple[str, ...] = ("closed", "open", "batch", "chat")
    random_seed: int = 0


@dataclass
class LoadBench:
    """What the parts share."""

    settings: ServeSettings
    service: Service
    findings: Findings
    watcher: Watcher
    levels: list[dict[str, object]] = field(default_factory=list)
    best_requests_per_s: float = 0.0

    def asks(self) -> list[Ask]:
        """One request per prompt, as the settings say."""
        settings = self.settings
        return [
            Ask(
                name=prompt.category, turns=(("user", prompt.text),), max_tokens=settings.max_tokens,
                temperature=settings.temperature, seed=settings.seed, speculation=settings.speculation,
                lookahead=settings.lookahead,
            )
            for prompt in settings.prompts
        ]

    def put(self, name: str, load: Closed | Open, duration_s: float | None = None) -> list[Outcome]:
        """All outcomes of a load. Progress is shown by the second (`duration_s`) or, without one, by the request."""
        num_runs = len(load.asks) if duration_s is None else max(1, round(duration_s))
        self.watcher.section(name, num_runs)
        outcomes: list[Outcome] = []
        began, shown = time.monotonic(), 0
        for outcome in put_load(self.service.address, load):
            if outcome is not None:
                outcomes.append(outcome)
            due = len(outcomes) if duration_s is None else int(time.monotonic() - began)
            while shown < min(due, num_runs):
                self.watcher.run_done()
                shown += 1
        return outcomes

    def once(self, name: str, asks: Sequence[Ask], num_streams: int) -> list[Outcome]:
        """Each request once, over `num_streams` clients. Raises `LoadFailed` if one did not finish well."""
        outcomes = self.put(name, Closed(asks, num_streams))
        failed = [outcome for outcome in outcomes if outcome.status != OK]
        if failed:
            raise LoadFailed(
                f"{len(failed)} of {len(outcomes)} requests ended with {failed[0].status}: {failed[0].detail}"
            )
        return outcomes

    def excerpt_chars(self, num_tokens: int) -> int:
        """Characters of the fixed text that make about `num_tokens` tokens of this service's tokenizer."""
        probe = fixed_text()[:PROBE_CHARS]
        empty, full = (
            self._num_prompt_tokens(Ask("probe", turns=(("user", content),), max_tokens=1)) for content in ("x", probe)
        )
        return int(num_tokens * PROBE_CHARS / max(1, full - empty))

    def _num_prompt_tokens(self, ask: Ask) -> int:
        figures = self.once("measuring the tokenizer", [ask], 1)[0].figures
        assert figures is not None  # its status is OK
        return figures.num_prompt_tokens

    def add_level(self, name: str, figures: LoadFigures, **more: object) -> None:
        """Keep a level for table, plot and JSON."""
        self.levels.append({"name": name, **more, **figures.as_json()})
        self.best_requests_per_s = max(self.best_requests_per_s, figures.requests_per_s)
        self.findings.details["levels"] = self.levels


def begin(outcomes: Sequence[Outcome]) -> float:
    """When the first request was due. Raises `LoadFailed` without any."""
    if not outcomes:
        raise LoadFailed("no request was sent")
    return min(outcome.due_s for outcome in outcomes)
