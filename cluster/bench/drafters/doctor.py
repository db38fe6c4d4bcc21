"""`outrider doctor` from settings to findings: looks at a pair, runs it a little, says whether drafting will pay."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from actors.drafter_specs import DraftModelSpec
from actors.drafters.translate.spelling import spell
from actors.loading.tokenizer import explain_mismatch, fingerprint, load_tokenizer
from actors.messages import Context, Draft
from actors.sampling.params import SamplingParams
from cluster.bench.drafters import diagnosis, kinds
from cluster.bench.drafters.diagnosis import Finding, Tokenizers
from cluster.bench.drafters.forecast import Costs, Forecast, forecast, pays_up_to
from cluster.bench.drafters.memory import held
from cluster.bench.drafters.rounds import Round, conditional, draft_cost, overhead, watch
from cluster.bench.drafters.runs import Ask
from cluster.bench.drafters.stand import Stand, Stood, alone
from cluster.bench.quiet import quiet_transformers
from cluster.bench.texts import Prompt, fixed_text
from cluster.bench.watch import Watcher
from cluster.config import Config, load_config
from cluster.coordinator.control.costs import PassCurve
from cluster.ingress.tokenizing import TextCodec

WIDE_ROWS = (16, 32)  # what several streams put into one pass
WIDE_PASSES = 4  # of each
SAMPLE_CHARS = 4000
SURE = 0.9


@dataclass(frozen=True)
class DoctorSettings:
    """Who is looked at, and how closely. Sizes in tokens."""

    base: Config  # its last tier is the target, its first the draft unless `kind` is set
    prompts: Sequence[Prompt]
    kind: str | None = None  # a kind's usual ladder over the target instead of the configuration's own
    heads: Mapping[str, str] = field(default_factory=dict)
    num_tokens: int = 64
    max_lookahead: int = 8
    temperature: float = 0.0
    hop_ms: float = 0.0
    num_threads: int = 2
    weights: str | None = None  # of the target; None: as configured
    max_prompt_tokens: int = 1024


@dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    findings: tuple[Finding, ...]
    forecast: Forecast
    measured: Mapping[str, object]

    def as_json(self) -> dict[str, object]:
        """One flat object."""
        return diagnosis.as_json(self.findings, self.forecast, self.measured)


def examine(settings: DoctorSettings, watcher: Watcher) -> Diagnosis:
    """Raises `NotMeasured` and what loading the models raises."""
    with quiet_transformers(), ExitStack() as stack:
        torch.set_num_threads(settings.num_threads)
        kv_tokens = -(-(settings.max_prompt_tokens + settings.num_tokens + 64) // 256) * 256 * 2
        target = kinds.target_tier(settings.base, settings.weights, settings.num_threads, kv_tokens)
        watcher.section("loading", 2)
        stand = Stand(load_config(alone(target), environ={}))
        stack.callback(stand.close)
        watcher.run_done()
        config = _config(settings, target, stand)
        furthest = config.speculation.lookahead  # of a head: as far as it goes
        assert isinstance(furthest, int)
        settings = replace(settings, max_lookahead=furthest)
        tokenizers = _tokenizers(config)
        findings = [diagnosis.tokenizers(tokenizers)]
        if tokenizers is not None and not tokenizers.same and tokenizers.mode == "same":
            config = _translated(config, tokenizers.fitting)  # so that the rest can be measured at all
        stood = stand.stand("draft", config)
        watcher.run_done()
        target_bytes = held(stand.target).weights
        findings.append(diagnosis.sizes(stood.memory.weights, target_bytes))
        plain, drafted = _trials(settings, stand, stood, watcher)
        curve = _curve(stand, [*plain, *drafted], settings)
        return _judge(settings, stood, findings, plain, drafted, curve, {
            "draft_bytes": stood.memory.weights, "target_bytes": target_bytes,
            "tokenizer_fits": tokenizers is None or tokenizers.same,
            "tokenizers": "same" if tokenizers is None else tokenizers.fitting,
        })


def _config(settings: DoctorSettings, target: Mapping[str, Any], stand: Stand) -> Config:
    if settings.kind is None:
        return kinds.own_ladder(settings.base, target, settings.max_lookahead)
    return kinds.ladder(settings.kind, target, stand.num_layers, settings.max_lookahead, settings.heads)


def _tokenizers(config: Config) -> Tokenizers | None:
    """None for a drafter that proposes the target's own ids."""
    drafter = config.drafter_spec()
    draft, target = config.model_specs()
    if drafter is None or not drafter.has_model:
        return None
    own, other = load_tokenizer(draft.model), load_tokenizer(target.model)
    mode = drafter.tokenizers if isinstance(drafter, DraftModelSpec) else "same"
    if fingerprint(own) == fingerprint(other):
        return Tokenizers(True, mode, len(own), len(other))
    mine, theirs = set(spell(own).pieces.values()), spell(other).pieces
    shared = [piece for piece in theirs.values() if piece in mine]
    sample = TextCodec(other).encode(fixed_text()[:SAMPLE_CHARS])
    return Tokenizers(
        False, mode, len(own), len(other), len(shared) / len(theirs),
        sum(theirs.get(token) in mine for token in sample) / len(sample), explain_mismatch(own, other),
    )


