"""Drafting with some of the layers of the model that verifies: in its engine, on its weights and KV memory.

A proposal continues the very sequence that the next verify call names, so it needs the KV of all its tokens but the
newest, as every verify call leaves it. Where that is missing (at the first call, or when pages were taken for others)
it answers nothing, and the verify call that follows computes it: a prompt then never waits for its draft.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from actors.drafters.base import Drafter
from actors.drafters.copies import Copies, with_copies
from actors.drafters.model import DraftJob, TreeJob
from actors.engine.shallow import Shallow
from actors.messages import AheadPlan, Context, Draft, DraftShape, Enumeration, Ids, ReplicaInfo, ReplicaStats
from actors.verifier import Verifier


class ShallowDrafter(Drafter):
    """Chains and trees of shallow passes; sequences are those of `host`, which ends them."""

    def __init__(
        self, host: Verifier, tier: int, law_support: int, shallow: Shallow, copies: Copies | None = None
    ) -> None:
        """`copies`: mixed into the laws."""
        self.shallow = shallow
        self._engine = host.engine
        self._info = replace(host.info(), tier=tier)
        self._law_support = law_support
        self._copies = copies
        self._engine.prepare(shallow)

    @property
    def runs_above(self) -> bool:
        """In the verifier's sequences."""
        return True

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        """Queue a proposal; cut to what the model's context still holds."""
        depth = max(1, min(shape.num_tokens, self._info.max_context_tokens - context.num_tokens + 1))
        job: DraftJob | TreeJob
        if shape.grows:
            job = TreeJob(context, shape, depth, self._info.tier, self._law_support, self._copies)
        else:
            job = DraftJob(context, depth, self._info.tier, self._law_support, shape.siblings, self._copies)
        job.shallow = self.shallow
        job.num_whole = context.num_tokens - 1  # the newest token has not been through all layers either
        self._engine.submit(job)
        return job.future

    def enumerate(self, context: Context, draft: Draft, verify_round: int, plan: AheadPlan) -> Future[Enumeration]:
        """Nothing: what would be drafted on is at work, verifying."""
        answer: Future[Enumeration] = Future()
        answer.set_result(Enumeration(
            verify_round, tier=self._info.tier, error="a model that drafts for itself cannot draft while it verifies"
        ))
        return answer

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """The verifier's sequence is closed by its own tier."""

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` as soon as no step is under way."""
        self._engine.between_steps(act)

    def info(self) -> ReplicaInfo:
        """As the verifier's, but for the tier."""
        return self._info

    def stats(self) -> ReplicaStats:
        """Nothing of its own but passes: pages and sequences are the verifier's."""
        steps = int(self._engine.stats().extra["num_shallow_steps"])
        return with_copies(ReplicaStats(0, 0, 0, 0, steps, 0), self._copies)

    def shutdown(self) -> None:
        """The engine is the verifier's."""
