"""Copies in a law: what is found, what the mixture is, what is learned, and that texts keep the law of the target."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from actors.drafters import foreseen
from actors.drafters.copies import LONGEST, Copies, Followers, followers, mixed
from actors.drafters.guesses import guess
from actors.heads.vocab import LEAST_LOGIT
from actors.messages import Context, DraftShape, Ids
from actors.sampling import laws as law_tools
from actors.sampling.laws import truncate
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process, weigh
from actors.sampling.rows import LogitRows
from actors.sampling.tree import verify_tree
from tests.unit.drafters.conftest import COUPLED, GREEDY, PROMPT, REJECTION, Make, context
from tests.unit.drafters.feature_world import MAKERS, Target, Text
from tests.unit.drafters.test_one_pass_exactness import MANY, check_law, plain, run, sampled
from tests.unit.drafters.test_one_pass_exactness import PROMPT as WORLD_PROMPT

SHAPES = {
    "chain": DraftShape(3), "comb": DraftShape(3, siblings=1), "static": DraftShape(3, widths=(2, 2, 1)),
    "dynamic": DraftShape(3, num_nodes=7),
}
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def ids_of(*values: int) -> Ids:
    return np.array(values, np.int32)


@given(st.lists(st.integers(0, 3), max_size=50))
@settings(max_examples=150, deadline=None)
def test_what_is_found_followed_the_longest_end_that_stood_before(tokens: list[int]) -> None:
    found = followers(ids_of(*tokens))
    ends = {
        length: [place + length for place in range(len(tokens) - length)
                 if tokens[place : place + length] == tokens[-length:]]
        for length in range(1, min(len(tokens), LONGEST + 1))
    }
    longest = max((length for length, places in ends.items() if places), default=0)
    if longest == 0:
        assert found is None
        return
    assert found is not None
    after = [tokens[place] for place in ends[longest]]
    assert found.length == longest
    assert found.num_places == len(after)
    assert dict(zip(found.ids, found.shares, strict=True)) == {t: n / len(after) for t, n in Counter(after).items()}
    most = max(Counter(after).values())
    assert found.ids[0] == [token for token in after if after.count(token) == most][-1]


def test_of_very_many_places_the_latest_longest_ones_count() -> None:
    found = followers(ids_of(*[7, 1] * 200, *[7, 2] * 100, 9, 7))
    assert found == Followers(1, (2,), (1.0,), 64)
    found = followers(np.zeros(500, np.int32))
    assert found is not None and (found.length, found.ids) == (LONGEST, (0,))


@pytest.mark.parametrize("support", [None, np.array([1, 2, 5], np.int64)], ids=["whole", "reduced"])
@given(seed=st.integers(0, 10**6), weight=st.floats(0.01, 0.97))
@settings(max_examples=40, deadline=None)
def test_the_row_is_the_mixture(support: np.ndarray | None, seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    values = (4 * rng.standard_normal((2, 8))).astype(np.float32)
    if support is not None:
        values[:, np.setdiff1d(np.arange(8), support)] = LEAST_LOGIT
    before = values.copy()
    rows = LogitRows(torch.from_numpy(values), support)
    found = Followers(2, (4, 1, 99), (0.5, 0.25, 0.25), 4)  # one of them is no id of the model's
    own = torch.from_numpy(before[1]).double().softmax(0).numpy()
    got, probs = mixed(rows, 1, found, weight)
    shares = np.array([0, 1 / 3, 0, 0, 2 / 3, 0, 0, 0])
    law = own * (1 - weight) + weight * shares
    assert len(got) == 1
    assert probs == pytest.approx([own[4], own[1], 0.0], abs=1e-5)
    assert np.allclose(torch.from_numpy(got.row(0)).double().softmax(0).numpy(), law, atol=1e-5)
    assert (values == before).all()
    if support is not None:
        assert got.support is not None and got.support.tolist() == [1, 2, 4, 5]


def told(tokens: list[int], start: int, num_prompt: int, sampling: SamplingParams = GREEDY) -> Context:
    return Context("a", start, ids_of(*tokens[start:]), num_prompt, len(tokens), sampling, 1)


def taught(copies: Copies, token: int, model_says: int, sampling: SamplingParams = GREEDY) -> None:
    """A law after 5 6 5, where 6 is the copy, and then `token` came."""
    row = torch.zeros(1, 8)
    row[0, model_says] = 5.0
    copies.mix(LogitRows(row), 0, sampling, ids_of(5, 6, 5))
    copies.learn(told([5, 6, 5, token], 3, 3, sampling), ids_of(5, 6, 5, token, 9, 9))


def test_copies_are_trusted_as_far_as_they_knew_better_than_the_model() -> None:
    found = followers(ids_of(5, 6, 5))
    assert found is not None
    right, wrong, no_better = Copies(), Copies(), Copies()
    before = right.weight(GREEDY, found)
    for _ in range(3):
        taught(right, token=6, model_says=2)
        taught(wrong, token=2, model_says=2)
        taught(no_better, token=6, model_says=6)
    assert right.weight(GREEDY, found) > before + 0.1
    assert wrong.weight(GREEDY, found) < before - 0.05
    assert no_better.weight(GREEDY, found) == pytest.approx(before, abs=0.02)
    assert right.weight(REJECTION, found) == before  # greedy texts say little of sampled ones
    assert (right.num_found, right.num_right, wrong.num_right) == (3, 3, 0)
    for _ in range(2000):
        taught(right, token=6, model_says=2)
        taught(wrong, token=2, model_says=2)
    assert right.weight(GREEDY, found) == 0.97
    assert wrong.weight(GREEDY, found) == pytest.approx(0.03)


def test_the_weight_comes_to_be_the_likeliest_one() -> None:
    """One in two tokens is copied, and the others are the model's."""
    copies, rng = Copies(), np.random.default_rng(0)
    found = followers(ids_of(5, 6, 5))
    assert found is not None
    row = torch.zeros(1, 8)
    law = row[0].softmax(0).numpy().astype(np.float64)
    for _ in range(3000):
        token = 6 if rng.random() < 0.5 else int(rng.choice(8, p=law))
        copies.mix(LogitRows(row), 0, REJECTION, ids_of(5, 6, 5))
        copies.learn(told([5, 6, 5, token], 3, 3, REJECTION), ids_of(5, 6, 5, token))
    assert copies.weight(REJECTION, found) == pytest.approx(0.5, abs=0.08)


