"""Settings: good ones become frozen specs, each mistake becomes one clear line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.sampling.policies import POLICIES
from cluster.config import Config, ConfigError, TierConfig, load_config
from cluster.config_drafters import KINDS
from cluster.config_load import _models

GOOD: dict[str, Any] = {
    "tiers": [{"name": "draft", "model": "small"}, {"name": "target", "model": "large"}],
}


def edited(path: str, value: object) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    node: Any = data
    *parents, leaf = path.split(".")
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[leaf] = value
    return data


def load(data: dict[str, Any], **environ: str) -> Config:
    return load_config(data, environ=environ)


def test_preset_yields_specs_for_draft_and_target() -> None:
    config = load_config("smollm2", environ={})
    draft, target = config.model_specs()
    assert (draft.weights, draft.kv_dtype, draft.num_threads) == ("int4", "bfloat16", 2)
    assert draft.tensor_parallel_size == 1
    assert (target.weights, target.tier) == ("fp32", 1)
    drafter = config.drafter_spec()
    assert drafter is not None
    assert drafter.kind == "draft_model"


def test_every_field_of_every_section_is_described() -> None:
    seen: set[type] = set()
    todo: list[Any] = [Config]
    while todo:
        section = todo.pop()
        if section in seen:
            continue
        seen.add(section)
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
            todo.extend(_models(field.annotation))
    assert len(seen) == 15 + len(KINDS) + len(POLICIES)


def test_file_starts_from_preset_and_environment_wins(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("preset: smollm2\nserver: {grpc_port: 9100, http_port: 9101}\n")
    config = load_config(path, environ={
        "OUTRIDER_SERVER__GRPC_PORT": "9200", "OUTRIDER_TIERS__1__WEIGHTS": "int8",
        "OUTRIDER_CACHE": "elsewhere",
    })
    assert (config.server.grpc_port, config.server.http_port) == (9200, 9101)
    assert config.target.weights == "int8"
    assert config.limits.max_tokens == 1024


def test_one_tier_is_plain_decoding() -> None:
    config = load({"tiers": [{"name": "target", "model": "large"}]})
    assert config.drafter_spec() is None


def test_ngram_drafter_needs_no_model_and_borrows_the_targets_vocabulary() -> None:
    config = load({"tiers": [{"name": "draft", "drafter": {"kind": "ngram"}}, GOOD["tiers"][1]]})
    assert config.model_specs()[0].model == "large"


def test_auto_tensor_parallel_size_is_one_on_cuda() -> None:
    tier = TierConfig(name="t", model="m", device="cuda", tensor_parallel_size="auto",
                      resources={"num_gpus": 1})  # type: ignore[arg-type]
    assert tier.num_ranks == 1


def test_bundle_names_gpu_accelerator_and_custom_resources() -> None:
    data = edited("tiers.1.device", "cuda")
    resources = {"num_cpus": 0, "num_gpus": 0.5, "accelerator_type": "L4", "custom": {"rack": 1}}
    data["tiers"][1]["resources"] = resources
    assert load(data).target.resources.bundle() == {"GPU": 0.5, "accelerator_type:L4": 0.001, "rack": 1}


def test_prompts_get_a_quarter_of_a_step_unless_told_otherwise() -> None:
    assert load(GOOD).model_specs()[1].prefill_rows == 128
    assert load(edited("tiers.1.prefill_tokens", 32)).model_specs()[1].prefill_rows == 32


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load(GOOD).server.grpc_port = 1  # type: ignore[misc]


@pytest.mark.parametrize(("path", "value", "line"), [
    ("tiers", [], "tiers: is empty; give at least one entry"),
    ("tiers.0.nmae", "x", "tiers.0.nmae: unknown setting; did you mean 'name'?"),
    ("speculaton", {}, "speculaton: unknown setting; did you mean 'speculation'?"),
    ("tiers.1.dtype", "float31", "tiers.1.dtype: got 'float31'; use 'float32', 'bfloat16' or 'float16'"),
    ("tiers.1.tensor_parallel_size", 0, "tiers.1.tensor_parallel_size: got 0; use"),
    ("tiers.0.tensor_parallel_size", 2, "tiers.0.tensor_parallel_size: a drafting tier runs on one rank"),
    ("tiers.1.model", None, "tiers.1: `model` is required; give a directory"),
    ("tiers.1.name", "draft", "tiers: two tiers are named 'draft'"),
    ("tiers.1.name", "Big One", "tiers.1.name: 'Big One' is not allowed"),
    ("tiers.1.drafter", {}, "tiers.1.drafter: only tier 0 drafts"),
    ("tiers.0.drafter", {"kind": "ngram"}, "tiers.0: drafter ngram needs no model; remove `model`"),
    ("tiers.0.drafter", {"kind": "ngram", "ngram_min": 9}, "tiers.0.drafter: ngram_min 9 exceeds ngram_max 4"),
    ("tiers.0.drafter", {"kind": "ngrm"}, "tiers.0.drafter.kind: 'ngrm' is no kind; did you mean 'ngram'?"),
    ("tiers.0.drafter", {"kind": "ngram", "ngram_mn": 1},
     "tiers.0.drafter.ngram_mn: unknown setting; did you mean 'ngram_min'?"),
    ("tiers.0.drafter", "ngram", "tiers.0.drafter: got 'ngram'; write its settings under it, as `name: value`"),
    ("speculation.overlap", True, "speculation.overlap: got True; write its settings under it, as `name: value`"),
    ("tiers.1.page_tokens", 48, "tiers.1: page_tokens 48 is not a power of two"),
    ("tiers.1.kv_tokens", 100, "tiers.1: kv_tokens 100 is not a multiple of page_tokens; use 128"),
    ("tiers.1.max_context_tokens", 10**6, "tiers.1: max_context_tokens 1000000 exceeds kv_tokens"),
    ("tiers.1.prefill_tokens", 512, "tiers.1: prefill_tokens 512 leaves no row of max_batch_tokens 512 to decode"),
    ("tiers.1.max_batch_tokens", 1, "tiers.1.max_batch_tokens: got 1; use"),
    ("tiers.1.device", "cuda", "tiers.1: device cuda without GPUs; set resources.num_gpus"),
    ("tiers.1.device", "tpu", "tiers.1.device: 'tpu' is not allowed"),
    ("tiers.1.resources.num_gpus", 1, "tiers.1: resources.num_gpus is set but device is cpu"),
    ("tiers.1.replicas", {"min": 3, "max": 2}, "tiers.1.replicas: min 3 exceeds max 2"),
    ("tiers.1.replicas", {"max": 2, "initial": 3}, "tiers.1.replicas: initial 3 lies outside min..max"),
    ("speculation.lookahead", 17, "speculation: lookahead 17 exceeds max_lookahead 16"),
    ("speculation.draft_timeout_s", 0, "speculation.draft_timeout_s: got 0; use greater than 0"),
    ("sampling.max_tokens", 5000, "sampling.max_tokens: 5000 exceeds limits.max_tokens 4096"),
    ("sampling.top_p", 0, "sampling.top_p: got 0; use greater than 0"),
    ("server.grpc_port", 8000, "server: grpc_port and http_port are both 8000"),
    ("server.grpc_port", "many", "server.grpc_port: got 'many'; use a valid integer"),
    ("telemetry.otlp_endpoint", "collector:4317", "telemetry: otlp_endpoint 'collector:4317' has no scheme; write"),
    ("telemetry.include_text", True, "telemetry: include_text without otlp_endpoint has no effect"),
    ("telemetry.sample_ratio", 2, "telemetry.sample_ratio: got 2; use"),
    ("logging.format", "yaml", "logging.format: got 'yaml'; use 'text' or 'json'"),
    ("preset", "huge", "preset: no preset 'huge'; choose one of emulated-70b"),
])
def test_each_mistake_gives_one_clear_line(path: str, value: object, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(edited(path, value))
    assert len(caught.value.lines) <= 2  # a union may name both of its forms
    assert caught.value.lines[0].startswith(line)
    assert "\n" not in caught.value.lines[0]


def test_several_mistakes_are_told_together() -> None:
    data = edited("server.grpc_port", 0)
    data["tiers"][1]["weights"] = "int3"
    with pytest.raises(ConfigError) as caught:
        load(data)
    assert [line.split(":")[0] for line in caught.value.lines] == ["tiers.1.weights", "server.grpc_port"]


@pytest.mark.parametrize(("variable", "line"), [
    ("OUTRIDER_SERVR__GRPC_PORT", "OUTRIDER_SERVR__GRPC_PORT: no section 'servr'; did you mean 'server'?"),
    ("OUTRIDER_TIERS__7__MODEL", "OUTRIDER_TIERS__7__MODEL: there is no tiers.7.model to override"),
])
def test_wrong_variables_are_named(variable: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(GOOD, **{variable: "1"})
    assert str(caught.value).startswith(line)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or preset; presets are: emulated-70b"):
        load_config("missing.yaml", environ={})
    broken = tmp_path / "broken.yaml"
    broken.write_text("tiers: [\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(broken, environ={})
    broken.write_text("- just a list\n")
    with pytest.raises(ConfigError, match="expected settings"):
        load_config(broken, environ={})
