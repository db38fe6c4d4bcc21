"""What a plan starts from: how long each tier's passes take, how often a draft is right, and what replicas cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.spec import EmulationSpec, Voice
from cluster.config import Config

GUESS = (0.5,)  # chance that the second best word is right where the best one is wrong, unless it is measured


class NoCosts(ValueError):
    """A source that no plan can start from; one line that names the fix."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Tiers as devices, smallest first, the target last."""

    names: tuple[str, ...]
    devices: tuple[EmulationSpec, ...]
    gather_s: float = 0.0  # of the target: how long it waits for calls that follow its answers

    @property
    def target(self) -> EmulationSpec:
        """The target's device."""
        return self.devices[-1]


@dataclass(frozen=True, slots=True)
class Given:
    """Costs that a user names, in place of those of the source; None: as there."""

    target_s: float | None = None
    draft_s: float | None = None  # of tier 0
    hop_s: float | None = None
    agreement: tuple[float, ...] | None = None  # of tier 0 with the tier above, by position


def of_config(config: Config) -> Costs:
    """The emulated tiers of a configuration. Raises `NoCosts` for one whose tiers are real."""
    found: list[EmulationSpec] = []
    for tier, spec in zip(config.tiers, config.model_specs(), strict=True):
        if spec.emulation is None:
            raise NoCosts(
                f"tier {tier.name} is real, its costs have to be measured: plan from the output of `outrider bench "
                "drafters --json`, or describe the tiers by `emulation`"
            )
        found.append(spec.emulation)
    return Costs(tuple(tier.name for tier in config.tiers), tuple(found), config.target.gather_s)


def of_drafters(measured: Mapping[str, Any], kind: str | None = None) -> Costs:
    """The pair that `bench drafters --json` measured: the fastest drafter, or the one of `kind`. Raises `NoCosts`.

    Of what a round took beside its draft, the part beyond a plain pass is charged to the rows of the draft.
    """
    rows = [row for row in measured.get("rows", ()) if row.get("category") == "overall" and row.get("tokens_per_s")]
    alone = [row for row in rows if row["kind"] == "alone"]
    drafters = [
        row for row in rows
        if row.get("acceptance_by_position") and row.get("draft_share_of_target_pass") is not None
        and kind in (None, row["kind"])
    ]
    if not alone or not drafters:
        known = ", ".join(sorted({row["kind"] for row in rows} - {"alone"}))
        raise NoCosts(
            f"no drafter and target alone are among what was measured (drafters: {known or 'none'}): give the JSON of "
            "`outrider bench drafters --json`"
        )
    plain_s = 1.0 / alone[0]["tokens_per_s"]
    best = max(drafters, key=lambda row: float(row["tokens_per_s"]))
    drafted = best["drafted"] / best["rounds"]
    round_s = best["mat"] / best["tokens_per_s"]
    share = float(best["draft_share_of_target_pass"])
    verify_s = max(plain_s, round_s / (1.0 + drafted * share))
    row_s = (verify_s - plain_s) / max(drafted, 1.0)
    return pair(plain_s, share * verify_s, tuple(best["acceptance_by_position"]), row_s=row_s, name=best["kind"])


def pair(
    target_s: float, draft_s: float, agreement: Sequence[float], *, hop_s: float = 0.0, row_s: float = 0.0,
    name: str = "draft",
) -> Costs:
    """A draft and a target whose passes take so long; a row beyond the first costs the target `row_s`."""
    target = Voice("target")
    draft = Voice(name, 0, tuple(min(0.999, max(0.001, share)) for share in agreement), GUESS)
    return Costs(
        (name, "target"),
        (EmulationSpec((draft, target), draft_s, 64, draft_s / 64, hop_s),
         EmulationSpec((target,), target_s, 1 if row_s else 64, row_s or target_s / 64, hop_s)),
        gather_s=3 * hop_s,
    )


def with_given(costs: Costs, given: Given) -> Costs:
    """`costs` with what the user says instead; rows keep their share of a pass. Raises `NoCosts`."""
    devices = list(costs.devices)
    if len(devices) < 2 and (given.draft_s is not None or given.agreement is not None):
        raise NoCosts("the source has a target only: it has no draft whose costs could be changed")
    for place, seconds in ((0, given.draft_s), (len(devices) - 1, given.target_s)):
        if seconds is not None:
            old = devices[place]
            devices[place] = replace(old, pass_s=seconds, row_s=old.row_s * seconds / old.pass_s)
    if given.hop_s is not None:
        devices = [replace(device, hop_s=given.hop_s) for device in devices]
    if given.agreement is not None:
        first, *others = devices[0].voices
        devices[0] = replace(devices[0], voices=(replace(first, agreement=given.agreement), *others))
    gather_s = costs.gather_s if given.hop_s is None else 3 * given.hop_s
    return replace(costs, devices=tuple(devices), gather_s=gather_s)
