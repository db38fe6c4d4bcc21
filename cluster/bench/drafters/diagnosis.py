"""What `outrider doctor` says of what it measured: findings of one line each, with the fix. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.bench.drafters.forecast import Forecast

LARGE_DRAFT = 0.5  # bytes read per pass, of the target's
SLOW_STEP = 0.25  # seconds per draft token, of a target pass
WIDE_PASS = 1.5  # seconds of k + 1 rows, of one row
UNLIKELY = 0.5  # acceptance of a draft token
MOSTLY = 0.9  # of a text's tokens that the draft's vocabulary has as well


class Level(StrEnum):
    """How a finding stands."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, and what to do about it."""

    topic: str
    level: Level
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}" + (f"; {self.fix}" if self.fix else "")

    def as_json(self) -> dict[str, str]:
        """Plain JSON types."""
        return {"topic": self.topic, "level": self.level.value, "text": self.text, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """A draft model's tokenizer beside the target's."""

    same: bool
    mode: str  # as configured: same, intersection or text
    draft_tokens: int  # of the vocabularies
    target_tokens: int
    shared: float = 1.0  # share of the target's tokens that the draft's vocabulary has as well
    shared_of_text: float = 1.0  # of the tokens of a sample of text
    reason: str = ""  # why they differ

    @property
    def fitting(self) -> str:
        """The mode that fits: through shared ids where nearly all of a text has them, else through text."""
        if self.same:
            return "same"
        return "intersection" if self.shared_of_text >= MOSTLY else "text"


def tokenizers(found: Tokenizers | None) -> Finding:
    """None: the drafter has no ids of its own."""
    topic = "tokenizer"
    if found is None:
        return Finding(topic, Level.GOOD, "the drafter proposes ids of the target, so there is nothing to fit")
    sizes = f"{found.draft_tokens} and {found.target_tokens} tokens"
    if found.same:
        return Finding(topic, Level.GOOD, f"draft and target share it ({sizes})")
    share = f"{found.shared:.0%} of the target's tokens and {found.shared_of_text:.0%} of a sample text are shared"
    text = f"they differ ({sizes}): {found.reason.rstrip('.')}; {share}"
    if found.mode == "same":
        return Finding(topic, Level.BAD, text, f"set drafter.tokenizers: {found.fitting}")
    if found.mode != found.fitting:
        return Finding(topic, Level.WARNING, text, f"drafter.tokenizers: {found.fitting} fits better than {found.mode}")
    return Finding(topic, Level.WARNING, text, f"{found.mode} translates; a draft of the target's family accepts more")


def sizes(draft_bytes: int, target_bytes: int) -> Finding:
    """Bytes of weights that a pass of each reads, about."""
    topic = "size"
    if draft_bytes == 0:
        return Finding(topic, Level.GOOD, "the drafter has no weights of its own")
    ratio = target_bytes / draft_bytes
    text = f"draft {_megabytes(draft_bytes)}, target {_megabytes(target_bytes)}: {ratio:.1f} to 1"
    if ratio * LARGE_DRAFT < 1.0:
        return Finding(topic, Level.WARNING, text, "take a smaller draft, or weights: int4 for it")
    return Finding(topic, Level.GOOD, text)


def steps(draft_token_s: float, draft_s: float, row_s: float, rows_s: float, k: int) -> list[Finding]:
    """A draft of k tokens, a target pass of one row (`row_s`) and one of k + 1 rows (`rows_s`)."""
    per_token = (draft_s + k * draft_token_s) / k
    share, wide = per_token / row_s, rows_s / row_s
    draft = f"a draft token takes {1000 * per_token:.2f} ms, {share:.0%} of a target pass of {1000 * row_s:.2f} ms"
    slow = share > SLOW_STEP
    passes = f"a target pass of {k + 1} rows takes {wide:.2f} times as long as one of 1 row"
    return [
        Finding("draft step", Level.WARNING if slow else Level.GOOD, draft,
                "take a smaller draft or lower weights for it, or give it cores of its own" if slow else ""),
        Finding("target pass", Level.WARNING if wide > WIDE_PASS else Level.GOOD, passes,
                "the target computes more than it reads: use kernels: native, fewer streams, or a shorter draft"
                if wide > WIDE_PASS else ""),
    ]


def acceptance(rates: Sequence[float], num_drafted: int, coverage: float = 1.0) -> Finding:
    """`rates`: of each position, given that those before it were accepted; `coverage`: share of rounds with a draft."""
    topic = "acceptance"
    if num_drafted == 0:
        return Finding(topic, Level.BAD, "nothing was drafted on the sample", "check the draft's log for its errors")
    shown = " ".join(f"{rate:.2f}" for rate in rates)
    text = f"by position {shown} ({num_drafted} draft tokens checked)"
    if coverage < 1.0:
        text += f", and {coverage:.0%} of the rounds had a draft at all"
    if rates[0] < UNLIKELY:
        return Finding(topic, Level.WARNING, text, "train a draft on the target's own text (`outrider train`), or take "
                       "one of the target's family")
    return Finding(topic, Level.GOOD, text)


def verdict(found: Forecast, free: Forecast, sure: Forecast, up_to: int, hop_ms: float) -> Finding:
    """The last word. `free`: if drafting took no time; `sure`: if nine of ten draft tokens were accepted."""
    topic = "verdict"
    place = f" with {hop_ms:g} ms a hop" if hop_ms else ""
    if found.pays:
        loads = f"up to about {up_to} streams" if up_to > 1 else "for one stream at a time"
        text = f"k = {found.k}, about {found.speedup:.2f} times as fast as the target alone, {loads}"
        fix = f"set speculation.lookahead: {found.k}, or auto"
        return Finding(topic, Level.GOOD, f"it will pay{place}: {text}", fix)
    best = f"the best k is {found.k}, {found.speedup:.2f} times as fast" if found.k else "every k is slower than none"
    if not free.pays and not sure.pays:
        fix = "neither a faster nor a better draft alone would help; decode plainly (speculation.enabled: false)"
    elif free.speedup >= sure.speedup:
        fix = f"the draft's time is what costs most: were it free, k = {free.k} would give {free.speedup:.2f}"
    else:
        fix = f"acceptance is what lacks most: at 0.9, k = {sure.k} would give {sure.speedup:.2f}"
    return Finding(topic, Level.BAD, f"it will not pay{place}: {best}", fix)


def as_json(findings: Sequence[Finding], found: Forecast, measured: Mapping[str, object]) -> dict[str, object]:
    """One flat object."""
    return {
        "pays": found.pays, "k": found.k if found.pays else 0, "expected_speedup": round(found.speedup, 3),
        "best_k": found.k, "speedup_by_k": [round(value, 3) for value in found.by_k], **measured,
        "findings": [finding.as_json() for finding in findings],
    }


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.2g} MB"
