"""What a soak asks, what it concludes, and when memory counts as flat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster.bench.serve.asks import LEFT, LOST, OK, Ask, Outcome
from cluster.bench.serve.memory import Series
from cluster.bench.serve.soak import PATIENT_S, REFUSED, Verdict, contradictions, mixed_asks, unexpected, verdicts
from cluster.bench.texts import BUILT_IN, fixed_text

ASK = Ask("short greedy", turns=(("user", "hello"),), timeout_s=PATIENT_S)


def outcome(status: str = OK, ask: Ask = ASK, text: str = "abc") -> Outcome:
    return Outcome(ask=ask, due_s=0, end_s=1, status=status, times_s=(1.0,), counts=(3,), text=text)


def judge(*outcomes: Outcome, num_sent: int | None = None, promised: bool = True) -> dict[str, bool | None]:
    found = verdicts(
        len(outcomes) if num_sent is None else num_sent, outcomes, bits_promised=promised, flat=True, memory_why="",
        idle=True, idle_why="",
    )
    return {verdict.claim: verdict.holds for verdict in found}


def test_the_mix_holds_every_sort_of_request_and_repeats_its_greedy_and_seeded_ones() -> None:
    asks = mixed_asks(400, BUILT_IN, fixed_text(), 900, np.random.default_rng(0))
    assert {ask.name for ask in asks} == {
        f"{length} {kind}" for length in ("short", "long") for kind in ("greedy", "seeded", "sampled")
    }
    assert any(ask.leave_after_tokens for ask in asks) and any(ask.timeout_s < PATIENT_S for ask in asks)
    again = [(ask.turns, ask.seed) for ask in asks if "seeded" in ask.name]
    assert len(set(again)) < len(again) / 2
    assert all((ask.seed is None) == ("seeded" not in ask.name) for ask in asks)
    assert asks == mixed_asks(400, BUILT_IN, fixed_text(), 900, np.random.default_rng(0))


@pytest.mark.parametrize(("status", "ask", "odd"), [
    (OK, ASK, False),
    (REFUSED, ASK, False),
    (LEFT, replace(ASK, leave_after_tokens=2), False),
    (LEFT, ASK, True),
    ("DEADLINE_EXCEEDED", replace(ASK, timeout_s=2.0), False),
    ("DEADLINE_EXCEEDED", ASK, True),
    ("INTERNAL", ASK, True),
    ("UNAVAILABLE", ASK, True),
    (LOST, ASK, True),
])
def test_only_what_the_request_itself_explains_is_expected(status: str, ask: Ask, odd: bool) -> None:
    assert unexpected(outcome(status, ask)) is odd


def test_a_lost_request_is_found_whether_it_is_reported_or_missing() -> None:
    good = outcome()
    assert judge(good, outcome(REFUSED))["nothing is lost"] is True
    assert judge(good, outcome(LOST))["nothing is lost"] is False
    assert judge(good, num_sent=2)["nothing is lost"] is False


def test_an_unexplained_status_is_a_failure_but_no_loss() -> None:
    found = judge(outcome(), outcome("INTERNAL"))
    assert found["nothing fails"] is False
    assert found["nothing is lost"] is True


def test_without_a_refusal_overload_is_inconclusive_not_passed() -> None:
    assert judge(outcome())["excess is refused"] is None
    assert judge(outcome(), outcome(REFUSED))["excess is refused"] is True


def test_equal_requests_must_get_equal_texts_and_cut_ones_their_beginning() -> None:
    cut = outcome(LEFT, replace(ASK, leave_after_tokens=1), "ab")
    half = outcome(text="ab\ufffd")  # the cut fell inside a character
    assert contradictions([outcome(), cut, half]) == (0, 2)
    assert contradictions([outcome(), outcome(text="abd")]) == (1, 1)
    sampled = replace(ASK, temperature=0.8)
    assert contradictions([outcome(ask=sampled), outcome(ask=sampled, text="xyz")]) == (0, 0)
    seeded = replace(sampled, seed=1)
    assert contradictions([outcome(ask=seeded), outcome(ask=replace(seeded, seed=2), text="xyz")]) == (0, 0)
    assert judge(outcome(), outcome(text="abd"))["equal requests get equal texts"] is False
    assert judge(outcome(), outcome(text="abd"), promised=False)["equal requests get equal texts"] is None
    assert judge(outcome())["equal requests get equal texts"] is None  # nothing to compare


def series(growth_mib_per_s: float, name: str = "ray::RankWorker", step_mib: float = 0.0) -> Series:
    times = [2.0 * i for i in range(300)]
    noise = np.random.default_rng(0).normal(0, 1, 300)
    sizes = [400 + growth_mib_per_s * t + n + (step_mib if t > 100 else 0) for t, n in zip(times, noise, strict=True)]
    return Series(name, times, sizes)


def test_a_steady_leak_is_found_and_noise_or_warming_up_is_not() -> None:
    assert series(0.0).flat(200) is True
    assert series(0.0, step_mib=300).flat(200) is True  # before it is judged
    assert series(0.1).flat(200) is False  # 40 MiB in 400 s
    assert series(0.1).grown_mib(200) == pytest.approx(40, abs=3)
    assert series(-0.2).flat(200) is True


def test_a_process_that_lived_too_short_cannot_be_judged() -> None:
    assert Series("ray::RankWorker", [1.0, 2.0], [5.0, 6.0]).flat(0) is None


def test_only_processes_that_run_our_code_are_judged() -> None:
    assert Series("ray::RankWorker").judged
    assert not Series("gcs_server").judged
    assert not Series("ray::IDLE").judged


def test_verdicts_say_why() -> None:
    found = verdicts(1, [outcome()], bits_promised=True, flat=None, memory_why="too short", idle=False, idle_why="held")
    assert Verdict("memory is flat", None, "too short") in found
    assert Verdict("all is freed", False, "held") in found
