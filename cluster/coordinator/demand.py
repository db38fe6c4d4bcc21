"""How much the rounds of a coordinator want of each pool, and how often they did without: what drafts scale on."""

from __future__ import annotations

from collections import Counter

from actors.messages import Verdict

SLOW = 3.0  # times as long as it takes alone: such a draft was waited for
FORGET = 1.00001  # for each draft: another model, or another machine, may be slower from now on


class Demand:
    """Counts that only grow, of all requests of one coordinator. Pools are known by their place in the ladder."""

    def __init__(self) -> None:
        self.rounds = 0
        self.wanted: Counter[int] = Counter()  # rounds whose plan had the pool in it
        self.starved: Counter[int] = Counter()  # of these, the ones that went without it, or waited for it
        self._fastest_s: dict[int, float] = {}  # a draft's pass in a pool that is not busy

    def count(self, wanted: tuple[int, ...], lacked: set[int]) -> None:
        """A round is over: which pools it wanted, and which of them did not serve it well."""
        self.rounds += 1
        self.wanted.update(wanted)
        self.starved.update(lacked.intersection(wanted))

    def was_slow(self, pool: int, verdict: Verdict) -> bool:
        """Whether the draft of `pool` took far longer than one does there alone: it queued, or shared its passes.

        Relative to the pool's own best, since a draft that is always slow gets no faster from more replicas.
        """
        pass_s, model_s = verdict.draft_pass_seconds, verdict.draft_model_seconds
        if verdict.num_draft == 0 or pass_s <= 0 or model_s <= 0:
            return False
        fastest_s = min(self._fastest_s.get(pool, pass_s) * FORGET, pass_s)
        self._fastest_s[pool] = fastest_s
        num_passes = model_s / pass_s
        return verdict.draft_seconds > SLOW * num_passes * fastest_s
