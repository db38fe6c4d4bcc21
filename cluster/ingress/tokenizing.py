"""Text to ids and back: what the ingress needs of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.ingress.checks import InvalidRequest
from cluster.ingress.detokenizer import Detokenizer

Turns = Sequence[tuple[str, str]]  # (role, content), oldest first


class TextCodec:
    """A tokenizer seen from the ingress."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a `transformers.PreTrainedTokenizerBase`."""
        self._tokenizer = tokenizer
        self._special_ids = frozenset(int(i) for i in tokenizer.all_special_ids)

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included; an output head may have more rows (padding)."""
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens the tokenizer itself puts around it."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=True)]

    def encode_chat(self, turns: Turns) -> list[int]:
        """Ids of a conversation in the model's chat template, with the assistant's turn opened.

        Special tokens spelled out in a message are read as plain text, so no message can forge a turn.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses these turns.
        """
        if not self._tokenizer.chat_template:
            raise InvalidRequest("this model has no chat template: send text or token_ids instead of chat")
        from jinja2.exceptions import TemplateError  # a dependency of chat templates only

        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            ids = self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False,
                sanitize_control_tokens=True,
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages ({error}): change their roles or order"
            ) from error
        return [int(i) for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens, spaces left as they are."""
        return str(self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False,
        ))

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder for one sequence."""
        return Detokenizer(self.decode, self._special_ids)
