"""Distilled draft models: better than untrained by every loss, and served as they were trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.build import build_drafter, build_runner
from actors.drafter_specs import DraftModelSpec
from actors.engine.packing import Part, pack
from actors.heads.vocab import LEAST_LOGIT
from actors.loading.checkpoint import load_model
from actors.loading.errors import ModelNotFound
from actors.messages import Context, DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from actors.training.kind import Trainee
from actors.training.kinds.draft import Draft
from actors.training.losses import LOSSES
from actors.training.target import Target
from tests.unit.training.kinds.texts import batch_of, round_trip, sampled, train

HALF = torch.arange(0, 260, 2)


def _acceptance(trainee: Trainee, target: Target) -> tuple[float, float]:
    with torch.no_grad():
        metrics = trainee(batch_of(target, sampled(target, 32, seed=99), Draft())).metrics
    return float(metrics["accept_1"]), float(metrics["agree_1"])


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_beats_the_untrained(target: Target, loss: str) -> None:
    torch.manual_seed(0)
    trainee = Draft(layers=(1,), loss=loss).build(target, HALF)
    before = _acceptance(trainee, target)
    batches = [batch_of(target, sampled(target, 16, seed), Draft()) for seed in range(5)]
    losses = train(trainee, lambda step: batches[step % 5], 40, lr=5e-3)
    assert sum(losses[-5:]) < sum(losses[:5])
    after = _acceptance(trainee, target)
    assert after[0] > before[0] or after[1] > before[1], (before, after)
    if loss not in ("rkl", "topk"):  # these look for one mode, or for a few tokens, and may leave the rest
        assert after[0] > before[0] + 0.02, (before, after)


def test_all_layers_and_all_ids_are_the_target_itself(target: Target) -> None:
    trainee = Draft(layers=(1, 2)).build(target, None)
    assert _acceptance(trainee, target) == pytest.approx((1.0, 1.0), abs=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "neox", "gemma3"])
@pytest.mark.parametrize("train_output", [False, True])
def test_what_is_served_is_what_was_trained(
    tiny_model: object, architecture: str, train_output: bool, tmp_path: Path
) -> None:
    target = Target.load(str(tiny_model(architecture)))  # type: ignore[operator]
    kind = Draft(layers=(2,), train_output=train_output)
    trainee = kind.build(target, HALF)
    batch = batch_of(target, sampled(target, 2, length=20), kind)
    train(trainee, lambda _: batch, 3)
    spec = ModelSpec(tier=0, model=str(round_trip(kind, trainee, target, tmp_path)), kv_tokens=1024, page_tokens=16)
    runner = build_runner(spec)
    assert runner.vocab_size == target.vocab_size
    ids = batch.ids[0].numpy().astype(np.int32)
    served = runner.forward(pack([Part(ids, 0, np.arange(4, dtype=np.int32), len(ids))], 16))
    with torch.no_grad():
        trained = next(trainee.roll(batch, 1))[0]
    torch.testing.assert_close(served[:, HALF], trained, atol=3e-2, rtol=3e-2)  # weights are stored as float16
    assert bool((served[:, HALF + 1] == LEAST_LOGIT).all())


def test_it_drafts_its_own_greedy_text(target: Target, tmp_path: Path) -> None:
    kind = Draft(layers=(1, 2), train_output=False)
    directory = round_trip(kind, kind.build(target, HALF), target, tmp_path)
    spec = ModelSpec(tier=0, model=str(directory), kv_tokens=1024, page_tokens=16)
    drafter = build_drafter(spec, DraftModelSpec())
    prompt = np.array([7, 100, 35, 9], np.int32)
    context = Context("s", 0, prompt, 4, 4, SamplingParams(), 0)
    draft = drafter.propose(context, DraftShape(5)).result(timeout=60)
    model = load_model(spec)
    ids = torch.from_numpy(prompt)[None].long()
    for _ in range(5):
        hidden = model.model(ids, use_cache=False).last_hidden_state[:, -1]
        best = HALF[model.lm_head(hidden).argmax(-1)]
        ids = torch.cat([ids, best[None]], 1)
    assert draft.tokens.tolist() == ids[0, 4:].tolist()
    drafter.shutdown()


def test_a_draft_without_its_target_says_what_is_missing(target: Target, tmp_path: Path) -> None:
    kind = Draft(layers=(1,))
    directory = round_trip(kind, kind.build(target, None), target, tmp_path / "draft")
    config = directory / "config.json"
    config.write_text(config.read_text().replace(target.name, str(tmp_path / "gone")))
    with pytest.raises(ModelNotFound, match=r"^[^\n]*shares its embedding[^\n]*$"):
        load_model(ModelSpec(tier=0, model=str(directory)))


@pytest.mark.parametrize("wrong", [Draft(loss="x"), Draft(layers=(3,)), Draft(layers=(0,))])
def test_options_that_cannot_be_are_refused_in_one_line(target: Target, wrong: Draft) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong.build(target, None)
