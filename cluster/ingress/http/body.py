"""From the bytes of a request to its checked body, or one sentence about the first mistake."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from cluster.ingress.checks import InvalidRequest
from cluster.ingress.http.fields import IGNORED, UNSUPPORTED, Body

MAX_BODY_BYTES = 16 * 1024 * 1024
_Body = TypeVar("_Body", bound=Body)


async def read_body(request: Request, kind: type[_Body]) -> _Body:
    """The request's body. Raises `InvalidRequest`.

    Only `application/json` is taken: a browser asks before it sends that to another site, so no page can make a
    visitor's browser use a server that listens on the visitor's own machine.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequest("the body is not JSON: send it with the header `content-type: application/json`")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is longer than {MAX_BODY_BYTES} bytes: shorten it")
        parts.append(part)
    return parse_body(b"".join(parts), kind)


def parse_body(body: bytes, kind: type[_Body]) -> _Body:
    """The checked body. Raises `InvalidRequest`, naming the field."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON ({error}): mend it") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the body is no JSON object: send the request's fields in one")
    for name, (neutral, instead) in UNSUPPORTED.items():
        if name not in found or name in kind.model_fields:
            continue
        value = found.pop(name)
        if value is not None and value not in neutral:
            raise InvalidRequest(f"{name} is not supported: {instead}", param=name, code="unsupported_parameter")
    wanted = {name: value for name, value in found.items() if name not in IGNORED}
    try:
        return kind.model_validate(wanted)
    except ValidationError as error:
        raise _mistake(error) from error


def _mistake(error: ValidationError) -> InvalidRequest:
    """The first mistake in one sentence."""
    # Of the ways in which a value failed every alternative of a union, the one that got furthest says most.
    errors = error.errors(include_url=False, include_context=False)
    first = max((each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]), key=lambda each: len(each["loc"]))
    name = _path(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return InvalidRequest(f"{name} is no field that this server knows: drop it", name, "unknown_parameter")
        case "missing":
            return InvalidRequest(f"{name} is missing: set it", name, "missing_required_parameter")
        case "refused":
            return InvalidRequest(f"{name} {first['msg']}", name, "invalid_value")
    message = first["msg"]
    return InvalidRequest(f"{name} is wrong: {message[:1].lower()}{message[1:]}", name, "invalid_value")


def _path(where: tuple[int | str, ...]) -> str:
    """`messages[0].role`."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "NamedTool"):  # else an alternative's name
            text += f".{step}" if text else step
    return text
