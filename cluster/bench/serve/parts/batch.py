"""32 streams through the service against the same 32 sequences in the engine alone, in the same run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from actors.loading.tokenizer import load_tokenizer
from actors.messages import Ids
from actors.spec import ModelSpec
from cluster.bench.engine.decode import slices
from cluster.bench.engine.rank_processes import RankProcesses, RanksFailed
from cluster.bench.interleave import interleaved, num_runs
from cluster.bench.serve.asks import Ask, Outcome
from cluster.bench.serve.bench import MANY, LoadBench, LoadFailed
from cluster.bench.stats import paired_ratio, spread
from cluster.bench.texts import fixed_text
from cluster.bench.watch import Unwatched

PROMPT_TOKENS = 32
KEYS = ("batch_efficiency_32", "batch_efficiency_32_speculative")


def batch(bench: LoadBench) -> None:
    """Tokens per second of a batch from its first request to its last token, prefills included on both sides.

    The engine's side is the target's own ranks (as many, with as many threads) fed by the thread that brings the
    answers: no Ray, no gRPC, no draft.
    """
    settings, findings, config = bench.settings, bench.findings, bench.service.config
    if config is None:
        findings.skip(KEYS, "the engine beside the service needs its configuration: let the bench start it")
        return
    limit = min(config.limits.max_concurrent_requests, config.target.max_sequences)
    if limit < MANY:
        findings.skip(KEYS, f"the configuration runs {limit} sequences at once, not {MANY}")
        return
    spec = replace(config.model_specs()[-1], max_sequences=MANY)
    prompts = _prompts(spec)
    bench.watcher.section("starting the engine alone", 1)
    try:
        with RankProcesses(spec) as ranks:
            bench.watcher.run_done()
            variants = {
                "engine": lambda: ranks.decode(prompts, settings.max_tokens).wall_s,
                "plain": lambda: _served(bench, prompts, speculation=False),
                "speculative": lambda: _served(bench, prompts, speculation=True),
            }
            bench.watcher.section(f"{MANY} streams against the engine", num_runs(variants, settings.rounds))
            seconds = interleaved(variants, settings.rounds, on_run=bench.watcher.run_done)
    except (RanksFailed, LoadFailed) as error:
        findings.skip(KEYS, str(error))
        return
    num_tokens = MANY * settings.max_tokens
    findings.details["batch_tokens_per_s"] = {
        name: spread([num_tokens / value for value in values]).as_json(2) for name, values in seconds.items()
    } | {"num_cores": os.cpu_count()}
    findings.add("batch_efficiency_32", paired_ratio(seconds["engine"], seconds["plain"]))
    findings.add("batch_efficiency_32_speculative", paired_ratio(seconds["engine"], seconds["speculative"]))


def _served(bench: LoadBench, prompts: Sequence[Ids], *, speculation: bool) -> float:
    asks = [
        Ask(
            name="batch", token_ids=tuple(prompt.tolist()), max_tokens=bench.settings.max_tokens, ignore_eos=True,
            speculation=speculation, lookahead=bench.settings.lookahead if speculation else None,
        )
        for prompt in prompts
    ]
    silent = replace(bench, watcher=Unwatched())  # the bar counts whole batches
    outcomes = silent.once("batch", asks, MANY)
    short = [outcome for outcome in outcomes if outcome.num_tokens != bench.settings.max_tokens]
    if short:
        raise LoadFailed(f"an answer has {short[0].num_tokens} tokens instead of {bench.settings.max_tokens}")
    return wall_s(outcomes)


def wall_s(outcomes: Sequence[Outcome]) -> float:
    """From the first request to the last end."""
    return max(outcome.end_s for outcome in outcomes) - min(outcome.due_s for outcome in outcomes)


def _prompts(spec: ModelSpec) -> list[Ids]:
    ids = np.array(load_tokenizer(spec.model).encode(fixed_text(), add_special_tokens=False), np.int32)
    return slices(ids, MANY, PROMPT_TOKENS)
