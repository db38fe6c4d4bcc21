"""A causal LM split over tensor-parallel ranks: DeepSpeed AutoTP chooses the cut, fixed-order sums keep the bits.

DeepSpeed 0.19.8 decides which linears are cut by columns and which by rows, along whole KV heads (uneven cuts
included: 3 KV heads on 2 ranks are 2 + 1), and adjusts the modules' head counts. Its own linear layers
multiply with `torch.matmul`, whose bits depend on the number of rows, so they are exchanged for plain
`nn.Linear` shards (which `actors.engine.linear` packs) and a sum in rank order.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger(__name__)

_SHM_OP = "deepspeed_shm_comm"
GRAIN = 64  # columns; AutoTP's own
_EVEN = 32  # columns that share a scale in 4 bits; kernels read 16 at once


class RowParallelLinear(nn.Module):
    """`y = sum over ranks of shard_r(x_r) + bias`; the bias is added once, after the sum.

    `shard` is a linear without bias; it stays an ordinary child so that it can be packed like any other.
    """

    def __init__(self, shard: nn.Module, bias: torch.Tensor | None, group: dist.ProcessGroup | None,
                 shared_memory: bool) -> None:
        super().__init__()
        self.shard = shard
        self.register_buffer("bias", bias, persistent=False)
        self._group = group
        self._shared_memory = shared_memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features of this rank] -> [..., out_features], the same on every rank."""
        partial: torch.Tensor = self.shard(x).contiguous()
        if self._shared_memory:
            from deepspeed import comm

            comm.inference_all_reduce(partial, group=self._group)
            total = partial
        else:
            total = sum_in_rank_order(partial, self._group)
        bias: torch.Tensor | None = self._buffers["bias"]
        result: torch.Tensor = total if bias is None else total + bias
        return result


