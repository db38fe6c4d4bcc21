"""A model that drafts for itself with some of its layers, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.drafters.shallow import ShallowDrafter
from actors.engine.shallow import Shallow
from actors.messages import AheadPlan, Context, Draft, DraftShape, Ids, Verdict
from actors.sampling.params import SamplingParams
from actors.verifier import Verifier
from tests.local_tier import verifier
from tests.models import tiny_model, tiny_runner, tiny_spec
from tests.self_model import SelfRunner, self_drafting
from tests.soft_model import SoftLaws
from tests.unit.engine.test_shallow import Passing

PROMPT = (np.arange(21, dtype=np.int32) * 7 + 3) % 40
Pair = tuple[ShallowDrafter, Verifier, SelfRunner]


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**changes: Any) -> Pair:
        made.append(self_drafting(**changes))
        return made[-1]

    yield make
    for _, host, _ in made:
        host.engine.check_integrity()
        assert host.engine._batch._table.branches == [] or host.stats().num_sequences
        host.shutdown()


def context(tokens: Ids, round: int = 1, sampling: SamplingParams | None = None, name: str = "s") -> Context:
    return Context(name, 0, tokens.astype(np.int32), len(PROMPT), len(tokens), sampling or SamplingParams(), round)


def done(future: Future[Any]) -> Any:
    return future.result(timeout=30)


def verified(host: Verifier, tokens: Ids, *drafts: Draft, round: int = 1, name: str = "s") -> Verdict:
    verdict: Verdict = done(host.verify(context(tokens, round, name=name), drafts))
    assert verdict.error is None
    return verdict


def test_the_first_call_of_a_text_drafts_nothing_and_nothing_is_wrong(pair: Callable[..., Pair]) -> None:
    drafter, host, runner = pair()
    draft = done(drafter.propose(context(PROMPT), DraftShape(4)))
    assert (len(draft.tokens), draft.error, draft.prefix_missing) == (0, None, False)
    assert runner.num_passes == {False: 0, True: 0}
    verdict = verified(host, PROMPT, draft)
    assert (len(verdict.tokens), verdict.draft_error) == (1, None)


def test_a_draft_is_what_shallow_passes_say_and_the_verifier_takes_it_up(pair: Callable[..., Pair]) -> None:
    drafter, host, runner = pair()
    ids = np.append(PROMPT, verified(host, PROMPT).tokens)
    shallow, whole = SoftLaws(40, 0.12, 1), SoftLaws(40)
    for round in range(2, 8):
        draft = done(drafter.propose(context(ids, round), DraftShape(5)))
        said, text = [], ids.tolist()
        for _ in range(5):
            said.append(int(shallow.after(text + said).argmax()))
        assert (draft.tokens.tolist(), draft.tier, draft.error) == (said, 0, None)
        verdict = verified(host, ids, draft, round=round)
        for token in verdict.tokens.tolist():
            assert token == int(whole.after(text).argmax())
            text.append(token)
        ids = np.array(text, np.int32)
    assert runner.num_passes == {False: 7, True: 30}
    assert drafter.stats().num_steps == 30
    assert host.stats().extra["num_shallow_steps"] == 30


SHAPES = [
    DraftShape(4, widths=(3, 2, 1)), DraftShape(4, num_nodes=10), DraftShape(4, siblings=2), DraftShape(1),
    DraftShape(6),
]
SAMPLINGS = [
    SamplingParams(), SamplingParams(temperature=0.9, seed=4), SamplingParams(temperature=0.9, entropy=11),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.num_tokens}-{s.num_nodes}-{len(s.widths)}-{s.siblings}")
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: s.mode)
def test_chains_combs_and_trees_leave_no_key_that_a_whole_pass_could_read(
    pair: Callable[..., Pair], shape: DraftShape, sampling: SamplingParams
) -> None:
    """The model of these tests raises where it reads one."""
    drafter, host, _ = pair()
    ids, num_accepted, num_drafted = np.append(PROMPT, verified(host, PROMPT).tokens), 0, 0
    for round in range(2, 14):
        told = context(ids, round, sampling)
        draft = done(drafter.propose(told, shape))
        assert draft.error is None
        assert (draft.laws is not None) == (sampling.entropy != 0)
        verdict = done(host.verify(told, [draft]))
        assert (verdict.error, verdict.draft_error) == (None, None)
        num_drafted += len(draft.tokens)
        num_accepted += verdict.num_accepted
        ids = np.append(ids, verdict.tokens)
    assert num_drafted >= 12 * shape.num_tokens and num_accepted > 0
    assert host.engine._batch._table.branches == [] or shape.grows
    host.close("s", ids.astype(np.int32))
    host.engine.check_integrity()
    assert host.stats().num_free_pages == host.stats().num_pages
    again = verified(host, ids, name="another")  # on the pages that were cached meanwhile
    assert again.num_cached_tokens >= len(ids) - 8


def test_several_texts_share_shallow_passes_and_whole_ones(pair: Callable[..., Pair]) -> None:
    drafter, host, runner = pair()
    texts = {f"s{i}": np.append(PROMPT, i) for i in range(8)}
    for name, ids in texts.items():
        texts[name] = np.append(ids, verified(host, ids, name=name).tokens)
    begun = dict(runner.num_passes)
    for round in range(2, 5):
        asked = {name: drafter.propose(context(ids, round, name=name), DraftShape(4)) for name, ids in texts.items()}
        drafts = {name: done(future) for name, future in asked.items()}
        passes = {name: host.verify(context(ids, round, name=name), [drafts[name]]) for name, ids in texts.items()}
        texts = {name: np.append(ids, done(passes[name]).tokens) for name, ids in texts.items()}
    assert runner.num_passes[True] - begun[True] < 3 * 8 * 4 / 2
    assert runner.num_passes[False] - begun[False] < 3 * 8 / 2


def test_a_model_at_work_does_not_draft_ahead(pair: Callable[..., Pair]) -> None:
    drafter, _, _ = pair()
    plan = AheadPlan(DraftShape(2), 1, 1, 100, 1.0)
    answer = done(drafter.enumerate(context(PROMPT), Draft(np.empty(0, np.int32)), 1, plan))
    assert answer.branches == ()
    assert "while it verifies" in str(answer.error)


def test_drafts_end_where_the_models_context_does(pair: Callable[..., Pair]) -> None:
    drafter, host, _ = pair()
    longest = host.info().max_context_tokens
    ids = np.resize(PROMPT, longest - 2).astype(np.int32)
    verified(host, ids[:-1])
    draft = done(drafter.propose(context(ids, 2), DraftShape(8)))
    assert (len(draft.tokens), draft.error) == (3, None)
    assert verified(host, ids, draft, round=2).num_draft == 2


@pytest.mark.parametrize("layers", [[0], [0, 1], [0, 2]], ids=str)
@pytest.mark.parametrize("kernels", ["native", "portable"])
def test_drafted_rows_see_whole_keys_before_them_and_shallow_ones_among_them(kernels: str, layers: list[int]) -> None:
    """As transformers do with a cache that the whole model has filled, and then layers taken out."""
    spec = tiny_spec(tier=1, kv_tokens=2048, kernels=kernels)
    host = verifier(tiny_runner("llama", kv_tokens=2048, kernels=kernels), spec)
    drafter = ShallowDrafter(host, 0, 64, Shallow(np.array(layers, np.int32), 0.5))
    prompt = np.random.default_rng(9).integers(2, 97, 70).astype(np.int32)
    done(host.verify(context(prompt[:-1]), []))
    draft = done(drafter.propose(context(prompt, 2), DraftShape(6)))
    host.shutdown()
    model, cache = tiny_model("llama"), transformers.DynamicCache()
    with torch.inference_mode():
        model(torch.from_numpy(prompt[:-1]).long()[None], past_key_values=cache)
        for index in set(range(3)) - set(layers):
            model.model.layers[index] = Passing()
        token, said = int(prompt[-1]), []
        for place in range(6):
            out = model(
                torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[len(prompt) - 1 + place]])
            )
            token = int(out.logits[0, -1].argmax())
            said.append(token)
    assert draft.tokens.tolist() == said
