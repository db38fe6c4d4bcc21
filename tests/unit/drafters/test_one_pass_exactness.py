"""One-pass drafters promise what all do: greedy and seeded ids are the target's, sampled texts have its law."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from actors.messages import AheadPlan, Draft, DraftShape, Ids
from actors.sampling.params import SamplingParams
from tests.unit.drafters.feature_world import MAKERS, OnePass, Target, Text, run

pytestmark = pytest.mark.exactness

PROMPT = np.array([1, 2, 0, 3, 1], np.int32)
SHAPES = {
    "chain": DraftShape(4), "comb": DraftShape(3, siblings=1), "static": DraftShape(3, widths=(2, 2, 1)),
    "dynamic": DraftShape(4, num_nodes=7),
}
KIND = pytest.mark.parametrize("kind", MAKERS)
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
PENALISED = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "logit_bias": ((2, 0.5),)}

MANY = {"max_sequences": 3000, "kv_tokens": 2**20}


def plain(target: Target, sampling: SamplingParams, num_tokens: int) -> list[int]:
    """The target alone."""
    text = Text("plain", PROMPT, sampling)
    while len(text.ids) < len(PROMPT) + num_tokens:
        text.round += 1
        text.advance(Draft(np.empty(0, np.int32)), target)
    return text.ids.tolist()


@KIND
@SHAPE
@pytest.mark.parametrize(
    "sampling", [
        SamplingParams(), SamplingParams(**PENALISED), SamplingParams(temperature=1.0, seed=7),
        SamplingParams(temperature=0.7, seed=8, top_p=0.9, **PENALISED),
    ], ids=["greedy", "greedy penalised", "coupled", "coupled penalised"],
)
def test_ids_are_those_of_the_target_alone(kind: str, shape: DraftShape, sampling: SamplingParams) -> None:
    num_layers, make = MAKERS[kind]
    target = Target(9, num_layers)
    drafter = make(9, ids=[0, 1, 2, 3, 5, 6, 8])
    text = Text("a", PROMPT, sampling)
    run(drafter, target, [text], shape, 40)
    drafter.shutdown()
    assert text.ids[: len(PROMPT) + 40].tolist() == plain(target, sampling, 40)[: len(PROMPT) + 40]
    assert text.drafted > 40
    assert text.accepted > 0


def check_law(target: Target, texts: list[Text], sampling: SamplingParams, num_tokens: int) -> None:
    """Chi-square of the first tokens of all texts against the target's own law of them."""
    expected: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(target.vocab_size), repeat=num_tokens):
        mass, ids = 1.0, PROMPT.tolist()
        for token in tokens:
            mass *= float(target.law(ids, sampling, len(PROMPT))[token])
            ids = [*ids, token]
        expected[tokens] = mass
    found = Counter(tuple(t.ids[len(PROMPT) : len(PROMPT) + num_tokens].tolist()) for t in texts)
    assert all(expected[tokens] > 0.0 for tokens in found)
    cells = sorted(expected, key=lambda tokens: expected[tokens])
    observed, means = [0.0], [0.0]
    for tokens in cells:  # rare texts share a cell until they are five
        if means[-1] >= 5.0:
            observed.append(0.0)
            means.append(0.0)
        observed[-1] += found[tokens]
        means[-1] += expected[tokens] * len(texts)
    assert len(observed) >= 15
    assert stats.chisquare(observed, means).pvalue > 1e-3


@pytest.mark.parametrize(
    ("kind", "shape"), [
        ("medusa", "chain"), ("medusa", "chain, block-wise"), ("medusa", "comb"), ("medusa", "static"),
        ("medusa", "dynamic"), ("block", "chain"), ("block", "dynamic"),
    ],
)
def test_sampled_texts_have_the_law_of_the_target(kind: str, shape: str) -> None:
    num_layers, make = MAKERS[kind]
    target = Target(4, num_layers, seed=1)
    drafter = make(4, ids=[0, 1, 3], law_support=2, **MANY)
    sampling = SamplingParams(temperature=0.9, block_verification=shape == "chain, block-wise", **PENALISED)
    texts = sampled(target, sampling, 500)
    run(drafter, target, texts, SHAPES[shape.removesuffix(", block-wise")], 3)
    drafter.shutdown()
    assert sum(text.accepted for text in texts) > 200
    check_law(target, texts, sampling, 3)


