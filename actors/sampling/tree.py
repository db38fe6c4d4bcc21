"""Verification of token trees: the path that the verifying tier keeps, and the one token it adds.

Siblings stand in the order in which they were drawn; row 0 of the logits follows the history, row 1 + i follows node i.
Only rows on the walked path are processed.

*Exactness when the drafter grows a tree as it goes.* In the rejection modes node i must be drawn from its law given
every node drawn before it; which node is drawn next, and whether one is, may depend on all of these. Proof, node by
node: a child x is kept with probability min(p, q), and a rejected one leaves p' = norm(max(p - q, 0)) for this place
whatever x was, so neither later siblings nor whether there are any can bias it; below a kept child the same holds
again. *Block verification is different*: it keeps a token because of tokens after it. A tree that merely came out
as a chain ("the next token was so likely that no sibling was drawn") says something of those, and block verification
of it would be biased. So block verification is for drafts that promise to be chains (`parents` None) whatever their
tokens turn out to be; anything with `parents` is verified node by node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.messages import Ids, Laws, Origin, TokenLogprobs
from actors.sampling import laws as law_tools
from actors.sampling.laws import Floats
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.positions import Rows
from actors.sampling.processors import IdSequence
from actors.sampling.rows import LogitRows
from actors.sampling.validate import BadDraft
from actors.sampling.verify import residual_weights, token_logprobs, verify

ROOT = -1  # the parent of a node that follows the history

Walk = tuple[list[int], int]  # accepted nodes, and the verifier's own token after them


@dataclass(frozen=True, slots=True)
class VerifiedTree:
    """Tokens of the accepted path followed by exactly one token of the verifier."""

    tokens: Ids  # [num_accepted + 1]
    num_accepted: int
    last: Origin  # BONUS after a leaf, RECOVERED before one, PLAIN without a draft
    laws: Laws | None  # this tier's law of each of `tokens`, when wanted and in a rejection mode
    logprobs: tuple[TokenLogprobs, ...] | None
    path: tuple[int, ...]  # [num_accepted] accepted nodes, from the root
    num_relaxed: int = 0  # of these, by a lossy policy alone (`actors.sampling.lossy`)


def verify_tree(
    draft_ids: Ids,  # [num_draft], possibly empty
    parents: Ids | None,  # [num_draft] index of each node's parent, smaller than its own; -1: follows the history
    laws: Laws | None,  # one per node; None: a deterministic draft
    logits: LogitRows,  # num_draft + 1 rows
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    tier: int,
    round: int,
    want_laws: bool,
    law_support: int,
) -> VerifiedTree:
    """Verify a tree after `history_ids`; without `parents` the draft is a chain and this is `verify`.

    Greedy and coupled: one choice of the verifier per node, then on to the child that carries it, so the text never
    depends on the tree. Rejection modes: recursive rejection (Miao et al. 2305.09781; without replacement: Chen et al.
    2402.12374), one algorithm for both since each law is the one that its token was really drawn from. The law of each
    emitted token (`want_laws`) is p as for chains: see `Rows.emitted_laws`. Raises `BadDraft` (parents that make no
    tree, laws that cannot be those of the draft), `BadLogits`, and `ValueError` for wrong shapes.
    """
    if parents is None:
        chain = verify(draft_ids, laws, logits, params, history_ids, num_prompt_tokens, tier, round, want_laws,
                       law_support)
        return VerifiedTree(chain.tokens, chain.num_accepted, chain.last, chain.laws, chain.logprobs,
                            tuple(range(chain.num_accepted)))
    rows = TreeRows(parents, draft_ids, laws, logits, params, history_ids, num_prompt_tokens,
                    law_support if want_laws else None)
    match params.mode:
        case VerifyMode.GREEDY:
            path, own = _follow(rows, rows.best)
        case VerifyMode.COUPLED:
            path, own = _follow(rows, rows.coupled)
        case _:
            acceptance = stream(params.entropy, Purpose.ACCEPTANCE, tier, round)
            residual = float(stream(params.entropy, Purpose.RESIDUAL, tier, round).random())
            path, own = _recursive(rows, acceptance.random(rows.num_draft), residual)
    tokens = [*(rows.draft[node] for node in path), own]
    last = Origin.RECOVERED if rows.children(path[-1] if path else ROOT) else Origin.BONUS
    if rows.num_draft == 0:
        last = Origin.PLAIN
    logprobs = token_logprobs(logits, [0, *(node + 1 for node in path)], tokens, params.num_logprobs)
    return VerifiedTree(
        np.array(tokens, np.int32), len(path), last, rows.emitted_laws(len(tokens)), logprobs, tuple(path)
    )


def path_to(parents: Ids, node: int) -> list[int]:
    """Nodes from the root to `node`, both included; none for `ROOT`."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = int(parents[node])
    return path[::-1]


def check_parents(parents: Ids, num_draft: int) -> None:
    """Raise `BadDraft` unless `parents` make a tree of `num_draft` nodes, each after its parent."""
    if parents.shape != (num_draft,):
        raise BadDraft(f"{num_draft} draft tokens came with parents of shape {parents.shape}; send one each")
    wrong = (parents < ROOT) | (parents >= np.arange(num_draft))
    if wrong.any():
        node = int(wrong.argmax())
        raise BadDraft(f"draft token {node} names {int(parents[node])} as its parent; name an earlier token, or -1")


class TreeRows(Rows):
    """Rows of a tree: row 1 + i follows the path to node i."""

    def __init__(
        self, parents: Ids, draft_ids: Ids, laws: Laws | None, logits: LogitRows, params: SamplingParams,
        history_ids: IdSequence, num_prompt_tokens: int, truncate_to: int | None,
    ) -> None:
        super().__init__(draft_ids, laws, logits, params, history_ids, num_prompt_tokens, truncate_to)
        check_parents(parents, self.num_draft)
        self._parents = parents
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents.tolist()):
            self._children.setdefault(parent, []).append(node)

    def children(self, node: int) -> list[int]:
        """Nodes that follow `node`, in the order in which they were drawn."""
        return self._children.get(node, [])

    def history(self, i: int) -> Ids:
        """All ids before row i."""
        drafted = [self.draft[node] for node in path_to(self._parents, i - 1)]
        return np.concatenate([self._text[: self.start], np.array(drafted, np.int32)])


def _follow(rows: TreeRows, choose: Callable[[int], int]) -> Walk:
    """The verifier's own choices, for as long as a child carries them."""
    path: list[int] = []
    node = ROOT
    while True:
        own = choose(node + 1)
        child = next((child for child in rows.children(node) if rows.draft[child] == own), None)
        if child is None:
            return path, own
        path.append(child)
        node = child


def _recursive(rows: TreeRows, uniforms: Floats, residual: float) -> Walk:
    """Recursive rejection: each rejected child takes its law's share out of p before the next is judged."""
    path: list[int] = []
    node = ROOT
    while True:
        kept, p = _first_kept(rows, rows.children(node), rows.p(node + 1), uniforms)
        if kept is None:
            return path, law_tools.sample(p, residual)
        path.append(kept)
        node = kept


def _first_kept(rows: TreeRows, children: list[int], p: Floats, uniforms: Floats) -> tuple[int | None, Floats]:
    """The first of `children` that is kept, and the p [V] that the rejected ones before it have left."""
    for child in children:
        ids, q, q_token = rows.q(child)
        if uniforms[child] * q_token < rows.p_token(p, child):
            return child, p
        weights = residual_weights(p, 1.0, ids, q)
        p = weights / weights.sum()
    return None, p
