"""Passes through some of the layers: what they compute, when it is their turn, and that they leave no trace."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.engine.jobs import Job
from actors.engine.shallow import LayersUnrun, Shallow, Turns
from actors.engine.step import StepInput
from actors.messages import Context, Ids
from actors.sampling.params import SamplingParams
from actors.sampling.rows import LogitRows
from tests.models import tiny_model, tiny_runner
from tests.tape import Tape
from tests.unit.engine.fakes import VOCAB, Runner, call, run
from tests.unit.engine.hashing import make

IDS = np.random.default_rng(3).integers(0, 97, 150).astype(np.int32)
SHALLOW = Shallow(np.array([0], np.int32), cost=0.3)


def with_layers(runner: Any, layers: list[int], wants_hidden: bool = False) -> Any:
    """The same runner, all of whose passes are of these layers."""

    class Some:
        num_pages = runner.num_pages

        def forward(self, step: StepInput) -> torch.Tensor:
            return runner.forward(replace(step, layers=np.array(layers, np.int32), wants_hidden=wants_hidden))

    return Some()


@pytest.mark.parametrize("kernels", ["native", "portable"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral-sliding", "gemma3", "gpt2", "neox"])
@pytest.mark.parametrize("layers", [[0], [0, 2], [1]], ids=str)
def test_logits_are_those_of_a_model_without_the_other_layers(
    architecture: str, kernels: str, layers: list[int]
) -> None:
    runner = tiny_runner(architecture, kernels=kernels)
    model = tiny_model(architecture)
    body = model.get_decoder()
    name = next(n for n in ("layers", "h") if hasattr(body, n))
    kept = [getattr(body, name)[i] for i in layers]
    for index in set(range(3)) - set(layers):  # in its place, so that the others keep their kinds of attention
        getattr(body, name)[index] = Passing()
    seen: list[torch.Tensor] = []
    kept[-1].register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
    with torch.inference_mode():
        plain = model(torch.from_numpy(IDS).long()[None], use_cache=False).logits[0]
    assert (plain - Tape(with_layers(runner, layers), 1, seed=5).feed(0, IDS, 37)).abs().max() < 3e-4
    hidden = Tape(with_layers(runner, layers, wants_hidden=True), 1, seed=5).feed(0, IDS, 37)
    assert hidden.shape == seen[0][0].shape and (seen[0][0] - hidden).abs().max() < 3e-4


class Passing(torch.nn.Module):
    """Hands the residual stream on."""

    attention_type = "full_attention"

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states


@pytest.mark.parametrize("path", [{}, {"kernels": "portable"}, {"weights": "int4"}], ids=str)
def test_whole_passes_have_the_same_bits_with_shallow_ones_between(path: dict[str, Any]) -> None:
    """Shallow rows write where later ones will: whatever they leave there is overwritten before it is read."""
    runner = tiny_runner("llama", **path)
    clean = Tape(runner, 1, seed=8).feed(0, IDS, 16)
    tape, rows = Tape(runner, 1, seed=8), []
    shallow = Tape(with_layers(runner, [0, 2]), 1, seed=8)
    for start in range(0, len(IDS), 16):
        shallow.run([(0, start, IDS[start : start + 20][::-1].copy())])
        rows.append(tape.run([(0, start, IDS[start : start + 16])]))
    assert torch.equal(torch.cat(rows), clean)


# --- whose turn it is ------------------------------------------------------------------------------------------------


@given(
    costs=st.dictionaries(st.integers(0, 4), st.floats(0.01, 1.0), min_size=2, max_size=5),
    gaps=st.lists(st.sets(st.integers(0, 4), max_size=3), min_size=1, max_size=200),
)
def test_of_each_other_kind_one_waits_for_no_more_than_its_own_cost_and_a_pass(
    costs: dict[int, float], gaps: list[set[int]]
) -> None:
    """`gaps`: kinds that nobody waits for at a time."""
    turns, spent = Turns(), dict[int, dict[int, float]]()
    for gap in gaps:
        waiting = {kind: cost for kind, cost in costs.items() if kind not in gap}
        spent = {kind: spent.get(kind, {}) for kind in waiting}
        if not waiting:
            continue
        turn = turns.order(waiting)[0]
        turns.charge(turn)
        del spent[turn]
        for kind, others in spent.items():
            others[turn] = others.get(turn, 0.0) + costs[turn]
            assert others[turn] <= costs[kind] + costs[turn] + 1e-9


def test_cheap_passes_go_first_until_they_have_cost_as_much_as_the_one_that_waits() -> None:
    turns, order = Turns(), []
    for _ in range(10):
        turn = turns.order({"whole": 1.0, "shallow": 0.3})[0]
        turns.charge(turn)
        order.append(turn)
    assert order == ["shallow"] * 3 + ["whole"] + ["shallow"] * 3 + ["whole"] + ["shallow"] * 2


class Recorder(Runner):
    """Which layers each pass ran, over how many sequences."""

    def forward(self, step: StepInput) -> torch.Tensor:
        logits = super().forward(step)
        if step.wants_hidden:
            return torch.zeros(len(step.logit_rows), 8)
        return logits


def shallow_call(name: str, num_tokens: int, num_steps: int, kind: Shallow = SHALLOW, round: int = 2) -> Any:
    job = call(name, num_tokens, round, num_steps)
    job.shallow, job.num_whole = kind, num_tokens - 1
    return job


def test_a_pass_never_mixes_kinds_and_calls_of_one_kind_share_it() -> None:
    batch, clock, runner = make(Recorder(), kv_tokens=1600)
    first = [call(f"s{i}", 20) for i in range(6)]
    for job in first:
        batch.attach(job)
    run(batch, clock, *first)
    begun = runner.num_steps
    exits: list[int] = []

    def leave(hidden: torch.Tensor) -> torch.Tensor:
        exits.append(len(hidden))
        return torch.zeros(len(hidden), VOCAB)

    other = Shallow(np.array([0, 3], np.int32), 0.5, leave)
    jobs = [shallow_call(f"s{i}", 20, 3) for i in range(3)]
    jobs += [shallow_call(f"s{i}", 20, 2, other) for i in range(3, 5)]
    jobs.append(call("s5", 60, round=2, num_steps=4))
    for job in jobs:
        batch.attach(job)
    run(batch, clock, *jobs)
    kinds = [tuple(step.layers.tolist()) for step in runner.steps[begun:]]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {(0,): 3, (0, 3): 2, (): 4}
    assert {len(step.kv_len) for step in runner.steps[begun:] if len(step.layers)} == {3, 2}
    assert exits == [2, 2]
    assert batch.num_shallow_steps == 5
    batch.kv.check_integrity()


def test_a_prompt_is_cut_into_short_steps_while_shallow_calls_wait() -> None:
    batch, clock, runner = make(Recorder(), kv_tokens=16000, max_batch_tokens=64, prefill_tokens=16)
    first = call("a", 20)
    batch.attach(first)
    run(batch, clock, first)
    clock.now += 100  # nobody is expected to come back
    begun = runner.num_steps
    jobs = [shallow_call("a", 20, 8), call("b", 300)]
    for job in jobs:
        batch.attach(job)
    run(batch, clock, jobs[0])
    rows = [len(step.input_ids) for step in runner.steps[begun:] if not len(step.layers)]
    assert rows and max(rows) == 16


def test_a_shallow_call_without_the_kv_it_stands_on_ends_at_once() -> None:
    batch, clock, runner = make(Recorder())
    early = shallow_call("a", 20, 2, round=1)
    batch.attach(early)
    assert not batch.step()
    with pytest.raises(LayersUnrun):
        early.future.result(timeout=0)
    assert runner.num_steps == 0
    whole = call("a", 20)
    batch.attach(whole)
    run(batch, clock, whole)
    later = shallow_call("a", 20, 4)
    batch.attach(later)
    batch.step()
    batch._planner.preempt(batch._table["a"])  # its pages go to others
    batch.step()
    with pytest.raises(LayersUnrun):
        later.future.result(timeout=0)
    batch.kv.check_integrity()


class Reader(Job):
    """All logits of a text, kept as they are."""

    future: Future[list[Any]]

    def __init__(self, context: Context) -> None:
        super().__init__(context, Future())

    def draft_ids(self) -> Ids:
        return np.empty(0, np.int32)

    def on_logits(self, logits: LogitRows, history_ids: Ids) -> int | None:
        self.future.set_result([logits.row(i).copy() for i in range(len(logits))])
        return None

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)


def test_nothing_shallow_enters_the_prefix_cache() -> None:
    """Committed tokens whose rows ran only shallowly are computed again by whoever comes with the same beginning."""
    runner = tiny_runner("llama", kv_tokens=1024, page_tokens=16)
    batch, clock, _ = make(runner, kv_tokens=1024)

    def asked(name: str, length: int, round: int) -> Context:
        return Context(name, 0, IDS[:length], 10, length, SamplingParams(), round)

    def read(name: str, length: int, round: int = 1) -> list[Any]:
        job = Reader(asked(name, length, round))
        batch.attach(job)
        while not job.future.done():
            batch.step()
        return job.future.result()

    clean = read("clean", 96)
    batch.close("clean")
    batch.kv.check_integrity()
    fresh, _, _ = make(runner, kv_tokens=1024)
    batch = fresh
    read("a", 40)
    drafting = Reader(asked("a", 96, 2))  # told of many tokens at once, most of them not run
    drafting.shallow, drafting.num_whole = SHALLOW, 40
    batch.attach(drafting)
    while not drafting.future.done():
        batch.step()
    batch.close("a", IDS[:96])
    again = read("b", 96)
    assert batch._table["b"].num_cached == 32
    assert np.array_equal(again[-1], clean[-1])
