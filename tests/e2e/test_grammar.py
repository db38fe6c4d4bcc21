"""Structured output through the running service: gRPC and HTTP, real models, speculation on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import jsonschema
import openai
import pytest

from cluster.rpc import outrider_pb2 as pb
from tests.e2e.service import PATIENCE_S, Service, served

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = {"type": "string", "minLength": 1, "maxLength": 24}
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    ("a person", {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    ("a river", {"name": NAME, "length_km": {"type": "integer", "minimum": 1, "maximum": 9999}}),
    ("a shopping list", {"items": {"type": "array", "items": NAME, "minItems": 1, "maxItems": 4}}),
    ("a book", {"title": NAME, "author": NAME, "in_print": {"type": "boolean"}}),
    ("the weather", {"sky": {"enum": ["clear", "cloudy", "rain"]}, "degrees": {"type": "integer", "minimum": -40,
                                                                              "maximum": 50}}),
    ("a point", {"at": {"type": "object", "properties": {axis: {"type": "integer", "minimum": -99, "maximum": 99}
                                                         for axis in "xy"}, "required": ["x", "y"],
                        "additionalProperties": False}}),
    ("a date", {"date": {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}}),
    ("a verdict", {"score": {"enum": [1, 2, 3, 4, 5]}, "why": {"type": "string", "maxLength": 40}}),
    ("a contact", {"phone": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
                   "name": {"anyOf": [NAME, {"type": "null"}]}}),
    ("a colour", {"red": {"type": "integer", "minimum": 0, "maximum": 255}, "name": {"const": "colour"}}),
]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served("smollm2") as running:
        yield running


def schema_of(number: int) -> tuple[str, dict[str, Any]]:
    what, properties = SCHEMAS[number % len(SCHEMAS)]
    return what, {"type": "object", "properties": properties, "required": list(properties),
                  "additionalProperties": False}


def request(number: int, *, speculation: bool = True) -> pb.GenerateRequest:
    """Greedy, seeded and unseeded ones in turn."""
    what, schema = schema_of(number)
    asked = pb.GenerateRequest()
    asked.chat.messages.add(role="user", content=f"Write number {number // 30} of {what} as JSON.")
    asked.sampling.max_tokens, asked.sampling.json_schema = 200, json.dumps(schema)
    asked.sampling.temperature = 0.0 if number % 3 == 0 else 0.8
    if number % 3 == 1:
        asked.sampling.seed = number
    asked.speculation.enabled = speculation
    return asked


def ask_all(service: Service, asked: list[pb.GenerateRequest]) -> list[pb.GenerateResponse]:
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda each: service.stub.Generate(each, timeout=PATIENCE_S), asked))


@pytest.mark.parametrize("count", [32, pytest.param(200, marks=pytest.mark.thorough)])
def test_texts_of_json_schemas_all_parse_and_validate(service: Service, count: int) -> None:
    answers = ask_all(service, [request(number) for number in range(count)])
    for number, answer in enumerate(answers):
        assert answer.finish.reason == pb.FINISH_REASON_STOP_TOKEN, (number, answer.text)
        jsonschema.validate(json.loads(answer.text), schema_of(number)[1])
    figures = [answer.finish.speculation for answer in answers]
    drafted, accepted = sum(f.num_drafted for f in figures), sum(f.num_accepted for f in figures)
    print(f"\n{drafted} drafted, {accepted} accepted, {sum(f.num_committed for f in figures)} committed in "
          f"{sum(f.num_rounds for f in figures)} rounds, {sum(f.num_degraded_rounds for f in figures)} degraded")
    assert accepted > 0.3 * drafted > 0
    service.wait_idle()


def test_greedy_and_seeded_texts_are_those_without_speculation(service: Service) -> None:
    numbers = [number for number in range(45) if number % 3 < 2]
    together = ask_all(service, [request(number) for number in numbers])
    alone = ask_all(service, [request(number, speculation=False) for number in numbers])
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert sum(answer.finish.speculation.num_drafted for answer in alone) == 0


def test_a_bad_schema_is_one_line_and_the_service_goes_on(service: Service) -> None:
    for source in ('{"type": "objekt"}', "{", '{"not": {"type": "null"}}'):
        asked = request(0)
        asked.sampling.json_schema = source
        with pytest.raises(grpc.RpcError) as caught:
            service.stub.Generate(asked, timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details().startswith("json_schema cannot be used: ")
        assert "\n" not in caught.value.details()
    assert ask_all(service, [request(0)])[0].text


def test_openai_clients_get_their_response_format(service: Service) -> None:
    client = openai.OpenAI(base_url=f"{service.http}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    what, schema = schema_of(3)
    got = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Write {what} as JSON."}], max_completion_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    )
    jsonschema.validate(json.loads(got.choices[0].message.content or ""), schema)
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "yes or no?"}], stream=True,
        extra_body={"grammar": {"kind": "choice", "text": '["yes", "no"]'}},
    )
    assert "".join(event.choices[0].delta.content or "" for event in stream if event.choices) in ("yes", "no")
    with pytest.raises(openai.BadRequestError, match="cannot be used"):
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "x"}],
            response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "objekt"}}},
        )
