"""Runs packed steps of one (shard of a) transformers model on a CUDA device."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from actors.engine.gpu import attention
from actors.engine.gpu.attention import GpuPlan
from actors.engine.gpu.buckets import Buckets
from actors.engine.gpu.contract import Kernels, Reduction
from actors.engine.gpu.graphs import CudaGraphs, Graph, GraphMaker
from actors.engine.gpu.launch import TritonKernels
from actors.engine.gpu.store import GpuKV
from actors.engine.gpu.tensors import Shape, StepTensors, longest_keys
from actors.engine.gpu.work import Work, committed_tokens, cut
from actors.engine.layers import LayerChoice
from actors.engine.plane import WithPlane, make_plane
from actors.engine.probe import probe
from actors.engine.step import Int32s, StepInput
from actors.loading.support import max_context_tokens
from actors.spec import ModelSpec

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_DTYPES = {**DTYPES, "int8": torch.int8}  # 8 bits: one scale per token and head
Progress = Callable[[int, int], None]  # graphs done, graphs in all


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """How steps run on a device."""

    reduction: Reduction = Reduction.FAST
    max_graph_rows: int = 64  # steps of up to this many rows are replayed from CUDA graphs; 0: none are


_DEFAULTS = GpuOptions()


@dataclass(slots=True)
class StepCounts:
    """How steps were run: what is not replayed is slower, and must be seen."""

    num_replayed: int = 0
    num_large: int = 0  # too large for a bucket (prefill), or of a kind without graphs: run kernel by kernel
    num_uncaptured: int = 0  # their bucket's capture had failed: run kernel by kernel
    num_failed_captures: int = 0


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a pass runs and answers: each kind has graphs of its own."""

    layers: tuple[int, ...] = ()  # those that run; empty: all
    wants_hidden: bool = False


@dataclass(frozen=True, slots=True)
class _Captured:
    """A bucket's static inputs and outputs, and its graph unless the capture failed."""

    tensors: StepTensors
    graph: Graph | None
    out: torch.Tensor  # [num_rows, vocab_size or hidden]


_WHOLE = _Kind()


