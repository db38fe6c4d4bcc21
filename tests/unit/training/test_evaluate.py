"""Offline acceptance is that of serving: against brute force, and against the law of rejection sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from actors.training.data.batches import Batcher
from actors.training.data.shards import Text
from actors.training.evaluate import _Walks, evaluate
from actors.training.kind import Batch, Loss, Trainee
from actors.training.target import Target
from tests.conftest import TinyModel
from tests.unit.training.kinds.texts import sampled

PROMPT = 8


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Target:
    return Target.load(str(tiny_model(vocab_size=260)))


class Mixed(Trainee):
    """The target's own law mixed with noise, the more the deeper; with a vocabulary of its own."""

    def __init__(self, target: Target, ids: torch.Tensor | None, noise: float) -> None:
        super().__init__()
        self._target = target
        self._noise = noise
        self.draft_vocab_ids = ids

    def forward(self, batch: Batch) -> Loss:
        raise NotImplementedError

    def roll(self, batch: Batch, num_steps: int) -> Iterator[torch.Tensor]:
        logits = self._target.logits(batch.hidden, self.draft_vocab_ids)
        generator = torch.Generator().manual_seed(0)
        for step in range(num_steps):
            yield logits + self._noise * (step + 1) * torch.randn(logits.shape, generator=generator)


def _texts(target: Target, temperature: float, count: int = 200) -> list[Text]:
    ids = sampled(target, count, seed=5, length=40)
    answer = (np.arange(40) >= PROMPT).astype(np.uint8)
    return [Text(row.numpy().astype(np.int32), answer, i, True, temperature, i) for i, row in enumerate(ids)]


def test_the_target_itself_is_always_accepted(target: Target) -> None:
    batcher = Batcher(target, (), 64)
    texts = _texts(target, 1.0, 20)
    found = evaluate(Mixed(target, None, 0.0), target, batcher, texts, 3)
    assert found.greedy is None and found.sampled is not None
    assert found.sampled.by_position == pytest.approx((1.0, 1.0, 1.0))
    assert found.sampled.mat == pytest.approx(4.0)  # 32 tokens an answer, 4 a round
    assert found.sampled.num_tokens == 20 * 32


def test_sampled_acceptance_is_the_overlap_of_the_laws(target: Target) -> None:
    ids = torch.arange(0, 260, 3)
    texts = _texts(target, 1.0, 400)
    batcher, trainee = Batcher(target, (), 64), Mixed(target, ids, 1.0)
    found = evaluate(trainee, target, batcher, texts, 1, batch_tokens=10**6)
    assert found.sampled is not None
    batch = batcher.batch(sorted(texts, key=lambda text: len(text.ids)))
    p = target.logits(batch.hidden).softmax(-1)[..., ids]
    q = next(trainee.roll(batch, 1)).softmax(-1)
    overlap = torch.minimum(p, q).sum(-1)
    # Rounds begin at other places than all, so only where every position is a round's begin may the two be compared.
    rounds = found.sampled.num_rounds
    expected = float((overlap * batch.weight).sum() / batch.weight.sum())
    assert found.sampled.by_position[0] == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(rounds))


def test_greedy_counts_equal_tokens(target: Target) -> None:
    texts = _texts(target, 0.0, 30)
    found = evaluate(Mixed(target, None, 0.0), target, Batcher(target, (), 64), texts, 4)
    assert found.greedy is not None and found.sampled is None
    tokens = rounds = 0
    kept = np.zeros(4)
    tried = np.zeros(4)
    for text in texts:
        best = target.logits(target.run(torch.from_numpy(text.ids)[None].long()).hidden)[0].argmax(-1).numpy()
        place = PROMPT
        while place < 40:
            rounds += 1
            for step in range(4):
                if place >= 40:
                    break
                tried[step] += 1
                tokens += 1
                place += 1
                if best[place - 2] != text.ids[place - 1]:
                    break
                kept[step] += 1
            else:
                if place < 40:
                    tokens += 1
                    place += 1
    assert found.greedy.num_rounds == rounds and found.greedy.num_tokens == tokens == 30 * 32
    assert found.greedy.by_position == pytest.approx(tuple(kept / np.maximum(tried, 1)))


def test_walks_stop_at_the_end_of_an_answer() -> None:
    walks = _Walks(3)
    wanted = np.array([False, True, True, False, False, True, True, True, True, True])
    walks.walk(np.ones((3, 10)), wanted, np.full(10, 0.5))
    result: Any = walks.result()
    assert (result.num_rounds, result.num_tokens) == (3, 7)  # 2; then 4 and 1
    assert result.by_position == (1.0, 1.0, 1.0)


def test_nothing_held_out_is_no_measure(target: Target) -> None:
    found = evaluate(Mixed(target, None, 0.0), target, Batcher(target, (), 64), _texts(target, 0.7, 3), 2)
    assert found.greedy is None and found.sampled is None and found.best_mat == 0.0
