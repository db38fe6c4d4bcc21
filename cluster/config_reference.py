"""The reference of all settings, as Markdown, made from the schema itself."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cluster.config import Config

HEAD = """# Settings

Made from the schema by `outrider config reference`. A file holds these sections as YAML; `preset: NAME` starts from a
preset, `OUTRIDER_SECTION__NAME=value` in the environment overrides one setting (items of a list by number:
`OUTRIDER_TIERS__0__WEIGHTS=int8`), and `outrider config check FILE` says what a file comes to. Unknown settings are
refused.
"""


def reference() -> str:
    """The whole document."""
    parts = [HEAD]
    for path, model in _sections(Config, ""):
        title = f"`{path}`" if path else "The file"
        part = f"## {title}\n\n{(model.__doc__ or '').strip()}\n\n| setting | type | default | |\n|---|---|---|---|"
        part += "".join(
            f"\n| `{name}` | {_cell(_kind(field))} | {_cell(_default(field))} | {_cell(field.description or '')} |"
            for name, field in model.model_fields.items()
        )
        parts.append(f"{part}\n")
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with where it stands, in the order of the file; kinds of one section one after another."""
    yield path, model
    for name, field in model.model_fields.items():
        found = list(_models(field.annotation))
        is_list = typing.get_origin(field.annotation) is tuple
        for each in found:
            here = f"{path}.{name}" if path else name
            here += "[]" if is_list else ""
            tag = each.model_fields.get("kind") or each.model_fields.get("policy")
            if len(found) > 1 and tag is not None:
                here += f" ({tag.default})"
            yield from _sections(each, here)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _kind(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {value:g}"
        for mark in [*field.metadata, *_marks(field.annotation)]
        for sign, value in _bound(mark)
    ]
    return " ".join([_name(field.annotation), *dict.fromkeys(bounds)])


def _marks(annotation: Any) -> Iterator[Any]:
    """What `Annotated` says further down, e.g. in `Annotated[int, Field(gt=0)] | None`."""
    for argument in typing.get_args(annotation):
        if isinstance(argument, FieldInfo):
            yield from argument.metadata
        elif not isinstance(argument, type):
            yield from _marks(argument)


def _bound(mark: Any) -> Iterator[tuple[str, float]]:
    for kind, name, sign in ((Gt, "gt", ">"), (Ge, "ge", ">="), (Lt, "lt", "<"), (Le, "le", "<=")):
        if isinstance(mark, kind):
            yield sign, float(getattr(mark, name))


def _name(annotation: Any) -> str:
    """A type as a reader of YAML knows it."""
    if list(_models(annotation)):
        listed = typing.get_origin(annotation) is tuple
        return "list of sections" if listed else "section"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _name(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_name(argument) for argument in arguments))
    if origin is tuple:
        return f"list of {_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {_name(arguments[1])}"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or isinstance(value, bool):
        return f"`{'null' if value is None else str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`{list(value)}`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
