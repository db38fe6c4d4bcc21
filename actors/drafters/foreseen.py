"""Drafting where every position's logits are known before any token is drawn (`medusa`, `block`): pure functions.

The logits of a place do not depend on the tokens drafted before it; its law does where penalties or other adjustments
look at them, so tokens are still drawn one after another. Trees are grown by the same rules as a model's
(`actors.drafters.growth`): all that is left out are the passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from actors.answer import Answer
from actors.drafters.chain import comb
from actors.drafters.copies import Copies
from actors.drafters.growth import Growth
from actors.drafters.guesses import guess
from actors.drafters.outcomes import likely_outcomes
from actors.engine.jobs import Job
from actors.messages import AheadPlan, Branch, Context, Draft, DraftShape, Ids
from actors.sampling import laws as draft_laws
from actors.sampling.draw import Drawn
from actors.sampling.ending import ends_draft
from actors.sampling.laws import SparseLaw
from actors.sampling.noise import branch_stream
from actors.sampling.params import VerifyMode
from actors.sampling.processors import adjusts_logits
from actors.sampling.rows import LogitRows
from actors.sampling.siblings import draw_children

_SAMPLED = (VerifyMode.REJECTION, VerifyMode.BLOCK)


def draft(
    rows: LogitRows, ids: Ids, context: Context, shape: DraftShape, tier: int, law_support: int,
    rng: np.random.Generator | None, copies: Copies | None = None,
) -> Draft:
    """A draft of `shape` after `ids`, the whole text of `context`; row i tells of the place `len(ids) + i`.

    No path gets longer than there are rows. `rng`: noise of its own, for the rejection modes. `copies`: mixed into the
    laws. Raises `BadLogits`.
    """
    if shape.grows:
        return _tree(rows, ids, context, shape, tier, law_support, rng, copies)
    return _chain(rows, ids, context, shape, tier, law_support, rng, copies)


def branches(
    rows: LogitRows, ids: Ids, context: Context, verified: Draft, verify_round: int, plan: AheadPlan, tier: int,
    law_support: int, max_context_tokens: int, copies: Copies | None = None,
) -> tuple[Branch, ...]:
    """Drafts for the likely outcomes of the pass that verifies `verified`, likeliest first.

    All of them come from the logits that the draft itself came from: those of later places. Raises `BadLogits`.
    """
    parents = list(range(-1, len(verified.tokens) - 1)) if verified.parents is None else verified.parents.tolist()
    tokens: list[int] = verified.tokens.tolist()
    paths: list[list[int]] = []  # of the nodes after which a row tells what comes
    for node, parent in enumerate(parents):
        path = [*(paths[parent] if parent >= 0 else []), node]
        if len(path) >= len(rows):
            break  # nodes come level by level
        paths.append(path)
    text = {node: _text(ids, tokens, path) for node, path in enumerate([[], *paths], start=-1)}
    guesses = []
    for node in range(-1, len(paths)):
        row, place = _row(rows, len(text[node]) - len(ids), text[node], context, copies)
        guesses.append(guess(row, place, context.sampling, text[node], context.num_prompt_tokens, law_support))
    found = likely_outcomes(
        tokens[: len(paths)], parents[: len(paths)], guesses, (len(paths) + 1) * plan.num_guesses, plan.num_guesses,
        plan.acceptance,
    )
    made: list[Branch] = []
    for outcome in found:
        if len(made) >= plan.num_branches:
            break
        before = np.append(text[outcome.node], np.int32(outcome.token))
        num_known = len(before) - len(ids)
        room = min(plan.max_total_tokens - 1, max_context_tokens + 1) - len(before)
        if num_known >= len(rows) or min(room, plan.shape.num_tokens) < 1:
            continue
        shape = replace(plan.shape, num_tokens=min(room, plan.shape.num_tokens))
        rng = None
        if context.sampling.mode in _SAMPLED:
            rng = branch_stream(context.sampling.entropy, tier, context.round, verify_round, len(made))
        follows = draft(rows.part(num_known, len(rows)), before, context, shape, tier, law_support, rng, copies)
        made.append(Branch(outcome.node, outcome.token, follows))
    return tuple(made)


def _chain(
    rows: LogitRows, ids: Ids, context: Context, shape: DraftShape, tier: int, law_support: int,
    rng: np.random.Generator | None, copies: Copies | None,
) -> Draft:
    depth = min(shape.num_tokens, len(rows))
    text = np.concatenate([ids, np.zeros(depth, np.int32)]).astype(np.int32)
    tokens: list[int] = []
    laws: list[SparseLaw] = []
    siblings: list[tuple[Drawn, ...]] = []
    for place in range(depth):
        known = text[: len(ids) + place]
        row, index = _row(rows, place, known, context, copies)
        if ends_draft(row, index, context.sampling, known, context.num_prompt_tokens):
            break  # a lossy policy, or the grammar, leaves the rest to the target
        drawn, *others = draw_children(
            row, index, context.sampling, known, context.num_prompt_tokens, rng, law_support, 1 + shape.siblings,
        )
        text[len(ids) + place] = drawn.token
        tokens.append(drawn.token)
        siblings.append(tuple(others))
        if drawn.law is not None:
            laws.append(drawn.law)
    parents: Ids | None = None
    if shape.siblings:
        tokens, laws, parents = comb(tokens, laws, siblings)
    return Draft(np.array(tokens, np.int32), draft_laws.build(laws) if laws else None, tier, parents=parents)


def _tree(
    rows: LogitRows, ids: Ids, context: Context, shape: DraftShape, tier: int, law_support: int,
    rng: np.random.Generator | None, copies: Copies | None,
) -> Draft:
    """Grow a tree whose nodes' logits are there already: the calls that would run them are answered on the spot."""
    depth = min(shape.num_tokens, len(rows))
    context = replace(context, start=0, tokens=ids)  # of a branch: with the path that it follows
    root = _Root(context)
    growth = _Foreseen(context, shape, depth, tier, law_support, rng, lambda _: None, copies)
    texts = {context.sequence_id: ids}  # of the sequence that each node would be run on
    waiting = deque(growth.feed(-1, rows.part(0, 1), ids, root))
    while waiting:
        walk = waiting.popleft()
        assert walk.fork is not None
        text = np.concatenate([texts[walk.fork.sequence_id][: walk.fork.num_tokens], walk.context.tokens])
        texts[walk.context.sequence_id] = text
        place = len(text) - len(ids)
        walk.on_logits(rows.part(place, place + 1), text)
        waiting.extend(walk.spawned)
    return growth.draft(root)


