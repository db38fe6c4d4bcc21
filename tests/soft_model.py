"""A language model that is a hash of its prefix, with laws that are far from certain, below the real engine.

Like the emulated device that it is made of, it finds what came before a row through the step's page table, and looks
at all keys of a sequence in every pass: pages mixed up, copied too late or cut back too far are errors, or other words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from actors.emulation.checked import CheckedRunner, mix_each
from actors.emulation.pace import Pace, Pacer
from actors.emulation.voice import GOLDEN, MIN_WORDS, ROOT, extend
from actors.engine.step import StepInput
from actors.spec import EmulationSpec, ModelSpec, Voice

INSTANT = Pacer(Pace(0.0, 1, 0.0), clock=lambda: 0.0, sleep=lambda _: None)
MAX_CONTEXT_TOKENS = 512
_TRUTH = 0x7A11_60E5_0F7E_57E5  # salt of what all models of a ladder have in common


class SoftLaws:
    """Logits after a prefix: what all models have in common, but for a share `apart` of this model's own."""

    def __init__(self, vocab_size: int, apart: float = 0.0, salt: int = 1, scale: float = 8.0) -> None:
        self.vocab_size = vocab_size
        self._apart = apart
        self._salt = salt
        self._scale = scale

    def after(self, tokens: Sequence[int]) -> torch.Tensor:
        """[vocab_size] logits of the token after `tokens`, without any KV memory."""
        prefix = ROOT
        for token in tokens:
            prefix = extend(prefix, int(token))
        return self.rows([prefix])[0]

    def rows(self, prefixes: Sequence[int]) -> torch.Tensor:
        """[len(prefixes), vocab_size] float32 logits after the prefixes of those hashes."""
        held = np.array(prefixes, np.uint64)[:, None]
        values = (1.0 - self._apart) * self._draws(held, _TRUTH) + self._apart * self._draws(held, self._salt)
        return torch.from_numpy((self._scale * values).astype(np.float32))

    def _draws(self, held: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.float64]:
        ids = np.arange(1, self.vocab_size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        mixed = mix_each(mix_each(held ^ np.uint64(salt)) + ids)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


class _Prefixes:
    """Stands where an emulated device has its voices: what is said is left to the laws."""

    counts_own = False

    def choose(self, prefix: int, position: int = 0) -> int:
        return prefix


class SoftRunner(CheckedRunner):
    """The device that speaks by `laws`, at once."""

    def __init__(self, spec: ModelSpec, laws: SoftLaws) -> None:
        super().__init__(spec, np.arange(MIN_WORDS, dtype=np.int32), MIN_WORDS, INSTANT)
        self.vocab_size = laws.vocab_size
        self._speaker = _Prefixes()  # type: ignore[assignment]
        self._head = laws  # type: ignore[assignment]


class ShortMemory(SoftRunner):
    """Speaks by the last two tokens alone, so that its laws can be counted along a text."""

    def __init__(self, spec: ModelSpec, laws: SoftLaws) -> None:
        super().__init__(spec, laws)
        self._speaker = _LastTwo()  # type: ignore[assignment]

    def _drawn(self, step: StepInput) -> list[bool]:
        return [True] * len(step.input_ids)

    def _run(self, before: int, token: int) -> int:
        return two_tokens(int(self._token[before]), token)


class _LastTwo(_Prefixes):
    counts_own = True

    def choose(self, prefix: int, position: int = 0) -> int:
        return position


def two_tokens(first: int, second: int) -> int:
    """What `SoftLaws.rows` takes in place of a prefix, of a model with a short memory."""
    return 1 + 1000 * first + second


def soft_spec(tier: int, **changes: object) -> ModelSpec:
    """A spec for soft models: pages of 4 tokens, so that they are cut, shared and copied all the time."""
    settings: dict[str, object] = {
        "kv_tokens": 16384, "page_tokens": 4, "max_context_tokens": MAX_CONTEXT_TOKENS, "max_batch_tokens": 256,
        **changes,
    }
    emulation = EmulationSpec((Voice("soft"),), pass_s=0.0, flat_rows=64)
    return ModelSpec(tier=tier, model="emulated:soft", emulation=emulation, **settings)  # type: ignore[arg-type]
