"""Settings of suffix decoding and of draft models with another tokenizer."""

from __future__ import annotations

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
