"""Emulated tiers are built without weights, and called emulated wherever somebody reads of them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from rich.console import Console

from actors.build import build_drafter, build_verifier, describe
from actors.drafter_specs import DraftModelSpec
from actors.emulation.voice import MIN_WORDS
from actors.emulation.words import word_ids
from actors.loading.checkpoint import load_model, resolve
from actors.loading.errors import UnsupportedModel
from actors.loading.tokenizer import load_tokenizer
from actors.spec import ModelSpec
from cluster.cli.serve import ladder
from cluster.config import Config, load_config
from cluster.ingress.deployment import _public_name, _tier_to_pb

MODEL = "random:tiny-llama"


def config() -> Config:
    emulation: dict[str, Any] = {"pass_s": 0.0}
    return load_config({"model_name": "tiny", "tiers": [
        {"name": "draft", "model": MODEL, "emulation": {**emulation, "agreement": 0.8}},
        {"name": "target", "model": MODEL, "emulation": emulation},
    ]}, environ={})


def test_tiers_are_built_without_weights_and_say_what_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never(spec: ModelSpec) -> None:
        raise AssertionError(f"weights of {spec.model} were loaded")

    monkeypatch.setattr("actors.build.load_model", never)
    draft, target = config().model_specs()
    workers: list[Any] = [build_drafter(draft, DraftModelSpec()), build_verifier(target)]
    for worker, spec in zip(workers, (draft, target), strict=True):
        info = worker.info()
        assert info == describe(spec, 512)
        assert info.model == "emulated:random:tiny-llama"
        assert info.eos_ids == (0,)
        worker.shutdown()
    notices = [r for r in caplog.records if r.levelno == logging.WARNING and "EMULATED" in r.getMessage()]
    assert len(notices) == 2


def test_an_emulated_device_uses_the_tokenizer_of_its_model_and_is_no_model_itself() -> None:
    assert resolve(f"emulated:{MODEL}") == resolve(MODEL)
    with pytest.raises(UnsupportedModel, match="give its tier an `emulation` section"):
        load_model(ModelSpec(0, f"emulated:{MODEL}"))


def test_it_speaks_in_words_and_never_ends_a_text() -> None:
    tokenizer = load_tokenizer(MODEL)
    ids = word_ids(tokenizer, 512, MIN_WORDS)
    assert not set(ids.tolist()) & set(tokenizer.all_special_ids)
    assert all(str(tokenizer.decode([i])).strip().isalpha() for i in ids.tolist())
    with pytest.raises(UnsupportedModel, match="emulate with another model's"):
        word_ids(tokenizer, 280, MIN_WORDS)


def test_what_is_served_is_called_emulated() -> None:
    settings = config()
    assert [_tier_to_pb(settings, index).model for index in (0, 1)] == ["emulated:random:tiny-llama"] * 2
    assert _public_name("emulated:/models/secret/large") == "emulated:large"
    console = Console(width=100)
    with console.capture() as captured:
        console.print(ladder(settings))
    shown = captured.get()
    assert "tiny (EMULATED devices)" in shown
    assert shown.count("emulated:random:tiny-llama") == 2
