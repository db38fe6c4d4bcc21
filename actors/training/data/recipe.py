"""What a corpus is to consist of. Every conversation is a function of (target, recipe, index) alone.

So a corpus can be cut off anywhere and gone on with, on any number of sequences at once, and comes out the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

# What a chat model was tuned to be asked for follows its template without more ado; system prompts and beginnings of
# questions only make sure that no sort of task is missing. They say nothing of how any benchmark words its own.
TOPICS = (
    "The user asks for a translation of a sentence or two into English.",
    "The user asks for a translation of a short text from English into another language.",
    "The user asks for a summary of a text of several paragraphs, which is part of the message.",
    "The user asks a short question about a fact: geography, history, science, sports, films, music or people.",
    "The user asks for the solution of a word problem with numbers, step by step.",
    "The user asks for a short program or for an explanation of a piece of code.",
    "The user gives some passages of background and asks a question that they answer.",
    "The user asks for a story, a poem, an e-mail or another piece of writing.",
    "The user asks for advice on everyday life, health, work or travel.",
    "The user asks to sort, extract, rewrite or classify something in the message.",
    "The user asks for an explanation of an idea from physics, biology, economics or philosophy.",
    "The user asks to take on a role and to stay in it.",
    "The user asks for a comparison of two things, with arguments for and against.",
    "The user asks for a list of ideas.",
)
OPENINGS = (
    "Translate", "Summarize the following", "What is", "Who was", "When did", "How many", "How do I", "Why do",
    "Explain", "Write a", "If ", "In the", "The following", "Calculate", "Can you", "Give me", "Compare", "Rewrite",
    "List", "Read the text below and answer the question.", "A ", "Create", "Describe", "Imagine", "Which", "Suppose",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """One conversation: what each turn is asked for."""

    index: int
    topic: str  # system prompt under which the question is written; empty: the template's own
    opening: str  # the beginning of the question; empty: the target begins by itself
    question_temperature: float
    answer_temperature: float
    num_turns: int
    seed: int  # of the noise of all its turns
    held_out: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of a corpus. Shares are of conversations."""

    seed: int = 0
    question_temperatures: tuple[float, ...] = (1.0, 0.8)
    answer_temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)  # one is taken for each conversation
    max_question_tokens: int = 256
    max_answer_tokens: int = 384
    topic_share: float = 0.4
    opening_share: float = 0.2
    second_turn_share: float = 0.2
    held_out_share: float = 0.05

    def plan(self, index: int) -> Plan:
        """The conversation of an index."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, 1, index))))
        steer, turn, held, topic, opening = rng.random(5).tolist()
        share = self.topic_share
        return Plan(
            index,
            TOPICS[int(topic * len(TOPICS))] if steer < share else "",
            OPENINGS[int(opening * len(OPENINGS))] if share <= steer < share + self.opening_share else "",
            self.question_temperatures[int(rng.integers(len(self.question_temperatures)))],
            self.answer_temperatures[int(rng.integers(len(self.answer_temperatures)))],
            2 if turn < self.second_turn_share else 1,
            int(rng.integers(2**62)),
            held < self.held_out_share,
        )

    def to_json(self) -> dict[str, Any]:
        """For the corpus's own description."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Inverse of `to_json`. Raises `TypeError` for unknown fields."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**fields)
