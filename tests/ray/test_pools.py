"""A pool on a real local Ray and Serve, with a drafter that only echoes: leases, loss and recovery."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from actors.drafter_specs import DrafterSpec, NgramSpec
from actors.drafters.base import Drafter
from actors.messages import Context, Draft, DraftShape, Ids, Origin, ReplicaInfo, ReplicaStats, Verdict
from actors.presence import Presence
from actors.sampling.params import SamplingParams
from actors.spec import ModelSpec
from actors.wire.access import Endpoint
from actors.wire.codec import decode_verify
from actors.wire.frames import Kind
from actors.wire.server import Call, CallServer, completed, node_address
from cluster.channel import Channel
from cluster.coordinator.tier import DraftLost, NoReplica, PoolFull, ReplicaLost
from cluster.groups import PoolSettings
from cluster.leases import RayLease
from cluster.pools import LeaseGrant, Pool
from cluster.running import running
from cluster.tiers import RayTier
from tests.ray.serving import end_serve

pytestmark = [pytest.mark.ray, pytest.mark.asyncio]

NEVER = 13  # asking the echo for this many tokens is never answered
MAX_SEQUENCES = 2


class Echo(Drafter):
    """Repeats the last token."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def propose(self, context: Context, shape: DraftShape) -> Future[Draft]:
        self._open.add(context.sequence_id)
        future: Future[Draft] = Future()
        num_tokens = shape.num_tokens
        if num_tokens > 100:
            raise RuntimeError("too many")
        if num_tokens != NEVER:
            future.set_result(Draft(np.full(num_tokens, context.tokens[-1], np.int32)))
        return future

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        self._open.discard(sequence_id)

    def stats(self) -> ReplicaStats:
        return ReplicaStats(len(self._open), 0, 0, 0, 0, 0)

    def shutdown(self) -> None:
        """Nothing runs."""


def make_echo(spec: ModelSpec, drafter: DrafterSpec) -> Drafter:
    return Echo()


class Judge:
    """An actor that accepts everything."""

    async def listen(self) -> Endpoint:
        self._server = CallServer({Kind.VERIFY: self._verify}, Presence(60))
        return await self._server.listen(node_address())

    def _verify(self, payload: bytes) -> Call:
        context, drafts, _ = decode_verify(payload)
        tokens = np.concatenate([*(draft.tokens for draft in drafts), np.array([7], np.int32)])
        return Call(context.sequence_id, completed(Verdict(tokens, len(tokens) - 1, len(tokens) - 1, Origin.BONUS)))


def deploy(
    name: str, *, max_sequences: int, max_ongoing_requests: int, num_replicas: int = 1
) -> DeploymentHandle[Any]:
    settings = PoolSettings(
        name=name, spec=ModelSpec(tier=0, model="echo", max_sequences=max_sequences, idle_timeout_s=30.0),
        drafter=NgramSpec(), law_support=0, num_cpus=0.1, num_gpus=0, accelerator_type=None,
        resources={}, draft_factory="tests.ray.test_pools:make_echo",
    )
    pool: Any = serve.deployment(Pool)
    application = pool.options(
        name=name, num_replicas=num_replicas, max_ongoing_requests=max_ongoing_requests,
        ray_actor_options={"num_cpus": 0.1},
        placement_group_bundles=[{"CPU": 0.1}, {"CPU": 0.1}], health_check_period_s=1.0,
        request_router_config=RequestRouterConfig(
            request_router_class="cluster.router:PrefixRouter",  # type: ignore[arg-type]  # its stub is wrong
            request_router_kwargs={"capacity": max_sequences},
        ),
    ).bind(settings)
    return serve.run(application, name=name, route_prefix=None)


@pytest.fixture(scope="module")
def pools(ray_env: None) -> Iterator[dict[str, DeploymentHandle[Any]]]:
    yield {
        "limited-by-serve": deploy("limited-by-serve", max_sequences=100, max_ongoing_requests=MAX_SEQUENCES),
        "limited-by-pool": deploy("limited-by-pool", max_sequences=MAX_SEQUENCES, max_ongoing_requests=50),
        "drained": deploy("drained", max_sequences=MAX_SEQUENCES, max_ongoing_requests=50),
    }
    end_serve()


@pytest.fixture
def handle(pools: dict[str, DeploymentHandle[Any]]) -> DeploymentHandle[Any]:
    return pools["limited-by-pool"]


