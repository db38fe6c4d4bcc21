"""The Serve router of a pool: leases go where `cluster.routing` says.

Serve's handles cannot name a replica, but a deployment may bring its own router, which sees the arguments of the
calls it routes. Serve ships this module by value, so that its classes are others than those of the same name that
elsewhere import it: nothing that crosses between processes may be defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import LocalityMixin, MultiplexMixin, PendingRequest, RequestRouter, RunningReplica

from cluster.routing import Candidate, Preference, rank
from cluster.running import running


class PrefixRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """Routes leases by their `Preference`, and every other call to one of two random replicas, as Serve does."""

    def initialize_state(self, **kwargs: Any) -> None:
        """`capacity`: sequences that a replica holds at once."""
        self._capacity: int = kwargs["capacity"]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve tells which replicas run: leases on others move on (`cluster.running`)."""
        super().update_replicas(replicas)
        known = running(self._deployment_id.app_name, self._deployment_id.name)
        known.told(frozenset(replica.replica_id.unique_id for replica in replicas))

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
