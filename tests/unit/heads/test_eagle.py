"""The module: its layers are Llama's, and its own-hidden recursion is what drafting token by token does."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn import functional

from actors.heads.eagle import EagleHead, low_middle_high
from tests.models import VOCAB
from tests.unit.heads.fresh import fresh_head

LENGTH, STEPS = 14, 4


def _text(head: EagleHead, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randint(0, VOCAB, (batch, LENGTH)), torch.randn(batch, LENGTH, head.config.feature_size)


def _drafted(head: EagleHead, tokens: torch.Tensor, features: torch.Tensor, known: int) -> list[torch.Tensor]:
    """Own hidden states of one text, token by token, with features of positions before `known` only."""
    states = torch.cat([torch.zeros(1, head.config.hidden), head.fused(features[:known])])
    hidden = []
    for step in range(min(STEPS, LENGTH - known)):
        x = head.joined(tokens[: known + 1 + step], states)[None]
        for layer in head.layers:
            q, k, v = layer.qkv(x, head._rotary, torch.arange(x.shape[1]))
            x = layer.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        hidden.append(x[0, -1])
        states = torch.cat([states, hidden[-1][None]])
    return hidden


@pytest.mark.parametrize("num_layers", [1, 2])
def test_recursion_over_whole_texts_is_drafting_token_by_token(num_layers: int) -> None:
    head = fresh_head(num_layers=num_layers)
    tokens, features = _text(head)
    steps = head(tokens, features, STEPS)
    assert [tuple(x.shape) for x in steps] == [(2, LENGTH - s, 64) for s in range(STEPS)]
    for text in range(2):
        for known in range(LENGTH):
            for step, hidden in enumerate(_drafted(head, tokens[text], features[text], known)):
                torch.testing.assert_close(steps[step][text, known], hidden, rtol=1e-3, atol=1e-4)


def test_layers_are_those_of_llama() -> None:
    head = fresh_head(num_layers=2)
    tokens, features = _text(head)
    core = head.config.core
    llama = transformers.LlamaModel(transformers.LlamaConfig(
        vocab_size=8, hidden_size=64, intermediate_size=core.intermediate, num_hidden_layers=2,
        num_attention_heads=core.num_heads, num_key_value_heads=core.num_kv_heads, head_dim=core.head_dim,
        rms_norm_eps=core.epsilon, rope_parameters={"rope_type": "default", "rope_theta": core.rope_theta},
    )).requires_grad_(False)
    names = {
        "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "out": "self_attn.o_proj",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "input_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }
    for own, theirs in zip(head.layers, llama.layers, strict=True):
        for name, their in names.items():
            theirs.get_submodule(their).weight.copy_(own.get_submodule(name).weight)
    llama.norm = torch.nn.Identity()
    states = functional.pad(head.fused(features[:, :-1]), (0, 0, 1, 0))
    want = llama(inputs_embeds=head.joined(tokens, states)).last_hidden_state
    torch.testing.assert_close(head(tokens, features)[0], want, rtol=1e-3, atol=1e-4)


def test_a_row_sees_neither_later_tokens_nor_features_that_are_not_known_yet() -> None:
    head = fresh_head()
    tokens, features = _text(head, 1)
    steps = head(tokens, features, STEPS)
    known = 6  # features of positions before it, tokens up to it: its row guesses the next one
    others, noise = tokens.clone(), features.clone()
    others[:, known + 1 :] = 5
    noise[:, known:] = 9.0
    assert torch.equal(head(others, noise)[0][:, : known + 1], steps[0][:, : known + 1])
    third = head(tokens, noise, STEPS)[3]
    torch.testing.assert_close(third[:, known], steps[3][:, known], rtol=1e-4, atol=1e-5)


def test_everything_of_its_own_gets_a_gradient() -> None:
    head = fresh_head().requires_grad_(True)
    tokens, features = _text(head)
    loss = sum(functional.cross_entropy(head.logits(x).flatten(0, 1), torch.zeros(x.shape[0] * x.shape[1]).long())
               for x in head(tokens, features, 3))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    assert [name for name, parameter in head.named_parameters() if parameter.grad is None] == []
    assert "embedding" not in dict(head.named_parameters())


@pytest.mark.parametrize(("num_layers", "wanted"), [(1, (1,)), (3, (1, 2)), (30, (2, 15, 27)), (80, (2, 40, 77))])
def test_low_middle_and_high_layers(num_layers: int, wanted: tuple[int, ...]) -> None:
    assert low_middle_high(num_layers) == wanted
