"""A growable int32 vector, so that token ids and page tables are numpy views without per-step copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class IntVector:
    """int32 values with amortised O(1) append; `view()` is read-only and shares the memory."""

    __slots__ = ("_data", "_len")

    def __init__(self, values: Sequence[int] | Int32s = ()) -> None:
        self._data: Int32s = np.array(values, dtype=np.int32)
        self._len = len(self._data)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._len:
            raise IndexError(index)
        return int(self._data[index])

    def __setitem__(self, index: int, value: int) -> None:
        if not 0 <= index < self._len:
            raise IndexError(index)
        self._data[index] = value

    def extend(self, values: Sequence[int] | Int32s) -> None:
        """Append values."""
        new_len = self._len + len(values)
        if new_len > len(self._data):
            grown = np.empty(max(new_len, 2 * len(self._data), 16), dtype=np.int32)
            grown[: self._len] = self._data[: self._len]
            self._data = grown
        self._data[self._len : new_len] = values
        self._len = new_len

    def cut(self, new_len: int) -> None:
        """Keep the first `new_len` values (0 <= new_len <= len)."""
        self._len = new_len

    def view(self, start: int = 0, end: int | None = None) -> Int32s:
        """Read-only view of `[start, end)`, valid until the next `extend` or `cut`."""
        view = self._data[start : self._len if end is None else min(end, self._len)]
        view.flags.writeable = False
        return view
