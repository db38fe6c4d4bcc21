"""Lossy settings: absent by default, checked when present."""

from __future__ import annotations

from typing import Any

import pytest

from actors.sampling.policies import BigLittle, TypicalAcceptance
from cluster.config import Config, ConfigError, load_config
from cluster.config_load import preset_names
from cluster.ingress.convert import RequestDefaults
from cluster.ingress.deployment import announce_lossy


def ladder(lossy: dict[str, Any] | None, tiers: int = 2, **speculation: Any) -> Config:
    return load_config({
        "tiers": [{"name": f"t{i}", "model": "m"} for i in range(tiers)],
        "speculation": {"lossy": lossy, **speculation},
    }, environ={})


@pytest.mark.parametrize("preset", preset_names())
def test_no_preset_is_lossy(preset: str) -> None:
    assert load_config(preset, environ={}).speculation.lossy is None


def test_neither_settings_nor_requests_are_lossy_by_default() -> None:
    config = load_config({"tiers": [{"name": "a", "model": "m"}, {"name": "b", "model": "m"}]}, environ={})
    assert config.speculation.lossy is None
    assert RequestDefaults(max_tokens=1).lossy is None
    lossy = ladder({"policy": "typical"}).speculation.lossy
    assert lossy is not None
    assert not lossy.by_default


def test_settings_reach_the_actors() -> None:
    for settings, policy in (
        ({"policy": "typical"}, TypicalAcceptance(0.09, 0.3)),
        ({"policy": "typical", "epsilon": 0.2, "delta": 0.4}, TypicalAcceptance(0.2, 0.4)),
        ({"policy": "bild", "fallback": 0.5, "rollback": 3}, BigLittle(0.5, 3.0)),
    ):
        lossy = ladder(settings).speculation.lossy
        assert lossy is not None
        assert lossy.settings() == policy


def test_a_lossy_service_says_so_at_start_and_an_exact_one_does_not(caplog: pytest.LogCaptureFixture) -> None:
    announce_lossy(ladder(None))
    assert not caplog.records
    announce_lossy(ladder({"policy": "bild"}))
    announce_lossy(ladder({"policy": "typical", "by_default": True}))
    assert [record.getMessage() for record in caplog.records] == [
        "lossy policy bild is on for requests that ask for it: their text is not exactly the target's",
        ("lossy policy typical is on for requests that do not ask for exact text: "
         "their text is not exactly the target's"),
    ]


@pytest.mark.parametrize(("lossy", "others", "line"), [
    ({}, {}, "speculation.lossy.policy: 'None' is no policy; remove it or use one of typical, bild"),
    ({"policy": "typicl"}, {}, "speculation.lossy.policy: 'typicl' is no policy; did you mean 'typical'?"),
    ({"policy": "typical", "epsilom": 1}, {}, "lossy.epsilom: unknown setting; did you mean 'epsilon'?"),
    ({"policy": "typical", "fallback": 1}, {}, "speculation.lossy.fallback: unknown setting; remove it or use one of"),
    ({"policy": "typical", "epsilon": 0}, {}, "speculation.lossy.epsilon: got 0; use greater than 0"),
    ({"policy": "bild", "rollback": 0}, {}, "speculation.lossy.rollback: got 0; use greater than 0"),
    ({"policy": "typical"}, {"tiers": 1}, "nothing is drafted, so nothing can be lost; remove lossy"),
    ({"policy": "typical"}, {"enabled": False}, "speculation.lossy: nothing is drafted"),
    ({"policy": "bild"}, {"tiers": 3}, "speculation.lossy: bild is for one small and one large model"),
    ({"policy": "bild"}, {"overlap": {}}, "bild drafts one chain at a time; remove speculation.overlap"),
    ({"policy": "bild"}, {"tree": {"nodes": 4}}, "bild drafts one chain at a time; remove speculation.tree"),
])
def test_a_mistake_is_one_line(lossy: dict[str, Any], others: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ladder(lossy, **others)
    (said,) = caught.value.lines
    assert line in said


def test_the_big_little_decoder_needs_a_model_that_can_be_unsure() -> None:
    tiers = [{"name": "a", "drafter": {"kind": "ngram"}}, {"name": "b", "model": "m"}]
    with pytest.raises(ConfigError, match="which drafter ngram cannot tell; use policy: typical"):
        load_config({"tiers": tiers, "speculation": {"lossy": {"policy": "bild"}}}, environ={})
    load_config({"tiers": tiers, "speculation": {"lossy": {"policy": "typical"}}}, environ={})
