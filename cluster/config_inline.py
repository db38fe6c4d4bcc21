"""Tiers that run in the process of the tier above them: which ones share a process, and what they may not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.config import TierConfig


def processes(tiers: Sequence[TierConfig]) -> tuple[tuple[int, ...], ...]:
    """The tiers of each process, small to target. The last one of a process gives its pool name, place and number."""
    shared: list[list[int]] = [[]]
    for index, tier in enumerate(tiers):
        shared[-1].append(index)
        if not tier.inline and index < len(tiers) - 1:
            shared.append([])
    return tuple(tuple(indices) for indices in shared)


def check_inline(tiers: Sequence[TierConfig]) -> None:
    """Whether inline tiers have a process, and leave to it what is its own. Raises ValueError with one line."""
    if tiers[-1].inline:
        raise ValueError(f"tiers.{len(tiers) - 1}.inline: the target has no tier above it; remove inline")
    for shared in processes(tiers):
        host, host_index = tiers[shared[-1]], shared[-1]
        for index in shared[:-1]:
            _check_guest(tiers[index], f"tiers.{index}", host)
        for below, above in zip(shared, shared[1:], strict=False):
            drafter = tiers[below].drafter
            own_engine = drafter is None or not drafter.runs_above
            if own_engine and tiers[below].max_sequences < tiers[above].max_sequences:
                raise ValueError(
                    f"tiers.{below}.max_sequences: {tiers[below].max_sequences} is less than the "
                    f"{tiers[above].max_sequences} of {tiers[above].name!r}, in whose process it runs; raise it"
                )
        if len(shared) > 1 and shared[0] == 0 and host_index < len(tiers) - 1 and host.num_ranks > 1:
            raise ValueError(
                f"tiers.{host_index}.tensor_parallel_size: with tier 0 inline this tier drafts, and a drafting tier "
                "runs on one rank; use 1"
            )


def _check_guest(tier: TierConfig, where: str, host: TierConfig) -> None:
    shares = f"an inline tier shares the process of {host.name!r}"
    if tier.replicas != type(tier.replicas)():
        raise ValueError(f"{where}.replicas: {shares}, and its replicas; remove replicas")
    if tier.resources != type(tier.resources)():
        raise ValueError(f"{where}.resources: {shares}, and its resources; remove resources")
    if tier.cores:
        raise ValueError(f"{where}.cores: {shares}, and its cores; remove cores")
    if tier.tensor_parallel_size != 1:
        raise ValueError(f"{where}.tensor_parallel_size: {shares} and runs on one rank; remove tensor_parallel_size")
    if tier.device != host.device:
        raise ValueError(f"{where}.device: {shares}, which runs on {host.device}; set device: {host.device}")
