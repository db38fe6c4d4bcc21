"""The second turn of a long chat: how much of its prompt each tier had to compute again."""

from __future__ import annotations

from dataclasses import replace

from cluster.bench.serve.asks import Ask, Figures, Outcome
from cluster.bench.serve.bench import LoadBench, LoadFailed
from cluster.bench.serve.client import longest_prompt
from cluster.bench.stats import spread
from cluster.bench.texts import fixed_text

PROMPT_TOKENS = 1000  # of the first turn, about
MARGIN_TOKENS = 150  # for the second question, the chat template, and the estimate of the first turn's length
QUESTION = "Go on: what happened next, and why?"
KEYS = ("second_turn_prefill_share_target", "second_turn_prefill_share_draft")


def chat(bench: LoadBench) -> None:
    """Ask about 1,000 tokens of text, then once more in the same chat; several texts one after another."""
    findings = bench.findings
    longest = longest_prompt(bench.service.address, bench.settings.max_tokens)
    if longest < PROMPT_TOKENS + bench.settings.max_tokens + MARGIN_TOKENS:
        findings.skip(KEYS, f"the service takes prompts of {longest} tokens: too few for a chat of {PROMPT_TOKENS}")
        return
    try:
        num_chars = bench.excerpt_chars(PROMPT_TOKENS)
        shares = [_second_turn(bench, number, num_chars) for number in range(bench.settings.rounds)]
    except LoadFailed as error:
        findings.skip(KEYS, str(error))
        return
    found = [prefill_share(figures, figures.target_cached_tokens) for figures in shares]
    known = [share for share in found if share is not None]
    if known:
        findings.add(KEYS[0], spread(known))
    else:
        findings.skip(KEYS[0], "the service does not report cached tokens")
    findings.details["second_turn"] = [
        {
            "prompt_tokens": figures.num_prompt_tokens, "target_cached_tokens": figures.target_cached_tokens,
            "cached_tokens_by_tier": dict(figures.cached_tokens),
        }
        for figures in shares
    ]
    if not bench.settings.speculation:
        findings.skip(KEYS[1], "nothing drafts with --no-speculation")
        return
    found = [prefill_share(figures, figures.cached_tokens.get(0)) for figures in shares]
    known = [share for share in found if share is not None]
    if len(known) == len(found) and any(figures.num_drafted for figures in shares):
        findings.add(KEYS[1], spread(known))
    else:
        findings.skip(KEYS[1], "the service reports no draft cache (a drafter without a model has none)")


def prefill_share(figures: Figures, cached_tokens: int | None) -> float | None:
    """Share of the prompt's tokens that a tier did not find in its cache; None if it does not say."""
    return None if cached_tokens is None else 1.0 - cached_tokens / figures.num_prompt_tokens


def _second_turn(bench: LoadBench, number: int, num_chars: int) -> Figures:
    opening = _opening(bench, number, num_chars)
    first = _one(bench, opening, f"chat {number + 1}, first turn")
    turns = (*opening.turns, ("assistant", first.text), ("user", QUESTION))
    second = _one(bench, replace(opening, turns=turns), f"chat {number + 1}, second turn")
    assert second.figures is not None  # its status is OK
    return second.figures


def _opening(bench: LoadBench, number: int, num_chars: int) -> Ask:
    """A first turn of about `PROMPT_TOKENS`, beginning elsewhere in the text each time."""
    text = fixed_text()
    start = (number * 1201) % max(1, len(text) - num_chars)
    return Ask(
        name="chat", turns=(("user", f"Text {number}. Summarise:\n\n{text[start : start + num_chars]}"),),
        max_tokens=bench.settings.max_tokens, speculation=bench.settings.speculation,
        lookahead=bench.settings.lookahead,
    )


def _one(bench: LoadBench, ask: Ask, name: str) -> Outcome:
    return bench.once(name, [ask], 1)[0]
