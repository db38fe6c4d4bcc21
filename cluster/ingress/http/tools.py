"""Calls of tools in a model's text: found while it streams, given back as text where they are none."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.ingress.stops import overlap

_XML_CALL = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_CODE = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)  # of a template
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARKS = ("<|python_tag|>", "[TOOL_CALLS]")  # usually special tokens, which yield no text


class ToolFormat(StrEnum):
    """How a model spells a call, as its chat template tells."""

    NONE = "none"  # the template knows no tools
    UNKNOWN = "unknown"  # it does, in a way that is not known here: calls stay text
    TAGGED = "tagged"  # <tool_call>{"name": …, "arguments": {…}}</tool_call>, or <function=…> in it
    BARE = "bare"  # the whole text is a JSON object, several of them, or a list of them


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: str  # JSON
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass(frozen=True, slots=True)
class More:
    """What follows of the arguments of the call that came last."""

    arguments: str


def tool_format(template: str | None) -> ToolFormat:
    """What a chat template says about calls."""
    if not template or "tools" not in _LITERAL.sub("", "".join(_CODE.findall(template))):
        return ToolFormat.NONE
    if _OPEN in template:
        return ToolFormat.TAGGED
    if any(mark in template for mark in _MARKS) or '"parameters"' in template:
        return ToolFormat.BARE
    return ToolFormat.UNKNOWN


class CallReader:
    """Takes calls out of a stream of text. What cannot be a call any more is handed on at once."""

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        """`names`: of the tools that the model was shown; none: nothing is looked for."""
        self._names = frozenset(names)
        self._form = form if names else ToolFormat.NONE
        self._held = ""
        self._began = False  # something other than space was handed on, or a call
        self._after_call = False  # space that follows a call belongs to it

    @property
    def is_open(self) -> bool:
        """Whether a call was told whose arguments are not: never, calls are told whole."""
        return False

    def push(self, text: str) -> tuple[str, list[Call | More]]:
        """(text that is none of a call's, calls that are complete)."""
        if self._form in (ToolFormat.NONE, ToolFormat.UNKNOWN):
            return text, []
        self._held += text
        if not self._began and self._is_bare():
            return "", []  # until the end: only then is it known to be calls and nothing else
        if self._form is ToolFormat.BARE:
            return self._take(len(self._held)), []
        return self._tagged()

    def finish(self) -> tuple[str, list[Call | More]]:
        """The rest, at the end of the stream."""
        held, self._held = self._held.lstrip() if self._after_call else self._held, ""
        calls = [] if self._began or not held else _bare_calls(held, self._names)
        return ("", [*calls]) if calls else (held, [])

    def _is_bare(self) -> bool:
        """Whether all so far may be the beginning of a bare call."""
        text = self._held.lstrip()
        for mark in _MARKS:
            if mark.startswith(text[: len(mark)]):
                return True
        return text[:1] in ("", "{", "[")

    def _tagged(self) -> tuple[str, list[Call | More]]:
        parts: list[str] = []
        calls: list[Call | More] = []
        while True:
            if self._after_call:
                self._held = self._held.lstrip()
                self._after_call = not self._held
            start = self._held.find(_OPEN)
            if start < 0:
                parts.append(self._take(len(self._held) - overlap(self._held, _OPEN)))
                break
            parts.append(self._take(start))
            end = self._held.find(_CLOSE)
            if end < 0:
                break
            inner = self._held[len(_OPEN) : end]
            found = _xml_call(inner) or _json_call(inner)
            if found is None:
                parts.append(self._take(end + len(_CLOSE)))
                continue
            calls.append(found)
            self._held = self._held[end + len(_CLOSE) :]
            self._began = self._after_call = True
        return "".join(parts), calls

    def _take(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._began = self._began or bool(text.strip())
        return text


def _call(found: object) -> Call | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return Call(found["name"], arguments) if isinstance(arguments, str) else None


def _json_call(text: str) -> Call | None:
    try:
        return _call(json.loads(text))
    except ValueError:
        return None


def _xml_call(text: str) -> Call | None:
    match = _XML_CALL.fullmatch(text)
    if match is None:
        return None
    arguments: dict[str, object] = {}
    for name, value in _XML_PARAMETER.findall(match[2]):
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return Call(match[1].strip(), json.dumps(arguments, ensure_ascii=False))


def _bare_calls(text: str, names: frozenset[str]) -> list[Call]:
    """All of `text` as calls of known tools, else none."""
    rest = text.strip()
    for mark in _MARKS:
        rest = rest.removeprefix(mark).lstrip()
    calls: list[Call] = []
    decoder = json.JSONDecoder()
    while rest:
        try:
            found, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        for each in found if isinstance(found, list) else [found]:
            call = _call(each)
            if call is None or call.name not in names:
                return []
            calls.append(call)
        rest = rest[end:].lstrip("; \n")
    return calls
