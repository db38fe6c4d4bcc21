"""The load's client, in this process and in one of its own, against a scripted service."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from cluster.bench.serve import client
from cluster.bench.serve.asks import LEFT, LOST, OK, Ask, Outcome
from cluster.bench.serve.client_process import ClientFailed, Closed, Open, Steered, put_load
from tests.unit.bench.serve.conftest import Scripted

Service = tuple[Scripted, str]


def ask(order: str = "fine", **changes: object) -> Ask:
    return replace(Ask(order, turns=(("user", order),), max_tokens=5, timeout_s=20.0), **changes)  # type: ignore[arg-type]


def send(address: str, *asks: Ask) -> list[Outcome]:
    """All at once."""
    outcomes: list[Outcome] = []
    asyncio.run(client.open_loop(address, asks, outcomes.append))
    return outcomes


def one(address: str, request: Ask) -> Outcome:
    (outcome,) = send(address, request)
    return outcome


def test_a_finished_stream_brings_its_chunks_and_figures(scripted: Service) -> None:
    outcome = one(scripted[1], ask())
    assert (outcome.status, outcome.counts, outcome.text) == (OK, (2, 2, 1), "ababa")
    assert outcome.figures is not None
    assert (outcome.figures.num_prompt_tokens, outcome.figures.target_cached_tokens) == (100, 90)
    assert outcome.figures.cached_tokens == {0: 80}
    assert outcome.figures.control_round_p50_s == 0.002
    assert outcome.due_s <= outcome.times_s[0] <= outcome.times_s[-1] <= outcome.end_s


@pytest.mark.parametrize(("order", "status"), [("full", "RESOURCE_EXHAUSTED"), ("broken", "INTERNAL"), ("short", LOST)])
def test_every_end_has_a_name(scripted: Service, order: str, status: str) -> None:
    outcome = one(scripted[1], ask(order))
    assert outcome.status == status
    assert outcome.figures is None
    assert outcome.detail
    assert "\n" not in outcome.detail


def test_a_client_that_leaves_cancels_the_call(scripted: Service) -> None:
    outcome = one(scripted[1], ask("slow", leave_after_tokens=2))
    assert (outcome.status, outcome.num_tokens) == (LEFT, 2)
    assert scripted[0].cancelled.wait(10)


def test_a_deadline_ends_the_call_with_a_status(scripted: Service) -> None:
    outcome = one(scripted[1], ask("slow", timeout_s=0.5))
    assert outcome.status == "DEADLINE_EXCEEDED"


def test_options_reach_the_wire_and_unset_ones_do_not(scripted: Service) -> None:
    service, address = scripted
    seeded = ask(temperature=0.5, seed=3, lookahead=2, ignore_eos=True)
    send(address, seeded)
    send(address, Ask("ids", token_ids=(1, 2), max_tokens=2, speculation=False))
    first, second = service.requests
    assert (first.sampling.temperature, first.sampling.seed, first.sampling.ignore_eos) == (0.5, 3, True)
    assert first.speculation.lookahead_tokens == 2
    assert not first.speculation.HasField("enabled")
    assert list(second.token_ids.ids) == [1, 2]
    assert second.speculation.enabled is False
    assert not second.sampling.HasField("seed")


def test_an_open_loop_sends_at_its_times_whatever_became_of_the_others(scripted: Service) -> None:
    began = time.monotonic()
    asks = [ask("slow", timeout_s=0.6, at_s=0.0), ask(at_s=0.1), ask("full", at_s=0.3)]
    outcomes = {outcome.ask.name: outcome for outcome in send(scripted[1], *asks)}
    assert outcomes["fine"].end_s < outcomes["slow"].end_s
    assert all(outcomes[each.name].due_s >= began + each.at_s for each in asks)


def test_a_closed_loop_never_runs_more_than_its_streams_and_sends_each_request_once(scripted: Service) -> None:
    service, address = scripted
    outcomes = [o for o in put_load(address, Closed([ask(max_tokens=2 + i) for i in range(12)], 3)) if o is not None]
    assert sorted(outcome.num_tokens for outcome in outcomes) == list(range(2, 14))
    assert service.most_running <= 3


def test_a_closed_loop_of_some_duration_goes_round_its_requests(scripted: Service) -> None:
    outcomes = [o for o in put_load(scripted[1], Closed([ask()], 2, duration_s=1.0)) if o is not None]
    assert len(outcomes) > 2
    assert {outcome.status for outcome in outcomes} == {OK}


def test_a_steered_load_has_the_streams_that_it_is_told_and_ends_when_it_is_told(scripted: Service) -> None:
    service, address = scripted
    load = Steered([[ask()], [ask("full")]])
    load.steer([2, 0])
    names: list[str] = []
    for outcome in put_load(address, load):
        if outcome is None:
            continue
        names.append(outcome.ask.name)
        if len(names) == 10:
            assert {*names} == {"fine"}
            load.steer([0, 1])
        if names[-1] == "full":
            load.end()
    assert names[-1] == "full", "streams that were too many went on for ever"
    assert service.most_running <= 3


def test_a_process_of_its_own_brings_the_same_outcomes(scripted: Service) -> None:
    outcomes = [o for o in put_load(scripted[1], Open([ask(), ask("full", at_s=0.05)])) if o is not None]
    assert {outcome.ask.name: outcome.status for outcome in outcomes} == {"fine": OK, "full": "RESOURCE_EXHAUSTED"}


def test_a_load_that_cannot_be_made_is_told_and_a_left_one_ends_its_process(scripted: Service) -> None:
    with pytest.raises(ClientFailed, match="TypeError|ValueError"):
        list(put_load(scripted[1], Open([ask(seed=-(2**70))])))
    load = put_load(scripted[1], Open([ask("slow")]))
    next(load)
    load.close()  # type: ignore[attr-defined]  # an iterator by its type, a generator in fact
    assert scripted[0].cancelled.wait(10)
