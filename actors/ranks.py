"""Ray actor of one tensor-parallel rank: it holds a shard, and rank 0 leads.

Every rank runs the same forward passes; rank 0 alone owns the engine and decides. Verify passes reach it over the wire
(`actors.wire`). A rank that fails ends its process (`actors.engine.broadcast.die`), and `actors.target` rebuilds the
group.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from actors import logs
from actors.cores import stay_on
from actors.garbage import settle
from actors.leased import LeasedActor
from actors.messages import Ids, ReplicaInfo, ReplicaStats
from actors.spans import Spans
from actors.spec import InlineTier, ModelSpec
from actors.watch import WatchSpec
from actors.wire.access import Endpoint
from actors.wire.codec import (
    decode_ahead,
    decode_propose,
    decode_step,
    decode_verify,
    decode_verify_ahead,
    readable,
)
from actors.wire.frames import Kind
from actors.wire.server import Announced, Call, CallServer, node_address

if TYPE_CHECKING:  # imported late: they pull in PyTorch, which must first see its environment
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    from actors.engine.broadcast import BroadcastRunner, Channel
    from actors.engine.step import ModelRunner
    from actors.inline import Verifies

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"  # where ranks of one machine meet
LOAD_TIMEOUT_S = 1800.0  # ranks may wait for each other this long while they read their weights


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group meet."""

    host: str
    port: int


