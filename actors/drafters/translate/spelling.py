"""What each token of a tokenizer stands for, in bytes, and which tokens two tokenizers have in common.

Tokens are compared by their bytes: a byte-level vocabulary spells a space "Ġ", a SentencePiece one "▁", and neither
means anything beside the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Indices = npt.NDArray[np.int64]


class UnsuitableTokenizer(ValueError):
    """A tokenizer that cannot be translated; one clear sentence."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A tokenizer in bytes."""

    pieces: Mapping[int, bytes]  # of ordinary tokens; one that stands for nothing is left out
    special: Mapping[int, str]  # control tokens, by their names
    eos_id: int | None
    begin_ids: tuple[int, ...]  # what a text begins with
    backend: Any  # `tokenizers.Tokenizer`

    @property
    def size(self) -> int:
        """Ids, from 0 on."""
        return 1 + max((*self.pieces, *self.special), default=-1)

    def encode(self, text: str) -> Any:
        """`tokenizers.Encoding` of a piece of text, without what a whole text begins with."""
        return self.backend.encode(text, add_special_tokens=False)

    def literal(self, token: int) -> bytes:
        """What a token stands for; control tokens for their names, unknown ids for nothing."""
        piece = self.pieces.get(token)
        return self.special.get(token, "").encode() if piece is None else piece


def spell(tokenizer: PreTrainedTokenizerBase) -> Spelling:
    """The tokenizer in bytes. Raises `UnsuitableTokenizer`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsuitableTokenizer("this tokenizer has no fast form (tokenizer.json), without which texts cannot be "
                                  "translated; choose a model that has one")
    decoders = _types(json.loads(backend.to_str()).get("decoder"))
    added = dict(tokenizer.added_tokens_decoder.items())
    special = {token_id: token.content for token_id, token in added.items() if token.special}
    byte_level = "ByteLevel" in decoders
    spaced = "Metaspace" in decoders or "Replace" in decoders or "ByteFallback" in decoders
    pieces: dict[int, bytes] = {}
    for name, token_id in tokenizer.get_vocab().items():
        if token_id in special:
            continue
        if token_id in added:
            piece = added[token_id].content.encode()
        elif byte_level:
            piece = _of_byte_level(name)
        elif spaced:
            piece = _of_sentence_piece(name, "ByteFallback" in decoders)
        else:
            piece = _decoded(tokenizer, token_id)
        if piece:
            pieces[token_id] = piece
    eos_id: int | None = tokenizer.eos_token_id
    begin: list[int] = tokenizer("").input_ids
    return Spelling(pieces, special, eos_id, tuple(token for token in begin if token != eos_id), backend)


@dataclass(frozen=True, slots=True)
class Shared:
    """Tokens that two vocabularies have in common."""

    lower: Indices  # [num_shared] ids in the drafting model's vocabulary
    upper: Indices  # [num_shared] of the same tokens in the verifying one's, ascending
    lower_of: Mapping[int, int]  # by the verifying model's id
    upper_size: int

    def __len__(self) -> int:
        return len(self.upper)


def shared_tokens(lower: Spelling, upper: Spelling) -> Shared:
    """Ordinary tokens of the same bytes, control tokens of the same name, and the ends of a text.

    Where several tokens have the same bytes, the one is taken that the tokenizer itself would use, else the first.
    """
    of_piece = _by_piece(lower)
    pairs = {
        token: of_piece[piece] for piece, token in _by_piece(upper).items() if piece in of_piece
    }
    named = {name: token for token, name in lower.special.items()}
    pairs |= {token: named[name] for token, name in upper.special.items() if name in named}
    if upper.eos_id is not None and lower.eos_id is not None:
        pairs[upper.eos_id] = lower.eos_id
    ids = sorted(pairs)
    return Shared(np.array([pairs[token] for token in ids], np.int64), np.array(ids, np.int64), pairs, upper.size)


def _by_piece(spelling: Spelling) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for token, piece in sorted(spelling.pieces.items()):
        if piece not in found:
            found[piece] = token
        elif found[piece] >= 0 and len(piece) == 1 and (own := _own_choice(spelling, piece)) is not None:
            found[piece] = own  # e.g. "\n" beside "<0x0A>"
    return found


def _own_choice(spelling: Spelling, piece: bytes) -> int | None:
    try:
        ids: list[int] = spelling.encode(piece.decode()).ids
    except UnicodeDecodeError:
        return None
    return ids[-1] if ids and spelling.pieces.get(ids[-1]) == piece else None


def _types(decoder: Any) -> set[str]:
    """Names of a decoder and the decoders in it."""
    if not isinstance(decoder, dict):
        return set()
    return {decoder["type"]}.union(*(_types(part) for part in decoder.get("decoders", ())))


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies spell bytes with: printable ones as they are, others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _of_byte_level(name: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in name)
    except KeyError:  # not spelt in bytes: it decodes to itself
        return name.encode("utf-8", "surrogatepass")


def _of_sentence_piece(name: str, has_bytes: bool) -> bytes:
    if has_bytes and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return name.replace("\u2581", " ").encode("utf-8", "surrogatepass")


def _decoded(tokenizer: PreTrainedTokenizerBase, token_id: int) -> bytes:
    """What a token of another sort adds to a text: by decoding it after one that stays the same."""
    settings = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    before = tokenizer.decode([token_id], **settings)
    both = tokenizer.decode([token_id, token_id], **settings)
    if not isinstance(before, str) or not isinstance(both, str) or "\ufffd" in both:
        return b""
    return both[len(before) :].encode() if both.startswith(before) else before.encode()
