"""What a body says about the form of its text, as kind and text."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cluster.ingress.checks import InvalidRequest
from cluster.ingress.http.fields import GrammarField, ResponseFormat
from cluster.rpc import outrider_pb2 as pb


@dataclass(frozen=True, slots=True)
class Form:
    """A grammar, and the field that asked for it."""

    kind: str  # json_schema, json_object, regex, choice, ebnf
    text: str
    param: str


def grammar_of(response_format: ResponseFormat | None, grammar: GrammarField | None) -> Form | None:
    """The form that the text must have; None: any. Raises `InvalidRequest`."""
    form = None if grammar is None else Form(grammar.kind, grammar.text, "grammar")
    if response_format is None or response_format.type == "text":
        return form
    if form is not None:
        raise InvalidRequest("grammar and response_format are both set: drop one of the two", "grammar")
    if response_format.type == "json_object":
        return Form("json_object", "", "response_format")
    if response_format.json_schema is None:
        raise InvalidRequest("response_format.json_schema is missing: set it", "response_format.json_schema",
                             "missing_required_parameter")
    return Form("json_schema", json.dumps(response_format.json_schema.schema_), "response_format")


def set_grammar(request: pb.GenerateRequest, form: Form | None) -> None:
    """Ask for the form. Raises `InvalidRequest`."""
    if form is None:
        return
    sampling = request.sampling
    match form.kind:
        case "json_object":
            sampling.json_object = True
        case "choice":
            sampling.choice.texts.extend(_texts(form))
        case kind:
            setattr(sampling, kind, form.text)


def _texts(form: Form) -> list[str]:
    try:
        texts = json.loads(form.text)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{form.param}.text of kind choice is a JSON array of strings: give it at least one",
                             form.param)
    return texts
