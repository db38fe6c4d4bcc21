"""The engine that a corpus is written with: the target on one device, many sequences per step."""

from __future__ import annotations

from dataclasses import replace

from actors.build import build_runner, describe
from actors.spec import ModelSpec
from actors.training.data.writer import Writer

_PAGE_TOKENS = 16
_PREFILL_ROWS = 128  # beside those that are being written


def writing_spec(
    model: str, weights: str = "int8", dtype: str = "float32", device: str = "cpu", num_threads: int | None = None,
    num_parallel: int = 24, max_context_tokens: int = 1536,
) -> ModelSpec:
    """How the target is run to write `num_parallel` texts of at most `max_context_tokens` at once."""
    pages = -(-max_context_tokens // _PAGE_TOKENS) + 1
    return ModelSpec(
        tier=1, model=model, weights=weights, dtype=dtype, device=device, num_threads=num_threads,
        kv_tokens=num_parallel * pages * _PAGE_TOKENS, page_tokens=_PAGE_TOKENS,
        max_context_tokens=max_context_tokens, max_batch_tokens=num_parallel + _PREFILL_ROWS,
        prefill_tokens=_PREFILL_ROWS, max_sequences=num_parallel, idle_timeout_s=86400.0,
    )


def open_writer(spec: ModelSpec) -> Writer:
    """Load the target and make it ready to write. Raises `ModelNotFound`, `UnsupportedModel`, `ValueError`."""
    info = describe(spec, 0)
    spec = replace(spec, max_context_tokens=info.max_context_tokens)
    return Writer(build_runner(spec), spec, info.max_context_tokens, info.eos_ids)
