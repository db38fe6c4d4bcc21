"""Every manifest in deploy/ says what our own configuration and Serve's schema accept."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.config import load_config

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("serve.*.yaml")), ids=lambda path: path.name)
def test_a_serve_config_parses_imports_and_names_only_known_settings(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    schema = ServeDeploySchema.model_validate(content)
    assert {*content} <= {*ServeDeploySchema.model_fields}  # Serve's schema ignores what it does not know
    for application, raw in zip(schema.applications, content["applications"], strict=True):
        module, _, name = application.import_path.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
        assert len(load_config(dict(raw["args"]), environ={}).tiers) >= 2
    for function in content["grpc_options"]["grpc_servicer_functions"]:
        module, _, name = function.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_there_is_a_manifest_to_check() -> None:
    assert sorted(DEPLOY.glob("serve.*.yaml"))
