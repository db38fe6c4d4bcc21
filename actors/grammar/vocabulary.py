"""What the tokens of each vocabulary stand for, found when the first grammar over it is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.grammar.grammar import BadGrammar, Grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from transformers import PreTrainedTokenizerBase

Pieces = Sequence[bytes]  # by id; an empty one stands for no text (control tokens, padding)

_lock = threading.Lock()
_known: dict[str, Callable[[], Pieces]] = {}
_made: dict[tuple[str, tuple[int, ...]], LLTokenizer] = {}


def know(fingerprint: str, load: Callable[[], Pieces]) -> None:
    """From now on this process knows where to find the pieces of a vocabulary. Loads nothing yet."""
    with _lock:
        _known.setdefault(fingerprint, load)


def know_model(fingerprint: str, model: str) -> None:
    """`know` the vocabulary of a model's tokenizer."""
    def load() -> Pieces:
        from actors.loading.tokenizer import load_tokenizer

        return pieces_of(load_tokenizer(model))

    know(fingerprint, load)


def tokens_of(grammar: Grammar) -> LLTokenizer:
    """The vocabulary of a grammar for the grammar library; takes a second the first time. Raises `BadGrammar`."""
    key = (grammar.vocabulary, grammar.eos_ids)
    with _lock:
        made, load = _made.get(key), _known.get(grammar.vocabulary)
    if made is None:
        made = _make(load() if load is not None else _named(grammar), grammar.eos_ids)
        with _lock:
            _made[key] = made
    return made


def pieces_of(tokenizer: PreTrainedTokenizerBase) -> Pieces:
    """Raises `BadGrammar` for a tokenizer that cannot be spelled out."""
    from actors.drafters.translate.spelling import UnsuitableTokenizer, spell

    try:
        spelling = spell(tokenizer)
    except UnsuitableTokenizer as error:
        raise BadGrammar("this model's tokenizer has no fast form (tokenizer.json): no grammar can be used") from error
    return [spelling.pieces.get(token, b"") for token in range(spelling.size)]


def _named(grammar: Grammar) -> Pieces:
    """Of the model that the grammar names. Raises `BadGrammar` where it is not to be had, or is another one here."""
    from actors.loading.errors import ModelNotFound
    from actors.loading.tokenizer import fingerprint, load_tokenizer

    try:
        tokenizer = load_tokenizer(grammar.model)
    except ModelNotFound as error:
        raise BadGrammar(f"the target's tokenizer is not to be had here: {error}") from error
    if fingerprint(tokenizer) != grammar.vocabulary:
        raise BadGrammar(f"{grammar.model} has another tokenizer here than where the target runs")
    return pieces_of(tokenizer)


@dataclass(frozen=True, slots=True)
class _Spelled:
    """What the library asks of a tokenizer. It is never asked for the tokens of a text (`actors.grammar.lark`)."""

    tokens: Pieces
    special_token_ids: Sequence[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __call__(self, text: bytes | str) -> list[int]:
        """Nothing: grammars are compiled without forcing."""
        return []


def _make(pieces: Pieces, eos_ids: tuple[int, ...]) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    if not eos_ids:
        raise BadGrammar("the model has no end-of-sequence id, so a text could never end: no grammar can be used")
    size = max(len(pieces), 1 + max(eos_ids))
    whole = [*pieces, *[b""] * (size - len(pieces))]
    special = sorted({token for token, piece in enumerate(whole) if not piece} | set(eos_ids))
    for token in special:
        whole[token] = b"\xff<%d>" % token  # what the library knows control tokens by
    return LLTokenizer(TokenizerWrapper(_Spelled(whole, special, eos_ids[0])), n_vocab=size, eos_token=list(eos_ids))
