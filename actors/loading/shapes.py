"""Models of real shapes with random weights: `random:llama-8b`. For measuring speed without downloading anything.

A shape is made of its configuration alone, in the wanted dtype on the wanted device. Its stand-in tokenizer maps
bytes to ids and every further id to a made-up word, so that each id that a random model utters is text; two shapes
of the same vocabulary share it, as a draft and its target must.

`random:llama-8b:7` has the weights of seed 7 (default 0). The same seed gives the same weights on every device of one
kind, so the ranks of a tensor-parallel target agree.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from actors.loading.errors import ModelNotFound
from actors.loading.gguf import cache_dir

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

PREFIX = "random:"
VERSION = "v1"  # part of every directory's name: change it when a shape or the tokenizer changes
EOS = "<|endoftext|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxz", "aeiou"


def _llama3(factor: float, hidden: int, intermediate: int, layers: int, tied: bool) -> dict[str, Any]:
    """The Llama 3.1 / 3.2 family (arXiv:2407.21783): 32 query and 8 KV heads."""
    return {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "tie_word_embeddings": tied,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    }  # fmt: skip


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    """The dense Qwen 3 family (arXiv:2505.09388): heads of 128, normalised queries and keys."""
    return {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }  # fmt: skip


def _tiny(model_type: str, **more: Any) -> dict[str, Any]:
    """For tests: two layers, and weights large enough that greedy text is no constant."""
    return {
        "model_type": model_type, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 1024, "initializer_range": 0.2, **more,
    }  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "llama-1b": _llama3(32.0, 2048, 8192, 16, tied=True),
    "llama-3b": {**_llama3(32.0, 3072, 8192, 28, tied=True), "num_attention_heads": 24, "head_dim": 128},
    "llama-8b": _llama3(8.0, 4096, 14336, 32, tied=False),
    "llama-70b": {**_llama3(8.0, 8192, 28672, 80, tied=False), "num_attention_heads": 64},
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
    "smollm2-135m": {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    },
    "tiny-llama": _tiny("llama"),
    "tiny-qwen3": _tiny("qwen3"),
    "tiny-mistral": _tiny("mistral", sliding_window=48),
    "tiny-gemma3": _tiny("gemma3_text", sliding_window=48, query_pre_attn_scalar=16),
}  # fmt: skip


def is_random(model: str) -> bool:
    """Whether `model` names a shape with random weights."""
    return model.startswith(PREFIX)


def parse(model: str) -> tuple[str, int]:
    """Shape and seed that `model` names. Raises ModelNotFound."""
    shape, _, seed = model.removeprefix(PREFIX).partition(":")
    if shape not in SHAPES:
        raise ModelNotFound(f"there is no shape {shape!r}: use {PREFIX} with one of {', '.join(SHAPES)}")
    if seed and not (seed.isascii() and seed.isdigit()):
        raise ModelNotFound(f"{model}: the seed {seed!r} is no number: write for instance {PREFIX}{shape}:7")
    return shape, int(seed or 0)


def random_path(model: str) -> Path:
    """A checkpoint directory without weights: configuration, generation settings and tokenizer of the shape.

    Written at the first call into the local cache, whole or not at all; several processes may call it at once.
    """
    shape, _ = parse(model)
    directory = cache_dir() / f"random-{shape}-{VERSION}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        if not directory.is_dir():  # another process may have made it while this one waited
            temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
            try:
                config = random_config(model)
                config.save_pretrained(temporary)
                GenerationConfig(eos_token_id=0).save_pretrained(temporary)  # type: ignore[no-untyped-call]
                stand_in_tokenizer(config.vocab_size).save_pretrained(temporary)
                temporary.chmod(0o755)
                os.replace(temporary, directory)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return directory


def random_config(model: str) -> PreTrainedConfig:
    """The shape's configuration; texts end with id 0."""
    settings = {**SHAPES[parse(model)[0]], "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    config: PreTrainedConfig = AutoConfig.for_model(settings.pop("model_type"), **settings)
    return config


def random_model(model: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """The model with its architecture's own initialisation, never held in another dtype or place than asked for."""
    _, seed = parse(model)
    config = random_config(model)
    with torch.device("meta"):
        made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    made.to_empty(device=device)
    made.tie_weights()  # emptying gives tied weights memory of their own
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        made.initialize_weights()  # type: ignore[no-untyped-call]
    return made


def stand_in_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level tokenizer whose every id below `vocab_size` decodes to text.

    Ids 0 to 3 end texts and name the roles of a chat, the next 256 are bytes, the others words that no text is
    ever cut into.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [EOS, *ROLES, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [_word(i) for i in range(vocab_size - len(names))]
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=raw, eos_token=EOS, pad_token=EOS, additional_special_tokens=list(ROLES)
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _word(index: int) -> str:
    """The `index`-th made-up word: a space ("Ġ" in byte-level spelling) and two or more syllables."""
    syllables = len(_CONSONANTS) * len(_VOWELS)
    word = ""
    while index or len(word) < 4:
        index, syllable = divmod(index, syllables)
        word = _CONSONANTS[syllable // len(_VOWELS)] + _VOWELS[syllable % len(_VOWELS)] + word
    return "Ġ" + word
