"""Settings of suffix decoding and of draft models with another tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.build import build_drafter
from actors.drafter_specs import DraftModelSpec, SuffixSpec
from actors.drafters.suffix import SuffixDrafter
from cluster.config import Config, ConfigError, load_config


def config(drafter: dict[str, Any], draft: dict[str, Any] | None = None, **speculation: Any) -> Config:
    return load_config({
        "tiers": [{"name": "draft", "drafter": drafter, **(draft or {})}, {"name": "target", "model": "t"}],
        "speculation": speculation,
    }, environ={})  # fmt: skip


def test_suffix_decoding_needs_no_model_and_drafts_trees() -> None:
    settings = {
        "kind": "suffix", "max_depth": 12, "max_cached_requests": 3, "max_cached_tokens": 500, "spec_factor": 1,
        "min_token_prob": 0.3,
    }
    spec = config(settings, tree={"nodes": 8}).drafter_spec()
    assert spec == SuffixSpec(64, 12, 3, 500, 1.0, 0.3)
    assert isinstance(build_drafter(None, spec), SuffixDrafter)
    assert config({"kind": "suffix"}).drafter_spec() == SuffixSpec()
    with pytest.raises(ConfigError, match="suffix needs no model"):
        config({"kind": "suffix"}, {"model": "d"})


@pytest.mark.parametrize(("name", "value"), [("max_depth", 0), ("min_token_prob", 1.5), ("spec_factor", 0)])
def test_senseless_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        config({"kind": "suffix", name: value})


@pytest.mark.parametrize("way", ["intersection", "text"])
def test_a_draft_model_with_another_tokenizer_is_told_whose_ids_to_speak(way: str) -> None:
    spec = config({"kind": "draft_model", "tokenizers": way}, {"model": "d"}).drafter_spec()
    assert spec == DraftModelSpec(64, way, "t")
    assert config({"kind": "draft_model"}, {"model": "d"}).drafter_spec() == DraftModelSpec(64)
    with pytest.raises(ConfigError, match="drafts chains in another tokenizer's ids; remove tree"):
        config({"kind": "draft_model", "tokenizers": way}, {"model": "d"}, tree={"nodes": 8})
    with pytest.raises(ConfigError, match=r"emulated tier speaks the target's ids; remove drafter\.tokenizers"):
        config({"kind": "draft_model", "tokenizers": way}, {"model": "d", "emulation": {"pass_s": 0.001}})


def head(directory: Path, kind: str, **section: Any) -> dict[str, Any]:
    values = {"kind": kind, "format": 1, "num_target_layers": 3, "feature_layers": [3], **section}
    (directory / "config.json").write_text(json.dumps({"outrider_head": values}))
    return {"kind": kind, "head": str(directory)}


@pytest.mark.parametrize(("kind", "section"), [("medusa", {"num_heads": 3}), ("block", {"block_size": 4})])
def test_nobody_is_told_to_draft_further_than_its_head_goes(tmp_path: Path, kind: str, section: dict[str, Any]) -> None:
    drafter = head(tmp_path, kind, **section)
    with pytest.raises(ConfigError, match=rf"^speculation.lookahead: 5 is further than this {kind} head .* most 3$"):
        config(drafter, lookahead=5)
    with pytest.raises(ConfigError, match=r"^speculation.tree.widths: 4 levels are deeper .* at most 3$"):
        config(drafter, lookahead=3, tree={"widths": [2, 1, 1, 1]})
    assert config(drafter, lookahead=3).speculation.lookahead == 3
    unsaid = config(drafter)  # nobody asked for the default
    assert load_config(unsaid.model_dump(mode="json"), environ={}) == unsaid
    assert unsaid.sends_features and unsaid.feature_window == (1 if kind == "medusa" else 0)
    assert config(drafter, lookahead="auto").speculation.lookahead == "auto"
    assert config(head(tmp_path, "eagle"), lookahead=16).speculation.lookahead == 16


@pytest.mark.parametrize("layers", [[], [0], [4], [2, 1], [3, 3], [True], "all", None])
def test_layers_that_no_target_has_are_found_out_by_the_settings(tmp_path: Path, layers: object) -> None:
    """Else they would be found by the target, which has done nothing wrong."""
    with pytest.raises(ConfigError, match=r"^tiers\.0\.drafter: .*feature_layers .*copy or train the head again$"):
        config(head(tmp_path, "eagle", feature_layers=layers))


def test_copies_can_be_mixed_into_laws_alone() -> None:
    for drafter, draft in (
        ({"kind": "draft_model"}, {"model": "d"}), ({"kind": "parallel"}, {"model": "d"}),
        ({"kind": "early_exit", "exit_layer": 2}, {"inline": True}), ({"kind": "layer_skip"}, {"inline": True}),
    ):
        for copying in (True, False):
            spec = config({**drafter, "copying": copying}, draft).drafter_spec()
            assert spec is not None and spec.copying is copying
    for kind in ("suffix", "ngram"):
        with pytest.raises(ConfigError, match="copying: unknown setting"):
            config({"kind": kind, "copying": True})
    with pytest.raises(ConfigError, match="copying does not work with tokenizers: text; remove it"):
        config({"kind": "draft_model", "tokenizers": "text", "copying": True}, {"model": "d"})
