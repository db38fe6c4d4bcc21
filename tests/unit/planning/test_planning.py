"""Plans: where their costs come from, which settings they try, and that the best is what theory says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.bench.ladder import theory
from cluster.bench.watch import Unwatched
from cluster.config import load_config
from cluster.planning import show
from cluster.planning.check import Checked, predicted, settings_checked
from cluster.planning.costs import Given, NoCosts, of_config, of_drafters, pair, with_given
from cluster.planning.measured import of_measured
from cluster.planning.search import Choice, Load, Prices, cheapest, choices, fastest, search

PAIR = pair(0.07, 0.004, (0.85,), hop_s=0.002)
PLAIN = {"kind": "alone", "category": "overall", "tokens_per_s": 20.0, "mat": 1.0, "rounds": 9, "drafted": 0,
         "acceptance_by_position": [], "draft_share_of_target_pass": None}
DRAFTED = {"kind": "draft", "category": "overall", "tokens_per_s": 40.0, "mat": 3.0, "rounds": 10, "drafted": 40,
           "acceptance_by_position": [0.8, 0.7], "draft_share_of_target_pass": 0.05}


def test_emulated_tiers_are_their_own_costs_and_real_ones_have_to_be_measured() -> None:
    costs = of_config(load_config("emulated-70b", environ={}))
    assert (costs.names, costs.target.pass_s, costs.gather_s) == (("draft", "target"), 0.0714, 0.006)
    with pytest.raises(NoCosts, match="tier draft is real"):
        of_config(load_config("smollm2", environ={}))


def test_measured_drafters_give_back_the_times_that_were_measured() -> None:
    costs = of_drafters({"rows": [PLAIN, DRAFTED, {**DRAFTED, "kind": "slow", "tokens_per_s": 1.0}]})
    draft, target = costs.devices
    assert target.pass_s == pytest.approx(0.05)
    round_s = 4 * draft.pass_s + target.pass_s + 4 * target.row_s  # four tokens drafted, five rows
    assert round_s == pytest.approx(3.0 / 40.0)
    assert draft.voices[0].agreement == (0.8, 0.7)
    assert of_drafters({"rows": [PLAIN, DRAFTED, {**DRAFTED, "kind": "slow"}]}, "slow").names[0] == "slow"
    with pytest.raises(NoCosts, match="drafters: draft"):
        of_drafters({"rows": [PLAIN, DRAFTED]}, "other")


def test_given_costs_take_the_place_of_the_source() -> None:
    costs = with_given(PAIR, Given(target_s=0.14, draft_s=0.001, hop_s=0.0, agreement=(0.5,)))
    assert [device.pass_s for device in costs.devices] == [0.001, 0.14]
    assert [device.hop_s for device in costs.devices] == [0.0, 0.0]
    assert costs.devices[0].voices[0].agreement == (0.5,)
    assert costs.target.row_s == pytest.approx(2 * PAIR.target.row_s)


def test_every_ladder_k_overlap_and_pool_size_is_tried_once() -> None:
    tried = choices(PAIR, (2, 5), (1, 2, 4), Load(streams=2))
    assert len(tried) == len(set(tried)) == 1 + 2 * 2 * 2
    assert tried[0] == Choice(())


def test_a_synchronous_chain_is_as_fast_as_theory_says() -> None:
    for k in (2, 6):
        expected = theory.sync_speedup(0.85, k, 0.004 / 0.07, 4 * 0.002 / 0.07)
        plain = 1.0 / (1.0 + 2 * 0.002 / 0.07)
        assert predicted(PAIR, Choice((0,), k, False, 1), 64) == pytest.approx(expected / plain, rel=0.06)


def test_the_best_setting_is_fast_cheap_and_told(tmp_path: Path) -> None:
    load = Load(streams=2, num_tokens=32, sequences=6)
    tried = [Choice(()), Choice((0,), 1, False, 1), Choice((0,), 4, False, 1), Choice((0,), 4, True, 1)]
    estimates = search(PAIR, tried, load, Prices(target=8.0, draft=1.0), 1, Unwatched())
    best, least = fastest(estimates), cheapest(estimates)
    assert best.choice.overlap and best.speedup > 1.5
    assert least is not None and least.cost is not None and least.cost < (estimates[0].cost or 0.0)
    assert all(0.0 < share <= 1.0 for each in estimates for share in each.figures.utilisation)
    assert best.choice.name(PAIR) in show.verdict(PAIR, estimates)
    show.draw(PAIR, estimates, tmp_path / "plan.svg")
    told = show.as_json(PAIR, estimates, load, [Checked("a", 1.1, 1.0)])
    assert told["emulated"] is True
    assert told["check_max_error"] == 0.1


def test_where_drafts_are_never_right_the_target_is_served_alone() -> None:
    hopeless = pair(0.01, 0.009, (0.01,))
    tried = choices(hopeless, (1, 3), (1,), Load())
    estimates = search(hopeless, tried, Load(num_tokens=24, sequences=3), Prices(), 1, Unwatched())
    assert fastest(estimates).choice == Choice(())
    assert "serve the target alone" in show.verdict(hopeless, estimates)


def test_three_different_settings_are_checked() -> None:
    tried = choices(PAIR, (2, 5, 8), (1,), Load())
    checked = settings_checked(tried, Choice((0,), 5, True, 1))
    assert len(set(checked)) == 3
    assert {choice.overlap for choice in checked} == {True, False}


# What the benches print, as far as a plan reads it.
ENGINE = {
    "settings": {"lookahead": 4, "target_kind": "fp32"}, "kinds": {},
    "steps": [{"kind": kind, "context": context, "rows": rows, "ms": ms} for kind, context, rows, ms in (
        ("fp32", 64, 1, 20.0), ("fp32", 64, 5, 24.0), ("fp32", 512, 1, 30.0), ("fp32", 512, 5, 90.0),
        ("int4", 64, 1, 4.0),
    )],
    "speculation": {"runs": {"ours_alone": {"tokens_per_s": {"median": 50.0}, "mat": 1.0, "acceptance": None},
                             "ours": {"tokens_per_s": {"median": 100.0}, "mat": 4.0, "acceptance": 0.6772}}},
}
CHAIN = {"section": "sync", "emulated": True, "name": "chain, k = 5", "speedup": 3.0, "tokens_per_s": 40.0, "mat": 4.0,
         "agreement": 0.85, "busy": {"draft": 0.2, "target": 0.65}}
ON_CPU = {**CHAIN, "section": "cpu", "emulated": False, "name": "sync, k = 8", "speedup": 2.0,
          "busy": {"draft": 0.3, "target": 0.7}}


def test_what_bench_engine_measured_is_given_back() -> None:
    draft, target = of_measured(ENGINE).devices
    assert target.pass_s == pytest.approx(0.02)
    assert target.pass_s + 4 * target.row_s == pytest.approx(0.02 * 24 / 20)  # at the context of the prompts
    assert 4 * draft.pass_s + target.pass_s + 4 * target.row_s == pytest.approx(4.0 / 100.0)
    assert draft.voices[0].agreement[0] == pytest.approx(0.85, abs=0.001)  # 0.6772 is the mean of its first four powers
    flat = of_measured({**ENGINE, "steps": []})
    assert flat.target.row_s < 0.02 / 60


def test_what_bench_ladder_measured_is_given_back_the_real_pair_first() -> None:
    costs = of_measured({"rows": [CHAIN, {"section": "plan", "name": "1 drafters", "speedup": 1.0}]})
    assert costs.names == ("draft (EMULATED)", "target")
    draft, target = costs.devices
    round_s = 4.0 / 40.0
    assert 5 * draft.pass_s == pytest.approx(0.2 * round_s)
    assert 4 * draft.hop_s == pytest.approx(0.15 * round_s)
    assert target.pass_s == pytest.approx(0.65 * round_s)  # as long for one row: what is left of a plain round
    assert target.flat_rows == 64
    real = of_measured({"rows": [CHAIN, ON_CPU]})
    assert (real.names[0], real.target.hop_s) == ("draft", pytest.approx(0.0, abs=1e-9))
    assert real.target.pass_s + 8 * real.target.row_s == pytest.approx(0.7 * round_s)
    assert len(search(real, [Choice(()), Choice((0,), 2, False, 1)], Load(num_tokens=16, sequences=2), Prices(), 1,
                      Unwatched())) == 2


@pytest.mark.parametrize(
    ("found", "kind", "says"),
    [
        ([1], None, "no bench's: give the output of `outrider bench drafters --json`, `bench engine"),
        ({"a": 1}, None, "no figures of a draft and a target"), ({"rows": 3}, None, "no figures of a draft"),
        ({**ENGINE, "speculation": {}}, None, "--only steps,speculation"),
        ({**ENGINE, "settings": {}}, None, "not whole .KeyError: 'lookahead'"),
        (ENGINE, "eagle", "--kind chooses"), ({"rows": [CHAIN]}, "eagle", "--kind chooses"),
        ({"rows": [{**CHAIN, "section": "overlap"}]}, None, "--only sync or --only cpu"),
        ({"rows": [{**CHAIN, "tokens_per_s": 0}]}, None, "not whole .ZeroDivisionError"),
        ({"rows": [DRAFTED]}, None, "no drafter and target alone"),
    ],
)
def test_what_no_plan_can_start_from_is_one_line_that_names_the_fix(found: object, kind: str | None, says: str) -> None:
    with pytest.raises(NoCosts, match=says) as caught:
        of_measured(found, kind)
    assert "\n" not in str(caught.value)
