"""Drafting from foreseen logits: the rules of any drafter, and the same in a reduced vocabulary as in the whole one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters import foreseen
from actors.drafters.narrowed import Narrowed
from actors.heads.vocab import DraftVocabulary
from actors.messages import AheadPlan, Context, Draft, DraftShape
from actors.sampling.laws import truncate
from actors.sampling.noise import Purpose, stream
from actors.sampling.params import SamplingParams, VerifyMode
from actors.sampling.processors import greedy_argmax, weigh
from actors.sampling.rows import LogitRows

VOCAB, PLACES = 40, 5
VOCABULARY = DraftVocabulary(np.arange(0, VOCAB, 2), VOCAB)
WHOLE = DraftVocabulary(np.arange(VOCAB), VOCAB)
TEXT = np.array([4, 7, 8, 8, 2, 30, 31], np.int32)
SHAPES = {
    "chain": DraftShape(4), "comb": DraftShape(3, siblings=2), "static": DraftShape(3, widths=(3, 2, 2)),
    "dynamic": DraftShape(5, num_nodes=12),
}
SETTINGS = {
    "greedy": SamplingParams(logit_bias=((2, 1.0), (3, 5.0)), repetition_penalty=1.2),
    "coupled": SamplingParams(temperature=0.8, seed=3, top_p=0.9),
    "rejection": SamplingParams(
        temperature=0.8, entropy=5, top_k=7, presence_penalty=0.5, min_tokens=8, eos_ids=(6, 9),
        block_verification=False,
    ),
    "block": SamplingParams(temperature=1.2, entropy=6, min_p=0.02),
}
SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
SETTING = pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)


def logits(seed: int = 0, size: int = VOCAB) -> torch.Tensor:
    return 2.0 * torch.randn(PLACES, size, generator=torch.Generator().manual_seed(seed))


def context(sampling: SamplingParams) -> Context:
    return Context("a", 0, TEXT, 2, len(TEXT), sampling, 3)


def noise(sampling: SamplingParams) -> np.random.Generator | None:
    if sampling.mode in (VerifyMode.GREEDY, VerifyMode.COUPLED):
        return None
    return stream(sampling.entropy, Purpose.DRAFT, 0, 3)


def drawn(values: torch.Tensor, sampling: SamplingParams, shape: DraftShape, vocabulary: DraftVocabulary) -> Draft:
    narrowed = Narrowed(LogitRows(values), TEXT, context(sampling), vocabulary)
    return narrowed.told(foreseen.draft(
        narrowed.rows, narrowed.text, narrowed.context, shape, 0, 6, noise(sampling)
    ))


def paths(draft: Draft) -> list[list[int]]:
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents.tolist()
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


@SHAPE
@SETTING
def test_every_node_is_drawn_from_the_row_of_its_depth_with_its_path_as_history(
    shape: DraftShape, sampling: SamplingParams
) -> None:
    rows = LogitRows(logits())
    draft = drawn(logits(), sampling, shape, WHOLE)
    assert len(draft.tokens) >= 4
    ways = paths(draft)
    longest = max(map(len, ways))
    assert longest <= shape.num_tokens
    assert shape.num_nodes or longest == shape.num_tokens  # a dynamic tree ends where it likes
    parents = [path[-2] if len(path) > 1 else -1 for path in ways]
    for node, path in enumerate(ways):
        history = np.concatenate([TEXT, draft.tokens[path[:-1]]]).astype(np.int32)
        elders = [i for i in range(node) if parents[i] == parents[node]]
        taken = draft.tokens[elders].tolist()
        assert draft.tokens[node] not in taken
        if sampling.mode is VerifyMode.GREEDY and not elders:
            assert draft.tokens[node] == greedy_argmax(rows, len(path) - 1, sampling, history, 2)
        if draft.laws is not None:
            ids, probs = draft.laws.at(node)
            whole, chances = truncate(weigh(rows, len(path) - 1, sampling, history, 2), 6)
            left = ~np.isin(whole, taken)
            assert ids.tolist() == whole[left].tolist()
            np.testing.assert_allclose(probs, chances[left] / chances[left].sum(), rtol=1e-5)
            assert draft.tokens[node] in ids
    assert (draft.laws is None) == (sampling.mode in (VerifyMode.GREEDY, VerifyMode.COUPLED))
    assert (draft.parents is None) == shape.is_chain


@SHAPE
@SETTING
def test_a_reduced_vocabulary_drafts_what_its_widened_rows_would(shape: DraftShape, sampling: SamplingParams) -> None:
    for seed in range(5):
        values = logits(seed, len(VOCABULARY.ids))
        narrow = drawn(values, sampling, shape, VOCABULARY)
        wide = drawn(VOCABULARY.widen(values), sampling, shape, WHOLE)
        assert narrow.tokens.tolist() == wide.tokens.tolist()
        assert set(narrow.tokens.tolist()) <= set(VOCABULARY.ids.tolist())
        if wide.parents is not None:
            assert narrow.parents is not None
            assert narrow.parents.tolist() == wide.parents.tolist()
        if wide.laws is not None:
            assert narrow.laws is not None
            assert narrow.laws.cu_len.tolist() == wide.laws.cu_len.tolist()
            assert narrow.laws.ids.tolist() == wide.laws.ids.tolist()
            np.testing.assert_allclose(narrow.laws.probs, wide.laws.probs, rtol=1e-6)


@pytest.mark.parametrize("name", ["greedy", "coupled"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_branch_is_the_draft_after_its_outcome(name: str, shape: DraftShape) -> None:
    sampling, rows = SETTINGS[name], LogitRows(logits(2))
    verified = Draft(np.array([3, 5], np.int32))
    plan = AheadPlan(shape, 20, 3, 500, 1.0)
    made = foreseen.branches(rows, TEXT, context(sampling), verified, 2, plan, 0, 6, 512)
    assert len(made) == 9
    for branch in made:
        text = np.append(TEXT, [*verified.tokens[: branch.node + 1], branch.token]).astype(np.int32)
        after = Context("b", 0, text, 2, len(text), sampling, 4)
        expected = foreseen.draft(rows.part(branch.node + 2, PLACES), text, after, shape, 0, 6, None)
        assert branch.draft.tokens.tolist() == expected.tokens.tolist()
        if expected.parents is not None:
            assert branch.draft.parents is not None
            assert branch.draft.parents.tolist() == expected.parents.tolist()
        else:
            assert branch.draft.parents is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB + 3), min_size=1, max_size=7), st.lists(st.integers(-1, 5), min_size=7, max_size=7),
    st.booleans(), st.integers(1, 6), st.sampled_from(sorted(SETTINGS)),
)
def test_branches_follow_outcomes_that_can_happen_and_keep_the_limits(
    tokens: list[int], wishes: list[int], is_tree: bool, num_branches: int, name: str
) -> None:
    sampling = SETTINGS[name]
    parents = np.array([min(wish, i - 1) for i, wish in enumerate(wishes[: len(tokens)])], np.int32)
    order = sorted(range(len(tokens)), key=lambda i: depth(parents, i))  # drafted trees come level by level
    renamed = {-1: -1, **{node: place for place, node in enumerate(order)}}
    verified = Draft(
        np.array(tokens, np.int32),
        parents=np.array([renamed[int(parents[i])] for i in order], np.int32) if is_tree else None,
    )
    plan = AheadPlan(DraftShape(3), num_branches, 2, len(TEXT) + 5, 1.0)
    narrowed = Narrowed(LogitRows(logits(1, len(VOCABULARY.ids))), TEXT, context(sampling), VOCABULARY)
    made = [narrowed.branch(branch) for branch in foreseen.branches(
        narrowed.rows, narrowed.text, narrowed.context, narrowed.places(verified), 2, plan, 0, 6, 512
    )]
    ways = [[], *paths(verified)]
    assert len(made) <= num_branches
    assert len({(branch.node, branch.token) for branch in made}) == len(made)
    for branch in made:
        known = len(ways[branch.node + 1]) + 1
        assert 1 <= len(branch.draft.tokens) <= min(3, PLACES - known, 4 - known)
        below = [i for i, way in enumerate(ways[1:]) if way[:-1] == ways[branch.node + 1]]
        assert branch.token not in verified.tokens[below].tolist()


def depth(parents: np.ndarray, node: int) -> int:
    count = 0
    while node >= 0:
        node, count = int(parents[node]), count + 1
    return count
