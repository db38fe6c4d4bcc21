"""One simulated replica: what it holds of each sequence, and drafts and verdicts as calls on its device.

The answers follow from the tokens alone and are known when a call arrives; the device says when they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from actors.emulation.voice import Speaker
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Origin, Verdict
from actors.sampling.params import VerifyMode
from cluster.coordinator.tier import NO_TOKENS
from cluster.simulation.branching import pass_rows, sprouts
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.device import Device, Work
from cluster.simulation.growing import Grown, grow
from cluster.simulation.held import Text, shared
from cluster.simulation.walking import walk


@dataclass(slots=True)
class Decision:
    """The outcome of a verify pass: settled when its call comes, made known when the pass ends."""

    round: int
    node: int  # last accepted one, -1: none
    token: int  # the verifier's own
    is_known: bool = False
    then: Callable[[], None] | None = None  # waits for it


@dataclass(frozen=True, slots=True)
class Call:
    """The latest call of a sequence."""

    work: Work
    give_up: Callable[[Work], None] | None = None  # when another call comes before it has ended


class Replica:
    """A device with a voice, which drafts as tier 0 and verifies as any other."""

    def __init__(
        self, replica_id: str, tier: int, speaker: Speaker, author: Speaker, device: Device, loop: VirtualLoop
    ) -> None:
        """`author`: the target's voice, which `sprouts` asks which branches need not be worked out."""
        self.replica_id = replica_id
        self.device = device
        self.num_leases = 0
        self._tier = tier
        self._speaker = speaker
        self._author = author
        self._loop = loop
        self._texts: dict[str, Text] = {}
        self._calls: dict[str, Call] = {}
        self._decisions: dict[str, Decision] = {}

    # --- drafting ---------------------------------------------------------------------------------

    def propose(self, context: Context, shape: DraftShape, answer: Callable[[Draft], None]) -> None:
        """Draft after `context`: a pass for each token of a chain, or each level of a tree.

        What a branch holds beyond the context is not drafted again.
        """
        self._supersede(context.sequence_id)
        text = self._texts.setdefault(context.sequence_id, Text())
        told = text.tell(context.start, context.tokens.tolist())
        if told is None:
            answer(Draft(NO_TOKENS, tier=self._tier, prefix_missing=True, error="prefix missing"))
            return
        grown = grow(self._speaker, text.prefixes[-1], shape)
        end, rows, ready = len(text.ids), told.rows, 0
        if shape.is_chain:
            ready = shared(told.beyond, grown.tokens)  # 0, or all there are: the same voice spoke
            text.extend(grown.tokens)
            text.num_cached = len(text.ids) - 1  # the last one is not fed: it is caught up if it is accepted
            rows = told.rows if ready == 0 else 1
        else:
            text.num_cached = end
        if ready == len(grown.level_rows):
            answer(Draft(np.array(grown.tokens, np.int32), tier=self._tier))
            return

        def done(work: Work) -> None:
            answer(self._draft(grown, work))

        self._submit(context.sequence_id, Call(Work([rows, *grown.level_rows[ready:-1]], done)))

    def enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan, answer: Callable[[Enumeration], None]
    ) -> None:
        """Draft for the likely outcomes of verifying `draft` after `context`, all of them in the same passes.

        Answers with what is there when the plan's time is over or the sequence's next call comes.
        """
        self._supersede(context.sequence_id)
        text = self._texts.setdefault(context.sequence_id, Text())
        tokens = draft.tokens.tolist()
        is_chain = draft.parents is None
        told = text.tell(context.start, [*context.tokens.tolist(), *(tokens if is_chain else ())])
        if told is None:
            answer(Enumeration(verify_round, tier=self._tier, error="prefix missing", prefix_missing=True))
            return
        parents = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
        found = sprouts(
            self._speaker, self._author, text.prefixes[context.num_tokens], context.num_tokens, tokens, parents, plan
        )
        catch_up = told.rows if is_chain else told.rows + len(tokens)
        text.num_cached = len(text.ids)

        def done(work: Work) -> None:
            branches = [branch for sprout in found if (branch := sprout.after(work.passes, self._tier)) is not None]
            paths = {(sprout.node, sprout.token): sprout.path for sprout in found}
            text.keep([
                [*paths[branch.node, branch.token], *branch.draft.tokens.tolist()]
                for branch in branches if branch.draft.parents is None
            ], context.num_tokens)
            answer(Enumeration(
                verify_round, tuple(branches), self._tier, seconds=self._loop.time() - work.arrived_s,
                model_seconds=work.model_s,
            ))

        latest_s = self._loop.time() + plan.time_s
        work = Work(pass_rows(found, catch_up), done, latest_begin_s=latest_s)
        self._submit(context.sequence_id, Call(work, give_up=done))

    def _draft(self, grown: Grown, work: Work) -> Draft:
        assert work.last is not None
        return Draft(
            tokens=np.array(grown.tokens, np.int32), tier=self._tier, seconds=self._loop.time() - work.arrived_s,
            model_seconds=work.model_s,
            parents=None if grown.parents is None else np.array(grown.parents, np.int32),
            pass_rows=work.last.rows, pass_seconds=work.last.seconds,
        )

    # --- verifying --------------------------------------------------------------------------------

    def verify(
        self, context: Context, drafts: Sequence[Draft], want_laws: bool, answer: Callable[[Verdict], None]
    ) -> None:
        """Verify the concatenation of `drafts` (or one tree) after `context`, in one pass."""
        if want_laws or context.sampling.mode is not VerifyMode.GREEDY:
            raise ValueError("simulated models are greedy: there are no laws to sample from; set temperature to 0")
        self._supersede(context.sequence_id)
        text = self._texts.setdefault(context.sequence_id, Text())
        told = text.tell(context.start, context.tokens.tolist())
        if told is None:
            answer(Verdict(NO_TOKENS, 0, 0, Origin.PLAIN, tier=self._tier, prefix_missing=True))
            return
        self._verify(context.sequence_id, context.round, told.rows, drafts, answer)

    def verify_ahead(
        self, sequence_id: str, round: int, verify_round: int, enumeration: Enumeration,
        answer: Callable[[Verdict], None],
    ) -> None:
        """When the pass of `verify_round` is decided, verify the branch that fits in the very next one; else a miss."""
        decision = self._decisions.get(sequence_id)

        def miss() -> None:
            answer(Verdict(NO_TOKENS, 0, 0, Origin.PLAIN, tier=self._tier, missed=True))

        if decision is None or decision.round != verify_round:
            miss()
            return

        def go_on() -> None:
            branch = enumeration.find(decision.node, decision.token)
            if branch is None:
                miss()
                return
            text = self._texts[sequence_id]
            text.extend([decision.token])
            self._verify(sequence_id, round, 1, [branch.draft], answer)

        if decision.is_known:
            go_on()
        else:
            decision.then = go_on

    def _verify(
        self, sequence_id: str, round: int, rows: int, drafts: Sequence[Draft], answer: Callable[[Verdict], None]
    ) -> None:
        """Queue the pass. Its outcome follows from the tokens; nobody is told before it ends."""
        text = self._texts[sequence_id]
        tokens = [token for draft in drafts for token in draft.tokens.tolist()]
        told = drafts[0].parents if len(drafts) == 1 else None
        parents = None if told is None else told.tolist()
        path = walk(self._speaker, text.prefixes[-1], tokens, parents)
        accepted = [tokens[node] for node in path]
        text.extend(accepted)
        text.num_cached = len(text.ids)  # as the pass feeds the draft with the context
        last = self._speaker.choose(text.prefixes[-1]).best
        origin = Origin.PLAIN if not tokens else Origin.RECOVERED
        if path and (path[-1] == len(tokens) - 1 if parents is None else path[-1] not in parents):
            origin = Origin.BONUS
        tiers = tuple(draft.tier for draft in drafts for _ in range(len(draft.tokens)))
        decision = self._decisions[sequence_id] = Decision(round, path[-1] if path else -1, last)

        def done(work: Work) -> None:
            assert work.last is not None
            decision.is_known = True
            answer(Verdict(
                tokens=np.array([*accepted, last], np.int32), num_accepted=len(accepted), num_draft=len(tokens),
                last=origin, tier=self._tier,
                draft_tiers=tiers if parents is None else tuple(tiers[node] for node in path),
                draft_seconds=sum(draft.seconds for draft in drafts),
                verify_seconds=self._loop.time() - work.arrived_s,
                draft_error=next((draft.error for draft in drafts if draft.error is not None), None),
                draft_model_seconds=sum(draft.model_seconds for draft in drafts),
                verify_model_seconds=work.model_s, path=None if parents is None else tuple(path),
                draft_pass_rows=drafts[-1].pass_rows if drafts else 0,
                draft_pass_seconds=drafts[-1].pass_seconds if drafts else 0.0,
                pass_rows=work.last.rows, pass_seconds=work.last.seconds,
            ))
            if decision.then is not None:
                decision.then()

        self._submit(sequence_id, Call(Work([rows + len(tokens)], done)))

    # --- both -------------------------------------------------------------------------------------

    def close(self, sequence_id: str) -> None:
        """Forget a sequence and give up what is under way for it. Unknown ids are ignored."""
        self._texts.pop(sequence_id, None)
        self._decisions.pop(sequence_id, None)
        call = self._calls.pop(sequence_id, None)
        if call is not None:
            call.work.cancel()

    def _submit(self, sequence_id: str, call: Call) -> None:
        self._calls[sequence_id] = call
        self.device.submit(call.work)

    def _supersede(self, sequence_id: str) -> None:
        """A call of the sequence has come: it names the truth, so what is under way ends with what it has."""
        call = self._calls.pop(sequence_id, None)
        if call is not None and not call.work.is_over:
            call.work.cancel()
            if call.give_up is not None:
                call.give_up(call.work)
