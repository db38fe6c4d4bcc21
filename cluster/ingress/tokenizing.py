"""Text to ids and back: what the ingress needs of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.ingress.checks import InvalidRequest
from cluster.ingress.detokenizer import Detokenizer
from cluster.ingress.http.tools import ToolFormat, tool_format
from cluster.ingress.spelling import Spelling

Turns = Sequence[tuple[str, str]]  # (role, content), oldest first


class TextCodec:
    """A tokenizer seen from the ingress."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is a `transformers.PreTrainedTokenizerBase`."""
        self._tokenizer = tokenizer
        self._special_ids = frozenset(int(i) for i in tokenizer.all_special_ids)
        self.spelling = Spelling(tokenizer)
        self.tool_format: ToolFormat = tool_format(_template(tokenizer))

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows, added tokens included; an output head may have more rows (padding)."""
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens the tokenizer itself puts around it."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=True)]

    def encode_chat(self, turns: Turns) -> list[int]:
        """Ids of a conversation of plain turns, as `encode_messages` renders it."""
        return self.encode_messages([{"role": role, "content": content} for role, content in turns])

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Ids of a conversation in the model's chat template, with the assistant's turn opened.

        Each message has role and content, and what else the template reads; `tools` are those the model may call.

        Special tokens spelled out in a message are read as plain text, so no message can forge a turn.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses these turns.
        """
        if not self._tokenizer.chat_template:
            raise InvalidRequest("this model has no chat template: send text or token_ids instead of chat", "messages")
        from jinja2.exceptions import TemplateError  # a dependency of chat templates only

        try:
            ids = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else [dict(tool) for tool in tools],
                add_generation_prompt=True, tokenize=True, return_dict=False, sanitize_control_tokens=True,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages ({error}): change their roles or order", "messages",
            ) from error
        return [int(i) for i in ids]

    def is_special(self, token_id: int) -> bool:
        """Whether the id yields no text."""
        return token_id in self._special_ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens, spaces left as they are."""
        return str(self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False,
        ))

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder for one sequence."""
        return Detokenizer(self.decode, self._special_ids)


def _template(tokenizer: Any) -> str:
    """The text of the chat template, of all of them where there are several; empty without."""
    template = tokenizer.chat_template or ""
    return "".join(template.values()) if isinstance(template, Mapping) else str(template)