def context(sequence_id: str, *tokens: int) -> Context:
    ids = np.array(tokens, np.int32)
    return Context(sequence_id, 0, ids, len(ids), len(ids), SamplingParams(), 0)


async def eventually(check: Callable[[], Any], timeout_s: float = 60.0) -> float:
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        found = check()
        if await found if hasattr(found, "__await__") else found:
            return time.monotonic() - began
        await asyncio.sleep(0.02)
    pytest.fail(f"not so within {timeout_s} s")


def num_leases(handle: DeploymentHandle[Any], expected: int) -> Callable[[], Any]:
    async def check() -> bool:
        return bool(await handle.num_leases.remote() == expected)

    return check


@pytest.mark.parametrize("name", ["limited-by-serve", "limited-by-pool"])
async def test_lease_is_ongoing_work_until_released(name: str, pools: dict[str, DeploymentHandle[Any]]) -> None:
    patient, hasty = RayTier(pools[name], 20.0), RayTier(pools[name], 1.0)
    held = [await patient.lease(f"s{i}") for i in range(MAX_SEQUENCES)]
    with pytest.raises(NoReplica):
        await hasty.lease("late")
    waiting = asyncio.create_task(patient.lease("late"))
    await held[0].release()
    await held[0].release()  # idempotent
    late = await waiting
    await held[1].release()
    await late.release()
    assert await eventually(num_leases(pools[name], 0)) < 30


async def test_full_replica_says_what_to_change(handle: DeploymentHandle[Any]) -> None:
    tier = RayTier(handle, 0.5)
    held = [await tier.lease(f"s{i}") for i in range(MAX_SEQUENCES)]
    with pytest.raises(NoReplica, match=r"all 2 sequences of \w+ are taken; raise max_sequences"):
        await tier.lease("late")
    with pytest.raises(PoolFull, match="are taken"):  # the wait for a place has a bound of its own
        await RayTier(handle, 60.0, full_timeout_s=0.3).lease("late")
    for lease in held:
        await lease.release()


async def test_proposals_arrive_and_failures_are_empty_drafts(handle: DeploymentHandle[Any]) -> None:
    lease = await RayTier(handle, 60.0).lease("s")
    draft = await lease.propose(context("s", 1, 2, 3), DraftShape(4)).fetch()
    assert draft.tokens.tolist() == [3, 3, 3, 3]
    failed = await lease.propose(context("s", 1), DraftShape(101)).fetch()
    assert len(failed.tokens) == 0
    assert failed.error == "RuntimeError: too many"
    never = lease.propose(context("s", 1), DraftShape(NEVER))
    assert not await never.wait(0.05)
    assert (await handle.stats.remote()).num_sequences == 1
    await lease.release()
    assert (await handle.stats.remote()).num_sequences == 0


async def test_cancelled_consumer_frees_sequence(handle: DeploymentHandle[Any]) -> None:
    lease = await RayTier(handle, 60.0).lease("s")
    await lease.propose(context("s", 1), DraftShape(1)).fetch()
    lease._stream.cancel()  # what a dying ingress does
    await eventually(num_leases(handle, 0))

    async def freed() -> bool:
        return bool((await handle.stats.remote()).num_sequences == 0)

    await eventually(freed)


async def kill_actor(handle: DeploymentHandle[Any]) -> None:
    os.kill(await handle.leader_pid.remote(), signal.SIGKILL)


async def test_killed_actor_revokes_leases_and_is_replaced_within_seconds(handle: DeploymentHandle[Any]) -> None:
    tier = RayTier(handle, 60.0)
    lease = await tier.lease("s")
    pending = lease.propose(context("s", 1), DraftShape(NEVER))
    await kill_actor(handle)
    with pytest.raises(ReplicaLost):
        await pending.fetch()
    await eventually(lambda: lease.revoked)
    again = await tier.lease("s", avoid=frozenset({lease.replica_id}))
    assert again.replica_id != lease.replica_id
    draft = await again.propose(context("s", 5), DraftShape(2)).fetch()
    assert draft.tokens.tolist() == [5, 5]
    await lease.release()  # of a dead actor: no error
    await again.release()
    await eventually(num_leases(handle, 0))


