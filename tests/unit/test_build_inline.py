"""Tiers of one process, put together from checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from actors.build import build_drafter, build_verifier, with_inline
from actors.drafter_specs import DraftModelSpec
from actors.drafters.cascade import CascadeDrafter
from actors.inline import InlineVerifier, RelayVerifier
from actors.messages import Context, Draft, DraftShape
from actors.sampling.params import SamplingParams
from actors.spec import InlineTier, ModelSpec
from tests.conftest import TinyModel

PROMPT = (np.arange(30, dtype=np.int32) * 37 + 11) % 250 + 4


def spec(path: Path, tier: int, **changes: Any) -> ModelSpec:
    return ModelSpec(**{"tier": tier, "model": str(path), "kv_tokens": 1024, "num_threads": 1, **changes})


def context(round: int = 1) -> Context:
    return Context("s", 0, PROMPT, len(PROMPT), len(PROMPT), SamplingParams(), round)


def greedy(path: Path, num_tokens: int) -> list[int]:
    verifier = build_verifier(spec(path, 1))
    ids: list[int] = []
    for round in range(num_tokens):
        tokens = np.append(PROMPT, ids).astype(np.int32)
        asked = Context("s", 0, tokens, len(PROMPT), len(tokens), SamplingParams(), round)
        ids += verifier.verify(asked, []).result(timeout=60).tokens.tolist()
    verifier.shutdown()
    return ids


def test_a_drafting_pool_with_inline_tiers_drafts_as_its_own_model(tiny_model: TinyModel) -> None:
    small, medium = tiny_model(seed=1), tiny_model(seed=0)
    inline = (
        InlineTier(spec(small, 0), window=3, drafter=DraftModelSpec()),
        InlineTier(spec(medium, 1, weights="int8"), window=4),
    )
    drafter = build_drafter(spec(medium, 2), DraftModelSpec(), inline=inline)
    assert isinstance(drafter, CascadeDrafter)
    draft = drafter.propose(context(), DraftShape(8)).result(timeout=60)
    info = drafter.info()
    drafter.shutdown()
    assert (draft.tokens.tolist(), draft.tier, draft.error) == (greedy(medium, 8), 2, None)
    assert (info.tier, info.model) == (2, str(medium))


def test_a_target_with_a_drafter_inline_drafts_and_verifies_in_one_call(tiny_model: TinyModel) -> None:
    small, large = tiny_model(seed=0), tiny_model(seed=0)
    target = spec(large, 1)
    inline = (InlineTier(spec(small, 0), window=3, drafter=DraftModelSpec()),)
    both = with_inline(build_verifier(target), target, inline, law_support=64)
    assert isinstance(both, InlineVerifier)
    verdict = both.step(context(), DraftShape(4)).result(timeout=60)
    after = both.step(context(2), DraftShape(2), [Draft(verdict.tokens[:2], tier=7)]).result(timeout=60)
    both.shutdown()
    assert verdict.tokens.tolist() == after.tokens.tolist() == greedy(large, 5)
    assert after.draft_tiers == (7, 7, 0, 0)
    assert (verdict.num_accepted, verdict.num_draft, verdict.draft_tiers) == (4, 4, (0, 0, 0, 0))
    assert verdict.draft_seconds > 0


def test_a_verifier_inline_decides_on_drafts_from_outside_first(tiny_model: TinyModel) -> None:
    large = tiny_model(seed=0)
    target = spec(large, 2)
    both = with_inline(build_verifier(target), target, (InlineTier(spec(large, 1), window=3),), law_support=64)
    assert isinstance(both, RelayVerifier)
    right = greedy(large, 3)
    wrong = np.array([right[0], right[1] ^ 1], np.int32)
    verdict = both.verify(context(), [Draft(wrong)]).result(timeout=60)
    both.shutdown()
    assert verdict.tokens.tolist() == right
    assert (verdict.num_accepted, verdict.draft_tiers) == (2, (1, 1))


def test_tokenizers_that_differ_are_one_clear_line_before_any_model_is_loaded(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    small, large = tiny_model(seed=1), tiny_model(seed=0)
    other = transformers.AutoTokenizer.from_pretrained(small)
    other.add_tokens(["<extra>"])
    other.save_pretrained(tmp_path)
    shutil.copy(small / "config.json", tmp_path)  # but no weights
    inline = (InlineTier(spec(tmp_path, 0), window=3, drafter=DraftModelSpec()),)
    with pytest.raises(ValueError, match="different tokenizers") as caught:
        build_drafter(spec(large, 1), DraftModelSpec(), inline=inline)
    line = str(caught.value)
    assert line.startswith(f"inline tier 0 ({tmp_path}) and tier 1 ({large})")
    assert line.endswith("or, for a draft model, set drafter.tokenizers to intersection or text")
    assert "\n" not in line


def test_an_inline_tiers_threads_are_not_those_of_the_tier_above(tiny_model: TinyModel) -> None:
    small, large = tiny_model(seed=1), tiny_model(seed=0)
    inline = (InlineTier(spec(small, 0, num_threads=2), window=3, drafter=DraftModelSpec()),)
    before = torch.get_num_threads()
    build_drafter(spec(large, 1, num_threads=None), DraftModelSpec(), inline=inline).shutdown()
    assert torch.get_num_threads() == before
