"""Overlap and trees that a ladder cannot have are refused, with one line that names the way out."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.config import ConfigError, load_config

DRAFT: dict[str, Any] = {"name": "draft", "model": "builtin:smollm2"}
TARGET: dict[str, Any] = {"name": "target", "model": "builtin:smollm2"}
MIDDLE: dict[str, Any] = {"name": "middle", "model": "builtin:smollm2"}
OVERLAP: dict[str, Any] = {"overlap": {"branches": 4}}
TREE: dict[str, Any] = {"tree": {"nodes": 8}}


def load(tiers: list[dict[str, Any]], **speculation: Any) -> None:
    load_config({"tiers": tiers, "speculation": speculation}, {})


@pytest.mark.parametrize("asked", [OVERLAP, TREE, {"tree": {"widths": [2, 1]}}])
def test_two_pools_overlap_and_draft_trees(asked: dict[str, Any]) -> None:
    load([DRAFT, TARGET], **asked)
    load([DRAFT, MIDDLE, TARGET], lookahead="auto", **asked)


def test_a_drafter_in_the_targets_process_drafts_trees_too() -> None:
    load([{**DRAFT, "inline": True}, TARGET], **TREE)
    load([{**DRAFT, "inline": True}, TARGET], tree={"widths": [3, 1]})


def test_combs_are_for_a_lookahead_that_is_a_number() -> None:
    load([DRAFT, TARGET], tree={"siblings": 1}, overlap={"siblings": 2})
    for asked in ({"tree": {"siblings": 1}}, {"overlap": {"siblings": 2}}):
        with pytest.raises(ConfigError, match="plans no combs"):
            load([DRAFT, TARGET], lookahead="auto", **asked)


@pytest.mark.parametrize(("tiers", "asked", "line"), [
    ([TARGET], OVERLAP, "no draft pool beside"),
    ([TARGET], TREE, "no draft pool beside"),
    ([{**DRAFT, "inline": True}, TARGET], OVERLAP, "no draft pool beside"),
    ([{**DRAFT, "inline": True}, {**MIDDLE, "inline": True}, TARGET], TREE, "has tiers inline"),
    ([{"name": "copy", "drafter": {"kind": "ngram"}, "inline": True}, TARGET], TREE, "ngram drafts chains"),
    ([DRAFT, MIDDLE, TARGET], OVERLAP, "lookahead: auto"),
    ([DRAFT, MIDDLE, TARGET], TREE, "over chains"),
    ([DRAFT, {**MIDDLE, "inline": True}, TARGET], OVERLAP, "verifies other drafts"),
    ([{**DRAFT, "inline": True}, MIDDLE, TARGET], TREE, "'middle' has tiers inline"),
    ([{"name": "copy", "drafter": {"kind": "ngram"}}, TARGET], TREE, "drafter ngram drafts chains"),
    ([DRAFT, TARGET], {"tree": {"nodes": 8, "siblings": 1}}, "give either widths"),
])
def test_what_cannot_be_is_refused(tiers: list[dict[str, Any]], asked: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load(tiers, **asked)


def test_a_cascade_overlaps_for_one_outcome() -> None:
    load([{**DRAFT, "inline": True}, MIDDLE, TARGET], **OVERLAP)
