"""The goodput model: tokens that a sequence commits per second when every sequence of its replica does the same.

Since all of them do the same, the best for one is the best for the replica, and a draft token is charged with what
its row costs everybody at the present load (SmartSpec/TurboSpec, 2406.14066). With `s` the survival of a chain,
`s_i = a_1 ... a_i`:

    tokens(k)  = 1 + s_1 + ... + s_k                                   (Leviathan 2211.17192, equation 1)
    seconds(k) = max(overhead + k * draft(n_d) + (1 + wait) * target(n_t * (k + 1)), cycle * target(n_t * (k + 1)))

`draft` and `target` are the measured seconds of a pass of so many rows, n_d and n_t the sequences that share one. The
second term is a queue's: sequences in groups that take turns at the target wait for `cycle` passes whether they draft
meanwhile or not, so that drafting costs nothing until it takes longer than the others' passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cluster.coordinator.control.costs import PassCurve


@dataclass(frozen=True, slots=True)
class Station:
    """A tier's replica as one sequence meets it now."""

    curve: PassCurve
    crowd: float  # sequences per pass, if all do alike
    drag: float = 1.0  # measured seconds below the target / what the curve says of so many passes

    def seconds(self, rows: float) -> float:
        """Of a pass with so many rows of each sequence."""
        return self.drag * self.curve.seconds(self.crowd * rows)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round costs apart from passes."""

    plain_s: float  # hops and queues
    draft_s: float
    plain_wait: float  # time until the target's pass begins, in passes
    draft_wait: float
    plain_cycle: float = 0.0  # passes of the target from one pass of a sequence to its next; 0: it need not wait
    draft_cycle: float = 0.0
    middle_s: float = 0.0  # hops and queues of each verdict of a middle tier
    switch_s: float = 0.0  # hops and queues of a round whose draft was made ahead

    def plain_seconds(self, pass_s: float) -> float:
        """Of a plain round."""
        return max(self.plain_s + (1.0 + self.plain_wait) * pass_s, self.plain_cycle * pass_s)

    def draft_seconds(self, below_s: float, pass_s: float) -> float:
        """Of a round with `below_s` of passes below the target."""
        return max(self.draft_s + below_s + (1.0 + self.draft_wait) * pass_s, self.draft_cycle * pass_s)


def chain_rates(accept: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """[len(seconds)] tokens per second at each k, whose round takes `seconds[k]`; index 0 is plain."""
    tokens = survival = 1.0
    rates = [1.0 / seconds[0]]
    for a, took in zip(accept, seconds[1:], strict=False):
        survival *= a
        tokens += survival
        rates.append(tokens / took)
    return rates


@lru_cache(maxsize=128)
def tree_table(first: float, other: float, max_nodes: int, max_depth: int) -> tuple[tuple[float, ...], ...]:
    """[max_nodes + 1][max_depth + 1] tokens of the best tree of so many nodes and levels, the verifier's included.

    The dynamic programme of Sequoia (2402.12374, section 3): child b of a node is the right one with probability
    `a_b`, here `first` and then `other` of what its elder siblings leave, for up to 3 children.
    """
    accept = (first, (1 - first) * other, (1 - first) * (1 - other) * other)
    # value[d][m]: tokens gained by an accepted node with m nodes in d levels below it; itself counted
    previous = [1.0] * (max_nodes + 1)
    table = [[1.0] * (max_depth + 1) for _ in range(max_nodes + 1)]
    for depth in range(1, max_depth + 1):
        best = [1.0] * (max_nodes + 1)
        for rate in accept:  # a further child with y nodes, itself included, beside the elder ones
            grown = list(best)
            for nodes in range(1, max_nodes + 1):
                for y in range(1, nodes + 1):
                    value = best[nodes - y] + rate * previous[y - 1]
                    if value > grown[nodes]:
                        grown[nodes] = value
            best = grown
        for nodes in range(max_nodes + 1):
            table[nodes][depth] = best[nodes]
        previous = best
    return tuple(tuple(row) for row in table)


def static_tree_tokens(first: float, other: float, widths: Sequence[int]) -> float:
    """Tokens per round of a tree with the same number of children for all nodes of a level."""
    tokens = survival = 1.0
    for width in widths:
        survival *= 1 - (1 - first) * (1 - other) ** (width - 1)
        tokens += survival
    return tokens


def tree_rate(
    tokens: float, num_nodes: int, depth: int, draft: Station, target: Station, costs: Round
) -> float:
    """Tokens per second of a tree: `depth` draft passes that share its nodes, one row for each in the target."""
    draft_s = depth * draft.seconds(num_nodes / depth)
    return tokens / costs.draft_seconds(draft_s, target.seconds(num_nodes + 1.0))
