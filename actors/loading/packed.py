"""GPTQ, AWQ, bitsandbytes and fbgemm fp8 files read without a package: their packing is simple and documented.

A linear layer's weight is replaced in the file by parts named after it; each reader here turns the parts of one
layer into its weight [out_features, in_features] in fp32, where scale (16 bits) times integer (8 bits or less) is
exact. Formats: GPTQ as AutoGPTQ and gptqmodel write it (Frantar et al., arXiv:2210.17323), AWQ's GEMM version as
AutoAWQ writes it (Lin et al., arXiv:2306.00978), bitsandbytes' int8 (arXiv:2208.07339), nf4 and fp4
(arXiv:2305.14314), fbgemm's row-wise e4m3 (Llama 3.1 405B FP8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from actors.loading.errors import ModelNotFound, UnsupportedModel

Parts = Mapping[str, torch.Tensor]
PartReader = Callable[[Parts, Mapping[str, Any]], torch.Tensor]

GPTQ_PARTS = ("qweight", "qzeros", "scales", "g_idx")
AWQ_PARTS = ("qweight", "qzeros", "scales")
BNB_INT8_PARTS = ("SCB", "weight", "weight_format")
BNB_4BIT_PARTS = (
    "weight.absmax", "weight", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4",
)
FBGEMM_PARTS = ("weight_scale", "weight", "input_scale_ub")

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # column i of a word's eight lies in its nibble _AWQ_ORDER[i]
_ONE_PER_FIELD = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


class DamagedParts(ModelNotFound):
    """The parts of a layer do not fit together."""


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """`count` unsigned integers of `bits` bits from each column: [num_words, cols] int32 -> [count, cols] int32.

    A column is one stream of bits, least significant first; 3-bit integers may straddle two words.
    """
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        fields = (words[:, None, :] >> shifts[None, :, None]) & ((1 << bits) - 1)
        return fields.reshape(-1, words.shape[1])[:count]
    stream = torch.nn.functional.pad(words.long() & 0xFFFFFFFF, (0, 0, 0, 1))
    start = torch.arange(count) * bits
    word, shift = start // 32, (start % 32)[:, None]
    fields = (stream[word] >> shift) | (stream[word + 1] << (32 - shift))
    return (fields & ((1 << bits) - 1)).int()


def gptq_weight(parts: Parts, settings: Mapping[str, Any]) -> torch.Tensor:
    """Weight of one GPTQ layer: `scale[group] * (integer - zero[group])`.

    `qweight` [in*bits/32, out] is packed along in, `qzeros` [groups, out*bits/32] along out, `scales` [groups, out];
    `g_idx` [in] names the group of each input (activation order), else groups are consecutive. Format 1 stores
    zeros less one; that is undone on whole words, as gptqmodel did it (fields of 3 bits one by one).
    """
    bits = int(settings.get("bits", settings.get("w_bit", 4)))
    qweight, qzeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
    g_idx = parts.get("g_idx")
    if g_idx is not None and len(g_idx):
        bits = qweight.shape[0] * 32 // len(g_idx)  # a layer may have its own
    if bits not in (2, 3, 4, 8):
        raise UnsupportedModel(f"GPTQ with {bits} bits is not supported: quantise with 2, 3, 4 or 8")
    num_inputs, num_outputs = qweight.shape[0] * 32 // bits, qweight.shape[1]
    num_groups = len(scales)
    if g_idx is None or not len(g_idx):
        if settings.get("desc_act"):
            raise DamagedParts("desc_act is set but there is no g_idx")
        g_idx = torch.arange(num_inputs) // _group_size(settings, num_inputs, num_groups)
    in_range = 0 <= int(g_idx.min()) <= int(g_idx.max()) < num_groups
    if scales.shape[1] != num_outputs or len(qzeros) != num_groups or not in_range:
        raise DamagedParts("the shapes of qweight, qzeros, scales and g_idx do not fit together")
    less_one = _gptq_format(settings) == "gptq"
    if less_one and bits in _ONE_PER_FIELD:
        qzeros = qzeros + _ONE_PER_FIELD[bits]
    zeros = unpack(qzeros.t().contiguous(), bits, num_outputs).t()
    if less_one and bits == 3:
        zeros = (zeros + 1) & 7
    groups = g_idx.long()
    weight = unpack(qweight, bits, num_inputs).sub_(zeros[groups]).float().mul_(scales.float()[groups])
    return weight.t().contiguous()


def awq_weight(parts: Parts, settings: Mapping[str, Any]) -> torch.Tensor:
    """Weight of one AWQ layer (GEMM version, 4 bits): `scale[group] * (integer - zero[group])`.

    `qweight` [in, out/8] and `qzeros` [groups, out/8] are packed along out, eight columns to a word in an order of
    their own; `scales` [groups, out].
    """
    bits = int(settings.get("bits", settings.get("w_bit", 4)))
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if bits != 4 or version != "gemm" or settings.get("backend") == "llm-awq":
        raise UnsupportedModel(f"AWQ version {version} with {bits} bits is not supported: quantise to GEMM with 4 bits")
    qweight, qzeros, scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
    num_inputs, num_groups = len(qweight), len(scales)
    fits = scales.shape[1] == qweight.shape[1] * 8 and qzeros.shape == (num_groups, qweight.shape[1])
    if not fits or num_inputs % num_groups:
        raise DamagedParts("the shapes of qweight, qzeros and scales do not fit together")
    repeats = num_inputs // num_groups
    zeros = _unpack_awq(qzeros).repeat_interleave(repeats, 0)
    weight = _unpack_awq(qweight).sub_(zeros).float().mul_(scales.repeat_interleave(repeats, 0))
    return weight.t().contiguous()


def bnb_int8_weight(parts: Parts, settings: Mapping[str, Any]) -> torch.Tensor:
    """Weight of one LLM.int8 layer: `weight` [out, in] int8 times `SCB` [out] (the row's largest magnitude) / 127."""
    if int(parts.get("weight_format", torch.zeros(1)).view(-1)[0]) != 0:
        raise UnsupportedModel("bitsandbytes int8 weights in a GPU's tile order are not supported: quantise again")
    if parts["SCB"].numel() != len(parts["weight"]):
        raise DamagedParts("weight and SCB do not fit together")
    return parts["weight"].float().mul_(parts["SCB"].float().view(-1, 1)).mul_(7.874015718698502e-3)  # its 1/127


def bnb_4bit_weight(parts: Parts, settings: Mapping[str, Any]) -> torch.Tensor:
    """Weight of one nf4 or fp4 layer: a 16-entry code times the largest magnitude of its block.

    `weight` holds two codes to a byte, high one first, row by row; blocks run over the ends of rows. The magnitudes
    (`absmax`) may be quantised in turn. Values are rounded to the dtype that was quantised, as bitsandbytes does.
    """
    (told,) = (tensor for name, tensor in parts.items() if ".quant_state." in name)
    how = json.loads(bytes(told.tolist()))
    absmax, shape, size = parts["weight.absmax"], how["shape"], int(how["blocksize"])
    if absmax.ndim != 1:
        # Version 0.50.2 transposes them at the first forward pass on a CPU, and saves them so.
        raise DamagedParts("its scales are those of a model that was saved after use on a CPU")
    if "weight.nested_absmax" in parts:
        outer = parts["weight.nested_absmax"].repeat_interleave(int(how["nested_blocksize"]))[: len(absmax)]
        absmax = parts["weight.nested_quant_map"][absmax.int()] * outer + how["nested_offset"]
    packed = parts["weight"].contiguous().view(torch.uint8).view(-1)
    codes = torch.stack([packed >> 4, packed & 15], 1).view(-1)
    if len(codes) != shape[0] * shape[1] or len(absmax) != -(-len(codes) // size):
        raise DamagedParts("weight and absmax do not fit together")
    values = parts["weight.quant_map"][codes.int()].mul_(absmax.float().repeat_interleave(size)[: len(codes)])
    return values.to(getattr(torch, how["dtype"])).float().view(*shape)


def fbgemm_weight(parts: Parts, settings: Mapping[str, Any]) -> torch.Tensor:
    """Weight of one fbgemm fp8 layer: `weight` [out, in] e4m3 times `weight_scale` [out, 1]."""
    scale = parts["weight_scale"].float()
    if scale.numel() != len(parts["weight"]):
        raise DamagedParts("weight and weight_scale do not fit together")
    return parts["weight"].float().mul_(scale.view(-1, 1))


def _group_size(settings: Mapping[str, Any], num_inputs: int, num_groups: int) -> int:
    """Inputs that share a scale; the shapes decide where the settings do not fit this layer."""
    told = int(settings.get("group_size", settings.get("q_group_size", -1)))
    size = told if told > 0 else num_inputs
    return size if -(-num_inputs // size) == num_groups else num_inputs // num_groups


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """[rows, words] -> int32 [rows, 8 * words]."""
    shifts = 4 * torch.tensor(_AWQ_ORDER, dtype=torch.int32)
    return ((words[:, :, None] >> shifts) & 15).reshape(len(words), -1)


def _gptq_format(settings: Mapping[str, Any]) -> str:
    name = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
    if settings.get("is_marlin_format"):
        name = "marlin"
    if name not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"GPTQ checkpoint_format {name} is made for a GPU kernel: save it as gptq or gptq_v2")
    return name
