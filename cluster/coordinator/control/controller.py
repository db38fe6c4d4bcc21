"""Lookahead control: after every round the best plan for the next, by measured goodput.

One controller serves all sequences of a coordinator. It holds no clock and no lock: call it from one thread, with the
time as an argument. What is learned (acceptance of a pair of tiers, cost of a replica's pass) is shared by its
sequences, so that exploring is paid once:

- *cold*: with no costs known, k follows the rules of thumb, for as many sequences as fit into a small pass;
- *reach*: where the model wants passes much larger than any seen, some sequences go ahead and the others wait for
  what that costs;
- *trial*: where few passes of another k were seen and it might be as good, all sequences use it for a round;
- *probe*: where speculation does not pay, one short draft in many rounds tells whether acceptance has recovered, for
  less than 1 % of the target's time; far rarer still where no acceptance could make it pay. A change of load needs no
  probe, since the costs at fewer rows are known.
"""

from __future__ import annotations

import math
from dataclasses import replace

from actors.messages import AheadPlan, DraftShape
from cluster.coordinator.control.acceptance import HIGHEST, Acceptance, PoolAcceptance, rule_of_thumb
from cluster.coordinator.control.ahead import coverage
from cluster.coordinator.control.choice import Choice, Scene, best_chain, best_of_all
from cluster.coordinator.control.costs import NOISE, Average
from cluster.coordinator.control.goodput import chain_rates
from cluster.coordinator.control.plan import PLAIN, ControlLimits, Reason, RoundPlan, RoundReport, TreeKind
from cluster.coordinator.control.replica import Fleet, Replica

GAIN = 1.03  # a choice must promise this much more than the present one to replace it
GAIN_KIND = 1.04  # the same, where it is of another kind: then more than one estimate is in doubt
STEP_K = 8  # most that a sequence drafts where the costs are not known
PROBE_K = 2
PROBE_SHARE = 0.007  # of the target's time, spent on probes
PROBE_MIN_ROUNDS = 10
PROBE_HOPELESS = 16  # times as rare where no acceptance could make speculation pay
PROBE_HOPEFUL = 4  # times as soon after a probe of which everything was accepted
TRIAL_SHARE = 0.006  # of the target's time, lost to trials
TRIAL_PLANS = 7  # of each sequence: the first ones only settle
TRIAL_PLANS_ALONE = 2  # of a sequence that has its target for itself
SETTLING = 2  # rounds of all sequences at another k: by then the groups in which they take turns have formed anew
TRIAL_KNOWN = 3.0  # rounds of all sequences that are knowledge enough
MOST = 0.7  # of the sequences must do a kind of rounds for its seconds to be that kind's
ALIKE = 0.1  # planned rows may be this far from those of equal plans, relative
TRIAL_AUDIT = 0.3  # rounds of plain decoding that must be known
TRIAL_ENOUGH = 2.5  # rounds of all sequences that a trial is for
DOUBT = 0.12  # of a round's seconds at a k near which nothing was measured, relative
REFRESH_ROUNDS = 24  # between searches over trees, overlaps and cascades
CROWD_MOVED = 1.25  # a change of load by this factor calls for such a search at once
KNOWN_CHECKS = 3  # a lower tier that served so often without reporting a pass has none (n-grams): it is free


class SequenceControl:
    """What the controller knows of one sequence; opaque to its caller."""

    def __init__(self, kind: str, num_tiers: int, max_lookahead: int) -> None:
        self.kind = kind
        self.max_lookahead = max_lookahead
        self.replica_ids: list[str | None] = [None] * num_tiers
        self.replicas: list[Replica | None] = [None] * num_tiers
        self.acceptance: dict[tuple[int, int], Acceptance] = {}
        self.choice = Choice()
        self.choice_made = Choice()  # of the latest plan: also a trial or a probe
        self.rows = 1  # of the latest plan, in the target
        self.used: tuple[int, ...] = ()  # rungs of the latest plan
        self.num_rounds = 0
        self.refresh_at = 0
        self.trial_id = 0
        self.trial_left = 0
        self.crowd = 0.0  # at the last search
        self.kind_news = 0  # `Replica.kind_news` at the last search
        self.was_alike = False  # when it planned: all sequences of the target planned as much
        # k of the last round, and rounds in a row of that k in which they did up to the verdict; None: no round yet
        self.settled: tuple[int, int] | None = None
        self.is_open = True


