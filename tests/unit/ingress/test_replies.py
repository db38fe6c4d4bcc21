"""From the coordinator's dataclasses to the wire."""

import numpy as np
import pytest

from actors.messages import Origin, TokenLogprobs
from actors.sampling.policies import BigLittle
from cluster.coordinator.request import Finish, FinishReason, SpeculationFigures, TokenEvent, Usage
from cluster.ingress.errors import DeadlineExceeded
from cluster.ingress.replies import chunk_to_pb, finish_to_pb, merged, response_to_pb, tokens_to_pb
from cluster.rpc import outrider_pb2 as pb

FIGURES = SpeculationFigures(
    rounds=4, committed=10, drafted=9, accepted=6, recovered=1, bonus=2, drafted_at=(3, 3, 3),
    accepted_at=(3, 2, 1), accepted_by_tier={0: 4, 1: 2}, draft_s=0.5, verify_s=1.5, wait_s=0.25,
    degraded_steps=1, degraded={"tier0:timeout": 1}, lease_moves=2, model_s=1.0, control_s=1.25,
    control_round_p50_s=0.125, lease_s=0.5, relaxed=3, cached_by_tier={0: 64, 2: 128},
)
EVENT = TokenEvent(
    token_ids=np.array([7, 8, 9], np.int32),
    origins=(Origin.ACCEPTED, Origin.ACCEPTED, Origin.RECOVERED), tiers=(0, 1, 2),
)


def finish(reason: FinishReason, stop_id: int | None = None) -> Finish:
    return Finish(reason, Usage(5, 10), FIGURES, stop_id)


def test_tokens_carry_id_origin_and_tier_and_are_cut_where_asked() -> None:
    tokens = tokens_to_pb(EVENT)
    assert [(t.id, t.origin, t.tier) for t in tokens] == [
        (7, pb.ORIGIN_ACCEPTED, 0), (8, pb.ORIGIN_ACCEPTED, 1), (9, pb.ORIGIN_RECOVERED, 2),
    ]
    assert not tokens[0].HasField("logprob")
    assert [t.id for t in tokens_to_pb(EVENT, 2)] == [7, 8]
    assert tokens_to_pb(EVENT, 0) == []


def test_every_origin_has_a_wire_value() -> None:
    for origin in Origin:
        event = TokenEvent(np.array([1], np.int32), (origin,), (0,))
        assert tokens_to_pb(event)[0].origin != pb.ORIGIN_UNSPECIFIED


def test_logprobs_arrive_with_their_alternatives() -> None:
    logprobs = TokenLogprobs(-0.5, np.array([7, 3], np.int32), np.array([-0.5, -1.0], np.float32))
    event = TokenEvent(np.array([7], np.int32), (Origin.PLAIN,), (0,), (logprobs,))
    (token,) = tokens_to_pb(event)
    assert token.logprob == -0.5
    assert [(t.id, t.logprob) for t in token.top_logprobs] == [(7, -0.5), (3, -1.0)]


def test_finish_survives_the_wire_with_all_figures() -> None:
    sent = pb.Finish.FromString(finish_to_pb(finish(FinishReason.STOP, 1)).SerializeToString())
    assert (sent.reason, sent.WhichOneof("matched_stop"), sent.stop_token_id) == (
        pb.FINISH_REASON_STOP_TOKEN, "stop_token_id", 1,
    )
    assert (sent.usage.prompt_tokens, sent.usage.completion_tokens) == (5, 10)
    assert sent.usage.cached_tokens == 0
    got = sent.speculation
    assert (got.num_rounds, got.num_committed, got.num_drafted, got.num_accepted) == (4, 10, 9, 6)
    assert (got.num_recovered, got.num_bonus, got.mean_committed_tokens) == (1, 2, 2.5)
    assert (list(got.num_drafted_by_position), list(got.num_accepted_by_position)) == ([3, 3, 3], [3, 2, 1])
    assert (got.draft_s, got.verify_s, got.wait_s) == (0.5, 1.5, 0.25)
    assert (got.model_s, got.control_s, got.control_round_p50_s) == (1.0, 1.25, 0.125)
    assert got.lease_s == 0.5
    assert dict(got.num_cached_prompt_tokens_by_tier) == {0: 64, 2: 128}
    assert (got.num_plain_rounds, got.num_degraded_rounds, got.num_lease_moves) == (1, 1, 2)
    assert dict(got.num_accepted_by_tier) == {0: 4, 1: 2}
    assert dict(got.num_degraded_by_reason) == {"tier0:timeout": 1}


def test_reasons_name_what_matched() -> None:
    length = finish_to_pb(finish(FinishReason.LENGTH))
    assert (length.reason, length.WhichOneof("matched_stop")) == (pb.FINISH_REASON_LENGTH, None)
    stopped = finish_to_pb(finish(FinishReason.LENGTH), stop_string="END")
    assert (stopped.reason, stopped.stop_string) == (pb.FINISH_REASON_STOP_STRING, "END")


def test_lossy_text_is_labelled_and_exact_text_is_not() -> None:
    lossy = finish_to_pb(finish(FinishReason.LENGTH), lossy=BigLittle())
    assert (lossy.lossy_policy, lossy.speculation.num_relaxed) == ("bild", 3)
    assert not finish_to_pb(finish(FinishReason.LENGTH)).HasField("lossy_policy")


def test_failures_are_statuses_not_finishes() -> None:
    with pytest.raises(DeadlineExceeded):
        finish_to_pb(finish(FinishReason.DEADLINE))
    with pytest.raises(ValueError, match="status"):
        finish_to_pb(finish(FinishReason.ERROR))


def test_a_response_is_its_streams_chunks_joined() -> None:
    end = finish_to_pb(finish(FinishReason.LENGTH))
    chunks = [
        chunk_to_pb("r", "a", tokens_to_pb(EVENT, 1)), chunk_to_pb("r", ""), chunk_to_pb("r", "b", (), end),
    ]
    assert [c.HasField("finish") for c in chunks] == [False, False, True]
    response = response_to_pb("r", chunks)
    assert (response.text, response.request_id, response.finish) == ("ab", "r", end)
    assert [t.id for t in response.tokens] == [7]


def test_merged_chunks_say_what_the_chunks_said() -> None:
    def chunks() -> list[pb.GenerateChunk]:
        end = finish_to_pb(finish(FinishReason.LENGTH))
        return [chunk_to_pb("r", "a", tokens_to_pb(EVENT, 1)), chunk_to_pb("r", "b", tokens_to_pb(EVENT), end)]

    one = merged(*chunks())
    assert response_to_pb("r", [one]) == response_to_pb("r", chunks())
    assert not merged(chunks()[0], chunk_to_pb("r", "")).HasField("finish")
