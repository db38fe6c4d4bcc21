"""Prompts from a user's files, to be answered by the target.

A `.jsonl` file has an object per line: `{"messages": [{"role": ..., "content": ...}, ...]}` (what follows the last
message of the user is left out), `{"prompt": "..."}` or `{"turns": ["...", ...]}` (the first one is taken). Any other
file is plain text, a prompt per line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from actors.training.data.errors import BadData
from actors.training.data.turns import Message


def read_prompts(paths: Iterable[Path]) -> list[list[Message]]:
    """The conversations to be answered, in order. Raises `BadData` naming file and line."""
    found: list[list[Message]] = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadData(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            if path.suffix.lower() != ".jsonl":
                found.append([{"role": "user", "content": line.strip()}])
                continue
            try:
                found.append(_messages(json.loads(line)))
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise BadData(
                    f'{path}, line {number}: write {{"messages": [...]}} or {{"prompt": "..."}} ({error})'
                ) from error
    if not found:
        raise BadData("the prompt files are empty: give one with a prompt per line")
    return found


def _messages(value: Any) -> list[Message]:
    if "messages" in value:
        messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in value["messages"]]
    else:
        prompt = value["prompt"] if "prompt" in value else value["turns"][0]
        messages = [{"role": "user", "content": str(prompt)}]
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise ValueError("no message of the user")
    return messages
