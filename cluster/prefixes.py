"""Which replica met which beginning of a text: a bounded memory, and how coordinators share it.

It is only a guess: a replica that vanished or evicted its pages costs a miss, never a wrong token. Hence nothing is
ever taken out but by age, and whoever asks ignores replicas that it does not know.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.messages import Ids

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 32  # shorter beginnings are not worth a thought
MAX_BLOCKS = 200_000  # of all texts together: about 6 million tokens, some tens of megabytes
MAX_REPLICAS = 8  # remembered per block, the latest ones: of all pools together
ANSWER_S = 0.5  # a shared memory that needs longer is done without,
SILENCE_S = 10.0  # and not asked again for this long


def digests(tokens: Ids) -> list[bytes]:
    """Names of the beginnings of a text, one for each whole block: the i-th names everything up to its end."""
    data = np.ascontiguousarray(tokens, np.int32).tobytes()
    size = 4 * BLOCK_TOKENS
    names, last = [], b""
    for start in range(0, len(data) - size + 1, size):
        last = hashlib.blake2b(last + data[start : start + size], digest_size=8).digest()
        names.append(last)
    return names


class PrefixIndex:
    """Blocks with the replicas that met them, least recently met first."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._blocks)

    def learn(self, names: Sequence[bytes], replica: str) -> None:
        """A replica met this text, as `digests` names it."""
        for name in reversed(names):  # the beginning last: it outlives its ends
            others = tuple(each for each in self._blocks.get(name, ()) if each != replica)
            self._blocks[name] = (replica, *others[: MAX_REPLICAS - 1])
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def shares(self, names: Sequence[bytes]) -> dict[str, float]:
        """How much of this text, as a share of its blocks, each replica met at most. Others met none of it."""
        shares: dict[str, float] = {}
        for index, name in enumerate(names):
            known = self._blocks.get(name)
            if known is None:
                break
            shares.update(dict.fromkeys(known, (index + 1) / len(names)))
        return shares


class Prefixes(Protocol):
    """What a tier asks before it leases, and tells afterwards."""

    async def shares(self, names: Sequence[bytes]) -> dict[str, float]:
        """As `PrefixIndex.shares`. Never raises and never waits long."""

    def learn(self, names: Sequence[bytes], replica: str) -> None:
        """As `PrefixIndex.learn`."""


class LocalPrefixes:
    """The memory of the only coordinator."""

    def __init__(self) -> None:
        self._index = PrefixIndex()

    async def shares(self, names: Sequence[bytes]) -> dict[str, float]:
        """From memory."""
        return self._index.shares(names)

    def learn(self, names: Sequence[bytes], replica: str) -> None:
        """Into memory."""
        self._index.learn(names, replica)


class PrefixDirectory:
    """The memory of several coordinators (wrapped as a Serve deployment in `cluster.app`). Empty after a restart."""

    def __init__(self) -> None:
        self._index = PrefixIndex()

    async def shares(self, names: list[bytes]) -> dict[str, float]:
        """As `PrefixIndex.shares`."""
        return self._index.shares(names)

    async def learn(self, names: list[bytes], replica: str) -> None:
        """As `PrefixIndex.learn`."""
        self._index.learn(names, replica)


class SharedPrefixes:
    """A coordinator's view of the directory, and its own memory for when that does not answer."""

    def __init__(self, directory: DeploymentHandle[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._own = PrefixIndex()
        self._telling: set[asyncio.Task[None]] = set()
        self._ask_at = float("-inf")

    async def shares(self, names: Sequence[bytes]) -> dict[str, float]:
        """What the directory knows, else what was met here."""
        if not names:
            return {}
        if self._clock() < self._ask_at:
            return self._own.shares(names)
        try:
            async with asyncio.timeout(ANSWER_S):
                shares: dict[str, float] = await self._directory.shares.remote(list(names))
        except (RayError, RayServeException, TimeoutError) as error:
            self._note(error)
            return self._own.shares(names)
        return shares

    def learn(self, names: Sequence[bytes], replica: str) -> None:
        """Remember here, and tell the directory in the background."""
        if not names:
            return
        self._own.learn(names, replica)
        task = asyncio.create_task(self._tell(list(names), replica))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, names: list[bytes], replica: str) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._directory.learn.remote(names, replica)
        except (RayError, RayServeException, TimeoutError) as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        if self._clock() >= self._ask_at:
            self._ask_at = self._clock() + SILENCE_S
            logger.warning(
                "the prefix directory does not answer (%s): for %.0f s requests are routed by what this ingress "
                "replica alone has seen", type(error).__name__, SILENCE_S,
            )
