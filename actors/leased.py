"""What a pool asks of the actor that takes its calls, whatever that actor computes."""

from __future__ import annotations

import abc
import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from actors.grammar.gate import Gate
from actors.messages import Context, Ids
from actors.presence import Presence
from actors.wire.codec import decode_close
from actors.wire.server import Call, completed

log = logging.getLogger(__name__)


class LeasedActor(abc.ABC):
    """Takes calls for the sequences that its pool has leased out, and tells the pool when each ends."""

    def __init__(self, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: see `Presence`."""
        self._presence = Presence(idle_timeout_s)
        self._gate = Gate()

    @abc.abstractmethod
    def _forget(self, sequence_id: str, held: Ids | None) -> None:
        """Free what the sequence held; `held`: its committed tokens, if they are known. Unknown ids are ignored."""

    def _call(self, context: Context, start: Callable[[], Future[Any]]) -> Call:
        """A call that `start` begins, once its grammar is compiled. Raises `NotHeld` when no lease of it is known."""
        self._presence.check(context.sequence_id)
        return Call(context.sequence_id, self._gate.pass_on(context.sequence_id, context.sampling.grammar, start))

    def _close(self, payload: bytes) -> Call:
        sequence_id, held = decode_close(payload)
        return Call(sequence_id, self._ended(sequence_id, held))

    def _ended(self, sequence_id: str, held: Ids | None = None, lease: str | None = None) -> Future[None]:
        """Once the calls that came before have been started. `lease`: only if the sequence is held for this one."""

        def start() -> Future[None]:
            if lease is not None and not self._presence.is_for(sequence_id, lease):
                return completed(None)
            self._forget(sequence_id, held)
            self._presence.end(sequence_id)
            log.info("sequence closed", extra={"request_id": sequence_id})
            return completed(None)

        return self._gate.pass_on(sequence_id, None, start)

    async def close(self, sequence_id: str, lease: str) -> None:
        """Forget a sequence and free what it held, if it is (still) held for this lease."""
        await asyncio.wrap_future(self._ended(sequence_id, lease=lease))

    async def attend(self, sequence_id: str, lease: str) -> None:
        """From now on calls for this sequence are taken, and `wait_closed` says when it ends."""
        self._presence.attend(sequence_id, lease)

    async def wait_closed(self, sequence_id: str, lease: str) -> None:
        """Return once the lease has ended, or nobody has called for its sequence during `idle_timeout_s`."""
        if not await self._presence.ended(sequence_id, lease):
            await self.close(sequence_id, lease)

    async def ping(self) -> bool:
        """Answered by a live event loop."""
        return True

    async def pid(self) -> int:
        """Process id of this actor."""
        return os.getpid()

    async def hold(self) -> None:
        """Never returns: its failure tells the caller at once that this actor died."""
        await asyncio.Event().wait()
