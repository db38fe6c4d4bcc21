"""Spec-Bench prompts for measuring (never for training); tests skip when the file is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

# Spec-Bench, hemingkx/Spec-Bench, Apache-2.0: 480 questions in six task families.
PATH = Path(os.environ.get("OUTRIDER_SPEC_BENCH", Path(__file__).parents[2] / "shared/data/spec_bench.jsonl"))
CATEGORIES = ("writing", "translation", "qa", "math_reasoning", "rag", "summarization")


def prompts(per_category: int, longest_chars: int) -> list[tuple[str, str]]:
    """(category, first turn): the first `per_category` of each category that are not too long."""
    if not PATH.exists():
        pytest.skip(f"Spec-Bench questions are not at {PATH}: set OUTRIDER_SPEC_BENCH to the file")
    found: dict[str, list[str]] = {c: [] for c in CATEGORIES}
    for line in PATH.read_text().splitlines():
        question = json.loads(line)
        bucket = found.get(question["category"])
        if bucket is not None and len(bucket) < per_category and len(question["turns"][0]) <= longest_chars:
            bucket.append(question["turns"][0])
    return [(c, text) for c, texts in found.items() for text in texts]