def sum_in_rank_order(partial: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Elementwise sum over ranks whose order of additions is the same for every element.

    An all-reduce cuts its buffer into pieces that start at different ranks, so with more than two ranks the
    bits of a row would depend on how many rows there are. Two terms commute; more are gathered and added
    in rank order. `partial` may be overwritten.
    """
    if dist.get_world_size(group) == 2:
        dist.all_reduce(partial, group=group)
        return partial
    parts = [torch.empty_like(partial) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, partial, group=group)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def num_kv_heads(model: nn.Module) -> int:
    """KV heads of the whole model, from its configuration."""
    return _kv_heads(cast(Any, model).config.get_text_config())


def _kv_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def mlp_grain(config: Any, world_size: int, weight_bytes: float, fetched_bytes: int) -> int:
    """AutoTP's `tp_grain_size`: an MLP's columns are cut into such grains, the last rank takes what is left over.

    Where one of two ranks has a KV head more, the other waits for it in every layer, and reads up to `fetched_bytes` of
    its part of the MLP meanwhile (`src/forward.c`): its part may be so much larger. `weight_bytes` of each weight.
    """
    heads = _kv_heads(config)
    if world_size != 2 or heads % 2 == 0:
        return GRAIN
    hidden, inner = int(config.hidden_size), int(config.intermediate_size)
    head_dim = int(getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    group = 2 * config.num_attention_heads // heads + 2  # heads in the matrices of one KV head
    waited = group * head_dim * hidden * weight_bytes
    surplus = min(waited, fetched_bytes) / (3 * hidden * weight_bytes)  # columns
    even = round((inner - surplus) / 2 / _EVEN) * _EVEN
    return even if 3 * even > inner else GRAIN


def shard(
    model: nn.Module, world_size: int, group: dist.ProcessGroup | None = None, shared_memory: bool = False,
    grain: int = GRAIN,
) -> nn.Module:
    """Keep this rank's part of `model`, in place; the same call on every rank.

    torch.distributed must be initialised with `world_size` ranks; `group` (default: all of them) carries the
    sums. Embedding and output head stay whole; MLPs are cut in multiples of `grain` (`mlp_grain`). `shared_memory`
    sums two ranks of one machine with DeepSpeed's shared-memory kernel, compiled at first use (g++ and ninja, about
    a minute, once per machine); without a compiler it falls back to the group. Raises ValueError when the model
    cannot be cut this way.
    """
    if world_size == 1:
        return model
    heads = num_kv_heads(model)
    if heads < world_size:
        raise ValueError(
            f"tensor_parallel_size is {world_size} but the model has {heads} KV heads: set it to {heads} or less"
        )
    # The op sums in an order of its own when there are more than two ranks, and is for CPU tensors.
    shared_memory = shared_memory and world_size == 2 and _can_compile()
    parameter = next(model.parameters())
    _import_deepspeed(parameter.device.type, shared_memory)
    import deepspeed

    # AutoTP would cut the output head too, which costs a second sum and saves little: rank 0 alone reads logits.
    holder = cast(Any, model)
    head = holder.get_output_embeddings()
    holder.set_output_embeddings(nn.Identity())
    try:
        deepspeed.init_inference(
            model, tensor_parallel={"tp_size": world_size, "tp_grain_size": grain}, dtype=parameter.dtype,
            replace_with_kernel_inject=False,
        )
    except AssertionError as error:
        raise ValueError(
            f"DeepSpeed cannot shard {type(model).__name__} ({error}): set tensor_parallel_size to 1"
        ) from error
    finally:
        holder.set_output_embeddings(head)
    if shared_memory and not hasattr(torch.ops.deepspeed, "inference_all_reduce_"):
        log.warning("DeepSpeed's shared-memory all-reduce was not built; sums go through the process group")
        shared_memory = False
    num_cut = _exchange(model, group, shared_memory)
    if num_cut == 0:
        raise ValueError(f"DeepSpeed found nothing to shard in {type(model).__name__}: set tensor_parallel_size to 1")
    log.info("rank %d holds its shard of %d linears", dist.get_rank(), num_cut)
    return model


def _can_compile() -> bool:
    missing = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    if missing:
        log.warning("no %s: DeepSpeed's shared-memory all-reduce is off, sums go through the process group",
                    " and ".join(missing))
    return not missing


def _import_deepspeed(device: str, shared_memory: bool) -> None:
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Keeps DeepSpeed from looking for a launcher; torch.distributed is up already.
    os.environ.setdefault("LOCAL_RANK", "0")
    if shared_memory:
        os.environ["LOCAL_SIZE"] = str(dist.get_world_size())  # the op sums nothing at all without it
    import deepspeed.ops

    if not shared_memory:
        # The op is built in the constructor of DeepSpeed's backend, wanted or not; this table is what it asks first.
        deepspeed.ops.__compatible_ops__[_SHM_OP] = False


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().contiguous(), requires_grad=False)
    return linear


def _exchange(module: nn.Module, group: dist.ProcessGroup | None, shared_memory: bool) -> int:
    """Exchange DeepSpeed's layers below `module` for ours; returns how many."""
    from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer, TensorParallel_Layer

    count = 0
    for name, child in module.named_children():
        # Subclasses that only cut differently (fused QKV) share the base's forward; others compute something else.
        if isinstance(child, LinearLayer) and type(child).forward is LinearLayer.forward and not child.gather_output:
            setattr(module, name, _plain(child.weight, child.bias))
        elif isinstance(child, LinearAllreduce) and type(child).forward is LinearAllreduce.forward:
            bias = None if child.bias is None else child.bias.detach()
            setattr(module, name, RowParallelLinear(_plain(child.weight, None), bias, group, shared_memory))
        elif isinstance(child, TensorParallel_Layer):
            raise ValueError(
                f"DeepSpeed cut {name} into a {type(child).__name__}, whose rows are not reproducible: "
                "set tensor_parallel_size to 1"
            )
        else:
            count += _exchange(child, group, shared_memory)
            continue
        count += 1
    return count
