"""Ladders of kinds: what the settings know is measured, what lacks something says so."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.bench.drafters.kinds import NotMeasured, Recipe, identity, ladder, own_ladder, sections, target_tier
from cluster.config import load_config
from cluster.config_drafters import KINDS

BASE = load_config("smollm2", environ={})
TARGET = target_tier(BASE, "int8", 2, 1024)


def test_the_target_runs_on_one_rank_with_room_for_one_text() -> None:
    assert (TARGET["tensor_parallel_size"], TARGET["weights"], TARGET["kv_tokens"]) == (1, "int8", 1024)
    assert target_tier(BASE, None, 1, 512)["weights"] == BASE.target.weights
    load_config({"tiers": [TARGET]}, environ={})


def test_every_kind_of_the_settings_gets_a_ladder_or_a_reason() -> None:
    assert tuple(sections()) == KINDS
    reasons: dict[str, str] = {}
    for kind in KINDS:
        try:
            config = ladder(kind, TARGET, 30, 4, {})
        except NotMeasured as error:
            reasons[kind] = str(error)
            continue
        drafter = config.drafter_spec()
        assert drafter is not None
        assert (drafter.kind, config.speculation.lookahead) == (kind, 4)
    assert all(f"--head {kind}=" in reason and "\n" not in reason for kind, reason in reasons.items())
    assert not {"draft_model", "ngram", "suffix"} & set(reasons)


def test_a_draft_model_is_the_target_in_four_bits_unless_another_is_named() -> None:
    draft, target = ladder("draft_model", TARGET, 30, 4, {}).model_specs()
    assert (draft.model, draft.weights, target.weights) == (target.model, "int4", "int8")
    assert ladder("draft_model", TARGET, 30, 4, {"draft_model": "builtin:other"}).tiers[0].model == "builtin:other"


@pytest.mark.parametrize(("kind", "heads", "reason"), [
    ("ngram", {"ngram": "/x"}, "has neither model nor head: remove --head ngram=/x"),
    ("eagle", {}, "no head was given: --head eagle=DIR"),
    ("eagle", {"eagle": "/nowhere/at/all"}, "/nowhere/at/all"),
])
def test_what_a_kind_lacks_is_one_line(kind: str, heads: dict[str, str], reason: str) -> None:
    if kind not in KINDS:
        pytest.skip(f"the settings know no kind {kind}")
    with pytest.raises(NotMeasured) as caught:
        ladder(kind, TARGET, 30, 4, heads)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_exit_without_a_head_is_after_a_third_of_the_layers() -> None:
    drafter = ladder("early_exit", TARGET, 30, 4, {}).tiers[0].drafter
    assert drafter is not None
    assert drafter.model_dump()["exit_layer"] == 10


def test_the_configurations_own_ladder_is_known_again() -> None:
    own = own_ladder(BASE, TARGET, 4)
    assert identity(own) == identity(own)
    assert identity(own) != identity(ladder("ngram", TARGET, 30, 4, {}))
    suffix = {"name": "draft", "drafter": {"kind": "suffix", "max_depth": 9}}
    told = load_config({"tiers": [suffix, TARGET]}, environ={})
    assert own_ladder(told, TARGET, 4).drafter_spec() == told.drafter_spec()
    with pytest.raises(NotMeasured, match="has 1 tiers, and pairs are measured"):
        own_ladder(load_config({"tiers": [TARGET]}, environ={}), TARGET, 4)


def test_a_recipe_may_say_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes: dict[str, Any] = {"ngram": Recipe(drafter={"ngram_max": 7}, inline=True)}
    monkeypatch.setattr("cluster.bench.drafters.kinds.RECIPES", recipes)
    config = ladder("ngram", TARGET, 30, 3, {})
    assert config.target_drafts
    assert config.drafter_spec() == load_config({
        "tiers": [{"name": "draft", "drafter": {"kind": "ngram", "ngram_max": 7}}, TARGET]}, environ={}).drafter_spec()