def _translated(config: Config, mode: str) -> Config:
    data = config.model_dump(exclude_defaults=True)
    drafter = {**(data["tiers"][0].get("drafter") or {}), "tokenizers": mode}
    return load_config({**data, "tiers": [{**data["tiers"][0], "drafter": drafter}, data["tiers"][1]]}, environ={})


def _trials(
    settings: DoctorSettings, stand: Stand, stood: Stood, watcher: Watcher
) -> tuple[list[Round], list[Round]]:
    """Rounds without drafts, and rounds with drafts of one token and of many, question by question in turn."""
    tokenizer = load_tokenizer(stand.info.model)
    codec = TextCodec(tokenizer)
    stops = frozenset(stand.info.eos_ids)
    asks: list[Ask] = []
    for prompt in settings.prompts:
        ids = codec.encode_chat([("user", prompt.text)]) if tokenizer.chat_template else codec.encode(prompt.text)
        if 0 < len(ids) <= min(settings.max_prompt_tokens, stand.info.max_context_tokens - settings.num_tokens):
            asks.append(Ask(prompt.category, np.array(ids, np.int32), len(asks)))
    if not asks:
        raise kinds.NotMeasured("no question of the sample fits the target's context; give others with --questions")
    plain: list[Round] = []
    drafted: list[Round] = []
    watcher.section("trials", 3 * len(asks))
    lookaheads = sorted({1, settings.max_lookahead})
    for ask in asks:
        sampling = SamplingParams(temperature=settings.temperature, entropy=ask.number + 1)
        plain += watch(ask, stand.alone, sampling, settings.num_tokens, 0, stops)
        watcher.run_done()
        for k in lookaheads:
            drafted += watch(ask, stood.ladder, sampling, settings.num_tokens, k, stops)
            watcher.run_done()
    return plain, drafted


def _curve(stand: Stand, rounds: Sequence[Round], settings: DoctorSettings) -> PassCurve:
    """Seconds of the target's passes by their rows, wide ones as several streams make them included."""
    curve = PassCurve()
    for one in rounds:
        curve.observe(one.pass_rows, one.pass_s)
    dice = random.Random(0)
    vocab = stand.target.engine.vocab_size
    prompt = np.array([dice.randrange(vocab) for _ in range(32)], np.int32)
    call = Context("wide", 0, prompt, len(prompt), len(prompt), SamplingParams(), 0)
    for number in range(WIDE_PASSES * len(WIDE_ROWS) + 1):
        rows = WIDE_ROWS[number % len(WIDE_ROWS)]
        ids = np.array([dice.randrange(vocab) for _ in range(rows - 1)], np.int32)
        verdict = stand.target.verify(replace(call, round=number), [Draft(ids)]).result()
        if number:  # the first pass has the prompt in it
            curve.observe(verdict.pass_rows, verdict.pass_seconds)
    stand.target.close("wide")
    return curve


def _judge(
    settings: DoctorSettings, stood: Stood, findings: list[Finding], plain: list[Round], drafted: list[Round],
    curve: PassCurve, measured: Mapping[str, object],
) -> Diagnosis:
    k = settings.max_lookahead
    asked = [one for one in drafted if one.num_asked]
    checked = [one for one in asked if one.num_draft]
    accept = conditional(asked, k)
    num_checked, coverage = sum(one.num_draft for one in checked), len(checked) / len(asked) if asked else 0.0
    findings.append(diagnosis.acceptance(accept, num_checked, coverage))
    draft_s, token_s = draft_cost(checked)
    row_s = _seconds(plain, 1, curve)
    rows_s = _seconds(checked, k + 1, curve)
    if checked:
        findings[-1:-1] = diagnosis.steps(token_s, draft_s, row_s, rows_s, k)
    costs = Costs(
        curve, draft_s, token_s, overhead(plain), overhead(checked), settings.hop_ms / 1000, not stood.drafts_inline,
    )
    found = forecast(costs, accept)
    free = forecast(replace(costs, draft_s=0.0, draft_token_s=0.0), accept)
    sure = forecast(costs, (SURE,) * k)
    up_to = pays_up_to(costs, accept)
    findings.append(diagnosis.verdict(found, free, sure, up_to, settings.hop_ms))
    return Diagnosis(tuple(findings), found, {
        **measured, "size_ratio": _ratio(measured["target_bytes"], measured["draft_bytes"]),
        "draft_token_ms": round(1000 * (draft_s / k + token_s), 4), "target_1_row_ms": round(1000 * row_s, 4),
        f"target_{k + 1}_rows_ms": round(1000 * rows_s, 4),
        "step_time_ratio": round((draft_s / k + token_s) / row_s, 4), "rows_time_ratio": round(rows_s / row_s, 4),
        "acceptance_by_position": [round(rate, 4) for rate in accept],
        "num_draft_tokens_checked": num_checked, "rounds_with_a_draft": round(coverage, 4), "pays_up_to_streams": up_to,
        "hop_ms": settings.hop_ms, "temperature": settings.temperature,
        "draft_errors": sorted({one.draft_error for one in drafted if one.draft_error}),
    })


def _seconds(rounds: Sequence[Round], rows: int, curve: PassCurve) -> float:
    """Median of passes of so many rows; by the curve where there were none."""
    found = [one.pass_s for one in rounds if one.pass_rows == rows]
    return median(found) if found else curve.seconds(rows)


def _ratio(above: object, below: object) -> float | None:
    assert isinstance(above, int) and isinstance(below, int)
    return round(above / below, 3) if below else None
