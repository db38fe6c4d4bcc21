"""A small byte-level tokenizer, trained on the spot."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cluster.ingress.tokenizing import TextCodec

CORPUS = [
    "the quick brown fox jumps over the lazy dog", "你好世界 こんにちは",
    "naïve café 👩‍👩‍👧 🏳️‍🌈", "STOP the END",
] * 3
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=340, show_progress=False, special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|end|>", bos_token="<|start|>", chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def codec(tokenizer: PreTrainedTokenizerFast) -> TextCodec:
    return TextCodec(tokenizer)
