"""A request from the wire to plain, checked settings. The way back is `cluster.ingress.replies`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from actors.grammar.grammar import JSON_OBJECT, Grammar, GrammarKind
from actors.messages import Ids
from actors.sampling.params import SamplingParams
from actors.sampling.policies import LossyPolicy
from cluster.coordinator.request import GenerationRequest
from cluster.ingress import checks
from cluster.ingress.checks import InvalidRequest, RequestLimits
from cluster.ingress.grammars import Grammars
from cluster.ingress.text import TextStream
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb

_MAX_SEED = 2**63 - 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What a request gets when it does not say."""

    max_tokens: int
    eos_ids: tuple[int, ...] = ()  # the target's end-of-sequence ids
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    block_verification: bool = True
    lossy: LossyPolicy | None = None  # what a request may ask for; None: every text is exact
    lossy_by_default: bool = False  # whether those that do not say get it
    grammars: Grammars = Grammars()  # over the target's tokens


@dataclass(frozen=True, slots=True)
class IngressRequest:
    """A checked request, in token ids."""

    prompt_ids: Ids  # [num_prompt_tokens] at least one
    sampling: SamplingParams
    max_tokens: int  # fits the context
    stop_strings: tuple[str, ...]
    stop_ids: frozenset[int]  # end-of-sequence ids too, unless they are to be ignored
    include_stop: bool
    lookahead: int | None  # None: the server's own control
    speculation_off: bool
    request_id: str  # echoed; two requests may carry the same
    sequence_id: str  # unique; begins with request_id

    def generation(self, default_lookahead: int | None, deadline: float | None = None) -> GenerationRequest:
        """The coordinator's view. `deadline`: seconds on the coordinator's clock."""
        lookahead = default_lookahead if self.lookahead is None else self.lookahead
        return GenerationRequest(
            request_id=self.sequence_id, prompt_ids=self.prompt_ids, sampling=self.sampling,
            max_tokens=self.max_tokens, stop_ids=self.stop_ids, deadline=deadline,
            lookahead=0 if self.speculation_off else lookahead,
        )

    def text_stream(self, codec: TextCodec) -> TextStream:
        """A fresh text stream that honours this request's stops."""
        return TextStream(
            codec.detokenizer(), self.stop_strings, include_stop=self.include_stop,
            silent_ids=self.stop_ids, min_tokens=self.sampling.min_tokens,
        )


def from_pb(
    request: pb.GenerateRequest,
    codec: TextCodec,
    limits: RequestLimits,
    defaults: RequestDefaults,
    entropy: Callable[[], int] = lambda: secrets.randbits(63),
) -> IngressRequest:
    """Check and convert `request`.

    `entropy` gives the fresh integer that feeds an unseeded request.

    Raises:
        InvalidRequest: one sentence naming the fix.
    """
    asked = request.sampling
    _check_sizes(request, limits)  # before anything is done for each entry
    checks.check_known_fields(request)
    request_id = checks.check_request_id(request.request_id) or secrets.token_hex(8)
    speculation_off, lookahead = _speculation(request.speculation, limits)
    lossy = _lossy(request.speculation, defaults, speculation_off)
    # The cheap checks come before the prompt is tokenised.
    checks.check_stop_strings(asked.stop_strings, limits.max_stop_strings)
    checks.check_ids("stop_token_ids", asked.stop_token_ids, codec.vocab_size)
    stop_ids = frozenset(asked.stop_token_ids) | frozenset(() if asked.ignore_eos else defaults.eos_ids)
    sampling = _sampling(asked, codec.vocab_size, stop_ids, defaults, lossy, entropy)
    prompt_ids = _prompt(request, codec)
    max_tokens = checks.fit_max_tokens(
        len(prompt_ids), _given(asked, "max_tokens", asked.max_tokens), defaults.max_tokens, limits,
    )
    if sampling.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens} but at most {max_tokens} tokens will be generated: "
            "lower min_tokens or raise max_tokens"
        )
    return IngressRequest(
        prompt_ids=prompt_ids, sampling=sampling, max_tokens=max_tokens,
        stop_strings=tuple(asked.stop_strings), stop_ids=stop_ids, include_stop=asked.include_stop,
        lookahead=lookahead, speculation_off=speculation_off, request_id=request_id,
        sequence_id=f"{request_id}-{secrets.token_hex(8)}",
    )


def _check_sizes(request: pb.GenerateRequest, limits: RequestLimits) -> None:
    """Nothing has more entries, or characters, than could be served."""
    asked, chat = request.sampling, request.chat.messages
    checks.check_size("stop_strings", len(asked.stop_strings), limits.max_stop_strings)
    checks.check_size("stop_token_ids", len(asked.stop_token_ids), checks.MAX_STOP_IDS)
    checks.check_size("logit_bias", len(asked.logit_bias), checks.MAX_BIASES)
    checks.check_prompt_tokens(max(len(request.token_ids.ids), len(chat)), limits, at_least=bool(chat))
    checks.check_prompt_chars(len(request.text) + sum(len(turn.content) + len(turn.role) for turn in chat), limits)


def _given(message: pb.SamplingOptions | pb.SpeculationOptions, name: str, value: _T) -> _T | None:
    """`value` if the optional field `name` was set."""
    return value if message.HasField(name) else None