class Controller:
    """Plans the rounds of one coordinator's sequences."""

    def __init__(self, limits: ControlLimits) -> None:
        self._limits = limits
        self._fleet = Fleet()
        self._pools: dict[tuple[str, int, int], PoolAcceptance] = {}
        self._num_checks = [0] * limits.num_tiers
        self._middle_s = Average()
        self._ahead = [4.0, 4.0]  # hits, and hits that were predicted; both forget
        self._tree_trust = Average(40.0)
        self._probe_tier = 0  # lower tiers take turns

    # --- a sequence's life ------------------------------------------------------------------------

    def open(self, kind: str = "", max_lookahead: int | None = None) -> SequenceControl:
        """A new sequence. `kind` groups what has similar acceptance (greedy, sampled)."""
        cap = self._limits.max_lookahead
        cap = cap if max_lookahead is None else min(cap, max(0, max_lookahead))
        return SequenceControl(kind, self._limits.num_tiers, cap)

    def leased(self, sequence: SequenceControl, tier: int, replica_id: str | None) -> None:
        """The sequence holds this replica of a tier from now on; None: it holds none."""
        if not sequence.is_open or sequence.replica_ids[tier] == replica_id:
            return
        old_id, old = sequence.replica_ids[tier], sequence.replicas[tier]
        part = self._part(sequence, tier)
        if old is not None and old_id is not None:
            old.num_running -= 1
            old.planned -= part
            if tier == self._limits.num_tiers - 1:
                old.kind_counts[sequence.choice_made.kind] -= 1
            self._fleet.part(tier, old_id)
        new = None if replica_id is None else self._fleet.meet(tier, replica_id)
        sequence.replica_ids[tier], sequence.replicas[tier] = replica_id, new
        if new is not None:
            new.num_running += 1
            new.planned += part
            if tier == self._limits.num_tiers - 1:
                sequence.trial_id, sequence.trial_left = new.trial_id, 0
                new.kind_counts[sequence.choice_made.kind] += 1

    def close(self, sequence: SequenceControl) -> None:
        """The sequence has ended. Harmless when repeated."""
        for tier in range(self._limits.num_tiers):
            self.leased(sequence, tier, None)
        sequence.is_open = False

    def _part(self, sequence: SequenceControl, tier: int) -> int:
        """What the sequence's latest plan puts into `Replica.planned` of a tier."""
        return sequence.rows if tier == self._limits.num_tiers - 1 else int(tier in sequence.used)

    # --- planning ---------------------------------------------------------------------------------

    def plan(self, sequence: SequenceControl, now: float, remaining: int, max_total_tokens: int) -> RoundPlan:
        """The next round's plan.

        `now`: seconds on any one clock. `remaining`: tokens that may still be committed (the target itself adds one of
        them). `max_total_tokens`: no branch drafted ahead may make the sequence longer.
        """
        target = sequence.replicas[-1]
        room = min(sequence.max_lookahead, remaining - 1)
        tiers = tuple([tier for tier, replica in enumerate(sequence.replicas[:-1]) if replica is not None])
        if target is None or room < 1 or not tiers:
            return self._settle(sequence, Choice(), Reason.PLAIN, max_total_tokens)
        for tier in tiers:
            self._pool(sequence.kind, tier, self._limits.num_tiers - 1).age(now)
        if not target.curve.is_known or not all(self._is_known(sequence, tier) for tier in tiers):
            return self._cold(sequence, target, tiers, room, max_total_tokens)
        scene = self._scene(sequence, target, tiers, room)
        choice, plain = self._choose(sequence, target, scene)
        trial = self._trial(sequence, target, scene, choice)
        if trial is not None:
            return self._settle(sequence, trial, Reason.TRIAL, max_total_tokens)
        if not choice.rungs:
            probe = self._probe(sequence, target, scene, plain)
            if probe is not None:
                return self._settle(sequence, probe, Reason.PROBE, max_total_tokens)
            return self._settle(sequence, choice, Reason.PLAIN, max_total_tokens)
        return self._within_reach(sequence, target, scene, choice, max_total_tokens)

    def _is_known(self, sequence: SequenceControl, tier: int) -> bool:
        replica = sequence.replicas[tier]
        return replica is not None and (replica.curve.is_known or self._num_checks[tier] >= KNOWN_CHECKS)

    def _scene(self, sequence: SequenceControl, target: Replica, tiers: tuple[int, ...], room: int) -> Scene:
        station = target.station()
        hits, predicted = self._ahead
        max_lookahead = self._limits.max_lookahead
        return Scene(
            limits=self._limits, tiers=tiers, target=station,
            station=lambda tier: self._replica(sequence, tier).station(),
            accept=lambda lower, upper: self._acceptance(sequence, lower, upper).rates(target.num_running),
            costs=lambda rungs: target.round(rungs, self._middle_s.value),
            table=lambda tier: target.table(self._replica(sequence, tier), (tier,), max_lookahead),
            doubt=lambda kind, k: target.doubt(kind, k, self._replica(sequence, tiers[0])),
            max_k=max(1, min(room, int(self._limits.max_pass_rows / station.crowd) - 1)),
            ahead_trust=min(1.2, hits / predicted), tree_trust=self._tree_trust.value if self._tree_trust.num else 1.0,
            common_k=round(target.common_k.value),
        )

    def _choose(self, sequence: SequenceControl, target: Replica, scene: Scene) -> tuple[Choice, float]:
        """The best choice, with hysteresis, and the rate of plain."""
        now = sequence.choice
        chain, plain, current = best_chain(scene, now)
        only_chains = (
            len(scene.tiers) == 1 and not self._limits.max_branches and self._limits.trees is TreeKind.NONE
        )
        if not only_chains:
            crowd = scene.target.crowd
            moved = not sequence.crowd / CROWD_MOVED < crowd < sequence.crowd * CROWD_MOVED
            news = sequence.kind_news != target.kind_news  # the first one has taken to another kind of rounds
            if moved or news or sequence.num_rounds >= sequence.refresh_at or now.longest > scene.max_k:
                sequence.kind_news = target.kind_news
                sequence.crowd = crowd
                sequence.refresh_at = sequence.num_rounds + min(REFRESH_ROUNDS, 1 + sequence.num_rounds // 2)
                best = best_of_all(scene, chain)
                if best.is_chain or best.is_like(now) or best.rate > GAIN_KIND * chain.rate:
                    chain = best if not best.is_chain else chain
                if not chain.is_chain:
                    if target.kind_counts[chain.kind] == 0:
                        target.kind_news += 1
                    return chain, plain
            elif not now.is_chain and now.longest <= scene.max_k and set(now.rungs) <= set(scene.tiers):
                return now, plain
        if chain.rungs:  # plain is safe: it takes more than noise to leave it, and to stay away from it
            known = scene.target.curve.num_samples(scene.target.crowd * chain.rows)
            doubt = NOISE / math.sqrt(max(0.5, known))
            if chain.rate < (1 + doubt / 2 if now.rungs else GAIN + doubt) * plain:
                return Choice(rate=plain), plain
        if plain < current and chain.rate < GAIN * current and now.k != scene.common_k and chain.k != scene.common_k:
            return now, plain
        return chain, plain

    def _cold(
        self, sequence: SequenceControl, target: Replica, tiers: tuple[int, ...], room: int, max_total_tokens: int
    ) -> RoundPlan:
        """Rules of thumb, on all rungs, for as many sequences as fit into what may be tried."""
        upper = tiers[1] if len(tiers) > 1 else self._limits.num_tiers - 1
        k = rule_of_thumb(self._acceptance(sequence, tiers[0], upper).rates()[0], room)
        windows = (min(4, room),) * (len(tiers) - 1)
        choice = Choice(tiers, k, windows)
        while k > 1 and not self._may_step(sequence, target, choice.rows):
            k //= 2
            choice = Choice(tiers, k, tuple([min(window, k) for window in windows]))
        if not self._may_step(sequence, target, choice.rows):
            return self._settle(sequence, Choice(), Reason.PLAIN, max_total_tokens)
        return self._settle(sequence, choice, Reason.COLD, max_total_tokens)

    def _may_step(self, sequence: SequenceControl, target: Replica, rows: int) -> bool:
        """Whether this sequence alone may put so many rows into the target's passes."""
        ratio = target.ratio(target.num_running, drafting=True)
        return ratio * (target.planned - sequence.rows + rows) <= target.curve.reach()

    def _within_reach(
        self, sequence: SequenceControl, target: Replica, scene: Scene, choice: Choice, max_total_tokens: int
    ) -> RoundPlan:
        """The choice if its costs are known well enough, else as much of it as may be tried."""
        reach = target.curve.reach()
        if scene.target.crowd * choice.rows <= reach:
            return self._settle(sequence, choice, Reason.MODEL, max_total_tokens)
        if choice.is_chain and choice.k > STEP_K:
            choice = replace(choice, k=STEP_K)
        if self._may_step(sequence, target, choice.rows):
            return self._settle(sequence, choice, Reason.REACH, max_total_tokens)
        k = min(int(reach / scene.target.crowd) - 1, scene.max_k)
        if k < 1 or choice.rungs[0] != 0:
            return self._settle(sequence, Choice(), Reason.REACH, max_total_tokens)
        best, _, _ = best_chain(replace(scene, max_k=k), Choice())
        return self._settle(sequence, best, Reason.REACH, max_total_tokens)

    def _trial(self, sequence: SequenceControl, target: Replica, scene: Scene, choice: Choice) -> Choice | None:
        """Another k for a round of all sequences, to learn what passes of as many rows cost."""
        if 0 not in scene.tiers:
            return None
        load = target.num_running
        if sequence.trial_id != target.trial_id:
            sequence.trial_id = target.trial_id
            sequence.trial_left = TRIAL_PLANS if load > 1 else TRIAL_PLANS_ALONE
        if sequence.trial_left > 0:
            sequence.trial_left -= 1
            if target.tried.rounds(load, (0,), target.trial_k) < target.trial_until:
                k = min(target.trial_k, scene.max_k)
                return Choice((0,), k) if k else Choice()
        target.trial_credit += TRIAL_SHARE / max(1, load)
        target.num_plans += 1
        if target.num_plans % max(3, load):  # once a round of all of them is often enough
            return None
        table = scene.table(0)
        rates = chain_rates(scene.accept(0, scene.top), table.seconds[: scene.max_k + 1])
        crowd, reach = scene.target.crowd, target.curve.reach()
        plans = TRIAL_PLANS if load > 1 else TRIAL_PLANS_ALONE
        hopes = [rate * (1 + DOUBT / math.sqrt(0.5 + n)) for rate, n in zip(rates, table.rounds, strict=False)]
        top = max(range(len(hopes)), key=hopes.__getitem__)  # may be far away: goodput has more than one peak
        if choice.is_chain and choice.rungs in ((), (0,)):
            now = min(choice.k, scene.max_k)
            best, candidates = rates[now], {0, now // 2, 3 * now // 4, now, now + 1, now + 2 + now // 4, top}
        else:
            now, best, candidates = -1, max(choice.rate, 1e-9), {0, top}
        if target.trial_charged is not None:  # what the last one cost is known better than it was
            cost = plans * max(0.0, 1 - rates[min(target.trial_k, scene.max_k)] / best)
            target.trial_credit -= max(0.0, cost - target.trial_charged)
            target.trial_charged = None
        tried: tuple[float, float, int] | None = None
        for k in candidates:
            known = target.tried.rounds(load, (0,), k)
            if not 0 <= k <= scene.max_k or crowd * (k + 1) > reach or known >= (TRIAL_KNOWN if k != now else 1.0):
                continue
            loss = plans * max(0.01, 1 - rates[k] / best) if k != now else 0.0
            # Plain must have been measured whatever the model thinks of it: nothing else shows that drafting slows
            # the target down, or what a pass of a single row costs.
            hopeful = hopes[k] > best or (k == 0 and known < TRIAL_AUDIT)
            if hopeful and loss <= target.trial_credit:
                tried = min(tried or (loss, known, k), (loss, known, k))
        if tried is None:
            return None
        loss, known, k = tried
        target.trial_credit -= loss
        target.trial_charged = loss
        target.trial_k, target.trial_id, target.trial_until = k, target.trial_id + 1, known + TRIAL_ENOUGH
        sequence.trial_id, sequence.trial_left = target.trial_id, plans - 1
        return Choice((0,), k) if k else Choice()

    def _probe(self, sequence: SequenceControl, target: Replica, scene: Scene, plain: float) -> Choice | None:
        """A short draft, if one is due."""
        target.num_plain_plans += 1
        if target.num_plain_plans < PROBE_MIN_ROUNDS * max(1, target.num_running):
            return None
        tier = scene.tiers[self._probe_tier % len(scene.tiers)]
        k = min(PROBE_K, scene.max_k)
        draft, costs = scene.station(tier), scene.costs((tier,))
        cost_s = (
            max(0.0, costs.draft_s - costs.plain_s) + k * draft.curve.seconds(1.0)
            + target.curve.seconds(scene.target.crowd + k) - target.curve.seconds(scene.target.crowd)
        )
        rounds = max(PROBE_MIN_ROUNDS, cost_s * plain / PROBE_SHARE)
        hoped = max(chain_rates((HIGHEST,) * scene.max_k, scene.table(tier).seconds[: scene.max_k + 1])[1:])
        if hoped < GAIN * plain:
            rounds *= PROBE_HOPELESS
        target.probe_every = int(rounds * max(1, target.num_running))
        if target.num_plain_plans < target.probe_every:
            return None
        target.num_plain_plans = 0
        self._probe_tier += 1
        return Choice((tier,), k)

    def _settle(self, sequence: SequenceControl, choice: Choice, reason: Reason, max_total_tokens: int) -> RoundPlan:
        """Note what the plan puts into the tiers' passes, and put the choice into the caller's words."""
        target = sequence.replicas[-1]
        if choice.rungs and target is not None:
            total = target.planned - sequence.rows + choice.rows
            if total > self._limits.max_pass_rows:
                choice, reason = Choice(), Reason.PLAIN
        if reason not in (Reason.PROBE, Reason.TRIAL):
            sequence.choice = choice
            if target is not None and choice.is_chain and choice.rungs:
                target.common_k.add(choice.k)
        if target is not None:
            target.kind_counts[sequence.choice_made.kind] -= 1
            target.kind_counts[choice.kind] += 1
        sequence.choice_made = choice
        if target is not None:
            target.planned += choice.rows - sequence.rows
        if choice.rungs != sequence.used:
            for tier, replica in enumerate(sequence.replicas[:-1]):
                if replica is not None:
                    replica.planned += int(tier in choice.rungs) - int(tier in sequence.used)
        sequence.rows, sequence.used = choice.rows, choice.rungs
        sequence.was_alike = target is not None and _is_alike(sequence, target)
        if not choice.rungs:
            return PLAIN if reason is Reason.PLAIN else RoundPlan(reason=reason)
        if choice.widths:
            shape = DraftShape(choice.k, widths=choice.widths)
        else:
            shape = DraftShape(choice.k, num_nodes=choice.num_nodes)
        ahead, k_miss = None, choice.k
        if choice.ahead is not None:
            a = choice.ahead
            k_miss = a.k_miss
            ahead = AheadPlan(DraftShape(a.depth), a.num_branches, a.num_guesses, max_total_tokens, a.time_s)
        return RoundPlan(choice.rungs, choice.k, choice.windows, shape, ahead, k_miss, reason)

    # --- learning ---------------------------------------------------------------------------------

    def observe(self, sequence: SequenceControl, report: RoundReport, now: float) -> None:
        """Learn from a round. Report rounds that failed with what did happen; leave out what did not."""
        sequence.num_rounds += 1
        plan, target = report.plan, sequence.replicas[-1]
        top = self._limits.num_tiers - 1
        is_probe = plan.reason is Reason.PROBE
        checked = set()
        for check in report.checks:
            if check.num_draft < 1:
                continue
            pair = (check.lower, check.upper)
            checked.add(pair)
            self._num_checks[check.lower] += 1
            self._pool(sequence.kind, *pair).touch(now)
            self._acceptance(sequence, *pair).observe(check.num_draft, check.num_accepted, is_probe=is_probe)
            if check.tree_accepted is not None and sequence.choice.tokens > 0:
                self._tree_trust.add((check.tree_accepted + 1) / sequence.choice.tokens)
            if is_probe and check.num_accepted >= check.num_draft and target is not None:
                target.num_plain_plans += target.probe_every * (PROBE_HOPEFUL - 1) // PROBE_HOPEFUL
        for known, acceptance in sequence.acceptance.items():
            if known not in checked:
                acceptance.idle()
        for seen in report.passes:
            replica = sequence.replicas[seen.tier]
            if replica is not None:
                rows_each = 1.0 if seen.tier in (top, *plan.rungs[:1]) else plan.k + 1.0
                if plan.ahead is not None and seen.tier != top:
                    # Its rows are branches, not sequences.
                    replica.curve.observe(seen.rows, seen.seconds, now, report.round_s)
                else:
                    alike = sequence.was_alike and target is not None and _is_alike(sequence, target)
                    replica.saw_pass(
                        seen.rows, seen.seconds, rows_each, now, report.round_s, alike=alike,
                        drafting=bool(plan.rungs) or seen.tier != top,
                    )
        if report.ahead is not None and plan.ahead is not None:
            self._saw_ahead(sequence, report)
        if target is not None and sequence.num_rounds > 1:  # the first round reads the prompt
            self._saw_times(sequence, report, target)

    def _saw_ahead(self, sequence: SequenceControl, report: RoundReport) -> None:
        assert report.ahead is not None and report.plan.ahead is not None
        top = self._limits.num_tiers - 1
        rates = self._acceptance(sequence, 0, top).rates()
        num_draft = sum(check.num_draft for check in report.checks if check.upper == top)
        ahead = report.plan.ahead
        predicted = coverage(
            round(100 * sum(rates) / len(rates)), num_draft, ahead.num_guesses, ahead.num_branches
        )
        hits, hoped = self._ahead
        self._ahead = [0.97 * hits + float(report.ahead.hit) + 0.03, 0.97 * hoped + predicted + 0.03]

    def _saw_times(self, sequence: SequenceControl, report: RoundReport, target: Replica) -> None:
        if report.round_s <= 0 or report.verify_s <= 0:
            return
        rungs = report.plan.rungs
        inside_s = report.verify_model_s or report.verify_s
        made = sequence.choice_made
        if made.seconds > 0 and target.kind_counts[made.kind] >= MOST * target.num_running:
            target.kinds.setdefault(made.kind, Average(60.0)).add(min(4.0, report.round_s / made.seconds))
        if report.used_branch:
            target.switch_s.add(max(0.0, report.round_s - inside_s))
            return
        did = rungs if report.checks else ()  # a draft that did not come made it a plain round, and a slow one
        alike = sequence.was_alike and _is_alike(sequence, target)
        target.news += 1
        target.tried.passed(target.num_running)
        if did == rungs:
            around_s = report.round_s - report.verify_s - report.below_model_s
            wait = max(0.0, report.verify_s - inside_s) / inside_s
            target.saw_round(rungs, around_s, wait, report.round_s / inside_s, alike=alike)
            last_k, num_before = sequence.settled or (report.plan.k, SETTLING)  # who is new comes into their groups
            num_alike = int(alike) * (1 + num_before * (last_k == report.plan.k))
            sequence.settled = report.plan.k, num_alike
            if made.is_chain and num_alike > (SETTLING if target.num_running > 1 else 0):
                target.tried.add(target.num_running, rungs, report.plan.k, report.round_s)
        if len(rungs) == 1 and report.checks and report.plan.shape is not None:
            replica = sequence.replicas[rungs[0]]
            rows = next((p.rows for p in report.passes if p.tier == rungs[0]), 0)
            if replica is not None and rows and report.below_model_s > 0:
                replica.saw_drag(report.below_model_s, report.checks[-1].num_draft * replica.curve.seconds(rows))
        elif len(rungs) > 1:
            num = sum(check.upper != self._limits.num_tiers - 1 for check in report.checks)
            if num:
                self._middle_s.add(max(0.0, report.below_s - report.below_model_s) / num)

    # --- shared knowledge -------------------------------------------------------------------------

    def _replica(self, sequence: SequenceControl, tier: int) -> Replica:
        replica = sequence.replicas[tier]
        if replica is None:
            raise LookupError(f"the sequence holds no replica of tier {tier}: call `leased` first")
        return replica

    def _pool(self, kind: str, lower: int, upper: int) -> PoolAcceptance:
        pool = self._pools.get((kind, lower, upper))
        if pool is None:
            pool = self._pools[kind, lower, upper] = PoolAcceptance(self._limits.max_lookahead)
        return pool

    def _acceptance(self, sequence: SequenceControl, lower: int, upper: int) -> Acceptance:
        acceptance = sequence.acceptance.get((lower, upper))
        if acceptance is None:
            acceptance = Acceptance(self._pool(sequence.kind, lower, upper), self._limits.max_lookahead)
            sequence.acceptance[lower, upper] = acceptance
        return acceptance


def _is_alike(sequence: SequenceControl, target: Replica) -> bool:
    """Whether the sequences of the target plan about as many rows as this one does, all of them."""
    equal = sequence.rows * target.num_running
    return abs(target.planned - equal) <= ALIKE * equal
