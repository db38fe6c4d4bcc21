"""Our ladder against transformers' assisted generation: same target, same draft model, same k, greedy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from actors.messages import Ids
from cluster.bench.engine.bench import Bench
from cluster.bench.engine.ladder import Generated, climb
from cluster.bench.engine.models import Kind, KindRefused
from cluster.bench.engine.peers import PlainTransformers
from cluster.bench.local import local_drafter
from cluster.bench.stats import paired_ratio, spread

PLAIN = {"fp32": "float32", "bf16": "bfloat16"}  # what transformers itself runs


def speculation(bench: Bench) -> None:
    """Our ladder against transformers' assisted generation: same target, same draft model, same k, greedy."""
    settings, findings, models = bench.settings, bench.findings, bench.models
    if settings.random_weights and settings.draft.model != settings.target.model:
        findings.skip("spec_vs_transformers_assisted", "weights are random: a draft of other weights is never accepted")
        return
    target = bench.kind(settings.target_kind.weights) or settings.target_kind
    runs: dict[str, list[Generated]] = {}

    def variant(name: str, generate: Callable[[Ids], Generated]) -> None:
        prompts = itertools.cycle(bench.prompts)
        runs[name] = []

        def measure() -> float:
            runs[name].append(generate(next(prompts)))
            return runs[name][-1].seconds_per_token

        variants[name] = measure

    variants: dict[str, Callable[[], float]] = {}
    num_tokens, k = settings.num_tokens, settings.lookahead
    plain_dtype = "bfloat16" if target.weights == "bf16" else "float32"
    with ExitStack() as stack:
        verifier = bench.verifier(stack, target)
        variant("ours_alone", lambda prompt: climb(None, verifier, prompt, num_tokens, 0))
        held = {kind.weights for kind in bench.kinds}
        drafts = [("ours", settings.draft_kind)]
        if "fp32" in held:
            drafts.append(("ours_fp32_draft", Kind("fp32", "float32")))
        for name, kind in drafts:
            try:
                runner = models.runner("draft", kind)
            except KindRefused as error:
                findings.skip(f"spec: {name}", str(error))
                continue
            drafter = local_drafter(runner, models.spec("draft", kind), models.max_context_tokens("draft"))
            stack.callback(drafter.shutdown)
            variant(name, lambda prompt, drafter=drafter: climb(  # type: ignore[misc]
                drafter, verifier, prompt, num_tokens, k
            ))
        plain = PlainTransformers(models.plain("target", plain_dtype))
        variant("transformers_alone", lambda prompt: plain.generate(prompt, num_tokens))
        dtypes = [dtype for weights, dtype in PLAIN.items() if weights in held] or [plain_dtype]
        for name, dtype in ((f"assisted_{dtype}", dtype) for dtype in dtypes):
            assisted = PlainTransformers(models.plain("target", plain_dtype), models.plain("draft", dtype), k)
            variant(name, lambda prompt, assisted=assisted: assisted.generate(prompt, num_tokens))  # type: ignore[misc]
        seconds = bench.run("speculation", variants)
    if "ours" not in seconds:
        findings.skip("spec_vs_transformers_assisted", f"the draft kind {settings.draft_kind.label} is refused")
        return
    peer = min((f"assisted_{dtype}" for dtype in dtypes), key=lambda name: spread(seconds[name]).median)
    findings.add("spec_vs_transformers_assisted", paired_ratio(seconds[peer], seconds["ours"]))
    if {"ours_fp32_draft", "assisted_float32"} <= seconds.keys():
        ratio = paired_ratio(seconds["assisted_float32"], seconds["ours_fp32_draft"])
        findings.add("spec_fp32_draft_vs_assisted_fp32", ratio)
    findings.add("spec_vs_alone", paired_ratio(seconds["ours_alone"], seconds["ours"]))
    findings.add("spec_vs_transformers_alone", paired_ratio(seconds["transformers_alone"], seconds["ours"]))
    findings.add("transformers_assisted_vs_alone", paired_ratio(seconds["transformers_alone"], seconds[peer]))
    findings.details["speculation"] = {
        "what": {
            "target": f"{settings.target.model}, ours {target.label}, transformers {plain_dtype}",
            "draft": f"{settings.draft.model}, ours {settings.draft_kind.label}; transformers "
            f"{' and '.join(dtypes)}, of which the fastest is compared",
            "lookahead": k, "fastest_assistant": peer, "prompts": len(bench.prompts), "tokens": num_tokens,
            "timed": "from the end of the first round to the last token",
        },
        "runs": {name: _generated_json(runs[name], seconds[name]) for name in seconds},
    }


def _generated_json(runs: Sequence[Generated], seconds: Sequence[float]) -> dict[str, object]:
    num_drafted = sum(run.num_drafted for run in runs)
    return {
        "tokens_per_s": spread([1 / value for value in seconds]).as_json(2),
        "mat": round(sum(len(run.ids) for run in runs) / sum(run.num_rounds for run in runs), 3),
        "acceptance": round(sum(run.num_accepted for run in runs) / num_drafted, 4) if num_drafted else None,
    }
