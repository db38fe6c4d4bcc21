"""Mask tokens: k rows of one pass, each the law of its place; what they leave behind counts for nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from transformers import AutoModelForCausalLM

from actors.build import build_drafter, build_runner
from actors.drafter_specs import ParallelSpec
from actors.drafters.parallel import ParallelDrafter
from actors.heads.directory import SECTION, BadHead
from actors.heads.parallel import MaskTokens
from actors.loading import reduced
from actors.loading.errors import ModelNotFound
from actors.messages import AheadPlan, Context, DraftShape, Ids
from actors.sampling.params import SamplingParams
from actors.sampling.processors import process
from actors.spec import ModelSpec
from cluster.bench.local import local_verifier
from cluster.config import load_config
from cluster.coordinator.ladder import Ladder
from cluster.coordinator.request import GenerationRequest
from cluster.coordinator.settings import TreeSettings
from tests.local_tier import LocalTier
from tests.unit.test_exactness import PATIENT, Answer, answer

pytestmark = pytest.mark.exactness

VOCAB = 260
MASKS = MaskTokens(VOCAB, 3, 4)
REDUCED = np.arange(0, VOCAB, 2, dtype=np.int32)
GREEDY = SamplingParams()
PROMPT = (np.arange(37, dtype=np.int32) * 7) % VOCAB
SIZES: dict[str, Any] = {"kv_tokens": 4096, "page_tokens": 16, "max_context_tokens": 256}


def checkpoint(directory: Path, target: Path, ids: Ids | None) -> Path:
    """A draft model with the target's own layers, so that its first guess is good, and mask tokens like any."""
    directory.mkdir()
    model: Any = AutoModelForCausalLM.from_pretrained(target)
    generator = torch.Generator().manual_seed(3)
    shared = (reduced.EMBEDDING, reduced.HEAD)
    tensors = {name: value for name, value in model.state_dict().items() if name not in shared}
    width = model.config.hidden_size
    tensors[reduced.MASKS] = 0.2 * torch.randn(MASKS.num_masks, width, generator=generator)
    if ids is not None:
        tensors[reduced.IDS] = torch.from_numpy(ids)
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / reduced.WEIGHTS)
    config = json.loads((target / "config.json").read_text())
    config |= {"tie_word_embeddings": False, SECTION: {
        "kind": "parallel", "format": reduced.FORMAT, "target": str(target), "hidden": width, "vocab_size": VOCAB,
        "draft_vocab_size": VOCAB if ids is None else len(ids), "num_masks": MASKS.num_masks,
        "lookahead": MASKS.lookahead,
    }}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def target(tiny_model: Any) -> Path:
    return Path(tiny_model("llama", scale=0.25))


