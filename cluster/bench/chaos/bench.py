"""One run after another: load, a fault, what the clients saw, and whether the service is whole and idle afterwards."""

from __future__ import annotations

import time

from cluster.bench.chaos.faults import Promise
from cluster.bench.chaos.judge import judge
from cluster.bench.chaos.load import Ask, Clients, Load, answers, asks, long_asks
from cluster.bench.chaos.run import Run
from cluster.bench.chaos.schedule import Blow
from cluster.bench.chaos.site import TARGET, NotWhole, Site
from cluster.bench.chaos.strikes import RELAYED, STRIKES, Arms, NoVictim, Struck
from cluster.bench.chaos.timeline import Pace, pace, recovery_s

MAX_TOKENS = 96  # of an answer
BEFORE_S = 0.6  # of load, over which the pace before the fault is taken
SPOKEN_S = 60.0  # until every client has tokens
RECOVER_S = 60.0  # after the fault, or after its last replica is back, a service has recovered within this time
LONG_TOKENS = 600  # of a prompt that fills KV memory


class Bench:
    """Runs blows on one service."""

    def __init__(self, site: Site, num_streams: int, max_tokens: int = MAX_TOKENS) -> None:
        self.site = site
        self._num_streams = num_streams
        self.asks = asks(max_tokens)
        self._clients = Clients()
        self.arms = Arms(site, self._clients, self.asks, self._long_asks())
        self.expected: dict[str, tuple[int, ...]] = {}

    def _long_asks(self) -> tuple[Ask, ...]:
        tier, limits = self.site.config.target, self.site.config.limits
        num_tokens = min(LONG_TOKENS, limits.max_prompt_tokens)
        return long_asks(-(-2 * tier.kv_tokens * self.site.wanted(TARGET) // num_tokens), num_tokens)

    def close(self) -> None:
        """End the clients."""
        self._clients.close()

    def learn(self) -> None:
        """What the target alone answers, and that drafts change nothing while nobody disturbs them."""
        wanted = (*self.asks, *self.arms.long_asks)
        self.expected = answers(self._clients, self.site.address, wanted, speculation=False)
        drafted = answers(self._clients, self.site.address, self.asks, speculation=True)
        if drafted != {ask.name: self.expected[ask.name] for ask in self.asks}:
            raise RuntimeError("an undisturbed service answers otherwise with drafts than without")

    def run(self, blow: Blow) -> Run:
        """One blow under load. Raises `NotWhole` when there is no service to strike."""
        name, faults = blow.fault.name, []
        self.site.wait_whole()
        self.relay(name in RELAYED)
        load = self.load(resumed=blow.fault.promise is Promise.CUT)
        load.start()
        spoken = load.wait_spoken(SPOKEN_S)
        time.sleep(max(BEFORE_S, blow.after_s))
        struck, why_not, whole_s = Struck(), "" if spoken else "the load never got under way", 0.0
        before = pace(load.ticks, struck.at_s - BEFORE_S, struck.at_s)
        try:
            if spoken:
                struck = STRIKES[name](self.arms, blow)
                before = pace(load.ticks, struck.at_s - BEFORE_S, struck.at_s)
                self._undo(struck, blow)
            self._await_recovery(load, before, struck.at_s, struck.at_s)
            struck.join()
            self.site.wait_whole()
            whole_s = time.monotonic() - struck.at_s
            self._await_recovery(load, before, struck.at_s, time.monotonic())
        except NoVictim as error:
            why_not = str(error)
        except NotWhole as error:
            faults.append(str(error))
        found = recovery_s(load.ticks, before, struck.at_s, time.monotonic())
        load.stop()
        struck.join()
        faults += [f"not freed: {line}" for line in self.site.wait_idle()]
        faults += self.site.wait_none_stopped()
        judgement = judge([*load.streams, *struck.streams], self.expected, blow.fault, struck.at_s)
        if not why_not and not judgement.num_under_way:
            why_not = "no stream was under way when the fault came"
        if found is None and not why_not:
            faults.append(f"the pace was not back after {time.monotonic() - struck.at_s:.0f} s")
        return Run(blow, judgement, found, before, whole_s, tuple(faults), why_not)

    def load(self, *, resumed: bool) -> Load:
        """The streams of every run, not begun yet. `resumed`: some are read by the client that goes on by itself."""
        return Load(
            self._clients, self.site.address, self.asks, self._num_streams, self._num_streams // 3 if resumed else 0
        )

    def relay(self, on: bool) -> None:
        """Whether the wire of leases that are granted from now on goes through relays."""
        for role in self.site.pools:
            self.site.tell(role, "relay", on)

    def _undo(self, struck: Struck, blow: Blow) -> None:
        time.sleep(max(0.0, struck.at_s + blow.lasts_s - time.monotonic()))
        struck.undo()

    def _await_recovery(self, load: Load, before: Pace, blow_s: float, since_s: float) -> None:
        while time.monotonic() < since_s + RECOVER_S:
            if recovery_s(load.ticks, before, blow_s, time.monotonic()) is not None:
                return
            time.sleep(0.1)
