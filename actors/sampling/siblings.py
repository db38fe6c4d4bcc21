"""Drawing the children of one node of a token tree, and how sure the drafter is of each.

What a drafter may do in the rejection modes, where tokens are random and verification counts on their laws:

- *Grow where it likes.* Which node gets children next, how many, and when to stop may depend on everything drawn so
  far, this node's own token included: decide, then draw. `count` is therefore an argument here.
- *Stop early*: a level or a rest of siblings that has not been drawn yet may be left out for any reason, time too.
- *Never drop a drawn node* because of what it is, its confidence included: neither a sibling nor a subtree. (EAGLE-2's
  last step, keeping the best n of all drawn nodes, is such a drop; it is for greedy and coupled requests alone.) What
  may go, by limits settled before any of it was drawn, is a tail of the drawing order or all levels below some depth.

Greedy and coupled texts do not depend on the tree, so there anything goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from actors.sampling.draw import Drawn, coupled_best, draw
from actors.sampling.laws import SparseLaw, normalised, sample, truncate
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import IdSequence, adjusted, adjusts_logits, weigh
from actors.sampling.ranking import Floats32, top_ids
from actors.sampling.rows import LogitRows
from actors.sampling.validate import check_best


def draw_children(
    logits: LogitRows,
    index: int,
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    rng: np.random.Generator | None,
    law_support: int,
    count: int,
) -> list[Drawn]:
    """Draw `count` different tokens after `history_ids` (the path to the node included), best or first drawn first.

    Greedy takes the `count` best, coupled the `count` largest of log q + g. The rejection modes draw one after another
    from what the earlier ones have left of the `law_support` likeliest tokens, renormalised, and each token comes with
    the law it was really drawn from. Fewer come if the law has fewer: that, too, is settled before a token is drawn.
    One child is what `draw` gives. Raises `BadLogits`.
    """
    if count < 1:
        raise ValueError(f"{count} children: ask for at least one")
    if count == 1:
        return [draw(logits, index, params, history_ids, num_prompt_tokens, rng, law_support)]
    mode = params.mode
    if mode is VerifyMode.GREEDY:
        best = _greedy_best(logits, index, params, history_ids, num_prompt_tokens, count)
        return [Drawn(token, None) for token in best]
    law = weigh(logits, index, params, history_ids, num_prompt_tokens)
    if mode is VerifyMode.COUPLED:
        return [Drawn(token, None) for token in coupled_best(law, params, len(history_ids), count)]
    if rng is None:
        raise ValueError("a draft for rejection sampling needs noise: pass stream(..., Purpose.DRAFT, ...)")
    return _without_replacement(truncate(law, law_support), rng, count)


def confidences(logits: LogitRows, index: int, children: Sequence[Drawn]) -> list[float]:
    """The drafter's probability of each of the `children` that `draw_children` drew from row `index`.

    Of children with laws: under the law of the first, before anything was taken out of it. Of others: under the plain
    softmax of the unmodified row, which costs a pass over the row. Products along a path rank nodes for growing.
    """
    if not children:
        return []
    if (law := children[0].law) is not None:
        ids, probs = law
        return [float(probs[ids == child.token].sum()) for child in children]
    return _softmax(logits.row(index), [child.token for child in children])


def _greedy_best(
    logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int, count: int
) -> list[int]:
    """The best ids after adjustments that are not masked; the first is `greedy_argmax`."""
    row = logits.row(index)
    if adjusts_logits(params, len(history_ids) - num_prompt_tokens):
        row = adjusted(row, params, history_ids, num_prompt_tokens)
        check_best(float(row.max()))
    best = top_ids(row, count)
    kept: list[int] = best[row[best] > -np.inf].tolist()
    return kept


def _without_replacement(law: SparseLaw, rng: np.random.Generator, count: int) -> list[Drawn]:
    """Children drawn one after another, each from what is left."""
    ids, probs = law
    drawn: list[Drawn] = []
    while True:
        place = sample(normalised(probs), rng.random())
        drawn.append(Drawn(int(ids[place]), (ids, probs)))
        if len(drawn) == min(count, len(law[0])):
            return drawn
        ids = np.delete(ids, place)
        probs = normalised(np.delete(probs, place)).astype(np.float32)


def _softmax(row: Floats32, tokens: Sequence[int]) -> list[float]:
    """Probabilities of `tokens` under the softmax of an unmodified row [V]."""
    top = row.max()
    mass = float(np.exp(row - top).sum(dtype=np.float64))
    return [math.exp(float(row[token] - top)) / mass for token in tokens]
