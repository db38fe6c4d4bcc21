"""Small ladders of emulated pools."""

from __future__ import annotations

from dataclasses import replace

from actors.emulation.voice import ROOT, Speaker, extend
from actors.spec import EmulationSpec, Voice
from cluster.simulation.growing import NUM_WORDS
from cluster.simulation.load import Closed, Load
from cluster.simulation.preset import large_pair
from cluster.simulation.scenario import FixedLookahead, PoolSpec, Scenario

SMALL, MEDIUM, TARGET = Voice("small", agreement=(0.55,)), Voice("medium", agreement=(0.9,)), Voice("target")


def pair(load: Load, lookahead: int, *, drafters: int = 2, targets: int = 2, num_tokens: int = 24) -> Scenario:
    return large_pair(
        load, FixedLookahead(lookahead), drafters=drafters, targets=targets, num_tokens=num_tokens
    )


def triple(load: Load, lookahead: int, window: int) -> Scenario:
    return Scenario(
        tiers=(
            PoolSpec("small", EmulationSpec((SMALL, MEDIUM, TARGET), 0.0004, 64), 2),
            PoolSpec("medium", EmulationSpec((MEDIUM, TARGET), 0.008, 64), 2),
            PoolSpec("target", EmulationSpec((TARGET,), 0.0714, 64), 2),
        ),
        windows=(window,), load=load, policy=FixedLookahead(lookahead), num_tokens=24,
    )


def alone(scenario: Scenario, index: int) -> list[int]:
    """What the target writes by itself after the prompt of a sequence."""
    speaker = Speaker(scenario.tiers[-1].emulation.voices, NUM_WORDS)
    prefix = ROOT
    for token in scenario.prompt(index):
        prefix = extend(prefix, token)
    written: list[int] = []
    for _ in range(scenario.num_tokens):
        written.append(speaker.choose(prefix).best)
        prefix = extend(prefix, written[-1])
    return written


def one_stream(lookahead: int, num_tokens: int) -> Scenario:
    scenario = pair(Closed(1, 1), lookahead, drafters=1, targets=1, num_tokens=num_tokens)
    return replace(scenario, num_prompt_tokens=1)
