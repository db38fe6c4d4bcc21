"""What a client gets: chunks, and what they add up to, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.rpc import outrider_pb2 as pb


class Origin(StrEnum):
    """Where a committed token came from (see the glossary in ARCHITECTURE.md)."""

    UNKNOWN = "unspecified"
    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class FinishReason(StrEnum):
    """Why a generation ended; failures, deadlines and cancellation are exceptions."""

    UNKNOWN = "unspecified"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token."""

    id: int
    origin: Origin
    tier: int  # that proposed it, if it was accepted, else the target
    logprob: float | None = None  # when asked for
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int  # a final stop token included
    cached_tokens: int | None  # of the prompt, found in the target's prefix cache; None: not measured


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation."""

    reason: FinishReason
    usage: Usage
    speculation: pb.SpeculationFigures  # documented in the contract
    stop: str | int | None = None  # the string or token id that matched
    lossy_policy: str | None = None  # None: the text is exactly the target's

    @property
    def acceptance(self) -> float | None:
        """Share of the checked draft tokens that were kept; None when none was checked."""
        figures = self.speculation
        return figures.num_accepted / figures.num_drafted if figures.num_drafted else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a stream."""

    text: str
    tokens: tuple[Token, ...]  # their text may follow in a later chunk
    finish: Finish | None = None  # of the last chunk only


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole generation."""

    text: str
    tokens: tuple[Token, ...]
    finish: Finish
    request_id: str

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the tokens."""
        return tuple(token.id for token in self.tokens)


def token_of(token: pb.Token) -> Token:
    """From the wire."""
    return Token(
        token.id, _ORIGINS[token.origin], token.tier, token.logprob if token.HasField("logprob") else None,
        tuple((top.id, top.logprob) for top in token.top_logprobs),
    )


def finish_of(finish: pb.Finish) -> Finish:
    """From the wire."""
    usage, matched = finish.usage, finish.WhichOneof("matched_stop")
    return Finish(
        reason=_REASONS[finish.reason],
        usage=Usage(usage.prompt_tokens, usage.completion_tokens,
                    usage.cached_tokens if usage.HasField("cached_tokens") else None),
        speculation=finish.speculation, stop=None if matched is None else getattr(finish, matched),
        lossy_policy=finish.lossy_policy if finish.HasField("lossy_policy") else None,
    )


def chunk_of(chunk: pb.GenerateChunk) -> Chunk:
    """From the wire."""
    finish = finish_of(chunk.finish) if chunk.HasField("finish") else None
    return Chunk(chunk.text, tuple(map(token_of, chunk.tokens)), finish)


def generation_of(response: pb.GenerateResponse) -> Generation:
    """From the wire."""
    return Generation(
        response.text, tuple(map(token_of, response.tokens)), finish_of(response.finish), response.request_id,
    )


_ORIGINS = {value: Origin(name.removeprefix("ORIGIN_").lower()) for name, value in pb.Origin.items()}
_REASONS = {value: FinishReason(name.removeprefix("FINISH_REASON_").lower()) for name, value in pb.FinishReason.items()}
