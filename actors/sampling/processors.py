"""Logits to laws: the one pipeline that makes both p and q.

Order: logit_bias, repetition penalty, presence and frequency penalties, min_tokens and grammar, temperature, top-k,
top-p, min-p. Every step is a pure function of one row and of the ids before it, so a row's law depends
on its own sequence alone. Two tiers may pad their vocabularies to different sizes: ids that a row does
not have are skipped wherever they are named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from actors.grammar.compiled import masks_of
from actors.grammar.grammar import Grammar
from actors.sampling.params import SamplingParams
from actors.sampling.ranking import Floats32, Indices, nucleus, top_ids
from actors.sampling.rows import LogitRows
from actors.sampling.validate import check_best

IdSequence = Sequence[int] | npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_FEW = 4  # a law over one in so many ids is computed without the others
_LEAST_TEMPERATURE = 1e-30  # float32 divides by it; a point mass long before


@dataclass(frozen=True, slots=True)
class LogWeights:
    """A law before it is normalised: log-weights of the tokens that may come, the largest being 0."""

    size: int  # of the vocabulary
    ids: Indices | None  # [m] ascending; None: the whole vocabulary
    logs: Floats32  # [m]; -Inf (a masked token) only where `ids` is None

    def probabilities(self) -> Floats:
        """Normalised probabilities, [m]; 0 for what is 1e-45 times as likely as the best, or less."""
        weights = np.exp(self.logs)
        normal: Floats = np.divide(weights, weights.sum(dtype=np.float64), dtype=np.float64)
        return normal

    def scatter(self, values: Floats) -> Floats:
        """`values` [m] over the whole vocabulary, 0 where no token may come. [size]"""
        if self.ids is None:
            return values
        dense = np.zeros(self.size)
        dense[self.ids] = values
        return dense


def weigh(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int
) -> LogWeights:
    """The law of the next token, after row `index` of `logits`; at least one token is kept.

    `history_ids` are all ids before this position: prompt, committed tokens and drafted prefix; the first
    `num_prompt_tokens` of them are the prompt. At temperature 0 the law is a point mass on the argmax.
    Raises `BadLogits`.
    """
    if params.temperature == 0.0:
        best = greedy_argmax(logits, index, params, history_ids, num_prompt_tokens)
        return LogWeights(logits.vocab_size, np.array([best]), np.zeros(1, np.float32))
    support = logits.support
    if adjusts_logits(params, len(history_ids) - num_prompt_tokens):
        row = adjusted(logits.row(index), params, history_ids, num_prompt_tokens)
        if params.grammar is not None:
            support = _narrowed(row, support)
        row = _supported(row, support)
        top = float(row.max(initial=-math.inf))
        check_best(top)
    else:
        row, top = _supported(logits.row(index), support), logits.top(index)
    with np.errstate(over="ignore"):  # what overflows at a tiny temperature is -Inf: as unlikely as it says
        logs = (row - np.float32(top)) / np.float32(max(params.temperature, _LEAST_TEMPERATURE))
    law = _cut(logs, params)
    return law if support is None else _of_support(law, support, logits.vocab_size)


def process(
    logits: torch.Tensor,  # [V] float32
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> torch.Tensor:  # [V] float32
    """`weigh` as log-probabilities over the whole vocabulary, -Inf outside the support. Raises `BadLogits`."""
    law = weigh(LogitRows(logits[None]), 0, params, history_ids, num_prompt_tokens)
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(law.scatter(law.probabilities())).astype(np.float32))


def adjusted(
    logits: Floats32,  # [V]
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> Floats32:  # [V]
    """A copy of a row after bias, penalties, min_tokens and grammar: what a greedy request takes the argmax of."""
    row = logits.copy()
    size = len(row)
    if params.logit_bias:
        pairs = [(token, bias) for token, bias in params.logit_bias if 0 <= token < size]
        np.add.at(row, [token for token, _ in pairs], np.array([bias for _, bias in pairs], np.float32))
    history = np.asarray(history_ids, dtype=np.int64)
    if params.repetition_penalty != 1.0:
        _penalise_repetition(row, history, params.repetition_penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        seen, counts = np.unique(_inside(history[num_prompt_tokens:], size), return_counts=True)
        row[seen] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    ends = [token for token in params.eos_ids if 0 <= token < size]
    if len(history) - num_prompt_tokens >= params.min_tokens:
        ends = []
    if params.grammar is not None:
        row[~_allowed(params.grammar, _output(history_ids, num_prompt_tokens), size, ends)] = -math.inf
    else:
        row[ends] = -math.inf
    return row


def greedy_argmax(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int
) -> int:
    """The id a greedy request takes: argmax after adjustments, smallest id on ties. Raises `BadLogits`."""
    num_output = len(history_ids) - num_prompt_tokens
    if not _changes_values(params, num_output):
        best = logits.best(index)
        if params.grammar is None or masks_of(params.grammar).allows(_output(history_ids, num_prompt_tokens), best):
            return best
    row = _supported(adjusted(logits.row(index), params, history_ids, num_prompt_tokens), logits.support)
    best = int(row.argmax())
    check_best(float(row[best]))
    return best if logits.support is None else int(logits.support[best])


def _supported(row: Floats32, support: Indices | None) -> Floats32:
    return row if support is None else row[support]


def _of_support(law: LogWeights, support: Indices, size: int) -> LogWeights:
    """A law over places in `support` as one over ids."""
    ids, logs = law.ids, law.logs
    if ids is None:
        ids = np.flatnonzero(logs > -np.inf)
        logs = logs[ids]
    return LogWeights(size, support[ids], logs)


def can_go_on(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int
) -> bool:
    """Whether the grammar leaves a drafter a token to draw from row `index`: its vocabulary may be too small for it.

    After the end of the text there is none either, though there is a law. Raises `BadLogits`, `BadGrammar`.
    """
    if params.grammar is None:
        return True
    masks, output = masks_of(params.grammar), _output(history_ids, num_prompt_tokens)
    if masks.has_ended(output):
        return False
    if masks.allows(output, logits.best(index)):
        return True
    row = logits.row(index).copy()
    row[~_allowed(params.grammar, output, len(row), [])] = -math.inf
    return bool((_supported(row, logits.support) > -math.inf).any())


def _allowed(
    grammar: Grammar, output: npt.NDArray[np.int32], size: int, ends: list[int]
) -> npt.NDArray[np.bool_]:
    """Which of `size` ids may follow `output`, [size]; `ends` may not, unless the grammar has nothing else left."""
    allowed = np.zeros(size, np.bool_)
    known = masks_of(grammar).allowed(output)[:size]
    allowed[: len(known)] = known
    if ends:
        others = allowed.copy()
        others[ends] = False
        if others.any():
            return others
    return allowed


def _narrowed(row: Floats32, support: Indices | None) -> Indices | None:
    """Of `support`, the ids that are not masked, where these are few: what is computed for the others is lost."""
    left = np.flatnonzero(row > -np.inf) if support is None else support[row[support] > -np.inf]
    return left if len(left) * _FEW <= len(row) or support is not None else None


def _output(history_ids: IdSequence, num_prompt_tokens: int) -> npt.NDArray[np.int32]:
    return np.asarray(history_ids, np.int32)[num_prompt_tokens:]


def adjusts_logits(params: SamplingParams, num_output_tokens: int) -> bool:
    """Whether `adjusted` changes a row with `num_output_tokens` before it, or any row after that one."""
    return params.grammar is not None or _changes_values(params, num_output_tokens)


def _changes_values(params: SamplingParams, num_output_tokens: int) -> bool:
    """Whether more is changed than which ids the grammar lets come."""
    return (
        bool(params.logit_bias)
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or (num_output_tokens < params.min_tokens and bool(params.eos_ids))
    )


def _penalise_repetition(row: Floats32, history: npt.NDArray[np.int64], penalty: float) -> None:
    """Divide positive and multiply negative logits of seen ids, prompt included (CTRL, 1909.05858, §4.1).

    All values are read before the first is written, so an id seen twice is penalised once.
    """
    seen = _inside(history, len(row))
    values = row[seen]
    row[seen] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def _inside(ids: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    return ids[(ids >= 0) & (ids < size)]


def _cut(logs: Floats32, params: SamplingParams) -> LogWeights:
    """Top-k, top-p and min-p of log-weights [V] whose maximum is 0."""
    size = len(logs)
    ids: Indices | None = None
    if 0 < params.top_k < size:
        ids = np.sort(top_ids(logs, params.top_k))
        ids = ids[logs[ids] > -np.inf]
        logs = logs[ids]
    if params.top_p < 1.0:
        kept = nucleus(logs, params.top_p)
        ids, logs = _narrow(ids, kept), logs[kept]
    if params.min_p > 0.0:  # at least that many times as likely as the best (Nguyen et al. 2407.01082)
        kept = np.flatnonzero(logs >= math.log(min(params.min_p, 1.0)))
        ids, logs = _narrow(ids, kept), logs[kept]
    return LogWeights(size, ids, logs)


def _narrow(ids: Indices | None, kept: Indices) -> Indices:
    return kept if ids is None else ids[kept]
