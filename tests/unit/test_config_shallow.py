"""`early_exit` and `layer_skip` in the settings: what they become, and one line per mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.drafter_specs import EarlyExitSpec, LayerSkipSpec
from cluster.config import Config, ConfigError, load_config

EARLY: dict[str, Any] = {"kind": "early_exit", "exit_layer": 8}
SKIP: dict[str, Any] = {"kind": "layer_skip", "skip": [3, 5]}


def load(drafter: dict[str, Any], target: dict[str, Any] | None = None, **tier: Any) -> Config:
    tiers = [
        {"name": "self", "inline": True, "drafter": drafter, **tier},
        {"name": "target", "model": "m", **(target or {})},
    ]
    return load_config({"tiers": tiers}, {})


def exit_directory(path: Path, layer: int = 6) -> str:
    section = {"kind": "early_exit", "format": 1, "feature_layers": [layer]}
    (path / "config.json").write_text(json.dumps({"outrider_head": section}))
    return str(path)


def test_each_kind_becomes_its_spec(tmp_path: Path) -> None:
    head = exit_directory(tmp_path)
    assert load(EARLY).drafter_spec() == EarlyExitSpec(64, 8)
    assert load({"kind": "early_exit", "head": head}).drafter_spec() == EarlyExitSpec(64, 0, head)
    assert load({"kind": "early_exit", "head": head, "exit_layer": 6}).drafter_spec() == EarlyExitSpec(64, 6, head)
    assert load(SKIP).drafter_spec() == LayerSkipSpec(64, (3, 5))
    assert load({"kind": "layer_skip"}).drafter_spec() == LayerSkipSpec(64, (), 128)


def test_the_tier_takes_after_the_target_and_needs_no_plane_of_features() -> None:
    config = load(EARLY, {"weights": "int4", "max_sequences": 200})
    assert config.target_drafts
    assert [spec.model for spec in config.model_specs()] == ["m", "m"]
    assert [spec.feature_layers for spec in config.model_specs()] == [(), ()]
    assert load_config(config.model_dump(mode="json"), {}) == config


@pytest.mark.parametrize(("drafter", "target", "tier", "line"), [
    (EARLY, {}, {"inline": False},
     "tiers.0.inline: early_exit drafts with the layers of 'target', in its process; set inline: true"),
    (EARLY, {}, {"model": "x"}, "tiers.0: drafter early_exit needs no model; remove `model`"),
    (SKIP, {}, {"weights": "int8"},
     "tiers.0.weights: layer_skip runs on the weights and KV memory of 'target'; remove weights, or set it there"),
    (SKIP, {"emulation": {"pass_s": 0.01}}, {},
     "tiers.0.drafter: layer_skip drafts with the layers of 'target', and an emulated device has none"),
    ({"kind": "early_exit"}, {}, {},
     "tiers.0.drafter: early_exit has neither exit_layer nor head; set exit_layer to a layer of the model"),
    ({"kind": "early_exit", "exit_layer": 0}, {}, {}, "tiers.0.drafter.exit_layer: "),
    ({"kind": "layer_skip", "skip": []}, {}, {},
     "tiers.0.drafter.skip: got []; name layers to leave out, 1: the first, e.g. [5, 6], or write \"auto\""),
    ({"kind": "layer_skip", "skip": [0, 2]}, {}, {}, "tiers.0.drafter.skip: got [0, 2]; name layers to leave out"),
    ({"kind": "layer_skip", "skip": "all"}, {}, {}, "tiers.0.drafter.skip: got 'all'; name layers to leave out"),
    ({"kind": "early_exit", "head": ""}, {}, {}, "tiers.0.drafter.head: is empty; give"),
])
def test_each_mistake_is_one_line_that_names_field_and_fix(
    drafter: dict[str, Any], target: dict[str, Any], tier: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(drafter, target, **tier)
    (only,) = caught.value.lines
    assert only.startswith(line)


def test_an_exit_of_another_layer_is_told_by_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"kind": "early_exit", "exit_layer": 9, "head": exit_directory(tmp_path)})
    (only,) = caught.value.lines
    assert "exit_layer 9" in only and "was trained for layer 6; remove exit_layer" in only
