"""Publishes a process's metrics now and then: through Ray, and to a collector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from actors.watch import WatchSpec
from cluster.telemetry.metrics import Report
from cluster.telemetry.otlp import OtlpMetrics
from cluster.telemetry.through_ray import RayMetrics

logger = logging.getLogger(__name__)


class Publisher:
    """Of one process; lives in the event loop that calls `start`."""

    def __init__(
        self, spec: WatchSpec, process: Mapping[str, str], report: Callable[[], Awaitable[Report]], *,
        interval_s: float, through_ray: bool, always: bool = False,
    ) -> None:
        """`process` describes this one in OTLP. `always`: `report` is to be called even if nothing is published."""
        self._report = report
        self._interval_s = interval_s
        self._always = always
        self._ray = RayMetrics() if through_ray else None
        self._otlp = OtlpMetrics.open(spec, process)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Publish every interval from now on; no effect where nothing is to be published."""
        if self._always or self._ray is not None or self._otlp is not None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                report = await self._report()
                if self._ray is not None:
                    self._ray.publish(report)
                if self._otlp is not None:
                    await asyncio.to_thread(self._otlp.publish, report)
            except Exception as error:  # metrics are no reason to serve nobody; the next turn may go better
                logger.warning("metrics were not published: %s", type(error).__name__)
