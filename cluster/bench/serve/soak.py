"""What a soak asks, and what its outcomes prove. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster.bench.serve.asks import LEFT, LOST, OK, Ask, Outcome
from cluster.bench.texts import Prompt

MOST_TOKENS = 64  # of an answer
REFUSED = "RESOURCE_EXHAUSTED"
LATE = "DEADLINE_EXCEEDED"
LONG_TOKENS = 600  # of a long prompt, if the service takes so many
PATIENT_S = 600.0
HALF_CHARACTER = "\ufffd"  # where a cut fell inside a character


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing a soak must show. None: this run cannot tell."""

    claim: str
    holds: bool | None
    why: str


def mixed_asks(
    count: int, prompts: Sequence[Prompt], text: str, long_chars: int, rng: np.random.Generator
) -> list[Ask]:
    """`count` requests: short and long prompts; greedy, seeded and sampled; some leave, some have little time.

    A long prompt is `long_chars` of `text`. Greedy and seeded requests come from few prompts and seeds, so that most
    are asked several times: their texts must then be the same.
    """
    asks: list[Ask] = []
    for _ in range(count):
        if rng.random() < 0.2:
            start = int(rng.integers(0, 4)) * 1500 % max(1, len(text) - long_chars)
            turns = (("user", f"Summarise:\n\n{text[start : start + long_chars]}"),)
            length = "long"
        else:
            turns = (("user", prompts[int(rng.integers(0, min(len(prompts), 8)))].text),)
            length = "short"
        max_tokens = int(rng.choice([16, 32, MOST_TOKENS]))
        kind = str(rng.choice(["greedy", "seeded", "sampled"]))
        ask = Ask(name=f"{length} {kind}", turns=turns, max_tokens=max_tokens, timeout_s=PATIENT_S)
        if kind == "seeded":
            ask = replace(ask, temperature=0.8, seed=int(rng.integers(0, 3)))
        elif kind == "sampled":
            ask = replace(ask, temperature=0.8)
        fate = rng.random()
        if fate < 0.1:
            ask = replace(ask, leave_after_tokens=int(rng.integers(1, max_tokens)))
        elif fate < 0.2:
            ask = replace(ask, timeout_s=float(rng.uniform(1.0, 10.0)))
        asks.append(ask)
    return asks


def unexpected(outcome: Outcome) -> bool:
    """Whether a request ended in a way that an overloaded but healthy service never makes it end."""
    if outcome.status in (OK, REFUSED):
        return False
    if outcome.status == LEFT:
        return outcome.ask.leave_after_tokens is None
    return not (outcome.status == LATE and outcome.ask.timeout_s < PATIENT_S)


def contradictions(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(contradictions, comparisons) among answers to the same greedy or seeded request.

    A cut answer (the client left, time ran out, fewer tokens asked for) must be the beginning of the longest.
    """
    answers: dict[object, list[str]] = defaultdict(list)
    for outcome in outcomes:
        ask = outcome.ask
        if (ask.temperature == 0.0 or ask.seed is not None) and outcome.num_tokens:
            answers[ask.turns, ask.temperature, ask.seed].append(outcome.text.rstrip(HALF_CHARACTER))
    wrong = compared = 0
    for texts in answers.values():
        longest = max(texts, key=len)
        compared += len(texts) - 1
        wrong += sum(1 for text in texts if not longest.startswith(text))
    return wrong, compared


def verdicts(
    num_sent: int, outcomes: Sequence[Outcome], *, bits_promised: bool, flat: bool | None, memory_why: str,
    idle: bool | None, idle_why: str,
) -> list[Verdict]:
    """What the soak shows, claim by claim. `flat` and `idle` are None when the service could not be looked into."""
    statuses = Counter(outcome.status for outcome in outcomes)
    num_lost = statuses[LOST] + num_sent - len(outcomes)
    odd = [outcome for outcome in outcomes if unexpected(outcome) and outcome.status != LOST]
    wrong, compared = contradictions(outcomes)
    odd_why = f"{odd[0].status}: {odd[0].detail}" if odd else "every status was one that this load explains"
    return [
        Verdict("nothing is lost", num_lost == 0, f"{num_lost} of {num_sent} requests ended without finish or status"),
        Verdict("nothing fails", not odd, f"{len(odd)} unexplained: {odd_why}" if odd else odd_why),
        Verdict(
            "excess is refused", True if statuses[REFUSED] else None,
            f"{statuses[REFUSED]} of {num_sent} requests got {REFUSED}"
            + ("" if statuses[REFUSED] else ": the queue never filled; soak for longer or raise --overload"),
        ),
        Verdict(
            "equal requests get equal texts", (wrong == 0 if compared else None) if bits_promised else None,
            f"{wrong} of {compared} answers differ" + ("" if bits_promised else " (not promised here)"),
        ),
        Verdict("memory is flat", flat, memory_why),
        Verdict("all is freed", idle, idle_why),
    ]
