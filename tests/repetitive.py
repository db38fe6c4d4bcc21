"""Seeded workloads whose answers repeat what was there before, and the exact replay of a drafter on them.

Two that suffix decoding is meant for (2411.04975, section 2): an agent that calls tools, one request a step, and a
conversation in which a file is edited turn by turn. Their texts are made here, so that what repeats and what is new is
known: names, numbers, arguments and findings are drawn; forms, and whatever an edit leaves alone, come again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from actors.drafters.base import Drafter
from actors.messages import Context, DraftShape
from actors.sampling.params import SamplingParams

_TOOLS = {
    "search_files": ("query", "directory"), "read_file": ("path", "first_line", "last_line"),
    "run_tests": ("path", "keyword"), "replace_text": ("path", "old", "new"),
}
_SYSTEM = (
    "You are a maintenance agent. Think, then call one tool, as JSON.\n"
    + "\n".join(f"- {name}({', '.join(arguments)})" for name, arguments in _TOOLS.items()) + "\n"
)
_THOUGHTS = (
    "The failure points to {module}, so I look at {symbol} first.",
    "I have not seen how {symbol} is used in {module} yet.",
    "The change to {symbol} may affect {module}; I check it before I go on.",
    "Nothing in {module} explains the failure, so {symbol} is next.",
)
_WORDS = re.findall(
    r"\w+", "cache batch router lease token window budget replica shard cursor frame packet signal buffer worker "
    "queue index planner ledger merge commit branch filter parser schema column bucket gauge timer socket digest",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the answer that a target gives."""

    prompt: str
    answer: str


def agent(seed: int, num_tasks: int = 4, num_steps: int = 6) -> list[Request]:
    """Tasks of an agent, step by step; each step is a request whose prompt holds the task's steps before it."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for _ in range(num_tasks):
        modules = [f"{rng.choice(_WORDS)}/{rng.choice(_WORDS)}_{rng.choice(_WORDS)}.py" for _ in range(3)]
        symbols = [f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}" for _ in range(4)]
        text = _SYSTEM + f"Task {rng.randrange(10**4)}: make the test of {rng.choice(symbols)} pass.\n"
        for step in range(1, num_steps + 1):
            module, symbol = rng.choice(modules), rng.choice(symbols)
            tool = rng.choice(list(_TOOLS))
            answer = (
                f"Thought {step}: {rng.choice(_THOUGHTS).format(module=module, symbol=symbol)}\n"
                f'Action: {{"tool": "{tool}", "arguments": {{{_arguments(rng, tool, module, symbol)}}}}}\n'
                'Status: {"confidence": "' + rng.choice(("low", "medium", "high")) + '", "done": false}\n'
            )
            requests.append(Request(text, answer))
            found = f"{module}:{rng.randrange(400)}: {symbol}({rng.choice(_WORDS)}, {rng.randrange(100)})"
            text += answer + f"Observation: {found}\n"
    return requests


def _arguments(rng: random.Random, tool: str, module: str, symbol: str) -> str:
    values = {
        "query": symbol, "directory": module.split("/")[0], "path": module, "first_line": str(rng.randrange(1, 200)),
        "last_line": str(rng.randrange(200, 400)), "keyword": symbol, "old": symbol,
        "new": f"{rng.choice(_WORDS)}_{symbol}",
    }
    return ", ".join(f'"{name}": "{values[name]}"' for name in _TOOLS[tool])


def edits(seed: int, num_conversations: int = 3, num_turns: int = 4) -> list[Request]:
    """Conversations in which a file is edited; each answer is the whole file again, with one edit."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for _ in range(num_conversations):
        lines = _file(rng)
        text = "User: Here is a file.\n" + "\n".join(lines) + "\n"
        for _ in range(num_turns):
            request, lines = _edited(rng, lines)
            text += f"User: {request} Answer with the whole file.\nAssistant:\n"
            answer = "\n".join(lines) + "\n"
            requests.append(Request(text, answer))
            text += answer
    return requests


