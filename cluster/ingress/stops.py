"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that is complete first; the outcome does not depend on how the text is cut.

    Text that may be the beginning of a stop string is held back until that is decided. Of several stop
    strings complete at the same character, the longest wins.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """`include_stop` keeps the matched stop string in the text.

        Raises ValueError if a stop string is empty.
        """
        if not all(stops):
            raise ValueError("a stop string is empty: remove it")
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None  # set by `push` when a stop string is complete

    def push(self, text: str) -> str:
        """Text that became final with `text`; nothing more comes once `matched` is set."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = self._first(text)
        if found is not None:
            end, self.matched = found
            self._held = ""
            return text[: end if self._include_stop else end - len(self.matched)]
        num_held = self._num_held(text)
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """The text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """End (exclusive) and name of the stop string complete first in `text`."""
        ends = [(text.find(stop) + len(stop), stop) for stop in self._stops if stop in text]
        return min(ends, key=lambda found: (found[0], -len(found[1])), default=None)

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        return max((overlap(text, stop) for stop in self._stops), default=0)


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
