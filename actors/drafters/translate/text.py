"""Text-level re-encoding: what the draft model says is read as text, and cut as the verifying tier's tokenizer cuts it.

Timor et al. 2502.05202, algorithm 2 ("SLEM"), known as universal assisted generation. The draft model goes on greedily,
whatever the request's sampling is: so the draft is a function of the text before it, a point mass, and the verifying
tier may judge it by exact match or by rejection with that q. Nothing that was drawn at random is ever left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from actors.drafters.translate.base import Call, TranslatingDrafter
from actors.drafters.translate.recoding import cut, num_incomplete
from actors.drafters.translate.spelling import Spelling
from actors.messages import Draft, DraftShape
from actors.sampling.params import SamplingParams


class TextDrafter(TranslatingDrafter):
    """Drafts text."""

    def _ask(self, call: Call) -> Future[Draft]:
        asked = call.context.sampling
        greedy = SamplingParams(
            repetition_penalty=asked.repetition_penalty, presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
        )
        return self._inner.propose(replace(call.lower, sampling=greedy), DraftShape(call.shape.num_tokens))

    def _answer(self, call: Call, draft: Draft) -> Draft:
        ids = translated(draft.tokens.tolist(), self._lower, self._upper, call.tail, call.waiting)
        return replace(draft, tokens=np.array(ids[: call.shape.num_tokens], np.int32), tier=self._info.tier)


def translated(
    lower_ids: Sequence[int], lower: Spelling, upper: Spelling, tail: bytes, waiting: bytes
) -> list[int]:
    """The upper tokenizer's tokens for what the lower ids say after a text that ends in `tail`.

    The two may cut the text at different places. So the end of the text is encoded together with what follows, and the
    tokens after it are the draft; where a token would reach across, what follows is encoded alone. `waiting`: bytes at
    the end of `tail` that begin a character, which `lower_ids` have to say again.
    """
    said, ends = bytearray(), False
    for token in lower_ids:
        if token == lower.eos_id:
            ends = True
            break
        if token in lower.special:
            break
        said += lower.pieces.get(token, b"")
    if not said.startswith(waiting):
        return []
    text = tail + bytes(said[len(waiting) :])
    missing = num_incomplete(text)
    text = text[: len(text) - missing]
    ids = _after(upper, text, len(tail)) if len(text) > len(tail) else []
    if ends and not missing and upper.eos_id is not None and (ids or len(text) == len(tail)):
        ids.append(upper.eos_id)
    return ids


def _after(upper: Spelling, text: bytes, start: int) -> list[int]:
    """Tokens of `text` from byte `start` on."""
    ids, ends = cut(upper, text)
    if start == 0:
        return ids
    if start in ends:
        return ids[len(ends) - ends[::-1].index(start) :]
    rest = text[start:]
    if rest[0] & 0xC0 == 0x80:
        return []  # it begins inside a character, which no tokenizer takes
    ids, _ = cut(upper, rest)
    return ids if b"".join(upper.literal(token) for token in ids) == rest else []
