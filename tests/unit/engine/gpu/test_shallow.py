"""Passes through some of the layers on a device: graphs of their own, and the answers of the portable path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models import tiny_runner
from tests.tape import Tape
from tests.unit.engine.gpu.fakes import FakeGraphs, Pages
from tests.unit.engine.gpu.test_runner import PAGE, feed, ids_of, make
from tests.unit.engine.test_shallow import with_layers


@pytest.mark.parametrize("wants_hidden", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_some_layers_answer_as_they_do_on_a_cpu(architecture: str, wants_hidden: bool) -> None:
    ids, layers = ids_of(50), [0, 2]
    some = with_layers(tiny_runner(architecture, kernels="portable"), layers, wants_hidden)
    plain = Tape(some, 1, seed=5).feed(0, ids, 50)
    runner = make(architecture)
    runner.prepare(np.array(layers, np.int32), wants_hidden)
    for chunk in (5, 50):
        pages = Pages(runner.num_pages, PAGE, 1, seed=chunk)
        got = feed(with_layers(runner, layers, wants_hidden), pages, 0, ids, chunk)
        assert got.shape == plain.shape and (plain - got).abs().max() < 2e-4
    assert runner.counts.num_replayed == 10 and runner.counts.num_large == 1
    others = feed(with_layers(runner, [1]), Pages(runner.num_pages, PAGE, 1), 0, ids, 5)
    assert others.shape == (50, 97) and runner.counts.num_large == 11  # nobody said that they would come


def test_each_kind_of_pass_has_graphs_of_its_own_and_whole_passes_keep_their_bits() -> None:
    ids, clean = ids_of(40), make()
    expected = feed(clean, Pages(clean.num_pages, PAGE, 1), 0, ids, 4)
    graphs = FakeGraphs()
    runner = make(graphs=graphs)
    for layers, hidden in (([0], False), ([0, 1], True)):
        runner.prepare(np.array(layers, np.int32), hidden)
    pages, rows = Pages(runner.num_pages, PAGE, 1), []
    for start in range(0, 40, 4):
        step = pages.step([(0, start, ids[start : start + 4])])
        for layers, hidden in (([0], False), ([0, 1], True)):
            runner.forward(replace(step, layers=np.array(layers, np.int32), wants_hidden=hidden))
        rows.append(runner.forward(step))
    assert torch.equal(torch.cat(rows), expected)
    assert len({kind for _, kind in runner._captured}) == 3
    assert graphs.num_captured == len(runner._captured)


def test_a_kind_that_is_known_beforehand_is_captured_before_its_first_pass() -> None:
    graphs = FakeGraphs()
    runner = make(graphs=graphs)
    runner.prepare(np.array([0], np.int32), wants_hidden=True)
    captured = graphs.num_captured
    assert captured == len(runner._buckets.all())
    step = Pages(runner.num_pages, PAGE, 1).step([(0, 0, ids_of(4))])
    runner.forward(replace(step, layers=np.array([0], np.int32), wants_hidden=True))
    assert (graphs.num_captured, runner.counts.num_replayed) == (captured, 1)
