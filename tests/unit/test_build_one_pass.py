"""`medusa` and `block` put together from directories and settings, and what is said where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.build import build_drafter, build_verifier, with_inline
from actors.drafter_specs import BlockSpec, MedusaSpec
from actors.drafters.one_pass import OnePassDrafter
from actors.heads.block import BlockHead, block_config
from actors.heads.format import BadHead
from actors.heads.medusa import MedusaHeads, medusa_config
from actors.heads.vocab import DraftVocabulary
from actors.inline import InlineVerifier
from actors.messages import Context, DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from cluster.config import ConfigError, load_config
from tests.conftest import TinyModel

PROMPT = (np.arange(30, dtype=np.int32) * 37 + 11) % 250 + 4
SPECS = {"medusa": MedusaSpec, "block": BlockSpec}
KIND = pytest.mark.parametrize("kind", SPECS)


def store(kind: str, target: Path, directory: Path, num_ids: int = 64) -> Path:
    """An untrained head for a checkpoint, without the target's output matrix."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(target)
    torch.manual_seed(0)
    vocabulary = DraftVocabulary(np.arange(num_ids) * 3, model.config.vocab_size)
    output = model.get_output_embeddings().weight
    head: MedusaHeads | BlockHead
    if kind == "medusa":
        head = MedusaHeads.fresh(
            medusa_config(model.config, num_ids, num_heads=3), model.model.norm.weight, output, vocabulary
        )
    else:
        embedding = model.get_input_embeddings().weight
        head = BlockHead.fresh(block_config(model.config, num_ids, block_size=4), embedding, output, vocabulary)
    head.save(directory, torch.float16, with_head=False)
    return directory


def settings(kind: str, target: Path, head: Path | str, **tier: Any) -> Any:
    draft = {"name": "head", "drafter": {"kind": kind, "head": str(head)}, "kv_tokens": 1024, "num_threads": 1}
    big = {"name": "target", "model": str(target), "kv_tokens": 1024, "num_threads": 1}
    return load_config({"tiers": [{**draft, **tier}, big]}, {})


@KIND
def test_a_target_with_a_head_inline_drafts_from_its_second_call_on(
    tiny_model: TinyModel, tmp_path: Path, kind: str
) -> None:
    target = tiny_model(seed=0)
    config = settings(kind, target, store(kind, target, tmp_path), inline=True)
    above = config.model_specs()[1]
    num_layers = transformers.AutoConfig.from_pretrained(target).num_hidden_layers
    assert above.feature_layers[-1] == num_layers or kind == "block"
    alone, both = build_verifier(above), build_verifier(above)
    stepping = with_inline(both, above, config.inline_tiers(1), law_support=64)
    assert isinstance(stepping, InlineVerifier)
    ids, drafted = PROMPT, []
    for round in range(1, 5):
        told = Context("s", 0, ids.astype(np.int32), len(PROMPT), len(ids), SamplingParams(), round)
        verdict = stepping.step(told, DraftShape(3)).result(timeout=60)
        plain = alone.verify(told, []).result(timeout=60)
        assert (verdict.error, verdict.draft_error) == (None, None)
        assert verdict.tokens[0] == plain.tokens[0]
        drafted.append(verdict.num_draft)
        ids = np.append(ids, verdict.tokens[:1])
    stepping.shutdown()
    alone.shutdown()
    assert drafted == [0, 3, 3, 3]


@KIND
def test_a_pool_with_a_head_says_whose_it_is(tiny_model: TinyModel, tmp_path: Path, kind: str) -> None:
    target = tiny_model(seed=0)
    config = settings(kind, target, store(kind, target, tmp_path))
    drafter_spec = config.drafter_spec()
    assert drafter_spec == SPECS[kind](64, str(tmp_path))
    drafter = build_drafter(config.model_specs()[0], drafter_spec)
    assert isinstance(drafter, OnePassDrafter)
    told = Context("s", 0, PROMPT, len(PROMPT), len(PROMPT), SamplingParams(), 1)
    lacking = drafter.propose(told, DraftShape(3)).result(timeout=60)
    drafter.shutdown()
    assert (drafter.info().model, drafter.info().tier) == (str(target), 0)
    assert drafter.wants_features
    assert lacking.features_missing == (28 if kind == "medusa" else 0)


@KIND
def test_a_head_that_does_not_fit_is_one_line(tiny_model: TinyModel, tmp_path: Path, kind: str) -> None:
    target = tiny_model(seed=0)
    head = store(kind, target, tmp_path)
    other = transformers.AutoConfig.from_pretrained(target)
    other.num_hidden_layers += 1
    other.save_pretrained(tmp_path / "other")
    spec = ModelSpec(0, str(tmp_path / "other"), kv_tokens=1024)
    with pytest.raises(BadHead, match="does not fit .*other: its number of layers is"):
        build_drafter(spec, SPECS[kind](64, str(head)))
    with pytest.raises(ConfigError, match="nowhere has no config.json"):
        settings(kind, target, "nowhere")
    others = {"medusa": "block", "block": "medusa"}
    with pytest.raises(ConfigError, match=f"holds a head of kind '{kind}', not '{others[kind]}'"):
        settings(others[kind], target, head)
