"""Medusa heads by their formula, and their way to a directory and back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from actors.heads.format import BadHead
from actors.heads.medusa import MedusaConfig, MedusaHeads, medusa_config
from actors.heads.vocab import DraftVocabulary

HIDDEN, VOCAB = 16, 30
VOCABULARY = DraftVocabulary(np.arange(0, VOCAB, 3), VOCAB)


def make(num_blocks: int = 2, scale: float = 0.5, seed: int = 0) -> tuple[MedusaHeads, torch.Tensor]:
    """Heads that are no longer untrained, and the target's output matrix."""
    torch.manual_seed(seed)
    output = torch.randn(VOCAB, HIDDEN)
    config = MedusaConfig(
        HIDDEN, VOCAB, 4, (4,), len(VOCABULARY.ids), "tiny", num_heads=3, num_blocks=num_blocks
    )
    heads = MedusaHeads.fresh(config, torch.rand(HIDDEN) + 0.5, output, VOCABULARY)
    for parameter in heads.heads.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return heads.requires_grad_(False), output


def test_an_untrained_head_says_what_the_target_said() -> None:
    heads, output = make(scale=0.0)
    features = torch.randn(5, HIDDEN)
    normed = functional.rms_norm(features, (HIDDEN,), heads.norm.weight, heads.config.epsilon)
    expected = (normed @ output.T)[:, VOCABULARY.ids.astype(np.int64)]
    for k in range(3):
        torch.testing.assert_close(heads(features)[:, k], expected)


def test_a_head_is_residual_blocks_on_the_normed_state() -> None:
    heads, output = make()
    features = torch.randn(HIDDEN).half()
    x = features.float() / (features.float().pow(2).mean() + heads.config.epsilon).sqrt() * heads.norm.weight
    for block in heads.heads[1]:
        y = block.linear.weight @ x + block.linear.bias
        x = x + y * torch.sigmoid(y)
    expected = output[VOCABULARY.ids.astype(np.int64)] @ x
    torch.testing.assert_close(heads(features)[1], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(heads(features, [1])[0], heads(features)[1])


@pytest.mark.parametrize("with_head", [True, False], ids=["with head", "with the target's head"])
def test_stored_heads_are_the_same_heads(tmp_path: Path, with_head: bool) -> None:
    heads, output = make()
    heads.save(tmp_path, with_head=with_head)
    again = MedusaHeads.load(tmp_path, output)
    features = torch.randn(2, HIDDEN)
    assert again.config == heads.config
    assert again.vocabulary.ids.tolist() == VOCABULARY.ids.tolist()
    torch.testing.assert_close(again(features), heads(features))


def test_settings_that_make_no_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="last layer"):
        MedusaConfig(HIDDEN, VOCAB, 4, (3,), 5, num_heads=3)
    with pytest.raises(ValueError, match="at least 1"):
        MedusaConfig(HIDDEN, VOCAB, 4, (4,), 5, num_heads=0)
    with pytest.raises(BadHead):
        MedusaHeads.load(tmp_path, torch.zeros(VOCAB, HIDDEN))


def test_a_config_for_a_target_reads_its_last_layer() -> None:
    target = SimpleNamespace(
        hidden_size=HIDDEN, vocab_size=VOCAB, num_hidden_layers=7, rms_norm_eps=1e-6
    )
    target.get_text_config = lambda: target
    config = medusa_config(target, 20, num_heads=5)
    assert config.feature_layers == (7,)
    assert (config.num_heads, config.draft_vocab_size, config.epsilon) == (5, 20, 1e-6)
