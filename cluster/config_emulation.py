"""Emulated tiers of a configuration: whom each follows, and what their actors need to know of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.spec import EmulationSpec, Voice

if TYPE_CHECKING:
    from cluster.config import TierConfig


def check_emulation(tiers: Sequence[TierConfig]) -> None:
    """Whether every emulated tier knows whom it follows. Raises ValueError with one line."""
    for index, tier in enumerate(tiers):
        emulation, where = tier.emulation, f"tiers.{index}.emulation"
        if emulation is None:
            continue
        if index == len(tiers) - 1:
            of_a_follower = (emulation.agreement, emulation.further_guesses, emulation.follows)
            if any(setting is not None for setting in of_a_follower):
                raise ValueError(f"{where}: the target follows nobody; remove agreement, further_guesses and follows")
            continue
        if emulation.agreement is None:
            raise ValueError(f"{where}.agreement: is required below the target; give a share, e.g. 0.85")
        if index > 0 and len(emulation.agreement) > 1:
            raise ValueError(f"{where}.agreement: only tier 0 drafts, and has positions; give one number")
        followed = emulation.follows or tiers[index + 1].name
        above = [other.name for other in tiers[index + 1 :] if other.emulation is not None]
        if followed not in above:
            fix = f"use {' or '.join(above)}" if above else "give the target an `emulation` section"
            raise ValueError(f"{where}.follows: {followed!r} is no emulated tier above this one; {fix}")


def emulation_spec(tiers: Sequence[TierConfig], index: int) -> EmulationSpec | None:
    """How tier `index` of checked `tiers` is emulated, with the voices that it follows; None: it is real."""
    emulation = tiers[index].emulation
    if emulation is None:
        return None
    names = [tier.name for tier in tiers]
    voices: list[Voice] = []
    current = index
    while True:
        own = tiers[current].emulation
        assert own is not None  # checked: only emulated tiers are followed
        voices.append(Voice(names[current], own.seed, own.agreement or (), own.further_guesses or ()))
        if current == len(tiers) - 1:
            break
        current = current + 1 if own.follows is None else names.index(own.follows)
    return EmulationSpec(
        tuple(voices), pass_s=emulation.pass_s, flat_rows=emulation.flat_rows, row_s=emulation.row_s,
        hop_s=emulation.hop_s,
    )
