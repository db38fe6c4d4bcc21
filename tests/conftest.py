"""Fixtures shared by all tests: a sealed environment, tiny random models, leak checks."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

# Before anything imports Ray or a tokenizer: a token in the environment keeps Ray from writing one into HOME.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may need a network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Qwen2's tokenizer class adds "<|endoftext|>" where it is missing.
SPECIAL_TOKENS = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"]


class Checkable(Protocol):
    """Anything that can prove that it leaked nothing."""

    def check_integrity(self) -> object:
        """Raises when free + owned + cached pages differ from their total."""
        ...


@pytest.fixture
def integrity() -> Iterator[Callable[[Checkable], Checkable]]:
    """Register objects whose `check_integrity()` must hold when the test ends; returns its argument."""
    watched: list[Checkable] = []

    def watch(subject: Checkable) -> Checkable:
        watched.append(subject)
        return subject

    yield watch
    for subject in watched:
        subject.check_integrity()


def _tiny_config(architecture: str, vocab_size: int) -> Any:
    """Config of a two-layer model of one of the supported families."""
    import transformers as hf

    grouped = {**TINY, "intermediate_size": 64, "num_key_value_heads": 2}
    ids = {"vocab_size": vocab_size, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    match architecture:
        case "llama":
            return hf.LlamaConfig(**grouped, **ids)
        case "qwen2":
            return hf.Qwen2Config(**grouped, **ids)
        case "mistral":
            return hf.MistralConfig(**grouped, **ids, sliding_window=None)
        case "gpt2":
            return hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=512, **ids)
        case "neox":
            return hf.GPTNeoXConfig(**TINY, intermediate_size=64, **ids)
        case "gemma3":  # one sliding and one full layer
            layers = ["sliding_attention", "full_attention"]
            window = {"sliding_window": 32, "layer_types": layers}
            return hf.Gemma3TextConfig(**grouped, **ids, **window, head_dim=8, tie_word_embeddings=False)
    raise ValueError(f"no tiny model for {architecture!r}")


def _byte_tokenizer() -> Any:
    """Tokenizer with one id per byte after four special tokens (260 ids)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = SPECIAL_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


class TinyModel(Protocol):
    """Makes (once per session) a random model directory and returns its path."""

    def __call__(
        self, architecture: str = "llama", *, seed: int = 0, vocab_size: int = 260, scale: float = 0.2
    ) -> Path: ...


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Factory of saved random fp32 models with a byte tokenizer.

    `scale` is the standard deviation of the weights: large enough that greedy text is no constant. Two
    seeds of one architecture make a target and an imperfect draft.
    """
    import torch
    from transformers import AutoModelForCausalLM

    made: dict[tuple[str, int, int, float], Path] = {}

    def make(
        architecture: str = "llama", *, seed: int = 0, vocab_size: int = 260, scale: float = 0.2
    ) -> Path:
        key = (architecture, seed, vocab_size, scale)
        if key not in made:
            path = tmp_path_factory.mktemp(f"tiny-{architecture}-")
            config = _tiny_config(architecture, vocab_size)
            config.initializer_range = scale
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.save_pretrained(path)
            _byte_tokenizer().save_pretrained(path)
            made[key] = path
        return made[key]

    return make
