"""What a simulated replica holds of a sequence: tokens, their hashes, what is in its KV cache, and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.emulation.voice import ROOT, extend


@dataclass(frozen=True, slots=True)
class Told:
    """What a replica makes of the truth."""

    rows: int  # to feed up to its last token, at least 1
    beyond: list[int]  # tokens that the replica has drafted after it already, all but the last of them fed


@dataclass(slots=True)
class Text:
    """One sequence in one replica."""

    ids: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=lambda: [ROOT])  # [len(ids) + 1] hashes, of nothing to all of it
    num_cached: int = 0  # tokens in the KV cache
    branches: list[list[int]] = field(default_factory=list)  # each after `fork` tokens, all but its last one fed
    fork: int = 0

    def tell(self, start: int, tokens: Sequence[int]) -> Told | None:
        """Take over the truth: the first `start` tokens are as held, then come `tokens`. None: it holds less than that.

        A branch that shares more with the truth than the sequence itself takes its place; the others are dropped.
        """
        if start > len(self.ids):
            return None
        self._adopt(start, tokens)
        end = start + len(tokens)
        common = start + shared(self.ids[start:end], tokens)
        beyond = self.ids[end:] if common == end else []
        self.cut(common)
        self.extend(tokens[common - start :])
        self.num_cached = min(self.num_cached, end - 1)
        return Told(end - self.num_cached, beyond)

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        del self.ids[length:]
        del self.prefixes[length + 1 :]
        self.num_cached = min(self.num_cached, length)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that are not in the cache yet."""
        prefix = self.prefixes[-1]
        for token in tokens:
            prefix = extend(prefix, token)
            self.prefixes.append(prefix)
        self.ids += tokens

    def keep(self, branches: list[list[int]], fork: int) -> None:
        """Hold branches, each after the first `fork` tokens, until the truth is told."""
        self.branches, self.fork = branches, fork

    def _adopt(self, start: int, tokens: Sequence[int]) -> None:
        branches, self.branches = self.branches, []
        if not branches or start > self.fork:
            return
        truth = tokens[self.fork - start :]
        own = shared(self.ids[self.fork :], truth)
        best = max(branches, key=lambda branch: shared(branch, truth))
        if shared(best, truth) > own:
            self.cut(self.fork)
            self.extend(best)
            self.num_cached = len(self.ids) - 1


def shared(ours: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (mine, right) in enumerate(zip(ours, truth, strict=False)):
        if mine != right:
            return index
    return min(len(ours), len(truth))
