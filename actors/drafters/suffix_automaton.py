"""What followed every piece of the texts seen so far, and how often: a suffix automaton that counts.

Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text", in its online form, over several texts
that grow side by side. A state stands for all pieces that occur at the same places; its *link* leads to the longest
suffix that occurs at more. A token costs amortised O(1) steps, and up to `depth` more for the counts, which are kept
for pieces of at most `depth` tokens (SuffixDecoding, 2411.04975, bounds its suffix trees alike).

Most states have one continuation: it stands in arrays. Only the others have a table.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROOT = 0  # the empty piece
NONE = -1


@dataclass(slots=True)
class Cursor:
    """Where one of the texts ends."""

    last: int = ROOT  # the state of the whole text
    state: int = ROOT  # of its end: the last `length` tokens
    length: int = 0  # at most the automaton's depth


class Place(NamedTuple):
    """A state with the length of the piece it was reached by."""

    state: int
    length: int


class SuffixAutomaton:
    """Pieces of texts and their continuations. For one thread at a time."""

    def __init__(self, depth: int) -> None:
        """`depth`: longest piece whose continuations are counted, tokens."""
        if depth < 1:
            raise ValueError(f"depth {depth}: count what follows pieces of at least 1 token")
        self._depth = depth
        # By state. `_token` and `_next` are its most frequent continuation, the latest one on ties.
        self._length = array("i", [0])  # of its longest piece
        self._link = array("i", [NONE])
        self._count = array("i", [0])  # occurrences
        self._followed = array("i", [0])  # occurrences that something follows
        self._token = array("i", [NONE])
        self._next = array("i", [NONE])
        self._others: dict[int, dict[int, int]] = {}  # all continuations of a state that has several
        self.num_tokens = 0

    @property
    def num_states(self) -> int:
        """Size, at most twice the number of tokens."""
        return len(self._length)

    @property
    def num_bytes(self) -> int:
        """Memory, about: arrays, and tables of one entry in 100 bytes."""
        return 24 * self.num_states + sum(64 + 100 * len(table) for table in self._others.values())

    # --- growing ----------------------------------------------------------------------------------

    def append(self, cursor: Cursor, token: int) -> None:
        """A text goes on with `token`."""
        self.num_tokens += 1
        cursor.last = self._extend(cursor.last, token)
        state, length = cursor.state, cursor.length
        links, lengths = self._link, self._length
        while length and length <= lengths[links[state]]:  # it was split since
            state = links[state]
        counts, followed, tokens, nexts, others = self._count, self._followed, self._token, self._next, self._others
        longest, counted = NONE, NONE
        piece = state
        while piece != NONE:  # the suffixes of what was there, longest first
            table = others.get(piece)
            found = nexts[piece] if table is None else table[token]
            if found != counted:
                counts[found] += 1
                counted = found
                if longest == NONE:
                    longest = found
            followed[piece] += 1
            if tokens[piece] != token and counts[found] >= counts[nexts[piece]]:
                tokens[piece], nexts[piece] = token, found
            piece = links[piece]
        cursor.state, cursor.length = self._trim(longest, length + 1)

    def _extend(self, last: int, token: int) -> int:
        """The state of a whole text that was `last` and goes on with `token`."""
        known = self.next(last, token)
        if known != NONE:  # another text went on like this
            return known if self._length[known] == self._length[last] + 1 else self._split(last, token, known)
        fresh = self._new(self._length[last] + 1)
        links, tokens, nexts, others = self._link, self._token, self._next, self._others
        state = last
        while state != NONE:
            table = others.get(state)
            if table is not None:
                if token in table:
                    break
                table[token] = fresh
            elif tokens[state] == NONE:
                tokens[state], nexts[state] = token, fresh
            elif tokens[state] == token:
                break
            else:
                others[state] = {tokens[state]: nexts[state], token: fresh}
            state = links[state]
        if state == NONE:
            links[fresh] = ROOT
            return fresh
        known = self.next(state, token)
        right = self._length[known] == self._length[state] + 1
        links[fresh] = known if right else self._split(state, token, known)
        return fresh

    def _split(self, state: int, token: int, known: int) -> int:
        """Part `known`: its pieces that are no longer than `state` with `token` get a state of their own."""
        links, tokens, nexts, others = self._link, self._token, self._next, self._others
        part = self._new(self._length[state] + 1)
        links[part] = links[known]
        links[known] = part
        self._count[part], self._followed[part] = self._count[known], self._followed[known]
        tokens[part], nexts[part] = tokens[known], nexts[known]
        if known in others:
            others[part] = others[known].copy()
        while state != NONE:
            table = others.get(state)
            if table is not None:
                if table.get(token) != known:
                    break
                table[token] = part
            elif tokens[state] != token or nexts[state] != known:
                break
            if tokens[state] == token:
                nexts[state] = part
            state = links[state]
        return part

    def _new(self, length: int) -> int:
        self._length.append(length)
        self._link.append(NONE)
        self._count.append(0)
        self._followed.append(0)
        self._token.append(NONE)
        self._next.append(NONE)
        return len(self._length) - 1

    # --- looking up -------------------------------------------------------------------------------

    def next(self, state: int, token: int) -> int:
        """Where a continuation leads, or `NONE`."""
        table = self._others.get(state)
        if table is not None:
            return table.get(token, NONE)
        return self._next[state] if self._token[state] == token else NONE

    def find(self, text: Sequence[int]) -> Place:
        """The longest end of `text`, of at most `depth` tokens, that something has followed."""
        links, lengths, names, nexts, others = self._link, self._length, self._token, self._next, self._others
        state, length = ROOT, 0
        for token in text[max(0, len(text) - self._depth) :]:
            while True:
                found = nexts[state] if names[state] == token else NONE
                if found == NONE and (table := others.get(state)) is not None:
                    found = table.get(token, NONE)
                if found != NONE:
                    state, length = found, length + 1
                    break
                if state == ROOT:
                    break
                state = links[state]
                length = lengths[state]
        return self.settled(Place(state, length))

    def settled(self, place: Place) -> Place:
        """`place`, or its longest suffix that something has followed."""
        state, length = place.state, place.length
        while state != ROOT and not self._followed[state]:
            state = self._link[state]
            length = self._length[state]
        return place if state == place.state else Place(state, length)

    def shorter(self, place: Place) -> Place | None:
        """The longest suffix that occurs at more places; None for the empty one."""
        link = self._link[place.state]
        return None if link == NONE else Place(link, self._length[link])

    def best(self, place: Place) -> tuple[int, float, Place]:
        """The most frequent continuation (the latest on ties) of a place that has one: token, its share, the place."""
        state = place.state
        found = self._next[state]
        return self._token[state], self._count[found] / self._followed[state], self._moved(found, place.length)

    def likeliest(self, place: Place, num_tokens: int, least: float) -> tuple[list[int], float]:
        """`best` again and again, from the longest suffix that something has followed, while the product of all shares
        is at least `least`: tokens, and the sum of the products, which is how many of them are to be expected."""
        links, lengths, counts = self._link, self._length, self._count
        followed, names, nexts, depth = self._followed, self._token, self._next, self._depth
        state, length = place
        tokens: list[int] = []
        path, expected = 1.0, 0.0
        while len(tokens) < num_tokens:
            while state != ROOT and not followed[state]:
                state = links[state]
                length = lengths[state]
            if state == ROOT:
                break
            found = nexts[state]
            path *= counts[found] / followed[state]
            if path < least:
                break
            tokens.append(names[state])
            expected += path
            state, length = found, length + 1
            if length > depth:  # as in `_trim`
                length = depth
                if lengths[links[state]] >= depth:
                    state = links[state]
        return tokens, expected

    def several(self, place: Place, count: int) -> list[tuple[int, float, Place]]:
        """As `best`, the `count` most frequent ones, best first."""
        table = self._others.get(place.state)
        if table is None or count < 2:
            return [self.best(place)][:count] if self._followed[place.state] else []
        counts, followed = self._count, self._followed[place.state]
        first = self._next[place.state]
        order = sorted(table.items(), key=lambda pair: (-counts[pair[1]], pair[1] != first))[:count]
        return [
            (token, counts[found] / followed, self._moved(found, place.length)) for token, found in order
            if counts[found]
        ]

    def width(self, place: Place) -> int:
        """How many different continuations a place has."""
        table = self._others.get(place.state)
        return len(table) if table is not None else int(self._followed[place.state] > 0)

    def _moved(self, state: int, length: int) -> Place:
        """A place one token on from one of `length` tokens, short enough for its continuations to be counted."""
        return Place(*self._trim(state, length + 1))

    def _trim(self, state: int, length: int) -> tuple[int, int]:
        """The suffix of at most `depth` tokens of a piece of at most one more."""
        if length <= self._depth:
            return state, length
        if self._length[self._link[state]] >= self._depth:
            state = self._link[state]
        return state, self._depth
