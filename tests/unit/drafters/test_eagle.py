"""An `eagle` head drafts what its module says token by token: chains, trees, branches, after acceptance and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from actors.drafters.model import ModelDrafter
from actors.engine.engine import Engine
from actors.engine.headed import EagleRunner
from actors.heads.eagle import EagleHead
from actors.messages import AheadPlan, Context, Draft, DraftShape, Features, Ids, ReplicaInfo
from actors.sampling.params import SamplingParams
from tests.models import VOCAB, tiny_spec
from tests.unit.drafters.conftest import COUPLED, GREEDY, PAGE, PROMPT, REJECTION
from tests.unit.heads.fresh import fresh_head

HEAD = fresh_head(num_ids=32)
IDS = HEAD.vocabulary.ids
FEATURES = np.random.default_rng(3).normal(size=(128, HEAD.config.feature_size)).astype(np.float16)
CHAIN = DraftShape(5)

Make = Callable[..., ModelDrafter]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ModelDrafter] = []

    def build(max_context_tokens: int = 512, **changes: object) -> ModelDrafter:
        spec = tiny_spec(tier=0, page_tokens=PAGE, **changes)
        info = ReplicaInfo(0, "tiny", VOCAB, max_context_tokens, spec.num_pages, PAGE, "")
        made.append(ModelDrafter(Engine(EagleRunner(HEAD, spec), spec, max_context_tokens), info, 64))
        return made[-1]

    yield build
    for drafter in made:
        drafter.engine.check_integrity()
        for name in ("a", "b", "c"):
            drafter.close(name)
        drafter.engine.check_integrity()
        stats = drafter.stats()
        assert stats.num_free_pages == stats.num_pages
        drafter.shutdown()


def context(
    ids: Ids, round: int = 1, features: int | None = 0, sampling: SamplingParams = GREEDY, name: str = "a",
    end: int | None = None,
) -> Context:
    """All of `ids`, and the features of positions from `features` on (None: of none)."""
    told = Context(name, 0, ids.astype(np.int32), len(PROMPT), len(ids), sampling, round)
    if features is None:
        return told
    return replace(told, features=Features(features, FEATURES[features : (len(ids) - 1 if end is None else end)]))


def module_logits(ids: Ids, known: int, head: EagleHead = HEAD) -> torch.Tensor:
    """[num_ids] after `ids`, by the module, with the features of `known` leading positions."""
    states = torch.cat([torch.zeros(1, 64), head.fused(torch.from_numpy(FEATURES[:known]))])
    for length in range(known + 1, len(ids) + 1):
        x = head.joined(torch.from_numpy(ids[:length]).long(), states[:length])[None]
        for layer in head.layers:
            q, k, v = layer.qkv(x, head._rotary, torch.arange(length))
            x = layer.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        states = torch.cat([states, x[0, -1:]])
    return head.logits(states[-1])


def best(ids: Ids, known: int, count: int = 1) -> list[int]:
    return [int(IDS[place]) for place in module_logits(ids, known).topk(count).indices]


def module_chain(ids: Ids, known: int, count: int) -> list[int]:
    drafted: list[int] = []
    for _ in range(count):
        drafted += best(np.concatenate([ids, np.array(drafted, np.int32)]), known)
    return drafted


def ask(drafter: ModelDrafter, told: Context, shape: DraftShape = CHAIN) -> Draft:
    return drafter.propose(told, shape).result(timeout=60)


def paths(draft: Draft) -> list[list[int]]:
    """Of each node, the tokens from the root to it."""
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    found: list[list[int]] = []
    for token, parent in zip(draft.tokens.tolist(), parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


def test_a_chain_is_the_modules(make: Make) -> None:
    draft = ask(make(), context(PROMPT))
    assert (draft.error, draft.features_missing, draft.laws) == (None, -1, None)
    assert draft.tokens.tolist() == module_chain(PROMPT, len(PROMPT) - 1, 5)


def test_a_prompt_longer_than_a_pass_is_fed_in_pieces(make: Make) -> None:
    long = (np.arange(100, dtype=np.int32) * 5) % VOCAB
    drafter = make(max_batch_tokens=32, prefill_tokens=8)
    assert ask(drafter, context(long)).tokens.tolist() == module_chain(long, 99, 5)


@pytest.mark.parametrize("num_accepted", [0, 2, 5])
def test_after_a_verdict_rows_are_run_again_on_features(make: Make, num_accepted: int) -> None:
    drafter = make()
    draft = ask(drafter, context(PROMPT))
    longer = np.concatenate([PROMPT, draft.tokens[:num_accepted], [7]]).astype(np.int32)
    again = ask(drafter, context(longer, 2, features=len(PROMPT) - 1))
    assert again.tokens.tolist() == module_chain(longer, len(longer) - 1, 5)
    rows = drafter.stats().num_rows
    assert rows == len(PROMPT) + 4 + (num_accepted + 1) + 4  # the context's last token among them, no other again


def test_features_that_nobody_gave_are_named_and_then_taken(make: Make) -> None:
    drafter = make()
    lacking = ask(drafter, context(PROMPT, features=None))
    assert (lacking.tokens.tolist(), lacking.features_missing, lacking.error) == ([], 0, None)
    first = ask(drafter, context(PROMPT, 2))
    longer = np.concatenate([PROMPT, first.tokens[:2], [7]]).astype(np.int32)
    lacking = ask(drafter, context(longer, 3, features=None))
    assert lacking.features_missing == len(PROMPT) - 1
    again = ask(drafter, context(longer, 4, features=len(PROMPT) - 1))
    assert again.tokens.tolist() == module_chain(longer, len(longer) - 1, 5)


def test_a_repeated_call_needs_no_features_again(make: Make) -> None:
    drafter = make()
    first = ask(drafter, context(PROMPT))
    again = ask(drafter, context(PROMPT, 2, features=None))
    assert again.tokens.tolist() == first.tokens.tolist()


@pytest.mark.parametrize("sampling", [COUPLED, REJECTION])
def test_sampled_tokens_are_drafted_ids_alone(make: Make, sampling: SamplingParams) -> None:
    drafter = make()
    seen: set[int] = set()
    for name in range(20):
        hot = replace(sampling, temperature=3.0, entropy=name)
        draft = ask(drafter, context(PROMPT, sampling=hot, name=f"s{name}"))
        assert len(draft.tokens) == 5
        seen.update(draft.tokens.tolist())
        if draft.laws is not None:
            assert set(draft.laws.ids.tolist()) <= set(IDS.tolist())
        drafter.close(f"s{name}")
    assert seen <= set(IDS.tolist())


def test_the_law_of_a_sampled_token_is_the_modules(make: Make) -> None:
    draft = ask(make(), context(PROMPT, sampling=REJECTION))
    assert draft.laws is not None
    for place in range(5):
        before = np.concatenate([PROMPT, draft.tokens[:place]]).astype(np.int32)
        ids, probs = draft.laws.at(place)
        law = torch.zeros(VOCAB)
        law[IDS] = module_logits(before, len(PROMPT) - 1).softmax(-1)
        assert np.allclose(probs, law[ids], atol=1e-4)


def test_a_static_tree_has_the_modules_best_below_every_node(make: Make) -> None:
    draft = ask(make(), context(PROMPT), DraftShape(3, widths=(3, 2, 1)))
    assert draft.parents is not None
    children: dict[int, list[int]] = {}
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        children.setdefault(parent, []).append(token)
    found = paths(draft)
    assert len(found) == 3 + 6 + 6
    for node, tokens in children.items():
        before = np.concatenate([PROMPT, found[node] if node >= 0 else []]).astype(np.int32)
        assert tokens == best(before, len(PROMPT) - 1, len(tokens))


def test_a_dynamic_tree_grows_where_the_module_is_surest(make: Make) -> None:
    draft = ask(make(), context(PROMPT), DraftShape(4, num_nodes=10))
    assert draft.parents is not None
    assert len(draft.tokens) == 10

    def weight(path: list[int]) -> float:
        total = 0.0
        for place, token in enumerate(path):
            before = np.concatenate([PROMPT, path[:place]]).astype(np.int32)
            total += float(module_logits(before, len(PROMPT) - 1).log_softmax(-1)[IDS.searchsorted(token)])
        return total

    found = [tuple(path) for path in paths(draft)]
    least = min(weight(list(path)) for path in found)
    for path in [(), *found]:  # no child that was left out is likelier than one that was taken
        if len(path) == 4:
            continue
        before = np.concatenate([PROMPT, path]).astype(np.int32)
        for token in best(before, len(PROMPT) - 1, 4):
            assert (*path, token) in found or weight([*path, token]) <= least + 1e-4


def test_a_comb_is_a_chain_with_next_best_tokens(make: Make) -> None:
    draft = ask(make(), context(PROMPT), DraftShape(4, siblings=1))
    chain = module_chain(PROMPT, len(PROMPT) - 1, 4)
    assert draft.tokens[::2].tolist() == chain
    for place in range(4):
        before = np.concatenate([PROMPT, chain[:place]]).astype(np.int32)
        assert draft.tokens[2 * place : 2 * place + 2].tolist() == best(before, len(PROMPT) - 1, 2)


def test_many_sequences_draft_what_each_drafts_alone(make: Make) -> None:
    drafter = make()
    prompts = [PROMPT, (PROMPT * 3 + 1) % VOCAB, PROMPT[:21]]
    futures = [drafter.propose(context(p, name=n), CHAIN) for p, n in zip(prompts, "abc", strict=True)]
    got = [future.result(timeout=60).tokens.tolist() for future in futures]
    assert got == [module_chain(p, len(p) - 1, 5) for p in prompts]


def test_a_prompt_met_before_is_found_with_its_states(make: Make) -> None:
    drafter = make()
    first = ask(drafter, context(PROMPT))
    drafter.close("a", PROMPT)
    found = len(PROMPT) // PAGE * PAGE
    lacking = ask(drafter, context(PROMPT, features=None, name="b"))
    assert lacking.num_cached_tokens in (0, found)
    assert lacking.features_missing in (found - 1, found)
    second = ask(drafter, context(PROMPT, 2, features=lacking.features_missing, name="b"))
    assert second.tokens.tolist() == first.tokens.tolist()
    assert drafter.stats().num_rows < 2 * (len(PROMPT) + 5)


def test_branches_go_on_from_own_states(make: Make) -> None:
    drafter = make()
    draft = ask(drafter, context(PROMPT))
    plan = AheadPlan(DraftShape(3), num_branches=6, num_guesses=2, max_total_tokens=400, time_s=60.0)
    ahead = drafter.enumerate(context(PROMPT, 2, features=None), draft, 1, plan).result(timeout=60)
    assert ahead.error is None
    assert len(ahead.branches) == 6
    for branch in ahead.branches:
        before = np.concatenate([PROMPT, draft.tokens[: branch.node + 1], [branch.token]]).astype(np.int32)
        assert branch.draft.tokens.tolist() == module_chain(before, len(PROMPT) - 1, 3)
    taken = ahead.branches[0]
    longer = np.concatenate([PROMPT, draft.tokens[: taken.node + 1], [taken.token], taken.draft.tokens[:1], [7]])
    again = ask(drafter, context(longer.astype(np.int32), 3, features=len(PROMPT) - 1))
    assert again.tokens.tolist() == module_chain(longer.astype(np.int32), len(longer) - 1, 5)


def test_one_branch_goes_on_where_the_draft_ended(make: Make) -> None:
    drafter = make()
    draft = ask(drafter, context(PROMPT))
    before = drafter.stats().num_rows
    plan = AheadPlan(DraftShape(3), num_branches=1, num_guesses=1, max_total_tokens=400, time_s=60.0)
    (branch,) = drafter.enumerate(context(PROMPT, 2, features=None), draft, 1, plan).result(timeout=60).branches
    assert (branch.node, branch.token) == (4, module_chain(PROMPT, len(PROMPT) - 1, 6)[-1])
    assert branch.draft.tokens.tolist() == module_chain(PROMPT, len(PROMPT) - 1, 9)[6:]
    assert drafter.stats().num_rows == before + 1 + 3


def test_nothing_is_drafted_ahead_of_a_tree(make: Make) -> None:
    drafter = make()
    draft = ask(drafter, context(PROMPT), DraftShape(3, num_nodes=6))
    plan = AheadPlan(DraftShape(3), num_branches=4, num_guesses=1, max_total_tokens=400, time_s=60.0)
    ahead = drafter.enumerate(context(PROMPT, 2, features=None), draft, 1, plan).result(timeout=60)
    assert (ahead.branches, ahead.error) == ((), "this drafter does not draft ahead of trees")


def test_a_lost_sequence_is_told_again_with_its_features(make: Make) -> None:
    drafter = make()
    draft = ask(drafter, context(PROMPT))
    drafter.close("a")
    longer = np.concatenate([PROMPT, draft.tokens[:2], [7]]).astype(np.int32)
    told = replace(context(longer, 2, features=len(PROMPT) - 1), start=len(PROMPT), tokens=longer[len(PROMPT) :])
    assert ask(drafter, told).prefix_missing
    lacking = ask(drafter, context(longer, 2, features=len(PROMPT) - 1))
    assert lacking.tokens.tolist() == [] or lacking.num_cached_tokens > 0
    assert ask(drafter, context(longer, 3)).tokens.tolist() == module_chain(longer, len(longer) - 1, 5)


def test_features_of_another_width_are_refused_in_one_line(make: Make) -> None:
    told = context(PROMPT)
    assert told.features is not None
    draft = ask(make(), replace(told, features=Features(0, told.features.rows[:, :64])))
    assert "this drafter takes rows of 128" in str(draft.error)