class RankWorker(LeasedActor):
    """One rank. Life: `locate`, with several ranks `rendezvous` on rank 0, `start` on all together, then calls."""

    def __init__(
        self, spec: ModelSpec, rank: int, law_support: int = 64, inline: Sequence[InlineTier] = (),
        watch: WatchSpec = WatchSpec(), name: str = "target",  # noqa: B008  # frozen
    ) -> None:
        """`inline`: tiers below this one that run in rank 0's process, smallest first. `name`: of the tier."""
        logs.configure(watch, component=name, rank=str(rank))
        stay_on(spec.cores)
        self._spec = spec
        self._rank = rank
        self._law_support = law_support
        self._inline = inline
        self._store: TCPStore | None = None
        self._runner: BroadcastRunner | None = None
        self._verifier: Verifies | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(spec.idle_timeout_s)
        handlers = {
            Kind.PROPOSE: self._propose, Kind.AHEAD: self._enumerate, Kind.VERIFY: self._verify,
            Kind.VERIFY_AHEAD: self._verify_ahead, Kind.STEP: self._step, Kind.CLOSE: self._close,
        }
        self._server = CallServer(
            handlers, self._presence, lambda act: self._leader().between_steps(act), hop_s=spec.hop_s,
            spans=Spans.open(watch, {"outrider.component": "rank"}, {"outrider.tier": name}),
        )

    async def locate(self) -> str:
        """Address of the node that this rank runs on."""
        return node_address()

    async def rendezvous(self, host: str) -> Rendezvous:
        """Open the group's store on a free port of `host`, an address of this node (rank 0 only)."""
        return await asyncio.to_thread(self._open_store, host)

    async def start(self, meeting: Rendezvous | None) -> ReplicaInfo | None:
        """Join the group (None: there is none, this rank is alone), load, shard; rank 0 answers its info."""
        self._loop = asyncio.get_running_loop()
        info = await asyncio.to_thread(self._start, meeting)
        settle()
        return info

    async def listen(self) -> Endpoint:
        """Take verify passes on a port of this node (rank 0, once `start` has returned)."""
        return await self._server.listen(node_address())

    def _verify(self, payload: bytes) -> Call | Announced:
        """Verify the concatenation of the drafts after the context; none means a plain step."""
        context, drafts, want_laws = decode_verify(payload)
        if drafts is None:
            verify = self._leader().expect(context, want_laws)
            return Announced(lambda draft: self._call(context, lambda: verify(readable([draft]))))
        return self._call(context, lambda: self._leader().verify(context, drafts, want_laws))

    def _propose(self, payload: bytes) -> Call:
        """Draft with this tier's own model, when the tiers below it are left out."""
        context, shape = decode_propose(payload)
        return self._call(context, lambda: self._leader().propose(context, shape))

    def _enumerate(self, payload: bytes) -> Call:
        """Draft with this tier's own model for the outcomes of a pass of the tier above."""
        context, draft, verify_round, plan = decode_ahead(payload)
        return self._call(context, lambda: self._leader().enumerate(context, draft, verify_round, plan))

    def _verify_ahead(self, payload: bytes) -> Call:
        """Verify whichever branch of an enumeration fits the outcome of the pass before."""
        sequence_id, round, enumeration = decode_verify_ahead(payload)
        return Call(sequence_id, self._gate.pass_on(
            sequence_id, None, lambda: self._leader().verify_ahead(sequence_id, round, enumeration)
        ))

    def _step(self, payload: bytes) -> Call:
        """Draft after the context and the drafts with what is inline here, and verify all of it."""
        from actors.inline import InlineVerifier

        context, shape, drafts = decode_step(payload)
        leader = self._leader()
        if not isinstance(leader, InlineVerifier):
            raise RuntimeError(f"tier {self._spec.tier} has no drafter inline: call verify")
        return self._call(context, lambda: leader.step(context, shape, drafts))

    def _forget(self, sequence_id: str, held: Ids | None) -> None:
        self._leader().close(sequence_id, held)

    async def info(self) -> ReplicaInfo:
        """What this replica serves."""
        return self._leader().info()

    async def stats(self) -> ReplicaStats:
        """Current counters."""
        return self._leader().stats()

    async def shutdown(self) -> None:
        """Stop the engine and let the followers go (rank 0)."""
        self._presence.end_all()
        self._server.close()
        if self._verifier is not None:
            await asyncio.to_thread(self._verifier.shutdown)
        if self._runner is not None:
            await asyncio.to_thread(self._runner.stop)

    def _leader(self) -> Verifies:
        if self._verifier is None:
            raise RuntimeError(f"rank {self._rank} does not lead (yet): call rank 0 once `start` has returned")
        return self._verifier

    def _on_closed(self, sequence_id: str) -> None:
        """The engine freed a sequence by itself (its thread calls this)."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._presence.end, sequence_id)

    def _open_store(self, host: str) -> Rendezvous:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in its __all__

        listener = socket.create_server((host, 0))  # bound here, so that it listens on `host` alone
        port = listener.getsockname()[1]
        self._store = TCPStore(
            host, port, self._spec.tensor_parallel_size, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=LOAD_TIMEOUT_S), master_listen_fd=listener.detach(),
        )
        return Rendezvous(host, port)

    def _start(self, meeting: Rendezvous | None) -> ReplicaInfo | None:
        from actors.build import build_verifier, with_inline
        from actors.engine.broadcast import BroadcastRunner, follow

        runner: BroadcastRunner | None = None
        if meeting is not None:
            group = self._join(meeting)
            local = self._load_shard(group, on_one_machine=meeting.host == LOOPBACK)
            channel = self._channel(group)
            timeout_s = self._spec.step_timeout_s
            if self._rank > 0:
                threading.Thread(
                    target=follow, args=(local, channel, timeout_s), name="follow", daemon=True
                ).start()
                return None
            runner = self._runner = BroadcastRunner(local, channel, timeout_s)
        verifier = build_verifier(self._spec, runner, self._law_support, self._on_closed)
        self._verifier = with_inline(verifier, self._spec, self._inline, self._law_support)
        return self._verifier.info()

    def _channel(self, group: dist.ProcessGroup) -> Channel:
        """How rank 0 tells the others: shared memory on one machine, else the process group."""
        from actors.engine.broadcast import GroupChannel

        spec = self._spec
        if spec.device == "cpu" and spec.kernels == "native":
            from actors.engine.native.channel import open_channel

            shared = open_channel(self._rank, spec.tensor_parallel_size, spec.step_timeout_s)
            if shared is not None:
                return shared
        return GroupChannel(group)

    def _join(self, meeting: Rendezvous) -> dist.ProcessGroup:
        """The group that steps run over; its collectives fail after `step_timeout_s`."""
        if meeting.host == LOOPBACK and "lo" in (name for _, name in socket.if_nameindex()):
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # one node: nothing needs to be reachable from outside
        # DeepSpeed names its shared memory by these.
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = meeting.host, str(meeting.port)
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as above

        size, patience = self._spec.tensor_parallel_size, timedelta(seconds=LOAD_TIMEOUT_S)
        store = self._store or TCPStore(meeting.host, meeting.port, size, is_master=False, timeout=patience)
        dist.init_process_group("gloo", store=store, rank=self._rank, world_size=size, timeout=patience)
        group: dist.ProcessGroup | None = dist.new_group(timeout=timedelta(seconds=self._spec.step_timeout_s))
        assert group is not None
        return group

    def _grain(self, model: Any, on_one_machine: bool) -> int:
        """How MLPs are cut."""
        from actors.engine.native.anatomy import is_fusable
        from actors.engine.native.exchange import FETCHED_BYTES
        from actors.engine.native.weights import BYTES
        from actors.loading.sharded import GRAIN, mlp_grain

        spec = self._spec
        if not on_one_machine or spec.device != "cpu" or spec.kernels != "native" or not is_fusable(model):
            return GRAIN  # nothing is fetched while others are waited for
        if spec.num_threads != 1:  # by one thread of each rank
            return GRAIN
        config = model.config.get_text_config()
        return mlp_grain(config, spec.tensor_parallel_size, BYTES[spec.weights], FETCHED_BYTES)

    def _load_shard(self, group: dist.ProcessGroup, on_one_machine: bool) -> ModelRunner:
        import torch
        import torch.distributed as dist

        from actors.engine.make import make_runner
        from actors.loading.checkpoint import load_model
        from actors.loading.sharded import shard

        if self._spec.num_threads is not None:
            torch.set_num_threads(self._spec.num_threads)
        model = load_model(self._spec)
        shard(model, self._spec.tensor_parallel_size, group, grain=self._grain(model, on_one_machine))
        spec = self._spec if self._rank == 0 else replace(self._spec, feature_layers=())  # one rank keeps them for all
        local = make_runner(model, spec)
        dist.barrier()  # patient; from here on the ranks are in step and `group`'s short timeout may hold
        return local
