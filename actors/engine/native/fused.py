"""The whole forward pass in one call of the kernels (`src/forward.c`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from actors.engine.native.anatomy import Anatomy, LayerAnatomy, Matrix
from actors.engine.native.exchange import Exchange
from actors.engine.native.kv import NativeKV
from actors.engine.native.library import (
    KV_KINDS,
    LANES,
    HeadsArgs,
    LayerArgs,
    ModelArgs,
    WorkspaceArgs,
    address,
    library,
)
from actors.engine.native.step import NativeStep
from actors.engine.native.weights import PackedWeight, pack_weight
from actors.engine.plane import WithPlane, make_plane
from actors.engine.step import Best, Int32s, StepInput
from actors.spec import ModelSpec


class RankLate(RuntimeError):
    """Another rank did not come to a sum in time."""


@dataclass(frozen=True, slots=True)
class _Rope:
    """Addresses of a rotation's tables, and how many dimensions of a head they turn."""

    cosine: int
    sine: int
    width: int


class FusedRunner(WithPlane):
    """The `ModelRunner` of a model that was taken apart. Its weights are copied as they are packed, layer by layer.

    Several ranks share the output head, too: every rank needs to know which rows' logits are wanted.
    """

    shares_head = True

    def __init__(self, anatomy: Anatomy, spec: ModelSpec, exchange: Exchange | None = None) -> None:
        """`exchange` where there are several ranks. Raises `KernelBuildError`."""
        self._library = library()
        self.num_pages = spec.num_pages
        self.vocab_size = len(anatomy.head.weight)
        self._page_tokens = spec.page_tokens
        self._exchange = exchange
        geometry = [(layer.num_kv_heads, layer.head_dim) for layer in anatomy.layers]
        self.kv = NativeKV(geometry, self.num_pages, spec.page_tokens, spec.kv_kind)
        self._weights: list[PackedWeight] = []
        self._tensors: list[torch.Tensor] = []
        self._widest = self._widths(anatomy)
        self._scratch_bytes = 0
        self._partials = torch.empty(0)
        self._layers = (LayerArgs * len(anatomy.layers))()
        rope = {
            key: _Rope(self._hold(cosine), self._hold(sine), 2 * cosine.shape[1])
            for key, (cosine, sine) in anatomy.rope.items()
        }
        for index, layer in enumerate(anatomy.layers):
            self._layers[index] = self._layer(layer, index, spec.weights, rope[layer.rope])
        embedding = anatomy.embedding
        if embedding.dtype not in (torch.float32, torch.bfloat16):
            embedding = embedding.float()
        parts = _parts(self.vocab_size, spec.tensor_parallel_size)
        mine = slice(0, self.vocab_size) if exchange is None else slice(*parts[exchange.rank : exchange.rank + 2])
        head = self._pack(_rows(anatomy.head, mine), head_kind(spec.weights))
        self._head_parts = np.array(parts, np.int32)
        num_slots = (self.num_pages + 1) * spec.page_tokens
        self.plane = make_plane(spec, len(self._layers), anatomy.hidden, num_slots)
        self._places = np.full(len(self._layers), -1, np.int32)
        for index, kept in enumerate(spec.feature_layers):
            self._places[kept - 1] = index * anatomy.hidden
        self._model = ModelArgs(
            len(self._layers), anatomy.hidden, anatomy.activation,
            spec.num_threads or torch.get_num_threads(),
            KV_KINDS["float32" if embedding.dtype == torch.float32 else "bfloat16"],
            anatomy.epsilon, anatomy.embedding_scale, self._layers, self._hold(embedding),
            self._hold(anatomy.final_norm), head, address(self._head_parts), anatomy.logit_cap,
            None if exchange is None else ctypes.pointer(exchange.args),
            None if self.plane is None else address(self.plane.rows), self.features_kept, address(self._places),
        )  # fmt: skip
        by_shape = {(h.num_heads, h.num_kv_heads, h.head_dim): h for h in (layer.heads for layer in self._layers)}
        self._kinds_of_heads = list(by_shape.values())
        self._workspace = self._make_workspace(spec.max_batch_tokens)
        self.best: Best | None = None

    def forward(self, step: StepInput, inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
        """One packed pass: logits of `step.logit_rows`, [num_logits, vocab_size] float32 (on rank 0; else none), or
        their residual stream (see `ModelRunner`).

        `inputs_embeds`: [num_rows, hidden] float32 in place of the embeddings of the tokens, which are not looked at.
        Raises `RankLate` when another rank hangs.
        """
        native = self._prepared(step)
        if inputs_embeds is not None:
            if inputs_embeds.shape != (len(step.input_ids), self._model.hidden):
                raise ValueError(f"inputs_embeds {tuple(inputs_embeds.shape)} are no row for each of the step's rows")
            inputs_embeds = inputs_embeds.float().contiguous()
            native.args.inputs_embeds = inputs_embeds.data_ptr()
        leads = self._exchange is None or self._exchange.rank == 0
        width = self._model.hidden if step.wants_hidden else self.vocab_size
        num_logits = len(step.logit_rows) if leads else 0
        logits = torch.empty(num_logits, width)
        self.best = None
        best = Best(np.empty(num_logits, np.int32), np.empty(num_logits, np.float32))
        if num_logits and not step.wants_hidden:
            native.args.best_ids, native.args.best_tops = address(best.ids), address(best.tops)
            self.best = best
        if self._library.forward(self._model, native.args, self._workspace, logits.data_ptr()) != 0:
            raise RankLate("another tensor-parallel rank did not come to a sum in time")
        return logits

    def decode(self, step: StepInput, num_passes: int, stop: Int32s) -> Best:
        """See `Decodes`. One rank alone can."""
        if self._exchange is not None:
            raise RuntimeError("several ranks decode one pass after another")
        native, num = self._prepared(step), len(step.logit_rows)
        every = np.arange(num + 1, dtype=np.int32)
        after = step.kv_len + np.int32(num_passes)  # where the last pass may be: its scratch must do for all
        following = StepInput(
            input_ids=np.zeros(num, np.int32), positions=after - np.int32(2), slots=np.zeros(num, np.int32),
            cu_query=every, kv_len=after - np.int32(1), pages=step.pages, cu_pages=step.cu_pages,
            logit_rows=every[:-1], copies=np.empty((0, 2), np.int32),
        )
        further = NativeStep(following, self._page_tokens)
        self._reserve_partials(further)
        following.positions[:] = step.kv_len
        logits = torch.empty(num, self.vocab_size)
        best = Best(np.empty((num_passes, num), np.int32), np.empty((num_passes, num), np.float32))
        made = self._library.decode(
            self._model, native.args, further.args, self._workspace, logits.data_ptr(), num_passes,
            address(best.ids), address(best.tops), address(stop),
        )  # fmt: skip
        if made < 1:
            raise RuntimeError("decoding failed")
        return Best(best.ids[:made], best.tops[:made])

    @property
    def decodes(self) -> bool:
        """See `Decodes`."""
        return self._exchange is None

    def _prepared(self, step: StepInput) -> NativeStep:
        """A step as the kernels read it, once its pages are as it wants them and there is scratch for it."""
        if len(step.moves):
            self.kv.move_slots(step.moves)
        if len(step.copies):
            self.kv.copy_pages(step.copies)
        if self.plane is not None:
            self.plane.rearrange(step.moves, step.copies)
        if len(step.input_ids) > self._workspace_rows:
            self._workspace = self._make_workspace(len(step.input_ids))
        native = NativeStep(step, self._page_tokens)
        self._reserve_partials(native)
        return native

    def _layer(self, layer: LayerAnatomy, index: int, weights: str, rope: _Rope) -> LayerArgs:
        qkv, gate_up = (layer.query, layer.key, layer.value), (layer.gate, layer.up)
        optional = (layer.query_norm, layer.key_norm, layer.after_attention, layer.after_mlp)
        return LayerArgs(
            self._pack(_stack(*qkv), weights), self._pack(layer.out, weights),
            self._pack(_stack(*gate_up), weights), self._pack(layer.down, weights),
            self._hold(layer.input_norm), self._hold(layer.mlp_norm),
            *(None if t is None else self._hold(t) for t in optional), rope.cosine, rope.sine,
            HeadsArgs(layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.window, layer.scaling),
            rope.width, self.kv.args(index),
        )  # fmt: skip

    def _pack(self, matrix: Matrix, kind: str) -> Any:
        packed = pack_weight(kind, matrix.weight, matrix.bias)
        self._weights.append(packed)
        self._scratch_bytes = max(self._scratch_bytes, packed.bytes_per_row)
        return packed.args()

    def _hold(self, tensor: torch.Tensor) -> int:
        tensor = tensor.contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()

    @staticmethod
    def _widths(anatomy: Anatomy) -> list[int]:
        """Floats per row of the workspace's buffers, in the order of `Workspace`."""
        layers, hidden = anatomy.layers, anatomy.hidden
        return [
            hidden, hidden, max((n.num_heads + 2 * n.num_kv_heads) * n.head_dim for n in layers),
            max(n.num_heads * n.head_dim for n in layers), max(2 * len(n.gate.weight) for n in layers), hidden,
        ]  # fmt: skip

    def _reserve_partials(self, native: NativeStep) -> None:
        need = max(native.partial_floats(heads, self._model.num_threads) for heads in self._kinds_of_heads)
        if need > self._partials.numel():
            self._partials = torch.empty(need)
            self._workspace.partials = self._partials.data_ptr()

    def _make_workspace(self, num_rows: int) -> WorkspaceArgs:
        self._workspace_rows = num_rows
        self._buffers = [torch.empty(num_rows * width) for width in self._widest]
        self._buffers.append(self._partials)
        self._buffers.append(torch.empty(num_rows * self._scratch_bytes, dtype=torch.uint8))
        self._buffers.append(torch.empty(num_rows))
        return WorkspaceArgs(*map(address, self._buffers))


def exchange_capacity(anatomy: Anatomy, spec: ModelSpec) -> int:
    """Floats of the largest partial result: all rows of a pass, or one row of a rank's part of the vocabulary."""
    vocab = len(anatomy.head.weight)
    return max(spec.max_batch_tokens * anatomy.hidden, vocab // spec.tensor_parallel_size + LANES)


def _parts(vocab: int, num_ranks: int) -> list[int]:
    """Where each rank's part of the vocabulary starts, and the end: even to 16."""
    blocks = -(-vocab // LANES)
    return [min(LANES * (blocks * rank // num_ranks), vocab) for rank in range(num_ranks)] + [vocab]


def _stack(*parts: Matrix) -> Matrix:
    """One matrix for layers that read the same input."""
    weight = torch.cat([p.weight for p in parts])
    if all(p.bias is None for p in parts):
        return Matrix(weight, None)
    return Matrix(weight, torch.cat([torch.zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]))


def _rows(matrix: Matrix, rows: slice) -> Matrix:
    return Matrix(matrix.weight[rows], None if matrix.bias is None else matrix.bias[rows])


def head_kind(weights: str) -> str:
    """The output head's kind: a fifth of a small model, and 4 bits there cost more than they save."""
    return "int8" if weights == "int4" else weights
