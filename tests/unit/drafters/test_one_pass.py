"""One-pass drafters keep the contract: what they hold follows the truth, has limits, and may vanish."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.block import block_drafter
from actors.drafters.medusa import MedusaModel
from actors.drafters.one_pass import OnePassDrafter
from actors.messages import AheadPlan, Context, Draft, DraftShape, Features, Ids
from actors.sampling.params import SamplingParams
from tests.models import tiny_spec
from tests.unit.drafters.feature_world import (
    MAKERS,
    OnePass,
    Target,
    block_head,
    info,
    make_block,
    make_medusa,
    medusa_heads,
)

VOCAB = 30
TARGETS = {kind: Target(VOCAB, num_layers) for kind, (num_layers, _) in MAKERS.items()}
KIND = pytest.mark.parametrize("kind", MAKERS)
IDS = (np.arange(100, dtype=np.int32) * 7 + 3) % VOCAB
PLAN = AheadPlan(DraftShape(2), num_branches=4, num_guesses=2, max_total_tokens=300, time_s=1.0)


def context(
    ids: Ids, round: int = 1, name: str = "a", start: int = 0, features: Features | None = None
) -> Context:
    return Context(name, start, ids[start:].astype(np.int32), 2, len(ids), SamplingParams(), round, features)


def told(kind: str, ids: Ids, start: int = 0) -> Features:
    """All features from `start` on that there are."""
    return TARGETS[kind].features(ids, start, len(ids) - 1)


def propose(drafter: OnePass, call: Context, num_tokens: int = 5) -> Draft:
    return drafter.propose(call, DraftShape(num_tokens)).result(30)


def fresh(drafter: OnePass, kind: str, ids: Ids) -> list[int]:
    """What is drafted for a sequence that tells everything at once."""
    draft = propose(drafter, context(ids, name="fresh", features=told(kind, ids)))
    drafter.close("fresh")
    assert len(draft.tokens) == 5
    return draft.tokens.tolist()


@KIND
def test_features_that_are_missing_are_named_and_then_serve(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    ids = IDS[:20]
    first = propose(drafter, context(ids))
    assert first.features_missing == (18 if kind == "medusa" else 0)
    assert first.error is None
    assert len(first.tokens) == 0
    draft = propose(drafter, context(ids, 2, features=told(kind, ids, first.features_missing)))
    assert draft.features_missing == -1
    assert draft.tokens.tolist() == fresh(drafter, kind, ids)
    more = IDS[:23]
    assert propose(drafter, context(more, 3, start=20)).features_missing == (21 if kind == "medusa" else 19)
    again = propose(drafter, context(more, 4, start=20, features=told(kind, more, 19)))
    assert again.tokens.tolist() == fresh(drafter, kind, more)
    assert propose(drafter, context(IDS[:1], name="b")).features_missing == 0
    drafter.shutdown()


@KIND
def test_a_draft_is_as_long_as_asked_for_or_as_the_head_can(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    assert len(propose(drafter, context(IDS, features=told(kind, IDS)), 3).tokens) == 3
    assert len(propose(drafter, context(IDS, 2), 50).tokens) == 5
    drafter.shutdown()


@KIND
def test_many_sequences_share_passes_and_draft_what_each_would_alone(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB, kv_tokens=8192)
    texts = [IDS[: 10 + 3 * i] for i in range(20)]
    alone = [fresh(drafter, kind, ids) for ids in texts]
    before = drafter.stats().num_steps
    gate = threading.Event()
    drafter.between_steps(gate.wait)
    drafts = [
        drafter.propose(context(ids, name=f"{i}", features=told(kind, ids)), DraftShape(5))
        for i, ids in enumerate(texts)
    ]
    gate.set()
    for draft, expected in zip(drafts, alone, strict=True):
        made = draft.result(30)
        assert made.tokens.tolist() == expected
        assert made.pass_rows == 20
        assert made.pass_seconds == pytest.approx(made.model_seconds / 5)
    assert drafter.stats().num_steps == before + 1
    drafter.shutdown()


@KIND
def test_what_waits_between_steps_runs_after_all_drafts_of_a_pass_were_answered(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    gate, done = threading.Event(), threading.Event()
    drafter.between_steps(gate.wait)
    order: list[str] = []
    for name in ("a", "b"):
        coming = drafter.propose(context(IDS, name=name, features=told(kind, IDS)), DraftShape(2))
        coming.add_done_callback(lambda _, name=name: (
            order.append(name), drafter.between_steps(lambda: order.append(f"after {name}"))
        ))
    gate.set()
    for _ in range(2):
        drafter.propose(context(IDS, 5, "c", features=told(kind, IDS)), DraftShape(2)).result(30)
    drafter.between_steps(done.set)
    assert done.wait(30)
    assert order == ["a", "b", "after a", "after b"]
    drafter.shutdown()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 3), st.integers(-6, 3)), min_size=1, max_size=9
    ),
    st.sampled_from(["medusa", "block", "window"]),
)
def test_memory_follows_the_truth_through_any_growth_and_rollback(
    edits: list[tuple[int, int, int, int]], name: str
) -> None:
    """Each edit keeps a prefix and appends; features come from around the first that is lacking, or do not come."""
    kind = "block" if name == "window" else name
    drafter = make_block(VOCAB, window=4) if name == "window" else MAKERS[kind][1](VOCAB)
    ids, held = np.array([5, 6], np.int32), 0
    for round, (keep, num_new, salt, shift) in enumerate(edits):
        before = ids
        new = (np.arange(num_new) * 5 + salt) % VOCAB
        ids = np.concatenate([ids[: max(1, min(keep, len(ids)))], new]).astype(np.int32)
        common = num_common(before, ids)
        held = min(held, common, len(ids) - 1)
        start = max(0, min(held + shift, len(ids) - 2))
        features = told(kind, ids, start) if shift < 3 else None
        called = context(ids, 2 * round, start=min(common, len(ids) - 1) if round else 0, features=features)
        draft = propose(drafter, called)
        assert draft.error is None
        if name == "block":
            lacks = held < len(ids) - 1 and (features is None or start > held)
            assert draft.features_missing == (held if lacks else -1)
        if draft.features_missing >= 0:
            assert len(draft.tokens) == 0
            missing = told(kind, ids, draft.features_missing)
            draft = propose(drafter, context(ids, 2 * round + 1, start=len(ids), features=missing))
        held = len(ids) - 1
        assert draft.tokens.tolist() == fresh(drafter, kind, ids)
    drafter.close("a")
    done = threading.Event()
    drafter.between_steps(done.set)
    assert done.wait(30)
    assert drafter.stats().num_sequences == 0
    assert drafter.stats().extra["num_memory_tokens"] == 0
    drafter.shutdown()


def num_common(a: Ids, b: Ids) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@KIND
def test_stale_closed_and_unknown_calls_are_told_apart(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    assert propose(drafter, context(IDS, start=4)).prefix_missing
    assert len(propose(drafter, context(IDS, 5, features=told(kind, IDS))).tokens) == 5
    assert "stale" in (propose(drafter, context(IDS, 4)).error or "")
    gate = threading.Event()
    drafter.between_steps(gate.wait)
    older = drafter.propose(context(IDS, 6), DraftShape(2))
    newer = drafter.propose(context(IDS, 7), DraftShape(2))
    closed = drafter.propose(context(IDS, 1, "b", features=told(kind, IDS)), DraftShape(2))
    drafter.close("b")
    drafter.close("never seen")
    gate.set()
    assert "later call" in (older.result(30).error or "")
    assert len(newer.result(30).tokens) == 2
    assert "closed" in (closed.result(30).error or "")
    found = drafter.enumerate(context(IDS, 8, "c", start=3), newer.result(), 7, PLAN).result(30)
    assert found.prefix_missing
    found = drafter.enumerate(context(IDS, 8, "c"), newer.result(), 7, PLAN).result(30)
    assert (found.branches, found.error) == ((), None)
    drafter.shutdown()


@KIND
def test_features_of_other_layers_are_refused_with_the_fix(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    wrong = Features(0, np.zeros((99, 7), np.float16))
    assert "feature_layers to [" in (propose(drafter, context(IDS, features=wrong)).error or "")
    drafter.shutdown()


@KIND
def test_nothing_raises_after_shutdown(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    gate = threading.Event()
    drafter.between_steps(gate.wait)
    waiting = drafter.propose(context(IDS, features=told(kind, IDS)), DraftShape(2))
    stopping = threading.Thread(target=drafter.shutdown)
    stopping.start()
    gate.set()
    stopping.join(30)
    waiting.result(30)
    assert "shut down" in (propose(drafter, context(IDS, 2)).error or "")
    assert "shut down" in (drafter.enumerate(context(IDS, 3), waiting.result(), 1, PLAN).result(30).error or "")


@KIND
def test_a_pass_that_fails_is_an_error_draft_and_the_next_one_works(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    model = drafter._model
    run, model.run = model.run, lambda asks: (_ for _ in ()).throw(RuntimeError("out of order"))  # type: ignore
    assert propose(drafter, context(IDS, features=told(kind, IDS))).error == "out of order"
    model.run = run  # type: ignore[method-assign]
    assert len(propose(drafter, context(IDS, 2, features=told(kind, IDS))).tokens) == 5
    drafter.shutdown()


@KIND
def test_logits_from_which_nothing_can_be_drawn_are_an_error_of_their_call_alone(kind: str) -> None:
    drafter = MAKERS[kind][1](VOCAB)
    broken = told(kind, IDS)
    broken.rows[:] = np.nan
    gate = threading.Event()
    drafter.between_steps(gate.wait)
    bad = drafter.propose(context(IDS, 1, "bad", features=broken), DraftShape(3))
    good = drafter.propose(context(IDS, 1, "good", features=told(kind, IDS)), DraftShape(3))
    gate.set()
    assert "NaN" in (bad.result(30).error or "")
    assert good.result(30).tokens.tolist() == fresh(drafter, kind, IDS)[:3]
    drafter.shutdown()


def test_sequences_nobody_calls_are_forgotten_and_places_have_a_number() -> None:
    now = [0.0]
    drafter = OnePassDrafter(
        MedusaModel(medusa_heads(VOCAB), tiny_spec(kernels="portable")), info(VOCAB), max_sequences=2,
        idle_timeout_s=60.0, clock=lambda: now[0],
    )

    def call(name: str, round: int = 1) -> Draft:
        return propose(drafter, context(IDS, round, name, features=told("medusa", IDS)))

    assert call("a").error is None
    assert call("b").error is None
    assert "raise max_sequences" in (call("c").error or "")
    now[0] = 10.0  # the two have been left behind
    assert call("b", 2).error is None
    assert call("c", 2).error is None
    assert drafter.stats().num_sequences == 2
    assert propose(drafter, context(IDS, 3, "a", start=5)).prefix_missing
    now[0] = 100.0
    done = threading.Event()
    drafter.between_steps(done.set)
    done.wait(30)
    assert call("d").error is None
    assert drafter.stats().num_sequences == 1
    drafter.shutdown()


def test_room_is_taken_from_those_left_behind_and_from_younger_ones_never_from_elders() -> None:
    now = [0.0]
    made = block_drafter(block_head(VOCAB), tiny_spec(kernels="portable"), info(VOCAB), 64)
    drafter = OnePassDrafter(made._model, info(VOCAB), memory_tokens=200, clock=lambda: now[0])
    made.shutdown()
    long, short = np.resize(IDS, 130), IDS[:40]  # 192 and 64 positions with a block's

    def call(ids: Ids, name: str, round: int = 1) -> Draft:
        return propose(drafter, context(ids, round, name, features=told("block", ids)))

    assert len(call(short, "a").tokens) == 5
    assert len(call(short, "b").tokens) == 5
    assert "raise kv_tokens" in (call(long, "c").error or "")
    assert len(call(IDS[:90], "a", 2).tokens) == 5  # grows to 128
    assert drafter.stats().extra["num_memory_tokens"] == 192
    assert len(call(long, "a", 3).tokens) == 5  # b had to make room
    assert drafter.stats().extra["num_memory_tokens"] == 192
    assert propose(drafter, context(short, 4, "b", start=40)).prefix_missing
    now[0] = 20.0
    assert len(call(long, "c", 2).tokens) == 5  # a was left behind
    assert drafter.stats().extra["num_memory_tokens"] == 192
    assert propose(drafter, context(long, 4, "a", start=130)).prefix_missing
    assert "raise kv_tokens" in (call(np.resize(IDS, 300), "c", 3).error or "")
    drafter.shutdown()


def test_a_window_bounds_what_a_sequence_holds() -> None:
    drafter = make_block(VOCAB, window=4)
    ids = np.resize(IDS, 300)
    propose(drafter, context(ids[:50], features=told("block", ids[:50], 45)))
    for round in range(2, 252):
        text = ids[: 48 + round]
        draft = propose(drafter, context(text, round, start=len(text) - 1, features=told("block", text, len(text) - 2)))
        assert len(draft.tokens) == 5
    assert drafter.stats().extra["num_memory_tokens"] == 64
    assert drafter.stats().extra["num_held_tokens"] == 4
    drafter.shutdown()


def test_a_retried_call_draws_the_same_draft_and_a_new_round_another() -> None:
    drafter = make_medusa(VOCAB)
    sampling = SamplingParams(temperature=2.0, entropy=4)
    call = replace(context(IDS, features=told("medusa", IDS)), sampling=sampling)
    first, again = propose(drafter, call), propose(drafter, call)
    assert first.tokens.tolist() == again.tokens.tolist()
    others = [propose(drafter, replace(call, round=round)).tokens.tolist() for round in range(2, 6)]
    assert any(tokens != first.tokens.tolist() for tokens in others)
    drafter.shutdown()
