"""Verification: what is accepted, what is put in its place, and which inputs are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from actors.messages import Origin
from actors.sampling import laws as law_tools
from actors.sampling.params import SamplingParams
from actors.sampling.processors import weigh
from actors.sampling.rows import LogitRows
from actors.sampling.validate import BadDraft, BadLogits
from actors.sampling.verify import verify
from tests.unit.sampling.tables import (
    PROMPT,
    Drafted,
    Table,
    check,
    generate,
    propose,
    remembered_processing,
)

GREEDY = SamplingParams()
REJECTION = SamplingParams(temperature=1.0, block_verification=False)
BLOCK = SamplingParams(temperature=1.0)
COUPLED = SamplingParams(temperature=1.0, seed=7)
ALL_MODES = pytest.mark.parametrize(
    "params", [GREEDY, COUPLED, REJECTION, BLOCK], ids=["greedy", "coupled", "rejection", "block"]
)
NO_TOKENS = np.empty(0, np.int32)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def run(draft: Drafted, logits: torch.Tensor, params: SamplingParams, **how: object):  # type: ignore[no-untyped-def]
    settings = {"tier": 1, "round": 0, "want_laws": False, "law_support": 0, **how}
    return verify(draft.tokens, draft.laws, LogitRows(logits), params, PROMPT, len(PROMPT), **settings)  # type: ignore[arg-type]


@pytest.mark.exactness
@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(repetition_penalty=1.5, frequency_penalty=0.7, min_tokens=4, eos_ids=(2,))],
)
@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_greedy_text_is_the_targets_whatever_the_draft(params: SamplingParams, k: int) -> None:
    target, alone = Table(31, 8), None
    for draft_seed in (31, 32, 33):
        text, _ = generate([Table(draft_seed, 8), target], params, 20, k=k)
        plain, _ = generate([target, target], params, 20, k=0)
        assert text == plain
        alone = plain
    assert alone is not None
    assert len(set(alone)) > 1


@pytest.mark.exactness
@pytest.mark.parametrize("params", [COUPLED, replace(COUPLED, top_p=0.8, repetition_penalty=1.2)])
def test_seeded_text_is_a_function_of_the_target_and_seed_alone(params: SamplingParams) -> None:
    target = Table(34, 8)
    for seed in range(8):
        one = replace(params, seed=seed)
        texts = {
            generate([Table(draft, 8 if draft % 2 else 11), target], one, 12, k=k)[0]
            for draft in (34, 35, 36)
            for k in (0, 1, 5)
        }
        texts.add(generate([Table(37, 8), Table(38, 8), target], one, 12, k=2)[0])
        assert len(texts) == 1


@pytest.mark.exactness
def test_seeded_drafts_agree_with_the_target_more_often_than_chance() -> None:
    ladder = [Table(39, 6), Table(40, 6)]
    with remembered_processing():
        coupled = np.mean([generate(ladder, replace(COUPLED, seed=i), 4, k=1)[1] for i in range(600)])
        apart = [
            check(ladder[1], replace(COUPLED, seed=i), PROMPT,
                  propose(ladder[0], replace(COUPLED, seed=i + 5000), PROMPT, 1, 0, 0), 0).num_accepted
            for i in range(600)
        ]
    assert coupled > np.mean(apart) + 0.05


@pytest.mark.exactness
def test_everything_is_accepted_when_p_equals_q() -> None:
    model = Table(61, 6)
    for params in (REJECTION, BLOCK, COUPLED):
        for entropy in range(60):
            one = replace(params, entropy=entropy, seed=None if params.seed is None else entropy)
            drafted = propose(model, one, PROMPT, 3, 0, 0)
            assert check(model, one, PROMPT, drafted, 1).last is Origin.BONUS


@pytest.mark.exactness
def test_a_certain_target_overrules_a_certain_draft() -> None:
    """Adversary for p and q swapped: q is a point mass on 0, p on 1, and p must win at once."""
    logits = torch.tensor([[-50.0, 50.0, -50.0]] * 3)
    law = (ids(0), np.ones(1, np.float32))
    for params in (REJECTION, BLOCK):
        for entropy in range(50):
            drafted = Drafted(ids(0, 0), law_tools.build([law, law]))
            got = run(drafted, logits, replace(params, entropy=entropy))
            assert (got.tokens.tolist(), got.num_accepted, got.last) == ([1], 0, Origin.RECOVERED)


@pytest.mark.exactness
def test_acceptance_rate_is_the_smaller_of_one_and_p_over_q() -> None:
    """Swapping p and q would accept token 1 always and token 0 a third of the time."""
    p, q = np.array([0.9, 0.1]), np.array([0.3, 0.7], np.float32)
    logits = torch.from_numpy(np.log(np.stack([p, p])).astype(np.float32))
    for params in (REJECTION, BLOCK):
        rates = []
        for token in (0, 1):
            drafted = Drafted(ids(token), law_tools.build([(ids(0, 1), q)]))
            rates.append(np.mean([
                run(drafted, logits, replace(params, entropy=i)).num_accepted for i in range(1000)
            ]))
        assert rates[0] == 1.0
        assert abs(rates[1] - 1 / 7) < 0.04


@ALL_MODES
def test_an_empty_draft_is_a_plain_step(params: SamplingParams) -> None:
    got = run(Drafted(NO_TOKENS, None), torch.randn(1, 5), params)
    assert (len(got.tokens), got.num_accepted, got.last) == (1, 0, Origin.PLAIN)


@ALL_MODES
@pytest.mark.parametrize("token", [5, 99, -1, 2**31 - 1])
def test_ids_outside_the_vocabulary_are_never_accepted(params: SamplingParams, token: int) -> None:
    sampled = params.temperature > 0 and params.seed is None
    for laws in (None, law_tools.build([(ids(1, token), np.array([0.1, 0.9], np.float32))] * 2)):
        if laws is not None and not sampled:
            continue
        for entropy in range(20):
            draft = Drafted(ids(token, 1), laws)
            got = run(draft, torch.randn(3, 5), replace(params, entropy=entropy))
            assert got.num_accepted == 0
            assert 0 <= got.tokens[0] < 5


@ALL_MODES
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_are_an_error(params: SamplingParams, bad: float) -> None:
    logits = torch.zeros(2, 5)
    logits[0, 3] = bad
    with pytest.raises(BadLogits):
        run(Drafted(ids(3), None), logits, params)
    with pytest.raises(BadLogits):
        run(Drafted(NO_TOKENS, None), torch.full((1, 5), -torch.inf), params)


@ALL_MODES
def test_bad_logits_behind_the_first_rejection_are_never_looked_at(params: SamplingParams) -> None:
    logits = torch.tensor([[9.0, -torch.inf, -torch.inf], [torch.nan] * 3, [torch.nan] * 3])
    laws = None
    if params.temperature > 0 and params.seed is None:
        laws = law_tools.build([(ids(1, 2), np.array([0.5, 0.5], np.float32))] * 2)
    assert run(Drafted(ids(1, 2), laws), logits, params).tokens.tolist() == [0]


@ALL_MODES
def test_a_retried_call_repeats_itself_and_another_round_does_not(params: SamplingParams) -> None:
    model, draft = Table(71, 8), Table(72, 8)
    first, again, later = [], [], []
    for entropy in range(40):
        one = replace(params, entropy=entropy)
        drafted = propose(draft, one, PROMPT, 2, 0, 0)
        for texts, round_ in ((first, 1), (again, 1), (later, 2)):
            texts.append(check(model, one, PROMPT, drafted, round_).tokens.tolist())
    assert first == again
    independent_rounds = params.temperature > 0 and params.seed is None
    assert (first != later) == independent_rounds


def test_min_tokens_masks_the_end_inside_a_draft_and_no_longer() -> None:
    logits = torch.zeros(4, 4)
    logits[:, 3] = 10.0
    params = SamplingParams(min_tokens=2, eos_ids=(3,))
    got = run(Drafted(ids(0, 0, 3), None), logits, params)
    assert got.tokens.tolist() == [0, 0, 3, 3]  # two tokens without the end, then it is free


def test_penalties_count_the_drafted_prefix() -> None:
    logits = torch.tensor([[1.0, 0.9, 0.0]] * 3)
    got = run(Drafted(ids(0, 1), None), logits, SamplingParams(presence_penalty=0.5))
    assert got.tokens.tolist() == [0, 1, 0]


@pytest.mark.exactness
@pytest.mark.parametrize("params", [REJECTION, BLOCK], ids=["rejection", "block"])
@pytest.mark.parametrize("support", [0, 2])
def test_a_middle_tier_returns_the_law_of_each_token(params: SamplingParams, support: int) -> None:
    draft, middle = Table(73, 5), Table(74, 5)
    for entropy in range(100):
        one = replace(params, entropy=entropy)
        drafted = propose(draft, one, PROMPT, 3, 0, 0)
        got = check(middle, one, PROMPT, drafted, 1, tier=1, want_laws=True, support=support)
        assert got.laws is not None
        assert got.laws.num_tokens == len(got.tokens)
        for i, token in enumerate(got.tokens):
            history = [*PROMPT, *got.tokens[:i]]
            row = LogitRows(middle.logits(history)[None])
            expected = law_tools.truncate(weigh(row, 0, one, history, len(PROMPT)), support)
            support_ids, probs = got.laws.at(i)
            assert token in support_ids
            np.testing.assert_array_equal(support_ids, expected[0])
            np.testing.assert_array_equal(probs, expected[1])


@ALL_MODES
def test_laws_are_returned_only_by_a_sampled_middle_tier(params: SamplingParams) -> None:
    sampled = params.temperature > 0 and params.seed is None
    logits = torch.randn(1, 5)
    assert (run(Drafted(NO_TOKENS, None), logits, params, want_laws=True).laws is not None) == sampled
    assert run(Drafted(NO_TOKENS, None), logits, params).laws is None


def test_logprobs_are_of_the_unmodified_softmax() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 5.0]])
    params = SamplingParams(logit_bias=((0, 100.0),), num_logprobs=2)
    got = run(Drafted(ids(0), None), logits, params)
    assert got.tokens.tolist() == [0, 0]
    assert got.logprobs is not None
    expected = torch.log_softmax(logits, -1)
    for i, entry in enumerate(got.logprobs):
        assert entry.logprob == pytest.approx(float(expected[i, 0]), abs=1e-6)
    assert got.logprobs[0].top_ids.tolist() == [2, 1]
    assert got.logprobs[1].top_ids.tolist() == [1, 2]  # a tie: the smaller id first
    assert got.logprobs[0].top_logprobs == pytest.approx(expected[0, [2, 1]].numpy(), abs=1e-6)
    assert run(Drafted(ids(0), None), logits, SamplingParams()).logprobs is None


def test_greedy_ties_go_to_the_smallest_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [700, 300, 999]] = 1.0
    assert run(Drafted(NO_TOKENS, None), logits, GREEDY).tokens.tolist() == [300]


def test_wrong_shapes_and_contradictory_laws_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows of logits"):
        run(Drafted(ids(0), None), torch.zeros(1, 3), GREEDY)
    one = (ids(0, 1), np.array([0.5, 0.5], np.float32))
    with pytest.raises(BadDraft, match="send one each"):
        run(Drafted(ids(0), law_tools.build([one, one])), torch.zeros(2, 3), REJECTION)
    for params in (REJECTION, BLOCK):
        with pytest.raises(BadDraft, match="outside the law"):
            run(Drafted(ids(2), law_tools.build([one])), torch.zeros(2, 3), params)
        nan = (ids(0, 1), np.array([0.5, np.nan], np.float32))
        with pytest.raises(BadDraft, match="not a distribution"):
            run(Drafted(ids(0), law_tools.build([nan])), torch.zeros(2, 3), params)
