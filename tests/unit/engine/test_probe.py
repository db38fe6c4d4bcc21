"""What a model's attention asks for is seen before it serves, and what no path reproduces is refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as tf

from actors.engine.make import make_runner
from actors.engine.probe import Geometry, UnsupportedAttention, probe
from tests.models import ARCHITECTURES, VOCAB, tiny_model, tiny_spec

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip


@pytest.mark.parametrize("kernels", ["native", "portable"])
@pytest.mark.parametrize(("family", "why"), [("gemma2", "soft-capping"), ("gpt_oss", "sinks")])
def test_attention_that_the_engine_lacks_is_refused_in_one_line(family: str, why: str, kernels: str) -> None:
    model = tf.AutoModelForCausalLM.from_config(tf.AutoConfig.for_model(family, **SMALL)).eval()
    with pytest.raises(UnsupportedAttention, match=rf"^tiny: attention {why} .* use a model without") as refusal:
        make_runner(model, tiny_spec(kernels=kernels))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_layer_is_seen_as_it_is(architecture: str) -> None:
    seen = probe(tiny_model(architecture), "tiny", "cpu")
    kv_heads = 4 if architecture in ("gpt2", "neox") else 2
    assert seen.layers == [Geometry(4, kv_heads, 16)] * 3
    assert seen.num_logits == VOCAB
