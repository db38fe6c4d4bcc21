"""How tier 0 proposes: one kind, one class of settings; made by `cluster.config_drafters`, read by `actors.build`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """What all kinds share."""

    kind: ClassVar[str]  # the field's usual name
    has_model: ClassVar[bool] = True  # whether the tier names a model (or heads), whose ids are the drafter's

    law_support: int = 64  # a sampled draft is drawn from its top-m, renormalised; 0: the whole law
    copying: bool = field(default=False, kw_only=True)  # what the text repeats is mixed into laws (`drafters.copies`)


@dataclass(frozen=True, slots=True)
class DraftModelSpec(DrafterSpec):
    """A language model of its own (Leviathan et al., 2211.17192)."""

    kind: ClassVar[str] = "draft_model"

    tokenizers: str = "same"  # as the tier above; or "intersection", "text": how another one's ids become that tier's
    target: str = ""  # the tier above's model, for its tokenizer; needed if they are not the same


@dataclass(frozen=True, slots=True)
class ParallelSpec(DrafterSpec):
    """A language model with mask tokens, which drafts in one pass (PARD, 2504.18583)."""

    kind: ClassVar[str] = "parallel"


@dataclass(frozen=True, slots=True)
class NgramSpec(DrafterSpec):
    """Look-up in the text so far (prompt lookup; Saxena 2023)."""

    kind: ClassVar[str] = "ngram"
    has_model: ClassVar[bool] = False

    ngram_max: int = 4  # longest suffix looked up
    ngram_min: int = 1


@dataclass(frozen=True, slots=True)
class SuffixSpec(DrafterSpec):
    """Look-up in the text so far and in past outputs, by suffix automata (SuffixDecoding, 2411.04975)."""

    kind: ClassVar[str] = "suffix"
    has_model: ClassVar[bool] = False

    max_depth: int = 24  # longest suffix looked up, tokens
    max_cached_requests: int = 10000  # past outputs remembered at most; 0: none
    max_cached_tokens: int = 2**20  # of them together
    spec_factor: float = 4.0  # draft tokens at most, for each token of the suffix that was found
    min_token_prob: float = 0.1  # least probability of a draft token with those before it, by frequency


@dataclass(frozen=True, slots=True)
class HeadSpec(DrafterSpec):
    """A head over the features of the tier above, whose model is named in the tier's `ModelSpec`."""

    has_model: ClassVar[bool] = False  # of its own: ids, embedding and tokenizer are those of the tier above

    head: str = ""  # directory (`actors.heads.format`)


@dataclass(frozen=True, slots=True)
class EagleSpec(HeadSpec):
    """An autoregressive head (EAGLE-3, 2503.01840)."""

    kind: ClassVar[str] = "eagle"


@dataclass(frozen=True, slots=True)
class MedusaSpec(HeadSpec):
    """Heads that each tell one token ahead (Medusa, 2401.10774)."""

    kind: ClassVar[str] = "medusa"


@dataclass(frozen=True, slots=True)
class BlockSpec(HeadSpec):
    """A head that drafts a whole block in one pass (DFlash, 2602.06036)."""

    kind: ClassVar[str] = "block"


@dataclass(frozen=True, slots=True)
class EarlyExitSpec(DrafterSpec):
    """The first layers of the tier above, in its engine (LayerSkip, 2404.16710; Kangaroo, 2404.18911)."""

    kind: ClassVar[str] = "early_exit"
    has_model: ClassVar[bool] = False

    exit_layer: int = 0  # after which layer (1: the first); 0: as the head says
    head: str = ""  # directory of a trained exit; empty: the model's own norm and head


@dataclass(frozen=True, slots=True)
class LayerSkipSpec(DrafterSpec):
    """The tier above without some of its layers, in its engine (Draft & Verify, 2309.08168; SWIFT, 2410.06916)."""

    kind: ClassVar[str] = "layer_skip"
    has_model: ClassVar[bool] = False

    skip: tuple[int, ...] = ()  # layers left out (1: the first); empty: found out by trials
    num_evaluations: int = 128  # of sets of layers, at most
