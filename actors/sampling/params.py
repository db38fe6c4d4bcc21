"""The checked, frozen sampling settings of one request; the same object reaches every tier."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from actors.grammar.grammar import Grammar
from actors.sampling.policies import LossyPolicy


class VerifyMode(StrEnum):
    """How a verifier decides (see `actors.sampling.verify`)."""

    GREEDY = "greedy"
    COUPLED = "coupled"
    REJECTION = "rejection"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request.

    temperature 0 means greedy. A seed selects coupled verification; without one, rejection sampling
    (token-wise or block) is used, fed by `entropy`, a fresh random integer chosen at the edge.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repetition_penalty: float = 1.0  # over prompt and output, 1: off
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    entropy: int = 0  # randomness of an unseeded request; unused when `seed` is set
    min_tokens: int = 0
    eos_ids: tuple[int, ...] = ()  # ids masked until min_tokens (end-of-sequence and stop ids)
    num_logprobs: int | None = None  # None: none; 0: of the chosen token; n: also of the n best
    block_verification: bool = True  # for unseeded requests at temperature > 0
    grammar: Grammar | None = None  # which texts there may be; None: any
    lossy: LossyPolicy | None = None  # the target may keep what it would not have said itself; None: exact

    @property
    def mode(self) -> VerifyMode:
        """The verification rule these settings select."""
        if self.temperature == 0.0:
            return VerifyMode.GREEDY
        if self.seed is not None:
            return VerifyMode.COUPLED
        return VerifyMode.BLOCK if self.block_verification else VerifyMode.REJECTION
