"""From blocks of committed ids to the text a client sees, cut at the first stop string."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cluster.ingress.detokenizer import Detokenizer
from cluster.ingress.stops import StopMatcher


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What one block of ids gave."""

    text: str  # final text, possibly empty
    num_tokens: int  # ids of the block that count; the one that completed the stop string is the last
    stop: str | None = None  # the stop string that ended the text


class TextStream:
    """Text of one sequence. A speculative round commits several ids at once: each is looked at on its own."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        silent_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """Of a stream that ends at `stops`.

        Args:
            detokenizer: a fresh one.
            stops: stop strings, none of them empty.
            include_stop: keep the matched stop string at the end of the text.
            silent_ids: ids that count but yield no text (stop ids; special ids are the detokenizer's).
            min_tokens: stop strings are looked for only in text from this token on (1: from the first).
        """
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops, include_stop)
        self._has_stops = bool(stops)
        self._silent_ids = frozenset(silent_ids)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._ended = False

    @property
    def num_tokens(self) -> int:
        """Ids that count so far."""
        return self._num_tokens

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matcher.matched

    def push(self, ids: Sequence[int]) -> TextPiece:
        """Take a block of ids. Once a stop string matched, or after `finish`, nothing more counts."""
        if self._ended:
            return TextPiece("", 0)
        if not self._has_stops:  # one call of the tokenizer for the whole block
            self._num_tokens += len(ids)
            return TextPiece(self._detokenizer.push(self._audible(ids)), len(ids))
        parts: list[str] = []
        for num_pushed, token_id in enumerate(ids, start=1):
            self._num_tokens += 1
            text = self._detokenizer.push(self._audible((token_id,)))
            parts.append(text if self._num_tokens < self._min_tokens else self._matcher.push(text))
            if self._matcher.matched is not None:
                self._ended = True
                return TextPiece("".join(parts), num_pushed, self._matcher.matched)
        return TextPiece("".join(parts), len(ids))

    def finish(self) -> TextPiece:
        """The rest of the text; `num_tokens` is 0. Idempotent, and empty after a stop string."""
        if self._ended:
            return TextPiece("", 0)
        self._ended = True
        text = self._matcher.push(self._detokenizer.flush())
        return TextPiece(text + self._matcher.flush(), 0, self._matcher.matched)

    def _audible(self, ids: Sequence[int]) -> Sequence[int]:
        """`ids` without the silent ones."""
        return [i for i in ids if i not in self._silent_ids] if self._silent_ids else ids
