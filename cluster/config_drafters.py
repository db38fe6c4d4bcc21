"""How tier 0 proposes: a section for each kind of drafter, chosen by `kind`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from actors.drafter_specs import (
    BlockSpec,
    DrafterSpec,
    DraftModelSpec,
    EagleSpec,
    EarlyExitSpec,
    LayerSkipSpec,
    MedusaSpec,
    NgramSpec,
    ParallelSpec,
    SuffixSpec,
)
from actors.heads.directory import read_feature_layers, read_feature_window, read_longest_draft
from cluster.config_load import KIND_TAG
from cluster.config_section import Positive, Section

if TYPE_CHECKING:
    from cluster.config import SpeculationConfig, TierConfig

DEFAULT_KIND = "draft_model"


class DrafterSection(Section):
    """What all kinds share."""

    has_model: ClassVar[bool] = True  # whether the tier names a model
    drafts_trees: ClassVar[bool] = True  # else chains only, whatever `speculation.tree` says
    runs_above: ClassVar[bool] = False  # whether it has no engine of its own but drafts in that of the tier above
    kind: str = Field(description="which sort of drafter")

    @model_serializer(mode="wrap")
    def _with_kind(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without its kind, which is each section's default, nobody could read it again."""
        return {"kind": self.kind, **dump(self)}

    def spec(self, law_support: int) -> DrafterSpec:
        """The same for actors. `law_support`: as in `speculation`."""
        raise NotImplementedError

    @property
    def may_branch(self) -> bool:
        """Whether it drafts trees as it is set."""
        return self.drafts_trees

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """After which layers of the tier above it reads the residual stream; empty: it needs none."""
        return ()

    @property
    def feature_window(self) -> int:
        """Positions before the newest token whose features it reads; 0: all."""
        return 0

    @property
    def longest_draft(self) -> int | None:
        """Tokens that it drafts at most; None: as many as one likes."""
        return None


class LawfulSection(DrafterSection):
    """What kinds share that draw from a law, with which others can be mixed."""

    copying: bool = Field(
        False, description="mix what followed the same words before in the text into the law, as much as it was right",
    )


class DraftModelConfig(LawfulSection):
    """A language model of its own."""

    kind: Literal["draft_model"] = Field("draft_model", description="a draft model")
    tokenizers: Literal["same", "intersection", "text"] = Field(
        "same", description="another tokenizer than the target's: draft with the tokens both have, or through text",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.copying and self.tokenizers != "same":
            raise ValueError(f"copying does not work with tokenizers: {self.tokenizers}; remove it")
        return self

    @property
    def may_branch(self) -> bool:
        """Not through another tokenizer."""
        return self.tokenizers == "same"

    def spec(self, law_support: int) -> DraftModelSpec:
        """The same for actors; `Config` adds the tier above."""
        return DraftModelSpec(law_support, self.tokenizers, copying=self.copying)


class ParallelConfig(LawfulSection):
    """A language model with mask tokens."""

    kind: Literal["parallel"] = Field("parallel", description="a draft model that drafts in one pass (PARD)")

    def spec(self, law_support: int) -> ParallelSpec:
        """The same for actors."""
        return ParallelSpec(law_support, copying=self.copying)


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


class SuffixConfig(DrafterSection):
    """Look-up in the request's own text and in past outputs."""

    has_model: ClassVar[bool] = False
    kind: Literal["suffix"] = Field("suffix", description="look-up in the text and in past outputs (SuffixDecoding)")
    max_depth: Annotated[int, Field(ge=1, le=256)] = Field(24, description="longest suffix looked up, tokens")
    max_cached_requests: Annotated[int, Field(ge=0)] = Field(
        10000, description="past outputs remembered at most, the oldest go first; 0: only the request's own text",
    )
    max_cached_tokens: Positive = Field(2**20, description="of these together, about 150 bytes each, tokens")
    spec_factor: Annotated[float, Field(gt=0)] = Field(
        4.0, description="draft tokens at most, for each token of the suffix that was found",
    )
    min_token_prob: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="least probability, by frequency, of a draft token with those before it",
    )

    def spec(self, law_support: int) -> SuffixSpec:
        """The same for actors."""
        return SuffixSpec(
            law_support, self.max_depth, self.max_cached_requests, self.max_cached_tokens, self.spec_factor,
            self.min_token_prob,
        )


