"""Puts a tier together: model, runner, engine, and the drafter or verifier over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from actors.drafter_specs import DrafterSpec, DraftModelSpec, NgramSpec
from actors.drafters.base import Drafter
from actors.drafters.cascade import CascadeDrafter
from actors.drafters.model import ModelDrafter
from actors.drafters.ngram import NgramDrafter
from actors.emulation.runner import load_emulated
from actors.engine.engine import Engine
from actors.engine.make import make_runner
from actors.engine.step import ModelRunner
from actors.inline import InlineVerifier, RelayVerifier, Verifies
from actors.loading.checkpoint import load_config, load_model, max_context_tokens, resolve
from actors.loading.tokenizer import eos_ids, explain_mismatch, fingerprint, load_tokenizer
from actors.messages import ReplicaInfo
from actors.spec import InlineTier, ModelSpec
from actors.verifier import Verifier

OnClosed = Callable[[str], None]


def build_runner(spec: ModelSpec) -> ModelRunner:
    """Load `spec.model` whole into this process and make it ready for packed steps (an emulated one: at once)."""
    if spec.emulation is not None:
        return load_emulated(spec)
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    return make_runner(load_model(spec), spec)


def build_verifier(
    spec: ModelSpec, runner: ModelRunner | None = None, law_support: int = 64, on_closed: OnClosed | None = None
) -> Verifier:
    """A verifying tier over `runner` (None: load the model here). `law_support` shapes a middle tier's laws."""
    runner = runner or build_runner(spec)
    info = describe(spec, runner.vocab_size)
    return Verifier(Engine(runner, spec, info.max_context_tokens, on_closed), info, law_support)


def build_drafter(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None = None, inline: Sequence[InlineTier] = (),
    host: Verifier | None = None,
) -> Drafter:
    """The drafter of a pool, or of a tier inline in the process of `host`. `spec` may be None where it has no model.

    `inline`: the tiers below it in this process, smallest first; that one then drafts as its own spec says.
    """
    if inline:
        if spec is None:
            raise ValueError("a tier with others inline needs a model: name one")
        upper = build_verifier(spec, law_support=drafter.law_support, on_closed=on_closed)
        lower = build_below(spec, inline, drafter.law_support, upper)
        assert isinstance(lower, Drafter)
        return CascadeDrafter(lower, upper, inline[-1].window, spec.idle_timeout_s)
    return _BUILDERS[type(drafter)](spec, drafter, on_closed, host)


def _draft_model(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    if spec is None:
        raise ValueError(f"drafter kind {drafter.kind!r} needs a model: name one in the tier")
    runner = build_runner(spec)
    info = describe(spec, runner.vocab_size)
    return ModelDrafter(Engine(runner, spec, info.max_context_tokens, on_closed), info, drafter.law_support)


def _ngram(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, NgramSpec)
    return NgramDrafter(drafter)


# Of each kind, what makes it of its tier's model (None: it has none), its settings, the callback for closed sequences,
# and the verifier in whose process it runs (None: it runs elsewhere).
_BUILDERS: dict[
    type[DrafterSpec], Callable[[ModelSpec | None, DrafterSpec, OnClosed | None, Verifier | None], Drafter]
] = {DraftModelSpec: _draft_model, NgramSpec: _ngram}


def with_inline(verifier: Verifier, spec: ModelSpec, inline: Sequence[InlineTier], law_support: int) -> Verifies:
    """`verifier`, a tier run as `spec`, with the tiers below it that run in its process, smallest first."""
    if not inline:
        return verifier
    lower = build_below(spec, inline, law_support, verifier)
    if isinstance(lower, Drafter):
        return InlineVerifier(lower, verifier, spec.idle_timeout_s)
    return RelayVerifier(lower, verifier, spec.idle_timeout_s)


def build_below(
    spec: ModelSpec, inline: Sequence[InlineTier], law_support: int, host: Verifier
) -> Drafter | Verifies:
    """The inline tiers below a tier run as `spec`, as one: a drafter when tier 0 is among them, else a verifier.

    Raises `ValueError` when one of them does not mean the same by an id as the tier above it.
    """
    for tier, above in zip(inline, [*(tier.spec for tier in inline[1:]), spec], strict=True):
        if tier.drafter is None or tier.drafter.has_model:
            check_same_ids(tier.spec, above)
    num_threads = torch.get_num_threads()  # an inline tier's own choice must not become that of the tier above
    try:
        first, *others = inline
        if first.drafter is None:
            relay: Verifies = build_verifier(first.spec, law_support=law_support)
            for tier in others:
                upper = build_verifier(tier.spec, law_support=law_support)
                relay = RelayVerifier(relay, upper, tier.spec.idle_timeout_s)
            return relay
        lower = build_drafter(first.spec, first.drafter)
        for below, tier in zip(inline, others, strict=False):
            upper = build_verifier(tier.spec, law_support=law_support)
            lower = CascadeDrafter(lower, upper, below.window, tier.spec.idle_timeout_s)
        return lower
    finally:
        torch.set_num_threads(num_threads)


def check_same_ids(lower: ModelSpec, upper: ModelSpec) -> None:
    """Raises `ValueError` when the tokenizers of two tiers differ: a draft in other ids would be noise."""
    tokenizers = load_tokenizer(lower.model), load_tokenizer(upper.model)
    if fingerprint(tokenizers[0]) != fingerprint(tokenizers[1]):
        raise ValueError(
            f"inline tier {lower.tier} ({lower.model}) and tier {upper.tier} ({upper.model}) have different "
            f"tokenizers: {explain_mismatch(*tokenizers)} Choose models of one family"
        )


def describe(spec: ModelSpec, vocab_size: int) -> ReplicaInfo:
    """What the replica will say of itself."""
    config: Any = load_config(spec.model)
    tokenizer = load_tokenizer(spec.model)
    longest = max_context_tokens(config)
    return ReplicaInfo(
        tier=spec.tier,
        model=spec.model,
        vocab_size=vocab_size,
        max_context_tokens=min(longest, spec.max_context_tokens or longest),
        num_pages=max(1, spec.kv_tokens // spec.page_tokens),
        page_tokens=spec.page_tokens,
        tokenizer_fingerprint=fingerprint(tokenizer),
        eos_ids=eos_ids(tokenizer, _generation_config(spec.model, config)),
    )


def _generation_config(model: str, config: Any) -> Any:
    """Chat models often end turns by more ids than the config names; those stand in the generation config."""
    try:
        return GenerationConfig.from_pretrained(resolve(model))
    except OSError:  # the checkpoint has none
        return config
