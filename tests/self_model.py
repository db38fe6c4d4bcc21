"""Soft models (`tests.soft_model`) that draft for themselves: shallow passes speak by laws of their own, and leave keys
that are no good for whole passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from actors.drafters.shallow import ShallowDrafter
from actors.emulation.checked import BrokenPages
from actors.engine.shallow import Shallow
from actors.engine.step import StepInput
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench.local import local_verifier
from tests.soft_model import MAX_CONTEXT_TOKENS, ShortMemory, SoftLaws, SoftRunner, soft_spec

SHALLOW = Shallow(np.arange(2, dtype=np.int32), cost=0.3)


class SelfRunner(SoftRunner):
    """Raises `BrokenPages` where a whole pass could read a key of a shallow one, and for passes of any other layers."""

    def __init__(self, spec: ModelSpec, laws: SoftLaws, shallow_laws: SoftLaws) -> None:
        super().__init__(spec, laws)
        self._laws, self._shallow_laws = laws, shallow_laws
        self._is_shallow = np.zeros(len(self._token), bool)
        self.num_passes = {False: 0, True: 0}  # by whether they were shallow

    def forward(self, step: StepInput) -> torch.Tensor:
        """See `SoftRunner`."""
        shallow = len(step.layers) > 0
        assert not shallow or step.layers.tolist() == SHALLOW.layers.tolist()
        self._head = self._shallow_laws if shallow else self._laws  # type: ignore[assignment]
        self.num_passes[shallow] += 1
        return super().forward(step)

    def _rearrange(self, step: StepInput) -> None:
        super()._rearrange(step)
        held = self._is_shallow
        for source, target in step.moves.tolist():
            held[target] = held[source]
        pages = held.reshape(-1, self._page_tokens)
        pages[step.copies[:, 1]] = pages[step.copies[:, 0]]
        held[step.slots] = len(step.layers) > 0
        if not len(step.layers):
            for s, length in enumerate(step.kv_len.tolist()):
                places = np.arange(length)
                own = step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]
                if held[own[places // self._page_tokens] * self._page_tokens + places % self._page_tokens].any():
                    raise BrokenPages("a whole pass reads keys of a shallow one")


class ShortSelfRunner(SelfRunner, ShortMemory):
    """Speaks by the last two tokens alone."""


def self_drafting(
    tier: int = 1, apart: float = 0.12, vocab_size: int = 40, scale: float = 8.0, short: bool = False, **changes: Any
) -> tuple[ShallowDrafter, Verifier, SelfRunner]:
    """A verifier and the drafter in its engine; `apart`: how little a shallow pass has in common with a whole one."""
    spec = soft_spec(tier, **changes)
    kind = ShortSelfRunner if short else SelfRunner
    runner = kind(spec, SoftLaws(vocab_size, 0.0, 4, scale), SoftLaws(vocab_size, apart, 1, scale))
    host = local_verifier(runner, spec, MAX_CONTEXT_TOKENS)
    return ShallowDrafter(host, tier - 1, 64, SHALLOW), host, runner