class HeadSection(LawfulSection):
    """What kinds share that are heads over the features of the tier above, and so name no model."""

    has_model: ClassVar[bool] = False
    head: str = Field(min_length=1, description="directory of the head (`outrider train` makes one)")

    @model_validator(mode="after")
    def _readable(self) -> Self:
        read_feature_layers(self.head, self.kind)
        return self

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """As its directory says."""
        return read_feature_layers(self.head, self.kind)

    @property
    def feature_window(self) -> int:
        """As its directory says."""
        return read_feature_window(self.head, self.kind)

    @property
    def longest_draft(self) -> int | None:
        """As its directory says."""
        return read_longest_draft(self.head, self.kind)


class EagleConfig(HeadSection):
    """An autoregressive head (EAGLE-3)."""

    kind: Literal["eagle"] = Field("eagle", description="one decoder layer over the target's features (EAGLE-3)")

    def spec(self, law_support: int) -> EagleSpec:
        """The same for actors."""
        return EagleSpec(law_support, self.head, copying=self.copying)


class MedusaConfig(HeadSection):
    """Heads that each tell one token ahead."""

    kind: Literal["medusa"] = Field("medusa", description="heads on the target's last hidden state (Medusa)")

    def spec(self, law_support: int) -> MedusaSpec:
        """The same for actors."""
        return MedusaSpec(law_support, self.head, copying=self.copying)


class BlockConfig(HeadSection):
    """A head that drafts a whole block in one pass."""

    kind: Literal["block"] = Field("block", description="a whole block in one pass over the target's features (DFlash)")

    def spec(self, law_support: int) -> BlockSpec:
        """The same for actors."""
        return BlockSpec(law_support, self.head, copying=self.copying)


