"""The token ids that an emulated model speaks in: whole words, so that its text can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from actors.engine.step import Int32s
from actors.loading.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPACES = ("Ġ", "▁")  # how byte-level and SentencePiece vocabularies spell the space before a word


def word_ids(tokenizer: PreTrainedTokenizerBase, vocab_size: int, at_least: int) -> Int32s:
    """Ascending ids below `vocab_size` of ordinary lower-case words. Raises UnsupportedModel when there are too few."""
    special = set(tokenizer.all_special_ids)
    ids = sorted(
        token_id for token, token_id in tokenizer.get_vocab().items()
        if token_id < vocab_size and token_id not in special and _is_word(token)
    )
    if len(ids) < at_least:
        raise UnsupportedModel(
            f"the tokenizer has only {len(ids)} tokens that are words: emulate with another model's, "
            "e.g. builtin:smollm2"
        )
    return np.array(ids, np.int32)


def _is_word(token: str) -> bool:
    word = token[1:]
    return token.startswith(_SPACES) and len(word) > 1 and word.isascii() and word.isalpha() and word.islower()
