"""The logits of a step as its jobs see them: rows, and the best id of each, found in one scan for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from actors.sampling.validate import check_best

Floats32 = npt.NDArray[np.float32]


class _Best:
    """Argmax and maximum of every row, computed when the first row is asked for.

    numpy settles ties (the smallest id wins), carries NaN through, and is ten times faster at this than
    torch on a CPU.
    """

    def __init__(
        self, values: Floats32, ids: npt.NDArray[np.int32] | None = None, tops: Floats32 | None = None
    ) -> None:
        self._values = values
        self._ids: list[int] | None = None if ids is None else ids.tolist()
        self._tops: list[float] = [] if tops is None else tops.tolist()

    def at(self, row: int) -> tuple[int, float]:
        if self._ids is None:
            if len(self._values) == 1:
                best = int(self._values[0].argmax())
                self._ids, self._tops = [best], [float(self._values[0, best])]
                return best, self._tops[0]
            ids = self._values.argmax(axis=-1)
            self._tops = self._values[np.arange(len(ids)), ids].tolist()
            self._ids = ids.tolist()
        return self._ids[row], self._tops[row]


class LogitRows:
    """Rows `[num_rows, vocab_size]` of float32 logits; parts of one step share its scan for the best ids.

    `support`: the only ids that may come, int64 ascending, whose logits are above all others; None: all ids.
    """

    __slots__ = ("_best", "_start", "_stop", "_values", "support")

    def __init__(
        self, logits: torch.Tensor, support: npt.NDArray[np.int64] | None = None,
        best: tuple[npt.NDArray[np.int32], Floats32] | None = None,
    ) -> None:
        """`best`: of each row, the likeliest id and its logit as `best` and `top` would find them."""
        if logits.ndim != 2:
            raise ValueError(f"logits need the shape [rows, vocabulary], got {tuple(logits.shape)}")
        if logits.requires_grad or logits.dtype is not torch.float32 or not logits.is_cpu:
            logits = logits.detach().float().cpu()
        self._values: Floats32 = logits.numpy()
        self._best = _Best(self._values) if best is None else _Best(self._values, *best)
        self.support = support
        self._start, self._stop = 0, len(self._values)

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def vocab_size(self) -> int:
        """Entries of a row."""
        return int(self._values.shape[1])

    def part(self, start: int, stop: int) -> LogitRows:
        """Rows `[start, stop)` of these, without a copy."""
        part = LogitRows.__new__(LogitRows)
        part._values, part._best, part.support = self._values, self._best, self.support
        part._start, part._stop = self._start + start, self._start + stop
        return part

    def row(self, index: int) -> Floats32:
        """One row, [vocab_size]; not to be written to. Raises `BadLogits` if no token can be chosen from it."""
        self.best(index)
        row: Floats32 = self._values[self._start + index]
        return row

    def best(self, index: int) -> int:
        """The best id of a row, the smallest on ties. Raises `BadLogits` like `row`."""
        token, top = self._best.at(self._start + index)
        check_best(top)
        return token

    def top(self, index: int) -> float:
        """The largest logit of a row. Raises `BadLogits` like `row`."""
        _, top = self._best.at(self._start + index)
        check_best(top)
        return top


def concat(parts: Sequence[LogitRows]) -> LogitRows:
    """The rows of several, copied: they outlive their steps."""
    values = np.concatenate([part._values[part._start : part._stop] for part in parts])
    return LogitRows(torch.from_numpy(values), parts[0].support)
