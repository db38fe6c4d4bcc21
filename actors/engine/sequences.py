"""The sequences an engine holds, and what a call makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from actors.engine.jobs import Fork, Job, PrefixMissing, ReplicaFull, SequenceRejected, StaleCall
from actors.engine.kv.manager import KVManager
from actors.engine.kv.vector import IntVector
from actors.engine.tree import depths
from actors.few import FEW, within
from actors.messages import Context, Ids
from actors.spec import ModelSpec

BRANCH_MARK = "\0"  # stands in the ids of branches, and in no caller's
_BRANCH_AGE = 2**48  # branches are younger than every sequence


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
    notes: object | None = None  # what its jobs leave to the next one
    branches: list[Sequence] = field(default_factory=list)  # siblings on forked pages, opened by its jobs
    num_whole: int | None = None  # KV from this position on is provisional (see `Job.num_whole`); None: none of it
    num_given: int = 0  # of the tokens with KV: leading ones whose features were given (`actors.engine.features`)
    takes_features: bool = False
    num_covered: int = 0  # leading rows that its call must not run from the drafter's own states (likewise)

    def whole(self, length: int) -> int:
        """Of `length` leading tokens those whose KV counts."""
        return length if self.num_whole is None else min(length, self.num_whole)

    def shareable(self, length: int) -> int:
        """Of `length` leading tokens those that the prefix cache may hold.

        Where features are taken, only those whose own are there: who finds the others would read the drafter's state.
        """
        return min(self.whole(length), self.num_given) if self.takes_features else self.whole(length)


class SequenceTable:
    """Open sequences by id, with their calls.

    Calls name the truth: a sequence's KV is cut back to what it shares with the context of its new call. While a
    sequence waits for the truth, its jobs may run *branches* of it: siblings that begin on its pages (copy on write)
    and go on with what the truth may turn out to be. The next call makes the sibling that shares most with its
    context the sequence, and ends the others. Branches are known to nobody outside.

    KV may be provisional from some position on (`Job.num_whole`): calls on branches, which the jobs of one call make,
    go on from it, the next call of the sequence does not find it, and neither does the prefix cache.
    """

    def __init__(
        self, kv: KVManager, spec: ModelSpec, max_context_tokens: int, vocab_size: int, clock: Callable[[], float],
        *, takes_features: bool = False,
    ) -> None:
        self._kv = kv
        self._takes_features = takes_features
        self._spec = spec
        self._max_context_tokens = max_context_tokens
        self._vocab_size = vocab_size
        self._clock = clock
        self._sequences: dict[str, Sequence] = {}
        self._branches: dict[str, Sequence] = {}
        self._num_opened = 0
        self._num_branches = 0
        self._num_calls = 0
        self.active: dict[str, Sequence] = {}  # those with a call under way

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, sequence_id: str) -> Sequence:
        return self._branches[sequence_id] if sequence_id in self._branches else self._sequences[sequence_id]

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._branches or sequence_id in self._sequences

    @property
    def branches(self) -> list[Sequence]:
        """Branches of all sequences, those first that are given up first: idle ones, then the least likely."""
        return sorted(self._branches.values(), key=lambda s: (s.job is not None, -s.age))

    def attach(self, job: Job) -> None:
        """Make `job` its sequence's call, in place of an earlier one.

        Raises `PrefixMissing`, `StaleCall`, `SequenceRejected`, `ReplicaFull`; then nothing has changed.
        """
        context = job.context
        draft = job.draft_ids()
        self._check(context, len(draft), job.draft_parents())
        sequence = self._sequences.get(context.sequence_id)
        if job.fork is not None:
            sequence = self._branches.get(context.sequence_id) or self._open_branch(job.fork, context.sequence_id)
        elif is_branch(context.sequence_id):
            raise SequenceRejected("a sequence id must not hold the character U+0000")
        elif sequence is None:
            sequence = self._open(context)
        elif context.start > len(sequence.ids):
            raise PrefixMissing
        elif context.round < sequence.round:
            raise StaleCall("a later call of this sequence came first")
        if sequence.job is not None:
            sequence.job.fail(StaleCall("replaced by a later call"))
        self._adopt(sequence, context)
        if job.fork is None and not job.extends:
            self._drop_provisional(sequence)
        told = _told(context, draft)
        common = context.start + _num_common(sequence.ids.view(context.start), told)
        sequence.notes = job.recall(sequence.notes, common)
        now = job.draft_ids()
        if not _same(draft, now):
            told = _told(context, now)
            common = context.start + _num_common(sequence.ids.view(context.start), told)
        self._rewind(sequence, context, told, common, job.num_known)
        sequence.num_covered = sequence.whole(context.num_tokens)
        if job.num_whole is not None:
            sequence.num_whole = sequence.whole(job.num_whole)
        sequence.round = context.round
        sequence.num_committed = context.num_committed
        sequence.last_used_s = self._clock()
        sequence.job = job
        self.active[sequence.sequence_id] = sequence
        job.num_cached_tokens = sequence.num_cached
        job.first_logit = context.num_tokens - 1 + job.num_known
        job.pending = []
        job.arrival = self._num_calls
        self._num_calls += 1
        if job.future.done():
            self.detach(sequence)

    def expect(self, context: Context) -> None:
        """Put a context in place whose call is to come, so that less is left to be done then.

        Any other call may come instead. So only decided tokens are put in place, which every later one has as well: it
        may count on what its sequence held before this. Raises `SequenceRejected`.
        """
        self._check(context, 0, None)
        sequence = self._sequences.get(context.sequence_id)
        if sequence is None or sequence.job is not None or sequence.branches:
            return
        if context.num_tokens > context.num_committed:
            return
        if context.start > len(sequence.ids) or context.round < sequence.round:
            return
        common = context.start + _num_common(sequence.ids.view(context.start), context.tokens)
        if common == context.num_tokens:  # it is there; what follows it may yet be decided
            return
        self._drop_provisional(sequence)
        sequence.notes = None  # they are of what the sequence was until now
        self._rewind(sequence, context, context.tokens, common, num_known=0)

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
        self._fail_branches(sequence, "the sequence was closed")
        if truth is not None:
            self._become(sequence, self._closest(sequence, 0, truth))
            common = _num_common(sequence.ids.view(), truth)
            self._kv.commit(sequence_id, min(common, sequence.shareable(self._kv.length(sequence_id))))
        self._end_branches(sequence)
        self._kv.release(sequence_id)
        return True

    def end_branch(self, branch: Sequence, why: Exception) -> None:
        """Give a branch up; what its call has drafted is that call's answer."""
        if branch.job is not None:
            branch.job.fail(why)
            self.detach(branch)
        del self._branches[branch.sequence_id]
        self._sequences[_trunk_id(branch.sequence_id)].branches.remove(branch)
        self._kv.release(branch.sequence_id)

    def idle(self, idle_s: float) -> list[Sequence]:
        """Sequences that nobody has called for longer than `idle_s`."""
        before = self._clock() - idle_s
        return [s for s in self._sequences.values() if s.job is None and s.last_used_s < before]

    def _check(self, context: Context, num_draft: int, parents: Ids | None) -> None:
        num_tokens = longest = context.num_tokens + num_draft
        if parents is not None:
            longest = context.num_tokens + int(depths(parents).max(initial=-1)) + 1
            if num_draft > self._spec.tree_rows:
                raise SequenceRejected(
                    f"a tree of {num_draft} tokens is larger than what a step has room for, {self._spec.tree_rows}: "
                    "draft a smaller one, or raise max_batch_tokens"
                )
        if context.start < 0:
            raise SequenceRejected(f"the context starts at {context.start}; positions are counted from 0")
        if context.num_tokens == 0:
            raise SequenceRejected("the context is empty; a sequence needs at least one token")
        if longest > self._max_context_tokens:
            raise SequenceRejected(f"{longest} tokens exceed this model's context of {self._max_context_tokens}")
        if num_tokens > self._kv.num_pages * self._spec.page_tokens:
            raise SequenceRejected(f"{num_tokens} tokens exceed the KV memory (kv_tokens={self._spec.kv_tokens})")
        ids = context.tokens
        if ids.ndim != 1:
            raise SequenceRejected(f"tokens have the shape {ids.shape}; send a flat list of ids")
        if not within(ids, self._vocab_size):
            raise SequenceRejected(f"a token id lies outside the vocabulary of {self._vocab_size}")

    def _open(self, context: Context) -> Sequence:
        if context.start > 0:
            raise PrefixMissing
        if len(self._sequences) >= self._spec.max_sequences:
            self._forget_one_idle()
        sequence_id = context.sequence_id
        sequence = Sequence(sequence_id, self._num_opened, IntVector(), self._clock())
        sequence.num_cached = self._kv.open(sequence_id, context.tokens)
        sequence.takes_features = self._takes_features
        sequence.num_given = sequence.num_cached
        self._num_opened += 1
        self._sequences[sequence_id] = sequence
        return sequence

    def _open_branch(self, fork: Fork, branch_id: str) -> Sequence:
        """A sibling of a sequence or branch, on the pages of its first tokens."""
        trunk = self._sequences.get(_trunk_id(branch_id))
        if trunk is None or fork.sequence_id not in self or self._kv.length(fork.sequence_id) < fork.num_tokens:
            raise PrefixMissing
        self._kv.fork(fork.sequence_id, branch_id)
        self._kv.truncate(branch_id, fork.num_tokens)
        ids = IntVector(self[fork.sequence_id].ids.view(0, fork.num_tokens))
        branch = Sequence(branch_id, _BRANCH_AGE + self._num_branches, ids, self._clock())
        branch.num_whole = self[fork.sequence_id].num_whole
        branch.takes_features = self._takes_features
        branch.num_given = min(self[fork.sequence_id].num_given, fork.num_tokens)
        self._num_branches += 1
        self._branches[branch_id] = branch
        trunk.branches.append(branch)
        return branch

    def _adopt(self, sequence: Sequence, context: Context) -> None:
        """Make whichever sibling shares most with the context the sequence itself, and end the others."""
        if not sequence.branches:
            return
        self._fail_branches(sequence, "replaced by a later call")
        self._become(sequence, self._closest(sequence, context.start, context.tokens))
        self._end_branches(sequence)

    def _closest(self, sequence: Sequence, start: int, tokens: Ids) -> Sequence:
        """Of a sequence and its branches, the one that has most of `tokens` (from `start` on) in KV memory, whole."""

        def shared(sibling: Sequence) -> tuple[int, int]:
            common = start + _num_common(sibling.ids.view(start), tokens) if len(sibling.ids) >= start else 0
            return min(common, sibling.whole(self._kv.length(sibling.sequence_id))), common

        return max((sequence, *sequence.branches), key=shared)

    def _become(self, sequence: Sequence, sibling: Sequence) -> None:
        """Give a sequence the KV, the ids and the notes of its sibling, which ends."""
        if sibling is sequence:
            return
        self._kv.replace(sequence.sequence_id, sibling.sequence_id)
        sequence.ids, sequence.notes = sibling.ids, sibling.notes
        sequence.num_whole, sequence.num_given = sibling.num_whole, sibling.num_given
        sequence.branches.remove(sibling)
        del self._branches[sibling.sequence_id]

    def _fail_branches(self, sequence: Sequence, why: str) -> None:
        for branch in sequence.branches:
            if branch.job is not None:
                branch.job.fail(StaleCall(why))
                self.detach(branch)

    def _end_branches(self, sequence: Sequence) -> None:
        for branch in sequence.branches:
            self._kv.release(branch.sequence_id)
            del self._branches[branch.sequence_id]
        sequence.branches = []

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

    def _drop_provisional(self, sequence: Sequence) -> None:
        """Cut KV to what counts. What was drawn from the rest goes too: to go on with it, it would have to be fed."""
        if sequence.num_whole is None:
            return
        held = self._kv.length(sequence.sequence_id)
        if sequence.num_whole < held:
            self._kv.truncate(sequence.sequence_id, sequence.num_whole)
        sequence.notes = sequence.num_whole = None

    def _rewind(self, sequence: Sequence, context: Context, told: Ids, common: int, num_known: int) -> None:
        """Cut ids and KV to what they share with the context and draft, and put those in place.

        `told` is both from the context's start on; the first `common` tokens of all are as the sequence has them.

        At least the context's last token (or the last one of the draft that is known) is run again: its logits are
        wanted. `[0, start)` needs no look: it is as the sequence holds it.
        """
        sequence.ids.cut(common)
        sequence.ids.extend(told[common - context.start :])
        held = self._kv.length(sequence.sequence_id)
        keep = min(held, common, context.num_tokens - 1 + num_known)
        if keep < held:
            self._kv.truncate(sequence.sequence_id, keep)


def branch_id(sequence_id: str, name: str) -> str:
    """The id of a branch; `name` tells it from all others that the sequence ever has."""
    return f"{sequence_id}{BRANCH_MARK}{name}"


def is_branch(sequence_id: str) -> bool:
    """Whether an id is one of `branch_id`."""
    return BRANCH_MARK in sequence_id


def _trunk_id(branch_id: str) -> str:
    return branch_id.partition(BRANCH_MARK)[0]


def _told(context: Context, draft: Ids) -> Ids:
    """The tokens of a context from its start on, and a draft after them."""
    return np.concatenate([context.tokens, draft]) if len(draft) else context.tokens


def _same(a: Ids, b: Ids) -> bool:
    return len(a) == len(b) and _num_common(a, b) == len(a)


def _num_common(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    if length <= FEW:
        pairs = enumerate(zip(a[:length].tolist(), b[:length].tolist(), strict=True))
        return next((index for index, (x, y) in pairs if x != y), length)
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length
