"""From a loaded model to its `ModelRunner`: the fastest path that computes the same."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from actors.engine.linear import pack_linears
from actors.engine.runner import LocalRunner
from actors.engine.step import ModelRunner
from actors.engine.widened import WidenedRunner
from actors.spec import ModelSpec

log = logging.getLogger(__name__)


def make_runner(model: Any, spec: ModelSpec) -> ModelRunner:
    """Take `model` (this rank's shard of it) over; collective over the default group when there are several ranks.

    On a CPU with native kernels a model of a known architecture runs fused, in one call per pass; any other runs
    its own modules, layer by layer, over the same kernels. A draft model with a reduced vocabulary answers logits of
    the whole one.

    Raises:
        KernelBuildError: native kernels are wanted and there is no compiler.
    """
    vocabulary = getattr(model, "draft_vocabulary", None)  # of `actors.loading.reduced`
    runner = _make(model, spec)
    return runner if vocabulary is None or vocabulary.is_whole else WidenedRunner(runner, vocabulary)


def _make(model: Any, spec: ModelSpec) -> ModelRunner:
    if spec.device == "cpu" and spec.kernels == "native":
        fused = _fused(model, spec)
        if fused is not None:
            return fused
    pack_linears(model, spec.weights, spec.kernels)
    if spec.device != "cpu" and spec.tensor_parallel_size == 1:
        return _on_gpu(model, spec)
    if spec.tensor_parallel_size > 1:
        dist.barrier()  # from here on the ranks run passes together
    return LocalRunner(model, spec)


def _on_gpu(model: Any, spec: ModelSpec) -> ModelRunner:
    """Captured graphs over Triton's attention. Several ranks go on without: their sums cannot be captured."""
    from actors.engine.gpu.contract import Reduction
    from actors.engine.gpu.runner import GpuOptions, GpuRunner

    runner = GpuRunner(model, spec, GpuOptions(Reduction(spec.reduction)))
    runner.warm_up()
    return runner


def _fused(model: Any, spec: ModelSpec) -> ModelRunner | None:
    from actors.engine.native.anatomy import NotFusable, dissect
    from actors.engine.native.exchange import open_exchange
    from actors.engine.native.fused import FusedRunner, exchange_capacity

    try:
        anatomy = dissect(model, spec.max_context_tokens or int(model.config.get_text_config().max_position_embeddings))
    except NotFusable as reason:
        log.info("%s runs layer by layer: %s", spec.model, reason)
        return None
    exchange = None
    if spec.tensor_parallel_size > 1:
        exchange = open_exchange(
            dist.get_rank(), spec.tensor_parallel_size, exchange_capacity(anatomy, spec), spec.step_timeout_s
        )
        if exchange is None:  # ranks on several machines
            return None
    return FusedRunner(anatomy, spec, exchange)
