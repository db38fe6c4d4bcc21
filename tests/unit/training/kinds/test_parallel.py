"""Mask-token training: rows side by side are what each pass would be alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.build import build_runner
from actors.engine.packing import Part, pack
from actors.heads.directory import BadHead
from actors.heads.parallel import read_mask_tokens
from actors.spec import ModelSpec
from actors.training.kinds.draft import Draft
from actors.training.kinds.parallel import Parallel, lay_out, visible
from actors.training.target import Target
from tests.unit.training.kinds.texts import agreement, batch_of, round_trip, sampled, train

HALF = torch.arange(0, 260, 2)


def test_a_trained_model_beats_an_untrained_one_at_every_depth(target: Target) -> None:
    torch.manual_seed(0)
    kind = Parallel(layers=(1,), lookahead=3, keep=0.8)
    trainee = kind.build(target, HALF)
    held = batch_of(target, sampled(target, 32, seed=99), kind)
    before = agreement(trainee, held, target, 3)
    batches = [batch_of(target, sampled(target, 16, seed), kind) for seed in range(6)]
    losses = train(trainee, lambda step: batches[step % 6], 80, lr=5e-3)
    after = agreement(trainee, held, target, 3)
    assert sum(losses[-6:]) < 0.9 * sum(losses[:6])
    assert after[0] > before[0] and sum(after) > sum(before) + 0.05, (before, after)


def test_a_mask_sees_the_text_up_to_its_place_and_the_masks_before_it() -> None:
    rows = lay_out(6, 3, 1.0, torch.device("cpu"))
    sees = visible(rows)
    named = list(zip(rows.anchor.tolist(), rows.depth.tolist(), strict=True))
    assert (2, 2) in named and (3, 1) in named and (3, 2) not in named and (4, 1) not in named  # there is no token 6
    for row, (anchor, depth) in enumerate(named):
        seen = {named[i] for i in range(len(named)) if sees[row, i]}
        assert seen == {(i, 0) for i in range(anchor + 1)} | {(anchor, d) for d in range(1, depth + 1)}


def test_dropped_places_keep_all_masks_before_them() -> None:
    torch.manual_seed(1)
    rows = lay_out(400, 5, 0.5, torch.device("cpu"))
    held = [set(rows.anchor[rows.depth == depth].tolist()) for depth in range(5)]
    for depth in range(1, 5):
        assert held[depth] <= held[depth - 1]
        assert abs(len(held[depth]) / len(held[depth - 1]) - 0.5) < 0.2


@pytest.mark.parametrize("masks", [0, 1])
def test_one_pass_of_the_engine_says_the_same(target: Target, tmp_path: Path, masks: int) -> None:
    torch.manual_seed(2)
    kind = Parallel(layers=(1, 2), lookahead=3, masks=masks)
    trainee = kind.build(target, HALF)
    batch = batch_of(target, sampled(target, 2, length=20), kind)
    train(trainee, lambda _: batch, 3)
    directory = round_trip(kind, trainee, target, tmp_path)
    tokens = read_mask_tokens(directory)
    assert (tokens.vocab_size, tokens.num_masks, tokens.lookahead) == (260, masks or 2, 3)
    assert tokens.ids(4).tolist() == ([260, 261, 261, 261] if masks == 0 else [260] * 4)
    runner = build_runner(ModelSpec(tier=0, model=str(directory), kv_tokens=1024, page_tokens=16))
    with torch.no_grad():
        rolled = list(trainee.roll(batch, 4))
    for last in (3, 11):
        ids = np.concatenate([batch.ids[0, : last + 1].numpy(), tokens.ids(3)]).astype(np.int32)
        served = runner.forward(pack([Part(ids, 0, np.arange(4, dtype=np.int32), 4)], 16))
        for depth in range(4):
            torch.testing.assert_close(served[depth, HALF], rolled[depth][0, last + depth], atol=3e-2, rtol=3e-2)


def test_a_draft_without_masks_cannot_draft_in_one_pass(target: Target, tmp_path: Path) -> None:
    kind = Draft(layers=(1,))
    with pytest.raises(BadHead, match="draft"):
        read_mask_tokens(round_trip(kind, kind.build(target, None), target, tmp_path))


@pytest.mark.parametrize(
    "wrong", [Parallel(lookahead=1), Parallel(keep=0.0), Parallel(loss="x"), Parallel(layers=(9,))]
)
def test_options_that_cannot_be_are_refused_in_one_line(target: Target, wrong: Parallel) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong.build(target, None)
