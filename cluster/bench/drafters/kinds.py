"""Which ladder each kind of drafter is measured in: what the settings know of kinds, and a default where one is usual.

Kinds are those that the settings know. One that no line of `RECIPES` mentions runs inline with the target; if it needs
a head or a model of its own, `--head KIND=DIR` names it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.heads.directory import read_longest_draft
from cluster.config import Config, load_config
from cluster.config_drafters import KINDS, DrafterConfig, DrafterSection
from cluster.config_load import ConfigError


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a kind needs beside its name."""

    tier: Mapping[str, Any] = field(default_factory=dict)  # of tier 0; "model": "target" stands for the target's own
    drafter: Mapping[str, Any] = field(default_factory=dict)  # where no head is given
    exit_share: float | None = None  # where no head is given, drafts leave after this share of the target's layers
    speculation: Mapping[str, Any] = field(default_factory=dict)
    inline: bool = True  # in the process of the target, else in a pool


RECIPES: dict[str, Recipe] = {
    "draft_model": Recipe({"model": "target", "weights": "int4", "kv_dtype": "bfloat16"}, inline=False),
    "ngram": Recipe(inline=False),
    "suffix": Recipe(inline=False),
    "parallel": Recipe({"weights": "int4", "kv_dtype": "bfloat16"}, inline=False),
    "early_exit": Recipe(exit_share=1 / 3),
}


class NotMeasured(ValueError):
    """A kind cannot be measured here; one line that says why."""


def sections() -> dict[str, type[DrafterSection]]:
    """The settings of each kind, in the order of the settings."""
    union = typing.get_args(DrafterConfig)[0]
    found = {typing.get_args(part)[0].model_fields["kind"].default: typing.get_args(part)[0]
             for part in typing.get_args(union)}
    return {kind: found[kind] for kind in KINDS}


def ladder(
    kind: str, target: Mapping[str, Any], num_layers: int, lookahead: int, heads: Mapping[str, str]
) -> Config:
    """The ladder of one kind over `target`, settings of a tier with `num_layers` layers. Raises `NotMeasured`."""
    section, recipe = sections()[kind], RECIPES.get(kind, Recipe())
    head = heads.get(kind)
    tier: dict[str, Any] = {"name": "draft", **_sizes(target), **recipe.tier}
    if section.runs_above:
        tier.pop("num_threads", None)  # those of the tier above
    drafter: dict[str, Any] = {"kind": kind, **(recipe.drafter if head is None else {})}
    if recipe.exit_share is not None and head is None:
        drafter["exit_layer"] = max(1, round(recipe.exit_share * num_layers))
    if "head" in section.model_fields:
        needed = section.model_fields["head"].is_required()
        if head is not None:
            drafter["head"] = head
        elif needed and "head" not in drafter:
            raise NotMeasured(f"no head was given: --head {kind}=DIR")
    elif section.has_model:
        if head is not None:
            tier["model"] = head
        elif tier.get("model") == "target":
            tier["model"] = target["model"]
        elif "model" not in tier:
            raise NotMeasured(f"no model was given: --head {kind}=MODEL")
    elif head is not None:
        raise NotMeasured(f"drafter {kind} has neither model nor head: remove --head {kind}={head}")
    if recipe.inline:
        tier["inline"] = True
    return _loaded({**tier, "drafter": drafter}, target, lookahead, recipe.speculation)


def own_ladder(base: Config, target: Mapping[str, Any], lookahead: int) -> Config:
    """The ladder of a configuration of two tiers, over `target`. Raises `NotMeasured` for another number of tiers."""
    if len(base.tiers) != 2:
        raise NotMeasured(f"the configuration has {len(base.tiers)} tiers, and pairs are measured")
    tier = base.tiers[0].model_dump(exclude_defaults=True, exclude={"resources", "replicas", "cores"})
    tree = base.speculation.tree
    others = {} if tree is None else {"tree": tree.model_dump(exclude_defaults=True)}
    sizes = _sizes(target)
    if base.tiers[0].drafter is not None and base.tiers[0].drafter.runs_above:
        sizes.pop("num_threads", None)
    return _loaded({**tier, **sizes}, target, lookahead, others)


def identity(config: Config) -> tuple[object, ...]:
    """What two ladders over one target have in common when they are the same."""
    spec = config.model_specs()[0]
    return (spec.model, spec.weights, spec.dtype, spec.kv_kind, spec.kernels, config.drafter_spec(),
            config.tiers[0].inline, config.speculation.tree)


def _loaded(tier: Mapping[str, Any], target: Mapping[str, Any], lookahead: int, others: Mapping[str, Any]) -> Config:
    drafter = tier.get("drafter") or {}
    try:
        if drafter.get("head"):
            lookahead = min(lookahead, read_longest_draft(drafter["head"], drafter["kind"]) or lookahead)
        return load_config({
            "tiers": [dict(tier), dict(target)],
            "speculation": {
                "lookahead": lookahead, "max_lookahead": max(16, lookahead), "draft_timeout_s": 60.0, **others,
            },
        }, environ={})  # fmt: skip
    except (ConfigError, ValueError) as error:  # a head's directory may be wrong in ways of its own
        raise NotMeasured(" ".join(str(error).split())) from error


def _sizes(target: Mapping[str, Any]) -> dict[str, Any]:
    """What a draft tier has in common with its target: how much text it holds, on what device, with which threads."""
    shared = ("num_threads", "kv_tokens", "page_tokens", "max_context_tokens", "max_sequences", "device")
    return {name: target[name] for name in shared if name in target}


def target_tier(base: Config, weights: str | None, threads: int, kv_tokens: int) -> dict[str, Any]:
    """The target of a configuration, as it runs in this process: on one rank, with room for one text."""
    tier = base.target.model_dump(exclude_defaults=True, exclude={"drafter", "resources", "replicas", "cores"})
    longest = base.target.max_context_tokens
    return {
        **tier, "tensor_parallel_size": 1, "num_threads": threads, "weights": weights or base.target.weights,
        "kv_tokens": kv_tokens, "max_context_tokens": min(kv_tokens, longest or kv_tokens), "max_sequences": 4,
    }
