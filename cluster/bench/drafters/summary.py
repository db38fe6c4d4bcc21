"""From runs to figures: pure functions. Every figure is of the runs it is given, whatever they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.bench.drafters.runs import Run
from cluster.bench.stats import Spread, paired_ratio, perplexity

OVERALL = "overall"
ALONE = "alone"  # the target without a drafter


@dataclass(frozen=True, slots=True)
class Cell:
    """One drafter at one temperature, in one category or overall."""

    kind: str
    temperature: float
    category: str
    num_runs: int
    num_rounds: int
    num_drafted: int
    mat: float  # mean committed tokens per round
    acceptance: tuple[float, ...]  # entry i: of the drafts with a token i, the share where it was accepted
    speedup: Spread | None  # over the target alone, question by question; None: no answer outlasted its first round
    tokens_per_s: float | None
    draft_share: float | None  # seconds of drafting per drafted token, over the target's per pass

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "kind": self.kind, "temperature": self.temperature, "category": self.category, "runs": self.num_runs,
            "rounds": self.num_rounds, "drafted": self.num_drafted, "mat": round(self.mat, 3),
            "acceptance_by_position": [round(share, 3) for share in self.acceptance],
            "speedup": None if self.speedup is None else self.speedup.as_json(3),
            "tokens_per_s": None if self.tokens_per_s is None else round(self.tokens_per_s, 2),
            "draft_share_of_target_pass": None if self.draft_share is None else round(self.draft_share, 4),
        }


def cells(kind: str, temperature: float, runs: Sequence[Run], alone: Sequence[Run]) -> list[Cell]:
    """One cell per category, in the order in which they come, then one over all. `alone` answers the same questions."""
    categories = list(dict.fromkeys(run.category for run in runs))
    found = [_cell(kind, temperature, category, _of(runs, category), _of(alone, category)) for category in categories]
    return [*found, _cell(kind, temperature, OVERALL, runs, alone)]


def _of(runs: Iterable[Run], category: str) -> list[Run]:
    return [run for run in runs if run.category == category]


def _cell(kind: str, temperature: float, category: str, runs: Sequence[Run], alone: Sequence[Run]) -> Cell:
    figures = [run.figures for run in runs]
    num_rounds, num_drafted = sum(f.rounds for f in figures), sum(f.drafted for f in figures)
    seconds, tokens = sum(run.steady_s for run in runs), sum(run.steady_tokens for run in runs)
    draft_s, verify_s = sum(f.draft_s for f in figures), sum(f.verify_s for f in figures)
    return Cell(
        kind, temperature, category, len(runs), num_rounds, num_drafted,
        mat=sum(f.committed for f in figures) / num_rounds if num_rounds else 0.0,
        acceptance=by_position(runs), speedup=speedup(runs, alone),
        tokens_per_s=tokens / seconds if tokens else None,
        draft_share=(draft_s / num_drafted) / (verify_s / num_rounds) if num_drafted and verify_s else None,
    )


def by_position(runs: Sequence[Run]) -> tuple[float, ...]:
    """[longest draft] of the drafts that had a token at a position, the share in which it was accepted."""
    longest = max((len(run.figures.drafted_at) for run in runs), default=0)

    def total(counts: Iterable[Sequence[int]], position: int) -> int:
        return sum(each[position] for each in counts if position < len(each))

    drafted = [total((run.figures.drafted_at for run in runs), i) for i in range(longest)]
    accepted = [total((run.figures.accepted_at for run in runs), i) for i in range(longest)]
    return tuple(a / d for a, d in zip(accepted, drafted, strict=True) if d)


def speedup(runs: Sequence[Run], alone: Sequence[Run]) -> Spread | None:
    """Seconds per token of the target alone over those of the ladder, question by question."""
    own = {run.number: run.seconds_per_token for run in runs}
    pairs = [(run.seconds_per_token, own.get(run.number)) for run in alone]
    both = [(theirs, ours) for theirs, ours in pairs if theirs is not None and ours is not None]
    return paired_ratio([theirs for theirs, _ in both], [ours for _, ours in both]) if both else None


@dataclass(frozen=True, slots=True)
class Quality:
    """A lossy policy beside the exact rule: the same ladder, the same questions."""

    policy: str
    temperature: float
    mat: float
    exact_mat: float
    speedup: Spread | None  # over the exact rule
    relaxed: float  # of the accepted tokens, the share that the exact rule would have refused
    perplexity: float  # of its text under the target
    exact_perplexity: float
    identical: float | None  # share of tokens that are the exact text's, place by place; None: texts are drawn

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {
            "policy": self.policy, "lossy": True, "temperature": self.temperature, "mat": round(self.mat, 3),
            "exact_mat": round(self.exact_mat, 3),
            "speedup_over_exact": None if self.speedup is None else self.speedup.as_json(3),
            "relaxed_share_of_accepted": round(self.relaxed, 4), "perplexity": round(self.perplexity, 4),
            "exact_perplexity": round(self.exact_perplexity, 4),
            "perplexity_ratio": round(self.perplexity / self.exact_perplexity, 4),
            "identical_tokens": None if self.identical is None else round(self.identical, 4),
        }


def quality(policy: str, temperature: float, lossy: Sequence[Run], exact: Sequence[Run]) -> Quality:
    """Both must carry log-probabilities and answer the same questions in the same order."""
    def mat(runs: Sequence[Run]) -> float:
        return sum(run.figures.committed for run in runs) / sum(run.figures.rounds for run in runs)

    def of_text(runs: Sequence[Run]) -> float:
        return perplexity([-logprob for run in runs for logprob in run.logprobs])

    accepted = sum(run.figures.accepted for run in lossy)
    return Quality(
        policy, temperature, mat(lossy), mat(exact), speedup(lossy, exact),
        sum(run.figures.relaxed for run in lossy) / accepted if accepted else 0.0, of_text(lossy), of_text(exact),
        identical(lossy, exact) if temperature == 0.0 else None,
    )


def identical(runs: Sequence[Run], others: Sequence[Run]) -> float:
    """Of all places in either text, the share that holds the same token in both. 1 for no text at all."""
    same = places = 0
    for run, other in zip(runs, others, strict=True):
        same += sum(a == b for a, b in zip(run.ids, other.ids, strict=False))
        places += max(len(run.ids), len(other.ids))
    return same / places if places else 1.0
