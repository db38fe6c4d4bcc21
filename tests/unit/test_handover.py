"""A drafter beside its target is given every feature once, and whatever it has lost again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.base import Drafter
from actors.drafters.cascade import CascadeDrafter
from actors.engine.make import make_runner
from actors.handover import Handover
from actors.inline import InlineVerifier
from actors.messages import Context, Draft, DraftShape, Features, Ids, ReplicaStats, Verdict
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from tests.local_tier import verifier
from tests.models import VOCAB, tiny_model, tiny_runner, tiny_spec
from tests.unit.engine.test_plane import LAYERS, close, hidden_states

_NO_IDS = np.empty(0, np.int32)


class Recording(Drafter):
    """Wants features of everything before the last token, keeps them, and drafts what it is told to."""

    feature_layers = LAYERS

    def __init__(self) -> None:
        self.held: dict[str, list[np.ndarray]] = {}
        self.ids: dict[str, Ids] = {}
        self.next: list[int] = []
        self.parents: np.ndarray | None = None
        self.num_given = 0
        self.error: str | None = None

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        future: Future[Draft] = Future()
        name, given = context.sequence_id, context.features
        if context.start > len(self.ids.get(name, _NO_IDS)):
            future.set_result(Draft(_NO_IDS, prefix_missing=True))
            return future
        self.ids[name] = np.concatenate([self.ids.get(name, _NO_IDS)[: context.start], context.tokens])
        if self.error is not None:
            future.set_result(Draft(_NO_IDS, error=self.error))
            return future
        rows = self.held.setdefault(name, [])
        del rows[context.num_tokens - 1 :]
        if given is not None and given.start <= len(rows):
            self.num_given += len(given.rows)
            rows[given.start :] = list(given.rows)
        if len(rows) < context.num_tokens - 1:
            future.set_result(Draft(_NO_IDS, features_missing=len(rows)))
        else:
            assert len(rows) == context.num_tokens - 1
            future.set_result(Draft(np.array(self.next, np.int32), parents=self.parents))
        return future

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        self.held.pop(sequence_id, None)
        self.ids.pop(sequence_id, None)

    def stats(self) -> ReplicaStats:
        return ReplicaStats(0, 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


class Request:
    """Greedy rounds of one sequence."""

    def __init__(self, worker: InlineVerifier, name: str, ids: Ids) -> None:
        self.worker, self.name, self.ids, self.round, self.told = worker, name, ids, 0, 0

    def step(self, plain: bool = False) -> Verdict:
        self.round += 1
        context = Context(
            self.name, self.told, self.ids[self.told :], len(self.ids), len(self.ids), SamplingParams(), self.round
        )
        future = self.worker.verify(context, []) if plain else self.worker.step(context, DraftShape(4))
        verdict = future.result(60)
        assert verdict.error is None and verdict.features is None
        self.told = len(self.ids)
        self.ids = np.concatenate([self.ids, verdict.tokens])
        return verdict


@pytest.fixture
def pair() -> Iterator[tuple[Recording, InlineVerifier]]:
    runner = make_runner(tiny_model("llama"), tiny_spec(feature_layers=LAYERS, page_tokens=16, max_batch_tokens=32))
    drafter = Recording()
    worker = InlineVerifier(drafter, verifier(runner, tiny_spec(page_tokens=16, max_batch_tokens=32)))
    yield drafter, worker
    worker.shutdown()


def ids_of(count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


def is_right(drafter: Recording, request: Request) -> bool:
    rows = torch.from_numpy(np.stack(drafter.held[request.name])).float()
    return close(rows, hidden_states("llama", request.ids)[: len(rows)])


def greedy(ids: Ids, count: int) -> list[int]:
    model, text = tiny_model("llama"), ids.tolist()
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return [int(token) for token in text[len(ids) :]]


def test_after_one_plain_round_every_proposal_has_its_features(pair: Any) -> None:
    drafter, worker = pair
    request = Request(worker, "a", ids_of(50))
    text = greedy(request.ids, 12)
    first = request.step()
    assert first.num_draft == 0 and first.draft_error is None
    assert first.tokens.tolist() == text[:1]
    drafter.next = [*text[1:4], (text[4] + 1) % VOCAB]
    second = request.step()
    assert (second.num_draft, second.num_accepted) == (4, 3)
    assert drafter.num_given == 50
    drafter.next = [(text[5] + 1) % VOCAB]
    assert request.step().num_accepted == 0
    assert drafter.num_given == 54  # of four more tokens
    drafter.next = text[6:9]
    assert request.step().num_accepted == 3
    assert request.ids[50:].tolist() == text[:10]
    assert is_right(drafter, request)


def test_an_accepted_path_of_a_tree_brings_its_own_features(pair: Any) -> None:
    drafter, worker = pair
    request = Request(worker, "a", ids_of(40, 3))
    text = greedy(request.ids, 8)
    request.step()
    wrong = [(token + 1) % VOCAB for token in text]
    drafter.next = [wrong[1], text[1], wrong[2], text[2], text[3]]
    drafter.parents = np.array([-1, -1, 0, 1, 3], np.int32)
    assert request.step().num_accepted == 3
    drafter.next, drafter.parents = [text[5]], None
    assert request.step().num_accepted == 1
    assert is_right(drafter, request)


def test_what_a_drafter_has_lost_is_read_from_the_plane_again(pair: Any) -> None:
    drafter, worker = pair
    request = Request(worker, "a", ids_of(30, 1))
    text = greedy(request.ids, 12)
    request.step()
    drafter.next = text[1:3]
    assert request.step().num_accepted == 2
    drafter.held["a"] = drafter.held["a"][:7]
    again = request.step()
    assert again.num_draft == 0 and again.draft_error is None
    drafter.next = text[5:7]
    assert request.step().num_accepted == 2
    assert is_right(drafter, request)
    drafter.error = "full"
    assert request.step().draft_error == "full"
    drafter.error = None
    request.step()  # what was given in the failed call is missed
    drafter.next = []
    request.step()
    assert is_right(drafter, request)


def test_rounds_without_a_draft_in_between_cost_one_more(pair: Any) -> None:
    drafter, worker = pair
    request = Request(worker, "a", ids_of(30, 2))
    request.step()
    request.step()
    for _ in range(3):
        request.step(plain=True)
    text = greedy(request.ids, 3)
    assert request.step().num_draft == 0
    drafter.next = text[1:3]
    assert request.step().num_accepted == 2
    assert is_right(drafter, request)


def test_a_shared_prompt_has_its_features_from_the_pages_of_the_first(pair: Any) -> None:
    drafter, worker = pair
    shared = ids_of(64, 5)
    first = Request(worker, "a", shared)
    first.step()
    second = Request(worker, "b", np.append(shared[:50], ids_of(9, 6)))
    verdict = second.step()
    assert verdict.num_cached_tokens == 48
    second.step()
    assert is_right(drafter, second)


def test_a_target_without_a_plane_refuses_and_says_what_to_do() -> None:
    own: Verifier = verifier(tiny_runner("llama"), tiny_spec())
    try:
        context = Context("a", 0, ids_of(5), 5, 5, SamplingParams(), 1, features_from=0)
        verdict = own.verify(context, []).result(60)
        assert verdict.rejected and "feature_layers" in str(verdict.error)
    finally:
        own.shutdown()


class Foreseeing(Recording):
    """Drafts what the target will say, but for now and then."""

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        text = np.concatenate([self.ids.get(context.sequence_id, _NO_IDS)[: context.start], context.tokens])
        self.next = greedy(text, shape.num_tokens)
        if len(text) % 3 == 0:
            self.next[-1] = (self.next[-1] + 1) % VOCAB
        return super().propose(context, shape)


def test_a_middle_tier_hands_its_features_to_the_tier_inline_below_it() -> None:
    spec = tiny_spec(feature_layers=LAYERS, page_tokens=16, max_batch_tokens=32)
    drafter = Foreseeing()
    cascade = CascadeDrafter(drafter, verifier(make_runner(tiny_model("llama"), spec), spec), window=3)
    try:
        ids, held = ids_of(30, 8), 0
        for round in range(1, 6):
            context = Context("a", held, ids[held:], len(ids), len(ids), SamplingParams(), round)
            draft = cascade.propose(context, DraftShape(8)).result(60)
            assert draft.error is None and draft.tokens.tolist() == greedy(ids, 8)
            kept = draft.tokens[: 2 * round]  # the target says something else at times
            held, ids = len(ids), np.append(np.concatenate([ids, kept]), np.int32(round)).astype(np.int32)
        rows = torch.from_numpy(np.stack(drafter.held["a"])).float()
        text = drafter.ids["a"]
        assert close(rows, hidden_states("llama", text)[: len(rows)])
        # Each position's once, but for those that the target has rejected and those of the first, plain inner round.
        assert drafter.num_given <= len(text) + 5 * 8
    finally:
        cascade.shutdown()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_handover_gives_every_position_in_turn_and_nothing_that_the_truth_has_left(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    handover, ids = Handover(), rng.integers(0, 5, 6).astype(np.int32)
    held: list[int] = []  # of each position that the drafter has, a mark of the text up to it
    for _ in range(12):
        features = handover.take(ids)
        del held[len(ids) - 1 :]
        if features is not None:
            assert 0 <= features.start < features.end <= len(ids) - 1
            if features.start <= len(held):
                held[features.start :] = features.rows[:, 0].astype(int).tolist()
        if len(held) < len(ids) - 1:
            handover.misses(len(held))
        assert held == [_mark(ids, p) for p in range(len(held))]
        start = handover.wanted_from(ids)
        assert start <= len(held)
        if rng.random() < 0.8:
            accepted = rng.integers(0, 5, int(rng.integers(0, 4))).astype(np.int32)
            text = np.concatenate([ids, accepted])
            rows = np.array([[_mark(text, p)] for p in range(start, len(text))], np.float16).reshape(-1, 1)
            handover.keep(text, Features(start, rows))
            ids = np.append(text, np.int32(rng.integers(5)))
        if rng.random() < 0.2:  # the truth is another one, as after a cut at a stop string
            ids = np.append(ids[: int(rng.integers(1, len(ids) + 1))], np.int32(rng.integers(5)))
            common = len(ids) - 1
            held = held[:common]
        if rng.random() < 0.2:
            held = held[: int(rng.integers(0, len(held) + 1))]  # lost


def _mark(ids: Ids, position: int) -> int:
    return int(np.sum(ids[: position + 1] * np.arange(1, position + 2)) % 2039)
