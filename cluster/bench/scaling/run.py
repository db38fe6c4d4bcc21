"""`bench scaling` from a script to findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.bench.ladder.bench import EMULATED
from cluster.bench.ladder.stage import Stage
from cluster.bench.report import Findings, Goal
from cluster.bench.scaling.script import DRAFT, SCRIPT, TARGET, Phase, config
from cluster.bench.scaling.trace import Sample, Trace, serve_sample
from cluster.bench.serve.asks import OK, Ask, Outcome
from cluster.bench.serve.client_process import Steered, put_load
from cluster.bench.serve.service import Service
from cluster.bench.texts import BUILT_IN
from cluster.bench.watch import Watcher

NAME = "scaling"
NUM_TOKENS = 96  # of an answer; a plain one takes about seven seconds
HELD_S = 2.0  # as many replicas as a phase wants, for so long: it may end
SAMPLE_S = 0.5
GOALS = {
    "failed_requests": Goal(at_most=0), "differing_texts": Goal(at_most=0), "phases_as_wanted": Goal(at_least=1),
    "most_drafts": Goal(at_least=3), "most_targets": Goal(at_least=3), "fewest_drafts": Goal(at_most=0),
}


@dataclass(frozen=True)
class ScalingBench:
    """What was done and found."""

    phases: Sequence[Phase]
    trace: Trace
    outcomes: Sequence[Outcome]
    begin_s: float  # of the load, on the machine's monotonic clock
    ends_s: Sequence[float]  # of the phases, since then
    findings: Findings

    def starts(self) -> list[float]:
        """When each phase began, and when the last one ended, s since the load began."""
        return [0.0, *self.ends_s]

    def of_phase(self, index: int) -> list[Outcome]:
        """The requests that were sent in a phase."""
        start, end = self.starts()[index : index + 2]
        return [each for each in self.outcomes if start <= each.due_s - self.begin_s < end]


def run(stage: Stage, watcher: Watcher, phases: Sequence[Phase] = SCRIPT) -> ScalingBench:
    """Serve emulated devices, play the phases, watch the pools."""
    settings = config()
    pools = {tier.name: f"tier{index}-{tier.name}" for index, tier in enumerate(settings.tiers)}
    with stage.services({NAME: settings}) as services:
        begin_s, ends_s, outcomes, samples = _watched(services[NAME], phases, pools, watcher)
    bench = ScalingBench(phases, Trace(samples), outcomes, begin_s, ends_s, Findings())
    _find(bench)
    return bench


def _watched(
    service: Service, phases: Sequence[Phase], pools: dict[str, str], watcher: Watcher
) -> tuple[float, list[float], list[Outcome], list[Sample]]:
    """When the load began, when each phase ended since then, and what came of it."""
    outcomes: list[Outcome] = []
    samples: list[Sample] = []
    ends_s: list[float] = []
    load = Steered([_asks(speculation=True), _asks(speculation=False)], NAME)
    load.steer([phases[0].num_drafted, phases[0].num_plain])
    watcher.section("load script, phases", len(phases))
    begin_s = time.monotonic()
    due_s = 0.0
    for outcome in put_load(service.address, load):
        if outcome is not None:
            outcomes.append(outcome)
        at_s = time.monotonic() - begin_s
        if at_s >= due_s:
            samples.append(serve_sample(NAME, pools, at_s))
            due_s = at_s + SAMPLE_S
        if len(ends_s) == len(phases) or not over(phases[len(ends_s)], ends_s[-1] if ends_s else 0.0, samples):
            continue
        ends_s.append(at_s)
        watcher.run_done()
        if len(ends_s) == len(phases):
            load.end()
        else:
            following = phases[len(ends_s)]
            load.steer([following.num_drafted, following.num_plain])
    return begin_s, ends_s, outcomes, samples


def over(phase: Phase, start_s: float, samples: Sequence[Sample]) -> bool:
    """Whether a phase that began at `start_s` ends with the last sample: it is as it should be, or was waited for."""
    now_s = samples[-1].at_s
    if now_s < start_s + phase.least_s:
        return False
    held = [each for each in samples if each.at_s >= max(start_s, now_s - HELD_S)]
    if all((each.running[DRAFT], each.running[TARGET]) == (phase.drafts, phase.targets) for each in held):
        return True
    return now_s >= start_s + phase.least_s + phase.patience_s


def _asks(*, speculation: bool) -> list[Ask]:
    return [
        Ask(
            name="drafted" if speculation else "plain", turns=(("user", prompt.text),), max_tokens=NUM_TOKENS,
            ignore_eos=True, speculation=speculation,
        ) for prompt in BUILT_IN
    ]


def _find(bench: ScalingBench) -> None:
    findings, trace, outcomes = bench.findings, bench.trace, bench.outcomes
    failed = [outcome for outcome in outcomes if outcome.status != OK]
    texts: dict[str, set[str]] = {}
    for outcome in outcomes:
        if outcome.status == OK:
            texts.setdefault(outcome.ask.turns[0][1], set()).add(outcome.text)
    rows = phase_rows(bench)
    findings.add("requests", len(outcomes))
    findings.add("failed_requests", len(failed))
    findings.add("differing_texts", sum(len(each) - 1 for each in texts.values()))
    findings.add("phases_as_wanted", sum(bool(row["as_wanted"]) for row in rows) / len(rows))
    for pool in (DRAFT, TARGET):
        findings.add(f"most_{pool}s", trace.most(pool))
        findings.add(f"fewest_{pool}s", trace.least(pool))
    figures = [outcome.figures for outcome in outcomes if outcome.figures is not None]
    findings.add("lease_moves", sum(each.num_lease_moves for each in figures))
    findings.add("rounds_without_a_wanted_draft", sum(each.num_degraded for each in figures))
    none_at = trace.first_at(DRAFT, 0)
    if none_at is not None:
        back = [s.at_s for s in trace.samples if s.at_s > none_at and s.running[DRAFT]]
        starts = [start for start in bench.starts() if start > none_at]
        if back and starts:
            findings.add("draft_back_s", max(0.0, back[0] - starts[0]))
    findings.skip("draft_back_s", "the drafts never went to none and came back")
    findings.details |= {
        "phases": rows, "measured_on": EMULATED, "failures": sorted({f"{o.status}: {o.detail}" for o in failed}),
        "trace": [{"at_s": round(s.at_s, 2), **s.running, **{f"{name}_other": n for name, n in s.other.items()}}
                  for s in trace.samples],
    }


def phase_rows(bench: ScalingBench) -> list[dict[str, object]]:
    """Each phase: its load, its requests, and the replicas in its last seconds."""
    starts, rows = bench.starts(), []
    for index, phase in enumerate(bench.phases):
        settled = bench.trace.until(starts[index + 1])
        outcomes = bench.of_phase(index)
        rows.append({
            "name": phase.name, "start_s": round(starts[index], 1),
            "lasted_s": round(starts[index + 1] - starts[index], 1),
            "drafted": phase.num_drafted, "plain": phase.num_plain,
            "drafts": settled.last(DRAFT), "targets": settled.last(TARGET),
            "drafts_wanted": phase.drafts, "targets_wanted": phase.targets,
            "as_wanted": (settled.last(DRAFT), settled.last(TARGET)) == (phase.drafts, phase.targets),
            "requests": len(outcomes), "failed": sum(each.status != OK for each in outcomes),
            "tokens": sum(each.num_tokens for each in outcomes),
            "degraded_rounds": sum(each.figures.num_degraded for each in outcomes if each.figures is not None),
        })
    return rows
