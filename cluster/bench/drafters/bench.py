"""`bench drafters` from settings to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from actors.engine.native.build import KernelBuildError
from actors.loading.builtin import BuiltinModelError
from actors.loading.checkpoint import load_config as load_model_config
from actors.loading.checkpoint import max_context_tokens
from actors.loading.errors import ModelNotFound, UnsupportedModel
from actors.loading.tokenizer import load_tokenizer
from actors.sampling.params import SamplingParams
from actors.sampling.policies import BigLittle, LossyPolicy, TypicalAcceptance
from cluster.bench.drafters import kinds, questions
from cluster.bench.drafters.peers import versus_transformers
from cluster.bench.drafters.runs import Ask, Run, run
from cluster.bench.drafters.stand import Stand, Stood, alone
from cluster.bench.drafters.summary import ALONE, OVERALL, Cell, Quality, cells, quality
from cluster.bench.quiet import quiet_transformers
from cluster.bench.report import Findings, Goal
from cluster.bench.texts import BUILT_IN, Prompt
from cluster.bench.watch import Watcher
from cluster.config import Config, load_config
from cluster.config_drafters import DEFAULT_KIND, KINDS
from cluster.ingress.tokenizing import TextCodec

PARTS = ("drafters", "lossy", "peers")
PRESET = "preset"  # the ladder of the configuration itself, beside the kinds
WARM_UP_TOKENS = 16
LOSSY: tuple[LossyPolicy, ...] = (TypicalAcceptance(), BigLittle())
REFUSED = (kinds.NotMeasured, BuiltinModelError, ModelNotFound, UnsupportedModel, KernelBuildError, ValueError)
GOALS: Mapping[str, Goal] = {
    "mat_preset_t0": Goal(at_least=2.4), "speedup_preset_t0": Goal(at_least=1.7),
    "draft_share_preset_t0": Goal(at_most=0.12), "best_vs_transformers_fp32": Goal(at_least=5.0),
}


class TextsDiffer(RuntimeError):
    """Speculation changed a greedy text: whatever was measured is worth nothing."""


@dataclass(frozen=True)
class DraftersSettings:
    """What `bench drafters` measures. Sizes in tokens."""

    base: Config  # its last tier is the target
    prompts: Sequence[Prompt]
    source: str  # where these come from
    kinds: tuple[str, ...] = (PRESET, *KINDS)
    heads: Mapping[str, str] = field(default_factory=dict)
    categories: tuple[str, ...] = questions.CATEGORIES
    per_category: int = 3
    temperatures: tuple[float, ...] = (0.0, 1.0)
    num_tokens: int = 96
    lookahead: int = 4
    num_threads: int = 2
    weights: str | None = None  # of the target; None: as configured
    max_prompt_tokens: int = 1024
    parts: tuple[str, ...] = PARTS
    entropy: int = 0  # of what is drawn


@dataclass
class _Bench:
    settings: DraftersSettings
    stand: Stand
    asks: Sequence[Ask]
    findings: Findings
    watcher: Watcher
    configs: dict[str, Config] = field(default_factory=dict)
    stood: dict[str, Stood] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    qualities: list[Quality] = field(default_factory=list)

    def answer(self, kind: str, ask: Ask, sampling: SamplingParams, num_tokens: int | None = None) -> Run:
        """One answer of a kind, or of the target alone."""
        stood = self.stood.get(kind)
        ladder, lookahead = (self.stand.alone, 0) if stood is None else (stood.ladder, stood.lookahead)
        stops = frozenset(self.stand.info.eos_ids)
        return run(ask, ladder, sampling, num_tokens or self.settings.num_tokens, lookahead, stops)


def measure(settings: DraftersSettings, watcher: Watcher) -> Findings:
    """Measure all parts that `settings` names.

    Raises `BadPrompts`, `TextsDiffer`, and what loading the target raises.
    """
    with quiet_transformers(), ExitStack() as stack:
        torch.set_num_threads(settings.num_threads)
        asks = _asks(settings, settings.base.target.model or "")
        kv_tokens = -(-(settings.max_prompt_tokens + settings.num_tokens + 64) // 256) * 256 * 3
        target = kinds.target_tier(settings.base, settings.weights, settings.num_threads, kv_tokens)
        stand = Stand(load_config(alone(target), environ={}))
        stack.callback(stand.close)
        bench = _Bench(settings, stand, asks, Findings(), watcher)
        _stand_all(bench, target)
        bench.findings.details["settings"] = _settings_json(settings, bench, target)
        if "drafters" in settings.parts:
            for number, temperature in enumerate(settings.temperatures):
                _compare(bench, temperature, is_first=number == 0)
        if "lossy" in settings.parts:
            _lossy(bench)
        if "peers" in settings.parts:
            _peers(bench)
        _tell(bench)
        return bench.findings


def _asks(settings: DraftersSettings, model: str) -> list[Ask]:
    tokenizer = load_tokenizer(model)
    codec = TextCodec(tokenizer)

    def encode(prompt: Prompt) -> list[int]:
        return codec.encode_chat([("user", prompt.text)]) if tokenizer.chat_template else codec.encode(prompt.text)

    longest = min(settings.max_prompt_tokens, max_context_tokens(load_model_config(model)) - settings.num_tokens)
    prompts = questions.chosen(
        settings.prompts, settings.categories, settings.per_category,
        lambda prompt: 0 < len(encode(prompt)) <= longest,
    )
    return [Ask(prompt.category, np.array(encode(prompt), np.int32), i) for i, prompt in enumerate(prompts)]


def _stand_all(bench: _Bench, target: Mapping[str, object]) -> None:
    settings = bench.settings
    bench.watcher.section("loading", len(settings.kinds))
    for kind in sorted(settings.kinds, key=lambda kind: kind != PRESET):  # with it the others are compared
        try:
            bench.configs[kind] = config = _config(bench, kind, target)
            bench.stood[kind] = bench.stand.stand(kind, config)
        except REFUSED as error:
            bench.configs.pop(kind, None)
            bench.findings.skip(kind, " ".join(str(error).split())[:300])
        bench.watcher.run_done()


def _config(bench: _Bench, kind: str, target: Mapping[str, object]) -> Config:
    settings = bench.settings
    if kind == PRESET:
        return kinds.own_ladder(settings.base, target, settings.lookahead)
    config = kinds.ladder(kind, target, bench.stand.num_layers, settings.lookahead, settings.heads)
    own = bench.configs.get(PRESET)
    if own is not None and kinds.identity(own) == kinds.identity(config):
        raise kinds.NotMeasured(f"it is the ladder of the configuration itself, measured as {PRESET}")
    return config


def _compare(bench: _Bench, temperature: float, *, is_first: bool) -> None:
    """All kinds and the target alone on every question, in turn."""
    if not is_first:  # what remembers past answers must not have met these questions
        for kind, config in bench.configs.items():
            drafter = config.drafter_spec()
            if drafter is not None and not drafter.has_model:
                bench.stood[kind] = bench.stand.stand(kind, config)
    names = [ALONE, *bench.stood]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    bench.watcher.section(f"temperature {temperature:g}", (len(bench.asks) + 1) * len(names))
    codec = TextCodec(load_tokenizer(bench.stand.info.model))
    warm_up = Ask("", np.array(codec.encode(BUILT_IN[0].text), np.int32), -1)
    for number, ask in enumerate([warm_up, *bench.asks]):
        sampling = _sampling(bench.settings, temperature, ask.number)
        start = number % len(names)
        for name in (*names[start:], *names[:start]):
            found = bench.answer(name, ask, sampling, WARM_UP_TOKENS if ask is warm_up else None)
            if ask is not warm_up:
                runs[name].append(found)
            bench.watcher.run_done()
    bench.cells += cells(ALONE, temperature, runs[ALONE], runs[ALONE])
    for kind in bench.stood:
        _judge(bench, kind, temperature, runs[kind], runs[ALONE])


def _judge(bench: _Bench, kind: str, temperature: float, runs: Sequence[Run], plain: Sequence[Run]) -> None:
    if temperature == 0.0:
        for own, theirs in zip(runs, plain, strict=True):
            if own.ids != theirs.ids:
                raise TextsDiffer(f"drafter {kind} changed the greedy text of question {own.number} ({own.category}): "
                                  "this is a defect, nothing that was measured counts")
    found = cells(kind, temperature, runs, plain)
    bench.cells += found
    overall, findings, suffix = found[-1], bench.findings, f"{kind}_t{temperature:g}"
    if overall.num_drafted == 0:
        reasons = sorted({reason for run_ in runs for reason in run_.figures.degraded}) or ["it had nothing to propose"]
        findings.skip((f"mat_{suffix}", f"speedup_{suffix}"), f"nothing was drafted: {', '.join(reasons)}")
        return
    findings.add(f"mat_{suffix}", overall.mat)
    if overall.speedup is not None:
        findings.add(f"speedup_{suffix}", overall.speedup)
    if overall.draft_share is not None:
        findings.add(f"draft_share_{suffix}", overall.draft_share)


def _lossy(bench: _Bench) -> None:
    """The lossy policies beside the exact rule, on a model that can be unsure."""
    kind = next((k for k in ("draft_model", PRESET) if k in bench.stood and _is_model(bench.configs[k])), None)
    if kind is None:
        bench.findings.skip([f"lossy_{policy.policy}" for policy in LOSSY], "no draft model is among the kinds")
        return
    settings = bench.settings
    variants: dict[str, LossyPolicy | None] = {"exact": None, **{policy.policy: policy for policy in LOSSY}}
    for temperature in settings.temperatures:
        runs: dict[str, list[Run]] = {name: [] for name in variants}
        bench.watcher.section(f"lossy, temperature {temperature:g}", len(bench.asks) * len(variants))
        for number, ask in enumerate(bench.asks):
            sampling = replace(_sampling(settings, temperature, ask.number), num_logprobs=0)
            names = [*variants][number % len(variants) :] + [*variants][: number % len(variants)]
            for name in names:
                runs[name].append(bench.answer(kind, ask, replace(sampling, lossy=variants[name])))
                bench.watcher.run_done()
        for policy in LOSSY:
            found = quality(policy.policy, temperature, runs[policy.policy], runs["exact"])
            bench.qualities.append(found)
            name = f"lossy_{policy.policy}_t{temperature:g}"
            bench.findings.add(f"{name}_perplexity_ratio", found.perplexity / found.exact_perplexity)
            if found.identical is not None:
                bench.findings.add(f"{name}_identical_tokens", found.identical)
            if found.speedup is not None:
                bench.findings.add(f"{name}_speedup_over_exact", found.speedup)
    bench.findings.details["lossy"] = {
        "drafter": kind, "policies": {p.policy: _policy_json(p) for p in LOSSY},
        "rows": [found.as_json() for found in bench.qualities],
    }


def _peers(bench: _Bench) -> None:
    """The fastest setting, the target alone among them, greedy, against plain transformers in fp32."""
    name = "best_vs_transformers_fp32"
    overall = [cell for cell in bench.cells if cell.category == OVERALL and cell.tokens_per_s]
    greedy = [cell for cell in overall if cell.temperature == 0.0]
    if not greedy:
        bench.findings.skip(name, "it needs the part drafters at temperature 0")
        return
    best = max(greedy, key=lambda cell: cell.tokens_per_s or 0.0)
    few = [next(ask for ask in bench.asks if ask.category == c) for c in dict.fromkeys(a.category for a in bench.asks)]
    greedily = SamplingParams()
    found = versus_transformers(
        bench.stand.target_spec, few, min(bench.settings.num_tokens, 48),
        lambda ask, num_tokens: bench.answer(best.kind, ask, greedily, num_tokens), bench.watcher,
    )
    if found is None:
        bench.findings.skip(name, "all answers ended with their first round: raise --tokens")
        return
    bench.findings.add(name, found)
    bench.findings.details["best"] = {"kind": best.kind, "tokens_per_s": best.tokens_per_s}


def _tell(bench: _Bench) -> None:
    bench.findings.details["rows"] = [cell.as_json() for cell in bench.cells]
    bench.findings.details["drafters"] = {
        kind: {
            "weight_bytes": stood.memory.weights, "kv_bytes": stood.memory.kv, "other_bytes": stood.memory.python,
            "memory_bytes": stood.memory.total, "feature_bytes_per_token": stood.feature_bytes,
            "inline": stood.drafts_inline,
        }
        for kind, stood in bench.stood.items()
    }


def _sampling(settings: DraftersSettings, temperature: float, number: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, entropy=(settings.entropy << 32) + number + 1)


def _is_model(config: Config) -> bool:
    drafter = config.drafter_spec()
    return drafter is not None and drafter.kind == DEFAULT_KIND


def _policy_json(policy: LossyPolicy) -> dict[str, float]:
    if isinstance(policy, TypicalAcceptance):
        return {"epsilon": policy.epsilon, "delta": policy.delta}
    return {"fallback": policy.fallback, "rollback": policy.rollback}


def _settings_json(settings: DraftersSettings, bench: _Bench, target: Mapping[str, object]) -> dict[str, object]:
    return {
        "target": bench.stand.info.model, "target_weights": target["weights"], "questions": settings.source,
        "categories": list(settings.categories), "per_category": settings.per_category,
        "num_questions": len(bench.asks), "temperatures": list(settings.temperatures),
        "num_tokens": settings.num_tokens, "lookahead": settings.lookahead, "num_threads": settings.num_threads,
        "kinds": list(bench.stood), "heads": dict(settings.heads),
    }
