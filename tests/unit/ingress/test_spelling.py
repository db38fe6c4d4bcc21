"""Tokens one by one spell the text's bytes."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from cluster.ingress.spelling import Spelling
from tests.unit.ingress.conftest import CORPUS


def test_the_bytes_of_all_tokens_are_the_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    spelling = Spelling(tokenizer)
    for text in CORPUS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(spelling.bytes_of(token_id) for token_id in ids) == text.encode()
    assert spelling.text_of(tokenizer.encode("é", add_special_tokens=False)[0]) in ("é", "bytes:\\xc3")
    assert spelling.text_of(tokenizer.eos_token_id) == "<|end|>"


def test_byte_pieces_and_word_marks_of_other_tokenizers() -> None:
    class Pieces:
        backend_tokenizer = None

        def convert_ids_to_tokens(self, token_id: int) -> str | None:
            return ["▁hello", "<0xE2>", None][token_id]

    spelling = Spelling(Pieces())
    assert [spelling.bytes_of(i) for i in range(3)] == [b" hello", b"\xe2", b""]
    assert spelling.text_of(1) == "bytes:\\xe2"
