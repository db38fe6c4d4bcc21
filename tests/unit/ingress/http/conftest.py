"""The HTTP edge in this process, over scripted generations, and OpenAI's own client for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import openai
import pytest
from transformers import PreTrainedTokenizerFast

from cluster.ingress.calls import CallLog
from cluster.ingress.checks import RequestLimits
from cluster.ingress.convert import IngressRequest, RequestDefaults, from_pb
from cluster.ingress.grammars import Grammars
from cluster.ingress.http.app import http_app
from cluster.ingress.http.backend import Backend
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb

LIMITS = RequestLimits(max_context_tokens=600, max_tokens=64, max_prompt_tokens=None, max_lookahead=8)
GRAMMARS = Grammars((1,), "fingerprint", "model")
TOOLS_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}<|start|>tool {{ tool.function.name }} in <tool_call><|end|>{% endfor %}"
    "{% endif %}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.city }}){% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@dataclass
class Scripted:
    """Generations that say what they are told to, in pieces of a few characters each."""

    codec: TextCodec
    text: str = "the quick brown fox"
    piece: int = 3
    error: Exception | None = None
    error_after: int | None = None  # pieces; None: before the first
    refuse: Exception | None = None
    seen: list[IngressRequest] = field(default_factory=list)
    callers: list[str | None] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_open: int = 0

    async def chunks(
        self, request: pb.GenerateRequest, caller: str | None, headers: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        self.headers.append(dict(headers))
        self.callers.append(caller)
        checked = from_pb(request, self.codec, LIMITS, RequestDefaults(max_tokens=12, eos_ids=(1,), grammars=GRAMMARS))
        self.seen.append(checked)
        self.num_open += 1
        try:
            pieces = [self.text[i : i + self.piece] for i in range(0, len(self.text), self.piece)]
            for number, piece in enumerate(pieces):
                if self.error is not None and number == (self.error_after or 0):
                    raise self.error
                tokens = [self._token(each, checked) for each in self.codec.encode(piece)]
                yield pb.GenerateChunk(text=piece, tokens=tokens)
            yield pb.GenerateChunk(finish=pb.Finish(
                reason=pb.FINISH_REASON_STOP_TOKEN,
                usage=pb.Usage(prompt_tokens=len(checked.prompt_ids), completion_tokens=7, cached_tokens=2),
                speculation=pb.SpeculationFigures(num_drafted=5, num_accepted=4, mean_committed_tokens=2.5),
            ))
        finally:
            self.num_open -= 1

    async def watched(
        self, request: pb.GenerateRequest, caller: str | None, headers: Sequence[tuple[str, str]], log: CallLog
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        log.took(0, "propose", 0.0)
        async for chunk in self.chunks(request, caller, headers):
            yield chunk

    async def status(self) -> dict[str, object]:
        return {"model": "tiny", "tiers": [], "pools": []}

    @staticmethod
    def _token(token_id: int, checked: IngressRequest) -> pb.Token:
        token = pb.Token(id=token_id)
        wanted = checked.sampling.num_logprobs
        if wanted is not None:
            token.logprob = -0.5
            token.top_logprobs.extend(pb.TokenLogprob(id=token_id + i, logprob=-0.5 - i) for i in range(wanted))
        return token

    @contextmanager
    def admitted(self, authorization: str | None) -> Iterator[str | None]:
        if self.refuse is not None:
            raise self.refuse
        yield authorization

    def client(self) -> openai.AsyncOpenAI:
        app = http_app(Backend(
            model="tiny", version="1.2", max_context_tokens=LIMITS.max_context_tokens, codec=self.codec,
            admitted=self.admitted, chunks=self.chunks, load=lambda: {"running": 3},
            watched=self.watched, status=self.status,
        ))
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        http = httpx2.AsyncClient(transport=transport)
        return openai.AsyncOpenAI(base_url="http://here/v1", api_key="secret", max_retries=0, http_client=http)


@pytest.fixture
def scripted(codec: TextCodec) -> Scripted:
    return Scripted(codec)


@pytest.fixture(scope="session")
def calling_codec(tokenizer: PreTrainedTokenizerFast) -> TextCodec:
    """Of a model whose template knows tools."""
    import copy

    other = copy.deepcopy(tokenizer)
    other.chat_template = TOOLS_TEMPLATE
    return TextCodec(other)


@pytest.fixture
def calling(calling_codec: TextCodec) -> Callable[[str], Scripted]:
    """Makes generations of that model that say a text."""
    return lambda text: Scripted(calling_codec, text)