def _prompt(request: pb.GenerateRequest, codec: TextCodec) -> Ids:
    """Ids of the prompt. [num_prompt_tokens] int32, at least one."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("the request has no prompt: set text, token_ids or chat")
    if kind == "token_ids":
        ids = np.array(request.token_ids.ids, np.int32)
        bad = ids[(ids < 0) | (ids >= codec.vocab_size)]
        checks.check_ids("the prompt", bad[:1].tolist(), codec.vocab_size)
    elif kind == "chat":
        ids = np.array(codec.encode_chat(_turns(request.chat)), np.int32)
    else:
        ids = np.array(codec.encode(request.text) if request.text else (), np.int32)
    if len(ids) == 0:
        raise InvalidRequest(f"the prompt is empty: put at least one token into {kind}")
    return ids


def _turns(chat: pb.Chat) -> list[tuple[str, str]]:
    """Checked (role, content) pairs."""
    if not chat.messages:
        raise InvalidRequest("the prompt is empty: put at least one message into chat")
    for index, message in enumerate(chat.messages):
        if message.role not in checks.ROLES:
            raise InvalidRequest(
                f"message {index} has role {message.role[:32]!r}: use one of {', '.join(checks.ROLES)}"
            )
    return [(message.role, message.content) for message in chat.messages]


def _speculation(asked: pb.SpeculationOptions, limits: RequestLimits) -> tuple[bool, int | None]:
    """(speculation is off, lookahead or None)."""
    off = asked.HasField("enabled") and not asked.enabled
    lookahead = _given(asked, "lookahead_tokens", asked.lookahead_tokens)
    if lookahead is None:
        return off, None
    if off:
        raise InvalidRequest(
            "lookahead_tokens is set although speculation.enabled is false: drop one of the two"
        )
    if lookahead < 1:
        raise InvalidRequest(
            f"lookahead_tokens is {lookahead}: use at least 1, or set speculation.enabled to false"
        )
    return off, checks.check_count("lookahead_tokens", lookahead, 1, limits.max_lookahead)


def _lossy(asked: pb.SpeculationOptions, defaults: RequestDefaults, is_off: bool) -> LossyPolicy | None:
    """The policy that the text may be made under; None: exact. What the server does not allow is never given."""
    wanted = _given(asked, "lossy", asked.lossy)
    if wanted and defaults.lossy is None:
        raise InvalidRequest("speculation.lossy is true but this server allows no lossy policy: drop it")
    if wanted and is_off:
        raise InvalidRequest("speculation.lossy is true although speculation.enabled is false: drop one of the two")
    if wanted is None:
        wanted = defaults.lossy_by_default
    return defaults.lossy if wanted and not is_off else None


def _sampling(
    asked: pb.SamplingOptions,
    vocab_size: int,
    stop_ids: frozenset[int],
    defaults: RequestDefaults,
    lossy: LossyPolicy | None,
    entropy: Callable[[], int],
) -> SamplingParams:
    """Checked sampling settings. Filters and a seed with temperature 0 are allowed: greedy satisfies them."""

    def pick(name: str, value: _T, default: _T) -> _T:
        return value if asked.HasField(name) else default

    biases = tuple(sorted(asked.logit_bias.items()))
    checks.check_biases(biases, vocab_size)
    seed = _given(asked, "seed", asked.seed)
    if seed is not None:
        checks.check_count("seed", seed, 0, _MAX_SEED)
    num_logprobs = _given(asked, "num_logprobs", asked.num_logprobs)
    if num_logprobs is not None:
        checks.check_count("num_logprobs", num_logprobs, 0, checks.MAX_LOGPROBS)
    within = checks.check_range
    return SamplingParams(
        temperature=checks.check_temperature(pick("temperature", asked.temperature, defaults.temperature)),
        top_k=checks.check_count("top_k", pick("top_k", asked.top_k, defaults.top_k), 0),
        top_p=within("top_p", pick("top_p", asked.top_p, defaults.top_p), 0, 1, open_low=True),
        min_p=within("min_p", pick("min_p", asked.min_p, defaults.min_p), 0, 1),
        repetition_penalty=within(
            "repetition_penalty", pick("repetition_penalty", asked.repetition_penalty, 1.0),
            0, 10, open_low=True,
        ),
        presence_penalty=within("presence_penalty", asked.presence_penalty, -2, 2),
        frequency_penalty=within("frequency_penalty", asked.frequency_penalty, -2, 2),
        logit_bias=biases,
        seed=seed,
        entropy=0 if seed is not None else entropy(),
        min_tokens=checks.check_count("min_tokens", asked.min_tokens, 0),
        eos_ids=tuple(sorted(stop_ids)),
        num_logprobs=num_logprobs,
        block_verification=defaults.block_verification,
        grammar=_grammar(asked, defaults.grammars),
        lossy=lossy,
    )


def _grammar(asked: pb.SamplingOptions, grammars: Grammars) -> Grammar | None:
    """What the text has to be, checked as far as is possible without compiling it; None: anything."""
    kind = asked.WhichOneof("grammar")
    if kind is None or (kind == "json_object" and not asked.json_object):
        return None
    if asked.ignore_eos:
        raise InvalidRequest(f"{kind} and ignore_eos exclude each other: a text ends where its grammar does; drop one")
    match kind:
        case "json_schema":
            return grammars.make(kind, GrammarKind.JSON_SCHEMA, asked.json_schema)
        case "json_object":
            return grammars.make(kind, GrammarKind.JSON_SCHEMA, JSON_OBJECT)
        case "regex":
            return grammars.make(kind, GrammarKind.REGEX, asked.regex)
        case "choice":
            return grammars.make(kind, GrammarKind.CHOICE, json.dumps(list(asked.choice.texts)))
        case _:
            return grammars.make(kind, GrammarKind.EBNF, asked.ebnf)
