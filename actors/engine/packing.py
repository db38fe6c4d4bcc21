"""Rows of many sequences as one ragged step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actors.engine import tree
from actors.engine.kv.copies import parallel_copies
from actors.engine.step import NO_FEATURES, NO_PAIRS, NONE, Int32s, StepInput
from actors.messages import Halves

FEW_PARTS, FEW_ROWS = 8, 16  # with more, or more rows of one, arrays are faster than plain numbers


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's share of a step."""

    ids: Int32s  # [num_rows] of positions start, start + 1, ...
    start: int
    pages: Int32s  # all that the sequence holds
    num_logits: int  # of its last rows
    parents: Int32s | None = None  # [num_rows] as in `StepInput`, where the rows are a tree; None: a chain
    given: tuple[int, Halves] | None = None  # features of positions from the first on, all in `pages`


def pack(
    parts: Sequence[Part], page_tokens: int, copies: Sequence[tuple[int, int]] = (), moves: Sequence[Int32s] = ()
) -> StepInput:
    """One step of `parts`, in their order; `copies` are meant one after another, and so are `moves`."""
    if len(parts) <= FEW_PARTS and all(
        p.parents is None and p.given is None and len(p.ids) <= FEW_ROWS for p in parts
    ):
        return _few(parts, page_tokens, copies, moves)
    if not moves and all(len(p.ids) == 1 and p.num_logits == 1 and p.given is None for p in parts):
        return _decoding(parts, page_tokens, copies)
    features, feature_slots = _features(parts, page_tokens)
    count = len(parts)
    lengths = np.fromiter((len(p.ids) for p in parts), np.int32, count)
    starts = np.fromiter((p.start for p in parts), np.int32, count)
    num_logits = np.fromiter((p.num_logits for p in parts), np.int32, count)
    cu_query = _cumulative(lengths)
    cu_pages = _cumulative(np.fromiter((len(p.pages) for p in parts), np.int32, count))
    cu_logits = _cumulative(num_logits)
    pages = _pages(parts)
    places = np.arange(cu_query[-1], dtype=np.int32) + np.repeat(starts - cu_query[:-1], lengths)
    page_index = np.repeat(cu_pages[:-1], lengths) + places // page_tokens
    positions, parents = _branch(parts, places, cu_query)
    logit_rows = np.arange(cu_logits[-1], dtype=np.int32) + np.repeat(cu_query[1:] - cu_logits[1:], num_logits)
    return StepInput(
        input_ids=np.concatenate([p.ids for p in parts]),
        positions=positions,
        slots=pages[page_index] * np.int32(page_tokens) + places % np.int32(page_tokens),
        cu_query=cu_query,
        kv_len=starts + lengths,
        pages=pages,
        cu_pages=cu_pages,
        logit_rows=logit_rows,
        copies=_copied(copies),
        moves=np.concatenate(moves) if moves else NO_PAIRS,
        parents=parents,
        features=features,
        feature_slots=feature_slots,
    )


def _few(
    parts: Sequence[Part], page_tokens: int, copies: Sequence[tuple[int, int]], moves: Sequence[Int32s]
) -> StepInput:
    """The same for a few short chains.

    Between two passes the caches are cold, and every library function that is called costs more than what it does:
    plain numbers in one list, which becomes one array.
    """
    ids: list[int] = []
    places: list[int] = []
    slots: list[int] = []
    cu_query, ends, cu_pages, logit_rows = [0], [], [0], []  # type: tuple[list[int], list[int], list[int], list[int]]
    for part in parts:
        end = part.start + len(part.ids)
        ids += part.ids.tolist()
        places += range(part.start, end)
        first = part.start // page_tokens
        pages = part.pages[first : (end - 1) // page_tokens + 1].tolist()
        slots += [pages[at // page_tokens - first] * page_tokens + at % page_tokens for at in range(part.start, end)]
        cu_query.append(len(ids))
        ends.append(end)
        cu_pages.append(cu_pages[-1] + len(part.pages))
        logit_rows += range(len(ids) - part.num_logits, len(ids))
    lists = (ids, places, slots, cu_query, ends, cu_pages, logit_rows)
    packed = np.array([number for numbers in lists for number in numbers], np.int32)
    arrays, start = [], 0
    for numbers in lists:
        arrays.append(packed[start : start + len(numbers)])
        start += len(numbers)
    return StepInput(
        input_ids=arrays[0], positions=arrays[1], slots=arrays[2], cu_query=arrays[3], kv_len=arrays[4],
        pages=_pages(parts),
        cu_pages=arrays[5], logit_rows=arrays[6],
        copies=_copied(copies),
        moves=np.concatenate(moves) if moves else NO_PAIRS,
    )


def _decoding(parts: Sequence[Part], page_tokens: int, copies: Sequence[tuple[int, int]]) -> StepInput:
    """The same for a row of each of many sequences: plain numbers are faster than short arrays."""
    every = np.arange(len(parts) + 1, dtype=np.int32)
    starts = [p.start for p in parts]
    positions = np.array(starts, np.int32)
    slots = [int(p.pages[start // page_tokens]) * page_tokens + start % page_tokens
             for p, start in zip(parts, starts, strict=True)]
    return StepInput(
        input_ids=np.array([p.ids[0] for p in parts], np.int32), positions=positions,
        slots=np.array(slots, np.int32), cu_query=every, kv_len=positions + np.int32(1),
        pages=_pages(parts),
        cu_pages=np.array([0, *itertools.accumulate(len(p.pages) for p in parts)], np.int32),
        logit_rows=every[:-1],
        copies=_copied(copies),
    )


def _pages(parts: Sequence[Part]) -> Int32s:
    return parts[0].pages if len(parts) == 1 else np.concatenate([p.pages for p in parts])


def _copied(copies: Sequence[tuple[int, int]]) -> Int32s:
    return np.array(parallel_copies(copies), np.int32).reshape(-1, 2) if copies else NO_PAIRS


def _features(parts: Sequence[Part], page_tokens: int) -> tuple[Halves, Int32s]:
    """All given features, and the slots of their positions."""
    found = [(part, *part.given) for part in parts if part.given is not None]
    if not found:
        return NO_FEATURES, NONE
    slots = []
    for part, first, rows in found:
        places = np.arange(first, first + len(rows), dtype=np.int32)
        slots.append(part.pages[places // page_tokens] * np.int32(page_tokens) + places % np.int32(page_tokens))
    return np.concatenate([rows for _, _, rows in found]), np.concatenate(slots)


def _branch(parts: Sequence[Part], places: Int32s, cu_query: Int32s) -> tuple[Int32s, Int32s]:
    """Positions and parents of all rows; without a tree, the places in the pages and nothing."""
    trees = [s for s, part in enumerate(parts) if part.parents is not None and not tree.is_chain(part.parents)]
    if not trees:
        return places, NONE
    positions = places.copy()
    lengths = np.diff(cu_query)
    parents = np.arange(-1, len(places) - 1, dtype=np.int32) - np.repeat(cu_query[:-1], lengths)
    for s in trees:
        part, own = parts[s], slice(int(cu_query[s]), int(cu_query[s + 1]))
        assert part.parents is not None
        parents[own] = part.parents
        positions[own] = part.start + tree.depths(part.parents)
    return positions, parents


def _cumulative(counts: Int32s) -> Int32s:
    cumulative = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=cumulative[1:])
    return cumulative
