"""Whatever breaks, and however the text is cut each time: everything is handed on once, in order."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.client.attempts import Attempts, CallFailed, Retry
from cluster.client.requests import Options, Raw, request_of
from cluster.rpc import outrider_pb2 as pb

LOST, BUSY = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED
SEEDED = request_of("hi", Options(seed=1))
TEXT = "añb✓cdefgh"  # token i is character i


def attempts(message: pb.GenerateRequest = SEEDED, retry: Retry | None = None, timeout_s: float = 1000.0) -> Attempts:
    return Attempts(message, timeout_s, retry or Retry(), clock=lambda: 0.0, draw=lambda: 1.0)


def piece(text: str, *ids: int) -> pb.GenerateChunk:
    return pb.GenerateChunk(text=text, tokens=[pb.Token(id=i) for i in ids])


@st.composite
def streams(draw: st.DrawFn) -> list[pb.GenerateChunk]:
    """The generation of `TEXT`, cut anyhow; text may lag behind its tokens, as at a stop string's beginning."""
    chunks: list[pb.GenerateChunk] = []
    num_ids = num_chars = 0
    while num_ids < len(TEXT):
        ids = draw(st.integers(1, 4))
        chars = draw(st.integers(num_chars, min(len(TEXT), num_ids + ids)))
        chunks.append(piece(TEXT[num_chars:chars], *range(num_ids, min(len(TEXT), num_ids + ids))))
        num_ids, num_chars = num_ids + ids, chars
    chunks.append(pb.GenerateChunk(text=TEXT[num_chars:], finish=pb.Finish(reason=pb.FINISH_REASON_LENGTH)))
    return chunks


@given(whole=streams(), broken=st.lists(st.tuples(streams(), st.integers(0, 8)), max_size=4))
def test_a_stream_that_broke_goes_on_without_a_lost_or_repeated_token(
    whole: list[pb.GenerateChunk], broken: list[tuple[list[pb.GenerateChunk], int]]
) -> None:
    tried = attempts(retry=Retry(attempts=9, resumptions=9))
    text, ids = "", []
    for chunks, end in [*((chunks, min(end, len(chunks) - 1)) for chunks, end in broken), (whole, len(whole))]:
        for chunk in chunks[:end]:
            fresh = tried.fresh(chunk)
            if fresh is not None:
                text += fresh.text
                ids += [token.id for token in fresh.tokens]
        if end < len(chunks):
            tried.after(LOST, "gone")
    assert (text, ids) == (TEXT, list(range(len(TEXT))))


OTHER = [piece("ax", 0, 1), piece("añ", 0, 7), pb.GenerateChunk(text="a", finish=pb.Finish())]


@pytest.mark.parametrize("other", OTHER)
def test_another_text_is_never_taken_for_the_rest(other: pb.GenerateChunk) -> None:
    tried = attempts()
    tried.fresh(piece("añb", 0, 1, 2))
    tried.after(LOST, "gone")
    with pytest.raises(CallFailed, match="aborted: the text came out differently"):
        tried.fresh(other)


@pytest.mark.parametrize(
    ("options", "resumable"),
    [
        (Options(), False), (Options(temperature=0.7), False), (Options(temperature=0.0), True),
        (Options(temperature=0.7, seed=3), True), (Options(seed=3, lossy=True), False),
    ],
)
def test_only_text_that_can_be_repeated_is_resumed(options: Options, resumable: bool) -> None:
    fresh, begun = attempts(request_of("hi", options)), attempts(request_of("hi", options))
    assert fresh.after(LOST, "gone") > 0  # nothing came: it may be another text
    begun.fresh(piece("a", 0))
    if resumable:
        assert begun.after(LOST, "gone") > 0
    else:
        with pytest.raises(CallFailed, match="gone .*only with temperature 0 or a seed"):
            begun.after(LOST, "gone")


def test_waits_double_are_bounded_and_never_pass_the_deadline() -> None:
    tried = attempts(retry=Retry(attempts=6, first_s=1.0, longest_s=3.0))
    assert [tried.after(BUSY, "full") for _ in range(3)] == [1.0, 2.0, 3.0]
    assert tried.after(BUSY, "full", [("grpc-retry-pushback-ms", "4500")]) == 4.5
    with pytest.raises(CallFailed, match="resource exhausted: the queue is full"):
        attempts(timeout_s=0.1).after(BUSY, "the queue\nis full")


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_mistakes_and_deadlines_are_not_tried_again(code: grpc.StatusCode) -> None:
    with pytest.raises(CallFailed) as raised:
        attempts().after(code, "no")
    assert raised.value.code is code
    with pytest.raises(CallFailed):
        attempts(retry=Retry(attempts=1)).after(LOST, "gone")


@pytest.mark.parametrize(
    ("code", "details"),
    [(LOST, "gone"), (grpc.StatusCode.CANCELLED, "Stream removed"),
     (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2")],
)
def test_whatever_a_lost_server_looks_like_the_stream_is_resumed(code: grpc.StatusCode, details: str) -> None:
    tried = attempts()
    tried.fresh(piece("a", 0))
    assert tried.after(code, details) > 0


def test_progress_gives_new_chances() -> None:
    tried = attempts(retry=Retry(resumptions=2))
    for number in range(5):
        tried.fresh(piece(TEXT[: number + 1], *range(number + 1)))
        tried.after(LOST, "gone")
        tried.after(LOST, "gone")
    with pytest.raises(CallFailed):
        tried.after(LOST, "gone")


def test_every_prompt_and_option_reaches_the_message() -> None:
    assert request_of(Raw("once")).text == "once"
    assert list(request_of([5, 6]).token_ids.ids) == [5, 6]
    turns = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    assert [(m.role, m.content) for m in request_of(turns).chat.messages] == [("system", "be kind"), ("user", "hi")]
    message = request_of("hi", Options(
        temperature=0.5, seed=3, stop=("a",), stop_token_ids=(4,), logit_bias=((5, 1.5),), num_logprobs=2,
        lookahead_tokens=3, lossy=False, request_id="mine", min_tokens=1, ignore_eos=True,
    ))
    sampling = message.sampling
    assert (sampling.temperature, sampling.seed, list(sampling.stop_strings)) == (0.5, 3, ["a"])
    assert (list(sampling.stop_token_ids), dict(sampling.logit_bias), sampling.num_logprobs) == ([4], {5: 1.5}, 2)
    assert (message.speculation.lookahead_tokens, message.request_id, sampling.ignore_eos) == (3, "mine", True)
    assert message.speculation.HasField("lossy")
    assert list(request_of("hi", Options(choice=("yes", "no"))).sampling.choice.texts) == ["yes", "no"]
    assert request_of("hi", Options(regex="a+")).sampling.regex == "a+"
    assert not sampling.HasField("top_p")
    assert request_of("hi").request_id != request_of("hi").request_id
