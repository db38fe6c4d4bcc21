"""Settings as no operator would write them, each made from a seed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import yaml

JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**63, -(2**70), 0.5, float("nan"), float("inf"), "", " ", "auto", "x" * 3000,
    "é\x00\n", "1", [], [[]], [None], {}, {"": None}, {"a": {"b": {"c": []}}}, [{}] * 3, b"\xff\x00", (1, 2),
)  # fmt: skip
KEYS: tuple[Any, ...] = (
    "", "modle", "tiers", "preset", "kind", "x" * 300, 7, None, True, 1.5, ("a", "b"), "a.b", "__class__", "a\nb",
)  # fmt: skip
NOTES = (
    "!!python/object/apply:os.system ['true']", "&a [*a]", "*nowhere", "{a: *b}", "? [1, 2]\n: 3", "\t- x",
    "- a\nb: c",
    "%YAML 9.9\n---\n", "---\n---\n", "<<: *x", "!!binary '@@'", "2026-13-45", "\x00", "\ufeff", "'",
    '"\\xZZ"', "{", "[",
    "!!timestamp x", "!!int 'x'", "0x", "1e999", "<<: [1]", "!!set {a, b}", "!!float abc", "a: b: c",
)  # fmt: skip


def bomb(depth: int = 12, width: int = 9) -> str:
    """A few lines that stand for more entries than any memory holds."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, depth)]
    return "\n".join(lines) + f"\ntiers: *a{depth - 1}\n"


def mappings(seed: int, count: int, good: list[dict[str, Any]]) -> Iterator[dict[Any, Any]]:
    """Good settings with one to four places changed."""
    rng = random.Random(seed)
    for _ in range(count):
        data: dict[Any, Any] = copy.deepcopy(rng.choice(good))
        for _ in range(rng.randrange(1, 5)):
            _change(rng, data)
        yield data


def texts(seed: int, count: int, good: list[dict[str, Any]]) -> Iterator[bytes]:
    """Good YAML with bytes or lines changed, and some that never was any."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(yaml.safe_dump(rng.choice(good)).encode())
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(6):
                case 0:
                    data[at:at] = rng.choice(NOTES).encode()
                case 1:
                    del data[at : at + rng.randrange(1, 20)]
                case 2 if at < len(data):
                    data[at] = rng.randrange(256)
                case 3:
                    data[at:at] = rng.randbytes(rng.randrange(1, 5))
                case 4:
                    lines = data.splitlines(keepends=True)
                    rng.shuffle(lines)
                    data = bytearray(b"".join(lines))
                case _:
                    data[at:at] = b"\n" + rng.choice(NOTES).encode() + b"\n"
        yield bytes(data)


def environments(seed: int, count: int) -> Iterator[dict[str, str]]:
    """Variables that override settings, most of which are not there."""
    rng = random.Random(seed)
    parts = ("server", "tiers", "0", "7", "-1", "grpc_port", "limits", "", "auth", "nope", "x" * 100, "tls", "é")
    values = (*NOTES, "9001", "auto", "null", "[]", "{}", "x" * 2000, "127.0.0.1")
    for _ in range(count):
        yield {
            "OUTRIDER_" + "__".join(rng.choice(parts) for _ in range(rng.randrange(1, 5))).upper(): rng.choice(values)
            for _ in range(rng.randrange(1, 4))
        }


def _change(rng: random.Random, data: dict[Any, Any]) -> None:
    """One change anywhere in `data`."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            visit(value)

    visit(data)
    node, key = rng.choice(places) if places else (data, "tiers")
    match rng.randrange(5):
        case 0:
            node.pop(key) if isinstance(node, list) else node.pop(key, None)
        case 1 if isinstance(node, dict):
            node[rng.choice(KEYS)] = rng.choice(JUNK)
        case 2 if isinstance(node, dict) and key in node:
            node[rng.choice(KEYS)] = node.pop(key)
        case 3 if isinstance(node, list):
            node.append(copy.deepcopy(rng.choice(JUNK)))
        case _:
            node[key] = copy.deepcopy(rng.choice(JUNK))
