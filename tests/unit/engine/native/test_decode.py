"""Several passes in one call give what as many calls would, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actors.engine.make import make_runner
from actors.engine.native.fused import FusedRunner
from actors.engine.step import Best, Decodes, FindsBest, StepInput
from tests.models import tiny_model, tiny_spec

PAGE = 16
LENGTHS = (5, 30, 1, 47)  # of the prompts; page boundaries lie within the next tokens of two of them
NO_STOP = np.zeros(1, np.int32)


def runner_of(weights: str = "fp32", **changes: Any) -> FusedRunner:
    runner = make_runner(tiny_model("llama"), tiny_spec(weights=weights, page_tokens=PAGE, **changes))
    assert isinstance(runner, FusedRunner)
    return runner


def tables(runner: FusedRunner) -> list[np.ndarray]:
    order = np.random.default_rng(5).permutation(runner.num_pages).astype(np.int32)
    return [order[5 * i : 5 * i + 5] for i in range(len(LENGTHS))]


def step_of(runner: FusedRunner, texts: list[list[int]], starts: list[int]) -> StepInput:
    """Rows from each start on, with the logits of each text's last token."""
    held = tables(runner)
    positions = [np.arange(a, len(t), dtype=np.int32) for a, t in zip(starts, texts, strict=True)]
    cu_query = np.cumsum([0, *map(len, positions)]).astype(np.int32)
    return StepInput(
        input_ids=np.concatenate([np.array(t[a:], np.int32) for a, t in zip(starts, texts, strict=True)]),
        positions=np.concatenate(positions),
        slots=np.concatenate([t[p // PAGE] * PAGE + p % PAGE for t, p in zip(held, positions, strict=True)]),
        cu_query=cu_query, kv_len=np.array([len(t) for t in texts], np.int32), pages=np.concatenate(held),
        cu_pages=np.arange(len(held) + 1, dtype=np.int32) * 5, logit_rows=cu_query[1:] - np.int32(1),
        copies=np.empty((0, 2), np.int32),
    )


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, 90, length).tolist() for length in LENGTHS]


@pytest.mark.exactness
@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "w8a8", "int4"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_several_passes_find_is_what_as_many_calls_would(weights: str, num_threads: int) -> None:
    one_by_one, texts = runner_of(weights, num_threads=num_threads), prompts()
    starts, wanted, tops = [0] * len(texts), [], []
    for _ in range(20):
        logits = one_by_one.forward(step_of(one_by_one, texts, starts)).numpy()
        starts = [len(t) for t in texts]
        wanted.append(logits.argmax(-1).tolist())
        tops.append(logits.max(-1).tolist())
        for text, token in zip(texts, wanted[-1], strict=True):
            text.append(token)
    at_once, texts, starts, found = runner_of(weights, num_threads=num_threads), prompts(), [0] * len(LENGTHS), []
    assert isinstance(at_once, Decodes)
    for num_passes in (7, 1, 12):
        best = at_once.decode(step_of(at_once, texts, starts), num_passes, NO_STOP)
        found.append(best)
        starts = [len(t) + num_passes - 1 for t in texts]
        for text, tokens in zip(texts, best.ids.T.tolist(), strict=True):
            text += tokens
    assert np.concatenate([best.ids for best in found]).tolist() == wanted
    assert np.concatenate([best.tops for best in found]).tolist() == tops


def test_passes_end_when_somebody_waits_and_after_a_row_that_is_no_number() -> None:
    runner = runner_of()
    assert runner.decode(step_of(runner, prompts(), [0] * 4), 9, np.ones(1, np.int32)).ids.shape == (1, 4)
    model = tiny_model("llama", seed=7)
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    broken = make_runner(model, tiny_spec(page_tokens=PAGE))
    assert isinstance(broken, FusedRunner)
    best = broken.decode(step_of(broken, prompts(), [0] * 4), 9, NO_STOP)
    assert best.ids.shape == (1, 4)
    assert np.isnan(best.tops).all()


def test_the_best_ids_of_a_pass_are_those_of_its_logits_and_the_smallest_of_equal_ones() -> None:
    model = tiny_model("llama", seed=8)
    with torch.no_grad():
        model.lm_head.weight[40:60] = model.lm_head.weight[30]  # equal logits
        model.lm_head.weight[:30] = model.lm_head.weight[60:90] = 0.0
    runner = make_runner(model, tiny_spec(page_tokens=PAGE))
    assert isinstance(runner, FindsBest)
    logits = runner.forward(step_of(runner, prompts(), [0] * 4)).numpy()
    best = runner.best
    assert isinstance(best, Best)
    assert best.ids.tolist() == logits.argmax(-1).tolist()
    assert best.tops.tolist() == logits.max(-1).tolist()
