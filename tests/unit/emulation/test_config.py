"""Emulated tiers in a configuration: presets, who follows whom, and one clear line for each mistake."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from actors.spec import Voice
from cluster.config import ConfigError, load_config

LADDER: dict[str, Any] = {"tiers": [
    {"name": "small", "model": "m", "emulation": {"pass_s": 0.001, "agreement": [0.9, 0.5], "further_guesses": 0.25}},
    {"name": "medium", "model": "m", "emulation": {"pass_s": 0.01, "agreement": 0.9, "seed": 7, "hop_s": 0.002}},
    {"name": "large", "model": "/models/m", "emulation": {"pass_s": 0.1, "flat_rows": 32, "row_s": 0.001}},
]}


def edited(path: str, value: object) -> dict[str, Any]:
    data = copy.deepcopy(LADDER)
    node: Any = data
    *parents, leaf = path.split(".")
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[leaf] = value
    return data


def test_each_tier_knows_the_voices_that_it_follows() -> None:
    small, medium, large = (Voice("small", 0, (0.9, 0.5), (0.25,)), Voice("medium", 7, (0.9,)), Voice("large"))
    specs = load_config(LADDER, environ={}).model_specs()
    voices = [spec.emulation.voices for spec in specs if spec.emulation]
    assert voices == [(small, medium, large), (medium, large), (large,)]
    past_the_medium = load_config(edited("tiers.0.emulation.follows", "large"), environ={}).model_specs()[0].emulation
    assert past_the_medium is not None
    assert past_the_medium.voices == (small, large)
    assert [spec.hop_s for spec in specs] == [0.0, 0.002, 0.0]


def test_an_emulated_tier_is_never_called_by_its_models_name_alone() -> None:
    config = load_config(LADDER, environ={})
    assert {spec.model for spec in config.model_specs()} == {"emulated:m", "emulated:/models/m"}
    assert {tier.label for tier in config.tiers} == {"emulated:m", "emulated:/models/m"}


@pytest.mark.parametrize("preset", ["emulated-70b", "emulated-ladder"])
def test_presets_emulate_every_tier_with_one_tokenizer(preset: str) -> None:
    specs = load_config(preset, environ={}).model_specs()
    assert {spec.model for spec in specs} == {"emulated:builtin:smollm2"}
    assert all(spec.emulation is not None for spec in specs)
    assert specs[-1].emulation is not None
    assert specs[-1].emulation.pass_s == 0.0714


def test_settings_survive_being_written_and_read_again() -> None:
    config = load_config(LADDER, environ={})
    assert load_config(config.model_dump(mode="json"), environ={}) == config


@pytest.mark.parametrize(("path", "value", "line"), [
    ("tiers.0.emulation", {"agreement": 0.5}, "tiers.0.emulation.pass_s: is required; add `pass_s:`"),
    ("tiers.0.emulation.pass_s", -1, "tiers.0.emulation.pass_s: got -1; use greater than or equal to 0"),
    ("tiers.0.emulation.passs", 1, "tiers.0.emulation.passs: unknown setting; did you mean 'pass_s'?"),
    ("tiers.0.emulation.flat_rows", 0, "tiers.0.emulation.flat_rows: got 0; use greater than 0"),
    ("tiers.0.emulation.agreement", 1.2, "tiers.0.emulation: agreement 1.2 lies outside 0 to 1"),
    ("tiers.0.emulation.agreement", [0.5, -1], "tiers.0.emulation: agreement -1 lies outside 0 to 1"),
    ("tiers.0.emulation.agreement", [], "tiers.0.emulation: agreement is an empty list"),
    ("tiers.0.emulation.agreement", "high", "tiers.0.emulation.agreement: 'high' is no share; give one"),
    ("tiers.0.emulation.agreement", None, "tiers.0.emulation.agreement: is required below the target"),
    ("tiers.0.emulation.further_guesses", 2, "tiers.0.emulation: further_guesses 2 lies outside 0 to 1"),
    ("tiers.0.emulation.further_guesses", [0.5, -1], "tiers.0.emulation: further_guesses -1 lies outside 0 to 1"),
    ("tiers.0.emulation.further_guesses", [0.5] * 32, "tiers.0.emulation: further_guesses has 32 ranks; at most 31"),
    ("tiers.0.emulation.follows", "huge",
     "tiers.0.emulation.follows: 'huge' is no emulated tier above this one; use medium or large"),
    ("tiers.1.emulation.follows", "small", "tiers.1.emulation.follows: 'small' is no emulated tier above"),
    ("tiers.1.emulation.agreement", [0.9, 0.8], "tiers.1.emulation.agreement: only tier 0 drafts"),
    ("tiers.2.emulation", None,
     "tiers.1.emulation.follows: 'large' is no emulated tier above this one; give the target an `emulation` section"),
    ("tiers.2.emulation.agreement", 0.5, "tiers.2.emulation: the target follows nobody; remove agreement"),
    ("tiers.2.tensor_parallel_size", 2, "tiers.2: an emulated tier runs on one rank"),
    ("tiers.2.tensor_parallel_size", "auto", "tiers.2: an emulated tier runs on one rank"),
    ("tiers.2.device", "cuda", "tiers.2: an emulated tier needs no GPU"),
    ("tiers.0.drafter", {"kind": "ngram"}, "tiers.0: drafter ngram"),
    ("tiers.2.model", "emulated:m", "tiers.2: model 'emulated:m' is the name of an emulated device"),
])
def test_each_mistake_gives_one_clear_line(path: str, value: object, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(edited(path, value), environ={})
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(line)
