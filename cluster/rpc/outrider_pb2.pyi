from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Origin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORIGIN_UNSPECIFIED: _ClassVar[Origin]
    ORIGIN_ACCEPTED: _ClassVar[Origin]
    ORIGIN_RECOVERED: _ClassVar[Origin]
    ORIGIN_BONUS: _ClassVar[Origin]
    ORIGIN_PLAIN: _ClassVar[Origin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
ORIGIN_UNSPECIFIED: Origin
ORIGIN_ACCEPTED: Origin
ORIGIN_RECOVERED: Origin
ORIGIN_BONUS: Origin
ORIGIN_PLAIN: Origin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("text", "token_ids", "chat", "sampling", "speculation", "request_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling: SamplingOptions
    speculation: SpeculationOptions
    request_id: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationOptions, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "max_tokens", "min_tokens", "stop_strings", "include_stop", "stop_token_ids", "ignore_eos", "num_logprobs", "json_schema", "json_object", "regex", "choice", "ebnf")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    EBNF_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    max_tokens: int
    min_tokens: int
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    include_stop: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    num_logprobs: int
    json_schema: str
    json_object: bool
    regex: str
    choice: Choice
    ebnf: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_strings: _Optional[_Iterable[str]] = ..., include_stop: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., num_logprobs: _Optional[int] = ..., json_schema: _Optional[str] = ..., json_object: _Optional[bool] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ..., ebnf: _Optional[str] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("enabled", "lookahead_tokens", "lossy")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    lookahead_tokens: int
    lossy: bool
    def __init__(self, enabled: _Optional[bool] = ..., lookahead_tokens: _Optional[int] = ..., lossy: _Optional[bool] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "logprob", "top_logprobs", "origin", "tier")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    origin: Origin
    tier: int
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., origin: _Optional[_Union[Origin, str]] = ..., tier: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class SpeculationFigures(_message.Message):
    __slots__ = ("num_rounds", "num_committed", "num_drafted", "num_accepted", "num_recovered", "num_bonus", "mean_committed_tokens", "num_drafted_by_position", "num_accepted_by_position", "num_accepted_by_tier", "draft_s", "verify_s", "wait_s", "num_plain_rounds", "num_degraded_rounds", "num_degraded_by_reason", "num_lease_moves", "model_s", "control_s", "control_round_p50_s", "num_cached_prompt_tokens_by_tier", "num_overlapped_by_outcome", "num_relaxed", "lease_s")
    class NumAcceptedByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class NumDegradedByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class NumCachedPromptTokensByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class NumOverlappedByOutcomeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    NUM_BONUS_FIELD_NUMBER: _ClassVar[int]
    MEAN_COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    DRAFT_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PLAIN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEGRADED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEGRADED_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASE_MOVES_FIELD_NUMBER: _ClassVar[int]
    MODEL_S_FIELD_NUMBER: _ClassVar[int]
    CONTROL_S_FIELD_NUMBER: _ClassVar[int]
    CONTROL_ROUND_P50_S_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_PROMPT_TOKENS_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    NUM_OVERLAPPED_BY_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    NUM_RELAXED_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    num_rounds: int
    num_committed: int
    num_drafted: int
    num_accepted: int
    num_recovered: int
    num_bonus: int
    mean_committed_tokens: float
    num_drafted_by_position: _containers.RepeatedScalarFieldContainer[int]
    num_accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    num_accepted_by_tier: _containers.ScalarMap[int, int]
    draft_s: float
    verify_s: float
    wait_s: float
    num_plain_rounds: int
    num_degraded_rounds: int
    num_degraded_by_reason: _containers.ScalarMap[str, int]
    num_lease_moves: int
    model_s: float
    control_s: float
    control_round_p50_s: float
    num_cached_prompt_tokens_by_tier: _containers.ScalarMap[int, int]
    num_overlapped_by_outcome: _containers.ScalarMap[str, int]
    num_relaxed: int
    lease_s: float
    def __init__(self, num_rounds: _Optional[int] = ..., num_committed: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_recovered: _Optional[int] = ..., num_bonus: _Optional[int] = ..., mean_committed_tokens: _Optional[float] = ..., num_drafted_by_position: _Optional[_Iterable[int]] = ..., num_accepted_by_position: _Optional[_Iterable[int]] = ..., num_accepted_by_tier: _Optional[_Mapping[int, int]] = ..., draft_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., num_plain_rounds: _Optional[int] = ..., num_degraded_rounds: _Optional[int] = ..., num_degraded_by_reason: _Optional[_Mapping[str, int]] = ..., num_lease_moves: _Optional[int] = ..., model_s: _Optional[float] = ..., control_s: _Optional[float] = ..., control_round_p50_s: _Optional[float] = ..., num_cached_prompt_tokens_by_tier: _Optional[_Mapping[int, int]] = ..., num_overlapped_by_outcome: _Optional[_Mapping[str, int]] = ..., num_relaxed: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "stop_string", "stop_token_id", "usage", "speculation", "lossy_policy")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    LOSSY_POLICY_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    stop_string: str
    stop_token_id: int
    usage: Usage
    speculation: SpeculationFigures
    lossy_policy: str
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., stop_string: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationFigures, _Mapping]] = ..., lossy_policy: _Optional[str] = ...) -> None: ...

class GenerateChunk(_message.Message):
    __slots__ = ("text", "tokens", "finish", "request_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finish: Finish
    request_id: str
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("text", "tokens", "finish", "request_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finish: Finish
    request_id: str
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TierInfo(_message.Message):
    __slots__ = ("name", "model", "kind", "tensor_parallel_size", "dtype", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    kind: str
    tensor_parallel_size: int
    dtype: str
    weights: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., kind: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., dtype: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_context_tokens", "max_prompt_tokens", "max_tokens", "default_max_tokens", "default_lookahead_tokens", "max_lookahead_tokens")
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOOKAHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_context_tokens: int
    max_prompt_tokens: int
    max_tokens: int
    default_max_tokens: int
    default_lookahead_tokens: int
    max_lookahead_tokens: int
    def __init__(self, max_context_tokens: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., default_max_tokens: _Optional[int] = ..., default_lookahead_tokens: _Optional[int] = ..., max_lookahead_tokens: _Optional[int] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model", "tiers", "limits", "vocab_size", "version", "lossy_policy", "lossy_by_default")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSSY_POLICY_FIELD_NUMBER: _ClassVar[int]
    LOSSY_BY_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    model: str
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    limits: Limits
    vocab_size: int
    version: str
    lossy_policy: str
    lossy_by_default: bool
    def __init__(self, model: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., vocab_size: _Optional[int] = ..., version: _Optional[str] = ..., lossy_policy: _Optional[str] = ..., lossy_by_default: _Optional[bool] = ...) -> None: ...