def sampled(target: Target, sampling: SamplingParams, count: int) -> list[Text]:
    """Texts that differ in nothing but their noise; the drafter gets the prompt's features with the first call."""
    texts = []
    for number in range(count):
        params = {name: getattr(sampling, name) for name in SamplingParams.__dataclass_fields__}
        text = Text(f"{number}", PROMPT, SamplingParams(**{**params, "entropy": number + 1}))
        text.features = target.features(PROMPT, 0, len(PROMPT) - 1)
        texts.append(text)
    return texts


@pytest.mark.parametrize(
    ("kind", "ahead"), [("block", DraftShape(2)), ("medusa", DraftShape(2, widths=(2, 1)))],
    ids=["block, chains", "medusa, trees"],
)
def test_texts_that_go_on_with_branches_have_the_law_of_the_target(kind: str, ahead: DraftShape) -> None:
    num_layers, make = MAKERS[kind]
    target = Target(4, num_layers, seed=2)
    drafter = make(4, law_support=3, **MANY)
    sampling = SamplingParams(temperature=1.1)
    texts = sampled(target, sampling, 500)
    plan = AheadPlan(ahead, num_branches=6, num_guesses=3, max_total_tokens=100, time_s=1.0)
    drafts = [drafter.propose(text.context(), DraftShape(2)) for text in texts]
    found = [
        drafter.enumerate(text_after(text), draft.result(30), text.round - 1, plan)
        for text, draft in zip(texts, drafts, strict=True)
    ]
    num_hits = 0
    for text, draft, coming in zip(texts, drafts, found, strict=True):
        made = draft.result()
        text.advance(made, target)
        branches = coming.result(30)
        assert branches.error is None
        node = text.accepted - 1
        hit = branches.find(node, int(text.ids[-1]))
        if hit is not None:
            num_hits += 1
            text.round += 1
            text.advance(hit.draft, target)
    assert num_hits > 200
    run(drafter, target, texts, DraftShape(2), 3)
    drafter.shutdown()
    check_law(target, texts, sampling, 3)


def text_after(text: Text) -> object:
    """The call that drafts ahead of the pass under way: the same truth, already told."""
    context = text.context()
    return type(context)(
        context.sequence_id, context.num_tokens, context.tokens[:0], context.num_prompt_tokens, context.num_committed,
        context.sampling, context.round,
    )


@KIND
def test_branches_are_what_the_heads_foresee_after_the_outcome(kind: str) -> None:
    num_layers, make = MAKERS[kind]
    target = Target(20, num_layers)
    drafter = make(20)
    ids = np.arange(15, dtype=np.int32)
    whole = foreseen(drafter, target, ids, 5)
    text = Text("a", ids, SamplingParams())
    text.features = target.features(ids, 0, len(ids) - 1)
    draft = drafter.propose(text.context(), DraftShape(2)).result(30)
    assert draft.tokens.tolist() == whole[:2]
    plan = AheadPlan(DraftShape(9), num_branches=30, num_guesses=3, max_total_tokens=100, time_s=1.0)
    found = drafter.enumerate(text_after(text), draft, 1, plan).result(30)
    drafter.shutdown()
    assert len(found.branches) == 9
    for branch in found.branches:
        assert branch.draft.tokens.tolist() == whole[branch.node + 2 :]
        assert branch.node == 1 or branch.token != draft.tokens[branch.node + 1]


def foreseen(drafter: OnePass, target: Target, ids: Ids, num_tokens: int) -> list[int]:
    """What is drafted greedily after `ids`, told in one call of a sequence of its own."""
    text = Text("fresh", ids, SamplingParams())
    text.features = target.features(ids, 0, len(ids) - 1)
    draft = drafter.propose(text.context(), DraftShape(num_tokens)).result(30)
    drafter.close("fresh")
    assert len(draft.tokens) == num_tokens
    return draft.tokens.tolist()
