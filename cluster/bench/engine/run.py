"""`bench engine` from settings to findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from actors.loading.tokenizer import load_tokenizer
from actors.messages import Ids
from cluster.bench.engine import machine
from cluster.bench.engine.bench import Bench, EngineSettings, load
from cluster.bench.engine.models import Models
from cluster.bench.engine.parts import accuracy, decoding, ranks, speculation, steps
from cluster.bench.engine.rank_processes import RanksFailed
from cluster.bench.quiet import quiet_transformers
from cluster.bench.report import Findings
from cluster.bench.texts import BUILT_IN, fixed_text
from cluster.bench.watch import Watcher
from cluster.ingress.tokenizing import TextCodec

NUM_PROMPTS = 6
MACHINE_ROUNDS = 4  # before the first part; more come with the steps
PARTS: dict[str, Callable[[Bench], None]] = {
    "steps": steps.steps, "perplexity": accuracy.perplexities, "decode": decoding.decoding,
    "batch": decoding.batch, "speculation": speculation.speculation, "ranks": ranks.ranks,
}


class BadSettings(ValueError):
    """These settings cannot be measured; one line that names the fix."""


def run(settings: EngineSettings, watcher: Watcher) -> Findings:
    """Measure all parts that `settings` names, in the order of `PARTS`. Raises `BadSettings`."""
    with quiet_transformers():
        return _run(settings, watcher)


def _run(settings: EngineSettings, watcher: Watcher) -> Findings:
    torch.set_num_threads(settings.num_threads)
    models = Models(settings.target, settings.draft)
    text_ids, prompts = _texts(settings, models)
    watcher.section("machine", MACHINE_ROUNDS)
    meter = machine.Meter(settings.target.device)
    for _ in range(MACHINE_ROUNDS):
        meter.sample()
        watcher.run_done()
    findings = Findings()
    findings.details["settings"] = _settings_json(settings)
    bench = Bench(settings, models, text_ids, prompts, meter, findings, watcher)
    load(bench)
    if not bench.kinds:
        raise BadSettings(f"no kind of weights can be run: {'; '.join(findings.skipped.values())}")
    for name, part in PARTS.items():
        if name not in settings.sections:
            continue
        try:
            part(bench)
        except RanksFailed as error:
            findings.skip("tp2_vs_tp1", str(error))
    findings.details["machine"] = machine.describe(settings.target.device) | meter.rates.as_json()
    findings.details["kinds"] = {weights: kind.label for weights, kind in bench.chosen.items()}
    return findings


def _texts(settings: EngineSettings, models: Models) -> tuple[Ids, Sequence[Ids]]:
    """Ids of the fixed text, and of a few chat prompts; random ids for a model that knows no text."""
    longest = min(models.max_context_tokens("target"), settings.target.kv_tokens)
    needed = max(*settings.contexts, steps.PREFILL_TOKENS) + max(settings.rows)
    if settings.random_weights:
        rng = np.random.default_rng(0)
        vocab = int(models.config("target").get_text_config().vocab_size)
        ids = rng.integers(1, vocab, min(longest, needed), dtype=np.int32)
        prompts: list[Ids] = [rng.integers(1, vocab, 32, dtype=np.int32) for _ in range(NUM_PROMPTS)]
    else:
        tokenizer = load_tokenizer(settings.target.model)
        codec = TextCodec(tokenizer)
        ids = np.array(codec.encode(fixed_text()), np.int32)[:longest]
        encode = (lambda text: codec.encode_chat([("user", text)])) if tokenizer.chat_template else codec.encode
        prompts = [np.array(encode(prompt.text), np.int32) for prompt in BUILT_IN[:NUM_PROMPTS]]
    if len(ids) < needed:
        raise BadSettings(
            f"contexts up to {max(settings.contexts)} need {needed} tokens, but text and model allow {len(ids)}: "
            "lower --contexts or --rows"
        )
    return ids, prompts


def _settings_json(settings: EngineSettings) -> dict[str, object]:
    return {
        "target": settings.target.model, "draft": settings.draft.model,
        "target_kind": settings.target_kind.label, "draft_kind": settings.draft_kind.label,
        "kinds": [kind.label for kind in settings.kinds], "rows": list(settings.rows),
        "contexts": list(settings.contexts), "rounds": settings.rounds, "inner": settings.inner,
        "num_tokens": settings.num_tokens, "lookahead": settings.lookahead, "num_threads": settings.num_threads,
        "random_weights": settings.random_weights, "kernels": settings.target.kernels,
        "reduction": settings.target.reduction, "page_tokens": settings.target.page_tokens,
    }
