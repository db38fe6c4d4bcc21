"""Greedy decoding: one sequence against plain transformers, and many together against one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from actors.verifier import Verifier
from cluster.bench.engine.bench import Bench
from cluster.bench.engine.decode import decode, slices
from cluster.bench.engine.peers import PlainTransformers
from cluster.bench.stats import paired_ratio, spread

BATCH = 16
PROMPT_TOKENS = 32  # of each sequence of a batch


def decoding(bench: Bench) -> None:
    """Greedy decoding of one sequence: the engine in each kind against plain transformers."""
    settings, findings, models = bench.settings, bench.findings, bench.models
    answers: dict[str, tuple[int, ...]] = {}
    variants: dict[str, Callable[[], float]] = {}
    workers: dict[str, Verifier] = {}
    with ExitStack() as stack:
        for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
            if any(kind.weights == name for kind in bench.kinds):
                plain = PlainTransformers(models.plain("target", dtype))
                variants[f"transformers_{name}"] = _plain(plain, bench, answers, name)
        for kind in bench.kinds:
            workers[kind.label] = worker = bench.verifier(stack, kind)
            variants[kind.label] = _alone(worker, bench, answers, kind.label)
        seconds = bench.run("decoding", variants)
        overheads = {label: worker_overhead_ms(worker, settings.num_tokens) for label, worker in workers.items()}
    findings.details["decode_tokens_per_s"] = {
        name: spread([1 / value for value in values]).as_json(2) for name, values in seconds.items()
    }
    findings.details["engine_overhead_ms_per_step"] = overheads
    for name in ("fp32", "bf16"):
        same = bench.kind(name)
        if same is not None:
            ratio = paired_ratio(seconds[f"transformers_{name}"], seconds[same.label])
            findings.add(f"ar_vs_transformers_{name}", ratio)
    if "transformers_fp32" in seconds:
        for kind in bench.quantised():
            ratio = paired_ratio(seconds["transformers_fp32"], seconds[kind.label])
            findings.add(f"ar_{kind.weights}_vs_transformers_fp32", ratio)
    if {"fp32", "transformers fp32"} <= answers.keys():
        findings.details["ids_equal_to_transformers_fp32"] = answers["fp32"] == answers["transformers fp32"]


def worker_overhead_ms(worker: Verifier, num_tokens: int) -> dict[str, float]:
    """Time of one more decoding, per step: in all, and outside the forward pass (scheduling, KV, decision)."""
    before = worker.stats()
    began = time.perf_counter()
    decode(worker, [np.arange(1, 17, dtype=np.int32)], num_tokens)
    wall_s = time.perf_counter() - began
    after = worker.stats()
    num_steps = after.num_steps - before.num_steps
    forward_s = after.extra["forward_s"] - before.extra["forward_s"]
    return {
        "step_ms": round(1e3 * wall_s / num_steps, 3),
        "outside_forward_ms": round(1e3 * (wall_s - forward_s) / num_steps, 3),
    }


def _plain(
    plain: PlainTransformers, bench: Bench, answers: dict[str, tuple[int, ...]], name: str
) -> Callable[[], float]:
    prompts = itertools.cycle(bench.prompts)

    def measure() -> float:
        found = plain.generate(next(prompts), bench.settings.num_tokens)
        answers[f"transformers {name}"] = found.ids
        return found.seconds_per_token

    return measure


def _alone(worker: Verifier, bench: Bench, answers: dict[str, tuple[int, ...]], name: str) -> Callable[[], float]:
    prompts = itertools.cycle(bench.prompts)

    def measure() -> float:
        found = decode(worker, [next(prompts)], bench.settings.num_tokens)
        answers[name] = tuple(found.streams[0].ids)
        return found.seconds_per_token

    return measure


def batch(bench: Bench) -> None:
    """16 sequences decoding together against one alone, tokens per second."""
    findings, settings = bench.findings, bench.settings
    kinds = dict.fromkeys(kind for kind in (bench.kind(settings.target_kind.weights), bench.kind("int8")) if kind)
    prompts = slices(bench.text_ids, BATCH, PROMPT_TOKENS)
    variants: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for kind in kinds:
            worker = bench.verifier(stack, kind)
            for count in (1, BATCH):
                variants[f"{kind.label}/{count}"] = (
                    lambda worker=worker, count=count: decode(  # type: ignore[misc]
                        worker, prompts[:count], settings.num_tokens
                    ).seconds_per_token
                )
        seconds = bench.run("batch", variants)
    findings.details["batch_tokens_per_s"] = {
        name: spread([1 / value for value in values]).as_json(2) for name, values in seconds.items()
    }
    for kind in kinds:
        ratio = paired_ratio(seconds[f"{kind.label}/1"], seconds[f"{kind.label}/{BATCH}"])
        findings.add(f"batch{BATCH}_throughput_vs_1_{kind.weights}", ratio)
        if kind.weights == settings.target_kind.weights:
            findings.add(f"batch{BATCH}_throughput_vs_1", ratio)
