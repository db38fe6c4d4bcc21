"""One verify call with bounds on the draft it waits for, on itself, and on the request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from actors.messages import Context, Draft, Verdict
from cluster.coordinator.errors import DeadlinePassed, DraftLate, ReplicaLate
from cluster.coordinator.hold import Clock
from cluster.coordinator.tier import DraftHandle, Lease, ReplicaLost

LAST_LOOK_S = 0.01  # for asking whether a draft is ready when its time is over


@dataclass(frozen=True, slots=True)
class CallBounds:
    """Times in seconds; `deadline` is absolute, on `clock`."""

    draft_s: float
    verify_s: float  # once the draft is there
    deadline: float | None
    clock: Clock

    def left_s(self) -> float | None:
        """Time to the deadline, None without one. Raises `DeadlinePassed`."""
        if self.deadline is None:
            return None
        left = self.deadline - self.clock()
        if left <= 0:
            raise DeadlinePassed
        return left


async def verify_within(
    lease: Lease, context: Context, drafts: Sequence[DraftHandle | Draft], want_laws: bool,
    handle: DraftHandle | None, bounds: CallBounds,
) -> Verdict:
    """`lease.verify(context, *drafts)`, abandoned when a bound is passed or the caller is cancelled.

    `handle` is the draft under way among `drafts`. It is waited for through the verify call itself, so
    that an ordinary round costs no call besides. Raises `DraftLate`, `ReplicaLate`, `DeadlinePassed`,
    and what `verify` raises.
    """

    async def call() -> Verdict:
        return await lease.verify(context, *drafts, want_laws=want_laws)

    task = asyncio.create_task(call())
    try:
        if handle is not None and not await _done_within(task, bounds.draft_s, bounds):
            ready = await handle.wait(LAST_LOOK_S)
            if not ready and not task.done():
                raise DraftLate(f"the draft was not ready within {bounds.draft_s:.3f} s")
        if not await _done_within(task, bounds.verify_s, bounds):
            raise ReplicaLate(f"the verify pass took longer than {bounds.verify_s:.3f} s")
        if task.cancelled():
            raise ReplicaLost("the verify call was cancelled by its carrier")
        return task.result()
    finally:
        if not task.done():
            task.add_done_callback(_forget)
            task.cancel()


async def _done_within(task: asyncio.Task[Verdict], wait_s: float, bounds: CallBounds) -> bool:
    if task.done():
        return True
    left = bounds.left_s()
    ends_at_deadline = left is not None and left <= wait_s
    await asyncio.wait({task}, timeout=left if ends_at_deadline else wait_s)
    if ends_at_deadline and not task.done():
        raise DeadlinePassed
    return task.done()


def _forget(task: asyncio.Task[Verdict]) -> None:
    """Mark the outcome of an abandoned call as seen."""
    if not task.cancelled():
        task.exception()
