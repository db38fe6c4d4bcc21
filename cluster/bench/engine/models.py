"""The models of a bench: runners by kind of weights, built once each, and what the engine refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from actors.build import build_runner
from actors.engine.native.build import KernelBuildError
from actors.engine.step import ModelRunner
from actors.loading.checkpoint import load_config, load_model, max_context_tokens
from actors.spec import ModelSpec

WEIGHTS = ("fp32", "bf16", "int8", "w8a8", "int4")
DTYPES = ("float32", "bfloat16", "float16")
DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0}
USUAL_DTYPE = {"fp32": "float32", "bf16": "bfloat16"}  # others: float32


class KindRefused(ValueError):
    """The engine does not run this kind here; one line that says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a model is held: linear weights, activations, KV cache."""

    weights: str
    dtype: str
    kv_dtype: str | None = None  # None: as the activations

    @classmethod
    def parse(cls, text: str) -> Self:
        """`int8` or `int8:bfloat16`. Raises ValueError with one line that names the choices."""
        weights, _, dtype = text.strip().partition(":")
        if weights not in WEIGHTS:
            raise ValueError(f"weights {weights!r} are not one of {', '.join(WEIGHTS)}")
        dtype = dtype or USUAL_DTYPE.get(weights, "float32")
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}: write e.g. {weights}:bfloat16")
        return cls(weights, dtype)

    @property
    def label(self) -> str:
        """The shortest text that `parse` reads as this kind, then the KV type if it is one of its own."""
        usual = self.dtype == USUAL_DTYPE.get(self.weights, "float32")
        name = self.weights if usual else f"{self.weights}:{self.dtype}"
        return name if self.kv_dtype is None else f"{name} {self.kv_dtype} KV"

    @property
    def kv_bytes(self) -> float:
        """Size of one stored number of a key or value."""
        return DTYPE_BYTES[self.kv_dtype or self.dtype]


class Models:
    """Runners of one target and one draft model. A runner belongs to whoever uses it at the moment."""

    def __init__(self, target: ModelSpec, draft: ModelSpec) -> None:
        """The two specs say everything but the kind."""
        self._specs = {"target": target, "draft": draft}
        self._runners: dict[tuple[str, Kind], ModelRunner] = {}

    def spec(self, role: str, kind: Kind) -> ModelSpec:
        """Spec of "target" or "draft" in this kind."""
        spec = replace(self._specs[role], weights=kind.weights, dtype=kind.dtype)
        return spec if kind.kv_dtype is None else replace(spec, kv_dtype=kind.kv_dtype)

    def runner(self, role: str, kind: Kind) -> ModelRunner:
        """Loaded at the first call. Raises `KindRefused`."""
        key = (role, kind)
        if key not in self._runners:
            spec = self.spec(role, kind)
            try:
                self._runners[key] = build_runner(spec)
            except torch.OutOfMemoryError as error:
                raise KindRefused(f"no memory left for another copy of the model ({spec.device})") from error
            except (ValueError, KernelBuildError) as error:
                raise KindRefused(" ".join(str(error).split())[:300]) from error
        return self._runners[key]

    def release(self, role: str, kind: Kind) -> None:
        """Free a runner's memory."""
        self._runners.pop((role, kind), None)

    def plain(self, role: str, dtype: str) -> Any:
        """The unchanged transformers model, in evaluation mode."""
        return load_model(self.spec(role, Kind("fp32" if dtype == "float32" else "bf16", dtype)))

    def config(self, role: str) -> Any:
        """The transformers configuration."""
        return load_config(self._specs[role].model)

    def max_context_tokens(self, role: str) -> int:
        """Positions the model was made for."""
        return max_context_tokens(self.config(role))
