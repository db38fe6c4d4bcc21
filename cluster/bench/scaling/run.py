"""`bench scaling` from a script to findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cluster.bench.ladder.bench import EMULATED
from cluster.bench.ladder.stage import Stage
from cluster.bench.report import Findings, Goal
from cluster.bench.scaling.script import DRAFT, SCRIPT, TARGET, Phase, config
from cluster.bench.scaling.trace import Sample, Trace, serve_sample
from cluster.bench.serve.asks import OK, Ask, Outcome
from cluster.bench.serve.client_process import Closed, Staged, put_load
from cluster.bench.serve.service import Service
from cluster.bench.texts import BUILT_IN
from cluster.bench.watch import Watcher

NAME = "scaling"
NUM_TOKENS = 96  # of an answer; a plain one takes about seven seconds
SETTLED_S = 4.0  # the end of a phase, in which its numbers count
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
    findings: Findings

    def starts(self) -> list[float]:
        """When each phase begins, and when the last one ends, s since the load began."""
        return [0.0, *accumulate(phase.duration_s for phase in self.phases)]

    def of_phase(self, index: int) -> list[Outcome]:
        """The requests that were sent in a phase."""
        start, end = self.starts()[index : index + 2]
        return [each for each in self.outcomes if start <= each.due_s - self.begin_s < end]


def run(stage: Stage, watcher: Watcher, phases: Sequence[Phase] = SCRIPT) -> ScalingBench:
    """Serve emulated devices, play the phases, watch the pools."""
    settings = config()
    pools = {tier.name: f"tier{index}-{tier.name}" for index, tier in enumerate(settings.tiers)}
    with stage.services({NAME: settings}) as services:
        watcher.section("load script, s", round(sum(phase.duration_s for phase in phases)))
        begin_s, outcomes, samples = _watched(services[NAME], phases, pools, watcher)
    bench = ScalingBench(phases, Trace(samples), outcomes, begin_s, Findings())
    _find(bench)
    return bench


def _watched(
    service: Service, phases: Sequence[Phase], pools: dict[str, str], watcher: Watcher
) -> tuple[float, list[Outcome], list[Sample]]:
    outcomes: list[Outcome] = []
    samples: list[Sample] = []
    begin_s = time.monotonic()
    due_s, shown = 0.0, 0
    for outcome in put_load(service.address, _load(phases)):
        if outcome is not None:
            outcomes.append(outcome)
        at_s = time.monotonic() - begin_s
        if at_s >= due_s:
            samples.append(serve_sample(NAME, pools, at_s))
            due_s = at_s + 0.5
        while shown < at_s:
            watcher.run_done()
            shown += 1
    return begin_s, outcomes, samples


def _load(phases: Sequence[Phase]) -> Staged:
    asks = {
        drafts: [
            Ask(
                name="drafted" if drafts else "plain", turns=(("user", prompt.text),), max_tokens=NUM_TOKENS,
                ignore_eos=True, speculation=drafts,
            ) for prompt in BUILT_IN
        ] for drafts in (True, False)
    }
    parts, start_s = [], 0.0
    for phase in phases:
        for drafts, number in ((True, phase.num_drafted), (False, phase.num_plain)):
            if number:
                parts.append((start_s, Closed(asks[drafts], number, phase.duration_s, NAME)))
        start_s += phase.duration_s
    return Staged(parts)


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
        end = starts[index + 1]
        settled = bench.trace.between(max(starts[index], end - SETTLED_S), end)
        outcomes = bench.of_phase(index)
        rows.append({
            "name": phase.name, "start_s": starts[index], "drafted": phase.num_drafted, "plain": phase.num_plain,
            "drafts": settled.last(DRAFT), "targets": settled.last(TARGET),
            "drafts_wanted": phase.drafts, "targets_wanted": phase.targets,
            "as_wanted": (settled.last(DRAFT), settled.last(TARGET)) == (phase.drafts, phase.targets),
            "requests": len(outcomes), "failed": sum(each.status != OK for each in outcomes),
            "tokens": sum(each.num_tokens for each in outcomes),
            "degraded_rounds": sum(each.figures.num_degraded for each in outcomes if each.figures is not None),
        })
    return rows
