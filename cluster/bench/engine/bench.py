"""What the parts of `bench engine` share: settings, the models of the bench, and how variants are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from actors.messages import Ids
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench.engine.machine import Meter
from cluster.bench.engine.models import Kind, KindRefused, Models
from cluster.bench.interleave import interleaved, num_runs
from cluster.bench.local import local_verifier
from cluster.bench.report import Findings
from cluster.bench.watch import Watcher


@dataclass(frozen=True)
class EngineSettings:
    """What `bench engine` measures. Sizes in tokens."""

    target: ModelSpec  # without kind
    draft: ModelSpec
    kinds: tuple[Kind, ...]
    target_kind: Kind
    draft_kind: Kind
    rows: tuple[int, ...] = (1, 2, 5, 8, 16)
    contexts: tuple[int, ...] = (64, 512)
    rounds: int = 7
    inner: int = 3  # passes per sample of a step; their median counts
    num_tokens: int = 48  # of each decoding
    lookahead: int = 4
    num_threads: int = 2
    sections: tuple[str, ...] = ("steps", "perplexity", "decode", "batch", "speculation", "ranks")
    random_weights: bool = False


@dataclass
class Bench:
    """What the parts share."""

    settings: EngineSettings
    models: Models
    text_ids: Ids  # of the fixed text
    prompts: Sequence[Ids]
    meter: Meter
    findings: Findings
    watcher: Watcher
    kinds: list[Kind] = field(default_factory=list)  # those the engine runs
    chosen: dict[str, Kind] = field(default_factory=dict)  # weights -> the dtype that verifies fastest

    def kind(self, weights: str) -> Kind | None:
        """The kind that stands for `weights` in named figures; None if the engine runs none."""
        return self.chosen.get(weights) or next((kind for kind in self.kinds if kind.weights == weights), None)

    def quantised(self) -> list[Kind]:
        """The kind that stands for each sort of weights but fp32."""
        found = (self.kind(weights) for weights in dict.fromkeys(kind.weights for kind in self.kinds))
        return [kind for kind in found if kind is not None and kind.weights != "fp32"]

    def run(self, name: str, variants: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Measure variants against each other."""
        self.watcher.section(name, num_runs(variants, self.settings.rounds))
        return interleaved(variants, self.settings.rounds, on_run=self.watcher.run_done)

    def verifier(self, stack: ExitStack, kind: Kind) -> Verifier:
        """A target tier in this process until `stack` ends."""
        models = self.models
        longest = models.max_context_tokens("target")
        worker = local_verifier(models.runner("target", kind), models.spec("target", kind), longest)
        stack.callback(worker.shutdown)
        return worker


def load(bench: Bench) -> None:
    """Build a runner of every kind; those that the engine refuses are left out with their reason."""
    bench.watcher.section("loading", len(bench.settings.kinds))
    for kind in bench.settings.kinds:
        try:
            bench.models.runner("target", kind)
        except KindRefused as error:
            bench.findings.skip(kind.label, str(error))
        else:
            bench.kinds.append(kind)
        bench.watcher.run_done()
