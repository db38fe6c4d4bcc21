"""Malformed settings: each is a checked `Config`, or a `ConfigError` of short lines; never anything else, and at once.

`pytest -m fuzz` makes 2,000 of them; a short part, from another seed, runs without asking.
"""

from __future__ import annotations

import collections
import time
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config import Config, ConfigError, load_config
from cluster.config_load import preset_names
from tests.unit.config_faults import bomb, environments, mappings, texts

LONGEST_LINE = 500
SLOWEST_S = 5.0  # a slow machine's; a few milliseconds is usual


def good() -> list[dict[str, Any]]:
    """All presets, and settings with every section."""
    folder = resources.files("cluster") / "presets"
    found = [yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in preset_names()]
    tier = {"model": "m", "replicas": {"min": 1, "max": 2}, "resources": {"num_cpus": 1, "custom": {"x": 1}}}
    return [*found, {
        "model_name": "all",
        "tiers": [{"name": "draft", **tier, "drafter": {"kind": "draft_model"}}, {"name": "t", **tier}],
        "speculation": {"lookahead": "auto", "overlap": {"branches": 4}}, "sampling": {"top_k": 3},
        "limits": {"max_tokens": 300}, "auth": {"tokens_env": "T", "burst": 3},
        "server": {"grpc_port": 9001, "tls": {"cert": "c", "key": "k"}},
    }]  # fmt: skip


def outcome(source: Any, environ: dict[str, str]) -> str:
    """"config" or "refused"; fails on everything else."""
    began_s, lines = time.monotonic(), [""]
    try:
        found = load_config(source, environ=environ)
    except ConfigError as error:
        found, lines = None, error.lines
    assert time.monotonic() - began_s < SLOWEST_S
    if found is None:
        assert lines and all(0 < len(line) <= LONGEST_LINE and line.isprintable() for line in lines), lines
        return "refused"
    assert isinstance(found, Config)
    assert load_config(found.model_dump(mode="json"), environ={}) == found
    return "config"


def fuzz(seed: int, count: int, folder: Path) -> collections.Counter[str]:
    """Half mappings, four tenths files, the rest environments."""
    found: collections.Counter[str] = collections.Counter()
    for number, mapping in enumerate(mappings(seed, count // 2, good())):
        try:
            found["mapping", outcome(mapping, {})] += 1
        except Exception as error:
            raise AssertionError(f"mapping {number} of seed {seed}: {mapping!r}") from error
    path = folder / "settings.yaml"
    for number, text in enumerate(texts(seed, count * 4 // 10, good())):
        path.write_bytes(text)
        try:
            found["file", outcome(str(path), {})] += 1
        except Exception as error:
            raise AssertionError(f"file {number} of seed {seed}: {text!r}") from error
    for number, environ in enumerate(environments(seed, count // 10)):
        try:
            found["environment", outcome("smollm2", environ)] += 1
        except Exception as error:
            raise AssertionError(f"environment {number} of seed {seed}: {environ!r}") from error
    return found


def test_malformed_settings_are_refused_in_words(tmp_path: Path) -> None:
    found = fuzz(1, 200, tmp_path)
    assert found.total() == 200
    assert found["mapping", "refused"] > 50 and found["file", "refused"] > 20


def test_a_file_that_stands_for_more_than_memory_holds_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(bomb())
    assert outcome(str(tmp_path / "bomb.yaml"), {}) == "refused"
    (tmp_path / "deep.yaml").write_text("tiers: " + "[" * 5000)
    assert outcome(str(tmp_path / "deep.yaml"), {}) == "refused"


@pytest.mark.fuzz
def test_two_thousand_malformed_settings(tmp_path: Path) -> None:
    found = fuzz(20, 2000, tmp_path)
    assert found.total() == 2000
    print("\n", dict(found))
