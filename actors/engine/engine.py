"""The engine that draft and target share: a batch in a thread of its own, fed by calls from other threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from actors.engine.batch import Batch
from actors.engine.jobs import Job, ReplicaFull, StaleCall
from actors.engine.shallow import Shallow
from actors.engine.step import KeepsFeatures, ModelRunner, Prepares, TakesFeatures
from actors.messages import Context, Ids, ReplicaStats
from actors.priority import Aside
from actors.spec import ModelSpec

log = logging.getLogger(__name__)

_IDLE_WAIT_S = 1.0  # for a call, when there is nothing to run
_STUCK_WAIT_S = 0.01  # for a call, or for a sequence to be left behind, when every call waits for memory


class Engine:
    """Continuous batching over one `ModelRunner`.

    Calls name the truth: `submit` compares the context with what the sequence holds, truncates KV to the
    common prefix and feeds the rest. `on_closed(sequence_id)` is called from the engine's thread.
    """

    def __init__(
        self,
        runner: ModelRunner,
        spec: ModelSpec,
        max_context_tokens: int,
        on_closed: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.max_context_tokens = max_context_tokens
        self.vocab_size = runner.vocab_size
        self.features_taken = runner.features_taken if isinstance(runner, TakesFeatures) else 0  # as below
        self.features_kept = runner.features_kept if isinstance(runner, KeepsFeatures) else 0  # width of a row
        self._runner = runner
        self._batch = Batch(runner, spec, max_context_tokens, on_closed)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Every sequence may have a call and a close waiting; whatever comes on top has no place to run.
        self._max_waiting = 2 * spec.max_sequences
        self._num_refused = 0
        self._stopping = False
        self._ended = False  # the thread takes no more commands
        self._next_idle_check_s = 0.0
        self._thread = threading.Thread(target=self._loop, name=f"engine-{spec.tier}", daemon=True)
        self._thread.start()

    # Calls from other threads

    def submit(self, job: Job) -> None:
        """Queue a job; its future is resolved by the engine's thread, or fails here if it cannot be queued."""
        if self._commands.qsize() >= self._max_waiting:
            self._num_refused += 1
            if job.future.set_running_or_notify_cancel():
                job.fail(ReplicaFull(f"{self._max_waiting} calls wait for this replica already; add replicas"))
            return
        self._commands.put(partial(self._admit, job))
        self._batch.stop[0] = 1
        if self._ended:
            self._drain_commands(None)

    def expect(self, context: Context) -> None:
        """A job with this context is to be submitted, if all goes well: make its sequence ready while there is nothing
        else to do."""
        if not self._batch.num_active and self._commands.empty():  # no place of a call is taken up by it
            self._commands.put(partial(self._batch.expect, context))

    def close(self, sequence_id: str, truth: Ids | None = None) -> None:
        """Forget a sequence and free its pages; unknown ids are ignored.

        `truth`, all its committed tokens, lets a later prompt find even the last of them in the prefix cache.
        """
        self._commands.put(partial(self._batch.close, sequence_id, truth))

    def between_steps(self, act: Callable[[], None]) -> None:
        """Run `act` in the engine's thread as soon as no step is under way: what a step resolved is complete then.

        Where the step's last call is about what is left of it, that is now.
        """
        if self._batch.at_last and threading.current_thread() is self._thread:
            act()
            return
        self._commands.put(act)
        if self._ended:
            self._drain_commands(None)

    def prepare(self, shallow: Shallow) -> None:
        """Make the runner ready for passes of this kind, where the first one would else keep calls waiting."""
        runner = self._runner
        if not isinstance(runner, Prepares):
            return
        done: Future[None] = Future()

        def act() -> None:
            try:
                runner.prepare(shallow.layers, shallow.exit is not None)
                done.set_result(None)
            except Exception as error:  # to the caller's thread
                done.set_exception(error)

        self._commands.put(act)
        done.result()

    def check_integrity(self) -> None:
        """Raise if pages leaked; runs in the engine's thread between steps."""
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def check() -> None:
            try:
                self._batch.kv.check_integrity()
            except Exception as error:  # handed to the caller's thread
                done.put(error)
            else:
                done.put(None)

        self._commands.put(check)
        error = done.get(timeout=60)
        if error is not None:
            raise error

    def stats(self) -> ReplicaStats:
        """Current counters."""
        batch, kv = self._batch, self._batch.kv
        return ReplicaStats(
            num_sequences=batch.num_sequences,
            num_free_pages=kv.num_free,
            num_cached_pages=kv.num_cached,
            num_pages=kv.num_pages,
            num_steps=batch.num_steps,
            num_rows=batch.num_rows,
            extra={
                "forward_s": batch.forward_s,
                "num_active_calls": batch.num_calls,
                "num_waiting_calls": self._commands.qsize(),
                "num_preemptions": batch.num_preemptions,
                "num_shallow_steps": batch.num_shallow_steps,
                "num_refused_calls": self._num_refused,
            },
        )

    def shutdown(self) -> None:
        """Stop the thread; pending jobs fail."""

        def stop() -> None:
            self._stopping = True

        self._commands.put(stop)
        self._thread.join(timeout=30)

    # The engine's thread

    def _loop(self) -> None:
        self._batch.computing = Aside()
        wait_s: float | None = _IDLE_WAIT_S
        while not self._stopping:
            self._drain_commands(wait_s)
            self._guarded(self._close_idle)  # under load too, or what was left behind would fill max_sequences
            if not self._batch.num_active:
                wait_s = _IDLE_WAIT_S
            else:
                self._gather()
                self._batch.stop[0] = 0  # a call that comes from here on sets it again
                if not self._commands.empty():
                    self._batch.stop[0] = 1
                wait_s = None if self._guarded(self._batch.step) else _STUCK_WAIT_S
        for sequence_id in self._batch.sequence_ids:
            self._guarded(partial(self._batch.close, sequence_id))
        self._ended = True
        self._drain_commands(None)

    def _gather(self) -> None:
        """Wait for those whom the last pass has answered, so that they share the next one with those that wait.

        Where calls need time to come back, sequences would else fall into groups that take turns, each in passes that
        cost as much as one of all.
        """
        until_s = self._batch.pass_ended_s + self.spec.gather_s
        while (left_s := until_s - time.monotonic()) > 0 and self._batch.num_expected and not self._stopping:
            self._drain_commands(left_s)

    def _guarded(self, act: Callable[[], bool | None]) -> bool | None:
        """A fault of ours must not end the thread: every call would hang. What runs fails instead."""
        try:
            return act()
        except Exception as error:
            log.exception("the engine failed")
            self._batch.fail_all(error)
            return True

    def _drain_commands(self, wait_s: float | None) -> None:
        """Obey all commands; wait for the first one up to `wait_s`, None: not at all."""
        try:
            if wait_s is not None:
                self._guarded(self._commands.get(timeout=wait_s))
            while not self._commands.empty():
                self._guarded(self._commands.get_nowait())
        except queue.Empty:
            return

    def _close_idle(self) -> None:
        now = time.monotonic()
        if now >= self._next_idle_check_s:
            self._next_idle_check_s = now + min(1.0, self.spec.idle_timeout_s / 2)
            self._batch.close_idle()

    def _admit(self, job: Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        if self._stopping:
            job.fail(StaleCall("the engine was shut down"))
            return
        self._batch.attach(job)
