"""Training of an exit: beside a target that stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.heads.exit import ExitHead
from actors.training.kinds.early_exit import EarlyExit, EarlyExitTrainee
from actors.training.target import Target
from tests.unit.training.kinds.texts import agreement, batch_of, round_trip, sampled, train

KIND = EarlyExit(exit_layer=1)
HALF = torch.arange(0, 260, 2)


def test_a_trained_exit_beats_the_targets_own_head(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before_target = {name: p.clone() for name, p in target.model.named_parameters()}
    trainee = KIND.build(target, HALF)
    held = batch_of(target, sampled(target, 32, seed=99), KIND)
    before = agreement(trainee, held, target, 2)
    batches = [batch_of(target, sampled(target, 32, seed), KIND) for seed in range(8)]
    losses = train(trainee, lambda step: batches[step % 8], 60, lr=3e-3)
    after = agreement(trainee, held, target, 2)
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert after[0] > before[0]
    assert after == agreement(trainee, held, target, 2)
    assert all(torch.equal(p, before_target[name]) for name, p in target.model.named_parameters())
    loaded = ExitHead.load(round_trip(KIND, trainee, target, tmp_path), target.head)
    assert isinstance(trainee, EarlyExitTrainee)
    assert loaded.config.exit_layer == 1
    torch.testing.assert_close(loaded(held.features), trainee.head(held.features), atol=2e-2, rtol=2e-2)


def test_an_exit_after_the_last_layer_is_refused(target: Target) -> None:
    with pytest.raises(ValueError, match="before the last"):
        EarlyExit(exit_layer=2).build(target, None)
