"""Lossy policies that the operator may allow: never a default of this software, and labelled wherever they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from actors.sampling.policies import BigLittle, LossyPolicy, TypicalAcceptance
from cluster.config_drafters import DEFAULT_KIND
from cluster.config_load import KIND_TAG
from cluster.config_section import Section

if TYPE_CHECKING:
    from cluster.config import Config


class LossySection(Section):
    """What all policies share."""

    policy: str = Field(description="which sort of policy")
    by_default: bool = Field(False, description="also for requests that do not ask; they may still ask for exact text")

    def settings(self) -> LossyPolicy:
        """The same for actors."""
        raise NotImplementedError


class TypicalConfig(LossySection):
    """Keep what the target finds typical (Medusa): tokens of at least min(epsilon, delta * exp(-entropy))."""

    policy: Literal["typical"] = Field("typical", description="typical acceptance")
    epsilon: Annotated[float, Field(gt=0, le=1)] = Field(0.09, description="a token this likely is always kept")
    delta: Annotated[float, Field(gt=0, le=1)] = Field(0.3, description="what is enough where all are unlikely")

    def settings(self) -> TypicalAcceptance:
        """The same for actors."""
        return TypicalAcceptance(self.epsilon, self.delta)


class BigLittleConfig(LossySection):
    """The Big Little Decoder: the draft model writes while it is sure, the target takes back the worst."""

    policy: Literal["bild"] = Field("bild", description="Big Little Decoder")
    fallback: Annotated[float, Field(ge=0, le=1)] = Field(
        0.6, description="the draft ends before the first token of which the draft model is less sure",
    )
    rollback: Annotated[float, Field(gt=0)] = Field(
        5.0, description="a draft token is refused when its cross-entropy under the target exceeds this, nats",
    )

    def settings(self) -> BigLittle:
        """The same for actors."""
        return BigLittle(self.fallback, self.rollback)


def _policy(value: Any) -> str:
    policy = value.get("policy") if isinstance(value, dict) else getattr(value, "policy", None)
    return f"{KIND_TAG}{policy}"


LossyConfig = Annotated[
    Annotated[TypicalConfig, Tag(f"{KIND_TAG}typical")] | Annotated[BigLittleConfig, Tag(f"{KIND_TAG}bild")],
    Discriminator(_policy),
]


def check_lossy(config: Config) -> None:
    """Whether the ladder can follow its lossy policy. Raises ValueError with one line."""
    speculation = config.speculation
    lossy = speculation.lossy
    if lossy is None:
        return
    if len(config.tiers) == 1 or not speculation.enabled:
        raise ValueError("speculation.lossy: nothing is drafted, so nothing can be lost; remove lossy")
    if not isinstance(lossy, BigLittleConfig):
        return
    drafter = config.tiers[0].drafter
    if drafter is not None and drafter.kind != DEFAULT_KIND:
        raise ValueError(f"speculation.lossy: bild asks the draft model how sure it is, which drafter {drafter.kind} "
                         "cannot tell; use policy: typical")
    if len(config.tiers) > 2:
        raise ValueError("speculation.lossy: bild is for one small and one large model; remove the tiers between them, "
                         "or use policy: typical")
    for name, wanted in (("overlap", speculation.overlap), ("tree", speculation.tree)):
        if wanted is not None:
            raise ValueError(f"speculation.lossy: bild drafts one chain at a time; remove speculation.{name}, or use "
                             "policy: typical")
