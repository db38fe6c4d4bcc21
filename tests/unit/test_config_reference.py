"""The reference of settings is the schema's own, and the pages for operators name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli.main import app
from cluster.config import Config, load_config
from cluster.config_reference import reference

DOCS = Path(__file__).parents[2] / "deploy" / "docs"


def test_the_reference_in_the_repository_is_that_of_the_schema() -> None:
    assert (DOCS / "configuration.md").read_text() == reference(), (
        "run: outrider config reference > deploy/docs/configuration.md"
    )


def test_the_reference_names_every_setting_of_every_section() -> None:
    text = reference()
    for name in [*Config.model_fields, "tensor_parallel_size", "ngram_max", "min_token_prob", "exit_layer", "widths"]:
        assert f"| `{name}` |" in text
    assert "## `tiers[].drafter (suffix)`" in text


def test_what_a_configuration_comes_to_is_a_configuration_that_comes_to_the_same() -> None:
    shown = CliRunner().invoke(app, ["config", "check", "smollm2"])
    assert shown.exit_code == 0
    assert load_config(yaml.safe_load(shown.stdout), {}) == load_config("smollm2", {})


@pytest.mark.parametrize("page", ["choosing-drafts.md", "troubleshooting.md", "migrating.md"])
def test_the_pages_name_settings_that_exist(page: str) -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE))
    for name in re.findall(r"`(?:speculation|limits|replicas|sampling)\.(\w+)", (DOCS / page).read_text()):
        assert name in known, name
