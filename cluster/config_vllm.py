"""A vLLM configuration file read as one of ours, with a note of what each of its keys became.

`vllm serve --config FILE` takes command-line options as keys, with dashes or underscores; `speculative-config` is a
mapping, or JSON in a string. What has no counterpart here is a mistake, said in one line; what is always on, or is set
per request, or is nobody's concern here, is dropped with a note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cluster.config_load import ConfigError

Notes = list[str]
_DTYPES = {"float": "float32", "float32": "float32", "half": "float16", "float16": "float16", "bfloat16": "bfloat16"}
_NOT_NEEDED = {
    "enable_prefix_caching": "the prefix cache is always on",
    "enable_chunked_prefill": "prompts are always cut into chunks",
    "gpu_memory_utilization": "KV memory is sized by kv_tokens of each tier",
    "enforce_eager": "CUDA graphs are captured where they pay",
    "trust_remote_code": "no code of a checkpoint is run",
    "seed": "a request brings its own seed",
    "distributed_executor_backend": "Ray runs the ranks",
    "disable_log_requests": "prompts and completions are never logged",
    "disable_log_stats": "counters cost nothing worth turning off",
    "revision": "give a directory of that revision as the model",
    "generation_config": "set defaults under sampling",
    "load_format": "told from the checkpoint",
    "tokenizer": "read from the model's directory",
    "quantization": "told from the checkpoint; to quantise on loading set weights: int8",
    "api_key": "make a token with `outrider token new`, and set auth",
}  # fmt: skip
_SPECULATION_NOT_NEEDED = {
    "draft_sample_method": "drafts are sampled as the request is",
    "quantization": "told from the draft's checkpoint",
    "revision": "give a directory of that revision as the model",
    "disable_by_batch_size": "lookahead: auto stops drafting where it does not pay",
    "num_speculative_tokens_per_batch_size": "lookahead: auto chooses by load",
    "enable_adaptive_verification": "lookahead: auto chooses by measured acceptance",
    "use_local_argmax_reduction": "the head is always shared among ranks",
    "disable_padded_drafter_batch": "drafts are never padded",
}  # fmt: skip
_HEADS = {"eagle": "eagle", "eagle3": "eagle", "medusa": "medusa", "dflash": "block"}


def is_vllm(settings: Mapping[str, object]) -> bool:
    """Whether a mapping is a vLLM configuration: it names a model at the top, and neither tiers nor a preset."""
    keys = {str(key).replace("-", "_") for key in settings}
    return "model" in keys and not keys & {"tiers", "preset"}


def from_vllm(settings: Mapping[str, object]) -> tuple[dict[str, Any], Notes]:
    """Our settings, not checked yet, and notes of what became of the keys. Raises `ConfigError`."""
    reader = _Reader({str(key).replace("-", "_"): value for key, value in settings.items()}, "")
    target: dict[str, Any] = {"name": "target", "model": reader.take("model", "the target's model")}
    result: dict[str, Any] = {"tiers": [target]}
    speculative = reader.take("speculative_config", None)
    reader.move("served_model_name", result, "model_name", _first)
    for key, ours in (
        ("tensor_parallel_size", "tensor_parallel_size"), ("max_model_len", "max_context_tokens"),
        ("max_num_seqs", "max_sequences"), ("max_num_batched_tokens", "max_batch_tokens"),
        ("block_size", "page_tokens"),
    ):  # fmt: skip
        reader.move(key, target, ours, where="tiers.target")
    _dtypes(reader, target)
    server: dict[str, Any] = {}
    reader.move("host", server, "host", where="server")
    reader.move("port", server, "http_port", where="server")
    if server:
        result["server"] = server
    if "max_sequences" in target:
        result["limits"] = {"max_concurrent_requests": target["max_sequences"]}
        reader.notes.append("max_num_seqs also became limits.max_concurrent_requests")
    blocks = reader.take("num_gpu_blocks_override", None)
    if blocks is not None:
        target["kv_tokens"] = reader.whole("num_gpu_blocks_override", blocks) * int(target.get("page_tokens", 64))
        reader.notes.append(f"num_gpu_blocks_override became tiers.target.kv_tokens: {target['kv_tokens']}")
    reader.drop(_NOT_NEEDED)
    if speculative is not None:
        _speculation(_mapping(speculative, reader), result, target, reader)
    reader.end()
    return result, reader.notes


def _dtypes(reader: _Reader, target: dict[str, Any]) -> None:
    dtype = reader.take("dtype", None)
    if dtype not in (None, "auto"):
        if str(dtype) not in _DTYPES:
            reader.wrong(f"dtype: {dtype!r} has no counterpart; use one of {', '.join(_DTYPES)}")
        target["dtype"] = _DTYPES.get(str(dtype), "float32")
        reader.notes.append(f"dtype became tiers.target.dtype: {target['dtype']}")
    kept = reader.take("kv_cache_dtype", None)
    if kept in (None, "auto"):
        return
    if str(kept).startswith("fp8"):
        reader.wrong(f"kv_cache_dtype: {kept} has no counterpart; set kv_dtype: int8 in a file of ours, or remove it")
    target["kv_dtype"] = _DTYPES.get(str(kept), str(kept))
    reader.notes.append(f"kv_cache_dtype became tiers.target.kv_dtype: {target['kv_dtype']}")


def _speculation(given: Mapping[str, object], result: dict[str, Any], target: dict[str, Any], outer: _Reader) -> None:
    reader = _Reader({str(key).replace("-", "_"): value for key, value in given.items()}, "speculative_config.")
    reader.notes, reader.lines = outer.notes, outer.lines
    method, model = reader.take("method", None), reader.take("model", None)
    method = str(method or ("draft_model" if model else ""))
    draft: dict[str, Any] = {"name": "draft"}
    speculation: dict[str, Any] = {}
    reader.move("num_speculative_tokens", speculation, "lookahead", where="speculation")
    lookahead = speculation.get("lookahead")
    if isinstance(lookahead, int) and lookahead > 16:
        speculation["max_lookahead"] = lookahead
    parallel = reader.take("parallel_drafting", False)
    if method in ("ngram", "ngram_gpu"):
        longest = reader.take("prompt_lookup_max", 5)
        shortest = reader.take("prompt_lookup_min", longest)
        draft["drafter"] = {"kind": "ngram", "ngram_max": longest, "ngram_min": shortest}
    elif method == "suffix":
        draft["drafter"] = {"kind": "suffix"}
        for key, ours in (
            ("max_tree_depth", "max_depth"), ("max_cached_requests", "max_cached_requests"),
            ("max_spec_factor", "spec_factor"), ("min_token_prob", "min_token_prob"),
        ):  # fmt: skip
            reader.move(f"suffix_decoding_{key}", draft["drafter"], ours, where="tiers.draft.drafter")
    elif method in _HEADS and not parallel:
        draft["drafter"] = {"kind": _HEADS[method], "head": model or ""}
        reader.notes.append(f"the head must be one of ours (`outrider train {_HEADS[method]}`), not {method}'s own")
    elif method == "draft_model" and model:
        draft["model"] = model
        if parallel:
            draft["drafter"] = {"kind": "parallel"}
        elif reader.take("use_heterogeneous_vocab", False):
            draft["drafter"] = {"kind": "draft_model", "tokenizers": "intersection"}
    else:
        reader.wrong(
            f"method: {method or 'none'!r} has no counterpart; use draft_model with a model, ngram, suffix, "
            f"{', '.join(_HEADS)}"
        )
    if draft.get("drafter"):
        reader.notes.append(f"speculative_config.method {method} became tiers.draft.drafter.kind: "
                            f"{draft['drafter']['kind']}")
    else:
        reader.notes.append("speculative_config.model became the model of tier draft, a pool of its own")
    _rules(reader, speculation)
    _draft_shape(reader, draft, target)
    reader.drop(_SPECULATION_NOT_NEEDED)
    reader.end()
    result["tiers"].insert(0, draft)
    result["speculation"] = speculation


def _rules(reader: _Reader, speculation: dict[str, Any]) -> None:
    rule = reader.take("rejection_sample_method", None)
    if rule is None:
        return
    if rule in ("standard", "strict", "probabilistic", "block"):
        speculation["block_verification"] = rule == "block"
        reader.notes.append(f"rejection_sample_method {rule} became speculation.block_verification: {rule == 'block'}")
    else:
        reader.wrong(f"rejection_sample_method: {rule!r} is not exact; leave it out, or allow speculation.lossy")


def _draft_shape(reader: _Reader, draft: dict[str, Any], target: dict[str, Any]) -> None:
    ranks = reader.take("draft_tensor_parallel_size", None)
    if ranks not in (None, 1):
        reader.notes.append(f"draft_tensor_parallel_size {ranks} became 1: a drafting tier runs on one rank")
    reader.move("max_model_len", draft, "max_context_tokens", where="tiers.draft")
    for key in ("dtype", "max_sequences", "max_context_tokens"):
        if key in target:
            draft.setdefault(key, target[key])


def _mapping(value: object, reader: _Reader) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError([f"speculative_config: no JSON ({error.msg}); write a mapping"]) from error
    if not isinstance(value, Mapping):
        raise ConfigError([f"speculative_config: got {value!r}; write a mapping, e.g. {{method: ngram}}"])
    return value


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value


class _Reader:
    """Keys of a mapping that are taken out one by one; what is left at the end is a mistake."""

    def __init__(self, left: dict[str, Any], prefix: str) -> None:
        self._left = left
        self._prefix = prefix
        self.notes: Notes = []
        self.lines: list[str] = []

    def take(self, key: str, default: Any) -> Any:
        """A key's value, which is then done with."""
        return self._left.pop(key, default)

    def move(
        self, key: str, into: dict[str, Any], ours: str, change: Callable[[object], object] = lambda value: value,
        where: str = "",
    ) -> None:
        """Give a key's value to a setting of ours, if it is there."""
        value = self._left.pop(key, None)
        if value is not None:
            into[ours] = change(value)
            self.notes.append(f"{self._prefix}{key} became {where}{'.' if where else ''}{ours}: {into[ours]}")

    def whole(self, key: str, value: object) -> int:
        """A whole number of at least 1. Raises `ConfigError`."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError([f"{self._prefix}{key}: got {value!r}; use a whole number from 1 on"])
        return value

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Keys that are not needed here."""
        for key, reason in reasons.items():
            if self._left.pop(key, None) is not None:
                self.notes.append(f"{self._prefix}{key} is not needed: {reason}")

    def wrong(self, line: str) -> None:
        """Note a mistake."""
        self.lines.append(f"{self._prefix}{line}")

    def end(self) -> None:
        """Raises `ConfigError` for whatever is left, and for the mistakes noted."""
        for key in self._left:
            self.wrong(f"{key}: this vLLM setting has no counterpart here; remove it")
        self._left = {}
        if self.lines:
            raise ConfigError(self.lines)
