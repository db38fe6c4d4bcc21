"""Puts a translation around a draft model, as its settings say."""

from __future__ import annotations

from dataclasses import replace

from actors.drafter_specs import DrafterSpec, DraftModelSpec
from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.drafters.translate.intersection import IntersectionDrafter
from actors.drafters.translate.spelling import spell
from actors.drafters.translate.text import TextDrafter
from actors.loading.tokenizer import eos_ids, fingerprint, load_tokenizer
from actors.spec import ModelSpec


def translates(drafter: DrafterSpec) -> bool:
    """Whether a drafter may have another tokenizer than the tier above it."""
    return isinstance(drafter, DraftModelSpec) and drafter.tokenizers != "same"


def translating_drafter(inner: ModelDrafter, spec: ModelSpec, drafter: DraftModelSpec) -> Drafter:
    """`inner`, a draft model run as `spec`, in the ids of `drafter.target`; itself where they are its own.

    Raises `UnsuitableTokenizer`, `ModelNotFound`.
    """
    if not translates(drafter):
        return inner
    own, other = load_tokenizer(spec.model), load_tokenizer(drafter.target)
    if fingerprint(own) == fingerprint(other):
        return inner
    lower, upper = spell(own), spell(other)
    info = replace(
        inner.info(), vocab_size=upper.size, tokenizer_fingerprint=fingerprint(other), eos_ids=eos_ids(other)
    )
    if drafter.tokenizers == "text":
        return TextDrafter(inner, lower, upper, info, spec.idle_timeout_s)
    return IntersectionDrafter(inner, lower, upper, info, drafter.law_support, spec.idle_timeout_s)
