"""No wrong token, broken stream or silence passes for a promise that was kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.bench.chaos.faults import BY_NAME
from cluster.bench.chaos.judge import HUNG, LEFT, OK, Stream, judge, wrong_tokens

KEPT, CUT, PROXY = BY_NAME["kill_draft_actor"], BY_NAME["kill_ingress"], BY_NAME["kill_proxy"]
EXPECTED = {"a": [1, 2, 3, 4]}
BLOW_S = 10.0


def stream(ids: list[int], status: str = OK, began_s: float = 8.0, ended_s: float = 14.0) -> Stream:
    times = [began_s + 1.0 + 0.5 * i for i in range(len(ids))]
    return Stream("a", began_s, times, ids, status, "why", ended_s)


@pytest.mark.parametrize(
    ("ids", "status", "wrong"),
    [
        ([1, 2, 3, 4], OK, 0), ([1, 2, 3], OK, 1), ([1, 2, 2, 3, 4], OK, 3), ([1, 2, 4], OK, 2),
        ([1, 2], "UNAVAILABLE", 0), ([1, 3], "UNAVAILABLE", 1), ([1, 2, 3, 4, 5], LEFT, 1), ([], HUNG, 0),
    ],
)
def test_tokens_that_are_lost_repeated_or_others_are_counted(ids: list[int], status: str, wrong: int) -> None:
    assert wrong_tokens(stream(ids, status), EXPECTED["a"]) == wrong


def test_a_stream_that_is_kept_may_end_in_no_other_way() -> None:
    assert judge([stream([1, 2, 3, 4])], EXPECTED, KEPT, BLOW_S).broken == ()
    assert judge([stream([1, 2], LEFT)], EXPECTED, KEPT, BLOW_S).broken == ()
    for status in ("UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", HUNG):
        found = judge([stream([1, 2], status)], EXPECTED, KEPT, BLOW_S)
        assert found.broken == (f"a: {status} after 2 tokens: why",)
        assert found.num_cut == 0


def test_a_stream_that_may_be_cut_ends_with_the_right_status_after_the_right_tokens() -> None:
    found = judge([stream([1, 2], "UNAVAILABLE"), stream([1, 2, 3, 4])], EXPECTED, CUT, BLOW_S)
    assert (found.broken, found.num_cut, found.num_under_way) == ((), 1, 2)
    assert judge([stream([1, 3], "UNAVAILABLE")], EXPECTED, CUT, BLOW_S).broken
    for status in ("INTERNAL", "NOT_FOUND", "UNKNOWN", HUNG):
        assert judge([stream([1, 2], status)], EXPECTED, CUT, BLOW_S).broken


def test_a_stream_that_haproxy_resets_is_cut_only_when_its_server_died() -> None:
    assert judge([stream([1, 2], "CANCELLED")], EXPECTED, CUT, BLOW_S).num_cut == 1
    for fault in (KEPT, PROXY):
        assert judge([stream([1, 2], "CANCELLED")], EXPECTED, fault, BLOW_S).broken


def test_a_stream_of_the_client_that_resumes_is_kept_whatever_happens() -> None:
    for fault in (KEPT, CUT, PROXY):
        for status in ("UNAVAILABLE", "CANCELLED"):
            assert judge([replace(stream([1, 2], status), resumed=True)], EXPECTED, fault, BLOW_S).broken
    assert not judge([replace(stream([1, 2, 3, 4]), resumed=True)], EXPECTED, CUT, BLOW_S).broken


def test_the_longest_gap_is_one_that_ended_after_the_fault() -> None:
    waited = Stream("a", 0.0, [1.0, 9.0, 9.5, 12.0], [1, 2, 3, 4], OK, "", 12.0)
    assert judge([waited], EXPECTED, KEPT, BLOW_S).longest_gap_s == 2.5
    assert judge([stream([1, 2], "UNAVAILABLE")], EXPECTED, CUT, BLOW_S).longest_gap_s == 0.0
