"""Questions: the families of Spec-Bench, from its file or made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.bench.drafters.questions import CATEGORIES, built_in, chosen, spec_bench
from cluster.bench.texts import BadPrompts, Prompt


def test_made_up_questions_cover_all_families_and_follow_from_the_seed() -> None:
    found = built_in(3, seed=4)
    assert [prompt.category for prompt in found] == [c for c in CATEGORIES for _ in range(3)]
    assert found == built_in(3, seed=4) != built_in(3, seed=5)
    assert all(prompt.text for prompt in found)


def test_mt_benchs_own_categories_are_one_family(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps({"category": c, "turns": [c]}) + "\n" for c in ("coding", "writing", "qa")))
    assert [prompt.category for prompt in spec_bench(path)] == ["mt_bench", "mt_bench", "qa"]
    path.write_text(json.dumps({"category": "cooking", "turns": ["x"]}))
    with pytest.raises(BadPrompts, match="'cooking', which Spec-Bench does not have"):
        spec_bench(path)
    with pytest.raises(BadPrompts, match="no prompt file"):
        spec_bench(tmp_path / "none.jsonl")


def test_the_first_that_fit_are_taken_and_an_empty_family_is_a_mistake() -> None:
    prompts = [Prompt("qa", "a" * n) for n in (9, 2, 3, 1)]
    assert [p.text for p in chosen(prompts, ["qa"], 2, lambda p: len(p.text) < 5)] == ["aa", "aaa"]
    with pytest.raises(BadPrompts, match="none fits the context: raise --max-prompt"):
        chosen(prompts, ["qa"], 2, lambda p: False)
    with pytest.raises(BadPrompts, match="choose from mt_bench"):
        chosen(prompts, ["rag"], 2, lambda p: True)
