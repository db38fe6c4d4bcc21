"""The C interface of the kernels, field for field as in `src/outrider.h` and `src/forward.c`."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

import numpy as np
import torch  # before the library: both then share one OpenMP runtime

from actors.engine.native.build import built_library

WEIGHT_KINDS = {"fp32": 0, "bf16": 1, "int8": 2, "w8a8": 3, "int4": 4}
KV_KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}
ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
LANES = 16
INT4_GROUP = 32
GROUP_ROWS = 8


class LinearArgs(Structure):
    """`Linear`."""

    _fields_ = [
        ("kind", c_int32), ("num_out", c_int32), ("num_in", c_int32), ("num_in_padded", c_int32),
        ("weight", c_void_p), ("scale", c_void_p), ("sum", c_void_p), ("bias", c_void_p),
    ]  # fmt: skip


class KVArgs(Structure):
    """`KVLayer`."""

    _fields_ = [
        ("kind", c_int32), ("num_heads", c_int32), ("dim", c_int32), ("page", c_int32),
        ("keys", c_void_p), ("values", c_void_p), ("key_scale", c_void_p), ("value_scale", c_void_p),
    ]  # fmt: skip


class StepArgs(Structure):
    """`Step`."""

    _fields_ = [
        ("num_rows", c_int32), ("num_logits", c_int32), ("num_groups", c_int32), ("page_tokens", c_int32),
        ("input_ids", c_void_p), ("positions", c_void_p), ("slots", c_void_p), ("pages", c_void_p),
        ("logit_rows", c_void_p), ("group_rows", c_void_p), ("group_pages", c_void_p),
        ("forks", c_void_p), ("tails", c_void_p), ("tail_slots", c_void_p),
        ("layers", c_void_p), ("num_layers", c_int32), ("wants_hidden", c_int32),
        ("inputs_embeds", c_void_p), ("best_ids", c_void_p), ("best_tops", c_void_p),
    ]  # fmt: skip


class HeadsArgs(Structure):
    """`Heads`."""

    _fields_ = [
        ("num_heads", c_int32), ("num_kv_heads", c_int32), ("head_dim", c_int32), ("window", c_int32),
        ("scale", c_float),
    ]  # fmt: skip


class ExchangeArgs(Structure):
    """`Exchange`."""

    _fields_ = [
        ("rank", c_int32), ("num_ranks", c_int32), ("capacity", c_int64), ("timeout_s", c_double),
        ("flags", c_void_p), ("slots", c_void_p), ("turn", c_uint32),
    ]  # fmt: skip


class ChannelArgs(Structure):
    """`Channel`."""

    _fields_ = [
        ("rank", c_int32), ("num_ranks", c_int32), ("capacity", c_int64), ("timeout_s", c_double),
        ("sent", c_void_p), ("read", c_void_p), ("data", c_void_p), ("count", c_uint32),
    ]  # fmt: skip


class LayerArgs(Structure):
    """`Layer`."""

    _fields_ = [
        ("qkv", LinearArgs), ("out", LinearArgs), ("gate_up", LinearArgs), ("down", LinearArgs),
        ("input_norm", c_void_p), ("mlp_norm", c_void_p), ("query_norm", c_void_p), ("key_norm", c_void_p),
        ("after_attention", c_void_p), ("after_mlp", c_void_p), ("cosine", c_void_p), ("sine", c_void_p),
        ("heads", HeadsArgs), ("rotary", c_int32), ("kv", KVArgs),
    ]  # fmt: skip


class ModelArgs(Structure):
    """`Model`."""

    _fields_ = [
        ("num_layers", c_int32), ("hidden", c_int32), ("activation", c_int32), ("num_threads", c_int32),
        ("embedding_kind", c_int32), ("epsilon", c_float), ("embedding_scale", c_float),
        ("layers", POINTER(LayerArgs)), ("embedding", c_void_p), ("final_norm", c_void_p), ("head", LinearArgs),
        ("head_parts", c_void_p), ("logit_cap", c_float), ("exchange", POINTER(ExchangeArgs)),
        ("plane", c_void_p), ("plane_width", c_int32), ("plane_places", c_void_p),
    ]  # fmt: skip


class WorkspaceArgs(Structure):
    """`Workspace`."""

    _fields_ = [
        (name, c_void_p)
        for name in ("x", "normed", "qkv", "attended", "gate_up", "added", "partials", "values", "scale")
    ]


@functools.cache
def library() -> Any:
    """The loaded kernels. Raises `KernelBuildError`."""
    lib: Any = ctypes.CDLL(str(built_library()))
    lib.has_vnni.restype = c_int32
    lib.forward.restype = c_int32
    lib.forward.argtypes = [POINTER(ModelArgs), POINTER(StepArgs), POINTER(WorkspaceArgs), c_void_p]
    lib.decode.restype = c_int32
    lib.decode.argtypes = [
        POINTER(ModelArgs), POINTER(StepArgs), POINTER(StepArgs), POINTER(WorkspaceArgs), c_void_p, c_int32,
        *[c_void_p] * 3,
    ]  # fmt: skip
    lib.matmul.restype = None
    lib.matmul.argtypes = [POINTER(LinearArgs), c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int32]
    lib.paged_attention.restype = None
    lib.paged_attention.argtypes = [
        POINTER(KVArgs), POINTER(HeadsArgs), POINTER(StepArgs), *[c_void_p] * 5, c_int32,
    ]  # fmt: skip
    lib.kv_move.restype = None
    lib.kv_move.argtypes = [POINTER(KVArgs), c_int32, c_void_p, c_int32]
    lib.partial_floats.restype = c_int64
    lib.partial_floats.argtypes = [POINTER(HeadsArgs), POINTER(StepArgs), c_int32]
    for move in (lib.channel_send, lib.channel_receive):
        move.restype = c_int32
        move.argtypes = [POINTER(ChannelArgs), c_void_p, c_int64]
    lib.channel_flush.restype = c_int32
    lib.channel_flush.argtypes = [POINTER(ChannelArgs)]
    return lib


def address(array: np.ndarray | torch.Tensor | None) -> int | None:
    """Where a C-contiguous array begins; its owner must outlive the call."""
    if array is None:
        return None
    if isinstance(array, torch.Tensor):
        return array.data_ptr()
    return int(array.__array_interface__["data"][0])
