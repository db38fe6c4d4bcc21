"""Sampling a corpus: the same whatever interrupts it, without repeats and loops, marked where the target answered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors.training.data.errors import BadData
from actors.training.data.filters import loop_start
from actors.training.data.recipe import Recipe
from actors.training.data.sample import Sampler
from actors.training.data.shards import Text, read_shard, shard_numbers, shard_path
from tests.unit.training.data.fakes import END, FakeTurns, FakeWriter

RECIPE = Recipe(seed=3, second_turn_share=0.5, held_out_share=0.3)


def _sampler(directory: Path, num_parallel: int = 4, **more: object) -> Sampler:
    directory.mkdir(exist_ok=True)
    question = more.pop("question", None)
    return Sampler(FakeWriter(num_parallel, question), FakeTurns(), RECIPE, directory, shard_size=8, **more)  # type: ignore[arg-type]


def _texts(directory: Path) -> list[Text]:
    return [text for number in shard_numbers(directory) for text in read_shard(directory, number)]


def _bytes(directory: Path) -> list[bytes]:
    return [shard_path(directory, number).read_bytes() for number in shard_numbers(directory)]


def test_a_corpus_is_the_same_however_many_texts_are_written_at_once_and_however_often_it_stops(tmp_path: Path) -> None:
    done = _sampler(tmp_path / "a").run(3000)
    _sampler(tmp_path / "b", num_parallel=13).run(3000)
    steps = iter(range(10**6))
    for _ in range(100):
        if _sampler(tmp_path / "c", num_parallel=3).run(3000, stop=lambda: next(steps) % 900 == 899).num_tokens >= 3000:
            break
    assert done.num_tokens >= 3000 and done.num_shards > 3
    assert _bytes(tmp_path / "a") == _bytes(tmp_path / "b") == _bytes(tmp_path / "c")
    assert done.num_tokens == sum(len(text.ids) for text in _texts(tmp_path / "a"))


def test_answers_are_marked_as_they_were_written(tmp_path: Path) -> None:
    _sampler(tmp_path).run(4000)
    texts = _texts(tmp_path)
    assert any(text.held_out for text in texts) and not all(text.held_out for text in texts)
    assert {text.temperature for text in texts} == {0.0, np.float32(0.7), 1.0}
    num_turns = set()
    for text in texts:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], text.answer, [0]])))
        starts, ends = edges[::2], edges[1::2]
        num_turns.add(len(starts))
        for start, end in zip(starts, ends, strict=True):
            assert text.ids[start - 1] == 2  # what closes a question
            answer = text.ids[start:end]
            assert END not in answer[:-1]
            assert loop_start(answer) is None  # cut where it began to repeat
        assert ends[-1] == len(text.ids)
    assert num_turns == {1, 2}


def test_no_question_is_kept_twice(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="prompts"):  # a target that always asks the same
        _sampler(tmp_path, question=5).run(10**6)
    texts = _texts(tmp_path)
    assert 0 < len(texts) == len({text.digest for text in texts})


def test_prompts_of_the_user_come_first_and_may_be_all(tmp_path: Path) -> None:
    prompts = [[{"role": "user", "content": word * 3}] for word in ("abcd", "bcde", "cdef", "defg")] * 5
    done = _sampler(tmp_path, prompts=prompts, only_prompts=True).run(10**6)
    assert done.num_texts == 4
    firsts = [FakeTurns().text(text.ids[: int(text.answer.argmax())]) for text in _texts(tmp_path)]
    assert firsts == ["abcd" * 3, "bcde" * 3, "cdef" * 3, "defg" * 3]


def test_a_lost_shard_is_noticed(tmp_path: Path) -> None:
    _sampler(tmp_path).run(2000)
    shard_path(tmp_path, 0).unlink()
    with pytest.raises(BadData, match="shard 0"):
        _sampler(tmp_path)
