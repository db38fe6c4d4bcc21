"""What the ingress does to be watched: each request is metered, and traced if it is sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any

from google.protobuf.json_format import MessageToJson
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors import logs
from cluster.config import Config
from cluster.coordinator.figures import FigureCounter
from cluster.coordinator.ladder import Ladder
from cluster.ingress.admission import Admission
from cluster.ingress.convert import IngressRequest
from cluster.ingress.errors import status_of
from cluster.rpc import outrider_pb2 as pb
from cluster.telemetry import metrics as m
from cluster.telemetry.metrics import Report, Sample
from cluster.telemetry.prometheus import text_of
from cluster.telemetry.publisher import Publisher
from cluster.telemetry.scrape import pool_reports
from cluster.telemetry.service import RequestMeter, ServiceMetrics
from cluster.telemetry.tracing import RequestTrace, Tracing

Metadata = Iterable[tuple[str, str | bytes]]


class WatchedRequest:
    """One request."""

    def __init__(self, meter: RequestMeter, trace: RequestTrace | None) -> None:
        self._meter = meter
        self._trace = trace
        self._text: list[str] = []  # only where traces may hold it
        self.figures = FigureCounter("")
        self.outcome = "cancelled"  # until another is known

    def taken(self, checked: IngressRequest, request: pb.GenerateRequest) -> None:
        """The request was found good: from now on `figures` counts its rounds."""
        logs.request_id.set(checked.sequence_id)
        trace = self._trace
        self.figures = FigureCounter(checked.sequence_id) if trace is None else trace.figures(checked.sequence_id)
        self._meter.taken(self.figures, len(checked.prompt_ids))
        if trace is None:
            return
        trace.set({
            "outrider.request_id": checked.sequence_id, "gen_ai.usage.input_tokens": len(checked.prompt_ids),
            "gen_ai.request.max_tokens": checked.max_tokens, "gen_ai.request.temperature": checked.sampling.temperature,
            "outrider.verification": checked.sampling.mode.value, "outrider.speculation": not checked.speculation_off,
        })
        if trace.include_text:
            prompt = MessageToJson(request.chat) if request.HasField("chat") else request.text
            trace.set({"outrider.prompt": prompt})

    @asynccontextmanager
    async def turn(self, slot: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        """Hold `slot`, once it is the request's turn."""
        async with AsyncExitStack() as stack:
            with nullcontext() if self._trace is None else self._trace.span("queue"):
                await stack.enter_async_context(slot)
            self._meter.admitted()
            yield

    def ladder(self, ladder: Ladder) -> Ladder:
        """The ladder that the request climbs, which it does from now on."""
        return ladder if self._trace is None else self._trace.ladder(ladder)

    def committed(self, num_tokens: int) -> None:
        """A round has committed so many tokens."""
        self._meter.tokens(num_tokens)

    def shown(self, chunk: pb.GenerateChunk) -> None:
        """What the client gets."""
        if chunk.HasField("finish"):
            self.outcome = pb.FinishReason.Name(chunk.finish.reason).removeprefix("FINISH_REASON_").lower()
        if self._trace is not None and self._trace.include_text:
            self._text.append(chunk.text)

    def failed(self, error: Exception) -> None:
        """The request ends with a status. A client that leaves after the finish has got it all the same."""
        self.outcome = status_of(error).code.name.lower()

    def end(self, *, failed: bool) -> None:
        """It is over."""
        self._meter.ended(self.outcome)
        if self._trace is not None:
            if self._text:
                self._trace.set({"outrider.completion": "".join(self._text)})
            self._trace.end(self.outcome, self.figures.snapshot(), failed=failed)


class IngressWatch:
    """Of one ingress replica."""

    def __init__(
        self, config: Config, tag: str, admission: Admission, pools: Iterable[DeploymentHandle[Any]],
        board: DeploymentHandle[Any] | None,
    ) -> None:
        """`board`: where several ingress replicas put what they count; None for the only one. Start it once built."""
        spec, settings = config.watch, config.telemetry
        leased = [config.tiers[shared[-1]].name for shared in config.processes]
        names = tuple(leased if config.speculation.enabled else leased[-1:])
        process = {"outrider.component": "ingress", "service.instance.id": tag}
        self._config = config
        self._source = (("model_name", config.model_name), ("replica", tag))
        self._admission = admission
        least = [config.tiers[shared[-1]].replicas.min for shared in config.processes]
        self._pools = tuple(zip(pools, least, strict=True))
        self._board = board
        self._metrics = ServiceMetrics([tier.name for tier in config.tiers], names)
        self._tracing = Tracing.open(
            spec, process, config.model_name, names, sample_ratio=settings.sample_ratio,
            include_text=settings.include_text,
        )
        self._publisher = Publisher(
            spec, process, self._told, interval_s=settings.interval_s, through_ray=settings.ray_metrics,
            always=board is not None,
        )

    def start(self) -> None:
        """Publish from now on, in the running event loop."""
        self._publisher.start()

    @contextmanager
    def request(self, metadata: Metadata) -> Iterator[WatchedRequest]:
        """A request with this metadata (or these headers), from its arrival to its end."""
        trace = None if self._tracing is None else self._tracing.request(metadata)
        watched = WatchedRequest(self._metrics.request(), trace)
        failed = False
        try:
            yield watched
        except Exception as error:
            failed = True
            watched.failed(error)
            raise
        finally:
            watched.end(failed=failed)

    @contextmanager
    def guarded(self, admission: AbstractContextManager[str | None]) -> Iterator[str | None]:
        """As `admission`; whoever it turns away is counted."""
        with ExitStack() as stack:
            try:
                caller = stack.enter_context(admission)
            except Exception as error:
                self._metrics.refused(status_of(error).code.name.lower())
                raise
            yield caller

    def report(self) -> Report:
        """What this replica counts."""
        admission, limits = self._admission, self._config.limits
        return Report(self._source, (
            Sample(m.RUNNING, admission.num_running), Sample(m.WAITING, admission.num_waiting),
            Sample(m.MAX_RUNNING, limits.max_concurrent_requests), Sample(m.MAX_WAITING, limits.max_queued_requests),
            *self._metrics.samples(),
        ))

    async def exposition(self) -> bytes:
        """The metrics of the whole service as Prometheus reads them: of all ingress and all pool replicas."""
        pools = asyncio.gather(*(pool_reports(pool, may_be_empty=least == 0) for pool, least in self._pools))
        own = self.report()
        others = [report for report in await self._others() if report.source != own.source]
        return text_of([own, *others, *(report for reports in await pools for report in reports)])

    async def _others(self) -> list[Report]:
        if self._board is None:
            return []
        try:
            async with asyncio.timeout(1.0):
                reports: list[Report] = await self._board.reports.remote()
        except (RayError, RayServeException, TimeoutError):
            return []
        return reports

    async def _told(self) -> Report:
        report = self.report()
        if self._board is not None:
            await self._board.put.remote([report])
        return report
