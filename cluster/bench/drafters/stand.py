"""Ladders of this process: one target that stays loaded, and any number of drafters before it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from actors.build import build_below, build_drafter, build_runner, build_verifier
from actors.drafters.base import Drafter
from actors.inline import InlineVerifier
from actors.loading.checkpoint import load_config as load_model_config
from actors.messages import ReplicaInfo
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench.drafters.memory import Held, held
from cluster.bench.local import LocalTier, Worker
from cluster.config import Config
from cluster.coordinator.ladder import Ladder
from cluster.ingress.speculation import coordinator_settings

FEATURE_BYTES = 2  # float16


@dataclass(frozen=True, slots=True)
class Stood:
    """One kind of drafter, ready to draft."""

    kind: str
    ladder: Ladder
    lookahead: int
    memory: Held  # of the drafter, without what the target holds anyway
    feature_bytes: int  # of the target, per token, that the drafter reads; 0: none

    @property
    def drafts_inline(self) -> bool:
        """Whether it works in the target's process, so that features cross no wire."""
        return self.ladder.target_drafts


class Stand:
    """Targets by how they are run, each loaded once, and the drafters over them. Close it when done."""

    def __init__(self, plain: Config) -> None:
        """`plain` has the target alone."""
        self._stack = ExitStack()
        self._verifiers: dict[ModelSpec, Verifier] = {}
        config = load_model_config(plain.model_specs()[-1].model).get_text_config()
        self._hidden, self.num_layers = int(config.hidden_size), int(config.num_hidden_layers)
        self.target_spec = plain.model_specs()[-1]
        self.target = self._verifier(self.target_spec)
        self.alone = Ladder([LocalTier(self.target)])

    @property
    def info(self) -> ReplicaInfo:
        """What the target says of itself."""
        return self.target.info()

    def close(self) -> None:
        """End all workers."""
        self._stack.close()

    def stand(self, kind: str, config: Config) -> Stood:
        """Build the drafter of a ladder of two tiers. Raises what loading it raises."""
        draft_spec, target_spec = config.model_specs()
        drafter_spec = config.drafter_spec()
        assert drafter_spec is not None
        threads = torch.get_num_threads()  # a drafter's own choice must not become the target's
        verifier = self._verifier(replace(target_spec, tier=1))
        workers: list[Worker]
        try:
            if config.target_drafts:
                lower = build_below(target_spec, config.inline_tiers(1), drafter_spec.law_support, verifier)
                assert isinstance(lower, Drafter)
                drafter, workers = lower, [InlineVerifier(lower, verifier, target_spec.idle_timeout_s)]
            else:
                drafter = build_drafter(draft_spec, drafter_spec)
                workers = [drafter, verifier]
        finally:
            torch.set_num_threads(threads)
        self._stack.callback(drafter.shutdown)
        ladder = Ladder(
            [LocalTier(worker) for worker in workers], settings=coordinator_settings(config),
            target_drafts=config.target_drafts, sends_features=config.sends_features,
            feature_window=config.feature_window,
        )
        lookahead = config.speculation.lookahead
        assert isinstance(lookahead, int)
        return Stood(kind, ladder, lookahead, self._memory(drafter, verifier), self._feature_bytes(target_spec))

    def _memory(self, drafter: Drafter, verifier: Verifier) -> Held:
        return held(drafter, apart_from=[verifier])

    def _feature_bytes(self, spec: ModelSpec) -> int:
        return len(spec.feature_layers) * self._hidden * FEATURE_BYTES

    def _verifier(self, spec: ModelSpec) -> Verifier:
        """Loaded at the first call; a drafter that reads features needs a target that keeps them."""
        spec = replace(spec, tier=1)
        if spec not in self._verifiers:
            verifier = build_verifier(spec, build_runner(spec))
            self._stack.callback(verifier.shutdown)
            self._verifiers[spec] = verifier
        return self._verifiers[spec]


def alone(target: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the target by itself."""
    return {"tiers": [dict(target)]}
