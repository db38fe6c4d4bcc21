"""One verify call with bounds on the draft it waits for, on itself, and on the request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actors.messages import Verdict
from cluster.coordinator.errors import DeadlinePassed, DraftLate, ReplicaLate
from cluster.coordinator.hold import Clock
from cluster.coordinator.tier import DraftHandle, ReplicaLost


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

    def within(self, wait_s: float) -> tuple[float, bool]:
        """Time that may be waited for something bounded by `wait_s`, and whether it ends with the deadline."""
        left_s = self.left_s()
        if left_s is None or left_s > wait_s:
            return wait_s, False
        return left_s, True


async def verify_within(
    call: Callable[[], Awaitable[Verdict]], handle: DraftHandle | None, bounds: CallBounds,
    on_sent: Callable[[], None],
) -> Verdict:
    """The verdict of `call`, abandoned when a bound is passed or the caller is cancelled.

    `handle` is the draft under way among what it verifies; `on_sent` is called when nothing is waited for but the
    verdict. Raises `DraftLate`, `ReplicaLate`, `DeadlinePassed`, and what the call raises.
    """
    if handle is not None:
        wait_s, ends_at_deadline = bounds.within(bounds.draft_s)
        if not await handle.wait(wait_s):
            if ends_at_deadline:
                raise DeadlinePassed
            raise DraftLate(f"the draft was not ready within {bounds.draft_s:.3f} s")
    limit = bounds.within(bounds.verify_s)  # before there is a call that would have to be taken back
    answer = call()
    on_sent()
    return await verdict_within(answer, limit)


async def verdict_within(answer: Awaitable[Verdict], limit: tuple[float, bool]) -> Verdict:
    """A verdict under way; `limit` as `CallBounds.within` has it.

    Raises `ReplicaLate`, `DeadlinePassed`, and what the call raises.
    """
    wait_s, ends_at_deadline = limit
    try:
        async with asyncio.timeout(wait_s):
            try:
                return await answer
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise ReplicaLost("the verify call was cancelled by its carrier") from None
    except TimeoutError:
        if ends_at_deadline:
            raise DeadlinePassed from None
        raise ReplicaLate(f"the verify pass took longer than {wait_s:.3f} s") from None
