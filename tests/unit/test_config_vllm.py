"""A vLLM configuration file makes a service of ours, says what became of each key, and is refused where it cannot."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.config import Config, ConfigError, load_config
from cluster.config_vllm import from_vllm, is_vllm

FILE = """
model: builtin:smollm2
served-model-name: [chat, other]
tensor-parallel-size: 2
max-model-len: 2048
max-num-seqs: 16
block-size: 32
num-gpu-blocks-override: 100
dtype: half
port: 8123
gpu-memory-utilization: 0.8
seed: 0
"""


def load(settings: dict[str, Any]) -> tuple[Config, list[str]]:
    notes: list[str] = []
    return load_config(settings, {}, notes.append), notes


def test_a_file_of_vllm_is_served_and_every_key_is_accounted_for(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(FILE + 'speculative-config: \'{"method": "ngram"}\'\ncpu_offload_gb: 0\n')
    with pytest.raises(ConfigError, match="cpu_offload_gb: this vLLM setting has no counterpart here; remove it"):
        load_config(path, {})
    speculative = "speculative-config: {method: ngram, num_speculative_tokens: 3}\n"
    path.write_text(FILE.replace("half", "float32") + speculative)
    notes: list[str] = []
    config = load_config(path, {}, notes.append)
    target, draft = config.target, config.tiers[0]
    assert (target.model, target.tensor_parallel_size, target.page_tokens) == ("builtin:smollm2", 2, 32)
    assert (target.max_context_tokens, target.kv_tokens, target.max_sequences) == (2048, 3200, 16)
    assert (config.model_name, config.server.http_port) == ("chat", 8123)
    assert config.limits.max_concurrent_requests == 16
    assert draft.drafter is not None
    assert (draft.drafter.kind, config.speculation.lookahead) == ("ngram", 3)
    text = "\n".join(notes)
    for key in yaml.safe_load(FILE):
        assert key.replace("-", "_") in text or key == "model"


@pytest.mark.parametrize(("speculative", "expected"), [
    ({"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
     {"kind": "ngram", "ngram_max": 4, "ngram_min": 2}),
    ({"method": "suffix", "suffix_decoding_max_tree_depth": 12}, {"kind": "suffix", "max_depth": 12}),
    ({"method": "draft_model", "model": "some/draft", "use_heterogeneous_vocab": True},
     {"kind": "draft_model", "tokenizers": "intersection"}),
    ({"model": "some/draft", "parallel_drafting": True}, {"kind": "parallel"}),
])  # fmt: skip
def test_each_method_becomes_the_drafter_of_its_kind(speculative: dict[str, Any], expected: dict[str, Any]) -> None:
    config, _ = load({"model": "some/target", "speculative_config": {"num_speculative_tokens": 5, **speculative}})
    drafter = config.tiers[0].drafter
    assert drafter is not None
    assert {key: getattr(drafter, key) for key in expected} == expected
    assert config.speculation.lookahead == 5


def test_a_draft_model_gets_a_pool_of_its_own_and_twenty_tokens_raise_the_bound() -> None:
    config, notes = load({"model": "some/target", "speculative_config": {
        "model": "some/draft", "num_speculative_tokens": 20, "draft_tensor_parallel_size": 4,
        "rejection_sample_method": "block", "max_model_len": 1024,
    }})
    assert [tier.model for tier in config.tiers] == ["some/draft", "some/target"]
    assert config.tiers[0].max_context_tokens == 1024
    assert (config.speculation.lookahead, config.speculation.max_lookahead) == (20, 20)
    assert config.speculation.block_verification
    assert "draft_tensor_parallel_size 4 became 1: a drafting tier runs on one rank" in notes


@pytest.mark.parametrize(("settings", "line"), [
    ({"speculative_config": {"method": "mtp"}}, "speculative_config.method: 'mtp' has no counterpart"),
    ({"speculative_config": {"num_speculative_tokens": 2}}, "speculative_config.method: 'none' has no counterpart"),
    ({"speculative_config": "nonsense"}, "speculative_config: no JSON"),
    ({"speculative_config": 3}, "speculative_config: got 3; write a mapping"),
    ({"speculative_config": {"method": "ngram", "rejection_sample_method": "fly"}}, "'fly' is not exact"),
    ({"kv_cache_dtype": "fp8_e4m3"}, "set kv_dtype: int8"),
    ({"dtype": "int3"}, "dtype: 'int3' has no counterpart"),
    ({"num_gpu_blocks_override": "many"}, "num_gpu_blocks_override: got 'many'"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: this vLLM setting has no counterpart here"),
])  # fmt: skip
def test_what_has_no_counterpart_is_refused_in_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"model": "some/target", **settings})
    assert any(line in each for each in caught.value.lines), caught.value.lines


def test_our_own_settings_are_never_taken_for_vllms() -> None:
    assert not is_vllm({"tiers": [], "model": "x"})
    assert not is_vllm({"preset": "smollm2"})
    assert not is_vllm({})


TEXTS = st.sampled_from(["", "auto", "fp8", "{}", "[1]"])
VALUES = st.none() | st.integers() | TEXTS | st.lists(st.integers(), max_size=2)
KEYS = ("speculative_config", "dtype", "port", "max-model-len", "block_size", "served_model_name", "x")
INNER = st.dictionaries(st.sampled_from(["method", "model", "num_speculative_tokens", "y"]), VALUES, max_size=3)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES | INNER))
def test_whatever_a_file_holds_it_is_translated_or_refused(settings: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        from_vllm({"model": "m", **settings})
