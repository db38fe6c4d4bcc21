"""The `ModelRunner` of an emulated device."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import torch

from actors.emulation.head import Head
from actors.emulation.pace import Pace, Pacer
from actors.emulation.voice import MIN_WORDS, ROOT, Speaker, extend
from actors.emulation.words import word_ids
from actors.engine.step import Int32s, StepInput
from actors.loading.checkpoint import load_config
from actors.loading.tokenizer import load_tokenizer
from actors.spec import EmulationSpec, ModelSpec

log = logging.getLogger(__name__)


class EmulatedRunner:
    """A language model whose keys are prefix hashes, and whose passes take as long as they are told to.

    A slot holds the hash of all tokens up to and with its own. A row finds its predecessor's through the step's page
    table, as attention finds keys: pages mixed up, copied too late or cut back too far become wrong words.
    The logits it answers are valid until the next pass.
    """

    shares_head = False

    def __init__(self, spec: ModelSpec, words: Int32s, vocab_size: int, pacer: Pacer | None = None) -> None:
        emulation = emulation_of(spec)
        self.vocab_size = vocab_size
        self.num_pages = spec.num_pages
        self._page_tokens = spec.page_tokens
        self._words = words
        self._speaker = Speaker(emulation.voices, len(words))
        self._head = Head(words, vocab_size)
        self.pacer = pacer or Pacer(Pace(emulation.pass_s, emulation.flat_rows, emulation.row_s))
        num_slots = (spec.num_pages + 1) * spec.page_tokens  # with the page that the engine scrubs others from
        self._prefix: npt.NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self._token: Int32s = np.zeros(num_slots, np.int32)
        self._own: Int32s = np.zeros(num_slots, np.int32)  # own best words in a row that lead to the slot

    def forward(self, step: StepInput) -> torch.Tensor:
        """One packed pass: logits of `step.logit_rows`, [num_logits, vocab_size] float32 on CPU."""
        began_s = self.pacer.now()
        self._rearrange(step)
        self._feed(step)
        slots = step.slots[step.logit_rows].tolist()
        choices = [self._speaker.choose(int(self._prefix[slot]), int(self._own[slot])) for slot in slots]
        logits = self._head.rows(choices)
        self.pacer.finish(began_s, len(step.input_ids))
        return logits

    def _rearrange(self, step: StepInput) -> None:
        """The moves of single tokens, one after another, then the copies of pages, all at once."""
        for held in (self._prefix, self._token, self._own):
            for source, target in step.moves.tolist():
                held[target] = held[source]
            pages = held.reshape(-1, self._page_tokens)
            pages[step.copies[:, 1]] = pages[step.copies[:, 0]]

    def _feed(self, step: StepInput) -> None:
        befores = step.before(self._page_tokens)
        counted = self._drawn(step) if self._speaker.counts_own else [False] * len(step.input_ids)
        rows = zip(step.input_ids.tolist(), step.slots.tolist(), befores.tolist(), counted, strict=True)
        for token, slot, before, draws in rows:
            prefix = int(self._prefix[before]) if before >= 0 else ROOT
            self._prefix[slot], self._token[slot] = extend(prefix, token), token
            self._own[slot] = self._run(before, token) if draws and before >= 0 else 0

    def _drawn(self, step: StepInput) -> list[bool]:
        """Which rows may be drafted ones: several in a row that are no tree catch up with the truth instead."""
        lengths = np.diff(step.cu_query)
        drawn = np.repeat(lengths == 1, lengths)
        if len(step.parents):
            branches = step.parents != step.chain()
            drawn |= np.repeat(np.logical_or.reduceat(branches, step.cu_query[:-1]), lengths)
        return drawn.tolist()

    def _run(self, before: int, token: int) -> int:
        """Own best words in a row that end with `token` after the slot `before`."""
        run = int(self._own[before])
        best = self._speaker.choose(int(self._prefix[before]), run).best
        return run + 1 if int(self._words[best]) == token else 0


def emulation_of(spec: ModelSpec) -> EmulationSpec:
    """How the tier of `spec` is emulated; that it is must be certain."""
    if spec.emulation is None:
        raise ValueError(f"{spec.model} is no emulated device: give its tier an `emulation` section")
    return spec.emulation


def load_emulated(spec: ModelSpec) -> EmulatedRunner:
    """The runner of an emulated tier: of the model it is named after, only configuration and tokenizer are read."""
    emulation = emulation_of(spec)
    vocab_size = int(load_config(spec.model).get_text_config().vocab_size)
    words = word_ids(load_tokenizer(spec.model), vocab_size, MIN_WORDS)
    log.warning(
        "%s: an EMULATED device, no model runs: %.3g ms a pass up to %d rows, %.3g ms for each row more",
        spec.model, 1e3 * emulation.pass_s, emulation.flat_rows, 1e3 * emulation.row_s,
    )
    return EmulatedRunner(spec, words, vocab_size)
