"""The contract of a drafter: given the truth, propose up to k tokens."""

from __future__ import annotations

import abc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from actors.messages import AheadPlan, Branch, Context, Draft, DraftShape, Enumeration, Ids, ReplicaStats
from actors.sampling import laws as draft_laws


class Drafter(abc.ABC):
    """Proposes tokens for many sequences at once.

    Everything a drafter holds is a cache that may vanish. A drafter never raises for a request it
    cannot serve: it answers an empty `Draft` whose `error` says why, and the round goes on plain.
    """

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """After which layers of the target it reads the residual stream (1: the first); empty: it reads none."""
        return ()

    @property
    def runs_above(self) -> bool:
        """Whether it has no sequences of its own, but drafts in those of the verifier that checks its drafts."""
        return False

    @property
    def wants_features(self) -> bool:
        """Whether it drafts from the target's features: proposals bring those that it has not seen."""
        return bool(self.feature_layers)

    @property
    def feature_window(self) -> int:
        """Positions before the newest token whose features a proposal needs; 0: all."""
        return 0

    @abc.abstractmethod
    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal after `context`; a drafter that knows no trees answers a chain of `shape.num_tokens`."""

    def enumerate(
        self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan
    ) -> Future[Enumeration]:
        """Draft for the likely outcomes of the pass `verify_round`, which verifies `draft` after `context` elsewhere.

        What is there when the plan's time is over, or when the next call of the sequence comes, is the answer.

        Here: one branch, after the whole draft, whose first token stands for the verifier's own. In the rejection modes
        that is as good a guess as any, and what follows is drawn from q given it.
        """
        whole = np.concatenate([context.tokens, draft.tokens]).astype(np.int32)
        told = replace(context, tokens=whole)
        room = plan.max_total_tokens - told.num_tokens - 2  # for the branch's draft between two tokens of the verifier
        wanted = min(plan.shape.num_tokens, room) if min(plan.num_branches, plan.num_guesses) > 0 else 0
        answer: Future[Enumeration] = Future()
        if draft.parents is not None or wanted < 1:
            error = None if draft.parents is None else "this drafter does not draft ahead of trees"
            answer.set_result(Enumeration(verify_round, error=error))
            return answer

        def hand(done: Future[Draft]) -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(_after(done.result(), verify_round, len(draft.tokens) - 1, wanted))

        self.propose(told, DraftShape(1 + wanted)).add_done_callback(hand)
        return answer

    @abc.abstractmethod
    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free what it held; unknown ids are ignored.

        `truth`, all its committed tokens, says what a later prompt may find again.
        """

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` when what answers several proposals at once has answered them all: at once, by default."""
        act()

    @abc.abstractmethod
    def stats(self) -> ReplicaStats:
        """Current counters."""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """Stop worker threads; pending proposals end with an error draft."""


def _after(whole: Draft, verify_round: int, node: int, num_tokens: int) -> Enumeration:
    """A draft read as a branch after `node`: its first token, then at most `num_tokens` others."""
    branches: tuple[Branch, ...] = ()
    if len(whole.tokens) > 1:
        end = min(len(whole.tokens), 1 + num_tokens)  # a limit that was known before anything was drawn
        laws = None if whole.laws is None else draft_laws.cut(whole.laws, 1, end)
        rest = replace(whole, tokens=whole.tokens[1:end], laws=laws, seconds=0.0, model_seconds=0.0)
        branches = (Branch(node, int(whole.tokens[0]), rest),)
    return Enumeration(
        verify_round, branches, whole.tier, whole.seconds, whole.model_seconds,
        error=None if branches else whole.error, prefix_missing=whole.prefix_missing,
    )
