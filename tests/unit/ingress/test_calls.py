"""The times of a request's calls, as the coordinator sees them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.messages import Origin, Verdict
from cluster.coordinator.ladder import Ladder
from cluster.ingress.calls import CallLog, timed

VERDICT = Verdict(np.array([5], np.int32), 0, 0, Origin.PLAIN)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Handle:
    def __init__(self) -> None:
        self.payload: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Lease:
    """Answers when it is told to."""

    replica_id = "one"
    revoked = False

    def __init__(self) -> None:
        self.handle = Handle()
        self.verdict: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def propose(self, *call: Any) -> Handle:
        return self.handle

    enumerate = propose

    async def verify(self, *call: Any, want_laws: bool) -> Any:
        return await self.verdict

    async def verify_ahead(self, *call: Any) -> Any:
        return await self.verdict


class Tier:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def lease(self, *call: Any) -> Lease:
        return self._lease


@pytest.mark.asyncio
async def test_a_pass_begins_when_its_draft_is_there_and_never_before_the_last_verdict() -> None:
    clock, draft, target = Clock(), Lease(), Lease()
    log = CallLog(clock)
    tiers: Any = [Tier(draft), Tier(target)]
    ladder = timed(Ladder(tiers), log)
    drafting, verifying = [await tier.lease("s") for tier in ladder.tiers]
    nothing: Any = None
    handle = drafting.propose(nothing, nothing)
    verdict = asyncio.ensure_future(verifying.verify(nothing, handle, want_laws=False))
    await asyncio.sleep(0)
    clock.now = 101.0
    draft.handle.payload.set_result(b"")
    await asyncio.sleep(0)
    ahead = asyncio.ensure_future(verifying.verify_ahead(1, 0, nothing))  # asked while the pass runs
    await asyncio.sleep(0)
    clock.now = 103.0
    target.verdict.set_result(VERDICT)
    assert await verdict is VERDICT
    clock.now = 104.0
    await ahead
    assert [(call.tier, call.kind, call.began_s, call.ended_s) for call in log.take()] == [
        (0, "propose", 0.0, 1.0), (1, "verify", 1.0, 3.0), (1, "verify_ahead", 3.0, 3.0),
    ]
    target.verdict = asyncio.get_running_loop().create_future()
    target.verdict.set_result(replace(VERDICT, missed=True))
    await verifying.verify_ahead(2, 1, nothing)
    assert log.take() == [], "no branch fitted: there was no pass"
    assert drafting.replica_id == "one"
