"""A target that writes at once, and its chat template: what sampling does with texts, without a model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from actors.messages import Ids
from actors.training.data.turns import Message

END = 0
_OPEN, _CLOSE = 1, 2
_LETTERS = 20


class FakeTurns:
    """A question stands between two marks; letters are ids from 3 on."""

    has_template = True

    def before_question(self, topic: str, opening: str) -> Ids:
        return _ids([_OPEN, *self._letters(topic[:3]), *self._letters(opening[:3])])

    def before_answer(self, messages: list[Message]) -> Ids:
        return _ids([_OPEN, *self._letters(messages[0]["content"]), _CLOSE])

    def next_question(self, messages: list[Message]) -> Ids | None:
        return _ids([END, _OPEN])

    def after_question(self, messages: list[Message]) -> Ids:
        return _ids([_CLOSE])

    def text(self, ids: Ids) -> str:
        return "".join(chr(ord("a") + (int(i) - 3) % _LETTERS) for i in ids if i > _CLOSE)

    def _letters(self, text: str) -> list[int]:
        return [3 + (ord(c) - ord("a")) % _LETTERS for c in text]


class FakeWriter:
    """Texts are functions of prompt and seed; they take as many steps as they have tokens, `num_parallel` at a time."""

    max_context_tokens = 400

    def __init__(self, num_parallel: int = 4, question: int | None = None) -> None:
        """`question`: the seed of every question, so that all are the same."""
        self.num_parallel = num_parallel
        self.num_written = 0
        self.end_ids = frozenset({END})
        self._question = question
        self._writing: list[tuple[int, Ids, Callable[[Ids], None]]] = []

    @property
    def num_active(self) -> int:
        return len(self._writing)

    def start(
        self, prompt: Ids, max_tokens: int, temperature: float, seed: int, then: Callable[[Ids], None]
    ) -> None:
        is_question = int(prompt[-1]) != _CLOSE
        if is_question and self._question is not None:
            seed = self._question
        rng = np.random.default_rng((seed, int(prompt.sum())))
        if not is_question and rng.random() < 0.2:  # an answer that turns in circles
            text = np.tile(rng.integers(3, 3 + _LETTERS, 5), 60)[:max_tokens]
        else:
            text = np.append(rng.integers(3, 3 + _LETTERS, rng.integers(2, 40)), END)[:max_tokens]
        self._writing.append((len(text), text.astype(np.int32), then))

    def step(self) -> None:
        ended = [(text, then) for left, text, then in self._writing if left <= 1]
        self._writing = [(left - 1, text, then) for left, text, then in self._writing if left > 1]
        for text, then in ended:
            self.num_written += len(text)
            then(text)


def _ids(values: list[int]) -> Ids:
    return np.array(values, np.int32)
