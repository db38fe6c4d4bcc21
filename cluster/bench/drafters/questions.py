"""Questions of Spec-Bench's six task families: from its file, or made up from a seed so that there always are some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cluster.bench.texts import BadPrompts, Prompt, read_prompts

CATEGORIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
# Spec-Bench (Xia et al. 2401.07851) took its first family from MT-bench, whose questions have categories of their own.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def spec_bench(path: Path) -> tuple[Prompt, ...]:
    """First turns of a Spec-Bench file, by family. Raises `BadPrompts`."""
    found = tuple(
        Prompt("mt_bench" if prompt.category in MT_BENCH else prompt.category, prompt.text)
        for prompt in read_prompts(path)
    )
    strange = sorted({prompt.category for prompt in found} - set(CATEGORIES))
    if strange:
        raise BadPrompts(f"{path} has questions of category {strange[0]!r}, which Spec-Bench does not have: give its "
                         "question.jsonl")
    return found


def chosen(prompts: Sequence[Prompt], categories: Sequence[str], per_category: int, fits: Callable[[Prompt], bool]
           ) -> tuple[Prompt, ...]:
    """The first `per_category` questions of each category that fit, one category after another.

    Raises `BadPrompts` for a category without any.
    """
    found: list[Prompt] = []
    for category in categories:
        own = [prompt for prompt in prompts if prompt.category == category]
        fitting = (prompt for prompt in own if fits(prompt))
        kept = [prompt for prompt, _ in zip(fitting, range(per_category), strict=False)]
        if not kept:
            why = "none fits the context: raise --max-prompt" if own else f"choose from {', '.join(CATEGORIES)}"
            raise BadPrompts(f"there are no questions of category {category!r} to measure: {why}")
        found += kept
    return tuple(found)


def built_in(per_category: int, seed: int = 0) -> tuple[Prompt, ...]:
    """`per_category` made-up questions of each family; the same for the same seed."""
    rng = np.random.default_rng(seed)
    return tuple(
        Prompt(category, _MAKERS[category](rng)) for category in CATEGORIES for _ in range(per_category)
    )


_PLACES = ("a harbour town", "a mountain village", "a quiet suburb", "an island", "a desert station", "a river port")
_PEOPLE = ("a clockmaker", "a young surveyor", "a retired teacher", "a ferry pilot", "a botanist", "a night guard")
_TOPICS = ("bridges", "bees", "tides", "bread", "lighthouses", "bicycles", "maps", "glass", "volcanoes", "wool")
_SENTENCES = (
    "Der Zug kommt heute zwanzig Minuten später an.", "Im Winter ist der See meistens zugefroren.",
    "Die Bäckerei an der Ecke öffnet um sechs Uhr.", "Wir haben den Schlüssel unter der Matte gefunden.",
    "Morgen soll es in den Bergen schneien.", "Das Museum ist montags geschlossen.",
)
_QUESTIONS = (
    "What causes the seasons on Earth?", "Why does ice float on water?", "Who wrote the play Hamlet?",
    "What is the largest planet of the solar system?", "How do bees make honey?", "What does a compass point to?",
)
_FACTS = (
    "The {place} has a market on Thursdays where {person} sells repaired tools.",
    "In spring the water rises by two metres and the lower road is closed for about ten days.",
    "A bridge was built there in 1874 and replaced in 1951 after a flood.",
    "The school was moved to the old customs house, which has the only hall with a stage.",
    "Most families keep bees, and the honey is traded for flour with the next valley.",
    "A bus runs four times a day, and twice on Sundays.",
)


def _pick(rng: np.random.Generator, of: Sequence[str]) -> str:
    return of[int(rng.integers(len(of)))]


def _chat(rng: np.random.Generator) -> str:
    asks = (
        "Write a short story about {person} who moves to {place}.",
        "Draft a polite letter from {person} to the mayor of {place} about {topic}.",
        "Write a Python function that counts the words of a text about {topic}, and explain it.",
        "Give five tips for {person} who wants to learn about {topic}.",
    )
    return _pick(rng, asks).format(person=_pick(rng, _PEOPLE), place=_pick(rng, _PLACES), topic=_pick(rng, _TOPICS))


def _translation(rng: np.random.Generator) -> str:
    return f"Translate German to English: {_pick(rng, _SENTENCES)} {_pick(rng, _SENTENCES)}"


def _passage(rng: np.random.Generator, size: int) -> str:
    order = rng.permutation(len(_FACTS))[:size]
    place = _pick(rng, _PLACES).split(" ", 1)[1]
    return " ".join(_FACTS[i].format(place=place, person=_pick(rng, _PEOPLE)) for i in order)


def _summary(rng: np.random.Generator) -> str:
    return f"Summarize: {_passage(rng, 5)}\nTL;DR:"


def _sum(rng: np.random.Generator) -> str:
    a, b, c = (int(n) for n in rng.integers(3, 40, 3))
    person, topic = _pick(rng, _PEOPLE), _pick(rng, ("apples", "letters", "tiles", "lamps", "tickets"))
    return (f"{person.capitalize()} has {a} boxes with {b} {topic} each and gives away {c} of them. "
            f"How many {topic} are left? Show each step.")


def _rag(rng: np.random.Generator) -> str:
    asked = _pick(rng, ("When is the market?", "What happens in spring?", "How often does the bus run?"))
    return f"Read the text and answer the question.\n\nText: {_passage(rng, 6)}\n\nQuestion: {asked}"


_MAKERS: dict[str, Callable[[np.random.Generator], str]] = {
    "mt_bench": _chat, "translation": _translation, "summarization": _summary,
    "qa": lambda rng: _pick(rng, _QUESTIONS), "math_reasoning": _sum, "rag": _rag,
}
