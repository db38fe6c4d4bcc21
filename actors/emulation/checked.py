"""An emulated device that looks at all of a sequence's pages in every pass, for tests of whoever fills them.

A row's words need its predecessor's slot alone, which sums up all that came before. A real model looks at every
key: here, pages further back that are not those of the same text are an error, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from actors.emulation.runner import EmulatedRunner
from actors.emulation.voice import GOLDEN, MULTIPLIERS, ROOT
from actors.engine.step import Int32s, StepInput


class BrokenPages(RuntimeError):
    """The keys before a step's rows are not those of one text."""


class CheckedRunner(EmulatedRunner):
    """As `EmulatedRunner`, slower, and raises `BrokenPages`."""

    def forward(self, step: StepInput) -> torch.Tensor:
        """See `EmulatedRunner.forward`."""
        logits = super().forward(step)
        for s, length in enumerate((step.kv_len - np.diff(step.cu_query)).tolist()):
            pages = step.pages[step.cu_pages[s] : step.cu_pages[s + 1]]
            self._check(pages, length)
        return logits

    def _check(self, pages: Int32s, length: int) -> None:
        if length == 0:
            return
        places = np.arange(length)
        slots = pages[places // self._page_tokens] * self._page_tokens + places % self._page_tokens
        held: npt.NDArray[np.uint64] = self._prefix[slots]
        wrong = np.flatnonzero(held != extend_each(held, self._token[slots]))
        if len(wrong):
            raise BrokenPages(f"the key at position {int(wrong[0])} of {length} belongs to another text")


def extend_each(held: npt.NDArray[np.uint64], tokens: Int32s) -> npt.NDArray[np.uint64]:
    """What each key should be after the one before it: `extend` for a whole text at once."""
    before = np.concatenate([np.array([ROOT], np.uint64), held[:-1]])
    return mix_each(before + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def mix_each(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`mix` of many."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return values ^ (values >> np.uint64(31))
