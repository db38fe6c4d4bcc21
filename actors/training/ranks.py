"""The processes of a run: this one alone, or several that `torch.distributed` joins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(minutes=30)  # the first rank may sample and evaluate while the others wait


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among them."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and reports."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for the others."""
        if self.count > 1:
            dist.barrier()

    def any(self, value: bool) -> bool:
        """Whether it is so for any of them: all get the same answer."""
        if self.count == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flag = torch.tensor(float(value), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def join(device: str) -> Ranks:
    """The ranks that a launcher (torchrun, deepspeed, or `outrider train --num-gpus`) started; alone without one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Ranks()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("cuda"):
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        import deepspeed

        backend = "nccl" if device.startswith("cuda") else "gloo"
        deepspeed.init_distributed(dist_backend=backend, timeout=_TIMEOUT, verbose=False)
    return Ranks(dist.get_rank(), count, local)
