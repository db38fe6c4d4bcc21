"""Tiny checkpoints on disk, tokenizer included: what the commands load by name, made on the spot."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CORPUS = ("the quick brown fox jumps over the lazy dog", "how many sheep are left on the hill", "a ferry in spring") * 4
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def tiny_tokenizer(vocab_size: int = 300) -> PreTrainedTokenizerFast:
    """Byte-level, so that every text can be written."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", bos_token="<s>", chat_template=CHAT_TEMPLATE,
    )


def tiny_checkpoint(
    directory: Path, seed: int = 0, num_layers: int = 2, hidden_size: int = 64, vocab_size: int = 300,
    scale: float = 4.0,
) -> str:
    """A llama with random weights, scaled up so that its laws are far from uniform. Returns the directory."""
    tokenizer = tiny_tokenizer(vocab_size)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden_size, intermediate_size=96, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        bos_token_id=0, eos_token_id=1,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                parameter.mul_(scale)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)
