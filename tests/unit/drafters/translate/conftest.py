"""Tokenizers of different sorts, trained on the spot, and models that recite one text in the tokens of each."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from actors.drafters.translate.spelling import Spelling, spell
from actors.emulation.checked import mix_each
from actors.emulation.voice import ROOT, extend
from actors.engine.step import StepInput
from actors.spec import ModelSpec
from tests.soft_model import SoftRunner

TEXT = (Path(__file__).parents[4] / "LICENSE").read_text()
KINDS = ("bytes", "merged", "spaced")
END = {"bytes": "<|end|>", "merged": "<|endoftext|>", "spaced": "</s>"}


@functools.cache
def tokenizer(kind: str) -> Any:
    """One id per byte; byte-level BPE; or BPE over characters with "▁" for spaces and bytes for what is not known."""
    if kind == "spaced":
        raw = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
        raw.normalizer = normalizers.Replace(" ", "\u2581")
        raw.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        names = ["<s>", END[kind], *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=names, show_progress=False)
        raw.train_from_iterator([line + "\n" for line in TEXT.splitlines()], trainer)
        return tf.PreTrainedTokenizerFast(
            tokenizer_object=_plain_bytes(raw), bos_token="<s>", eos_token=END[kind], clean_up_tokenization_spaces=False
        )
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=258 if kind == "bytes" else 600, special_tokens=[END[kind], "<|turn|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    raw.train_from_iterator([TEXT], trainer)
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END[kind], additional_special_tokens=["<|turn|>"],
        clean_up_tokenization_spaces=False,
    )


def _plain_bytes(raw: Tokenizer) -> Tokenizer:
    """The trainer counts the bytes among the control tokens; in real vocabularies they are ordinary ones."""
    written = json.loads(raw.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(written))


@functools.cache
def spelling(kind: str) -> Spelling:
    """The same in bytes."""
    return spell(tokenizer(kind))


class Recital:
    """Logits of a model that recites a text in its own tokenizer's tokens, with noise that has a share of its own."""

    def __init__(self, kind: str, apart: float, salt: int, scale: float = 6.0, bonus: float = 5.0) -> None:
        one = spelling(kind)
        self.kind = kind
        self.vocab_size = one.size
        self._apart, self._salt, self._scale, self._bonus = apart, salt, scale, bonus
        names = [one.pieces.get(token) or one.special[token].encode() for token in range(one.size)]
        self._known: dict[int, Any] = {}
        self._names = np.array([int.from_bytes(blake2b(name, digest_size=8).digest()) for name in names], np.uint64)

    def rows(self, places: Sequence[int]) -> torch.Tensor:
        """[len(places), vocab_size] float32 logits at those places of the text."""
        for place in places:
            if place not in self._known:
                self._known[place] = self._row(place)
        values = np.array([self._known[place] for place in places]).reshape(len(places), self.vocab_size)
        return torch.from_numpy(values.astype(np.float32))

    def _row(self, place: int) -> Any:
        with np.errstate(over="ignore"):
            common, own = (
                (mix_each(mix_each(np.full(1, place + 1, np.uint64) ^ np.uint64(salt)) + self._names) >> np.uint64(11))
                .astype(np.float64) * 2.0**-53
                for salt in (7, self._salt)
            )
        row = self._scale * ((1.0 - self._apart) * common + self._apart * own)
        row[spelling(self.kind).encode(SAID[place : place + 24].decode()).ids[0]] += self._bonus
        return row


SAID = TEXT[:4000].encode()


def follow(place: int, said: bytes) -> int:
    """Where in the text a place is after some bytes, whichever tokens said them."""
    for byte in said:
        place = place + 1 if SAID[place] == byte else (place * 7 + byte * 13 + 1) % (len(SAID) - 64)
        place %= len(SAID) - 64
    return place


class Reciter(SoftRunner):
    """The device that recites: below the real engine, with real pages."""

    def __init__(self, spec: ModelSpec, laws: Recital) -> None:
        super().__init__(spec, laws)  # type: ignore[arg-type]
        self._speaker = _Place()  # type: ignore[assignment]
        self._spelling = spelling(laws.kind)

    def _feed(self, step: StepInput) -> None:
        before = step.before(self._page_tokens).tolist()
        for token, slot, last in zip(step.input_ids.tolist(), step.slots.tolist(), before, strict=True):
            prefix = int(self._prefix[last]) if last >= 0 else ROOT
            self._prefix[slot], self._token[slot] = extend(prefix, token), token
            place = int(self._own[last]) if last >= 0 else 0
            self._own[slot] = follow(place, self._spelling.pieces.get(token, b""))


class _Place:
    counts_own = True

    def choose(self, prefix: int, position: int = 0) -> int:
        return position
