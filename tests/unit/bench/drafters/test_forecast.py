"""The forecast is the controller's goodput model, and the findings say what it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.bench.drafters import diagnosis
from cluster.bench.drafters.diagnosis import Level, Tokenizers
from cluster.bench.drafters.forecast import Costs, forecast, pays_up_to
from cluster.bench.drafters.rounds import Round, conditional, draft_cost, overhead
from cluster.coordinator.control.costs import PassCurve


def curve(pass_s: float = 0.02, flat_rows: int = 16, row_s: float = 0.001) -> PassCurve:
    """A target whose passes are flat, then grow with their rows."""
    found = PassCurve()
    for rows in (1, 2, 4, 9, 16, 32, 64, 128):
        for _ in range(8):
            found.observe(rows, pass_s + row_s * max(0, rows - flat_rows) + 1e-9 * _)
    return found


def costs(**changes: Any) -> Costs:
    return Costs(**{"target": curve(), "draft_s": 0.0, "draft_token_s": 0.002, "plain_overhead_s": 0.0,
                    "draft_overhead_s": 0.0, **changes})


def rounds(*shapes: tuple[int, int, int], **changes: Any) -> list[Round]:
    """Of (asked, draft, accepted) each."""
    return [Round(*shape, **{"draft_s": 0.001 * shape[1], "pass_rows": shape[1] + 1, "pass_s": 0.02, "wall_s": 0.03,
                             **changes}) for shape in shapes]


def test_the_speedup_is_leviathans_where_passes_are_flat() -> None:
    """Equation 1 of 2211.17192 over the cost of k draft steps and a pass: (1 - a^(k+1)) / ((1 - a) (c k + 1))."""
    found = forecast(costs(), (0.8,) * 8)
    for k, speedup in enumerate(found.by_k):
        assert speedup == pytest.approx((1 - 0.8 ** (k + 1)) / (0.2 * (0.1 * k + 1)), rel=1e-3)
    assert found.k == max(range(9), key=found.by_k.__getitem__)
    assert found.pays


def test_a_draft_as_slow_as_the_target_or_never_right_does_not_pay() -> None:
    assert not forecast(costs(draft_token_s=0.02), (0.8,) * 8).pays
    never = forecast(costs(), (0.0,) * 8)
    assert (never.k, never.speedup, never.pays) == (0, 1.0, False)


def test_hops_and_load_eat_the_gain() -> None:
    near, far = forecast(costs(), (0.8,) * 8), forecast(costs(hop_s=0.01), (0.8,) * 8)
    inline = forecast(costs(hop_s=0.01, has_draft_pool=False), (0.8,) * 8)
    assert far.speedup < inline.speedup
    assert far.speedup < near.speedup
    assert forecast(costs(), (0.8,) * 8, 16).speedup < near.speedup
    assert 1 <= pays_up_to(costs(target=curve(row_s=0.02)), (0.5,) * 8) < 32
    assert pays_up_to(costs(), (0.0,) * 8) == 0


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_acceptance_is_a_share_of_what_was_asked_for(shapes: list[tuple[int, int, int]]) -> None:
    tidy = [(asked, min(asked, draft), min(asked, draft, accepted)) for asked, draft, accepted in shapes]
    rates = conditional(rounds(*tidy), 8)
    assert len(rates) == 8
    assert all(0.0 <= rate <= 1.0 for rate in rates)


def test_acceptance_follows_the_counts_where_they_are_many() -> None:
    many = rounds(*[(2, 2, 2)] * 450, *[(2, 2, 1)] * 450, *[(2, 2, 0)] * 100)
    assert conditional(many, 2) == pytest.approx((0.9, 0.5), abs=0.01)
    half = rounds(*[(2, 2, 2)] * 500, *[(2, 0, 0)] * 500)  # no draft came in every other round
    assert conditional(half, 2) == pytest.approx((0.5, 1.0), abs=0.01)


def test_a_drafts_cost_is_told_by_its_shortest_and_longest_lengths() -> None:
    short, long = rounds((1, 1, 1), draft_s=0.003), rounds((8, 8, 2), draft_s=0.017)
    assert draft_cost([*short, *long]) == pytest.approx((0.001, 0.002))
    assert draft_cost([*short, *rounds((8, 8, 2), draft_s=0.003)]) == pytest.approx((0.003, 0.0))  # one pass for all
    assert draft_cost(short) == pytest.approx((0.003, 0.0))
    assert draft_cost([]) == (0.0, 0.0)
    assert overhead(rounds((1, 1, 1), draft_s=0.004)) == pytest.approx(0.006)
    assert overhead([]) == 0.0


SHARED = Tokenizers(True, "same", 100, 100)
FOREIGN = Tokenizers(False, "same", 100, 200, 0.3, 0.95, "id 7 is 'a' in one tokenizer and 'b' in the other.")


@pytest.mark.parametrize(("finding", "level", "said"), [
    (diagnosis.tokenizers(None), Level.GOOD, "ids of the target"),
    (diagnosis.tokenizers(SHARED), Level.GOOD, "share it (100 and 100 tokens)"),
    (diagnosis.tokenizers(FOREIGN), Level.BAD, "set drafter.tokenizers: intersection"),
    (diagnosis.tokenizers(Tokenizers(False, "same", 9, 9, 0.3, 0.5)), Level.BAD, "set drafter.tokenizers: text"),
    (diagnosis.tokenizers(Tokenizers(False, "text", 9, 9, 0.9, 0.95)), Level.WARNING, "fits better than text"),
    (diagnosis.tokenizers(Tokenizers(False, "text", 9, 9, 0.3, 0.5)), Level.WARNING, "text translates"),
    (diagnosis.sizes(0, 10), Level.GOOD, "no weights of its own"),
    (diagnosis.sizes(10**7, 10**8), Level.GOOD, "draft 10 MB, target 100 MB: 10.0 to 1"),
    (diagnosis.sizes(8 * 10**7, 10**8), Level.WARNING, "take a smaller draft"),
    (diagnosis.acceptance((0.9, 0.8), 10), Level.GOOD, "by position 0.90 0.80 (10 draft tokens checked)"),
    (diagnosis.acceptance((0.6,), 10, 0.5), Level.GOOD, "50% of the rounds had a draft at all"),
    (diagnosis.acceptance((0.2,), 10), Level.WARNING, "outrider train"),
    (diagnosis.acceptance((0.0,), 0), Level.BAD, "nothing was drafted"),
    (diagnosis.steps(0.001, 0.0, 0.01, 0.011, 4)[0], Level.GOOD, "a draft token takes 1.00 ms, 10% of a target pass"),
    (diagnosis.steps(0.005, 0.0, 0.01, 0.011, 4)[0], Level.WARNING, "take a smaller draft"),
    (diagnosis.steps(0.001, 0.0, 0.01, 0.011, 4)[1], Level.GOOD, "of 5 rows takes 1.10 times"),
    (diagnosis.steps(0.001, 0.0, 0.01, 0.02, 4)[1], Level.WARNING, "computes more than it reads"),
])
def test_each_finding_is_one_line_with_its_fix(finding: diagnosis.Finding, level: Level, said: str) -> None:
    assert finding.level is level
    assert said in str(finding)
    assert "\n" not in str(finding)
    assert (finding.fix == "") == (level is Level.GOOD)


def test_the_verdict_names_k_and_what_lacks() -> None:
    accept = (0.8,) * 8
    found = forecast(costs(), accept)
    good = diagnosis.verdict(found, found, found, 8, 2.0)
    assert good.level is Level.GOOD
    assert f"it will pay with 2 ms a hop: k = {found.k}, about {found.speedup:.2f} times" in good.text
    assert good.fix == f"set speculation.lookahead: {found.k}, or auto"
    slow = costs(draft_token_s=0.05)
    for pair, said in (((slow, accept), "were it free"), ((costs(), (0.01,) * 8), "at 0.9, k ="),
                       ((costs(draft_token_s=0.1), (0.01,) * 8), "decode plainly")):
        priced, rates = pair
        free = forecast(costs(draft_token_s=0.0), rates)
        bad = diagnosis.verdict(forecast(priced, rates), free, forecast(priced, (0.9,) * 8), 0, 0.0)
        assert bad.level is Level.BAD
        assert "it will not pay: every k is slower than none" in bad.text
        assert said in bad.fix


def test_the_object_has_the_decision_first() -> None:
    found = forecast(costs(), (0.0,) * 2)
    told = diagnosis.as_json([diagnosis.sizes(0, 1)], found, {"size_ratio": None})
    assert (told["pays"], told["k"], told["expected_speedup"], told["size_ratio"]) == (False, 0, 1.0, None)
    text = "the drafter has no weights of its own"
    assert told["findings"] == [{"topic": "size", "level": "ok", "text": text, "fix": ""}]
