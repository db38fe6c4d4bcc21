"""An `eagle` head put together from directories and settings, and what is said where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.build import build_drafter, build_verifier, with_inline
from actors.drafter_specs import EagleSpec
from actors.heads.eagle import EagleHead, eagle_config
from actors.heads.format import BadHead
from actors.heads.vocab import DraftVocabulary
from actors.inline import InlineVerifier
from actors.loading.ends import load_ends
from actors.messages import Context, DraftShape, Features
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from cluster.config import Config, ConfigError, load_config
from tests.conftest import TinyModel

PROMPT = (np.arange(30, dtype=np.int32) * 37 + 11) % 250 + 4


def store_head(target: Path, directory: Path, num_ids: int = 64) -> Path:
    """An untrained head for a checkpoint."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(target)
    config = eagle_config(model.config, num_ids, name=str(target))
    torch.manual_seed(0)
    vocabulary = DraftVocabulary(np.arange(num_ids) * 3, config.vocab_size)
    head = EagleHead.fresh(
        config, model.get_input_embeddings().weight, model.get_output_embeddings().weight, vocabulary
    )
    head.save(directory)
    return directory


def settings(target: Path, head: Path, **tier: Any) -> Config:
    draft = {"name": "head", "drafter": {"kind": "eagle", "head": str(head)}, "kv_tokens": 1024, "num_threads": 1}
    big = {"name": "target", "model": str(target), "kv_tokens": 1024, "num_threads": 1}
    return load_config({"tiers": [{**draft, **tier}, big]}, {})


def context(tokens: np.ndarray, round: int) -> Context:
    return Context("s", 0, tokens.astype(np.int32), len(PROMPT), len(tokens), SamplingParams(), round)


def test_a_target_with_a_head_inline_drafts_from_its_second_call_on(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = tiny_model(seed=0)
    config = settings(target, store_head(target, tmp_path), inline=True)
    above = config.model_specs()[1]
    assert above.feature_layers == (1, 2)
    alone, both = build_verifier(above), build_verifier(above)
    stepping = with_inline(both, above, config.inline_tiers(1), law_support=64)
    assert isinstance(stepping, InlineVerifier)
    ids, drafted = PROMPT, []
    for round in range(1, 5):
        verdict = stepping.step(context(ids, round), DraftShape(3)).result(timeout=60)
        plain = alone.verify(context(ids, round), []).result(timeout=60)
        assert (verdict.error, verdict.draft_error) == (None, None)
        assert verdict.tokens[0] == plain.tokens[0]
        drafted.append(verdict.num_draft)
        ids = np.append(ids, verdict.tokens[:1])
    stepping.shutdown()
    alone.shutdown()
    assert drafted == [0, 3, 3, 3]


def test_a_pool_with_a_head_says_whose_it_is(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = tiny_model(seed=0)
    config = settings(target, store_head(target, tmp_path))
    spec, kind = config.model_specs()[0], config.drafter_spec()
    assert kind == EagleSpec(64, str(tmp_path))
    drafter = build_drafter(spec, kind)
    told = context(PROMPT, 1)
    lacking = drafter.propose(told, DraftShape(3)).result(timeout=60)
    rows = np.zeros((len(PROMPT) - 1, 2 * load_ends(spec).embedding.shape[1]), np.float16)
    told = replace(told, round=2, features=Features(0, rows))
    draft = drafter.propose(told, DraftShape(3)).result(timeout=60)
    info = drafter.info()  # type: ignore[attr-defined]
    drafter.shutdown()
    assert (info.model, info.tier) == (str(target), 0)
    assert (lacking.features_missing, len(lacking.tokens)) == (0, 0)
    assert len(draft.tokens) == 3
    assert set((draft.tokens % 3).tolist()) == {0}


def test_a_head_of_another_target_is_one_line(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = tiny_model(seed=0)
    head = store_head(target, tmp_path)
    other = transformers.AutoConfig.from_pretrained(target)
    other.num_hidden_layers += 1
    other.save_pretrained(tmp_path / "other")
    spec = ModelSpec(0, str(tmp_path / "other"), kv_tokens=1024)
    with pytest.raises(BadHead, match="does not fit .*other: its number of layers is") as caught:
        build_drafter(spec, EagleSpec(64, str(head)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        ({"drafter": {"kind": "eagle"}}, "tiers.0.drafter.head"),
        ({"drafter": {"kind": "eagle", "head": "nowhere"}}, "tiers.0.drafter: nowhere has no config.json"),
        ({"drafter": {"kind": "medusa", "head": "HEAD"}}, "holds a head of kind 'eagle', not 'medusa'"),
        ({"model": "builtin:smollm2"}, "needs no model; remove `model`"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    tiny_model: TinyModel, tmp_path: Path, tier: dict[str, Any], says: str
) -> None:
    target = tiny_model(seed=0)
    head = store_head(target, tmp_path)
    if tier.get("drafter", {}).get("head") == "HEAD":
        tier = {"drafter": {"kind": "medusa", "head": str(head)}}
    with pytest.raises(ConfigError) as caught:
        settings(target, head, **tier)
    assert says in str(caught.value)


def test_an_emulated_tier_has_no_features_for_a_head(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = tiny_model(seed=0)
    head = store_head(target, tmp_path)
    tiers = [
        {"name": "head", "drafter": {"kind": "eagle", "head": str(head)}},
        {"name": "target", "model": str(target), "emulation": {"pass_s": 0.01}},
    ]
    with pytest.raises(ConfigError, match="drafts from the features of 'target', and an emulated device has none"):
        load_config({"tiers": tiers}, {})


def test_a_head_of_a_middle_tier_is_inline_there(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = tiny_model(seed=0)
    tiers: list[dict[str, Any]] = [
        {"name": "head", "drafter": {"kind": "eagle", "head": str(store_head(target, tmp_path))}},
        {"name": "middle", "model": str(target)}, {"name": "target", "model": str(target)},
    ]
    with pytest.raises(ConfigError, match="eagle drafts from those of 'middle'; set inline: true"):
        load_config({"tiers": tiers}, {})
    tiers[0]["inline"] = True
    specs = load_config({"tiers": tiers}, {}).model_specs()
    assert [spec.feature_layers for spec in specs] == [(), (1, 2), ()]


@pytest.mark.parametrize("tied", [True, False])
def test_the_ends_of_a_checkpoint_are_read_without_the_rest(tmp_path: Path, tied: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    ends = load_ends(ModelSpec(0, str(tmp_path)))
    assert torch.equal(ends.embedding, model.model.embed_tokens.weight)
    assert torch.equal(ends.output, model.lm_head.weight)