def test_prompts_guesses_and_tokens_told_before_teach_nothing() -> None:
    copies = Copies()
    text = ids_of(5, 6, 5, 6, 5, 6)
    for place in range(2, 6):
        copies.mix(LogitRows(torch.zeros(1, 8)), 0, GREEDY, text[:place])
    copies.learn(told(text.tolist(), 0, 6), text)  # all of it is the prompt
    copies.learn(told(text.tolist(), 6, 3), text)  # told before
    copies.learn(replace(told(text.tolist(), 3, 3), num_committed=3), text)  # a guess of an outcome
    assert copies.num_found == 0
    copies.learn(told(text.tolist(), 3, 3), text)
    assert copies.num_found == 3


# Drafting

REPEATS = np.tile(PROMPT[:9], 4)[:-1].astype(np.int32)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, REJECTION], ids=["greedy", "coupled", "rejection"])
@SHAPE
def test_drafts_copy_what_repeats(make: Make, sampling: SamplingParams, shape: DraftShape) -> None:
    with_copies, without = make(copies=Copies()), make()
    draft, other = (
        drafter.propose(context(REPEATS, 1, sampling), shape).result(timeout=30) for drafter in (with_copies, without)
    )
    assert draft.tokens[0] == PROMPT[8] or sampling is REJECTION
    assert draft.tokens.tolist() != other.tokens.tolist()
    if draft.laws is not None:
        law, probs = draft.laws.at(0)
        assert probs[law.tolist().index(PROMPT[8])] > 0.75
        assert draft.tokens[0] in law


def test_the_next_best_of_a_copy_is_the_model_s_own(make: Make) -> None:
    comb = make(copies=Copies()).propose(context(REPEATS, 1), DraftShape(1, siblings=1)).result(timeout=30)
    own = make().propose(context(REPEATS, 1), DraftShape(1)).result(timeout=30)
    assert comb.tokens.tolist() == [PROMPT[8], own.tokens[0]]


def test_bans_and_penalties_hold_for_copies(make: Make) -> None:
    banned = SamplingParams(logit_bias=((int(PROMPT[8]), -1e9),))
    draft = make(copies=Copies()).propose(context(REPEATS, 1, banned), DraftShape(4, siblings=2)).result(timeout=30)
    assert PROMPT[8] not in draft.tokens


