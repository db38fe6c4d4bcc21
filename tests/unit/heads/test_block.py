"""The block head against attention written out, row by row."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from actors.heads.block import BlockConfig, BlockHead, sees
from actors.heads.layers import Core
from actors.heads.vocab import DraftVocabulary

HIDDEN, VOCAB, LENGTH, SIZE = 16, 30, 12, 4
CORE = Core(num_layers=2, intermediate=24, num_heads=4, num_kv_heads=2, head_dim=6, max_positions=64)
VOCABULARY = DraftVocabulary(np.arange(0, VOCAB, 3), VOCAB)
ANCHORS = torch.tensor([1, 5, 11])


def make(window: int = 0) -> tuple[BlockHead, torch.Tensor, torch.Tensor]:
    """A head with random weights, the target's embedding and its output matrix."""
    torch.manual_seed(1)
    config = BlockConfig(
        HIDDEN, VOCAB, 4, (1, 3), len(VOCABULARY.ids), core=CORE, block_size=SIZE, window=window
    )
    embedding, output = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)
    head = BlockHead.fresh(config, embedding, output, VOCABULARY, scale=0.4)
    return head.requires_grad_(False), embedding, output


def text(batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCAB, (batch, LENGTH), generator=generator)
    return tokens, torch.randn(batch, LENGTH, 2 * HIDDEN, generator=generator)


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """A head's vector [head_dim] at a position."""
    half = len(x) // 2
    angles = position * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()])


def by_hand(head: BlockHead, token: int, features: torch.Tensor, anchor: int, window: int) -> torch.Tensor:
    """Logits of the block's places [SIZE - 1, draft vocabulary]; features [length, 2 * HIDDEN] of one text."""
    eps, dim, group = CORE.epsilon, CORE.head_dim, CORE.num_heads // CORE.num_kv_heads

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean() + eps).sqrt() * weight

    def fused(row: torch.Tensor) -> torch.Tensor:
        alike = torch.cat([norm(part, torch.ones(HIDDEN)) for part in row.split(HIDDEN)])
        return norm(head.fuse.weight @ alike, head.context_norm.weight)

    first = max(0, anchor - window) if window else 0
    context = [(p, fused(features[p])) for p in range(first, anchor)]
    rows = [head.embedding[token], *(head.mask for _ in range(SIZE - 1))]
    for layer in head.layers:
        normed = [norm(x, layer.input_norm.weight) for x in rows]
        keys = [(p, layer.key.weight @ c, layer.value.weight @ c) for p, c in context]
        keys += [(anchor + i, layer.key.weight @ x, layer.value.weight @ x) for i, x in enumerate(normed)]
        after = []
        for i, x in enumerate(rows):
            query = layer.query.weight @ normed[i]
            heads = []
            for h in range(CORE.num_heads):
                own, shared = slice(h * dim, h * dim + dim), slice(h // group * dim, h // group * dim + dim)
                q = turned(query[own], anchor + i)
                scores = torch.stack([q @ turned(k[shared], p) / math.sqrt(dim) for p, k, _ in keys])
                heads.append(scores.softmax(0) @ torch.stack([v[shared] for _, _, v in keys]))
            x = x + layer.out.weight @ torch.cat(heads)
            y = norm(x, layer.mlp_norm.weight)
            after.append(x + layer.down.weight @ (functional.silu(layer.gate.weight @ y) * (layer.up.weight @ y)))
        rows = after
    return torch.stack([head.head.weight @ norm(x, head.norm.weight) for x in rows[1:]])


@pytest.mark.parametrize("window", [0, 3])
def test_blocks_run_side_by_side_are_attention_written_out(window: int) -> None:
    head, _, _ = make(window)
    tokens, features = text()
    logits = head(tokens, features, ANCHORS)
    assert logits.shape == (2, 3, SIZE - 1, len(VOCABULARY.ids))
    for b in range(2):
        for j, anchor in enumerate(ANCHORS.tolist()):
            expected = by_hand(head, int(tokens[b, anchor]), features[b], anchor, window)
            torch.testing.assert_close(logits[b, j], expected, rtol=1e-4, atol=1e-4)


def test_a_block_sees_no_features_from_its_known_token_on() -> None:
    head, _, _ = make()
    tokens, features = text()
    before = head(tokens, features, ANCHORS)[:, 1]
    features[:, 5:] = 100.0
    torch.testing.assert_close(head(tokens, features, ANCHORS)[:, 1], before)
    features[:, 4] = 100.0
    assert not torch.allclose(head(tokens, features, ANCHORS)[:, 1], before)


def test_who_sees_whom() -> None:
    head, _, _ = make(window=2)
    mask = sees(torch.tensor([1, 5]), 6, head.config)
    assert mask[:4, :6].int().tolist() == [[1, 0, 0, 0, 0, 0]] * 4
    assert mask[4:, :6].int().tolist() == [[0, 0, 0, 1, 1, 0]] * 4
    assert mask[:, 6:].int().tolist() == [[1] * 4 + [0] * 4] * 4 + [[0] * 4 + [1] * 4] * 4


@pytest.mark.parametrize("with_head", [True, False], ids=["with head", "with the target's head"])
def test_a_stored_head_is_the_same_head(tmp_path: Path, with_head: bool) -> None:
    head, embedding, output = make(window=3)
    head.save(tmp_path, with_head=with_head)
    again = BlockHead.load(tmp_path, embedding, output)
    assert again.config == head.config
    torch.testing.assert_close(again(*text(), ANCHORS), head(*text(), ANCHORS))


def test_settings_that_make_no_block_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size 1"):
        BlockConfig(HIDDEN, VOCAB, 4, (1,), 5, core=CORE, block_size=1)
    with pytest.raises(ValueError, match="window"):
        BlockConfig(HIDDEN, VOCAB, 4, (1,), 5, core=CORE, block_size=4, window=-1)
