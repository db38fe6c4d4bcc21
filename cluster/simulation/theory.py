"""What a synchronous chain should reach, for checking the simulation against."""

from __future__ import annotations


def committed_per_round(agreement: float, lookahead: int) -> float:
    """Expected tokens of a round, the target's own included, if each draft token is right with probability `agreement`.

    E(α, k) = (1 - α^(k+1)) / (1 - α): Leviathan et al. 2023 (2211.17192), equation 1.
    """
    if agreement == 1:
        return lookahead + 1.0
    return float((1 - agreement ** (lookahead + 1)) / (1 - agreement))


def chain_speedup(agreement: float, lookahead: int, draft_pass: float, hops: float) -> float:
    """Tokens per target pass of one synchronous stream: E(α, k) / (k c + 1 + hops).

    `draft_pass` (c) and `hops`, all those of a round together, are in target passes.
    """
    return committed_per_round(agreement, lookahead) / (lookahead * draft_pass + 1 + hops)
