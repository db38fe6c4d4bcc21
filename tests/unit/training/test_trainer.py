"""The loop: what is interrupted and gone on with is what runs through, and what cannot go on says so."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actors.training.checkpoint import BadCheckpoint
from actors.training.data.batches import Batcher, Order
from actors.training.data.errors import BadData
from actors.training.data.features import StoredFeatures, features_path, store
from actors.training.data.shards import Corpus
from actors.training.kind import Batch, Loss
from actors.training.kinds.parallel import Parallel, ParallelTrainee
from actors.training.optimiser import OptimiserSettings
from actors.training.schedule import Schedule
from actors.training.target import Run, Target
from actors.training.trainer import Diverged, Trainer, TrainerSettings

KIND = Parallel(layers=(1,), lookahead=3, keep=0.6)  # its rows are drawn: the state of the noise matters
SETTINGS = TrainerSettings(
    8, Schedule(1e-2), OptimiserSettings(0.1, accumulate=2), checkpoint_every=3, report_every=1
)  # fmt: skip


def _trainer(
    target: Target, corpus: Path, directory: Path, settings: TrainerSettings = SETTINGS, **run: int
) -> Trainer:
    torch.manual_seed(0)
    trainee = KIND.build(target, torch.arange(0, 260, 2))
    order = Order(Corpus(corpus).training, 160, 32, seed=3)
    return Trainer(trainee, Batcher(target, (), 32), order, settings, {"a": 1, **run}, directory)


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer._trainee.state_dict().items()}


def test_a_run_that_was_interrupted_is_the_run_that_was_not(target: Target, corpus: Path, tmp_path: Path) -> None:
    whole = _trainer(target, corpus, tmp_path / "a")
    whole.run()
    for stop_at in (2, 5, 8):
        torch.rand(stop_at)  # other noise than the run's own must not matter
        part = _trainer(target, corpus, tmp_path / "b")
        assert part.resumed is (stop_at > 2)
        part.run(stop=lambda part=part, stop_at=stop_at: part.state.step >= stop_at)  # type: ignore[misc]
    assert part.state.step == 8 and part.progress == 1.0
    assert [entry["loss"] for entry in part.state.history] == [entry["loss"] for entry in whole.state.history]
    assert part.state.position == whole.state.position == 16 and part.state.num_tokens == whole.state.num_tokens
    for name, value in _weights(whole).items():
        assert torch.equal(value, _weights(part)[name]), name


def test_the_last_checkpoint_is_gone_on_from_when_a_process_died(target: Target, corpus: Path, tmp_path: Path) -> None:
    whole = _trainer(target, corpus, tmp_path / "a")
    whole.run()
    dying = _trainer(target, corpus, tmp_path / "b")

    def die() -> bool:
        if dying.state.step == 5:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        dying.run(stop=die)
    again = _trainer(target, corpus, tmp_path / "b")
    assert again.state.step == 3
    again.run()
    assert all(torch.equal(value, _weights(again)[name]) for name, value in _weights(whole).items())


def test_a_checkpoint_of_another_run_is_refused(target: Target, corpus: Path, tmp_path: Path) -> None:
    _trainer(target, corpus, tmp_path, replace(SETTINGS, num_steps=1)).run()
    with pytest.raises(BadCheckpoint, match=r"^[^\n]*\(a, b\)[^\n]*--restart$"):
        _trainer(target, corpus, tmp_path, a=2, b=3)


def test_a_run_ends_in_time_with_its_rate_gone_down(target: Target, corpus: Path, tmp_path: Path) -> None:
    now_s = iter(range(0, 10**6, 10))
    trainer = _trainer(target, corpus, tmp_path, replace(SETTINGS, num_steps=1000, minutes=5.0))
    trainer._clock = lambda: float(next(now_s))
    rates: list[float] = []
    trainer.run(lambda report: rates.append(report.rate))
    assert trainer.progress == 1.0 and 3 < trainer.state.step < 100
    assert rates[-1] < 0.3 * max(rates)


def test_a_loss_that_is_no_number_ends_the_run(target: Target, corpus: Path, tmp_path: Path) -> None:
    trainer = _trainer(target, corpus, tmp_path)
    good = ParallelTrainee.forward

    def bad(self: ParallelTrainee, batch: Batch) -> Loss:
        return Loss(good(self, batch).loss * float("nan"), {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParallelTrainee, "forward", bad)
        with pytest.raises(Diverged, match="step 1"):
            trainer.run()


def test_ranks_share_an_epoch_and_no_batch_twice(corpus: Path) -> None:
    order = Order(Corpus(corpus).training, 160, 32, seed=1)
    alone = order.from_position(0)
    every = [tuple(t.index for t in next(alone)) for _ in range(order.num_batches())]
    assert sorted(i for batch in every for i in batch) == sorted(t.index for t in order.texts)
    ranks = [order.from_position(0, rank, 2) for rank in range(2)]
    shared = [tuple(t.index for t in next(rank)) for _ in range(order.num_batches(2)) for rank in ranks]
    assert shared == every[: len(shared)]
    later = order.from_position(len(every) + 1)
    assert tuple(t.index for t in next(later)) == tuple(order.texts[i].index for i in order.epoch(1)[1])
    lengths = {text.index: min(len(text.ids), 32) for text in order.texts}
    assert all(len(batch) * max(lengths[i] for i in batch) <= 160 for batch in every)


def test_stored_features_are_those_that_the_target_says(target: Target, corpus: Path) -> None:
    store(Corpus(corpus), target, (1, 2), lambda done, total: None)
    texts = Corpus(corpus).training[:5]
    fresh = Batcher(target, (1, 2), 30).batch(texts)
    read = Batcher(target, (1, 2), 30, StoredFeatures(corpus, (1, 2), 30)).batch(texts)
    real = torch.arange(fresh.num_positions)[None] < fresh.lengths[:, None]
    for name in ("ids", "lengths", "weight"):
        assert torch.equal(getattr(fresh, name), getattr(read, name))
    for name in ("features", "hidden"):
        torch.testing.assert_close(getattr(fresh, name)[real], getattr(read, name)[real], atol=2e-2, rtol=2e-3)
    counted = fresh.weight > 0
    torch.testing.assert_close(fresh.normaliser[counted], read.normaliser[counted])


def test_stored_features_are_of_one_target_whole_and_finite(target: Target, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "c", ignore=shutil.ignore_patterns("features-*"))
    texts = Corpus(tmp_path / "c")
    store(texts, target, (1,), lambda done, total: None)
    other = copy.copy(target)
    other.name = "another"
    with pytest.raises(BadData, match=r"features of .*, not of another: delete "):
        store(texts, other, (1,), lambda done, total: None)
    path = features_path(tmp_path / "c", (1,)) / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BadData, match="is damaged: delete it, and it is made again"):
        store(texts, target, (1,), lambda done, total: None)
    path.unlink()
    other.name, run = target.name, target.run
    with pytest.MonkeyPatch.context() as patch:  # residual streams of some models outgrow half precision
        patch.setattr(target, "run", lambda *given: Run(run(*given).features * 1e6, run(*given).hidden))
        store(texts, target, (1,), lambda done, total: None)
    assert bool(StoredFeatures(tmp_path / "c", (1,), 30).read(texts.training[:4], 30)[0].isfinite().all())
