"""Training of medusa heads: stage 1 beats untrained ones, stage 2 begins where stage 1 ended, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.heads.medusa import MedusaHeads
from actors.training.kinds.medusa import Medusa, MedusaTrainee
from actors.training.target import Target
from tests.unit.training.kinds.texts import agreement, batch_of, round_trip, sampled, train

KIND = Medusa(heads=3)
HALF = torch.arange(0, 260, 2)


def test_each_stage_beats_the_one_before(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = KIND.build(target, HALF)
    batches = [batch_of(target, sampled(target, 32, seed), KIND) for seed in range(8)]
    losses = train(first, lambda step: batches[step % 8], 60, lr=3e-3)
    assert sum(losses[-8:]) < 0.95 * sum(losses[:8])
    kind = Medusa(stage=2, start=str(round_trip(KIND, first, target, tmp_path)))
    second = kind.build(target, HALF)
    again = train(second, lambda step: batches[step % 8], 60, lr=3e-3)
    assert sum(again[-8:]) < 0.95 * sum(losses[-8:])


def test_trained_heads_agree_more_often(target: Target) -> None:
    torch.manual_seed(1)
    trainee = KIND.build(target, None)
    held = batch_of(target, sampled(target, 64, seed=99), KIND)
    before = agreement(trainee, held, target, 3)
    batches = [batch_of(target, sampled(target, 32, seed), KIND) for seed in range(8)]
    train(trainee, lambda step: batches[step % 8], 60, lr=3e-3)
    assert sum(agreement(trainee, held, target, 3)) > sum(before)


def test_stage_two_begins_as_stage_one_ended(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(2)
    first = KIND.build(target, HALF)
    batch = batch_of(target, sampled(target, 4), KIND)
    train(first, lambda _: batch, 5)
    start = round_trip(KIND, first, target, tmp_path)
    second = Medusa(stage=2, start=str(start)).build(target, HALF)
    assert isinstance(second, MedusaTrainee)
    stored = MedusaHeads.load(start, target.head)
    assert second.head.config.num_blocks == stored.config.num_blocks + 1
    torch.testing.assert_close(second.head(batch.features), stored(batch.features))


def test_a_head_drafts_from_where_the_target_was_last_seen(target: Target) -> None:
    trainee = KIND.build(target, None)
    assert isinstance(trainee, MedusaTrainee)
    batch = batch_of(target, sampled(target, 2), KIND)
    train(trainee, lambda _: batch, 3)
    logits = trainee.head(batch.features)
    for step, rolled in enumerate(trainee.roll(batch, 8)):
        # The law of token t + 1, by the features of position t - step - 1.
        torch.testing.assert_close(rolled[:, 10], logits[:, 10 - step - 1, step])
    assert step == KIND.heads - 1


def test_an_exported_stage_keeps_what_it_trained(target: Target, tmp_path: Path) -> None:
    batch = batch_of(target, sampled(target, 4), KIND)
    first = KIND.build(target, HALF)
    assert isinstance(first, MedusaTrainee)
    output = first.head.head.weight.clone()
    train(first, lambda _: batch, 2)
    assert torch.equal(output, first.head.head.weight)
    start = round_trip(KIND, first, target, tmp_path / "1")
    second = Medusa(stage=2, start=str(start))
    trainee = second.build(target, HALF)
    assert isinstance(trainee, MedusaTrainee)
    train(trainee, lambda _: batch, 2)
    loaded = MedusaHeads.load(round_trip(second, trainee, target, tmp_path / "2"), target.head)
    torch.testing.assert_close(loaded(batch.features), trainee.head(batch.features), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("wrong", [Medusa(stage=2), Medusa(stage=3), Medusa(start="somewhere"), Medusa(loss="x")])
def test_options_that_cannot_be_are_refused_in_one_line(target: Target, wrong: Medusa) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong.build(target, None)


def test_stage_two_keeps_to_the_vocabulary_of_stage_one(target: Target, tmp_path: Path) -> None:
    start = round_trip(KIND, KIND.build(target, HALF), target, tmp_path)
    with pytest.raises(ValueError, match="another part of the vocabulary"):
        Medusa(stage=2, start=str(start)).build(target, torch.arange(1, 260, 2))