@pytest.fixture(scope="module")
def stored(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("parallel")
    made = {"whole": None, "reduced": REDUCED}
    return {name: checkpoint(where / name, target, ids) for name, ids in made.items()}


def made(path: Path, **changes: Any) -> ParallelDrafter:
    drafter = build_drafter(ModelSpec(0, str(path), **{**SIZES, **changes}), ParallelSpec())
    assert isinstance(drafter, ParallelDrafter)
    return drafter


@pytest.fixture(params=["whole", "reduced"])
def drafter(request: pytest.FixtureRequest, stored: dict[str, Path]) -> Iterator[ParallelDrafter]:
    it = made(stored[request.param])
    yield it
    for name in ("a", "b"):
        it.close(name)
    check(it)
    it.shutdown()


def check(worker: Any) -> None:
    worker.engine.check_integrity()
    assert worker.engine.stats().num_sequences == 0
    assert worker.engine.stats().num_free_pages == worker.engine.stats().num_pages


def context(ids: Ids, round_: int = 1, sampling: SamplingParams = GREEDY, name: str = "a", start: int = 0) -> Context:
    return Context(name, start, ids[start:].astype(np.int32), len(PROMPT), len(ids), sampling, round_)


def oracle(target: Path, stored: Path, ids: Ids, count: int) -> torch.Tensor:
    """[count, VOCAB] logits by transformers: of the last token, and of masks after it."""
    model: Any = AutoModelForCausalLM.from_pretrained(target).eval()
    masks = reduced.load_file(stored / reduced.WEIGHTS)[reduced.MASKS]
    places = [min(i, len(masks) - 1) for i in range(count - 1)]
    with torch.inference_mode():
        rows = torch.cat([model.get_input_embeddings()(torch.from_numpy(ids).long()), masks[places]])
        logits = model(inputs_embeds=rows[None]).logits[0, len(ids) - 1 :]
    if stored.name == "reduced":
        known = torch.zeros(VOCAB, dtype=torch.bool)
        known[torch.from_numpy(REDUCED).long()] = True
        logits = logits.masked_fill(~known, -1e4)
    result: torch.Tensor = logits
    return result


@pytest.mark.parametrize("path", ["native", "portable"])
@pytest.mark.parametrize("kind", ["whole", "reduced"])
def test_every_token_comes_with_the_law_of_its_own_row(
    target: Path, stored: dict[str, Path], kind: str, path: str
) -> None:
    drafter = made(stored[kind], kernels=path)
    sampling = SamplingParams(temperature=1.0, entropy=4)
    draft = drafter.propose(context(PROMPT, 1, sampling), DraftShape(6)).result(60)
    assert draft.error is None and draft.laws is not None and draft.laws.num_tokens == 6
    for place, row in enumerate(oracle(target, stored[kind], PROMPT, 6)):
        ids, q = draft.laws.at(place)
        p = row.double().softmax(-1)[torch.from_numpy(ids).long()]
        assert draft.tokens[place] in ids and len(ids) == 64
        assert q == pytest.approx((p / p.sum()).numpy(), rel=2e-3)
    drafter.close("a")
    drafter.shutdown()


def test_a_draft_takes_one_pass_and_masks_are_run_again_every_time(drafter: ParallelDrafter) -> None:
    drafter.propose(context(PROMPT), DraftShape(5)).result(60)
    for round_, new in enumerate(([3], [5, 7], [9, 11, 13])):
        steps, rows = drafter.stats().num_steps, drafter.stats().num_rows
        text = np.concatenate([PROMPT, np.array([3, 5, 7, 9, 11, 13][: sum(range(1, round_ + 2))], np.int32)])
        drafter.propose(context(text, 2 + round_), DraftShape(5)).result(60)
        assert drafter.stats().num_steps - steps == 1
        assert drafter.stats().num_rows - rows == len(new) + 4


@pytest.mark.parametrize("shape", [DraftShape(5), DraftShape(4, num_nodes=9), DraftShape(3, siblings=1)], ids=str)
def test_what_masks_left_behind_is_never_found(drafter: ParallelDrafter, shape: DraftShape) -> None:
    rng = np.random.default_rng(0)
    text = PROMPT
    for round_ in range(1, 6):
        one = drafter.propose(context(text, round_), shape).result(60)
        other = drafter.propose(context(text, round_, name="b"), shape).result(60)
        drafter.close("b", text)
        assert one.tokens.tolist() == other.tokens.tolist() and one.error is None
        assert (one.parents is None) == shape.is_chain
        keep = rng.integers(0, 3)
        text = np.concatenate([text, one.tokens[:keep], rng.integers(0, VOCAB, 1).astype(np.int32)]).astype(np.int32)
    steps = drafter.stats().num_rows
    drafter.propose(context(text, 9, name="b"), DraftShape(2)).result(60)  # of a text whose pages are known
    assert drafter.stats().num_rows - steps <= len(text) % 16 + 16 + 1


def test_no_path_leaves_the_models_context(drafter: ParallelDrafter) -> None:
    long = np.zeros(254, np.int32)
    assert len(drafter.propose(context(long), DraftShape(8)).result(60).tokens) == 3
    assert drafter.propose(context(np.zeros(300, np.int32), 2), DraftShape(8)).result(60).error


def test_what_follows_the_whole_draft_is_drafted_ahead(drafter: ParallelDrafter) -> None:
    draft = drafter.propose(context(PROMPT), DraftShape(3)).result(60)
    found = drafter.enumerate(context(PROMPT, 2), draft, 1, AheadPlan(DraftShape(2), 4, 2, 200, 60.0)).result(60)
    (branch,) = found.branches
    assert branch.node == 2 and len(branch.draft.tokens) == 2


class House:
    """The target alone, and behind the drafter."""

    def __init__(self, target: Path, stored: Path) -> None:
        spec = ModelSpec(1, str(target), **SIZES)
        self.target = LocalTier(local_verifier(build_runner(spec), spec, 256))
        self.drafter = LocalTier(made(stored))

    def ask(self, drafted: bool, *requests: GenerationRequest, tree: Any = None) -> list[Answer]:
        tiers = [self.drafter, self.target] if drafted else [self.target]
        settings = replace(PATIENT, tree=tree)

        async def all_at_once() -> list[Answer]:
            return list(await asyncio.gather(*(answer(Ladder(tiers, settings=settings), r) for r in requests)))

        return asyncio.run(all_at_once())

    def close(self) -> None:
        for tier in (self.target, self.drafter):
            assert tier.leases == []
            check(tier.worker)
            tier.worker.shutdown()


@pytest.fixture(params=["whole", "reduced"])
def house(request: pytest.FixtureRequest, target: Path, stored: dict[str, Path]) -> Iterator[House]:
    it = House(target, stored[request.param])
    yield it
    it.close()


def asked(name: str, number: int, sampling: SamplingParams = GREEDY, k: int = 4, max_tokens: int = 40,
          ) -> GenerationRequest:
    ids = np.random.default_rng(number).integers(4, VOCAB, 20 + number).astype(np.int32)
    return GenerationRequest(name, ids, sampling, max_tokens, lookahead=k)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_greedy_and_seeded_ids_are_those_of_the_target_alone(house: House, tree: bool) -> None:
    samplings = [GREEDY, SamplingParams(0.8, seed=3), SamplingParams(repetition_penalty=1.2)]
    requests = [asked(f"{i}", i, samplings[i % 3], k=(2, 5, 9)[i % 3]) for i in range(9)]
    plain = house.ask(False, *requests)
    got = house.ask(True, *(replace(one, request_id=f"d{one.request_id}") for one in requests),
                    tree=TreeSettings(num_nodes=8) if tree else None)
    assert [one.ids for one in got] == [one.ids for one in plain]
    assert sum(one.finish.figures.accepted for one in got) > 20, "inconclusive"
    assert sum(one.finish.figures.degraded_steps for one in got) == 0


@pytest.mark.parametrize("block", [False, True], ids=["tokens", "blocks"])
def test_the_law_of_the_text_is_the_targets(house: House, target: Path, block: bool) -> None:
    base = SamplingParams(temperature=1.0, top_k=3, block_verification=block)
    one = asked("law", 5, base, k=3, max_tokens=4)
    total, counts = 400, Counter[tuple[int, int]]()
    for start in range(0, total, 50):
        many = [
            replace(one, request_id=f"{i}", sampling=replace(base, entropy=i)) for i in range(start, start + 50)
        ]
        for got in house.ask(True, *many):
            counts[got.ids[0], got.ids[1]] += 1
    model: Any = AutoModelForCausalLM.from_pretrained(target).eval()

    def law(ids: list[int]) -> dict[int, float]:
        with torch.inference_mode():
            probs = process(model(torch.tensor([ids])).logits[0, -1], base, ids, len(ids)).exp().double()
        return {int(token): float(probs[token]) for token in probs.nonzero()[:, 0]}

    ids = one.prompt_ids.tolist()
    expected = {
        (first, second): total * chance * then
        for first, chance in law(ids).items() for second, then in law([*ids, first]).items()
    }
    assert counts.keys() <= expected.keys()
    likely = [pair for pair, n in expected.items() if n >= 5]
    observed = np.array([counts[pair] for pair in likely] + [total - sum(counts[pair] for pair in likely)])
    wanted = np.array([expected[pair] for pair in likely] + [total - sum(expected[pair] for pair in likely)])
    kept = wanted > 1
    assert kept.sum() >= 3
    assert stats.chisquare(observed[kept], wanted[kept] * observed[kept].sum() / wanted[kept].sum()).pvalue > 1e-3


def test_a_plain_model_is_refused_with_the_fix(target: Path) -> None:
    with pytest.raises(BadHead):
        build_drafter(ModelSpec(0, str(target), **SIZES), ParallelSpec())


def test_the_kind_is_chosen_in_the_settings(stored: dict[str, Path], target: Path) -> None:
    config = load_config({
        "tiers": [{"name": "d", "model": str(stored["whole"]), "drafter": {"kind": "parallel"}},
                  {"name": "t", "model": str(target)}],
        "speculation": {"tree": {"nodes": 8}},
    }, environ={})  # fmt: skip
    assert isinstance(config.drafter_spec(), ParallelSpec)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ({"num_masks": 9}, lambda tensors: tensors),
        ({}, lambda tensors: {k: v for k, v in tensors.items() if k != reduced.MASKS}),
        ({}, lambda tensors: {**tensors, reduced.MASKS: tensors[reduced.MASKS][:, :8].contiguous()}),
        ({"vocab_size": VOCAB + 7}, lambda tensors: tensors),
        ({"vocab_size": "many"}, lambda tensors: tensors),
        ({}, lambda tensors: {**tensors, reduced.HEAD: torch.zeros(7, 64)}),
        ({}, lambda tensors: {**tensors, reduced.IDS: tensors[reduced.IDS] + VOCAB}),
        ({}, lambda tensors: {**tensors, reduced.IDS: tensors[reduced.IDS].flip(0)}),
        ({}, lambda tensors: {**tensors, reduced.EMBEDDING: torch.zeros(VOCAB - 1, 64)}),
    ],
)
def test_a_damaged_model_is_refused_before_a_pass_reads_what_it_lacks(
    tmp_path: Path, target: Path, section: dict[str, Any], change: Any
) -> None:
    """Kernels look rows up by id, whatever stands there."""
    where = checkpoint(tmp_path / "model", target, REDUCED)
    save_file(change(load_file(where / reduced.WEIGHTS)), where / reduced.WEIGHTS)
    config = json.loads((where / "config.json").read_text())
    config[SECTION] |= section
    (where / "config.json").write_text(json.dumps(config))
    spec = ModelSpec(tier=0, model=str(where), **SIZES)
    with pytest.raises((ModelNotFound, BadHead)) as caught:
        build_drafter(spec, ParallelSpec())
    assert str(caught.value).startswith(f"{where}")
    assert "again" in str(caught.value)
    assert "\n" not in str(caught.value)
