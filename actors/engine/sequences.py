"""The sequences an engine holds, and what a call makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from actors.engine.jobs import Job, PrefixMissing, ReplicaFull, SequenceRejected, StaleCall
from actors.engine.kv.manager import KVManager
from actors.engine.kv.vector import IntVector
from actors.messages import Context, Ids
from actors.spec import ModelSpec


@dataclass(eq=False, slots=True)
class Sequence:
    """Everything the engine knows of one sequence. KV of `[0, kv length)` is valid, the rest is to be fed."""

    sequence_id: str
    age: int  # order of opening: the smaller the older
    ids: IntVector  # context of the last call and what was fed after it
    last_used_s: float
    num_committed: int = 0
    round: int = -1
    num_cached: int = 0  # tokens found in the prefix cache when it was opened
    has_run: bool = False
    job: Job | None = None


class SequenceTable:
    """Open sequences by id, with their calls.

    Calls name the truth: a sequence's KV is cut back to what it shares with the context of its new call.
    """

    def __init__(
        self, kv: KVManager, spec: ModelSpec, max_context_tokens: int, vocab_size: int, clock: Callable[[], float]
    ) -> None:
        self._kv = kv
        self._spec = spec
        self._max_context_tokens = max_context_tokens
        self._vocab_size = vocab_size
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._num_opened = 0
        self._num_calls = 0
        self.active: dict[str, Sequence] = {}  # those with a call under way

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, sequence_id: str) -> Sequence:
        return self._sequences[sequence_id]

    def attach(self, job: Job) -> None:
        """Make `job` its sequence's call, in place of an earlier one.

        Raises `PrefixMissing`, `StaleCall`, `SequenceRejected`, `ReplicaFull`; then nothing has changed.
        """
        context, draft = job.context, job.draft_ids()
        self._check(context, len(draft))
        sequence = self._sequences.get(context.sequence_id)
        if sequence is None:
            sequence = self._open(context)
        elif context.start > len(sequence.ids):
            raise PrefixMissing
        elif context.round < sequence.round:
            raise StaleCall("a later call of this sequence came first")
        if sequence.job is not None:
            sequence.job.fail(StaleCall("replaced by a later call"))
        self._rewind(sequence, context, draft)
        sequence.round = context.round
        sequence.num_committed = context.num_committed
        sequence.last_used_s = self._clock()
        sequence.job = job
        self.active[sequence.sequence_id] = sequence
        job.num_cached_tokens = sequence.num_cached
        job.first_logit = context.num_tokens - 1
        job.pending = []
        job.arrival = self._num_calls
        self._num_calls += 1

    def detach(self, sequence: Sequence) -> None:
        """The sequence's call has been answered."""
        sequence.job = None
        sequence.last_used_s = self._clock()
        del self.active[sequence.sequence_id]

    def close(self, sequence_id: str, truth: Ids | None = None) -> bool:
        """Forget a sequence and free its pages; False for unknown ids.

        `truth`: all its committed tokens, if the caller knows them. What was written of them since the last
        call told of commits may then be found by a later prompt as well.
        """
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        if sequence.job is not None:
            sequence.job.fail(StaleCall("the sequence was closed"))
            del self.active[sequence_id]
        if truth is not None:
            common = _num_common(sequence.ids.view(), truth)
            self._kv.commit(sequence_id, min(common, self._kv.length(sequence_id)))
        self._kv.release(sequence_id)
        return True

    def idle(self, idle_s: float) -> list[Sequence]:
        """Sequences that nobody has called for longer than `idle_s`."""
        before = self._clock() - idle_s
        return [s for s in self._sequences.values() if s.job is None and s.last_used_s < before]

    def _check(self, context: Context, num_draft: int) -> None:
        num_tokens = context.num_tokens + num_draft
        if context.num_tokens == 0:
            raise SequenceRejected("the context is empty; a sequence needs at least one token")
        if num_tokens > self._max_context_tokens:
            raise SequenceRejected(f"{num_tokens} tokens exceed this model's context of {self._max_context_tokens}")
        if num_tokens > self._kv.num_pages * self._spec.page_tokens:
            raise SequenceRejected(f"{num_tokens} tokens exceed the KV memory (kv_tokens={self._spec.kv_tokens})")
        ids = context.tokens
        if ids.ndim != 1:
            raise SequenceRejected(f"tokens have the shape {ids.shape}; send a flat list of ids")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise SequenceRejected(f"a token id lies outside the vocabulary of {self._vocab_size}")

    def _open(self, context: Context) -> Sequence:
        if context.start > 0:
            raise PrefixMissing
        if len(self._sequences) >= self._spec.max_sequences:
            self._forget_one_idle()
        sequence_id = context.sequence_id
        sequence = Sequence(sequence_id, self._num_opened, IntVector(), self._clock())
        sequence.num_cached = self._kv.open(sequence_id, context.tokens)
        self._num_opened += 1
        self._sequences[sequence_id] = sequence
        return sequence

    def _forget_one_idle(self) -> None:
        """Make room for a sequence. Whoever still wants the forgotten one is told that its prefix is missing.

        A call that arrives after its sequence was closed opens it again, and nobody will close it then.
        """
        idle = [s for s in self._sequences.values() if s.job is None]
        if not idle:
            raise ReplicaFull(
                f"this replica already runs max_sequences={self._spec.max_sequences} sequences; "
                "raise it, or add replicas"
            )
        self.close(min(idle, key=lambda s: s.last_used_s).sequence_id)

    def _rewind(self, sequence: Sequence, context: Context, draft: Ids) -> None:
        """Cut ids and KV to what they share with the context and draft, and put those in place.

        At least the context's last token is run again: its logits are wanted. `[0, start)` needs no look:
        it is as the sequence holds it.
        """
        new = np.concatenate([context.tokens, draft]) if len(draft) else context.tokens
        common = _num_common(sequence.ids.view(context.start), new)
        sequence.ids.cut(context.start + common)
        sequence.ids.extend(new[common:])
        held = self._kv.length(sequence.sequence_id)
        keep = min(held, context.start + common, context.num_tokens - 1)
        if keep < held:
            self._kv.truncate(sequence.sequence_id, keep)


def _num_common(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length