class _Foreseen(Growth):
    """A tree in whose levels all nodes may have the same children: then they are found once."""

    def __init__(
        self, context: Context, shape: DraftShape, depth: int, tier: int, law_support: int,
        rng: np.random.Generator | None, on_done: Callable[[Exception | None], None], copies: Copies | None,
    ) -> None:
        super().__init__(context, shape, depth, tier, law_support, rng, on_done, copies)
        num_output = context.num_tokens - context.num_prompt_tokens
        hangs_on_path = copies is not None or adjusts_logits(context.sampling, num_output)
        self._is_alike = not self._is_sampled and not hangs_on_path
        self._known: dict[tuple[int, int], tuple[list[Drawn], list[float]]] = {}

    def _children(self, logits: LogitRows, history_ids: Ids, count: int) -> tuple[list[Drawn], list[float]]:
        key = (len(history_ids), count)
        if not self._is_alike:
            return super()._children(logits, history_ids, count)
        if key not in self._known:
            self._known[key] = super()._children(logits, history_ids, count)
        return self._known[key]


def _row(rows: LogitRows, place: int, text: Ids, context: Context, copies: Copies | None) -> tuple[LogitRows, int]:
    """What the place after `text` is drawn from: rows, and which of them."""
    return (rows, place) if copies is None else (copies.mix(rows, place, context.sampling, text), 0)


def _text(ids: Ids, tokens: list[int], path: list[int]) -> Ids:
    return np.concatenate([ids, np.array([tokens[node] for node in path], np.int32)]).astype(np.int32)


class _Root(Job):
    """Stands for the pass that began a tree: there was none."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, Answer())

    def draft_ids(self) -> Ids:
        """Nothing is fed."""
        raise NotImplementedError

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        """Nothing is run."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Nobody waits for it."""
