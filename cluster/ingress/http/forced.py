"""Calls of tools that a model has to make: the grammar that leaves it no choice, and how its text is read.

The text is spelled as the model's template spells a call where that is known, since the model says that of its own
accord; names and punctuation are fixed, so only the arguments are the model's, and those stream as they come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from actors.grammar.lark import bounded
from cluster.ingress.checks import InvalidRequest
from cluster.ingress.http.tools import Call, More, ToolFormat

Item = TypeVar("Item")
MAX_CALLS = 16  # of one answer: a small model may otherwise call without end
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Forced:
    """The tools of which one has to be called."""

    tools: Sequence[tuple[str, dict[str, Any]]]  # name, JSON schema of the arguments
    tool_format: ToolFormat
    num_calls: int  # at most; at least one

    def grammar(self) -> str:
        """What the whole text has to be, in Lark."""
        opened, closed = ("<tool_call>\n", "}\n</tool_call>") if self.tool_format is ToolFormat.TAGGED else ("", "}")
        lines = [f'start: call ("\\n" call){{0,{self.num_calls - 1}}}' if self.num_calls > 1 else "start: call"]
        lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(self.tools))))
        for i, (name, schema) in enumerate(self.tools):
            lines.append(f"call_{i}: {_literal(opened + _head(name))} arguments_{i} {_literal(closed)}")
            lines.append(f"arguments_{i}: %json {json.dumps(bounded(schema))}")
        return "\n".join(lines) + "\n"

    def reader(self) -> ForcedReader:
        """A fresh reader of one text."""
        return ForcedReader([name for name, _ in self.tools])


def arguments_schema(index: int, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """The schema of a tool's arguments, which are an object. Raises `InvalidRequest`."""
    if parameters is None:
        return _NO_PARAMETERS
    kind = parameters.get("type", "object")
    if kind != "object":
        where = f"tools[{index}].function.parameters"
        raise InvalidRequest(f"{where} describes {json.dumps(kind)[:64]}: arguments are an object", where)
    return {**parameters, "type": "object"}


async def blaming_tools(chunks: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """The same, but what is wrong with the grammar is said of the tools, which is what the client sent."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    except InvalidRequest as error:
        message = str(error)
        if not message.startswith("ebnf "):
            raise
        raise InvalidRequest(message.replace("ebnf", "a schema among tools", 1), "tools") from error


class ForcedReader:
    """Takes calls out of a text that follows the grammar. There is no other text in it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._heads = [(_head(name), name) for name in names]
        self._held = ""  # what is read next: anything before a head, or nothing within arguments
        self._depth = 0
        self._in_string = self._escaped = False
        self.is_open = False  # whether the arguments of a call have begun and not ended

    def push(self, text: str) -> tuple[str, list[Call | More]]:
        """("", calls that began and what follows of their arguments)."""
        self._held += text
        found: list[Call | More] = []
        while True:
            if not self.is_open:
                starts = [(at, head, name) for head, name in self._heads if (at := self._held.find(head)) >= 0]
                if not starts:
                    return "", found
                at, head, name = min(starts)
                self._held = self._held[at + len(head) :]
                self.is_open = True
                found.append(Call(name, ""))
            length = self._arguments()
            if length:
                found.append(More(self._held[:length]))
            self._held = self._held[length:]
            if self.is_open:
                return "", found

    def finish(self) -> tuple[str, list[Call | More]]:
        """The end of the text: all was told."""
        return "", []

    def _arguments(self) -> int:
        """Characters of what is held that belong to the object; closes the call at its end."""
        for i, letter in enumerate(self._held):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_string = False
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_open = False
                    return i + 1
        return len(self._held)


def _head(name: str) -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


def _literal(text: str) -> str:
    """As the grammar library writes a string, which is as JSON does."""
    return json.dumps(text, ensure_ascii=False)