class Forever:
    """A lease's stream that says nothing until it breaks."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()

    def __aiter__(self) -> Forever:
        return self

    async def __anext__(self) -> None:
        await self.broken.wait()
        raise RayActorError

    def cancel(self) -> None:
        """Nobody listens."""


async def test_verify_tells_a_lost_draft_from_a_lost_replica(handle: DeploymentHandle[Any]) -> None:
    judge = ray.remote(Judge).options(num_cpus=0.1).remote()
    info = ReplicaInfo(1, "judge", 10, 10, 1, 1, "")
    endpoint = await judge.listen.remote()
    channel = await Channel.connect(endpoint)
    target = RayLease("s", LeaseGrant("judge#1", endpoint, info), Forever(), channel)
    lease = await RayTier(handle, 60.0).lease("s")
    good = lease.propose(context("s", 4), DraftShape(2))
    assert (await target.verify(context("s", 4), good, want_laws=False)).tokens.tolist() == [4, 4, 7]
    both = await target.verify(context("s", 4), Draft(np.array([1], np.int32)), good, want_laws=False)
    assert both.tokens.tolist() == [1, 4, 4, 7]
    call = asyncio.ensure_future(
        target.verify(context("s", 4), lease.propose(context("s", 4), DraftShape(NEVER)), want_laws=False)
    )
    await asyncio.sleep(0)
    await kill_actor(handle)
    with pytest.raises(DraftLost):
        await call
    assert (await target.verify(context("s", 4), want_laws=False)).tokens.tolist() == [7]
    ray.kill(judge)
    await eventually(lambda: channel.lost)
    with pytest.raises(ReplicaLost, match="judge#1: its actor died"):
        await target.verify(context("s", 4), good, want_laws=False)
    await lease.release()


async def test_a_lease_whose_stream_breaks_ends_its_calls(handle: DeploymentHandle[Any]) -> None:
    """A machine that vanishes says nothing on a connection; Ray learns of it and breaks the stream."""
    lease = await RayTier(handle, 60.0).lease("s")
    stream = Forever()
    twin = RayLease("s", lease._grant, stream, lease._channel)
    pending = twin.propose(context("s", 1), DraftShape(NEVER))
    stream.broken.set()
    with pytest.raises(ReplicaLost, match="its lease ended"):
        await pending.fetch()
    assert twin.revoked
    await lease.release()


async def test_draining_revokes_leases_lets_the_round_end_and_refuses_new_ones(
    pools: dict[str, DeploymentHandle[Any]]
) -> None:
    handle = pools["drained"]
    lease = await RayTier(handle, 60.0).lease("s")
    assert not await handle.drain.remote("another")
    assert not lease.revoked
    assert await handle.drain.remote(await handle.replica_tag.remote())
    await eventually(lambda: lease.revoked)
    draft = await lease.propose(context("s", 5), DraftShape(2)).fetch()  # the round under way goes on
    assert draft.tokens.tolist() == [5, 5]
    with pytest.raises(NoReplica, match="draining"):
        await RayTier(handle, 1.0).lease("t")
    await lease.release()
    await eventually(num_leases(handle, 0))


async def test_a_replica_that_scales_down_loses_its_leases_at_once_and_ends_its_round(
    pools: dict[str, DeploymentHandle[Any]]
) -> None:
    def scale(num_replicas: int) -> DeploymentHandle[Any]:
        return deploy("scaled", max_sequences=1, max_ongoing_requests=50, num_replicas=num_replicas)

    handle = await asyncio.to_thread(scale, 2)
    known = running(handle.app_name, handle.deployment_name)
    tier = RayTier(handle, 60.0, running=known, may_sleep=True)
    leases = [await tier.lease(f"s{i}") for i in range(2)]  # one on each
    assert not any(lease.revoked for lease in leases)
    assert not tier.asleep
    scaling = asyncio.create_task(asyncio.to_thread(scale, 1))
    assert await eventually(lambda: any(lease.revoked for lease in leases)) < 30  # not when its sequence ends
    (gone,) = [lease for lease in leases if lease.revoked]
    draft = await gone.propose(context(f"s{leases.index(gone)}", 5), DraftShape(2)).fetch()
    assert draft.tokens.tolist() == [5, 5]
    await gone.release()
    await scaling  # Serve waits for the lease, then stops the replica
    assert known.tags is not None
    assert len(known.tags) == 1
    for lease in leases:
        await lease.release()
