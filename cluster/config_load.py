"""Reading settings: presets, YAML files, OUTRIDER_* variables, and mistakes told in one line each."""

from __future__ import annotations

import difflib
import os
import reprlib
import typing
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

PREFIX = "OUTRIDER_"
KIND_TAG = "kind:"  # how the classes of a section that depends on its `kind` are told apart
Model = TypeVar("Model", bound=BaseModel)
_MAX_LINE_CHARS = 500
_MAX_LINES = 30
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError)  # what PyYAML raises
_shown = reprlib.Repr()  # bounded: a few lines of YAML can stand for more than memory holds
_shown.maxlevel, _shown.maxstring, _shown.maxother = 3, 80, 80


class ConfigError(ValueError):
    """Settings are wrong; `lines` holds one sentence per mistake, naming the field and the fix."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = [_one_line(line) for line in lines]
        super().__init__("\n".join(self.lines))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[list[str]]]:
        return (ConfigError, (self.lines,))


def preset_names() -> list[str]:
    """Names that `preset:` accepts."""
    folder = resources.files("cluster") / "presets"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_mapping(
    source: str | os.PathLike[str] | dict[str, object], environ: dict[str, str], schema: type[BaseModel],
    translate: Callable[[dict[str, Any]], dict[str, Any]] = lambda data: data,
) -> dict[str, Any]:
    """The merged, still unchecked settings: preset, then file or mapping, then environment.

    `translate` makes ours of a file or mapping that is written for another program.
    """
    data: Any
    if isinstance(source, dict):
        data = dict(source)
    elif isinstance(source, str) and source in preset_names():
        data = {"preset": source}
    else:
        path = Path(source)
        if "\0" in str(path) or not path.is_file():
            raise ConfigError([f"{source}: no such file or preset; presets are: {', '.join(preset_names())}"])
        data = _parse(_read(path), str(source))
    data = translate(data)
    preset = data.pop("preset", None)
    if preset is not None:
        if preset not in preset_names():
            raise ConfigError([f"preset: no preset {_shown.repr(preset)}; choose one of {', '.join(preset_names())}"])
        text = (resources.files("cluster") / "presets" / f"{preset}.yaml").read_text(encoding="utf-8")
        data = _merge(_parse(text, preset), data)
    return _override(data, environ, schema)


def _read(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is no text in UTF-8 (byte {error.start}); give a YAML file"]) from error
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from error


def _parse(text: str, origin: str) -> dict[str, Any]:
    """One YAML mapping."""
    try:
        data = yaml.safe_load(text)
    except _UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "a value cannot be read"
        line = f"{origin}{where}: not valid YAML ({problem}); check indentation and quotes"
        raise ConfigError([line]) from error
    if not isinstance(data, dict):
        raise ConfigError([f"{origin}: expected settings like `tiers: [...]`, found {type(data).__name__}"])
    return data


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Sections are merged key by key; lists (the tiers) are replaced as a whole."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        merged[key] = _merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _override(data: dict[str, Any], environ: dict[str, str], schema: type[BaseModel]) -> dict[str, Any]:
    """Apply OUTRIDER_SECTION__FIELD=value; list items by number, values read as YAML."""
    lines: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        path = variable.removeprefix(PREFIX).lower().split("__")
        if path[0] not in schema.model_fields:
            if len(path) > 1:  # without "__" the variable belongs to another part of the program
                lines.append(f"{variable}: no section {path[0]!r}{_hint(path[0], list(schema.model_fields))}")
            continue
        try:
            value = yaml.safe_load(environ[variable])
        except _UNREADABLE:
            value = environ[variable]
        try:
            data = _set(data, path, value)
        except (IndexError, ValueError, RecursionError):
            lines.append(f"{variable}: there is no {'.'.join(path)} to override; check the name")
    if lines:
        raise ConfigError(lines)
    return data


def _set(node: Any, path: list[str], value: object) -> Any:
    """A copy of `node` with one leaf replaced."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(node, (list, tuple)):
        items = list(node)
        items[int(head)] = _set(items[int(head)], rest, value)
        return items
    if node is None or isinstance(node, dict):
        node = dict(node or {})
        node[head] = _set(node.get(head), rest, value)
        return node
    raise ValueError(head)


def validate(schema: type[Model], data: dict[str, Any]) -> Model:
    """`schema` from unchecked data; raises `ConfigError`."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        lines = dict.fromkeys(_line(schema, dict(item)) for item in error.errors())
        more = [f"... and {len(lines) - _MAX_LINES} more mistakes"] if len(lines) > _MAX_LINES else []
        raise ConfigError([*list(lines)[:_MAX_LINES], *more]) from None
    except RecursionError:
        raise ConfigError(["the settings are nested too deeply; remove what contains itself"]) from None


def _line(schema: type[BaseModel], item: dict[str, Any]) -> str:
    """One mistake in one line: field, what is wrong, what to do."""
    loc = [part for part in item["loc"] if not _is_union_tag(part)]
    where, kind, context = ".".join(map(str, loc)), item["type"], item.get("ctx", {})
    if kind == "value_error":
        message = str(context.get("error", item["msg"]))
        return f"{where}: {message}" if where else message
    if kind == "extra_forbidden":
        siblings = _fields(schema, list(item["loc"][:-1]))
        return f"{where}: unknown setting{_hint(str(loc[-1]), siblings)}"
    if kind == "missing":
        return f"{where}: is required; add `{loc[-1]}:`"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return f"{where}: got {_shown.repr(item['input'])}; write its settings under it, as `name: value`, one a line"
    if kind in ("too_short", "string_too_short"):
        return f"{where}: is empty; give at least one entry"
    if kind == "string_pattern_mismatch":
        return f"{where}: {_shown.repr(item['input'])} is not allowed; it must match {context['pattern']}"
    if kind == "union_tag_invalid":
        kinds = [tag.strip().strip("'").removeprefix(KIND_TAG) for tag in context["expected_tags"].split(",")]
        wrong = context["tag"].removeprefix(KIND_TAG)
        name = context["discriminator"].strip("_()")  # the function that tells the kinds apart is named after the field
        return f"{where}.{name}: {wrong!r} is no {name}{_hint(wrong, kinds)}"
    expected = str(item["msg"]).removeprefix("Input should be ")
    return f"{where}: got {_shown.repr(item['input'])}; use {expected}"


def _one_line(text: str) -> str:
    """What a terminal shows on one line of bounded length."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= _MAX_LINE_CHARS else flat[: _MAX_LINE_CHARS - 1] + "…"


def _is_union_tag(part: object) -> bool:
    """Parts of a location that pydantic adds for unions, such as `literal['auto']` or `constrained-int`."""
    return isinstance(part, str) and (
        part == "int" or part.startswith(("literal[", "constrained-", "function-", KIND_TAG))
    )


def _hint(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; remove it or use one of {', '.join(known)}"


def _fields(schema: type[BaseModel], loc: list[Any]) -> list[str]:
    """Names of the settings at a location."""
    current: type[BaseModel] = schema
    for part, after in zip(loc, [*loc[1:], None], strict=False):
        field = None if isinstance(part, int) else current.model_fields.get(str(part))
        if field is None:
            continue
        models = list(_models(field.annotation)) or [current]
        current = next((model for model in models if after == _tag(model)), models[0])
    return list(current.model_fields)


def _tag(model: type[BaseModel]) -> str:
    """Of a class that its `kind` chooses."""
    kind = model.model_fields.get("kind") or model.model_fields.get("policy")
    return f"{KIND_TAG}{kind.default}" if kind is not None else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Section classes inside an annotation such as `tuple[TierConfig, ...]` or `X | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
