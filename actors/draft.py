"""Ray actor of a drafting tier: a thin asynchronous shell over a `Drafter`.

Proposals arrive over the wire (`actors.wire`); what is called once per sequence or less arrives as actor calls.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from actors import logs
from actors.cores import stay_on
from actors.drafter_specs import DrafterSpec
from actors.garbage import settle
from actors.leased import LeasedActor
from actors.messages import Draft, Enumeration, Ids, ReplicaInfo, ReplicaStats
from actors.spans import Spans
from actors.spec import InlineTier, ModelSpec
from actors.watch import WatchSpec
from actors.wire.access import Endpoint
from actors.wire.codec import decode_ahead, decode_propose
from actors.wire.frames import Kind
from actors.wire.server import Call, CallServer, completed, node_address

log = logging.getLogger(__name__)

DEFAULT_FACTORY = "actors.build:build_drafter"


def load_factory(path: str) -> Callable[..., Any]:
    """The callable that "package.module:name" names; imported late, because it pulls in PyTorch."""
    module, _, name = path.partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return factory


class DraftActor(LeasedActor):
    """Answers many concurrent calls. A proposal it cannot serve is an empty draft, never an exception."""

    def __init__(
        self, model_spec: ModelSpec, drafter_spec: DrafterSpec, factory: str = DEFAULT_FACTORY,
        inline: Sequence[InlineTier] = (), watch: WatchSpec = WatchSpec(), name: str = "draft",  # noqa: B008  # frozen
    ) -> None:
        """`inline`: tiers below this one that run in this process, smallest first. `name`: of the tier."""
        logs.configure(watch, component=name)
        stay_on(model_spec.cores)
        self._spec = model_spec
        self._kind = drafter_spec.kind
        super().__init__(model_spec.idle_timeout_s)
        below = {"inline": inline} if inline else {}
        self._drafter = load_factory(factory)(model_spec, drafter_spec, **below)
        handlers = {Kind.PROPOSE: self._propose, Kind.AHEAD: self._enumerate, Kind.CLOSE: self._close}
        self._server = CallServer(
            handlers, self._presence, self._drafter.between_steps, hop_s=model_spec.hop_s,
            spans=Spans.open(watch, {"outrider.component": "draft"}, {"outrider.tier": name}),
        )
        settle()

    async def listen(self) -> Endpoint:
        """Take proposals on a port of this node."""
        return await self._server.listen(node_address())

    def _propose(self, payload: bytes) -> Call:
        started = time.monotonic()
        context, shape = decode_propose(payload)

        def start() -> Future[Draft]:
            try:
                drafted: Future[Draft] = self._drafter.propose(context, shape)
                return drafted
            except Exception as error:  # whatever happened, the round goes on without a draft and says why
                return completed(Draft(
                    np.empty(0, np.int32), tier=self._spec.tier, error=f"{type(error).__name__}: {error}",
                    seconds=time.monotonic() - started,
                ))

        return self._call(context, start)

    def _enumerate(self, payload: bytes) -> Call:
        context, draft, verify_round, plan = decode_ahead(payload)

        def start() -> Future[Enumeration]:
            try:
                drafted: Future[Enumeration] = self._drafter.enumerate(context, draft, verify_round, plan)
                return drafted
            except Exception as error:  # the verify pass under way then simply has no successor yet
                return completed(
                    Enumeration(verify_round, tier=self._spec.tier, error=f"{type(error).__name__}: {error}")
                )

        return self._call(context, start)

    def _forget(self, sequence_id: str, held: Ids | None) -> None:
        self._drafter.close(sequence_id, held)

    async def info(self) -> ReplicaInfo:
        """What the replica says of itself."""
        if hasattr(self._drafter, "info"):
            info: ReplicaInfo = self._drafter.info()
            return info
        return ReplicaInfo(  # a drafter without a model has no vocabulary of its own: any tokenizer suits it
            tier=self._spec.tier, model=self._kind, vocab_size=0, max_context_tokens=2**31 - 1,
            num_pages=0, page_tokens=self._spec.page_tokens, tokenizer_fingerprint="",
        )

    async def stats(self) -> ReplicaStats:
        """Current counters."""
        stats: ReplicaStats = self._drafter.stats()
        return stats