def _file(rng: random.Random) -> list[str]:
    lines: list[str] = []
    for name in rng.sample(_WORDS, 4):
        first, second, third = rng.sample(_WORDS, 3)
        lines += [
            f"def {name}_{first}({second}, {third}={rng.randrange(100)}):",
            f'    """Return the {first} of a {second}, at most {rng.randrange(1000)}."""',
            f"    if {second} is None or {third} > {rng.randrange(100)}:",
            f"        return {rng.choice(_WORDS)}.{first}",
            f"    {first} = {rng.choice(_WORDS)}({second}, {third} + {rng.randrange(10)})",
            f"    return [{first}, {rng.choice(_WORDS)}]", "",
        ]
    return lines


def _edited(rng: random.Random, lines: Sequence[str]) -> tuple[str, list[str]]:
    """A request, and the file as it asks for."""
    kind = rng.randrange(3)
    if kind == 0:
        names = sorted({word for line in lines for word in re.findall(r"[a-z]+", line)} & set(_WORDS))
        old, new = rng.choice(names), rng.choice(_WORDS) + str(rng.randrange(10))
        return f"Rename {old} to {new}.", [re.sub(rf"\b{old}\b", new, line) for line in lines]
    place = rng.choice([i for i, line in enumerate(lines) if line.startswith("    ")])
    added = f"    {rng.choice(_WORDS)} = {rng.choice(_WORDS)}({rng.randrange(1000)})"
    if kind == 1:
        return f"After line {place + 1}, insert `{added.strip()}`.", [*lines[: place + 1], added, *lines[place + 1 :]]
    return f"Replace line {place + 1} by `{added.strip()}`.", [*lines[:place], added, *lines[place + 1 :]]


def words(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Ids of words, digits, spaces and signs: a tokenizer that needs no files. New ones are put into `vocabulary`."""
    pieces = re.findall(r" ?[A-Za-z]+|\d| +|\n|[^\w ]|_", text)
    return [vocabulary.setdefault(piece, len(vocabulary)) for piece in pieces]


@dataclass(slots=True)
class Replayed:
    """What a drafter did on given texts."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    seconds: float = 0.0  # inside `propose` and `close`

    @property
    def mat(self) -> float:
        """Mean committed tokens per round."""
        return self.num_tokens / self.num_rounds


def replay(
    drafter: Drafter, texts: Sequence[tuple[Sequence[int], Sequence[int]]], shape: DraftShape,
    clock: Callable[[], float] = lambda: 0.0,
) -> Replayed:
    """Rounds of a greedy target that says exactly the given (prompt, answer) ids; one request after another."""
    total = Replayed()
    for number, (prompt, answer) in enumerate(texts):
        ids = np.array([*prompt, *answer], np.int32)
        done, told, round_ = len(prompt), 0, 0
        while done < len(ids):
            context = Context(
                f"request-{number}", told, ids[told:done], len(prompt), done, SamplingParams(), round_,
            )
            began = clock()
            draft = drafter.propose(context, shape).result()
            total.seconds += clock() - began
            assert draft.error is None and not draft.prefix_missing
            accepted = _walk(draft.tokens.tolist(), draft.parents, ids[done:].tolist())
            told, round_ = done, round_ + 1
            committed = min(accepted + 1, len(ids) - done)
            done += committed
            total.num_rounds += 1
            total.num_tokens += committed
            total.num_drafted += len(draft.tokens)
            total.num_accepted += accepted
        began = clock()
        drafter.close(f"request-{number}", ids)
        total.seconds += clock() - began
    return total


def _walk(tokens: list[int], parents: np.ndarray | None, truth: list[int]) -> int:
    """How many draft tokens a target accepts that says `truth`."""
    above = list(range(-1, len(tokens) - 1)) if parents is None else parents.tolist()
    node, accepted = -1, 0
    while accepted < len(truth):
        child = next((i for i, parent in enumerate(above) if parent == node and tokens[i] == truth[accepted]), None)
        if child is None:
            break
        node, accepted = child, accepted + 1
    return accepted
