"""Lossy policies: the text need not be the target's own any more. Never a default; see `actors.sampling.lossy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Keep what the target finds typical (Medusa, 2401.10774, section 3.3.1)."""

    policy: ClassVar[str] = "typical"

    epsilon: float = 0.09  # a token this likely is always kept
    delta: float = 0.3  # where the target is unsure (entropy H), delta * exp(-H) is enough


@dataclass(frozen=True, slots=True)
class BigLittle:
    """The Big Little Decoder (2302.07863): the small model writes while it is sure, the large one takes back the worst.

    Drafting ends before the first token of which the small model is less sure than `fallback`. What it wrote is kept up
    to the first token whose cross-entropy under the large model exceeds `rollback`.
    """

    policy: ClassVar[str] = "bild"

    fallback: float = 0.6  # least probability of the small model's best token
    rollback: float = 5.0  # nats


LossyPolicy = TypicalAcceptance | BigLittle
POLICIES: dict[str, type[LossyPolicy]] = {kind.policy: kind for kind in (TypicalAcceptance, BigLittle)}
