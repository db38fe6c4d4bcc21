"""A ladder against plain transformers on the same model, process, threads and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from actors.loading.checkpoint import load_model
from actors.spec import ModelSpec
from cluster.bench.drafters.runs import Ask, Run
from cluster.bench.engine.peers import PlainTransformers
from cluster.bench.stats import Spread, paired_ratio
from cluster.bench.watch import Watcher

PLAIN_TOKENS = 24  # of each answer of transformers, whose pace is known after a few


def versus_transformers(
    target: ModelSpec, asks: Sequence[Ask], num_tokens: int, answer: Callable[[Ask, int], Run], watcher: Watcher,
) -> Spread | None:
    """Seconds per token of transformers in fp32 over those of `answer`, question by question; None: nothing to time."""
    watcher.section("against transformers", 2 * (len(asks) + 1))
    plain = PlainTransformers(load_model(replace(target, weights="fp32", dtype="float32")))
    theirs: list[float] = []
    ours: list[float] = []
    for number, ask in enumerate([asks[0], *asks]):  # the first one warms both up
        peer = plain.generate(ask.prompt, min(PLAIN_TOKENS, num_tokens)).seconds_per_token
        watcher.run_done()
        own = answer(ask, num_tokens).seconds_per_token
        watcher.run_done()
        if number and own is not None:
            theirs.append(peer)
            ours.append(own)
    return paired_ratio(theirs, ours) if ours else None
