"""A target's tensor-parallel ranks as plain processes: the classes of the Ray actors, without Ray.

Each rank is a `RankWorker` in a spawned process of its own. Rank 0 runs the decoding loop itself, so that what is
measured is the group and not the way to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

from actors.messages import Ids
from actors.ranks import LOOPBACK, RankWorker, Rendezvous
from actors.spec import ModelSpec
from actors.verifier import Verifier
from cluster.bench.engine.decode import Decoded, decode
from cluster.bench.quiet import quiet_transformers

START_TIMEOUT_S = 600.0
DECODE_TIMEOUT_S = 3600.0
STOP_TIMEOUT_S = 15.0


class RanksFailed(RuntimeError):
    """The processes could not be started, or one of them ended."""


class MeasuredRank(RankWorker):
    """A rank that can also decode by itself, next to its engine."""

    def decode(self, prompts: Sequence[Ids], num_tokens: int) -> Decoded:
        """See `cluster.bench.engine.decode`; rank 0 only."""
        leader = self._leader()
        assert isinstance(leader, Verifier)  # no tiers inline
        return decode(leader, prompts, num_tokens)


class RankProcesses:
    """`spec.tensor_parallel_size` ranks with `spec.num_threads` threads each, for the length of a `with` block."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        spawn = multiprocessing.get_context("spawn")  # a forked process would inherit PyTorch's threads
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(spec.tensor_parallel_size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve_rank, args=(spec, rank, theirs), daemon=True, name=f"rank{rank}")
            self._ends.append(ours)
            self._processes.append(process)
            process.start()
            theirs.close()

    def __enter__(self) -> Self:
        """Join the ranks and load the model. Raises `RanksFailed`."""
        try:
            meeting: Rendezvous | None = None
            if len(self._ends) > 1:
                self._ends[0].send(("rendezvous", LOOPBACK))
                meeting = self._answer(0, START_TIMEOUT_S)  # type: ignore[assignment]
            for end in self._ends:
                end.send(("start", meeting))
            self._all_answer(START_TIMEOUT_S)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def decode(self, prompts: Sequence[Ids], num_tokens: int) -> Decoded:
        """Greedy plain decoding of all prompts together. Raises `RanksFailed`."""
        self._ends[0].send(("decode", (list(prompts), num_tokens)))
        answer = self._answer(0, DECODE_TIMEOUT_S)
        assert isinstance(answer, Decoded)
        return answer

    def _all_answer(self, timeout_s: float) -> None:
        """Whoever comes first: one that fails leaves the others waiting for it."""
        waiting = list(self._ends)
        while waiting:
            ready = wait(waiting, timeout_s)
            if not ready:
                raise RanksFailed(f"not all ranks of {self._spec.model} were up within {timeout_s:g} s")
            for end in waiting[:]:
                if end in ready:
                    self._answer(self._ends.index(end), 0.0)
                    waiting.remove(end)

    def _answer(self, rank: int, timeout_s: float) -> object:
        try:
            if not self._ends[rank].poll(timeout_s):
                raise RanksFailed(f"rank {rank} did not answer within {timeout_s:g} s")
            good, value = self._ends[rank].recv()
        except EOFError:
            raise RanksFailed(f"rank {rank} of {self._spec.model} ended unexpectedly") from None
        if not good:
            raise RanksFailed(f"rank {rank}: {value}")
        return value

    def _stop(self) -> None:
        for end, process in zip(self._ends, self._processes, strict=True):  # rank 0 first: it releases the others
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                end.send(("stop", None))
            process.join(STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()
        for end in self._ends:
            end.close()


def _serve_rank(spec: ModelSpec, rank: int, pipe: Connection) -> None:
    """Main of a rank's process: obey one order after another until told to stop, or until the parent is gone."""
    logging.basicConfig(level=logging.ERROR)
    with (
        open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere),  # DeepSpeed prints what it cuts
        quiet_transformers(),
    ):
        asyncio.run(_obey(MeasuredRank(spec, rank), pipe))


async def _obey(worker: MeasuredRank, pipe: Connection) -> None:
    while True:
        try:
            order, argument = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        try:
            result: object = None
            if order == "rendezvous":
                result = await worker.rendezvous(argument)
            elif order == "start":
                result = await worker.start(argument)
            elif order == "decode":
                result = await asyncio.to_thread(worker.decode, *argument)
            elif order == "stop":
                await worker.shutdown()
                return
        except Exception as error:  # told to the parent, which decides
            pipe.send((False, f"{type(error).__name__}: {error}"))
        else:
            pipe.send((True, result))
