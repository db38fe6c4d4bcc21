"""From the coordinator's plain dataclasses to the wire (to_pb)."""

from __future__ import annotations

from collections.abc import Iterable

from actors.messages import Origin, TokenLogprobs
from actors.sampling.policies import LossyPolicy
from cluster.coordinator.request import Finish, FinishReason, SpeculationFigures, TokenEvent
from cluster.ingress.errors import DeadlineExceeded
from cluster.rpc import outrider_pb2 as pb

_ORIGINS = {
    Origin.ACCEPTED: pb.ORIGIN_ACCEPTED,
    Origin.RECOVERED: pb.ORIGIN_RECOVERED,
    Origin.BONUS: pb.ORIGIN_BONUS,
    Origin.PLAIN: pb.ORIGIN_PLAIN,
}
_REASONS = {
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP: pb.FINISH_REASON_STOP_TOKEN,
}


def tokens_to_pb(event: TokenEvent, num_tokens: int | None = None) -> list[pb.Token]:
    """The first `num_tokens` tokens of a round (None: all), e.g. those that `TextPiece.num_tokens` counts."""
    ids = event.token_ids[:num_tokens].tolist()
    logprobs = event.logprobs or (None,) * len(event.token_ids)
    rows = zip(ids, event.origins, event.tiers, logprobs, strict=False)  # cut at num_tokens
    return [_token(token_id, origin, tier, logprob) for token_id, origin, tier, logprob in rows]


def finish_to_pb(finish: Finish, stop_string: str | None = None, lossy: LossyPolicy | None = None) -> pb.Finish:
    """The end of a generation; `stop_string` is the one that ended the text, if one did.

    `lossy` is the policy that the text was made under.

    Raises:
        DeadlineExceeded: the deadline passed; that is a status, not a finish.
        ValueError: `finish` ends with an error; that is a status too.
    """
    message = pb.Finish(
        usage=pb.Usage(
            prompt_tokens=finish.usage.num_prompt_tokens,
            completion_tokens=finish.usage.num_completion_tokens,
            cached_tokens=finish.usage.num_cached_tokens,
        ),
        speculation=figures_to_pb(finish.figures), lossy_policy=None if lossy is None else lossy.policy,
    )
    if stop_string is not None:
        message.reason = pb.FINISH_REASON_STOP_STRING
        message.stop_string = stop_string
        return message
    if finish.reason is FinishReason.DEADLINE:
        raise DeadlineExceeded(finish.usage.num_completion_tokens)
    if finish.reason not in _REASONS:
        raise ValueError(f"a generation that ended with {finish.reason.value!r} is a status, not a finish")
    message.reason = _REASONS[finish.reason]
    if finish.reason is FinishReason.STOP and finish.stop_id is not None:
        message.stop_token_id = finish.stop_id
    return message


def figures_to_pb(figures: SpeculationFigures) -> pb.SpeculationFigures:
    """How speculation went."""
    plain = figures.rounds - (figures.drafted_at[0] if figures.drafted_at else 0)
    return pb.SpeculationFigures(
        num_rounds=figures.rounds,
        num_committed=figures.committed,
        num_drafted=figures.drafted,
        num_accepted=figures.accepted,
        num_recovered=figures.recovered,
        num_bonus=figures.bonus,
        mean_committed_tokens=figures.mean_accepted_tokens,
        num_drafted_by_position=figures.drafted_at,
        num_accepted_by_position=figures.accepted_at,
        num_accepted_by_tier=dict(figures.accepted_by_tier),
        draft_s=figures.draft_s,
        verify_s=figures.verify_s,
        wait_s=figures.wait_s,
        num_plain_rounds=plain,
        num_degraded_rounds=figures.degraded_steps,
        num_degraded_by_reason=dict(figures.degraded),
        num_lease_moves=figures.lease_moves, num_overlapped_by_outcome=figures.ahead, num_relaxed=figures.relaxed,
        model_s=figures.model_s,
        control_s=figures.control_s,
        lease_s=figures.lease_s,
        control_round_p50_s=figures.control_round_p50_s,
        num_cached_prompt_tokens_by_tier=dict(figures.cached_by_tier),
    )


def chunk_to_pb(
    request_id: str, text: str, tokens: Iterable[pb.Token] = (), finish: pb.Finish | None = None
) -> pb.GenerateChunk:
    """One piece of a stream; only the last one has `finish`."""
    return pb.GenerateChunk(text=text, tokens=tokens, finish=finish, request_id=request_id)


def merged(chunk: pb.GenerateChunk, later: pb.GenerateChunk) -> pb.GenerateChunk:
    """`chunk` with everything that came after it."""
    text = chunk.text + later.text
    chunk.MergeFrom(later)  # appends the tokens, takes over the finish
    chunk.text = text
    return chunk


def response_to_pb(request_id: str, chunks: Iterable[pb.GenerateChunk]) -> pb.GenerateResponse:
    """A whole generation from the chunks of its stream."""
    response = pb.GenerateResponse(request_id=request_id)
    parts: list[str] = []
    for chunk in chunks:
        parts.append(chunk.text)
        response.tokens.extend(chunk.tokens)
        if chunk.HasField("finish"):
            response.finish.CopyFrom(chunk.finish)
    response.text = "".join(parts)
    return response


def _token(token_id: int, origin: Origin, tier: int, logprobs: TokenLogprobs | None) -> pb.Token:
    token = pb.Token(id=token_id, origin=_ORIGINS[origin], tier=tier)
    if logprobs is not None:
        token.logprob = logprobs.logprob
        token.top_logprobs.extend(
            pb.TokenLogprob(id=top_id, logprob=top)
            for top_id, top in zip(logprobs.top_ids.tolist(), logprobs.top_logprobs.tolist(), strict=True)
        )
    return token
