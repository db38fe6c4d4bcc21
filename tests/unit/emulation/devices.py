"""Emulated devices for tests: a small vocabulary, no time, no tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.emulation.checked import CheckedRunner
from actors.emulation.pace import Pace, Pacer
from actors.emulation.runner import EmulatedRunner
from actors.emulation.voice import ROOT, Speaker, extend
from actors.spec import EmulationSpec, ModelSpec, Voice

VOCAB = 300
WORDS = np.arange(10, 290, 2, dtype=np.int32)
PAGE = 4
TARGET = Voice("target")
INSTANT = Pacer(Pace(0.0, 1, 0.0), clock=lambda: 0.0, sleep=lambda _: None)


def emulated(
    *voices: Voice, tier: int = 0, kind: type[EmulatedRunner] = CheckedRunner, **changes: Any
) -> tuple[EmulatedRunner, ModelSpec]:
    """A device that speaks with the first of `voices`, which follow each other, and its spec."""
    emulation = EmulationSpec(voices, pass_s=0.0, flat_rows=64)
    settings: dict[str, Any] = {"kv_tokens": 4096, "page_tokens": PAGE, "max_context_tokens": 1024, **changes}
    spec = ModelSpec(tier=tier, model="emulated:none", emulation=emulation, **settings)
    return kind(spec, WORDS, VOCAB, INSTANT), spec


def text(prompt: list[int], num_tokens: int, *voices: Voice) -> list[int]:
    """What a voice says after a prompt, without any KV memory."""
    speaker = Speaker(voices, len(WORDS))
    prefix = ROOT
    for token in prompt:
        prefix = extend(prefix, token)
    said = []
    for _ in range(num_tokens):
        said.append(int(WORDS[speaker.choose(prefix).best]))
        prefix = extend(prefix, said[-1])
    return said
