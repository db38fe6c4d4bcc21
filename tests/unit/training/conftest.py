"""A tiny target whose next token hangs on more than the last one, and a corpus that it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors.loading.tokenizer import fingerprint
from actors.training.data.recipe import Recipe
from actors.training.data.shards import Description, Text, write_description, write_shard
from actors.training.target import Target
from tests.conftest import TinyModel
from tests.unit.training.kinds.texts import sampled

PROMPT = 6


@pytest.fixture(scope="session")
def target(tiny_model: TinyModel) -> Target:
    return Target.load(str(tiny_model(vocab_size=260)))


@pytest.fixture(scope="session")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards of short texts of several lengths, drawn from the target; every eighth is held out."""
    directory = tmp_path_factory.mktemp("corpus")
    write_description(directory, Description(
        target.name, fingerprint(target.tokenizer), target.vocab_size, Recipe().to_json(), "fp32"
    ))  # fmt: skip
    ids = sampled(target, 64, seed=1, length=36).numpy().astype(np.int32)
    lengths = np.random.default_rng(0).integers(20, 37, len(ids))
    texts = [
        Text(row[:length], (np.arange(length) >= PROMPT).astype(np.uint8), i, i % 8 == 0, 1.0, i)
        for i, (row, length) in enumerate(zip(ids, lengths, strict=True))
    ]
    write_shard(directory, 0, texts[:40])
    write_shard(directory, 1, texts[40:])
    return directory
