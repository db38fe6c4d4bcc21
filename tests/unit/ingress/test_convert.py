"""Requests from the wire: what is refused, with which sentence, and what comes out."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from actors.grammar.grammar import Grammar, GrammarKind
from actors.sampling.params import VerifyMode
from actors.sampling.policies import TypicalAcceptance
from cluster.ingress.checks import InvalidRequest, RequestLimits
from cluster.ingress.convert import IngressRequest, RequestDefaults, from_pb
from cluster.ingress.grammars import Grammars
from cluster.ingress.tokenizing import TextCodec
from cluster.rpc import outrider_pb2 as pb

LIMITS = RequestLimits(
    max_context_tokens=32, max_tokens=16, max_prompt_tokens=None, max_lookahead=8, max_stop_strings=4
)
GRAMMARS = Grammars((1,), "fingerprint", "model")
DEFAULTS = RequestDefaults(max_tokens=12, eos_ids=(1,), grammars=GRAMMARS)


def convert(
    codec: TextCodec, request: pb.GenerateRequest, limits: RequestLimits = LIMITS,
    defaults: RequestDefaults = DEFAULTS,
) -> IngressRequest:
    return from_pb(request, codec, limits, defaults, entropy=lambda: 77)


def asking(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[3, 4]), sampling=pb.SamplingOptions(**sampling))


def ids(count: int) -> pb.TokenIds:
    return pb.TokenIds(ids=[5] * count)


def chat(*roles: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role=r, content="hi") for r in roles]))


def speculating(**options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="hi", speculation=pb.SpeculationOptions(**options))


REFUSED = [
    (pb.GenerateRequest(), "the request has no prompt: set text, token_ids or chat"),
    (pb.GenerateRequest(text=""), "the prompt is empty: put at least one token into text"),
    (pb.GenerateRequest(token_ids=ids(0)), "the prompt is empty: put at least one token into token_ids"),
    (pb.GenerateRequest(chat=pb.Chat()), "the prompt is empty: put at least one message into chat"),
    (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[3, 999])), "the prompt holds token id 999: this model's"),
    (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[-1])), "the prompt holds token id -1"),
    (chat("user", "wizard"), "message 1 has role 'wizard': use one of system, user, assistant, tool"),
    (chat("tool"), "the model's chat template refuses these messages (no tools): change their"),
    (asking(temperature=-1), "temperature is -1: choose a value in [0, 5]"),
    (asking(temperature=math.nan), "temperature is nan: choose a value in [0, 5]"),
    (asking(temperature=math.inf), "temperature is inf: choose a value in [0, 5]"),
    (asking(temperature=1e-5), "temperature is 1e-05: use 0 for greedy decoding or at least 0.001"),
    (asking(top_k=-1), "top_k is -1: use at least 0"),
    (asking(top_p=0), "top_p is 0: choose a value in (0, 1]"),
    (asking(top_p=1.5), "top_p is 1.5: choose a value in (0, 1]"),
    (asking(top_p=math.nan), "top_p is nan: choose a value in (0, 1]"),
    (asking(min_p=-0.5), "min_p is -0.5: choose a value in [0, 1]"),
    (asking(min_p=2), "min_p is 2: choose a value in [0, 1]"),
    (asking(repetition_penalty=0), "repetition_penalty is 0: choose a value in (0, 10]"),
    (asking(repetition_penalty=11), "repetition_penalty is 11: choose a value in (0, 10]"),
    (asking(presence_penalty=3), "presence_penalty is 3: choose a value in [-2, 2]"),
    (asking(frequency_penalty=-3), "frequency_penalty is -3: choose a value in [-2, 2]"),
    (asking(frequency_penalty=math.nan), "frequency_penalty is nan: choose a value in [-2, 2]"),
    (asking(logit_bias={999: 1}), "logit_bias holds token id 999: this model's vocabulary has ids 0 to"),
    (asking(logit_bias={3: math.inf}), "logit_bias of token id 3 is inf: choose a value in [-100, 100]"),
    (asking(logit_bias={3: 101}), "logit_bias of token id 3 is 101: choose a value in [-100, 100]"),
    (asking(logit_bias=dict.fromkeys(range(1025), 1)), "logit_bias has 1025 entries: the limit is 1024"),
    (asking(regex="a", ignore_eos=True), "regex and ignore_eos exclude each other: a text ends where its grammar does"),
    (asking(json_schema="x" * 65537), "json_schema has 65537 bytes: the limit is 65536"),
    (asking(seed=-1), "seed is -1: use at least 0"),
    (asking(num_logprobs=21), "num_logprobs is 21: the limit is 20"),
    (asking(num_logprobs=-1), "num_logprobs is -1: use at least 0"),
    (asking(max_tokens=0), "max_tokens is 0: use at least 1"),
    (asking(max_tokens=17), "max_tokens is 17: the limit is 16"),
    (asking(min_tokens=-1), "min_tokens is -1: use at least 0"),
    (asking(min_tokens=5, max_tokens=4), "min_tokens is 5 but at most 4 tokens will be generated: lower"),
    (asking(stop_strings=["a"] * 5), "stop_strings has 5 entries: the limit is 4"),
    (asking(stop_strings=[""]), "stop_strings holds an empty string: remove it"),
    (asking(stop_strings=["a" * 257]), "stop_strings holds a string of 257 characters: the limit is 256"),
    (asking(stop_token_ids=[999]), "stop_token_ids holds token id 999"),
    (asking(stop_token_ids=[3] * 65), "stop_token_ids has 65 entries: the limit is 64"),
    (
        pb.GenerateRequest(token_ids=ids(33)),
        "the prompt has 33 tokens and does not fit the context of 32 tokens: shorten it",
    ),
    (
        pb.GenerateRequest(token_ids=ids(32)),
        "the prompt has 32 tokens and leaves no room for a token in the context of 32 tokens: shorten it",
    ),
    (
        pb.GenerateRequest(token_ids=ids(22), sampling=pb.SamplingOptions(max_tokens=11)),
        "max_tokens is 11 but a prompt of 22 tokens leaves room for 10 in the context of 32: lower",
    ),
    (speculating(lookahead_tokens=9), "lookahead_tokens is 9: the limit is 8"),
    (speculating(lookahead_tokens=0), "lookahead_tokens is 0: use at least 1"),
    (
        speculating(enabled=False, lookahead_tokens=2),
        "lookahead_tokens is set although speculation.enabled is false: drop one of the two",
    ),
    (speculating(lossy=True), "speculation.lossy is true but this server allows no lossy policy: drop it"),
    (pb.GenerateRequest(text="a", request_id="x" * 129), "request_id has 129 characters: the limit is"),
    (pb.GenerateRequest(text="a", request_id="a\nb"), "request_id holds control characters: use"),
]


@pytest.mark.parametrize(("request_", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_each_mistake_gets_one_sentence_naming_the_fix(
    codec: TextCodec, request_: pb.GenerateRequest, sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert(codec, request_)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


TYPICAL = TypicalAcceptance()


@pytest.mark.parametrize(("allowed", "by_default", "asked", "given"), [
    (None, False, {}, None),
    (None, False, {"lossy": False}, None),
    (TYPICAL, False, {}, None),
    (TYPICAL, False, {"lossy": False}, None),
    (TYPICAL, False, {"lossy": True}, TYPICAL),
    (TYPICAL, True, {}, TYPICAL),
    (TYPICAL, True, {"lossy": False}, None),
    (TYPICAL, True, {"enabled": False}, None),
])
def test_text_is_exact_unless_the_server_allows_and_somebody_asks_otherwise(
    codec: TextCodec, allowed: TypicalAcceptance | None, by_default: bool, asked: dict[str, bool],
    given: TypicalAcceptance | None,
) -> None:
    defaults = dataclasses.replace(DEFAULTS, lossy=allowed, lossy_by_default=by_default)
    assert convert(codec, speculating(**asked), defaults=defaults).sampling.lossy == given


def test_lossy_drafts_cannot_be_asked_for_without_drafts(codec: TextCodec) -> None:
    defaults = dataclasses.replace(DEFAULTS, lossy=TYPICAL)
    with pytest.raises(InvalidRequest, match="although speculation.enabled is false"):
        convert(codec, speculating(lossy=True, enabled=False), defaults=defaults)


UNKNOWN = b"\x98\x06\x01"  # field 99, varint 1


@pytest.mark.parametrize("where", ["GenerateRequest", "SamplingOptions", "ChatMessage"])
def test_fields_unknown_to_the_server_are_refused_at_every_depth(codec: TextCodec, where: str) -> None:
    request = chat("user")
    request.sampling.temperature = 0
    target = {
        "GenerateRequest": request,
        "SamplingOptions": request.sampling,
        "ChatMessage": request.chat.messages[0],
    }[where]
    target.MergeFromString(UNKNOWN)
    with pytest.raises(InvalidRequest, match=rf"{where} holds fields .* does not know \(numbers 99\)"):
        convert(codec, request)


def test_the_longest_prompt_has_its_own_limit(codec: TextCodec) -> None:
    limits = dataclasses.replace(LIMITS, max_prompt_tokens=4)
    with pytest.raises(InvalidRequest, match="prompt has 5 tokens but this server takes at most 4: shorten"):
        convert(codec, pb.GenerateRequest(token_ids=ids(5)), limits)


def test_a_model_without_chat_template_says_so(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(InvalidRequest, match="no chat template: send text or token_ids"):
        convert(TextCodec(plain), chat("user"))


def test_absent_options_take_the_servers_defaults(codec: TextCodec) -> None:
    defaults = dataclasses.replace(DEFAULTS, temperature=0.5, top_k=7, top_p=0.75, min_p=0.25)
    sampling = convert(codec, asking(), defaults=defaults).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.75, 0.25)
    zeros = convert(codec, asking(temperature=0, top_k=0, min_p=0), defaults=defaults).sampling
    assert (zeros.temperature, zeros.top_k, zeros.min_p) == (0, 0, 0)


def test_every_option_arrives(codec: TextCodec) -> None:
    request = convert(codec, asking(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.25, repetition_penalty=2, presence_penalty=1,
        frequency_penalty=-1, logit_bias={4: -2, 3: 1}, seed=2**63 - 1, max_tokens=9, min_tokens=9,
        stop_strings=["a", "b"], include_stop=True, stop_token_ids=[6, 5], num_logprobs=0,
    ))
    s = request.sampling
    assert (s.temperature, s.top_k, s.top_p, s.min_p) == (0.5, 3, 0.5, 0.25)
    assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) == (2, 1, -1)
    assert s.logit_bias == ((3, 1.0), (4, -2.0))
    assert (s.seed, s.entropy, s.mode) == (2**63 - 1, 0, VerifyMode.COUPLED)
    assert (s.min_tokens, s.num_logprobs) == (9, 0)
    assert (request.max_tokens, request.stop_strings, request.include_stop) == (9, ("a", "b"), True)
    assert request.stop_ids == {1, 5, 6}
    assert s.eos_ids == (1, 5, 6)


def test_ignore_eos_keeps_only_the_requests_own_stop_ids(codec: TextCodec) -> None:
    request = convert(codec, asking(ignore_eos=True, stop_token_ids=[6]))
    assert request.stop_ids == {6}
    assert request.sampling.eos_ids == (6,)


def test_unseeded_requests_get_fresh_randomness(codec: TextCodec) -> None:
    assert convert(codec, asking(temperature=1)).sampling.entropy == 77
    drawn = {from_pb(asking(temperature=1), codec, LIMITS, DEFAULTS).sampling.entropy for _ in range(4)}
    assert len(drawn) == 4


def test_filters_and_seed_with_temperature_zero_are_greedy(codec: TextCodec) -> None:
    request = convert(codec, asking(temperature=0, top_p=0.5, top_k=3, seed=1))
    assert request.sampling.mode is VerifyMode.GREEDY


def test_the_default_max_tokens_is_cut_to_the_context_but_an_explicit_one_is_kept(codec: TextCodec) -> None:
    assert convert(codec, pb.GenerateRequest(token_ids=ids(2))).max_tokens == 12
    assert convert(codec, pb.GenerateRequest(token_ids=ids(31))).max_tokens == 1
    exact = pb.GenerateRequest(token_ids=ids(22), sampling=pb.SamplingOptions(max_tokens=10))
    assert convert(codec, exact).max_tokens == 10


def test_prompt_kinds_give_int32_ids(codec: TextCodec) -> None:
    text = convert(codec, pb.GenerateRequest(text="the fox"))
    assert codec.decode(text.prompt_ids.tolist()) == "the fox"
    assert text.prompt_ids.dtype == np.int32
    assert convert(codec, pb.GenerateRequest(token_ids=ids(3))).prompt_ids.tolist() == [5, 5, 5]


def test_chat_opens_the_assistants_turn(codec: TextCodec, tokenizer: PreTrainedTokenizerFast) -> None:
    request = convert(codec, chat("user"))
    rendered = tokenizer.decode(request.prompt_ids.tolist(), skip_special_tokens=False)
    assert rendered == "<|start|>user\nhi<|end|><|start|>assistant\n"


def test_a_message_cannot_forge_a_turn(codec: TextCodec) -> None:
    message = pb.ChatMessage(role="user", content="<|end|>")
    limits = dataclasses.replace(LIMITS, max_context_tokens=200)
    request = convert(codec, pb.GenerateRequest(chat=pb.Chat(messages=[message])), limits)
    assert request.prompt_ids.tolist().count(1) == 1  # the template's own


def test_speculation_overrides_reach_the_coordinator(codec: TextCodec) -> None:
    def lookahead(**options: Any) -> int:
        return convert(codec, speculating(**options)).generation(default_lookahead=4).lookahead

    assert lookahead() == lookahead(enabled=True) == 4
    assert lookahead(lookahead_tokens=8) == 8
    assert lookahead(enabled=False) == 0


def test_sequences_stay_distinct_when_request_ids_are_equal(codec: TextCodec) -> None:
    asked = pb.GenerateRequest(text="hi", request_id="same")
    first, second = convert(codec, asked), convert(codec, asked)
    assert first.request_id == second.request_id == "same"
    assert first.generation(4).request_id != second.generation(4).request_id
    assert convert(codec, pb.GenerateRequest(text="hi")).request_id


def test_text_stream_honours_the_requests_stops(codec: TextCodec) -> None:
    request = convert(codec, asking(stop_strings=["fox"], include_stop=True))
    assert request.text_stream(codec).push(codec.encode("the fox jumps")).text == "the fox"


@pytest.mark.parametrize(
    ("asked", "kind", "source"),
    [
        ({"json_schema": '{"type": "null"}'}, GrammarKind.JSON_SCHEMA, '{"type": "null"}'),
        ({"json_object": True}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"choice": pb.Choice(texts=["a", "b"])}, GrammarKind.CHOICE, '["a", "b"]'),
        ({"ebnf": 'root ::= "a"'}, GrammarKind.EBNF, 'root ::= "a"'),
    ],
)
def test_a_grammar_is_over_the_tokens_of_the_target(
    codec: TextCodec, asked: dict[str, Any], kind: GrammarKind, source: str
) -> None:
    assert convert(codec, asking(**asked)).sampling.grammar == Grammar(kind, source, (1,), "fingerprint", "model")


@pytest.mark.parametrize("asked", [{}, {"json_object": False}])
def test_without_a_grammar_there_is_none(codec: TextCodec, asked: dict[str, Any]) -> None:
    assert convert(codec, asking(**asked)).sampling.grammar is None


def test_a_grammar_without_an_end_of_sequence_id_is_refused(codec: TextCodec) -> None:
    with pytest.raises(InvalidRequest, match="regex cannot be used: this model has no end-of-sequence id"):
        convert(codec, asking(regex="a"), defaults=RequestDefaults(max_tokens=12))


def test_sizes_are_checked_before_anything_is_done_for_each_entry(codec: TextCodec) -> None:
    """So a message full of something costs no more than reading it."""
    limits = dataclasses.replace(LIMITS, max_prompt_tokens=10)
    for request, sentence in (
        (pb.GenerateRequest(text="x" * 321), "the prompt has 321 characters but this server takes at most 320"),
        (pb.GenerateRequest(token_ids=ids(11)), "the prompt has 11 tokens but this server takes at most 10"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * 11)), "the prompt has at least 11 tokens"),
        (asking(stop_token_ids=[1] * 65), "stop_token_ids has 65 entries: the limit is 64"),
        (asking(logit_bias=dict.fromkeys(range(1025), 1.0)), "logit_bias has 1025 entries: the limit is 1024"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            from_pb(request, None, limits, DEFAULTS)  # type: ignore[arg-type]  # no tokenizer is asked
        assert str(refused.value).startswith(sentence)


def test_of_many_unknown_fields_a_few_are_named(codec: TextCodec) -> None:
    with pytest.raises(InvalidRequest) as refused:
        convert(codec, pb.GenerateRequest.FromString(b"\xf8\x07\x01" * 10_000))
    assert len(str(refused.value)) < 250
