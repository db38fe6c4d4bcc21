"""The ownership ledger: reference counts, and the prefix cache over pages of decided tokens.

A page enters the prefix cache under blake2b(digest of the page before it, its token ids): the digest
names the whole prefix up to its end (builtin `hash` is salted per process and would differ between
ranks). A hit is confirmed by comparing token ids, so a collision cannot serve wrong keys and values.

A page is in one of four states:

    refs  cached   state
    0     no       free: belongs to the pool
    0     yes      evictable: keeps its contents until somebody needs the page (least recently used first)
    > 0   no       owned; writable if refs == 1
    > 0   yes      owned, and never written again while cached
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from actors.engine.kv.errors import IntegrityError

ROOT = b""  # the digest before the first page


@dataclass(frozen=True, slots=True)
class CachedPage:
    """What a cached page holds."""

    digest: bytes
    parent: bytes  # digest of the page before it
    token_bytes: bytes  # its token ids, int32


def chain(parent: bytes, token_bytes: bytes) -> bytes:
    """Digest of a page: names its tokens and everything before them."""
    return hashlib.blake2b(parent + token_bytes, digest_size=16).digest()


class PageLedger:
    """Who holds each page, and which pages can be found again by their tokens."""

    def __init__(self, num_pages: int) -> None:
        self._refs = [0] * num_pages
        self._cached: dict[int, CachedPage] = {}
        self._by_digest: dict[bytes, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_evictable(self) -> int:
        """Cached pages that nobody holds."""
        return len(self._evictable)

    @property
    def num_owned(self) -> int:
        """Pages that somebody holds (linear time: for checks)."""
        return sum(refs > 0 for refs in self._refs)

    def refs(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._refs[page]

    def cached(self, page: int) -> CachedPage | None:
        """The page's entry in the prefix cache, if it has one."""
        return self._cached.get(page)

    def writable(self, page: int) -> bool:
        """Whether its only holder may write into the page."""
        return self._refs[page] == 1 and page not in self._cached

    def claim(self, page: int) -> None:
        """A page from the pool, or an evicted one, gets its first holder."""
        self._refs[page] = 1

    def share(self, page: int) -> None:
        """One more holder of a page that is held or evictable."""
        if self._refs[page] == 0:
            del self._evictable[page]
        self._refs[page] += 1

    def drop(self, page: int) -> bool:
        """One holder less. True if the page is now free, and must go back to the pool."""
        self._refs[page] -= 1
        if self._refs[page] > 0:
            return False
        if page in self._cached:
            self._evictable[page] = None
            return False
        return True

    def find(self, parent: bytes, token_bytes: bytes) -> tuple[int, bytes] | None:
        """The cached page of these tokens after the prefix `parent`, with its digest."""
        digest = chain(parent, token_bytes)
        page = self._by_digest.get(digest)
        if page is None:
            return None
        entry = self._cached[page]
        if entry.parent != parent or entry.token_bytes != token_bytes:
            return None
        return page, digest

    def register(self, page: int, parent: bytes, token_bytes: bytes) -> bytes:
        """Enter a held, full page of decided tokens into the prefix cache; returns its digest.

        If an equal page is cached already, this one stays private: page tables are append-only, so
        duplicates are tolerated instead of swapped under a running step.
        """
        digest = chain(parent, token_bytes)
        if digest not in self._by_digest and page not in self._cached:
            self._by_digest[digest] = page
            self._cached[page] = CachedPage(digest, parent, token_bytes)
        return digest

    def forget(self, page: int) -> None:
        """Take a page out of the prefix cache; its holders keep it."""
        del self._by_digest[self._cached.pop(page).digest]

    def evict(self) -> int:
        """Forget the least recently used evictable page and return it. Raises KeyError if there is none."""
        page, _ = self._evictable.popitem(last=False)
        self.forget(page)
        return page

    def check(self, holders: dict[int, int], free: list[int]) -> None:
        """Compare the books with the number of holders of each page and with the free list.

        Raises:
            IntegrityError: on the first difference.
        """
        free_set = set(free)
        if len(free_set) != len(free):
            raise IntegrityError("a page is twice in the free list")
        for page, refs in enumerate(self._refs):
            if refs != holders.get(page, 0):
                raise IntegrityError(f"page {page} has {refs} references but {holders.get(page, 0)} holders")
            states = (page in free_set) + (refs > 0) + (page in self._evictable)
            if states != 1:
                raise IntegrityError(f"page {page} is in {states} of the states free, owned, evictable")
            if page in free_set and page in self._cached:
                raise IntegrityError(f"page {page} is free and cached at once")
            if page in self._evictable and page not in self._cached:
                raise IntegrityError(f"page {page} is evictable but not cached")
        if len(free) + self.num_owned + self.num_evictable != len(self._refs):
            raise IntegrityError("free + owned + cached pages differ from the total")
        if self._by_digest != {entry.digest: page for page, entry in self._cached.items()}:
            raise IntegrityError("the prefix cache and its index differ")
        for page, entry in self._cached.items():
            if chain(entry.parent, entry.token_bytes) != entry.digest:
                raise IntegrityError(f"the digest of cached page {page} does not name its tokens")
