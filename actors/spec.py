"""What an actor needs to know to load and run one model; made by `cluster.config`, read by `actors`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One tier's model and how it is run. All sizes are in tokens."""

    tier: int
    model: str  # a directory, a Hugging Face id, or "builtin:smollm2" (see actors.loading.builtin)
    dtype: str = "float32"  # "float32" | "bfloat16" | "float16": activations and KV cache
    weights: str = "fp32"  # "fp32" | "bf16" | "int8" | "w8a8" | "int4": what the linear layers hold
    kv_dtype: str | None = None  # "float32" | "bfloat16" | "int8"; None: as `dtype`
    kernels: str = "native"  # on a CPU: "native" (C, compiled at first use) | "portable" (the framework's)
    reduction: str = "fast"  # on a GPU: "fast" | "fixed" (rows independent of their neighbours, slower)
    device: str = "cpu"
    tensor_parallel_size: int = 1
    num_threads: int | None = None  # per rank; None: PyTorch's choice
    kv_tokens: int = 65536  # KV memory of a replica
    page_tokens: int = 64
    max_context_tokens: int | None = None  # None: the model's own limit
    max_batch_tokens: int = 512  # rows of one forward pass (prefill chunks share it with decoding)
    prefill_tokens: int | None = None  # of these rows, for prompts while others decode; None: a quarter
    max_sequences: int = 64
    idle_timeout_s: float = 120.0  # a sequence nobody calls for this long is freed
    step_timeout_s: float = 60.0  # a tensor-parallel step longer than this is a hang

    @property
    def prefill_rows(self) -> int:
        """`prefill_tokens`, or its default."""
        return self.prefill_tokens or max(1, self.max_batch_tokens // 4)

    @property
    def kv_kind(self) -> str:
        """What keys and values are stored as."""
        return self.kv_dtype or self.dtype

    @property
    def num_pages(self) -> int:
        """KV pages of a replica."""
        return max(1, self.kv_tokens // self.page_tokens)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """How tier 0 proposes."""

    kind: str = "model"  # "model" | "ngram"
    ngram_max: int = 4  # longest suffix looked up
    ngram_min: int = 1
    law_support: int = 64  # a sampled draft is drawn from its top-m, renormalised; 0: the whole law
