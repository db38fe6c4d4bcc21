"""Random histories of the KV bookkeeping against a model that really writes into slots."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.engine.kv import KVManager, parallel_copies

PAGE = 3
NUM_PAGES = 12
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4 * PAGE)
pick = st.integers(0, 10**6)


class KVMachine(RuleBasedStateMachine):
    """`memory` plays the KV tensors: each slot holds the whole prefix that its key would depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVManager(NUM_PAGES, PAGE)
        self.memory: list[tuple[int, ...] | None] = [None] * (NUM_PAGES * PAGE)
        self.pending: list[tuple[int, int]] = []  # copies not made yet
        self.truth: dict[str, list[int]] = {}
        self.committed: dict[str, int] = {}
        self.decided: set[tuple[int, ...]] = set()  # prefixes that were ever decided
        self.count = 0

    def new_id(self) -> str:
        self.count += 1
        return f"s{self.count}"

    def some(self, number: int) -> str:
        return sorted(self.truth)[number % len(self.truth)]

    def copied(self) -> list[tuple[int, ...] | None]:
        """`memory` after the pending copies, all made at once."""
        memory = list(self.memory)
        for source, target in parallel_copies(self.pending):
            memory[target * PAGE : (target + 1) * PAGE] = self.memory[source * PAGE : (source + 1) * PAGE]
        return memory

    def flush(self) -> None:
        self.memory = self.copied()
        self.pending.clear()

    @rule(prompt=tokens)
    def open(self, prompt: list[int]) -> None:
        name = self.new_id()
        found = self.kv.open(name, prompt)
        assert found % PAGE == 0 and found < len(prompt)
        # Only what was decided is ever found; contents are checked by the invariant.
        assert found == 0 or tuple(prompt[:found]) in self.decided
        self.truth[name], self.committed[name] = prompt[:found], found

    @precondition(lambda self: self.truth)
    @rule(number=pick, new=tokens, extra=st.integers(0, PAGE + 1))
    def reserve_and_advance(self, number: int, new: list[int], extra: int) -> None:
        name = self.some(number)
        start = len(self.truth[name])
        before = self.kv.num_free, self.kv.pages(name).tolist()
        copies = self.kv.reserve(name, start + len(new) + extra)
        if copies is None:
            assert (self.kv.num_free, self.kv.pages(name).tolist()) == before
            return
        self.pending += copies
        self.flush()
        history = [*self.truth[name], *new]
        for position, slot in enumerate(self.kv.slots(name, start, start + len(new)).tolist(), start):
            self.memory[slot] = tuple(history[: position + 1])
        self.kv.advance(name, new)
        self.truth[name] = history

    @precondition(lambda self: self.truth)
    @rule(number=pick, ahead=st.integers(1, 2 * PAGE))
    def reserve_only(self, number: int, ahead: int) -> None:
        name = self.some(number)
        self.pending += self.kv.reserve(name, len(self.truth[name]) + ahead) or []

    @precondition(lambda self: self.truth)
    @rule(number=pick, fraction=st.floats(0, 1))
    def commit(self, number: int, fraction: float) -> None:
        name = self.some(number)
        num_tokens = round(len(self.truth[name]) * fraction)
        self.kv.commit(name, num_tokens)
        self.committed[name] = max(self.committed[name], num_tokens)
        self.decided |= {tuple(self.truth[name][:n]) for n in range(self.committed[name] + 1)}

    @precondition(lambda self: self.truth)
    @rule(number=pick)
    def fork(self, number: int) -> None:
        name, twin = self.some(number), self.new_id()
        self.kv.fork(name, twin)
        self.truth[twin], self.committed[twin] = list(self.truth[name]), self.committed[name]

    @precondition(lambda self: self.truth)
    @rule(number=pick, fraction=st.floats(0, 1))
    def truncate(self, number: int, fraction: float) -> None:
        name = self.some(number)
        new_len = round(len(self.truth[name]) * fraction)
        self.kv.truncate(name, new_len)
        free = self.kv.num_free
        self.kv.truncate(name, new_len)
        assert self.kv.num_free == free
        self.truth[name] = self.truth[name][:new_len]
        self.committed[name] = min(self.committed[name], new_len)

    @precondition(lambda self: self.truth)
    @rule(number=pick)
    def discard(self, number: int) -> None:
        name = self.some(number)
        for page in self.kv.discard(name):
            for slot in range(page * PAGE, (page + 1) * PAGE):
                self.memory[slot] = None
        self.truth[name], self.committed[name] = [], 0

    @precondition(lambda self: self.truth)
    @rule(number=pick)
    def release(self, number: int) -> None:
        name = self.some(number)
        self.kv.release(name)
        del self.truth[name], self.committed[name]
        assert not self.kv.has(name)

    @invariant()
    def every_sequence_reads_back_its_own_tokens(self) -> None:
        memory = self.copied()
        for name, truth in self.truth.items():
            assert self.kv.tokens(name).tolist() == truth and self.kv.length(name) == len(truth)
            slots = self.kv.slots(name, 0, len(truth))
            pages = self.kv.pages(name)
            positions = np.arange(len(truth))
            assert np.array_equal(slots, pages[positions // PAGE] * PAGE + positions % PAGE)
            assert [memory[slot] for slot in slots] == [tuple(truth[: n + 1]) for n in positions.tolist()]

    @invariant()
    def the_books_add_up(self) -> None:
        self.kv.check_integrity()

    def teardown(self) -> None:
        for name in list(self.truth):
            self.kv.release(name)
        self.kv.check_integrity()
        assert self.kv.num_free == NUM_PAGES


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