class EarlyExitConfig(LawfulSection):
    """The first layers of the tier above."""

    has_model: ClassVar[bool] = False
    runs_above: ClassVar[bool] = True
    kind: Literal["early_exit"] = Field("early_exit", description="first layers of the tier above (LayerSkip)")
    exit_layer: Positive | None = Field(None, description="drafts leave after this layer, 1: the first; null: head's")
    head: str | None = Field(
        None, min_length=1, description="directory of a trained exit (`outrider train` makes one); null: the model's "
        "own norm and head",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head is None:
            if self.exit_layer is None:
                raise ValueError("early_exit has neither exit_layer nor head; set exit_layer to a layer of the model, "
                                 "e.g. a third of them")
            return self
        layers = read_feature_layers(self.head, self.kind)
        if self.exit_layer is not None and layers != (self.exit_layer,):
            raise ValueError(f"exit_layer {self.exit_layer}: {self.head} was trained for layer {layers[0]}; remove "
                             "exit_layer")
        return self

    def spec(self, law_support: int) -> EarlyExitSpec:
        """The same for actors."""
        return EarlyExitSpec(law_support, self.exit_layer or 0, self.head or "", copying=self.copying)


class LayerSkipConfig(LawfulSection):
    """The tier above without some of its layers."""

    has_model: ClassVar[bool] = False
    runs_above: ClassVar[bool] = True
    kind: Literal["layer_skip"] = Field("layer_skip", description="the tier above without some layers (SWIFT)")
    skip: tuple[Positive, ...] | Literal["auto"] = Field(
        "auto", description="layers that drafts leave out, 1: the first; auto: found by trials at start",
    )
    num_evaluations: Positive = Field(128, description="auto: sets of layers that are tried out at most")

    @field_validator("skip", mode="before")
    @classmethod
    def _names_layers(cls, value: Any) -> Any:
        layers = list(value) if isinstance(value, list | tuple) else []
        if value != "auto" and not (layers and all(type(layer) is int and layer > 0 for layer in layers)):
            raise ValueError(f'got {value!r}; name layers to leave out, 1: the first, e.g. [5, 6], or write "auto"')
        return value

    def spec(self, law_support: int) -> LayerSkipSpec:
        """The same for actors."""
        skip = () if self.skip == "auto" else self.skip
        return LayerSkipSpec(law_support, skip, self.num_evaluations, copying=self.copying)


def _kind(value: Any) -> str:
    kind = value.get("kind", DEFAULT_KIND) if isinstance(value, dict) else getattr(value, "kind", DEFAULT_KIND)
    return f"{KIND_TAG}{kind}"


DrafterConfig = Annotated[
    Annotated[DraftModelConfig, Tag(f"{KIND_TAG}draft_model")]
    | Annotated[NgramConfig, Tag(f"{KIND_TAG}ngram")]
    | Annotated[SuffixConfig, Tag(f"{KIND_TAG}suffix")]
    | Annotated[ParallelConfig, Tag(f"{KIND_TAG}parallel")]
    | Annotated[EagleConfig, Tag(f"{KIND_TAG}eagle")]
    | Annotated[MedusaConfig, Tag(f"{KIND_TAG}medusa")]
    | Annotated[BlockConfig, Tag(f"{KIND_TAG}block")]
    | Annotated[EarlyExitConfig, Tag(f"{KIND_TAG}early_exit")]
    | Annotated[LayerSkipConfig, Tag(f"{KIND_TAG}layer_skip")],
    Discriminator(_kind),
]
KINDS = ("draft_model", "ngram", "suffix", "parallel", "eagle", "medusa", "block", "early_exit", "layer_skip")


def check_features(tiers: Sequence[TierConfig]) -> None:
    """Whether a drafter can have the features that it wants. Raises ValueError with one line."""
    drafter = tiers[0].drafter
    if drafter is None or not drafter.feature_layers or len(tiers) < 2:
        return
    if tiers[1].emulation is not None:
        raise ValueError(
            f"tiers.0.drafter: {drafter.kind} drafts from the features of {tiers[1].name!r}, and an emulated device "
            "has none; remove its emulation, or choose another kind"
        )
    if len(tiers) > 2 and not tiers[0].inline:
        raise ValueError(
            f"tiers.0.inline: only the target sends features to other pools, and {drafter.kind} drafts from those of "
            f"{tiers[1].name!r}; set inline: true"
        )


def check_longest(drafter: DrafterSection | None, speculation: SpeculationConfig) -> None:
    """Whether a drafter drafts as far as it is told to. Raises ValueError with one line."""
    longest = None if drafter is None else drafter.longest_draft
    if drafter is None or longest is None:
        return
    asked, unsaid = speculation.lookahead, type(speculation).model_fields["lookahead"].default
    if asked != "auto" and asked != unsaid and asked > longest:
        raise ValueError(f"speculation.lookahead: {asked} is further than this {drafter.kind} head drafts; set it to "
                         f"at most {longest}")
    if speculation.tree is not None and len(speculation.tree.widths) > longest:
        raise ValueError(f"speculation.tree.widths: {len(speculation.tree.widths)} levels are deeper than this "
                         f"{drafter.kind} head drafts; give at most {longest}")


_OF_THE_ENGINE = ("dtype", "weights", "kv_dtype", "kernels", "num_threads")


def check_runs_above(tiers: Sequence[TierConfig]) -> None:
    """Whether a drafter that is a part of the tier above is in its process. Raises ValueError with one line."""
    tier = tiers[0]
    if tier.drafter is None or not tier.drafter.runs_above or len(tiers) < 2:
        return
    kind, above = tier.drafter.kind, tiers[1]
    if not tier.inline:
        raise ValueError(f"tiers.0.inline: {kind} drafts with the layers of {above.name!r}, in its process; set "
                         "inline: true")
    if above.emulation is not None:
        raise ValueError(f"tiers.0.drafter: {kind} drafts with the layers of {above.name!r}, and an emulated device "
                         "has none; remove its emulation, or choose another kind")
    for name in _OF_THE_ENGINE:
        if getattr(tier, name) != type(tier).model_fields[name].default:
            raise ValueError(f"tiers.0.{name}: {kind} runs on the weights and KV memory of {above.name!r}; remove "
                             f"{name}, or set it there")
