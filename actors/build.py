"""Puts a tier together: model, runner, engine, and the drafter or verifier over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig

from actors.drafters.base import Drafter
from actors.drafters.model import ModelDrafter
from actors.drafters.ngram import NgramDrafter
from actors.engine.engine import Engine
from actors.engine.make import make_runner
from actors.engine.step import ModelRunner
from actors.loading.checkpoint import load_config, load_model, max_context_tokens, resolve
from actors.loading.tokenizer import eos_ids, fingerprint, load_tokenizer
from actors.messages import ReplicaInfo
from actors.spec import DrafterSpec, ModelSpec
from actors.verifier import Verifier

OnClosed = Callable[[str], None]


def build_runner(spec: ModelSpec) -> ModelRunner:
    """Load `spec.model` whole into this process and make it ready for packed steps."""
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


def build_drafter(spec: ModelSpec | None, drafter: DrafterSpec, on_closed: OnClosed | None = None) -> Drafter:
    """The drafter of tier 0. `spec` may be None for drafters without a model."""
    if drafter.kind == "ngram":
        return NgramDrafter(drafter)
    if drafter.kind != "model":
        raise ValueError(f"drafter kind {drafter.kind!r} is not one of model, ngram")
    if spec is None:
        raise ValueError("drafter kind 'model' needs a model: name one in the tier")
    runner = build_runner(spec)
    info = describe(spec, runner.vocab_size)
    return ModelDrafter(Engine(runner, spec, info.max_context_tokens, on_closed), info, drafter.law_support)


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
