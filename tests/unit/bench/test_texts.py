"""Prompts and the fixed text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.bench.texts import BUILT_IN, BadPrompts, fixed_text, read_prompts


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_questions_are_read_by_first_turn_and_category(tmp_path: Path) -> None:
    lines = [json.dumps({"question_id": i, "category": c, "turns": [f"q{i}", "more"]}) for i, c in enumerate("aba")]
    file = write(tmp_path / "q.jsonl", *lines, "")
    assert [prompt.text for prompt in read_prompts(file)] == ["q0", "q1", "q2"]
    assert [prompt.text for prompt in read_prompts(file, "a")] == ["q0", "q2"]


@pytest.mark.parametrize("line", ["{", '{"category": "a"}', '{"category": "a", "turns": []}', "[]", "3"])
def test_a_line_that_is_no_question_is_named(tmp_path: Path, line: str) -> None:
    file = write(tmp_path / "q.jsonl", json.dumps({"category": "a", "turns": ["q"]}), line)
    with pytest.raises(BadPrompts, match="line 2"):
        read_prompts(file)


def test_a_missing_file_or_category_is_one_line_that_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BadPrompts, match="no prompt file"):
        read_prompts(tmp_path / "none.jsonl")
    file = write(tmp_path / "q.jsonl", json.dumps({"category": "qa", "turns": ["q"]}))
    with pytest.raises(BadPrompts, match="it has qa"):
        read_prompts(file, "maths")


def test_the_fixed_text_is_long_enough_for_a_chat_of_a_thousand_tokens() -> None:
    assert len(fixed_text()) > 8000
    assert len({prompt.text for prompt in BUILT_IN}) == len(BUILT_IN)
