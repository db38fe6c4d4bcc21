"""Forced calls: the grammar allows nothing else, and its texts are read as what they are however they are cut."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.grammar.compiled import masks_of
from actors.grammar.grammar import Grammar, GrammarKind
from actors.grammar.vocabulary import know
from cluster.ingress.http.forced import Forced
from cluster.ingress.http.tools import Call, More, ToolFormat

EOS = 0
BYTES = [b"", *(bytes([code]) for code in range(1, 128))]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}, "required": ["city"],
        "additionalProperties": False}
NOTHING = {"type": "object", "$defs": {"n": {"type": "null"}}, "properties": {"x": {"$ref": "#/$defs/n"}}}
TOOLS: list[tuple[str, dict[str, Any]]] = [("weather", CITY), ('a"b', NOTHING)]
ROME = '{"name": "weather", "arguments": {"city": "Ro}\\\\\\"me"}}'
NULL = '{"name": "a\\"b", "arguments": {"x": null}}'


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def allowed(forced: Forced, text: str) -> bool:
    """Whether the whole text is, up to its end."""
    know("bytes", lambda: BYTES)
    masks = masks_of(Grammar(GrammarKind.EBNF, forced.grammar(), (EOS,), "bytes", "nobody's"))
    ids = [*text.encode(), EOS]
    return all(masks.allows(np.array(ids[:i], np.int32), token) for i, token in enumerate(ids))


@pytest.mark.parametrize(
    ("form", "num_calls", "text", "is_allowed"),
    [
        (ToolFormat.TAGGED, 1, tagged(ROME), True), (ToolFormat.TAGGED, 1, tagged(NULL), True),
        (ToolFormat.TAGGED, 1, tagged(ROME, NULL), False), (ToolFormat.TAGGED, 3, tagged(ROME, NULL, ROME), True),
        (ToolFormat.TAGGED, 3, tagged(*[ROME] * 4), False), (ToolFormat.TAGGED, 1, ROME, False),
        (ToolFormat.TAGGED, 1, "", False), (ToolFormat.TAGGED, 1, "Well: " + tagged(ROME), False),
        (ToolFormat.TAGGED, 1, tagged(ROME.replace("weather", "whether")), False),
        (ToolFormat.TAGGED, 1, tagged(ROME.replace("city", "town")), False),
        (ToolFormat.BARE, 1, ROME, True), (ToolFormat.UNKNOWN, 2, f"{ROME}\n{NULL}", True),
    ],
)
def test_only_calls_of_the_tools_with_arguments_of_their_schemas_are_allowed(
    form: ToolFormat, num_calls: int, text: str, is_allowed: bool
) -> None:
    assert allowed(Forced(TOOLS, form, num_calls), text) is is_allowed


@settings(deadline=None)
@given(data=st.data(), form=st.sampled_from([ToolFormat.TAGGED, ToolFormat.BARE]))
def test_calls_do_not_depend_on_how_the_text_is_cut(data: st.DataObject, form: ToolFormat) -> None:
    wanted = data.draw(st.lists(st.sampled_from([ROME, NULL]), max_size=3))
    text = tagged(*wanted) if form is ToolFormat.TAGGED else "\n".join(wanted)
    end = data.draw(st.integers(0, len(text)))  # it may have been cut short
    cuts = sorted(data.draw(st.sets(st.integers(0, end), max_size=6)) | {0, end})
    reader = Forced(TOOLS, form, 3).reader()
    found: list[list[str]] = []
    for start, stop in zip(cuts, cuts[1:], strict=False):
        rest, parts = reader.push(text[start:stop])
        assert rest == ""
        for part in parts:
            if isinstance(part, Call):
                found.append([part.name, part.arguments])
            else:
                assert isinstance(part, More)
                found[-1][1] += part.arguments
    whole = [[each["name"], each["arguments"]] for each in map(json.loads, wanted)]
    if end == len(text):
        assert [[name, json.loads(arguments)] for name, arguments in found] == whole
        assert not reader.is_open
    else:
        assert [name for name, _ in found] == [name for name, _ in whole[: len(found)]]
        assert all(json.loads(arguments) == whole[i][1] for i, (_, arguments) in enumerate(found[:-1]))
    assert reader.finish() == ("", [])
