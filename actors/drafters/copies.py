"""Copying: what followed the end of a text where it stood before, mixed into the law that a drafter draws from.

A small model cannot hold what a text repeats (names, numbers, quoted passages); the text itself does. Pointer networks
mix the two laws by a learned gate (Vinyals et al., 1506.03134; See et al., 1704.04368, equation 9). Here the gate is
counted, not trained: with n the length of the longest end of the text that stood before,

    q = (1 - lambda_n) q_model + lambda_n (shares of the tokens that followed there),

and lambda_n is learned while drafting, as the weight under which the tokens that came were likeliest (expectation
maximisation of a mixture's weight, online): a copy that was right where the model was right as well earns little.
CopySpec (2502.08923) and SuffixDecoding (2411.04975) copy instead of drafting where a match is long; mixed, a draft may
go in and out of copies token by token, and where a copy is unlikely it is still the next best child of a tree's node.

The mixture is made of the model's logits, before anything else looks at them: so it is warped, penalised and masked
like any law, and what is drawn from it is drawn from the law that is told. It needs no memory of the sequences: a text
is searched as it stands, what was drafted of it included, in a few microseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch

from actors.messages import Context, Ids, ReplicaStats
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.ranking import Indices
from actors.sampling.rows import Floats32, LogitRows

LONGEST = 16  # of an end that is looked up, tokens
_MOST_PLACES = 64  # at which it is compared: the latest
_OFFSETS = np.arange(1, LONGEST)
_COUNTED = 8  # longer ends count alike
_PRIOR = (0.0, 0.3, 0.5, 0.65, 0.8)  # of lambda by length, the last one for all longer
_PRIOR_WEIGHT = 8.0  # in tokens seen
_MOST_SEEN = 512.0  # then all counts of a length are halved: what was learned long ago is forgotten
_SURE = 0.97  # lambda at most, and 1 - lambda: never all of the law
_MOST_LEARNED = 32  # tokens of a call
_MOST_NOTES = 4096  # laws whose tokens are awaited


@dataclass(frozen=True, slots=True)
class Followers:
    """The tokens that followed the longest end of a text that it had before."""

    length: int  # of that end, at most `LONGEST`
    ids: tuple[int, ...]  # the most frequent first, of equals the latest
    shares: tuple[float, ...]  # of the places
    num_places: int

    @property
    def kind(self) -> tuple[int, int]:
        """What lambda hangs on: the length, and whether there is one place, several that agree, or several that do
        not."""
        return min(self.length, _COUNTED), 0 if self.num_places == 1 else 1 if len(self.ids) == 1 else 2


def followers(text: Ids) -> Followers | None:
    """What followed the end of `text` [n] before; None: its last token is new."""
    if len(text) < 2:
        return None
    places = np.flatnonzero(text[:-1] == text[-1])  # of the end's last token
    if not len(places):
        return None
    length = 1
    while len(places) > _MOST_PLACES and length < LONGEST:
        more = places[places >= length]
        more = more[text[more - length] == text[-1 - length]]
        if not len(more):
            break
        places, length = more, length + 1
    places = places[-_MOST_PLACES:]
    offsets = _OFFSETS[: len(text) - 1]
    before = places[:, None] - offsets
    same = (text[before] == text[len(text) - 1 - offsets]) & (before >= 0)
    lengths = 1 + np.where(same.all(axis=1), len(offsets), same.argmin(axis=1))
    length = int(lengths.max())
    tokens: list[int] = text[places[lengths == length] + 1].tolist()
    counts = Counter(reversed(tokens)).most_common()
    ids, times = zip(*counts, strict=True)
    return Followers(length, ids, tuple(count / len(tokens) for count in times), len(tokens))


def mixed(logits: LogitRows, index: int, found: Followers, weight: float) -> tuple[LogitRows, list[float]]:
    """Row `index` as a row of its own, whose softmax is 1 - `weight` of what it was and `weight` of the shares.

    Beside it what the softmax gave to each of the followers, 0 to those that are no ids of it. Tokens that the model
    never drafts may come by being copied. Raises `BadLogits`.
    """
    row, support, top = logits.row(index), logits.support, logits.top(index)
    mass = float(np.exp((row if support is None else row[support]) - top).sum())
    ids = np.array(found.ids)
    known = ids < len(row)
    probs = np.zeros(len(ids))
    probs[known] = np.exp(row[ids[known]] - top) / mass
    if not known.any():
        return logits.part(index, index + 1), probs.tolist()
    ids, shares = ids[known], np.array(found.shares)[known]
    added = top + math.log(mass * weight / (1.0 - weight)) + np.log(shares / shares.sum())
    values: Floats32 = row.copy()
    values[ids] = np.logaddexp(values[ids], added)
    support = None if support is None else _with(support, ids)
    return LogitRows(torch.from_numpy(values[None]), support), probs.tolist()


def _with(support: Indices, ids: Indices) -> Indices:
    """Ascending `support`, and those of `ids` that it lacks."""
    places = np.searchsorted(support, ids)
    missing = ids[support[np.minimum(places, len(support) - 1)] != ids]
    missing.sort()
    return np.insert(support, np.searchsorted(support, missing), missing) if len(missing) else support


@dataclass(frozen=True, slots=True)
class _Note:
    """What a law was mixed of, until it is known which token came."""

    found: Followers
    probs: list[float]  # of the followers, by the model
    weight: float


class Copies:
    """Mixes copies in, and learns how far they may be trusted. One for a drafter, whose thread alone calls it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[bool, int, int], list[float]] = {}  # whether greedy, and kind -> due to copies, all
        self._notes: dict[tuple[int, bytes], _Note] = {}  # by length and end of the text, whoever's; oldest first
        self.num_found = 0  # tokens with whose laws copies were mixed
        self.num_right = 0  # of these, tokens that were among the copies

    def mix(self, logits: LogitRows, index: int, params: SamplingParams, text: Ids) -> LogitRows:
        """One row: the law after `text`, of which row `index` is the model's. Raises `BadLogits`."""
        found = followers(text)
        if found is None:
            return logits.part(index, index + 1)
        weight = self.weight(params, found)
        row, probs = mixed(logits, index, found, weight)
        if len(self._notes) >= _MOST_NOTES:
            del self._notes[next(iter(self._notes))]
        self._notes[_place(text)] = _Note(found, probs, weight)
        return row

    def weight(self, params: SamplingParams, found: Followers) -> float:
        """lambda: the share of copies in the law."""
        due, seen = self._counts(params, found)
        return min(max(due / seen, 1.0 - _SURE), _SURE)

    def learn(self, context: Context, text: Ids) -> None:
        """Which tokens came where copies had been mixed in? `text` begins with the context's, of which those are looked
        at that were committed since the last call.

        The model's own guess enters here, but not what was drawn: what is learned does not hang on it.
        """
        end = min(context.num_committed, context.num_tokens)
        for place in range(max(context.start, context.num_prompt_tokens, end - _MOST_LEARNED), end):
            note = self._notes.get(_place(text[:place]))
            if note is None:  # nothing was drafted there
                continue
            token, due = int(text[place]), 0.0
            if token in note.found.ids:
                which = note.found.ids.index(token)
                copied = note.weight * note.found.shares[which]
                due = copied / (copied + (1.0 - note.weight) * note.probs[which])
            self.num_found += 1
            self.num_right += token in note.found.ids
            counts = self._counts(context.sampling, note.found)
            counts[0] += due
            counts[1] += 1.0
            if counts[1] >= _MOST_SEEN:
                counts[0] /= 2
                counts[1] /= 2

    def _counts(self, params: SamplingParams, found: Followers) -> list[float]:
        key = (params.mode is VerifyMode.GREEDY, *found.kind)
        if key not in self._seen:
            prior = _PRIOR[min(found.length, len(_PRIOR) - 1)]
            self._seen[key] = [prior * _PRIOR_WEIGHT, _PRIOR_WEIGHT]
        return self._seen[key]


def _place(text: Ids) -> tuple[int, bytes]:
    return len(text), text[-LONGEST:].tobytes()


def with_copies(stats: ReplicaStats, copies: Copies | None) -> ReplicaStats:
    """A drafter's counters, and in `extra` those of its copies, if it makes any."""
    if copies is None:
        return stats
    counts = {"num_copies_found": float(copies.num_found), "num_copies_right": float(copies.num_right)}
    return replace(stats, extra={**stats.extra, **counts})