class GpuRunner(WithPlane):
    """The `ModelRunner` of a device. Owns the KV tensors; knows nothing of sequences or pages' owners.

    `model` must be on `spec.device` with its linear layers in their final form. Small steps (decode, verify) are
    padded to a bucket and replayed from a CUDA graph, others run kernel by kernel at their own size.
    """

    shares_head = False  # whole on every rank

    def __init__(
        self,
        model: Any,
        spec: ModelSpec,
        options: GpuOptions = _DEFAULTS,
        kernels: Kernels | None = None,
        graphs: GraphMaker | None = None,
    ) -> None:
        """`kernels` and `graphs` (None: Triton's and CUDA's) are there for tests.

        Raises:
            UnsupportedAttention: see `probe`.
            UnorderedSum: the fixed reduction was asked for, and the model adds up values in a way that has none.
            TritonMissing: Triton is not installed.
        """
        self._model = model
        self._device = spec.device
        self._name = spec.model
        self.num_pages = spec.num_pages
        attention.register()
        self._layers = LayerChoice(model, spec.model)
        probed = probe(model, spec.model, spec.device)
        layers, self.vocab_size = probed.layers, probed.num_logits
        model.set_attn_implementation(attention.NAME)
        self.kv = GpuKV(
            [(g.num_kv_heads, g.head_dim) for g in layers], self.num_pages, spec.page_tokens,
            KV_DTYPES[spec.kv_kind], spec.device,
        )
        self._kernels = kernels or TritonKernels(
            layers, spec.page_tokens, options.reduction,
            torch.cuda.get_device_properties(spec.device).multi_processor_count,
        )
        longest = spec.max_context_tokens or max_context_tokens(model.config)
        max_pages = min(self.num_pages, -(-longest // spec.page_tokens))
        self._buckets = Buckets(options.max_graph_rows, max_pages)
        self._graphs: GraphMaker = graphs or CudaGraphs(spec.device)
        self._captured: dict[tuple[Shape, _Kind], _Captured] = {}
        self._captured_kinds = {_WHOLE}
        self._most_rows = max(self._buckets.rows, default=0)
        self._outputs: dict[bool, torch.Tensor] = {}  # of graphs: residual streams, or logits
        self._dtype = DTYPES[spec.dtype]
        self.counts = StepCounts()
        hidden = int(model.config.get_text_config().hidden_size)
        num_slots = (self.num_pages + 2) * spec.page_tokens  # those that padding rows write, too
        self.plane = make_plane(spec, self._layers.num_layers, hidden, num_slots)
        self._slots = torch.empty(0)  # [num_rows] int64 of the pass under way
        for place, layer in enumerate(spec.feature_layers):
            self._layers.show(layer - 1, partial(self._keep, place))
        self._try_one_row()

    def warm_up(self, progress: Progress | None = None) -> None:
        """Capture every bucket now rather than at its first step. Tree masks by bits are captured when first met."""
        self._capture(_WHOLE, progress)

    def prepare(self, layers: Int32s, wants_hidden: bool) -> None:
        """See `Prepares`: passes of other kinds, of which there may be many in a search, have no graphs."""
        kind = _Kind(tuple(layers.tolist()), wants_hidden)
        self._captured_kinds.add(kind)
        self._capture(kind, None)

    def _capture(self, kind: _Kind, progress: Progress | None) -> None:
        """Every bucket of this kind of pass, unless it was."""
        shapes = self._buckets.all()
        started_s = time.monotonic()
        with self._on_device():
            for done, shape in enumerate(shapes, 1):
                self._bucket(shape, kind)
                if progress is not None:
                    progress(done, len(shapes))
                if done % 8 == 0 or done == len(shapes):
                    log.info(
                        "%s: %d of %d CUDA graphs, %.1f s", self._name, done, len(shapes), time.monotonic() - started_s
                    )

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits of `step.logit_rows`: [num_logits, vocab_size] float32 on CPU, or their residual stream (see
        `ModelRunner`)."""
        return self.forward_device(step).float().cpu()

    def forward_device(self, step: StepInput) -> torch.Tensor:
        """Logits (or residual stream) of `step.logit_rows` on the device, in the model's dtype.

        Raises:
            BadTree: parents that describe no tree.
        """
        with self._on_device():
            if len(step.moves):
                slots = torch.from_numpy(step.moves).long().to(self._device)
                self.kv.copy_slots(slots[:, 0], slots[:, 1])
            if len(step.copies):
                pages = torch.from_numpy(step.copies).long().to(self._device)
                self.kv.copy_pages(pages[:, 0], pages[:, 1])
            if self.plane is not None:
                self.plane.rearrange(step.moves, step.copies)
            work, bucket = self._plan(step)
            rows = torch.from_numpy(step.logit_rows).long().to(self._device)
            kind = _Kind(tuple(step.layers.tolist()), step.wants_hidden)
            if bucket is not None and kind in self._captured_kinds:
                captured = self._bucket(bucket, kind)
                if captured.graph is not None:
                    self._fill(captured.tensors, step, work)
                    captured.graph.replay()
                    self.counts.num_replayed += 1
                    return captured.out.index_select(0, rows)  # a copy: the next replay overwrites the buffer
                self.counts.num_uncaptured += 1
            else:
                self.counts.num_large += 1
            tensors = StepTensors(Shape.of(work, len(step.input_ids)), self._device)
            self._fill(tensors, step, work)
            return self._pass(tensors, kind, rows)

    def _try_one_row(self) -> None:
        """What cannot run shall fail at load, not at the first request."""
        tensors = StepTensors(Shape(num_rows=1, num_items=1, num_tail=1, num_sequences=1, num_pages=1), self._device)
        with self._on_device():
            tensors.clear(self._kernels.split_keys(tensors.shape, 1), self.kv.trash_slot)
            self._pass(tensors, _WHOLE, None)

    def _plan(self, step: StepInput) -> tuple[Work, Shape | None]:
        """The step's work, cut for the bucket that it then fits in (None: it runs at its own size)."""
        num_rows = len(step.input_ids)
        parents = step.parents if len(step.parents) else None
        committed = int(committed_tokens(step).max(initial=0))
        roughly = self._buckets.fit(num_rows, -(-committed // self.kv.page_tokens))
        room = num_rows if roughly is None else roughly.num_rows
        work = cut(
            step, self.kv.page_tokens, self._kernels.rows_per_item(room), parents, self._kernels.tree_by_bits
        )
        bucket = self._buckets.fit(num_rows, work.table.shape[1], work.num_words)
        if bucket is not None and not bucket.holds(Shape.of(work, num_rows)):
            bucket = None  # a tree of many long branches
        return work, bucket

    def _fill(self, tensors: StepTensors, step: StepInput, work: Work) -> None:
        split_keys = self._kernels.split_keys(tensors.shape, longest_keys(step))
        tensors.fill(step, work, split_keys, self.kv.trash_slot)

    def _pass(self, tensors: StepTensors, kind: _Kind, rows: torch.Tensor | None) -> torch.Tensor:
        """Logits [num_logits, vocab_size] or residual stream [num_logits, hidden] of `rows`; None: of all."""
        self._layers.run(np.array(kind.layers, np.int32))
        kept: torch.Tensor | int = 0 if rows is None else rows
        if kind.wants_hidden:
            kept = tensors.input_ids[:0].long()  # no logits
        if self.plane is not None:
            self._slots = tensors.slots.long()  # here, so that a graph computes it anew
        with torch.inference_mode(), self._kernels.model_ops():
            logits: torch.Tensor = self._model(
                input_ids=tensors.input_ids[None],
                position_ids=tensors.positions[None],
                use_cache=False,
                logits_to_keep=kept,
                plan=GpuPlan(self.kv, self._kernels, tensors),
            ).logits[0]
        if not kind.wants_hidden:
            return logits
        hidden = self._layers.hidden[0]
        return hidden if rows is None else hidden.index_select(0, rows)

    def _keep(self, place: int, hidden: torch.Tensor) -> None:
        assert self.plane is not None
        self.plane.put(place, self._slots, hidden[0])

    def _output(self, wants_hidden: bool) -> torch.Tensor:
        """Where graphs leave what they answer, [most rows of a bucket, vocab_size or hidden]."""
        if wants_hidden not in self._outputs:
            width = int(self._model.config.get_text_config().hidden_size) if wants_hidden else self.vocab_size
            self._outputs[wants_hidden] = torch.empty(self._most_rows, width, dtype=self._dtype, device=self._device)
        return self._outputs[wants_hidden]

    def _bucket(self, shape: Shape, kind: _Kind) -> _Captured:
        """The bucket's graph, captured at the first call. A failed capture is reported and not tried again."""
        if (shape, kind) in self._captured:
            return self._captured[shape, kind]
        tensors = StepTensors(shape, self._device)
        tensors.clear(self._kernels.split_keys(shape, 1), self.kv.trash_slot)
        out = self._output(kind.wants_hidden)[: shape.num_rows]

        def body() -> None:
            with torch.inference_mode():
                out.copy_(self._pass(tensors, kind, None))

        graph: Graph | None = None
        try:
            graph = self._graphs.capture(body)
        except RuntimeError as error:
            self.counts.num_failed_captures += 1
            log.warning(
                "%s: no CUDA graph for steps of up to %d rows, they run kernel by kernel: %s",
                self._name, shape.num_rows, error,
            )
        self._captured[shape, kind] = _Captured(tensors, graph, out)
        return self._captured[shape, kind]

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Triton launches on the current device, which need not be this runner's."""
        if torch.device(self._device).type == "cuda":
            return torch.cuda.device(self._device)
        return contextlib.nullcontext()
