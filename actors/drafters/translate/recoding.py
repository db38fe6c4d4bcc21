"""The text of one sequence in another tokenizer's tokens, kept up to date as it grows and is cut back.

How a text is cut into tokens depends on what follows, but hardly on what lies far back. So only the last tokens are
encoded again when the text grows, from a little before the new part, and the new cut is taken from the first place
where it agrees with the old one. That the result may differ from encoding all of the text at once is harmless: it is
what a draft model reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.drafters.translate.spelling import Spelling

_WINDOW = 8  # tokens encoded again before the new part


class Recoding:
    """Tokens of `upper` as tokens of `lower`.

    A control token that both have is carried over as it is, and text is never encoded across it. A character whose
    bytes are not all there yet waits.
    """

    def __init__(self, upper: Spelling, lower: Spelling, control: dict[int, int]) -> None:
        """`control`: of the upper tokenizer's control tokens, the lower one's that mean the same."""
        self._upper = upper
        self._lower = lower
        self._control = control
        self._text = bytearray()
        self._text_ends: list[int] = []  # of each upper token
        self.ids: list[int] = list(lower.begin_ids)
        self._ends: list[int] = [0] * len(self.ids)  # bytes up to and with each lower token
        self._sources: list[int] = [-1] * len(self.ids)  # the upper token that a control token comes from; else -1
        self._num_fixed = len(self.ids)  # leading lower tokens that no later text changes

    @property
    def num_upper(self) -> int:
        """Upper tokens taken."""
        return len(self._text_ends)

    @property
    def waiting(self) -> bytes:
        """The beginning of a character at the end of the text, which `ids` leave out."""
        return bytes(self._text[self._done :])

    @property
    def _done(self) -> int:
        return self._ends[-1] if self._ends else 0

    def num_lower(self, num_upper: int) -> int:
        """How many lower tokens lie within the first upper ones."""
        if num_upper >= self.num_upper:
            return len(self.ids)
        end = self._text_ends[num_upper - 1] if num_upper > 0 else 0
        count = len(self._ends)
        while count > 0 and (self._ends[count - 1] > end or self._sources[count - 1] >= num_upper):
            count -= 1
        return count

    def truncate(self, num_upper: int) -> None:
        """Keep the first upper tokens; no effect when there are not more."""
        if num_upper >= self.num_upper:
            return
        kept = self.num_lower(num_upper)
        del self._text_ends[num_upper:]
        del self._text[self._text_ends[-1] if self._text_ends else 0 :]
        self._cut(kept)
        while self._num_fixed > kept or (
            self._num_fixed > len(self._lower.begin_ids) and self._sources[self._num_fixed - 1] < 0
        ):
            self._num_fixed -= 1
        self._encode()  # what had been one token with the text that is gone

    def extend(self, upper_ids: Sequence[int]) -> None:
        """The text goes on."""
        for token in upper_ids:
            if token in self._control:
                self._encode(whole=True)
                self.ids.append(self._control[token])
                self._ends.append(len(self._text))
                self._sources.append(self.num_upper)
                self._num_fixed = len(self.ids)
            else:
                self._text += self._upper.literal(token)
            self._text_ends.append(len(self._text))
        self._encode()

    def tail(self, num_upper: int) -> bytes:
        """The text of the last upper tokens, from a whole character on, and after the last control token."""
        start = self._text_ends[-num_upper - 1] if num_upper < self.num_upper else 0
        if self._num_fixed:
            start = max(start, self._ends[self._num_fixed - 1])
        while start < len(self._text) and self._text[start] & 0xC0 == 0x80:
            start += 1
        return bytes(self._text[start:])

    def _cut(self, kept: int) -> None:
        del self.ids[kept:], self._ends[kept:], self._sources[kept:]

    def _encode(self, whole: bool = False) -> None:
        """Bring `ids` up to the end of the text, or of its last whole character."""
        end = len(self._text)
        if not whole:
            end -= num_incomplete(self._text)
        if end <= self._done:
            return
        window = _WINDOW
        while True:
            first = max(self._num_fixed, len(self.ids) - window)
            while first > self._num_fixed and self._text[self._ends[first - 1]] & 0xC0 == 0x80:
                first -= 1
            start = self._ends[first - 1] if first else 0
            ids, ends = cut(self._lower, bytes(self._text[start:end]), start)
            kept, taken = first, 0
            if first > self._num_fixed:
                found = self._meeting(first, ends)
                if found is None:
                    window *= 4
                    continue
                kept, taken = found
            self._cut(kept)
            self.ids += ids[taken:]
            self._ends += ends[taken:]
            self._sources += [-1] * (len(ids) - taken)
            return

    def _meeting(self, first: int, ends: Sequence[int]) -> tuple[int, int] | None:
        """The first place after `first` where the old cut and a new one agree: tokens to keep, and to leave out."""
        new = {end: i + 1 for i, end in reversed(list(enumerate(ends[:-1])))}
        for i in range(first, len(self.ids)):
            if self._ends[i] in new:
                return i + 1, new[self._ends[i]]
        return None


def cut(spelling: Spelling, text: bytes, start: int = 0) -> tuple[list[int], list[int]]:
    """Ids of a text that begins at byte `start`, and where each of them ends."""
    written = text.decode("utf-8", "replace")
    encoding = spelling.encode(written)
    ids: list[int] = encoding.ids
    if not ids:
        return [], []
    lengths = [len(spelling.literal(token)) for token in ids]
    extra = sum(lengths) - len(text)
    if extra == 1 and spelling.literal(ids[0]).startswith(b" ") and not text.startswith(b" "):
        lengths[0], extra = lengths[0] - 1, 0  # a tokenizer that puts a space before every text
    if extra:  # unknown or normalised characters: as far as the tokenizer says
        lengths = _by_offsets(written, [offset for _, offset in encoding.offsets])
    ends: list[int] = []
    end = start
    for length in lengths:
        end += length
        ends.append(min(end, start + len(text)))
    ends[-1] = start + len(text)
    return ids, ends


def _by_offsets(text: str, offsets: Sequence[int]) -> list[int]:
    lengths, last = [], 0
    for offset in offsets:
        lengths.append(len(text[last : max(last, offset)].encode()))
        last = max(last, offset)
    return lengths


def num_incomplete(text: bytes | bytearray) -> int:
    """Bytes at the end that begin a character which is not complete."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0
