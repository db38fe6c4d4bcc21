"""How tier 0 proposes: a section for each kind of drafter, chosen by `kind`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from actors.drafter_specs import DrafterSpec, DraftModelSpec, NgramSpec
from cluster.config_load import KIND_TAG
from cluster.config_section import Positive, Section

DEFAULT_KIND = "draft_model"


class DrafterSection(Section):
    """What all kinds share."""

    has_model: ClassVar[bool] = True  # whether the tier names a model
    drafts_trees: ClassVar[bool] = True  # else chains only, whatever `speculation.tree` says
    kind: str = Field(description="which sort of drafter")

    def spec(self, law_support: int) -> DrafterSpec:
        """The same for actors. `law_support`: as in `speculation`."""
        raise NotImplementedError


class DraftModelConfig(DrafterSection):
    """A language model of its own."""

    kind: Literal["draft_model"] = Field("draft_model", description="a draft model")

    def spec(self, law_support: int) -> DraftModelSpec:
        """The same for actors."""
        return DraftModelSpec(law_support)


class NgramConfig(DrafterSection):
    """Look-up in the request's own text."""

    has_model: ClassVar[bool] = False
    drafts_trees: ClassVar[bool] = False
    kind: Literal["ngram"] = Field("ngram", description="look-up in the text (prompt lookup)")
    ngram_max: Positive = Field(4, description="longest suffix looked up, tokens")
    ngram_min: Positive = Field(1, description="shortest suffix looked up, tokens")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} exceeds ngram_max {self.ngram_max}; lower it")
        return self

    def spec(self, law_support: int) -> NgramSpec:
        """The same for actors."""
        return NgramSpec(law_support, self.ngram_max, self.ngram_min)


def _kind(value: Any) -> str:
    kind = value.get("kind", DEFAULT_KIND) if isinstance(value, dict) else getattr(value, "kind", DEFAULT_KIND)
    return f"{KIND_TAG}{kind}"


DrafterConfig = Annotated[
    Annotated[DraftModelConfig, Tag(f"{KIND_TAG}draft_model")]
    | Annotated[NgramConfig, Tag(f"{KIND_TAG}ngram")],
    Discriminator(_kind),
]
KINDS = ("draft_model", "ngram")
