"""Drawing a chain of tokens, whoever asked for it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from actors.answer import Answer
from actors.drafters.copies import Copies
from actors.drafters.tail import Tail
from actors.engine.jobs import Job
from actors.messages import Context, Draft, Ids
from actors.sampling import laws as draft_laws
from actors.sampling.draw import Drawn
from actors.sampling.ending import ends_draft
from actors.sampling.laws import SparseLaw
from actors.sampling.params import VerifyMode
from actors.sampling.processors import adjusts_logits
from actors.sampling.rows import LogitRows
from actors.sampling.siblings import draw_children


class ChainJob(Job):
    """Catches up with the context, then draws tokens one by one, after those that an earlier call left here."""

    def __init__(
        self, context: Context, num_tokens: int, tier: int, law_support: int, rng: np.random.Generator | None,
        num_siblings: int = 0, copies: Copies | None = None,
    ) -> None:
        """`num_siblings`: next best tokens to be told beside each token of the chain."""
        future: Answer[Any] = Answer()
        super().__init__(context, future)
        self._num_tokens = num_tokens
        self._tier = tier
        self._law_support = law_support
        self._rng = rng
        self._num_siblings = num_siblings
        self._copies = copies
        self._tail = Tail(context.num_tokens, context.sampling)

    @abc.abstractmethod
    def answer(self) -> None:
        """All tokens are there: resolve the future."""

    def draft_ids(self) -> Ids:
        """What is known of the draft already, but for a last token that need not be run, [num_known] int32."""
        tokens = self._tail.tokens
        return np.array(tokens if len(tokens) < self._num_tokens else tokens[:-1], np.int32)

    def recall(self, notes: object | None, num_common: int) -> object | None:
        """Go on with what is left of the last draft, or of the branch that the sequence now is."""
        if isinstance(notes, Tail):
            self._tail = notes.after(self.context, num_common)
            if self._num_siblings and len(self._tail.siblings) != len(self._tail.tokens):
                self._tail = Tail(self.context.num_tokens, self.context.sampling)  # it was drawn without them
        self.num_known = len(self._tail.tokens)
        if self.num_known >= self._num_tokens:
            self.answer()
        return self._tail

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Draw the next token; it is fed unless it is the last one wanted. A lossy policy or the grammar may
        end the draft before.
        """
        context, tail = self.context, self._tail
        if self._copies is not None:
            logits = self._copies.mix(logits, 0, context.sampling, history_ids)
        if ends_draft(logits, 0, context.sampling, history_ids, context.num_prompt_tokens):
            self.answer()
            return None
        drawn, *siblings = draw_children(
            logits, 0, context.sampling, history_ids, context.num_prompt_tokens, self._rng, self._law_support,
            1 + self._num_siblings,
        )
        if self._num_siblings:
            tail.siblings.append(tuple(siblings))
        tail.tokens.append(drawn.token)
        if drawn.law is not None:
            tail.laws.append(drawn.law)
        if len(tail.tokens) < self._num_tokens:
            return drawn.token
        self.answer()
        return None

    def num_greedy(self) -> int:
        """All that are left of the chain, where nothing but the model's likeliest ids matters."""
        sampling, context = self.context.sampling, self.context
        if sampling.mode is not VerifyMode.GREEDY or sampling.lossy is not None or self._num_siblings:
            return 1
        if self._copies is not None:
            return 1
        if adjusts_logits(sampling, context.num_tokens - context.num_prompt_tokens):
            return 1
        return self._num_tokens - len(self._tail.tokens)

    def on_best(self, ids: Sequence[int]) -> int | None:
        """As if drawn one by one."""
        self._tail.tokens.extend(ids)
        if len(self._tail.tokens) < self._num_tokens:
            return ids[-1]
        self.answer()
        return None

    def draft(self) -> Draft:
        """The tokens drawn so far."""
        tokens, laws = self._tail.tokens[: self._num_tokens], self._tail.laws[: self._num_tokens]
        parents: Ids | None = None
        if self._num_siblings:
            tokens, laws, parents = comb(tokens, laws, self._tail.siblings)
        return Draft(
            tokens=np.array(tokens, np.int32), parents=parents, laws=draft_laws.build(laws) if laws else None,
            tier=self._tier, seconds=self.seconds, model_seconds=self.model_seconds,
            num_cached_tokens=self.num_cached_tokens,
            pass_rows=self.pass_rows, pass_seconds=self.pass_seconds,
        )


def comb(
    tokens: Sequence[int], laws: Sequence[SparseLaw], siblings: Sequence[tuple[Drawn, ...]]
) -> tuple[list[int], list[SparseLaw], Ids]:
    """Tokens, laws and parents of a chain with the siblings of each of its tokens, in the order of drawing."""
    nodes: list[int] = []
    node_laws: list[SparseLaw] = []
    parents: list[int] = []
    last = -1
    for place, (token, others) in enumerate(zip(tokens, siblings, strict=False)):
        nodes += [token, *(drawn.token for drawn in others)]
        parents += [last] * (1 + len(others))
        if laws:
            node_laws.append(laws[place])
            node_laws += [drawn.law for drawn in others if drawn.law is not None]
        last = len(nodes) - 1 - len(others)
    return nodes, node_laws, np.array(parents, np.int32)
