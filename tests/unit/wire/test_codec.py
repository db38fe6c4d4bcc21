"""Messages arrive as they were sent, and nothing else gets through."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.grammar.known import UnknownGrammar
from actors.messages import (
    AheadPlan,
    Branch,
    Context,
    Draft,
    DraftShape,
    Enumeration,
    Features,
    Laws,
    Origin,
    TokenLogprobs,
    Verdict,
)
from actors.sampling.params import SamplingParams
from actors.sampling.policies import BigLittle, TypicalAcceptance
from actors.wire import codec
from actors.wire.checked import Unreadable
from actors.wire.frames import Kind
from tests.grammars import schema

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
int32 = st.integers(-(2**31), 2**31 - 1)
finite = st.floats(allow_nan=False)
line = st.text(max_size=20)


def ids(max_size: int = 9) -> st.SearchStrategy[np.ndarray]:
    return st.lists(int32, max_size=max_size).map(lambda values: np.array(values, np.int32))


def probs(max_size: int = 9) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.floats(width=32), max_size=max_size).map(lambda values: np.array(values, np.float32))


samplings = st.builds(
    SamplingParams, temperature=finite, top_k=int32, top_p=finite, seed=st.none() | st.integers(0, 2**63 - 1),
    entropy=st.integers(0, 2**63 - 1), eos_ids=st.lists(int32, max_size=3).map(tuple),
    logit_bias=st.lists(st.tuples(int32, finite), max_size=3).map(tuple), block_verification=st.booleans(),
    num_logprobs=st.none() | st.integers(0, 20),
    lossy=st.none() | st.builds(TypicalAcceptance, finite, finite) | st.builds(BigLittle, finite, finite),
)
features = st.none() | st.builds(
    lambda start, count, width: Features(start, np.arange(count * width).reshape(count, width).astype(np.float16)),
    int32, st.integers(0, 5), st.integers(1, 4),
)
contexts = st.builds(
    Context, sequence_id=line, start=int32, tokens=ids(), num_prompt_tokens=int32, num_committed=int32,
    sampling=samplings, round=int32, features=features, features_from=int32,
)
laws = st.none() | st.builds(Laws, ids=ids(), probs=probs(), cu_len=ids())
seconds = st.floats(0.0, 1e6)


@st.composite
def well_formed_drafts(draw: st.DrawFn) -> Draft:
    """What a drafter may send: one law and one parent for each token, or none."""
    tokens = draw(ids())
    sizes = draw(st.lists(st.integers(0, 3), min_size=len(tokens), max_size=len(tokens)))
    support = draw(st.lists(int32, min_size=sum(sizes), max_size=sum(sizes)))
    halves, bounds = np.full(sum(sizes), 0.5, np.float32), np.cumsum([0, *sizes], dtype=np.int32)
    laws = Laws(np.array(support, np.int32), halves, bounds)
    return Draft(
        tokens, laws=draw(st.sampled_from([None, laws])), tier=draw(st.integers(0, 255)), seconds=draw(seconds),
        error=draw(st.none() | line), prefix_missing=draw(st.booleans()), model_seconds=draw(seconds),
        parents=draw(st.sampled_from([None, tokens])), pass_rows=draw(int32), features_missing=draw(int32),
    )


drafts = well_formed_drafts()
shapes = st.builds(
    DraftShape, num_tokens=st.integers(0, 99), num_nodes=st.integers(0, 99),
    widths=st.lists(st.integers(1, 9), max_size=4).map(tuple),
)
verdicts = st.builds(
    Verdict, tokens=ids(), num_accepted=int32, num_draft=int32, last=st.sampled_from(Origin), tier=int32,
    draft_tiers=st.lists(int32, max_size=4).map(tuple), laws=laws,
    logprobs=st.none() | st.lists(
        st.builds(TokenLogprobs, logprob=finite, top_ids=ids(3), top_logprobs=probs(3)), max_size=3
    ).map(tuple),
    draft_seconds=finite, error=st.none() | line, draft_error=st.none() | line,
    path=st.none() | st.lists(int32, max_size=4).map(tuple), missed=st.booleans(), rejected=st.booleans(),
    features=features,
)


def assert_same(sent: Any, got: Any) -> None:
    assert type(got) is type(sent)
    if isinstance(sent, np.ndarray):
        assert got.dtype == sent.dtype
        np.testing.assert_array_equal(got, sent)
    elif hasattr(sent, "__dataclass_fields__"):
        for field in fields(sent):
            assert_same(getattr(sent, field.name), getattr(got, field.name))
    elif isinstance(sent, tuple):
        assert len(got) == len(sent)
        for one, other in zip(sent, got, strict=True):
            assert_same(one, other)
    else:
        assert got == sent


@relaxed
@given(context=contexts, shape=shapes)
def test_a_proposal_arrives_as_it_was_sent(context: Context, shape: DraftShape) -> None:
    got, shape_got = codec.decode_propose(codec.encode_propose(context, shape))
    assert_same(context, got)
    assert shape_got == shape


@relaxed
@given(context=contexts, draft=drafts, shape=shapes, round=st.integers(0, 2**40))
def test_a_call_for_the_outcomes_of_a_pass_arrives_as_it_was_sent(
    context: Context, draft: Draft, shape: DraftShape, round: int
) -> None:
    plan = AheadPlan(shape, 4, 2, 1000, 0.25)
    context_got, draft_got, round_got, plan_got = codec.decode_ahead(
        codec.encode_ahead(context, codec.encode(draft), round, plan)
    )
    assert_same(context, context_got)
    assert_same(draft, draft_got)
    assert (round_got, plan_got) == (round, plan)


@relaxed
@given(sequence_id=line, sent=st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 99), drafts), max_size=3))
def test_an_enumeration_is_passed_on_unread(sequence_id: str, sent: list[tuple[int, int, Draft]]) -> None:
    enumeration = Enumeration(7, tuple(Branch(*branch) for branch in sent), tier=1, seconds=0.5)
    name, round, got = codec.decode_verify_ahead(
        codec.encode_verify_ahead(sequence_id, 8, codec.encode(enumeration))
    )
    assert (name, round) == (sequence_id, 8)
    assert_same(enumeration, got)


@relaxed
@given(context=contexts, sent=st.lists(drafts, max_size=3), want_laws=st.booleans())
def test_a_verify_pass_arrives_with_drafts_that_were_passed_on_unread(
    context: Context, sent: list[Draft], want_laws: bool
) -> None:
    payload = codec.encode_verify(context, [codec.encode(draft) for draft in sent], want_laws)
    got, drafts_got, wanted = codec.decode_verify(payload)
    assert_same(context, got)
    assert wanted is want_laws
    for one, other in zip(sent, drafts_got, strict=True):
        assert_same(one, other)


@relaxed
@given(context=contexts, sent=st.lists(drafts, min_size=1, max_size=3), data=st.data())
def test_bytes_that_are_no_draft_cost_the_draft_and_nothing_else(
    context: Context, sent: list[Draft], data: st.DataObject
) -> None:
    payloads = [codec.encode(draft) for draft in sent]
    which = data.draw(st.integers(0, len(sent) - 1))
    spoilt = bytearray(payloads[which])
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    payloads[which] = bytes(spoilt[: data.draw(st.integers(0, len(spoilt)))])
    told, got, _ = codec.decode_verify(codec.encode_verify(context, payloads, False))
    assert_same(context, told)
    for one, other in zip(sent[:which], got, strict=False):
        assert_same(one, other)
    if len(got) < len(sent):
        assert len(got) == which + 1, "a draft was kept that follows one which cannot be read"
    for draft in got:
        assert draft.tokens.dtype.kind == "i" and 0 <= draft.seconds <= 1e6 and 0 <= draft.tier < 256
        assert draft.laws is None or draft.laws.num_tokens == len(draft.tokens)
        assert draft.parents is None or len(draft.parents) == len(draft.tokens)


@relaxed
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_unreadable_and_nothing_worse(payload: bytes) -> None:
    for decode in (codec.decode_draft, codec.decode_enumeration, codec.decode_verdict):
        with contextlib.suppress(Unreadable):
            decode(payload)


def test_laws_that_are_not_one_for_each_token_are_unreadable() -> None:
    tokens, half = np.arange(2, dtype=np.int32), np.full(2, 0.5, np.float32)
    for bounds, probs in (([0, 2], half), ([0, 1, 1], half), ([1, 1, 2], half), ([0, 3, 2], half),
                          ([0, 1, 2], np.array([0.5, np.nan], np.float32))):
        laws = Laws(tokens, probs, np.array(bounds, np.int32))
        with pytest.raises(Unreadable, match="law"):
            codec.decode_draft(codec.encode(Draft(tokens, laws=laws)))


@relaxed
@given(sequence_id=line, held=st.none() | ids())
def test_a_close_tells_what_the_sequence_came_to(sequence_id: str, held: np.ndarray | None) -> None:
    got, held_got = codec.decode_close(codec.encode_close(sequence_id, held))
    assert got == sequence_id
    assert_same(held, held_got)


@relaxed
@given(verdict=verdicts)
def test_a_verdict_arrives_as_it_was_sent(verdict: Verdict) -> None:
    assert_same(verdict, codec.decode_verdict(codec.encode(verdict)))


def test_numbers_of_numpy_arrive_as_plain_ones() -> None:
    verdict = Verdict(np.array([1], np.int32), np.int64(0), np.int32(3), Origin.PLAIN, draft_seconds=np.float32(0.5))
    got = codec.decode_verdict(codec.encode(verdict))
    assert (got.num_accepted, got.num_draft, got.draft_seconds) == (0, 3, 0.5)
    assert type(got.num_draft) is int


@pytest.mark.parametrize(
    "tokens", [np.zeros((2, 2), np.int32), np.zeros(2, np.float16), np.zeros(2, object), {1, 2}],
    ids=["matrix", "half", "objects", "set"],
)
def test_what_is_no_message_does_not_travel(tokens: Any) -> None:
    with pytest.raises(TypeError, match="does not travel"):
        codec.encode(Draft(tokens))


def test_settings_are_encoded_once_for_all_calls_of_a_sequence() -> None:
    sampling = SamplingParams(seed=991)
    codec._sampling_bytes.cache_clear()
    codec._sampling.cache_clear()
    for round in range(5):
        context = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, sampling, round)
        codec.decode_propose(codec.encode_propose(context, DraftShape(4)))
    assert codec._sampling_bytes.cache_info().misses == 1
    assert codec._sampling.cache_info().misses == 1


def test_a_grammar_travels_whole_only_with_calls_that_tell_a_sequence_from_its_beginning() -> None:
    sampling = SamplingParams(grammar=schema({"enum": ["a" * 5000]}), min_tokens=3)
    whole = Context("s", 0, np.arange(3, dtype=np.int32), 3, 3, sampling, 0)
    later = Context("s", 3, np.arange(2, dtype=np.int32), 3, 5, sampling, 1)
    sent, sent_later = codec.encode_propose(whole, DraftShape(4)), codec.encode_propose(later, DraftShape(4))
    assert len(sent) > 5000 > 500 > len(sent_later)
    first, _ = codec.decode_propose(sent)
    second, _ = codec.decode_propose(sent_later)
    assert_same(whole, first)
    assert_same(later, second)
    assert first.sampling.grammar is second.sampling.grammar


def test_a_call_that_names_an_unknown_grammar_says_whose_it_is() -> None:
    sampling = SamplingParams(grammar=schema({"enum": ["never told"]}))
    later = Context("s-7", 3, np.arange(2, dtype=np.int32), 3, 5, sampling, 1)
    with pytest.raises(UnknownGrammar) as caught:
        codec.decode_verify(codec.encode_verify(later, [], False))
    assert caught.value.sequence_id == "s-7"


def test_features_are_views_of_what_has_arrived_and_travel_on_as_the_same_bytes() -> None:
    rows = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float16)
    verdict = Verdict(np.zeros(1, np.int32), 0, 0, Origin.PLAIN, features=Features(3, rows))
    arrived = codec.decode_verdict(codec.encode(verdict)).features
    assert arrived is not None and arrived.rows.base is not None and not arrived.rows.flags.writeable
    context = Context("a", 0, np.zeros(1, np.int32), 1, 1, SamplingParams(), 1, features=arrived)
    told, _ = codec.decode_propose(codec.encode_propose(context, DraftShape(1)))
    assert told.features is not None and told.features.rows.tobytes() == rows.tobytes()


@pytest.mark.parametrize("rows", [np.zeros(3, np.float16), np.zeros((2, 2), np.float32)])
def test_features_of_another_kind_do_not_travel(rows: Any) -> None:
    with pytest.raises(TypeError, match="features of shape"):
        codec.encode(Verdict(np.zeros(1, np.int32), 0, 0, Origin.PLAIN, features=Features(0, rows)))


def test_ends_that_know_other_kinds_of_messages_do_not_belong_together() -> None:
    classes = codec._WIRE_CLASSES
    digests = [codec.schema(classes, kinds) for kinds in (tuple(Kind), tuple(Kind)[:-1], tuple(Kind)[1:])]
    assert digests[0] == codec.SCHEMA
    assert len({*digests, codec.schema(classes[1:], tuple(Kind))}) == 4
