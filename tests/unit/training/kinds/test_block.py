"""Training of a block head: blocks side by side are what each would be alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.heads.block import BlockHead
from actors.training.kinds.block import Block, BlockTrainee
from actors.training.target import Target
from tests.unit.training.kinds.texts import agreement, batch_of, round_trip, sampled, train

KIND = Block(layers=(1, 2), block_size=4, blocks=12)
HALF = torch.arange(0, 260, 2)


def test_a_trained_head_beats_an_untrained_one(target: Target) -> None:
    torch.manual_seed(0)
    trainee = KIND.build(target, HALF)
    held = batch_of(target, sampled(target, 32, seed=99), KIND)
    before = agreement(trainee, held, target, 3)
    batches = [batch_of(target, sampled(target, 32, seed), KIND) for seed in range(8)]
    losses = train(trainee, lambda step: batches[step % 8], 80)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
    assert sum(agreement(trainee, held, target, 3)) > sum(before)


@pytest.mark.parametrize("window", [0, 5])
def test_a_block_drafts_the_same_alone(target: Target, window: int) -> None:
    torch.manual_seed(1)
    kind = Block(layers=(1, 2), block_size=4, window=window)
    trainee = kind.build(target, HALF)
    assert isinstance(trainee, BlockTrainee)
    batch = batch_of(target, sampled(target, 2, length=20), kind)
    rolled = list(trainee.roll(batch, 9))
    assert len(rolled) == kind.block_size - 1
    for anchor in (1, 7, 12):
        seen = anchor + 1  # the newest token has no features yet
        features = batch.features[:, :seen].clone()
        features[:, anchor:] = 0
        alone = trainee.head(batch.ids[:, :seen], features, torch.tensor([anchor]))[:, 0]
        for step in range(3):
            torch.testing.assert_close(rolled[step][:, anchor + step], alone[:, step], atol=1e-4, rtol=1e-4)


def test_an_exported_head_says_the_same(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(2)
    trainee = KIND.build(target, HALF)
    batch = batch_of(target, sampled(target, 4), KIND)
    train(trainee, lambda _: batch, 3)
    assert isinstance(trainee, BlockTrainee)
    loaded = BlockHead.load(round_trip(KIND, trainee, target, tmp_path), target.embedding, target.head)
    anchors = torch.tensor([3, 9])
    said = (head(batch.ids, batch.features, anchors) for head in (loaded, trainee.head))
    torch.testing.assert_close(*said, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("wrong", [Block(loss="x"), Block(blocks=0), Block(block_size=1)])
def test_options_that_cannot_be_are_refused_in_one_line(target: Target, wrong: Block) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong.build(target, None)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_texts_too_short_for_any_block_teach_nothing(target: Target, length: int) -> None:
    trainee = KIND.build(target, HALF)
    batch = batch_of(target, sampled(target, 3, length=max(length, 2))[:, :length], KIND)
    batch.weight[:, 1:] = 0.0
    loss = trainee(batch).loss
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert len(list(trainee.roll(batch, 3))) == (0 if length < 2 else 3)
