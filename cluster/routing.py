"""Which replica of a pool a sequence is sent to: the one that knows its beginning, unless it is much busier.

Serve's handles cannot name a replica, but a deployment may bring its own router, which sees the arguments of the
calls it routes. Scores follow the trade-off of cache-aware routers (Zheng et al. 2024, "SGLang", section 3, and its
router's balance thresholds) in one number instead of two modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import LocalityMixin, MultiplexMixin, PendingRequest, RequestRouter, RunningReplica

# What a whole known prompt is worth, as a share of the replica's places: it may be busier than the least busy
# replica by as much. Half: a prefill saved is paid back by waiting in a batch that is half full, not in a full one.
PREFIX_WORTH = 0.5


@dataclass(frozen=True, slots=True)
class Preference:
    """Argument of a lease: what is known of replicas, by their tags."""

    shares: Mapping[str, float] = field(default_factory=dict)  # of the prompt, that it has met
    avoid: frozenset[str] = frozenset()  # lost, slow or full just now


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as its router sees it."""

    tag: str
    num_leases: int


def rank(candidates: Sequence[Candidate], preference: Preference, capacity: int) -> list[list[str]]:
    """Tags in groups, the best group first; within a group the least busy is to be taken.

    Replicas that know enough of the prompt for their load come first, one by one, then all others that may be used,
    then those that are full or to be avoided: perhaps they are not any more, and they can say so.
    """
    usable = [c for c in candidates if c.tag not in preference.avoid and c.num_leases < capacity]
    least = min((c.num_leases for c in usable), default=0)
    scored = [
        (PREFIX_WORTH * preference.shares.get(c.tag, 0.0) - (c.num_leases - least) / capacity, c.tag) for c in usable
    ]
    preferred = [tag for score, tag in sorted(scored, reverse=True) if score > 0]
    others = [c.tag for c in usable if c.tag not in preferred]
    rest = [c.tag for c in candidates if c.tag not in preferred and c.tag not in others]
    return [*([tag] for tag in preferred), *(group for group in (others, rest) if group)]


class PrefixRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Routes leases by their `Preference`, and every other call to one of two random replicas, as Serve does."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`capacity`: sequences that a replica holds at once."""
        self._capacity: int = kwargs["capacity"]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Groups of replicas, the best first; Serve takes the least busy of the first that has one free."""
        preference = _preference(pending_request)
        if pending_request is None or preference is None:
            chosen: list[list[RunningReplica]] = await PowerOfTwoChoicesRequestRouter.choose_replicas(
                self, candidate_replicas, pending_request  # type: ignore[arg-type]  # needs the mixins alone
            )
            return chosen
        pending_request.routing_context.should_backoff = True  # else Serve asks again without a pause
        by_tag = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        candidates = [
            Candidate(tag, self.replica_queue_len_cache.get(replica.replica_id) or 0)
            for tag, replica in by_tag.items()
        ]
        return [[by_tag[tag] for tag in group] for group in rank(candidates, preference, self._capacity)]

    def _fulfill_next_pending_request(
        self, replica: RunningReplica, request_metadata: RequestMetadata | None = None,
    ) -> None:
        """Give the replica to the call it was chosen for.

        Serve finds that call by an id which all calls of one client's request share, an abandoned one included.
        """
        for pending in self._pending_requests_to_fulfill:
            if pending.metadata is request_metadata and not pending.future.done():
                self._record_queue_wait_time(pending)
                pending.future.set_result(replica)
                self._remove_pending_request_from_indices(pending)
                return


def _preference(pending: PendingRequest | None) -> Preference | None:
    arguments: Sequence[Any] = () if pending is None else pending.args
    return next((argument for argument in arguments if isinstance(argument, Preference)), None)
