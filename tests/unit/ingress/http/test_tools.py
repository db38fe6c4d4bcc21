"""Calls are found however the text is cut, and what is none stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.ingress.http.tools import Call, CallReader, More, ToolFormat, tool_format

CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
XML = """<tool_call>
<function=weather>
<parameter=city>
Rome
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
TAGGED = [
    (f"<tool_call>{CALL}</tool_call>", "", ['{"city": "Rome"}']),
    (f"a < b <tool_call>\n{CALL}\n</tool_call> <tool_call>{CALL}</tool_call>", "a < b ", ['{"city": "Rome"}'] * 2),
    (XML, "", ['{"city": "Rome", "days": 3}']),
    ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
    (f"<tool_call>{CALL}", f"<tool_call>{CALL}", []),
    ("{not a call", "{not a call", []),
    (CALL, "", ['{"city": "Rome"}']),  # the marks were special tokens
    ("", "", []),
]
BARE = [
    ('{"name": "weather", "parameters": {"city": "Rome"}}', "", ['{"city": "Rome"}']),
    (f"<|python_tag|>{CALL}; {CALL}", "", ['{"city": "Rome"}'] * 2),
    (f"[TOOL_CALLS] [{CALL}, {CALL}]", "", ['{"city": "Rome"}'] * 2),
    ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    ('{"a": 1}', '{"a": 1}', []),
    ("It is {warm}.", "It is {warm}.", []),
    (f"Well: {CALL}", f"Well: {CALL}", []),
]


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[Call]]:
    reader = CallReader(form, ["weather"])
    text = ""
    calls: list[Call | More] = []
    for piece in pieces:
        more, found = reader.push(piece)
        text, calls = text + more, calls + found
    rest, late = reader.finish()
    return text + rest, [call for call in calls + late if isinstance(call, Call)]


@pytest.mark.parametrize(
    ("form", "text", "left", "arguments"),
    [(ToolFormat.TAGGED, *case) for case in TAGGED] + [(ToolFormat.BARE, *case) for case in BARE],
)
@settings(deadline=None)
@given(data=st.data())
def test_calls_do_not_depend_on_how_the_text_is_cut(
    form: ToolFormat, text: str, left: str, arguments: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    got, calls = read(form, [text[a:b] for a, b in zip(cuts, cuts[1:], strict=False)])
    assert got == left
    assert [json.loads(call.arguments) for call in calls] == [json.loads(each) for each in arguments]
    assert {call.name for call in calls} <= {"weather"}


def test_text_that_can_be_no_call_is_not_kept_back() -> None:
    reader = CallReader(ToolFormat.TAGGED, ["weather"])
    assert reader.push("hello <to") == ("hello ", [])
    assert reader.push("p>") == ("<top>", [])
    assert CallReader(ToolFormat.TAGGED, []).push("<tool_call>") == ("<tool_call>", [])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (None, ToolFormat.NONE), ("{{ messages }}", ToolFormat.NONE), ("{{ tools }}", ToolFormat.UNKNOWN),
        ("{{ tools }} <tool_call>", ToolFormat.TAGGED), ("{{ tools }} [TOOL_CALLS]", ToolFormat.BARE),
    ],
)
def test_the_template_tells_the_format(template: str | None, form: ToolFormat) -> None:
    assert tool_format(template) is form
