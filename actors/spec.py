"""What an actor needs to know to load and run one model; made by `cluster.config`, read by `actors`."""

from __future__ import annotations

from dataclasses import dataclass

from actors.drafter_specs import DrafterSpec

EMULATED = "emulated:"  # before the name of the model whose tokenizer an emulated device uses


@dataclass(frozen=True, slots=True)
class Voice:
    """How an emulated tier speaks (`actors.emulation.voice`)."""

    name: str  # the tier's: its choices are its own
    seed: int = 0
    agreement: tuple[float, ...] = ()  # with the voice it follows, by position in a draft, the last value from there
    # on; empty: it follows nobody
    further_guesses: tuple[float, ...] = ()  # by rank, from its second best word on: chance that this one is right
    # where all better ones are wrong


@dataclass(frozen=True, slots=True)
class EmulationSpec:
    """A device that takes its time and computes nothing (`actors.emulation`)."""

    voices: tuple[Voice, ...]  # the tier's own, the one that it follows, and so on up to one that follows nobody
    pass_s: float  # of a pass of up to `flat_rows` rows
    flat_rows: int
    row_s: float = 0.0  # of each row beyond
    hop_s: float = 0.0  # what a call waits before the actor sees it, and its answer before it leaves


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
    cores: tuple[int, ...] = ()  # of its node, which each actor keeps to (`actors.cores`); empty: any
    kv_tokens: int = 65536  # KV memory of a replica
    page_tokens: int = 64
    max_context_tokens: int | None = None  # None: the model's own limit
    max_batch_tokens: int = 512  # rows of one forward pass (prefill chunks share it with decoding)
    gather_s: float = 0.0  # after a pass: wait so long for those whom it has answered
    prefill_tokens: int | None = None  # of these rows, for prompts while others decode; None: a quarter
    max_sequences: int = 64
    idle_timeout_s: float = 120.0  # a sequence nobody calls for this long is freed
    step_timeout_s: float = 60.0  # a tensor-parallel step longer than this is a hang
    feature_layers: tuple[int, ...] = ()  # after which decoder layers (1: the first) the residual stream is kept for
    # feature-based drafters, beside the KV; empty: nowhere
    emulation: EmulationSpec | None = None  # no model is run, only its tokenizer is used; `model` says "emulated:..."

    @property
    def hop_s(self) -> float:
        """Emulated network: what each call and each answer waits, in seconds."""
        return self.emulation.hop_s if self.emulation is not None else 0.0

    @property
    def prefill_rows(self) -> int:
        """`prefill_tokens`, or its default."""
        return self.prefill_tokens or max(1, self.max_batch_tokens // 4)

    @property
    def tree_rows(self) -> int:
        """Rows that a step always has for a tree, which must run in one: more nodes than that are left out."""
        return self.max_batch_tokens - self.prefill_rows

    @property
    def kv_kind(self) -> str:
        """What keys and values are stored as."""
        return self.kv_dtype or self.dtype

    @property
    def num_pages(self) -> int:
        """KV pages of a replica."""
        return max(1, self.kv_tokens // self.page_tokens)


@dataclass(frozen=True, slots=True)
class InlineTier:
    """A tier that runs in the process of the tier above it."""

    spec: ModelSpec
    window: int  # tokens that it puts together at a time, for the tier above to verify
    drafter: DrafterSpec | None = None  # of tier 0; None: it verifies what the tier below drafts
