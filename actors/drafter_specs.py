"""How tier 0 proposes: one kind, one class of settings; made by `cluster.config_drafters`, read by `actors.build`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What all kinds share."""

    kind: ClassVar[str]  # the field's usual name
    has_model: ClassVar[bool] = True  # whether the tier names a model (or heads), whose ids are the drafter's

    law_support: int = 64  # a sampled draft is drawn from its top-m, renormalised; 0: the whole law


@dataclass(frozen=True, slots=True)
class DraftModelSpec(DrafterSpec):
    """A language model of its own (Leviathan et al., 2211.17192)."""

    kind: ClassVar[str] = "draft_model"


@dataclass(frozen=True, slots=True)
class NgramSpec(DrafterSpec):
    """Look-up in the text so far (prompt lookup; Saxena 2023)."""

    kind: ClassVar[str] = "ngram"
    has_model: ClassVar[bool] = False

    ngram_max: int = 4  # longest suffix looked up
    ngram_min: int = 1
