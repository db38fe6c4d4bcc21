"""The bytes that single tokens stand for: a token need not be a whole character."""

from __future__ import annotations

import re
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling:
    """Bytes of single ids of a Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = None if backend is None else backend.decoder
        self._is_byte_level = decoder is not None and b"ByteLevel" in decoder.__getstate__()
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """What the id adds to a text; special tokens as they are written."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._spell(token_id)
        return found

    def text_of(self, token_id: int) -> str:
        """The same as text. Bytes that are no text by themselves are named as OpenAI does: `bytes:\\xe2\\x96`."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _spell(self, token_id: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:
            return b""
        if self._is_byte_level:
            return b"".join(_BYTES.get(char, char.encode()) for char in piece)
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return str(piece).replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, bytes]:
    """The characters that byte-level tokenizers (GPT-2's) write for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shown = {chr(byte): bytes([byte]) for byte in printable}
    return shown | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()
