"""Texts to measure on: one fixed text, built-in prompts, or the questions of a Spec-Bench file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path


class BadPrompts(ValueError):
    """The prompt file cannot be used; one line that names the fix."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn."""

    category: str
    text: str


BUILT_IN = (
    Prompt("list", "List the planets of the solar system and one fact about each."),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number, and explain it."),
    Prompt("story", "Tell a short story about a horse that scouts ahead of the herd."),
    Prompt("explain", "Explain to a child why the sky is blue."),
    Prompt("letter", "Write a polite letter to a neighbour whose dog barks at night."),
    Prompt("plan", "Plan a day of walking in the hills for two people, hour by hour."),
    Prompt("compare", "Compare trains and buses for a journey of two hundred kilometres."),
    Prompt("recipe", "Give a simple recipe for vegetable soup with exact amounts."),
    Prompt("maths", "A farmer has 17 sheep and buys twice as many again. How many are there? Show each step."),
    Prompt("history", "Describe how letters were carried across a country before there were railways."),
    Prompt("dialogue", "Write a dialogue between a surveyor and a ferryman about the weather."),
    Prompt("advice", "What should somebody check before buying a used bicycle?"),
)


def fixed_text() -> str:
    """About 2,400 tokens of English written for this project (see text/README.md)."""
    return (resources.files("cluster.bench") / "text" / "scout.txt").read_text(encoding="utf-8")


def read_prompts(path: Path, category: str | None = None) -> tuple[Prompt, ...]:
    """First turns of a Spec-Bench file: JSON lines with `category` and `turns`.

    `category` keeps those questions alone. Raises `BadPrompts` for a missing file, a line that is no such
    question, or a category that does not occur.
    """
    if not path.is_file():
        raise BadPrompts(f"there is no prompt file {str(path)!r}: give a Spec-Bench question.jsonl")
    found: list[Prompt] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            question = json.loads(line)
            found.append(Prompt(str(question["category"]), str(question["turns"][0])))
        except (ValueError, KeyError, IndexError, TypeError):
            raise BadPrompts(
                f"line {number} of {path} is no question: each line needs "
                '{"category": "…", "turns": ["…"]}'
            ) from None
    categories = sorted({prompt.category for prompt in found})
    kept = tuple(prompt for prompt in found if category is None or prompt.category == category)
    if not kept:
        known = ", ".join(categories) or "none"
        raise BadPrompts(f"{path} has no questions of category {category!r}: it has {known}")
    return kept
