"""A plan against the running service: the same settings, predicted in simulated time and measured through gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.bench.ladder.bench import LadderBench
from cluster.bench.ladder.measured import Variant, speedup
from cluster.bench.ladder.through import PLAIN, learn_texts, take_turns
from cluster.config import Config, load_config
from cluster.planning.costs import Costs
from cluster.planning.search import Choice, Load, scenario
from cluster.simulation.outcome import Outcome
from cluster.simulation.scenario import simulate

NUM_SIMULATED = 30  # answers: the error shall be the model's, not that of few drawn texts


@dataclass(frozen=True, slots=True)
class Checked:
    """One setting, predicted and measured."""

    name: str
    predicted: float  # speed-up over the target alone
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.predicted / self.measured - 1.0

    def as_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {"name": self.name, "predicted": round(self.predicted, 4), "measured": round(self.measured, 4),
                "error": round(self.error, 4)}


def settings_checked(choices: Sequence[Choice], best: Choice) -> list[Choice]:
    """Three of the settings that were simulated: the best, the shortest chain, and the longest that overlaps."""
    pairs = [choice for choice in choices if choice.tiers == best.tiers and choice.drafters == best.drafters]
    chains = sorted((each for each in pairs if not each.overlap), key=lambda each: each.lookahead)
    ahead = sorted((each for each in pairs if each.overlap), key=lambda each: each.lookahead)
    return list(dict.fromkeys([best, *chains[:1], *ahead[-1:], *chains[-1:], *ahead[:1]]))[:3]


def predicted(costs: Costs, choice: Choice, num_tokens: int) -> float:
    """Speed-up of one stream, of tokens after an answer's first block."""
    load = Load(num_tokens=num_tokens, sequences=NUM_SIMULATED)
    return _pace_s(simulate(scenario(costs, Choice(()), load))) / _pace_s(simulate(scenario(costs, choice, load)))


def _pace_s(outcome: Outcome) -> float:
    seconds = sum(stream.times_s[-1] - stream.times_s[0] for stream in outcome.streams)
    return seconds / sum(sum(stream.counts[1:]) for stream in outcome.streams)


def check(bench: LadderBench, config: Config, costs: Costs, choices: Sequence[Choice]) -> list[Checked]:
    """Serve `config`, whose tiers are those of `costs`, with each of `choices`, one after the other."""
    found: list[Checked] = []
    num_prompts, num_tokens = bench.settings.num_prompts, bench.settings.num_tokens
    bench.watcher.section("predicting", len(choices))
    expected: list[float] = []
    for choice in choices:  # before anything is served: simulated and real event loops must not take turns
        expected.append(predicted(costs, choice, num_tokens))
        bench.watcher.run_done()
    for number, choice in enumerate(choices):
        name = f"plan{number}"
        with bench.services(**{name: _with(config, choice)}) as services:
            service = services[name]
            texts = learn_texts(bench, service, "planned target", num_prompts, num_tokens)
            plain, measured = take_turns(
                bench, texts, [(service, PLAIN, bench.settings.plain_tokens),
                               (service, Variant(choice.name(costs), choice.lookahead), num_tokens)], num_prompts,
            )
        found.append(Checked(choice.name(costs), expected[number], speedup(plain, measured)))
    return found


def _with(config: Config, choice: Choice) -> Config:
    changed: dict[str, Any] = config.model_dump(mode="json")
    speculation = changed["speculation"]
    speculation |= {"lookahead": choice.lookahead, "max_lookahead": max(speculation["max_lookahead"], choice.lookahead)}
    speculation["overlap"] = None
    if choice.overlap:
        speculation["overlap"] = {"branches": 2 * (choice.lookahead + 1), "guesses": 2, "tokens": choice.lookahead}
    return load_config(changed, environ={})
