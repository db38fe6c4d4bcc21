"""What the runner asks of its kernels, and how their reductions may be ordered."""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from actors.engine.gpu.store import LayerKV
from actors.engine.gpu.tensors import Shape, StepTensors


class Reduction(enum.Enum):
    """In which order a row's sum over keys is taken."""

    FIXED = "fixed"  # by constants alone: a row's bits never depend on its batch, chunk, tree or bucket
    FAST = "fast"  # tiles and splits follow the step: better balance on few rows, last bits may differ


class Kernels(Protocol):
    """Reads and writes of the paged store. `launch.TritonKernels` on devices; tests bring a plain one."""

    @property
    def tree_by_bits(self) -> bool:
        """Whether trees are to be cut by ancestor bits (`work.cut`) rather than path by path."""
        ...

    def rows_per_item(self, num_rows: int) -> int:
        """Most query rows of a work item in a step with room for `num_rows`."""
        ...

    def model_ops(self) -> AbstractContextManager[Any]:
        """In force while the model runs: gives its own sums, too, the order that the reduction promises."""
        ...

    def split_keys(self, shape: Shape, longest: int) -> int:
        """Keys of a split in a step of this shape whose rows see up to `longest` keys."""
        ...

    def write(self, layer: LayerKV, key: torch.Tensor, value: torch.Tensor, step: StepTensors) -> None:
        """Store key and value [num_kv_heads, num_rows, head_dim] at `step.slots`."""
        ...

    def attend(
        self, layer: LayerKV, query: torch.Tensor, step: StepTensors, scaling: float, window: int | None
    ) -> torch.Tensor:
        """Attention of query [num_heads, num_rows, head_dim]: [num_rows, num_heads, head_dim], in its dtype.

        `window`: a row sees the last `window` positions only, its own included; None: all.
        """
        ...
