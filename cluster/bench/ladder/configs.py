"""The emulated ladders of the bench: the presets of this package with a few settings changed."""

from __future__ import annotations

from typing import Any

from cluster.config import Config, load_config

PAIR, LADDER, REAL_PAIR = "emulated-70b", "emulated-ladder", "smollm2"
VOICE = "emulated target"  # the targets of both emulated presets say the same
SMALL_TO_TARGET = 0.5  # agreement of the small tier with the target
MOST_LOOKAHEAD = 24


def pair(speculation: dict[str, Any] | None = None) -> Config:
    """The 70B target and 7B draft, with these settings of speculation."""
    changed = _preset(PAIR)
    changed["speculation"] |= speculation or {}
    return _checked(changed)


def small_to_target() -> Config:
    """Two tiers: the small one in the target's process, where no hop eats what it saves."""
    changed = _preset(LADDER)
    small, _, target = changed["tiers"]
    small["emulation"]["agreement"] = SMALL_TO_TARGET
    changed["tiers"] = [small, target]
    return _checked(changed)


def medium_to_target() -> Config:
    """Two tiers: the medium one, in a pool of its own."""
    changed = _preset(LADDER)
    changed["tiers"] = changed["tiers"][1:]
    return _checked(changed)


def three_tiers(small_lookahead: int) -> Config:
    """The ladder; the small tier, in the medium's process, drafts so many tokens at a time."""
    changed = _preset(LADDER)
    changed["tiers"][0]["window"] = small_lookahead
    return _checked(changed)


def three_pools(small_agreement: float | None = None) -> Config:
    """The ladder with each tier in a pool of its own, of which only the target's is far away: no other emulated hops.

    The controller chooses among them. `small_agreement` of the small tier with the medium one; None: as it is.
    """
    changed = _preset(LADDER)
    small = changed["tiers"][0]
    small |= {"inline": False, "resources": {"num_cpus": 0.1}}
    for tier in changed["tiers"][:-1]:
        tier["emulation"]["hop_s"] = 0.0
    if small_agreement is not None:
        small["emulation"]["agreement"] = small_agreement
    changed["speculation"]["lookahead"] = "auto"
    return _checked(changed)


def real_pair(cores: tuple[int, int], speculation: dict[str, Any] | None = None) -> Config:
    """The built-in pair, draft and target on a core of their own with one thread each."""
    changed = _preset(REAL_PAIR)
    for tier, core in zip(changed["tiers"], cores, strict=True):
        tier |= {"num_threads": 1, "cores": [core], "tensor_parallel_size": 1}
    changed["speculation"] |= speculation or {}
    return _checked(changed)


def _preset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load_config(name, environ={}).model_dump(mode="json")
    return found


def _checked(changed: dict[str, Any]) -> Config:
    speculation = changed["speculation"]
    speculation["max_lookahead"] = max(speculation["max_lookahead"], MOST_LOOKAHEAD)
    return load_config(changed, environ={})
