"""Token ids to text, piece by piece, in time linear in the number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

_REPLACEMENT = "\ufffd"  # what decoders put for bytes that are not (yet) a character
_MAX_PENDING_TOKENS = 8  # no character needs more tokens: beyond this the bytes are simply not text
_ANCHOR_TOKENS = 4  # at least as many bytes as the longest UTF-8 character


class Detokenizer:
    """Text deltas of one sequence; joined, they equal `decode` of all ids without the special ones.

    Only a window of recent ids is decoded again: from one place where the text ended with a whole
    character to the next (prefix and read offsets, as in Hugging Face's text-generation-inference).
    A tail that decodes to the replacement character may be half of a character and is held back. Where the
    model emits an endless run of invalid bytes, all but the last replacement character are final (UTF-8
    decoders replace an incomplete tail by exactly one), which bounds the window.

    Exact for byte-level tokenizers, whatever the ids. Byte-fallback tokenizers (SentencePiece) rewrite a run
    of byte tokens as a whole when it turns out invalid; there the texts agree while the bytes are UTF-8.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], special_ids: Collection[int] = ()) -> None:
        """`decode` turns ids into text and must not tidy spaces; `special_ids` yield no text."""
        self._decode = decode
        self._special_ids = frozenset(special_ids)
        # _window: [0, _num_read) decoded to whole characters, [_num_read, end) may end inside one.
        self._window: list[int] = []
        self._num_read = 0
        self._num_emitted = 0  # characters of decode(_window) already emitted

    def push(self, ids: Sequence[int]) -> str:
        """Text that became final with `ids` (any number of them)."""
        new = [int(i) for i in ids if int(i) not in self._special_ids]
        if not new:
            return ""
        self._window += new
        text = self._decode(self._window)
        if not text.endswith(_REPLACEMENT):
            return self._advance(text, self._num_read, num_held=0)
        if len(self._window) - self._num_read > _MAX_PENDING_TOKENS:
            return self._advance(text, len(self._window) - _ANCHOR_TOKENS, num_held=1)
        return ""

    def flush(self) -> str:
        """The rest of the text, an incomplete character as a replacement character; ends the sequence."""
        delta = self._decode(self._window)[self._num_emitted :] if self._window else ""
        self._window, self._num_read, self._num_emitted = [], 0, 0
        return delta

    def _advance(self, text: str, start: int, num_held: int) -> str:
        """Emit `text` but for `num_held` characters; the window then begins at `start`."""
        delta = text[self._num_emitted : len(text) - num_held]
        self._window = self._window[start:]
        self._num_emitted = max(0, len(self._decode(self._window)) - num_held)
        self._num_read = len(self._window) if num_held == 0 else 0
        return delta
