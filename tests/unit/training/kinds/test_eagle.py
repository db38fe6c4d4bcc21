"""Training of an eagle head: what it is trained on is what it meets when it drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from actors.heads.eagle import EagleHead
from actors.training.kinds.eagle import Eagle, EagleTrainee
from actors.training.target import Target
from tests.unit.training.kinds.texts import agreement, batch_of, round_trip, sampled, train

KIND = Eagle(layers=(1, 2), steps=3)
HALF = torch.arange(0, 260, 2)


def test_trained_beats_untrained_at_every_step(target: Target) -> None:
    torch.manual_seed(0)
    trainee = KIND.build(target, None)
    held = batch_of(target, sampled(target, 32, seed=99), KIND)
    before = agreement(trainee, held, target, 3)
    batches = [batch_of(target, sampled(target, 32, seed), KIND) for seed in range(8)]
    losses = train(trainee, lambda step: batches[step % len(batches)], 80)
    after = agreement(trainee, held, target, 3)
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert all(new > old for new, old in zip(after, before, strict=True)), (before, after)


def test_training_meets_exactly_the_states_of_drafting(target: Target) -> None:
    torch.manual_seed(1)
    trainee = KIND.build(target, HALF)
    assert isinstance(trainee, EagleTrainee)
    head = trainee.head
    for layer in head.layers:  # untrained layers add nothing, which would hide what they attend to
        torch.nn.init.normal_(layer.out.weight, std=0.3)
        torch.nn.init.normal_(layer.down.weight, std=0.3)
    ids = sampled(target, 1, seed=3, length=14)
    batch = batch_of(target, ids, KIND)
    rolled = list(trainee.roll(batch, 4))
    for last in (3, 7, 9):
        for step, logits in enumerate(_drafted(head, ids[0], batch.features[0], last, 4)):
            torch.testing.assert_close(rolled[step][0, last + step], logits, atol=1e-4, rtol=1e-4)


def _drafted(head: EagleHead, ids: torch.Tensor, features: torch.Tensor, last: int, steps: int) -> list[torch.Tensor]:
    """Logits of each step of a draft after token `last`, whose own features the target has not computed yet.

    Row by row, each over the keys of the rows before it, as an engine does.
    """
    states = functional.pad(head.fused(features[:last]), (0, 0, 1, 0))
    held: list[list[torch.Tensor]] = [[] for _ in range(2 * len(head.layers))]
    laws: list[torch.Tensor] = []
    state = states[0]
    for place in range(last + steps):
        x = head.joined(ids[place], states[place] if place <= last else state)[None, None]
        for index, layer in enumerate(head.layers):
            queries, *new = layer.qkv(x, head._rotary, torch.tensor([place]))
            for kept, one in zip(held[2 * index : 2 * index + 2], new, strict=True):
                kept.append(one)
            keys, values = (torch.cat(kept, 2) for kept in held[2 * index : 2 * index + 2])
            x = layer.finish(x, functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True))
        state = x[0, 0]
        if place >= last:
            laws.append(head.logits(state))
    return laws


def test_an_exported_head_says_the_same(target: Target, tmp_path: Path) -> None:
    torch.manual_seed(2)
    trainee = KIND.build(target, HALF)
    batch = batch_of(target, sampled(target, 4), KIND)
    train(trainee, lambda _: batch, 3)
    head = EagleHead.load(round_trip(KIND, trainee, target, tmp_path), target.embedding, target.head)
    assert head.vocabulary.ids.tolist() == HALF.tolist()
    steps = head(batch.ids, batch.features, 2)
    for step, logits in enumerate(trainee.roll(batch, 2)):  # weights are stored as float16
        torch.testing.assert_close(head.logits(steps[step]), logits[:, step:], atol=2e-2, rtol=2e-2)


def test_the_output_matrix_is_stored_only_if_it_was_trained(target: Target, tmp_path: Path) -> None:
    batch = batch_of(target, sampled(target, 4), KIND)
    for trains in (False, True):
        kind = Eagle(layers=(1, 2), train_output=trains)
        trainee = kind.build(target, HALF)
        assert isinstance(trainee, EagleTrainee)
        before = trainee.head.head.weight.clone()
        train(trainee, lambda _: batch, 2)
        assert torch.equal(before, trainee.head.head.weight) is not trains
        directory = round_trip(kind, trainee, target, tmp_path / f"{trains}")
        head = EagleHead.load(directory, target.embedding, target.head)
        torch.testing.assert_close(head.head.weight, trainee.head.head.weight, atol=1e-3, rtol=1e-3)


def test_padding_changes_nothing(target: Target) -> None:
    torch.manual_seed(3)
    trainee = KIND.build(target, None)
    ids = sampled(target, 2)
    whole = trainee(batch_of(target, ids[:, :30], KIND)).loss
    padded = trainee(batch_of(target, ids, KIND, [30, 30])).loss
    torch.testing.assert_close(padded, whole)


@pytest.mark.parametrize("wrong", [Eagle(loss="nonsense"), Eagle(steps=0), Eagle(layers=(1, 9))])
def test_options_that_cannot_be_are_refused_in_one_line(target: Target, wrong: Eagle) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong.build(target, None)
