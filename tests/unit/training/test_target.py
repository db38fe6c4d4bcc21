"""The target in training says what transformers says, layer by layer, whatever its architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.training.data.batches import Batcher
from actors.training.data.shards import Corpus
from actors.training.losses import teacher
from actors.training.target import Target
from tests.conftest import TinyModel

ARCHITECTURES = ("llama", "qwen2", "gpt2", "neox", "gemma3")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_are_the_residual_stream_after_each_layer(tiny_model: TinyModel, architecture: str) -> None:
    target = Target.load(str(tiny_model(architecture)))
    ids = torch.tensor([[5, 9, 200, 31, 7], [1, 2, 3, 4, 5]])
    with torch.no_grad():
        said = target.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    run = target.run(ids, (1, 2))
    first, second = run.features.chunk(2, -1)
    torch.testing.assert_close(first, said.hidden_states[1])
    assert not torch.allclose(first, second) and not run.features.requires_grad
    torch.testing.assert_close(target.logits(run.hidden), said.logits)
    some = torch.tensor([3, 50, 120])
    torch.testing.assert_close(target.logits(run.hidden, some), said.logits[..., some])
    assert target.run(ids).features.shape[-1] == 0


def test_laws_over_a_part_of_the_vocabulary_are_the_whole_laws(target: Target, corpus: Path) -> None:
    texts = Corpus(corpus).training[:6]
    batch = Batcher(target, (), 30).batch(texts)
    ids = torch.arange(1, 260, 3)
    counted = batch.weight > 0
    whole = target.logits(batch.hidden).log_softmax(-1)
    torch.testing.assert_close(teacher(batch, target, ids, counted), whole[counted][:, ids])
    torch.testing.assert_close(teacher(batch, target, ids)[counted], whole[counted][:, ids])
    for row, text in enumerate(texts):  # what counts is the prediction of answers, and of nothing else
        length = min(len(text.ids), 30)
        assert batch.weight[row, : length - 1].tolist() == text.answer[1:length].tolist()
        assert not batch.weight[row, length - 1 :].any()
