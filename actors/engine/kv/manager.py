"""The facade over pool, ledger and tables: what the engine calls every step.

Lengths of one sequence, in tokens:

    [0, committed)        decided; full pages of it are in the prefix cache
    [committed, length)   written but unverified; never in the prefix cache
    [length, writable)    reserved; a step may write here, then `advance` makes it part of the sequence
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.engine.kv.errors import IntegrityError, UnknownSequence
from actors.engine.kv.ledger import ROOT, PageLedger
from actors.engine.kv.pool import PagePool
from actors.engine.kv.table import PageTable, pages_for
from actors.engine.kv.vector import Int32s, IntVector


@dataclass(slots=True, eq=False)
class _Held:
    """What one sequence holds."""

    table: PageTable
    tokens: IntVector
    committed: int = 0  # tokens
    writable: int = 0  # tokens; [length, writable) may be written without another reserve
    digests: list[bytes] = field(default_factory=list)  # of its full committed pages, from the first on


class KVManager:
    """Pages of many sequences, with prefix sharing, copy on write and rollback by length."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        if page_tokens <= 0:
            raise ValueError(f"page_tokens is {page_tokens}: a page must hold at least one token")
        self.page_tokens = page_tokens
        self._pool = PagePool(num_pages)
        self._ledger = PageLedger(num_pages)
        self._held: dict[str, _Held] = {}

    @property
    def num_pages(self) -> int:
        """All pages."""
        return self._pool.num_pages

    @property
    def num_free(self) -> int:
        """Pages that a reserve can get: free ones, and cached ones that nobody holds."""
        return self._pool.num_free + self._ledger.num_evictable

    @property
    def num_cached(self) -> int:
        """Pages kept only because a later prompt may want them; part of `num_free`."""
        return self._ledger.num_evictable

    def has(self, sequence_id: str) -> bool:
        """Whether the sequence is open."""
        return sequence_id in self._held

    def length(self, sequence_id: str) -> int:
        """Tokens written, committed or not."""
        return len(self._get(sequence_id).tokens)

    def tokens(self, sequence_id: str) -> Int32s:
        """The tokens written: [length] int32, a read-only view valid until the sequence changes."""
        return self._get(sequence_id).tokens.view()

    def pages(self, sequence_id: str) -> Int32s:
        """All pages, reserved ones included: [num_pages] int32, a read-only view valid until a change."""
        return self._get(sequence_id).table.pages()

    def slots(self, sequence_id: str, start: int, end: int) -> Int32s:
        """Slots of positions `[start, end)`: [end - start] int32. ValueError if they are not reserved."""
        return self._get(sequence_id).table.slots(start, end)

    def open(self, sequence_id: str, token_ids: Sequence[int] | Int32s) -> int:
        """Start a sequence on the cached pages that begin `token_ids`; returns the number of tokens found.

        Only full pages are attached, and at least the last token is left to compute: its logits are
        wanted. The tokens found are committed; the others must be reserved, written and advanced over.
        Raises ValueError if the sequence is open.
        """
        self._refuse_open(sequence_id)
        ids = np.asarray(token_ids, dtype=np.int32)
        found: list[int] = []
        digests: list[bytes] = []
        for index in range(max(len(ids) - 1, 0) // self.page_tokens):
            page_ids = ids[index * self.page_tokens : (index + 1) * self.page_tokens]
            hit = self._ledger.find(digests[-1] if digests else ROOT, page_ids.tobytes())
            if hit is None:
                break
            found.append(hit[0])
            digests.append(hit[1])
        for page in found:
            self._ledger.share(page)
        num_cached = len(found) * self.page_tokens
        self._held[sequence_id] = _Held(
            PageTable(self.page_tokens, found), IntVector(ids[:num_cached]), num_cached, num_cached, digests
        )
        return num_cached

    def reserve(self, sequence_id: str, num_tokens: int) -> list[tuple[int, int]] | None:
        """Make positions `[length, num_tokens)` writable; None, and no change, if they do not fit.

        Returns the page copies `(from, to)` that must be made before anything is written: a page that
        is shared or cached is replaced by a copy. Copies of several calls must be applied in the order of
        the calls (or all at once after `parallel_copies`), before the writes of the step.
        """
        held = self._get(sequence_id)
        if num_tokens <= max(held.writable, len(held.tokens)):
            return []
        # Pages past the length are never shared nor cached, so at most one page can need a copy.
        tail, offset = divmod(len(held.tokens), self.page_tokens)
        copy = offset > 0 and not self._ledger.writable(held.table[tail])
        num_new = max(pages_for(num_tokens, self.page_tokens) - len(held.table), 0)
        if num_new + copy > self.num_free:
            if num_new > self.num_free or self._ledger.refs(held.table[tail]) > 1:
                return None
            # The last page to be had: what only this sequence holds is written in place, uncached first.
            self._ledger.forget(held.table[tail])
            copy = False
        copies: list[tuple[int, int]] = []
        if copy:
            shared, own = held.table[tail], self._take()
            held.table[tail] = own
            self._drop(shared)  # after the take: its contents must survive until the copy is made
            copies.append((shared, own))
        held.table.extend([self._take() for _ in range(num_new)])
        held.writable = held.table.capacity
        return copies

    def advance(self, sequence_id: str, token_ids: Sequence[int] | Int32s) -> None:
        """The tokens were written: they extend the sequence, unverified. ValueError if not reserved."""
        held = self._get(sequence_id)
        end = len(held.tokens) + len(token_ids)
        if end > max(held.writable, len(held.tokens)):
            raise ValueError(f"{sequence_id}: {end} tokens but {held.writable} are reserved: reserve() first")
        held.tokens.extend(token_ids)

    def commit(self, sequence_id: str, num_tokens: int) -> None:
        """Tokens `[0, num_tokens)` are decided: full pages among them enter the prefix cache.

        Never takes anything back: a smaller number than before changes nothing. Raises ValueError if
        fewer tokens are written.
        """
        held = self._get(sequence_id)
        if num_tokens > len(held.tokens):
            raise ValueError(f"{sequence_id}: cannot commit {num_tokens} of {len(held.tokens)} tokens")
        held.committed = max(held.committed, num_tokens)
        for index in range(len(held.digests), held.committed // self.page_tokens):
            page_ids = held.tokens.view(index * self.page_tokens, (index + 1) * self.page_tokens)
            parent = held.digests[-1] if held.digests else ROOT
            held.digests.append(self._ledger.register(held.table[index], parent, page_ids.tobytes()))

    def fork(self, sequence_id: str, new_id: str) -> None:
        """A second sequence of the same tokens on the same pages; whoever writes first copies.

        Reserved pages past the length stay with the first one. ValueError if `new_id` is open.
        """
        self._refuse_open(new_id)
        held = self._get(sequence_id)
        length = len(held.tokens)
        pages = held.table.pages(pages_for(length, self.page_tokens))
        for page in pages.tolist():
            self._ledger.share(page)
        if length % self.page_tokens:
            held.writable = length  # the page of the next token is shared now
        self._held[new_id] = _Held(
            PageTable(self.page_tokens, pages), IntVector(held.tokens.view()), held.committed, length,
            list(held.digests),
        )

    def replace(self, sequence_id: str, by_id: str) -> None:
        """Give a sequence what `by_id` holds, in place of its own; `by_id` is no longer open."""
        held = self._get(by_id)
        self.release(sequence_id)
        del self._held[by_id]
        self._held[sequence_id] = held

    def prune(self, sequence_id: str, num_kept: int, path: Sequence[int]) -> Int32s:
        """Tokens from `num_kept` on were a tree: of its nodes keep `path` (ascending), in a row; the rest is dropped.

        Returns the slots `(from, to)` of tokens that must be moved, [num_moves, 2] int32: one after another, before
        any page copy that was asked for later, and before anything is written.
        """
        held = self._get(sequence_id)
        length, nodes = len(held.tokens), np.asarray(path, np.int32).reshape(-1)
        if not held.committed <= num_kept <= length:
            raise ValueError(f"{sequence_id}: cannot prune {length} tokens ({held.committed} decided) to {num_kept}")
        slots = held.table.slots(num_kept, length)
        if len(nodes) and not (nodes[0] >= 0 and (np.diff(nodes) > 0).all() and nodes[-1] < len(slots)):
            raise ValueError(f"{sequence_id}: {list(path)} is no path in a tree of {len(slots)} nodes")
        tokens = held.tokens.view(num_kept)[nodes]
        held.tokens.cut(num_kept)
        held.tokens.extend(tokens)
        self.truncate(sequence_id, num_kept + len(nodes))
        moved = nodes > np.arange(len(nodes))
        return np.stack([slots[nodes], slots[: len(nodes)]], axis=1)[moved]

    def distrust(self, slots: Int32s) -> list[str]:
        """What these slots hold is in doubt: their pages leave the prefix cache, and whoever holds one loses all.

        Returns the sequences that were emptied.
        """
        pages = set((slots // self.page_tokens).tolist())
        emptied = [name for name, held in self._held.items() if not pages.isdisjoint(held.table.pages().tolist())]
        for page in pages:
            if self._ledger.cached(page) is not None:
                self._ledger.forget(page)
        for sequence_id in emptied:
            self.truncate(sequence_id, 0)
        return emptied

    def truncate(self, sequence_id: str, new_len: int) -> None:
        """Keep tokens `[0, new_len)`, and only the pages that hold them; reserved pages go back too.

        `new_len` is absolute, so a repeated call changes nothing. Raises ValueError if it is negative or
        larger than the length. Safe inside a shared or cached page: the next `reserve` copies it.
        """
        held = self._get(sequence_id)
        if not 0 <= new_len <= len(held.tokens):
            raise ValueError(f"{sequence_id}: cannot truncate {len(held.tokens)} tokens to {new_len}")
        for page in held.table.cut(pages_for(new_len, self.page_tokens)):
            self._drop(page)
        held.tokens.cut(new_len)
        held.committed = min(held.committed, new_len)
        held.writable = new_len
        del held.digests[new_len // self.page_tokens :]

    def release(self, sequence_id: str) -> None:
        """Close the sequence and give its pages back; its cached pages can be found until evicted."""
        held = self._get(sequence_id)
        del self._held[sequence_id]
        # Last page first: a prefix is of use without its end, the end is of none without the prefix.
        for page in held.table.cut(0):
            self._drop(page)

    def discard(self, sequence_id: str) -> list[int]:
        """Empty a sequence whose keys or values are bad (NaN): nothing it held will be found again.

        Its pages leave the prefix cache, those that others hold included. Returns the pages that are free
        now: only these may be overwritten, and must be before a masked read meets them (0 * NaN is NaN).
        """
        held = self._get(sequence_id)
        for page in held.table.pages().tolist():
            if self._ledger.cached(page) is not None:
                self._ledger.forget(page)
        pages = held.table.pages().tolist()
        self.truncate(sequence_id, 0)
        return [page for page in pages if self._ledger.refs(page) == 0]

    def check_integrity(self) -> None:
        """Prove free + owned + cached == total, and every count and cached page right.

        Raises:
            IntegrityError: on the first violation.
        """
        holders: Counter[int] = Counter()
        for sequence_id, held in self._held.items():
            length = len(held.tokens)
            pages = held.table.pages().tolist()
            holders.update(pages)
            if not (held.committed <= length <= held.table.capacity and held.writable <= held.table.capacity):
                raise IntegrityError(f"{sequence_id}: lengths exceed what its pages hold")
            if len(held.digests) != held.committed // self.page_tokens:
                raise IntegrityError(f"{sequence_id}: committed full pages and digests differ in number")
            for index, page in enumerate(pages):
                self._check_page(sequence_id, held, index, page)
        self._ledger.check(holders, list(self._pool))

    def _check_page(self, sequence_id: str, held: _Held, index: int, page: int) -> None:
        start, length = index * self.page_tokens, len(held.tokens)
        end = start + self.page_tokens
        reserved = max(start, length) < min(end, held.writable)
        if reserved and not self._ledger.writable(page):
            raise IntegrityError(f"{sequence_id}: page {page} is shared or cached and yet writable")
        entry = self._ledger.cached(page)
        written = held.tokens.view(start, end).tobytes()
        if entry is not None and not entry.token_bytes.startswith(written):
            raise IntegrityError(f"{sequence_id}: cached page {page} holds other tokens")

    def _get(self, sequence_id: str) -> _Held:
        held = self._held.get(sequence_id)
        if held is None:
            raise UnknownSequence(sequence_id)
        return held

    def _refuse_open(self, sequence_id: str) -> None:
        if sequence_id in self._held:
            raise ValueError(f"sequence {sequence_id!r} is open already: release() it first")

    def _take(self) -> int:
        page = self._pool.take() if self._pool.num_free else self._ledger.evict()
        self._ledger.claim(page)
        return page

    def _drop(self, page: int) -> None:
        if self._ledger.drop(page):
            self._pool.give(page)
