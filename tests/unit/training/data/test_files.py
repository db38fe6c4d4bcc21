"""Prompt files of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.training.data.errors import BadData
from actors.training.data.files import read_prompts

_ASKED = '{"role": "user", "content": "x"}'


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "x"}', '{"turns": ["x", "y"]}', f'{{"messages": [{_ASKED}]}}',
        f'{{"messages": [{_ASKED}, {{"role": "assistant", "content": "y"}}]}}',
    ],
)  # fmt: skip
def test_prompts_are_read_up_to_what_the_user_said_last(tmp_path: Path, line: str) -> None:
    file, plain = tmp_path / "a.jsonl", tmp_path / "b.txt"
    file.write_text(f"{line}\n\n")
    plain.write_text("one\n\ntwo\n")
    talks = read_prompts([file, plain])
    assert [talk[-1]["content"] for talk in talks] == ["x", "one", "two"]


@pytest.mark.parametrize("line", ["{}", "nonsense", "[]", '{"messages": []}', '{"turns": []}', "3"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"prompt": "x"}}\n{line}\n')
    with pytest.raises(BadData, match=r"a\.jsonl, line 2"):
        read_prompts([file])


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with pytest.raises(BadData, match="cannot be read"):
        read_prompts([file])
    file.write_text("\n")
    with pytest.raises(BadData, match="empty"):
        read_prompts([file])
