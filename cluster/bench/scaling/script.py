"""The load script: phases of streams that draft and streams that do not, and what each should do to the pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster.bench.ladder.configs import PAIR
from cluster.config import Config, load_config

DRAFT, TARGET = "draft", "target"
UP_S, DOWN_S = 2.0, 6.0
MOST = 3  # replicas of either pool


@dataclass(frozen=True, slots=True)
class Phase:
    """So many streams, each asking again when it was answered, until the pools are as they should be."""

    name: str
    least_s: float  # it lasts longer where the pools take longer, up to `patience_s` more
    num_drafted: int
    num_plain: int
    drafts: int  # replicas at its end
    targets: int
    patience_s: float = 60.0  # a replica starts within seconds, or within half a minute where processors are busy


# A draft replica is to carry three sequences, a target replica twelve: either pool can be made to grow alone.
SCRIPT = (
    Phase("low", 10, 2, 0, 1, 1),
    Phase("many drafts", 16, 9, 0, MOST, 1),
    Phase("many targets", 16, 1, 28, 1, MOST),
    Phase("low again", 16, 2, 0, 1, 1),
    Phase("nobody drafts", 16, 0, 2, 0, 1),
    Phase("drafts are back", 16, 2, 0, 1, 1),
)


def config(least_drafts: int = 0) -> Config:
    """The emulated pair with pools that scale within seconds."""
    changed: dict[str, Any] = load_config(PAIR, environ={}).model_dump(mode="json")
    draft, target = changed["tiers"]
    delays = {"upscale_delay_s": UP_S, "downscale_delay_s": DOWN_S, "target_load": 0.75}
    draft |= {"max_sequences": 4, "replicas": {"min": least_drafts, "max": MOST, "zero_delay_s": DOWN_S, **delays}}
    target |= {"max_sequences": 16, "replicas": {"min": 1, "max": MOST, **delays}}
    changed["model_name"] = "scaling"
    return load_config(changed, environ={})
