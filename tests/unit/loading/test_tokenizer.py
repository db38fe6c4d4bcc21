"""When two tokenizers count as the same, and what is said when they are not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from actors.loading.checkpoint import ModelNotFound
from actors.loading.tokenizer import eos_ids, explain_mismatch, fingerprint, load_tokenizer

WORDS = ["<s>", "</s>", "a", "b", "▁c", "d"]


def make(words: list[str], decoder: decoders.Decoder | None = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<s>"))
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def test_padding_and_chat_template_play_no_part() -> None:
    plain = make(WORDS)
    padded = make([*WORDS, "[PAD6]", "[PAD7]"])
    chatty = make(WORDS)
    chatty.chat_template = "{{ messages }}"
    assert fingerprint(plain) == fingerprint(padded) == fingerprint(chatty)
    assert explain_mismatch(plain, padded) == "the tokenizers agree on every id."


def test_a_token_that_only_looks_like_padding_counts() -> None:
    assert fingerprint(make(WORDS)) != fingerprint(make([*WORDS, "[PAD99]"]))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (make(["<s>", "</s>", "b", "a", "▁c", "d"]), "id 2 is 'a' in one tokenizer and 'b' in the other."),
        (
            make([*WORDS, "e"]),
            "one tokenizer has 6 tokens and the other 7: id 6 ('e') exists in only one of them.",
        ),
        (make(WORDS, decoders.Metaspace()), "id 4 decodes to '▁c' in one tokenizer and to 'c' in the other."),
    ],
    ids=["swapped", "longer", "decoder"],
)
def test_a_difference_is_told_in_one_sentence(other: PreTrainedTokenizerFast, reason: str) -> None:
    assert fingerprint(make(WORDS)) != fingerprint(other)
    assert explain_mismatch(make(WORDS), other) == reason


def test_a_saved_tokenizer_keeps_its_fingerprint(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig().save_pretrained(tmp_path)
    make(WORDS).save_pretrained(tmp_path)
    assert fingerprint(load_tokenizer(str(tmp_path))) == fingerprint(make(WORDS))


def test_a_checkpoint_without_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelNotFound) as refusal:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_end_ids_are_those_of_tokenizer_and_generation_config() -> None:
    tokenizer = make(WORDS)
    assert eos_ids(tokenizer) == (1,)
    assert eos_ids(tokenizer, SimpleNamespace(eos_token_id=[5, 1])) == (1, 5)
    assert eos_ids(tokenizer, SimpleNamespace(eos_token_id=4)) == (1, 4)
    assert eos_ids(tokenizer, SimpleNamespace(eos_token_id=None)) == (1,)
