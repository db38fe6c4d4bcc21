"""Verification that may keep tokens which the exact rules of `verify` and `tree` would refuse.

Only for requests whose settings name a policy. What is lost: the law of the text is no longer the target's, greedy
text no longer the target's own, and a seed no longer makes replicas or retries agree, for the text now depends on what
was drafted. The exact rules know nothing of this module.

p is the target's law as the request warps it (at temperature 0, where it would be a point mass and nothing else could
ever be kept, its law at temperature 1). Pure functions.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from actors.messages import Ids, Laws, Origin
from actors.sampling import laws as law_tools
from actors.sampling.laws import Floats
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.policies import BigLittle, LossyPolicy, TypicalAcceptance
from actors.sampling.processors import IdSequence, weigh
from actors.sampling.rows import LogitRows
from actors.sampling.tree import ROOT, TreeRows, VerifiedTree, path_to
from actors.sampling.verify import token_logprobs


def verify_lossy(
    draft_ids: Ids,  # [num_draft], possibly empty
    parents: Ids | None,  # as in `verify_tree`
    laws: Laws | None,
    logits: LogitRows,  # num_draft + 1 rows
    params: SamplingParams,
    history_ids: IdSequence,
    num_prompt_tokens: int,
    tier: int,
    round: int,
) -> VerifiedTree:
    """The longest path of tokens that `params.lossy` keeps, of several the likeliest, and one token of the verifier.

    `num_relaxed` counts accepted tokens that the exact rule, with the same dice, would have refused where they stand.
    The verifier's own token is the argmax (greedy), the coupled choice (seeded), or drawn from p: not from a residual,
    for what was refused was not refused by a law. Raises `BadDraft`, `BadLogits`, and `ValueError` without a policy.
    """
    policy = params.lossy
    if policy is None:
        raise ValueError("the request names no lossy policy: use verify_tree")
    if parents is None:
        parents = np.arange(len(draft_ids), dtype=np.int32) - 1
    rows = TreeRows(parents, draft_ids, laws, logits, judged(params), history_ids, num_prompt_tokens, None)
    judge = _Judge(rows, policy)
    path = judge.longest(parents)
    end = path[-1] if path else ROOT
    before = [ROOT, *path][:-1]  # the parent of each accepted node
    match params.mode:
        case VerifyMode.GREEDY:
            own = rows.best(end + 1)
            refused = [rows.best(parent + 1) != rows.draft[node] for parent, node in zip(before, path, strict=True)]
        case VerifyMode.COUPLED:
            own = rows.coupled(end + 1)
            refused = [rows.coupled(parent + 1) != rows.draft[node] for parent, node in zip(before, path, strict=True)]
        case _:
            own = law_tools.sample(judge.p(end), stream(params.entropy, Purpose.RESIDUAL, tier, round).random())
            dice = stream(params.entropy, Purpose.ACCEPTANCE, tier, round).random(rows.num_draft)
            refused = [
                not dice[node] * rows.q(node)[2] < rows.p_token(judge.p(parent), node)
                for parent, node in zip(before, path, strict=True)
            ]
    last = Origin.RECOVERED if rows.children(end) else Origin.BONUS
    if rows.num_draft == 0:
        last = Origin.PLAIN
    tokens = [*(rows.draft[node] for node in path), own]
    logprobs = token_logprobs(logits, [0, *(node + 1 for node in path)], tokens, params.num_logprobs)
    return VerifiedTree(np.array(tokens, np.int32), len(path), last, None, logprobs, tuple(path), sum(refused))


def judged(params: SamplingParams) -> SamplingParams:
    """The settings whose law is judged by: a greedy request's at temperature 1."""
    return params if params.temperature > 0.0 else replace(params, temperature=1.0)


def threshold(policy: LossyPolicy, p: Floats) -> float:
    """What the probability of a token has to exceed under the verifier's law p [V] for the token to be kept.

    Typical acceptance: min(epsilon, delta * exp(-H(p))), H in nats. Big Little: exp(-rollback), since the distance is
    the cross-entropy -ln p(x).
    """
    match policy:
        case TypicalAcceptance(epsilon, delta):
            return min(epsilon, delta * math.exp(-entropy(p)))
        case BigLittle(_, rollback):
            return math.exp(-rollback)


def keeps(policy: LossyPolicy, p: Floats, chance: float) -> bool:
    """Whether a token of probability `chance` under p [V] is kept."""
    if isinstance(policy, TypicalAcceptance) and chance > policy.epsilon:
        return True  # whatever the entropy, which takes longer to compute than all the rest
    return chance > threshold(policy, p)


def entropy(p: Floats) -> float:
    """Of a law [V], in nats."""
    some = p[p > 0.0]
    return -float((some * np.log(some)).sum())


def falls_back(logits: LogitRows, index: int, params: SamplingParams, history_ids: IdSequence, num_prompt_tokens: int
               ) -> bool:
    """Whether a drafter leaves the token after row `index` to the target: its best one is too unlikely (Big Little).

    Decided before the token is drawn. Always False under any other policy, and without one. Raises `BadLogits`.
    """
    policy = params.lossy
    if not isinstance(policy, BigLittle):
        return False
    law = weigh(logits, index, judged(params), history_ids, num_prompt_tokens)
    return float(law.probabilities().max()) < policy.fallback


class _Judge:
    """Judges the nodes of one draft; p of a node's children is computed once."""

    def __init__(self, rows: TreeRows, policy: LossyPolicy) -> None:
        self._rows = rows
        self._policy = policy
        self._laws: dict[int, Floats] = {}

    def p(self, node: int) -> Floats:
        """p after `node`, [V]."""
        if node not in self._laws:
            self._laws[node] = self._rows.p(node + 1)
        return self._laws[node]

    def longest(self, parents: Ids) -> list[int]:
        """The deepest path of kept nodes, from the root; of several the one whose tokens are likeliest."""
        best = {ROOT: (0, 0.0)}  # of each kept node: its depth, and the log-probability of its path
        for node, parent in enumerate(parents.tolist()):
            if parent not in best:
                continue
            p = self.p(parent)
            chance = self._rows.p_token(p, node)
            if keeps(self._policy, p, chance):
                depth, log_chance = best[parent]
                best[node] = (depth + 1, log_chance + math.log(chance))
        return path_to(parents, max(best, key=best.__getitem__))
