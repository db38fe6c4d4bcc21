"""The coordinator's tiers over a cluster: how a sequence finds a replica of a pool, and holds it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.messages import Ids
from cluster.channel import SILENCE_S, ChannelLost, Channels
from cluster.coordinator.tier import NO_TOKENS, NoReplica, PoolFull
from cluster.leases import RayLease, reason_of, tag_of
from cluster.pools import Refused
from cluster.prefixes import LocalPrefixes, Prefixes, digests
from cluster.routing import Preference
from cluster.running import Running, Stay

logger = logging.getLogger(__name__)

RETRY_S = 0.05  # after all replicas refused; doubles
MAX_RETRY_S = 0.5
MAX_AVOIDED = 3  # ask again this often before taking an avoided replica: perhaps another one comes up
SHUN_S = 30.0  # a replica that could not be reached is asked last for this long, by whichever sequence


class RayTier:
    """One pool, reached by its deployment handle."""

    def __init__(
        self, handle: DeploymentHandle[Any], timeout_s: float = 60.0, *, full_timeout_s: float = 10.0,
        prefixes: Prefixes | None = None, silence_s: float = SILENCE_S, running: Running | None = None,
        may_sleep: bool = False, spreads: bool = False,
    ) -> None:
        """The pool behind `handle`.

        Args:
            handle: of the deployment.
            timeout_s: bounds a lease, a replica's rebuild included.
            full_timeout_s: bounds the wait for a place.
            prefixes: who has met which prefix.
            silence_s: see `cluster.channel.Channel`.
            running: what Serve tells of the pool's replicas.
            may_sleep: its autoscaler may leave it none.
            spreads: sequences move to replicas that come, at the cost of computing there what they have so far.
        """
        self._handle = handle.options(stream=True)
        self._timeout_s = timeout_s
        self._full_timeout_s = full_timeout_s
        self._prefixes = prefixes or LocalPrefixes()
        self._channels = Channels(silence_s)
        self._shunned: dict[str, float] = {}  # tags of replicas that could not be reached -> until when
        self._running = running or Running()
        self._may_sleep = may_sleep
        self._spreads = spreads
        self._num_waiting = 0

    @property
    def asleep(self) -> bool:
        """Whether its autoscaler has left it no replica."""
        return self._may_sleep and self._running.none

    @property
    def num_waiting(self) -> int:
        """Sequences that look for a place just now."""
        return self._num_waiting

    async def lease(
        self, sequence_id: str, avoid: frozenset[str] = frozenset(), tokens: Ids = NO_TOKENS, trace: bytes = b""
    ) -> RayLease:
        """Hold a replica, best one that met the beginning of `tokens`.

        Raises `NoReplica` when none is to be had within `timeout_s`, `PoolFull` when all were full all the time of
        `full_timeout_s`.
        """
        self._num_waiting += 1
        try:
            return await self._lease(sequence_id, avoid, tokens, trace)
        finally:
            self._num_waiting -= 1

    async def _lease(self, sequence_id: str, avoid: frozenset[str], tokens: Ids, trace: bytes) -> RayLease:
        search = _Search(self._timeout_s, self._full_timeout_s)
        names = digests(tokens)
        shares = await self._prefixes.shares(names)
        while (left_s := search.left_s()) > 0:
            last = self._out_of_reach() | {tag_of(replica) for replica in avoid}
            preference = Preference(shares, search.refused | last)
            stream: Any = self._handle.lease.remote(sequence_id, preference, trace)
            kept = False
            try:
                async with asyncio.timeout(left_s):
                    first = await anext(stream)
                    if isinstance(first, Refused):
                        search.note(first)
                    elif first.replica_id in avoid and search.num_avoided < MAX_AVOIDED:
                        search.note_avoided()
                    else:
                        channel = await self._channels.open(first.endpoint)
                        kept = True
                        tag = tag_of(first.replica_id)
                        self._prefixes.learn(names, tag)
                        return RayLease(
                            sequence_id, first, stream, channel, partial(self._learn, tag), partial(self._shun, tag),
                            self._running, Stay(self._running, sequence_id) if self._spreads else None,
                        )
            except TimeoutError:
                search.reason = f"{search.reason}, none became free"
            except StopAsyncIteration:
                search.reason = "the replica ended the lease"
            except (RayError, RayServeException) as error:
                search.reason = reason_of(error)
            except ChannelLost as error:
                search.reason = str(error)
                self._shun(tag_of(first.replica_id))
                logger.warning("%s cannot be called: %s", first.replica_id, error)
            finally:
                if not kept:
                    stream.cancel()
            await search.pause()
        raise NoReplica(f"no replica within {self._timeout_s:.1f} s: {search.reason}")

    def _shun(self, tag: str) -> None:
        """This replica was out of reach just now: whoever asks next had better ask others first."""
        self._shunned[tag] = time.monotonic() + SHUN_S

    def _out_of_reach(self) -> frozenset[str]:
        now = time.monotonic()
        self._shunned = {tag: until for tag, until in self._shunned.items() if until > now}
        return frozenset(self._shunned)

    def _learn(self, tag: str, held: Ids) -> None:
        self._prefixes.learn(digests(held), tag)


class _Search:
    """One search for a lease: who refused, why, and how long to go on."""

    def __init__(self, timeout_s: float, full_timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._full_timeout_s = full_timeout_s
        self._full_since: float | None = None  # every answer since then was that a replica is full
        self._pause_s = RETRY_S
        self._round_ended = False
        self.refused: frozenset[str] = frozenset()  # tags: asked in this round of questions
        self.num_avoided = 0
        self.reason = "none answered"

    def left_s(self) -> float:
        """Time to the end. Raises `PoolFull` when nothing but full replicas was met for too long."""
        now = time.monotonic()
        if self._full_since is not None and now - self._full_since >= self._full_timeout_s:
            raise PoolFull(self.reason)
        return self._end - now

    def note(self, refusal: Refused) -> None:
        """Ask others first; when one that has refused is met again there is no other."""
        self.reason = refusal.reason
        self._round_ended = refusal.tag in self.refused
        self.refused |= {refusal.tag}
        if not refusal.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()

    def note_avoided(self) -> None:
        """Serve knew no other replica than one to be avoided."""
        self.num_avoided += 1
        self.reason = "only replicas to be avoided"
        self._round_ended = True

    async def pause(self) -> None:
        """Before the next question: none while there are others to ask, then longer each time."""
        if self._round_ended or not self.refused:
            await asyncio.sleep(min(self._pause_s * random.uniform(0.5, 1.0), max(0.0, self._end - time.monotonic())))
            self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
            self.refused = frozenset()
            self._round_ended = False
