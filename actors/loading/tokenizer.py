"""Loading tokenizers, and telling whether two of them mean the same by the same ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer

from actors.loading.checkpoint import not_found, resolve
from actors.loading.errors import ModelNotFound, first_line
from actors.loading.reduced import target_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NUM_PROBES = 256
_PADDING = re.compile(r"\[PAD(\d+)\]")  # what GGUF converters fill a padded vocabulary with


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory, Hugging Face id or built-in model. Raises ModelNotFound."""
    source = resolve(model)
    if (target := target_of(source)) is not None:  # a draft model trained from it has no ids of its own
        return load_tokenizer(target)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    except OSError as error:
        raise not_found(model, source) from error
    except ValueError as error:
        raise ModelNotFound(f"{model} has no usable tokenizer: {first_line(error)}") from error
    return tokenizer


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Equal fingerprints: equal id <-> text mapping, so draft ids mean the same to the target.

    Covers every token's id and spelling, and what a sample of ids decodes to (a byte-level and a
    SentencePiece vocabulary may spell the same text differently). Padding of the vocabulary, chat
    template, and how text is cut into tokens play no part.
    """
    digest = hashlib.blake2b(digest_size=16)
    spelling = _spelling(tokenizer)
    for token_id, token in spelling.items():
        digest.update(f"{token_id}\0{token}\0".encode("utf-8", "surrogatepass"))
    for token_id in _probes(spelling):
        digest.update(_decode(tokenizer, token_id).encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def explain_mismatch(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase) -> str:
    """One sentence that says why two tokenizers do not fit, or that they do."""
    spelling_a, spelling_b = _spelling(a), _spelling(b)
    for token_id in sorted(spelling_a.keys() & spelling_b.keys()):
        if spelling_a[token_id] != spelling_b[token_id]:
            one, other = spelling_a[token_id], spelling_b[token_id]
            return f"id {token_id} is {one!r} in one tokenizer and {other!r} in the other."
    only = sorted(spelling_a.keys() ^ spelling_b.keys())
    if only:
        token = spelling_a.get(only[0], spelling_b.get(only[0]))
        return (
            f"one tokenizer has {len(spelling_a)} tokens and the other {len(spelling_b)}:"
            f" id {only[0]} ({token!r}) exists in only one of them."
        )
    for token_id in _probes(spelling_a):
        text_a, text_b = _decode(a, token_id), _decode(b, token_id)
        if text_a != text_b:
            return f"id {token_id} decodes to {text_a!r} in one tokenizer and to {text_b!r} in the other."
    return "the tokenizers agree on every id."


def eos_ids(tokenizer: PreTrainedTokenizerBase, generation_config: Any = None) -> tuple[int, ...]:
    """Ids that end a text, ascending: the tokenizer's, and those of the model's generation config if any."""
    ids: set[int] = set()
    values: list[int | Iterable[int] | None] = [tokenizer.eos_token_id]
    if generation_config is not None:
        values.append(generation_config.eos_token_id)
    for value in values:
        if value is not None:
            ids.update([value] if isinstance(value, int) else value)
    return tuple(sorted(ids))


def _spelling(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Id -> token, by ascending id, without padding."""
    items = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items())
    return {token_id: token for token_id, token in items if not _is_padding(token_id, token)}


def _is_padding(token_id: int, token: str) -> bool:
    match = _PADDING.fullmatch(token)
    return match is not None and int(match[1]) == token_id


def _probes(spelling: dict[int, str]) -> list[int]:
    """About `_NUM_PROBES` ids, evenly spaced."""
    ids = list(spelling)
    return ids[:: max(len(ids) // _NUM_PROBES, 1)]


def _decode(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    text = tokenizer.decode([token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text if isinstance(text, str) else "".join(text)
