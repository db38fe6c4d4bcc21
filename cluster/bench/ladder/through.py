"""Variants of asking one service, taking turns, each through one stream; and that no text changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from cluster.bench.ladder.bench import LadderBench, LadderFailed, TextsDiffer
from cluster.bench.ladder.measured import Measured, Variant
from cluster.bench.serve.asks import OK, Ask, Outcome
from cluster.bench.serve.client import closed_loop
from cluster.bench.serve.service import Service
from cluster.bench.texts import Prompt

PLAIN = Variant("plain", 0)
WARM_TOKENS = 32  # of an answer that nobody measures: first calls open connections and teach the coordinator its pace


def learn_texts(
    bench: LadderBench, service: Service, voice: str, num_prompts: int, num_tokens: int
) -> Mapping[str, str]:
    """The target's own texts by prompt, from plain decoding of all prompts at once.

    Those known already of a target with this `voice` are not asked for again. Raises `LadderFailed`.
    """
    known = bench.texts.setdefault((voice, num_tokens), {})
    missing = [prompt for prompt in bench.prompts(num_prompts) if prompt.text not in known]
    asks = [_ask(PLAIN, prompt, num_tokens) for prompt in missing]
    if asks:
        bench.watcher.section(f"{service.application}: texts of the target alone", len(asks))
        for outcome in _answers(bench, service, asks, len(asks)):
            known[outcome.ask.turns[0][1]] = outcome.text
    return known


def take_turns(
    bench: LadderBench, texts: Mapping[str, str], variants: Sequence[tuple[Service, Variant, int]], num_prompts: int,
) -> list[Measured]:
    """One answer per prompt and (service, variant, tokens of an answer), round by round in rotating order.

    `texts`: what the answers must be, as far as they go. Raises `LadderFailed`, and `TextsDiffer` when one is not that.
    """
    prompts = bench.prompts(num_prompts)
    names = dict.fromkeys(variant.name for _, variant, _ in variants)
    application = variants[0][0].application
    bench.watcher.section(f"{application}: {', '.join(names)}", len(variants) * (num_prompts + 1))
    for service, variant, num_tokens in variants:
        _answers(bench, service, [_ask(variant, prompts[0], min(WARM_TOKENS, num_tokens))], 1)
    outcomes: dict[int, list[Outcome]] = defaultdict(list)
    busy_s: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for number, prompt in enumerate(prompts):
        for turn in range(len(variants)):
            index = (number + turn) % len(variants)
            service, variant, num_tokens = variants[index]
            before = _forward_s(service)
            (outcome,) = _answers(bench, service, [_ask(variant, prompt, num_tokens)], 1)
            check_text(texts, f"{service.application}, {variant.name}", outcome, num_tokens)
            outcomes[index].append(outcome)
            for pool, forward_s in _forward_s(service).items():
                busy_s[index][pool] += forward_s - before[pool]
    found = []
    for index, (_, variant, _) in enumerate(variants):
        wall_s = sum(outcome.end_s - outcome.due_s for outcome in outcomes[index])
        busy = {pool: seconds / wall_s for pool, seconds in busy_s[index].items()}
        found.append(Measured(variant, outcomes[index], busy))
    return found


def check_text(texts: Mapping[str, str], name: str, outcome: Outcome, num_tokens: int) -> None:
    """That an answer is the target's own text. Raises `TextsDiffer`, `LadderFailed`."""
    if outcome.num_tokens != num_tokens:
        raise LadderFailed(f"{name}: an answer has {outcome.num_tokens} tokens instead of {num_tokens}")
    if len(outcome.times_s) < 2:
        raise LadderFailed(f"{name}: an answer came in one piece, so it has no pace: ask for more tokens")
    prompt = outcome.ask.turns[0][1]
    # An answer that is cut may end inside a character.
    if not texts[prompt].startswith(outcome.text.rstrip("\N{REPLACEMENT CHARACTER}")):
        raise TextsDiffer(
            f"{name}: the answer to {prompt!r} is not the text of plain decoding: speculation is not exact there"
        )


def _ask(variant: Variant, prompt: Prompt, num_tokens: int) -> Ask:
    return Ask(
        name=variant.name, turns=(("user", prompt.text),), max_tokens=num_tokens, temperature=0.0, ignore_eos=True,
        speculation=variant.lookahead != 0, lookahead=variant.lookahead or None,
    )


def _answers(bench: LadderBench, service: Service, asks: Sequence[Ask], num_streams: int) -> list[Outcome]:
    """From a client in this process, which has nothing else to do meanwhile. Raises `LadderFailed`."""
    outcomes: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        bench.watcher.run_done()

    asyncio.run(closed_loop(service.address, asks, num_streams, keep, application=service.application))
    for outcome in outcomes:
        if outcome.status != OK:
            raise LadderFailed(f"{service.application}: a request ended with {outcome.status}: {outcome.detail}")
    return outcomes


def _forward_s(service: Service) -> dict[str, float]:
    """Time in passes so far, by pool."""
    if service.pools is None:
        return {}
    return {pool.name: pool.stats.extra.get("forward_s", 0.0) for pool in service.pools()}
