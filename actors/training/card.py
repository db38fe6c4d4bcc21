"""The model card beside trained weights: what it is, how it was made, what was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from actors.training.evaluate import Acceptance, Evaluation

NAME = "README.md"
FACTS = "training.json"  # the same for programs


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card tells."""

    kind: str
    summary: str
    target: str
    options: dict[str, Any]
    settings: dict[str, Any]  # of the loop
    num_parameters: int  # stored ones
    num_bytes: int
    draft_vocab_size: int  # 0: the target's own
    vocab_coverage: float  # share of the answers' tokens that the draft vocabulary holds
    data: dict[str, Any]  # description of the corpus
    num_texts: int
    num_tokens: int  # of training texts, prompts included
    num_answer_tokens: int
    num_steps: int
    num_trained_tokens: int  # answers, repeats counted
    seconds: float
    machine: str
    lookahead: int
    untrained: Evaluation | None
    trained: Evaluation
    num_held_out: int

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["untrained"] = None if self.untrained is None else self.untrained.to_json()
        return {**values, "trained": self.trained.to_json()}


def write_card(directory: Path, facts: Facts) -> None:
    """Write README.md and training.json."""
    (directory / FACTS).write_text(json.dumps(facts.to_json(), indent=2) + "\n")
    (directory / NAME).write_text(render(facts))


def render(facts: Facts) -> str:
    """The card in Markdown, with the metadata that model hubs read."""
    head = yaml.safe_dump(
        {"base_model": facts.target, "library_name": "outrider", "tags": ["speculative-decoding", facts.kind]},
        sort_keys=False,
    )
    vocabulary = (
        f"{facts.draft_vocab_size} ids, which hold {facts.vocab_coverage:.1%} of the tokens that the target writes"
        if facts.draft_vocab_size else "the target's own"
    )  # fmt: skip
    return _CARD.format(
        head=head, target=facts.target, kind=facts.kind, summary=f"{facts.summary[:1].upper()}{facts.summary[1:]}",
        parameters=facts.num_parameters, megabytes=facts.num_bytes / 2**20, vocabulary=vocabulary,
        options=_pairs(facts.options), weights=facts.data.get("weights"),
        files=", ".join(facts.data.get("prompts", [])) or "none", recipe=_pairs(facts.data.get("recipe", {})),
        texts=facts.num_texts, tokens=facts.num_tokens, answers=facts.num_answer_tokens, steps=facts.num_steps,
        trained=facts.num_trained_tokens, minutes=facts.seconds / 60, machine=facts.machine,
        settings=_pairs(facts.settings), held_out=facts.num_held_out, lookahead=facts.lookahead, table=_table(facts),
    )


_CARD = """---
{head}---

# Draft for {target}: `{kind}`

{summary}. It only guesses; every token is decided by the target, so the text is the target's own.

| | |
|---|---|
| target | `{target}` |
| stored weights | {parameters:,} ({megabytes:.1f} MiB) |
| draft vocabulary | {vocabulary} |
| options | {options} |

## Data

Written by the target itself (weights: {weights}): prompts after its chat template's user turn, then answers
(Magpie, arXiv 2406.08464); no benchmark prompts. Prompt files of the user: {files}.

{texts:,} conversations, {tokens:,} tokens, {answers:,} of them answers. Recipe: {recipe}.

## Training

{steps:,} steps, {trained:,} tokens of text seen (repeats counted), {minutes:.1f} minutes on {machine}.
Settings: {settings}.

## Acceptance

On {held_out} held-out conversations, rounds of {lookahead} drafted tokens in a chain, judged offline along the target's
own text. A column is the share of tokens accepted among those whose predecessors were; MAT is the mean of committed
tokens a round.

{table}
"""


def _table(facts: Facts) -> str:
    positions = [str(i + 1) for i in range(facts.lookahead)]
    rows = [["", *positions, "MAT", "rounds"], ["---"] * (facts.lookahead + 3)]
    for name, evaluation in (("untrained", facts.untrained), ("trained", facts.trained)):
        if evaluation is None:
            continue
        for way, one in (("greedy", evaluation.greedy), ("temperature 1", evaluation.sampled)):
            if one is not None:
                rows.append([f"{name}, {way}", *_shares(one, facts.lookahead), f"{one.mat:.2f}", f"{one.num_rounds}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shares(one: Acceptance, count: int) -> list[str]:
    shares = [f"{value:.3f}" for value in one.by_position]
    return shares + [""] * (count - len(shares))


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items()) or "none"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "/".join(map(str, value)) or "default"
    return f"{value:g}" if isinstance(value, float) else f"{value}"
