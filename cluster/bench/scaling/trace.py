"""How many replicas of each pool there were, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the pools."""

    at_s: float  # since the load began
    running: Mapping[str, int]
    other: Mapping[str, int]  # replicas that start or drain


@dataclass(frozen=True, slots=True)
class Trace:
    """All looks, in order."""

    samples: Sequence[Sample]

    def until(self, end_s: float) -> Trace:
        """Those up to a time."""
        return Trace([sample for sample in self.samples if sample.at_s <= end_s])

    def most(self, pool: str) -> int:
        """Replicas that ran at most."""
        return max((sample.running.get(pool, 0) for sample in self.samples), default=0)

    def least(self, pool: str) -> int:
        """Replicas that ran at least."""
        return min((sample.running.get(pool, 0) for sample in self.samples), default=0)

    def last(self, pool: str) -> int:
        """Replicas that ran at the end."""
        return self.samples[-1].running.get(pool, 0) if self.samples else 0

    def first_at(self, pool: str, number: int) -> float | None:
        """When so many ran (s since the load began); None: never."""
        return next((sample.at_s for sample in self.samples if sample.running.get(pool, 0) == number), None)


def serve_sample(application: str, pools: Mapping[str, str], at_s: float) -> Sample:
    """Now, from Serve's controller; `pools`: deployments by name. Asks no pool anything: that could wake it up."""
    from ray import serve
    from ray.serve._private.common import ReplicaState

    deployments = serve.status().applications[application].deployments
    states = {
        name: {ReplicaState(state).value: number for state, number in deployments[deployment].replica_states.items()}
        for name, deployment in pools.items()
    }
    running = {name: counts.get("RUNNING", 0) for name, counts in states.items()}
    return Sample(at_s, running, {name: sum(states[name].values()) - running[name] for name in states})
