"""Logits to log-probabilities: the one pipeline that makes both p and q.

Order: logit_bias, repetition penalty, presence and frequency penalties, min_tokens, temperature, top-k,
top-p, min-p. Every step is a pure function of one row and of the ids before it, so a row's law depends
on its own sequence alone. Two tiers may pad their vocabularies to different sizes: ids that a row does
not have are skipped wherever they are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from actors.sampling.params import SamplingParams
from actors.sampling.validate import check_best, check_logits

IdSequence = Sequence[int] | npt.NDArray[np.int32]

_TOP_P_WIDTHS = (256, 4096)  # candidates tried before a full sort; real laws rarely need more


def process(
    logits: torch.Tensor,  # [V] float32
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> torch.Tensor:  # [V] float32
    """Log-probabilities of the next token, -Inf outside the support; at least one token is kept.

    `history_ids` are all ids before this position: prompt, committed tokens and drafted prefix; the first
    `num_prompt_tokens` of them are the prompt. At temperature 0 the law is a point mass on the argmax.
    Raises `BadLogits`.
    """
    row = greedy_logits(logits, params, history_ids, num_prompt_tokens)
    if params.temperature == 0.0:
        point = torch.full_like(row, -math.inf)
        point[checked_argmax(row.unsqueeze(0))(0)] = 0.0
        return point
    # Subtracting the maximum first keeps a tiny temperature from overflowing.
    row = (row - row.max()) / params.temperature
    row = _min_p(_top_p(_top_k(row, params.top_k), params.top_p), params.min_p)
    return torch.log_softmax(row, dim=-1)


def greedy_logits(
    logits: torch.Tensor,  # [V] float32
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> torch.Tensor:  # [V] float32
    """Logits after bias, penalties and min_tokens: what a greedy request takes the argmax of.

    Returns `logits` itself when no such setting is active; never changes it. Raises `BadLogits`.
    """
    check_logits(logits)
    if not adjusts_logits(params, len(history_ids) - num_prompt_tokens):
        return logits
    row = logits.clone()
    size = row.shape[-1]
    if params.logit_bias:
        pairs = [(token, bias) for token, bias in params.logit_bias if 0 <= token < size]
        ids = torch.tensor([token for token, _ in pairs], dtype=torch.long, device=row.device)
        row.index_add_(0, ids, torch.tensor([b for _, b in pairs], dtype=row.dtype, device=row.device))
    history = np.asarray(history_ids, dtype=np.int64)
    if params.repetition_penalty != 1.0:
        _penalise_repetition(row, history, params.repetition_penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        seen, counts = np.unique(_inside(history[num_prompt_tokens:], size), return_counts=True)
        penalty = params.presence_penalty + params.frequency_penalty * counts
        row[torch.from_numpy(seen).to(row.device)] -= torch.from_numpy(penalty).to(row)
    if len(history) - num_prompt_tokens < params.min_tokens:
        masked = [token for token in params.eos_ids if 0 <= token < size]
        row[torch.tensor(masked, dtype=torch.long, device=row.device)] = -math.inf
    check_logits(row)
    return row


def greedy_argmax(
    logits: torch.Tensor,  # [V] float32
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
) -> int:
    """The id a greedy request takes: argmax of `greedy_logits`, smallest id on ties. Raises `BadLogits`."""
    if adjusts_logits(params, len(history_ids) - num_prompt_tokens):
        logits = greedy_logits(logits, params, history_ids, num_prompt_tokens)
    return checked_argmax(logits.unsqueeze(0))(0)


def checked_argmax(logits: torch.Tensor) -> Callable[[int], int]:
    """Argmax of every row of `logits` [N, V] in one pass; the result maps a row to its id.

    Asking for a row raises `BadLogits` if that row is bad: a NaN wins numpy's argmax, so looking at the
    winner is enough. numpy settles ties (first wins), and is much faster at this than torch on a CPU.
    """
    values = logits.detach().cpu().numpy()
    best = values.argmax(axis=-1)

    def winner(row: int) -> int:
        token = int(best[row])
        check_best(float(values[row, token]))
        return token

    return winner


def adjusts_logits(params: SamplingParams, num_output_tokens: int) -> bool:
    """Whether `greedy_logits` changes a row with `num_output_tokens` before it, or any row after that one."""
    return (
        bool(params.logit_bias)
        or params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or (num_output_tokens < params.min_tokens and bool(params.eos_ids))
    )


def top_ids(row: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` largest of `row` [V], best first; ties go to the smaller id. [min(count, V)]

    `torch.topk` leaves the order of ties open; here they are part of the law, so they are settled.
    """
    if count >= row.shape[-1]:
        return torch.argsort(row, descending=True, stable=True)
    if count <= 0:
        return torch.empty(0, dtype=torch.long, device=row.device)
    threshold = torch.topk(row, count).values[-1]
    above = (row > threshold).nonzero().squeeze(-1)
    ties = (row == threshold).nonzero().squeeze(-1)[: count - len(above)]
    order = torch.argsort(row[above], descending=True, stable=True)
    return torch.cat([above[order], ties])


def _penalise_repetition(row: torch.Tensor, history: npt.NDArray[np.int64], penalty: float) -> None:
    """Divide positive and multiply negative logits of seen ids, prompt included (CTRL, 1909.05858, §4.1)."""
    seen = torch.from_numpy(np.unique(_inside(history, row.shape[-1]))).to(row.device)
    values = row[seen]
    row[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _inside(ids: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    return ids[(ids >= 0) & (ids < size)]


def _top_k(row: torch.Tensor, top_k: int) -> torch.Tensor:
    """Keep the `top_k` best."""
    if top_k <= 0 or top_k >= row.shape[-1]:
        return row
    return _only(row, top_ids(row, top_k))


def _top_p(row: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest best tokens whose mass reaches `top_p` (Holtzman et al. 1904.09751)."""
    if top_p >= 1.0:
        return row
    size = row.shape[-1]
    log_mass = torch.logsumexp(row.double(), dim=-1)
    for width in (*(w for w in _TOP_P_WIDTHS if w < size), size):
        ids = top_ids(row, width)
        probs = (row[ids].double() - log_mass).exp()
        mass = probs.cumsum(0)
        if width == size or float(mass[-1]) >= top_p:
            keep = mass - probs < top_p
            keep[0] = True
            return _only(row, ids[keep])
    raise AssertionError("unreachable: the last width is the whole row")


def _min_p(row: torch.Tensor, min_p: float) -> torch.Tensor:
    """Keep tokens at least `min_p` times as likely as the best (Nguyen et al. 2407.01082)."""
    if min_p <= 0.0:
        return row
    floor = row.max() + math.log(min(min_p, 1.0))
    return torch.where(row >= floor, row, -math.inf)


def _only(row: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    kept = torch.full_like(row, -math.inf)
    kept[ids] = row[ids]
    return kept
