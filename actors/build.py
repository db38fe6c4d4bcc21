"""Puts a tier together: model, runner, engine, and the drafter or verifier over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

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
from actors.drafters.base import Drafter
from actors.drafters.block import block_drafter, load_block
from actors.drafters.cascade import CascadeDrafter
from actors.drafters.copies import Copies
from actors.drafters.eagle import load_eagle
from actors.drafters.early_exit import early_exit_drafter
from actors.drafters.layer_skip import layer_skip_drafter
from actors.drafters.medusa import load_medusa, medusa_drafter
from actors.drafters.model import ModelDrafter
from actors.drafters.ngram import NgramDrafter
from actors.drafters.parallel import ParallelDrafter
from actors.drafters.suffix import SuffixDrafter
from actors.drafters.translate.build import translates, translating_drafter
from actors.emulation.runner import load_emulated
from actors.engine.engine import Engine
from actors.engine.make import make_runner
from actors.engine.step import ModelRunner
from actors.grammar.vocabulary import know_model
from actors.heads.parallel import read_mask_tokens
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
    engine = Engine(runner, spec, info.max_context_tokens, on_closed)
    inner = ModelDrafter(engine, info, drafter.law_support, _copies(drafter))
    assert isinstance(drafter, DraftModelSpec)
    return translating_drafter(inner, spec, drafter)


def _early_exit(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, EarlyExitSpec)
    return early_exit_drafter(drafter, _own(host, drafter), spec.tier if spec is not None else 0)


def _layer_skip(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, LayerSkipSpec)
    return layer_skip_drafter(drafter, _own(host, drafter), spec.tier if spec is not None else 0)


def _own(host: Verifier | None, drafter: DrafterSpec) -> Verifier:
    """The verifier whose layers draft."""
    if host is None:
        raise ValueError(f"{drafter.kind} drafts with the layers of the tier above, in its process: set inline: true")
    return host


def _eagle(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, EagleSpec)
    spec = _above(spec, drafter)
    runner = load_eagle(spec, drafter)
    info = describe(spec, runner.vocab_size)
    engine = Engine(runner, spec, info.max_context_tokens, on_closed)
    return ModelDrafter(engine, info, drafter.law_support, _copies(drafter))


def _medusa(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, MedusaSpec)
    spec = _above(spec, drafter)
    heads = load_medusa(spec, drafter)
    info = describe(spec, heads.config.vocab_size)
    return medusa_drafter(heads, spec, info, drafter.law_support, _copies(drafter))


def _block(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, BlockSpec)
    spec = _above(spec, drafter)
    head = load_block(spec, drafter)
    info = describe(spec, head.config.vocab_size)
    return block_drafter(head, spec, info, drafter.law_support, _copies(drafter))


def _copies(drafter: DrafterSpec) -> Copies | None:
    """What mixes copies into its laws; None: they are the model's alone."""
    return Copies() if drafter.copying else None


def _above(spec: ModelSpec | None, drafter: DrafterSpec) -> ModelSpec:
    """How a head is run, with the name of the model that it drafts for."""
    if spec is None:
        raise ValueError(f"drafter kind {drafter.kind!r} needs the tier above it: name that model")
    if spec.num_threads is not None:
        torch.set_num_threads(spec.num_threads)
    return spec


def _parallel(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    if spec is None:
        raise ValueError(f"drafter kind {drafter.kind!r} needs a model: name one in the tier")
    masks = read_mask_tokens(resolve(spec.model))
    runner = build_runner(spec)
    info = describe(spec, runner.vocab_size)
    engine = Engine(runner, spec, info.max_context_tokens, on_closed)
    return ParallelDrafter(engine, info, masks, drafter.law_support, _copies(drafter))


def _ngram(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, NgramSpec)
    return NgramDrafter(drafter)


def _suffix(
    spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None, host: Verifier | None
) -> Drafter:
    assert isinstance(drafter, SuffixSpec)
    return SuffixDrafter(drafter, idle_timeout_s=spec.idle_timeout_s if spec is not None else 120.0)


# Of each kind, what makes it of its tier's model (None: it has none), its settings, the callback for closed sequences,
# and the verifier in whose process it runs (None: it runs elsewhere).
_BUILDERS: dict[
    type[DrafterSpec], Callable[[ModelSpec | None, DrafterSpec, OnClosed | None, Verifier | None], Drafter]
] = {
    BlockSpec: _block, DraftModelSpec: _draft_model, EagleSpec: _eagle, MedusaSpec: _medusa, NgramSpec: _ngram,
    ParallelSpec: _parallel, SuffixSpec: _suffix, EarlyExitSpec: _early_exit, LayerSkipSpec: _layer_skip,
}


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
        if tier.drafter is None or (tier.drafter.has_model and not translates(tier.drafter)):
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
        uppers = [build_verifier(tier.spec, law_support=law_support) for tier in others]
        lower = build_drafter(first.spec, first.drafter, host=[*uppers, host][0])
        for below, tier, upper in zip(inline, others, uppers, strict=False):
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
            f"tokenizers: {explain_mismatch(*tokenizers)} Choose models of one family, or, for a draft model, set "
            "drafter.tokenizers to intersection or text"
        )


def describe(spec: ModelSpec, vocab_size: int) -> ReplicaInfo:
    """What the replica will say of itself."""
    config: Any = load_config(spec.model)
    tokenizer = load_tokenizer(spec.model)
    know_model(fingerprint(tokenizer), spec.model)
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