@pytest.mark.parametrize("kind", MAKERS)
@SHAPE
@pytest.mark.parametrize("sampling", [
    SamplingParams(repetition_penalty=1.3, logit_bias=((2, 0.5),)), SamplingParams(temperature=0.7, seed=8, top_p=0.9),
], ids=["greedy penalised", "coupled"])
def test_ids_are_those_of_the_target_alone(kind: str, shape: DraftShape, sampling: SamplingParams) -> None:
    num_layers, made = MAKERS[kind]
    target, copies = Target(9, num_layers), Copies()
    drafter = made(9, ids=[0, 1, 2, 3, 5, 6, 8], copies=copies)
    text = Text("a", WORLD_PROMPT, sampling)
    run(drafter, target, [text], shape, 40)
    drafter.shutdown()
    assert text.ids[: len(WORLD_PROMPT) + 40].tolist() == plain(target, sampling, 40)[: len(WORLD_PROMPT) + 40]
    assert copies.num_found > 20


@pytest.mark.parametrize(
    ("kind", "shape", "block_verification"), [
        ("medusa", "chain", True), ("medusa", "chain", False), ("medusa", "static", False), ("block", "dynamic", False),
    ],
)
def test_sampled_texts_have_the_law_of_the_target(kind: str, shape: str, block_verification: bool) -> None:
    num_layers, made = MAKERS[kind]
    target, copies = Target(4, num_layers, seed=1), Copies()
    drafter = made(4, ids=[0, 1, 3], law_support=2, copies=copies, **MANY)
    sampling = SamplingParams(temperature=0.9, block_verification=block_verification, presence_penalty=0.4)
    texts = sampled(target, sampling, 500)
    run(drafter, target, texts, SHAPES[shape], 3)
    drafter.shutdown()
    assert copies.num_found > 400
    check_law(target, texts, sampling, 3)


# One token of a draft, very often: what is told must be what was drawn from.

TEXT = ids_of(3, 1, 4, 1, 5, 3, 1)
ROWS = LogitRows(2.0 * torch.randn(3, 6, generator=torch.Generator().manual_seed(0)))
CHECKS = LogitRows(1.5 * torch.randn(1, 6, generator=torch.Generator().manual_seed(1)))
SAMPLED = SamplingParams(temperature=1.0, entropy=1, block_verification=False)


def first_tokens(shape: DraftShape, count: int, is_false: bool) -> list[int]:
    """First tokens of `count` texts; `is_false`: the law told is the model's, without the copies."""
    copies, found = Copies(), []
    told = Context("a", 0, TEXT, 2, len(TEXT), SAMPLED, 1)
    false = truncate(weigh(ROWS, 0, SAMPLED, TEXT, 2), 0)
    for number in range(count):
        rng = np.random.default_rng(number)
        draft = foreseen.draft(ROWS, TEXT, told, shape, 0, 0, rng, copies)
        if is_false:
            assert draft.laws is not None
            laws = [false if place == 0 else draft.laws.at(place) for place in range(len(draft.tokens))]
            draft = replace(draft, laws=law_tools.build(laws))
        rows = LogitRows(torch.from_numpy(np.repeat(CHECKS.row(0)[None], len(draft.tokens) + 1, axis=0)))
        sampling = replace(SAMPLED, entropy=number + 1)
        verdict = verify_tree(draft.tokens, draft.parents, draft.laws, rows, sampling, TEXT, 2, 1, 1, False, 0)
        found.append(int(verdict.tokens[0]))
    return found


def pvalue(tokens: list[int]) -> float:
    law = process(torch.from_numpy(CHECKS.row(0).copy()), SAMPLED, TEXT, 2).exp().double().numpy()
    counts = np.bincount(tokens, minlength=6)
    return float(stats.chisquare(counts, law / law.sum() * len(tokens)).pvalue)


@SHAPE
def test_the_law_told_is_the_law_drawn_from(shape: DraftShape) -> None:
    assert pvalue(first_tokens(shape, 1500, is_false=False)) > 1e-3


def test_a_law_without_the_copies_would_be_found_out() -> None:
    assert pvalue(first_tokens(SHAPES["chain"], 1500, is_false=True)) < 1e-6


def test_guesses_of_outcomes_know_of_copies() -> None:
    row = Copies().mix(ROWS, 0, GREEDY, REPEATS % 6)
    assert guess(row, 0, GREEDY, REPEATS % 6, 2, 0).ids[0] == PROMPT[8] % 6
