"""The corpus on disk: what is read is what was written, and what is wrong is said in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.training.data.errors import BadData
from actors.training.data.shards import (
    Corpus,
    Description,
    Text,
    known_digests,
    num_tokens,
    read_shard,
    shard_path,
    write_description,
    write_shard,
)

DESCRIPTION = Description("model", "print", 50, {"seed": 1}, "int8")


def _text(index: int, length: int, seed: int = 0) -> Text:
    rng = np.random.default_rng((seed, index))
    ids = rng.integers(0, 50, length).astype(np.int32)
    return Text(ids, rng.integers(0, 2, length).astype(np.uint8), index, bool(index % 2), 0.5, 7 * index)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), max_size=6), seed=st.integers(0, 1000))
def test_a_shard_is_read_as_it_was_written(
    lengths: list[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("shards")
    texts = [_text(index, length, seed) for index, length in enumerate(lengths)]
    write_shard(directory, 0, texts)
    for text, found in zip(texts, read_shard(directory, 0), strict=True):
        assert np.array_equal(text.ids, found.ids) and np.array_equal(text.answer, found.answer)
        assert (text.index, text.held_out, text.temperature) == (found.index, found.held_out, found.temperature)
    assert list(known_digests(directory)) == [text.digest for text in texts]


def test_a_corpus_keeps_what_is_held_out_apart(tmp_path: Path) -> None:
    write_description(tmp_path, DESCRIPTION)
    write_shard(tmp_path, 0, [_text(0, 5), _text(1, 6)])
    write_shard(tmp_path, 1, [_text(2, 7)])
    corpus = Corpus(tmp_path)
    assert [text.index for text in corpus.training] == [0, 2] and [text.index for text in corpus.held_out] == [1]
    assert num_tokens(corpus.texts) == 18 and corpus.description == DESCRIPTION


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no corpus"):
        Corpus(tmp_path)
    write_description(tmp_path, DESCRIPTION)
    write_description(tmp_path, DESCRIPTION)
    with pytest.raises(BadData, match="no texts"):
        Corpus(tmp_path)
    with pytest.raises(BadData, match="recipe"):
        write_description(tmp_path, Description("model", "print", 50, {"seed": 2}, "int8"))
    shard_path(tmp_path, 0).write_bytes(b"nonsense")
    with pytest.raises(BadData, match="damaged"):
        Corpus(tmp_path)
