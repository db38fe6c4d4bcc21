"""From settings to a translating drafter, in a pool and inline; without them, a refusal that names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf

from actors.build import build_below, build_drafter, build_verifier, check_same_ids
from actors.drafter_specs import DraftModelSpec
from actors.drafters.model import ModelDrafter
from actors.drafters.translate.base import TranslatingDrafter
from actors.loading.tokenizer import fingerprint, load_tokenizer
from actors.messages import Context, DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import InlineTier, ModelSpec
from tests.unit.drafters.translate.conftest import spelling, tokenizer


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model with each of two tokenizers."""
    found: dict[str, Path] = {}
    for kind in ("merged", "spaced"):
        found[kind] = tmp_path_factory.mktemp(kind)
        config = tf.LlamaConfig(
            vocab_size=len(tokenizer(kind)), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
        )
        torch.manual_seed(0)
        tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(found[kind])
        tokenizer(kind).save_pretrained(found[kind])
    return found


def spec(stored: dict[str, Path], kind: str, tier: int) -> ModelSpec:
    return ModelSpec(tier, str(stored[kind]), kv_tokens=2048, max_context_tokens=128)


@pytest.mark.parametrize("way", ["intersection", "text"])
def test_a_pools_drafter_speaks_the_ids_of_the_tier_above(stored: dict[str, Path], way: str) -> None:
    target = str(stored["merged"])
    drafter = build_drafter(spec(stored, "spaced", 0), DraftModelSpec(tokenizers=way, target=target))
    assert isinstance(drafter, TranslatingDrafter)
    info = drafter.info()
    assert info.tokenizer_fingerprint == fingerprint(load_tokenizer(target))
    assert info.vocab_size == spelling("merged").size and info.eos_ids == (spelling("merged").eos_id,)
    ids = np.array(spelling("merged").encode("the Licensor grants").ids, np.int32)
    draft = drafter.propose(Context("s", 0, ids, len(ids), len(ids), SamplingParams(), 0), DraftShape(4)).result(60)
    assert draft.error is None and not draft.prefix_missing and (draft.tokens < info.vocab_size).all()
    drafter.close("s")
    drafter.shutdown()


def test_where_the_tokenizers_are_the_same_nothing_is_translated(stored: dict[str, Path]) -> None:
    settings = DraftModelSpec(tokenizers="text", target=str(stored["merged"]))
    drafter = build_drafter(spec(stored, "merged", 0), settings)
    assert isinstance(drafter, ModelDrafter)
    drafter.shutdown()


def test_inline_too_and_never_by_accident(stored: dict[str, Path]) -> None:
    below, above = spec(stored, "spaced", 0), spec(stored, "merged", 1)
    with pytest.raises(ValueError, match=r"set drafter\.tokenizers to intersection or text$"):
        check_same_ids(below, above)
    host = build_verifier(above)
    with pytest.raises(ValueError, match="different tokenizers"):
        build_below(above, [InlineTier(below, 4, DraftModelSpec())], 64, host)
    settings = DraftModelSpec(tokenizers="intersection", target=above.model)
    drafter = build_below(above, [InlineTier(below, 4, settings)], 64, host)
    assert isinstance(drafter, TranslatingDrafter)
    drafter.shutdown()
    host.shutdown()
