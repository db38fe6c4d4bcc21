"""Inline tiers in the settings: which ones share a process, what each pool creates, and one line per mistake."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.app import pool_settings
from cluster.config import Config, ConfigError, load_config


def ladder(*inline: bool, **changes: Any) -> dict[str, Any]:
    """One tier more than `inline`; `t0_window=5` sets `window` of tier 0."""
    tiers: list[dict[str, Any]] = [{"name": f"t{i}", "model": f"m{i}", "inline": here} for i, here in enumerate(inline)]
    tiers.append({"name": f"t{len(inline)}", "model": f"m{len(inline)}"})
    for name, value in changes.items():
        tier, _, field = name.partition("_")
        tiers[int(tier[1:])][field] = value
    return {"tiers": tiers}


def load(*inline: bool, **changes: Any) -> Config:
    return load_config(ladder(*inline, **changes), environ={})


@pytest.mark.parametrize(("inline", "processes"), [
    ((), ((0,),)),
    ((False,), ((0,), (1,))),
    ((True,), ((0, 1),)),
    ((True, False), ((0, 1), (2,))),
    ((False, True), ((0,), (1, 2))),
    ((True, True, False), ((0, 1, 2), (3,))),
    ((True, False, True), ((0, 1), (2, 3))),
])
def test_an_inline_tier_shares_the_process_of_the_next_one(
    inline: tuple[bool, ...], processes: tuple[tuple[int, ...], ...]
) -> None:
    assert load(*inline).processes == processes


def test_the_small_inline_in_the_medium_makes_a_drafting_pool_of_both() -> None:
    config = load(True, False, t0_window=5, t0_num_threads=1, t0_weights="int8")
    pool = pool_settings(config, 1)
    assert pool.drafter is not None
    assert (pool.name, pool.spec.tier, len(pool.inline)) == ("t1", 1, 1)
    assert pool.inline[0].drafter == pool.drafter
    assert (pool.inline[0].window, pool.inline[0].spec.num_threads, pool.inline[0].spec.weights) == (5, 1, "int8")
    assert (pool_settings(config, 2).drafter, pool_settings(config, 2).inline) == (None, ())


def test_all_inline_in_the_target_makes_one_verifying_pool() -> None:
    pool = pool_settings(load(True, True, t2_tensor_parallel_size=2), 2)
    assert pool.drafter is None
    assert [tier.spec.tier for tier in pool.inline] == [0, 1]
    assert [tier.drafter is not None for tier in pool.inline] == [True, False]
    assert pool.spec.tensor_parallel_size == 2


def test_a_verifying_tier_inline_above_a_pool_has_no_drafter() -> None:
    config = load(False, True)
    assert [tier.drafter for tier in pool_settings(config, 2).inline] == [None]
    assert pool_settings(config, 0).drafter is not None


def test_settings_written_out_in_full_are_read_again() -> None:
    config = load(True, False)
    assert load_config(config.model_dump(mode="json"), environ={}) == config


@pytest.mark.parametrize(("inline", "changes", "line"), [
    ((), {"t0_inline": True}, "tiers.0.inline: the target has no tier above it; remove inline"),
    ((False,), {"t1_inline": True}, "tiers.1.inline: the target has no tier above it; remove inline"),
    ((True,), {"t0_replicas": {"max": 2}},
     "tiers.0.replicas: an inline tier shares the process of 't1', and its replicas; remove replicas"),
    ((True, True), {"t0_resources": {"num_cpus": 2}},
     "tiers.0.resources: an inline tier shares the process of 't2', and its resources; remove resources"),
    ((False, True), {"t1_tensor_parallel_size": 2},
     "tiers.1.tensor_parallel_size: an inline tier shares the process of 't2' and runs on one rank; remove"),
    ((True,), {"t0_device": "cuda"}, "tiers.0.device: an inline tier shares the process of 't1', which runs on cpu"),
    ((True,), {"t0_max_sequences": 8}, "tiers.0.max_sequences: 8 is less than the 64 of 't1', in whose process"),
    ((True, False), {"t1_tensor_parallel_size": 2},
     "tiers.1.tensor_parallel_size: with tier 0 inline this tier drafts"),
])
def test_each_mistake_is_one_line_that_names_field_and_fix(
    inline: tuple[bool, ...], changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*inline, **changes)
    (only,) = caught.value.lines
    assert only.startswith(line)


@pytest.mark.parametrize(("inline", "drafts"), [
    ((), False), ((0,), False), ((1,), False), ((0, 1), True),
])
def test_a_target_drafts_for_itself_only_with_every_lower_tier_inline(inline: tuple[int, ...], drafts: bool) -> None:
    tiers = [
        {"name": name, "model": "builtin:smollm2", "inline": index in inline}
        for index, name in enumerate(("small", "medium", "target"))
    ]
    assert load_config({"tiers": tiers}, {}).target_drafts is drafts
