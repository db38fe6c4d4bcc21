"""What a step does with gradients: AdamW in this process, or DeepSpeed's ZeRO over several."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from actors.training.kind import Batch, Loss, Trainee

_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """Of AdamW (Loshchilov & Hutter, 1711.05101)."""

    weight_decay: float = 0.0  # of matrices
    max_grad_norm: float = 1.0
    accumulate: int = 1  # batches per step


class Stepper(abc.ABC):
    """One trainee and its optimiser."""

    @abc.abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """Forward."""

    @abc.abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one of the `accumulate` batches of a step."""

    @abc.abstractmethod
    def step(self, rate: float) -> float:
        """Change the parameters once all batches of a step are in; returns the norm of the gradient before clipping."""

    @abc.abstractmethod
    def whole_state(self) -> dict[str, torch.Tensor] | None:
        """Collective: state of the trainee where no rank holds all of it by itself; None: each does."""

    @abc.abstractmethod
    def save(self, directory: Path) -> None:
        """Parameters and optimiser, for `load`; called by every rank."""

    @abc.abstractmethod
    def load(self, directory: Path) -> None:
        """Inverse of `save`."""


class PlainStepper(Stepper):
    """One process."""

    def __init__(self, trainee: Trainee, settings: OptimiserSettings, precision: torch.dtype | None) -> None:
        """`precision`: autocast to it; None: as the parameters are."""
        self._trainee = trainee
        self._settings = settings
        self._precision = precision
        self._optimiser = torch.optim.AdamW(groups(trainee, settings.weight_decay), lr=0.0, betas=_BETAS)

    def loss(self, batch: Batch) -> Loss:
        """Forward."""
        with autocast(batch.ids.device, self._precision):
            result: Loss = self._trainee(batch)
        return result

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients."""
        (loss / self._settings.accumulate).backward()  # type: ignore[no-untyped-call]

    def step(self, rate: float) -> float:
        """AdamW."""
        norm = nn.utils.clip_grad_norm_(self._trainee.trainable(), self._settings.max_grad_norm)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return float(norm)

    def whole_state(self) -> None:
        """There is one rank."""

    def save(self, directory: Path) -> None:
        """Two safetensors files."""
        from safetensors.torch import save_file

        save_file(owned(self._trainee), directory / "trainee.safetensors")
        names = {id(p): name for name, p in self._trainee.named_parameters()}
        moments = {
            f"{names[id(parameter)]}/{key}": value.detach().cpu().contiguous()
            for parameter, state in self._optimiser.state.items() for key, value in state.items()
        }
        save_file(moments, directory / "optimiser.safetensors")

    def load(self, directory: Path) -> None:
        """Raises `RuntimeError` when the tensors are not those of the trainee."""
        from safetensors.torch import load_file

        restore(self._trainee, load_file(directory / "trainee.safetensors"))
        parameters = dict(self._trainee.named_parameters())
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name, value in load_file(directory / "optimiser.safetensors").items():
            parameter, _, key = name.rpartition("/")
            states.setdefault(parameter, {})[key] = value
        for parameter, state in states.items():
            own = parameters[parameter]
            self._optimiser.state[own] = {
                key: value if key == "step" else value.to(own.device) for key, value in state.items()
            }


class ZeroStepper(Stepper):
    """Several processes, which share optimiser states (stage 1), gradients too (2), parameters too (3)."""

    def __init__(
        self, trainee: Trainee, settings: OptimiserSettings, precision: torch.dtype | None, stage: int
    ) -> None:
        """Collective: `torch.distributed` is initialised."""
        import deepspeed

        self._trainee = trainee
        self._settings = settings
        self._precision = precision
        self._stage = stage
        optimiser = torch.optim.AdamW(groups(trainee, settings.weight_decay), lr=0.0, betas=_BETAS)
        engine: Any
        engine, *_ = deepspeed.initialize(
            model=trainee, optimizer=optimiser, dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": settings.accumulate,
                "gradient_clipping": settings.max_grad_norm,
                "zero_optimization": {"stage": stage, "overlap_comm": False},
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False,
            },
        )
        self._engine = engine

    def loss(self, batch: Batch) -> Loss:
        """Forward."""
        with autocast(batch.ids.device, self._precision):
            result: Loss = self._engine(batch)
        return result

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients; DeepSpeed divides by the number of batches."""
        self._engine.backward(loss)

    def step(self, rate: float) -> float:
        """Once for every batch of the step, as DeepSpeed counts them itself."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float(norm) if norm is not None else 0.0

    def whole_state(self) -> dict[str, torch.Tensor] | None:
        """Stage 3 leaves a part of every parameter on each rank."""
        if self._stage < 3:
            return None
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self._trainee.parameters())):
            return owned(self._trainee)

    def save(self, directory: Path) -> None:
        """DeepSpeed's own format, a file per rank."""
        self._engine.save_checkpoint(str(directory), tag="zero")

    def load(self, directory: Path) -> None:
        """By as many ranks as saved it."""
        self._engine.load_checkpoint(str(directory), tag="zero")


def groups(trainee: Trainee, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay, norms and biases do not."""
    trained = trainee.trainable()
    matrices, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    both = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]


def owned(trainee: nn.Module) -> dict[str, torch.Tensor]:
    """State on the CPU; tensors that share memory are each stored."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in trainee.state_dict().items()}


def restore(trainee: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Inverse of `owned`. Raises `RuntimeError` when names or shapes differ."""
    trainee.load_state_dict(tensors)


def autocast(device: torch.device, precision: torch.dtype | None) -> torch.autocast:
    """Autocast to `precision`, or nothing."""
    return torch.autocast(device.type, dtype=precision or torch.bfloat16, enabled=precision is not None)
