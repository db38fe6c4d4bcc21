"""The target's chat template cut into pieces: what stands before a question, between the turns, and after an answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.messages import Ids
from actors.training.data.errors import BadData

Message = dict[str, str]  # role, content

_MARK = "\ue000turn\ue001"  # private-use characters: in no template


class Turns:
    """Ids around what the target writes. A model without a chat template writes plain text after its first token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)

    def before_question(self, topic: str, opening: str) -> Ids:
        """The prompt after which the target writes what a user would say. Raises `BadData`."""
        if not self.has_template:
            return self._start(opening)
        messages = [{"role": "system", "content": topic}] if topic else []
        before, _ = self._around([*messages, {"role": "user", "content": _MARK}], "user")
        return self._encode(before + opening)

    def before_answer(self, messages: list[Message]) -> Ids:
        """The prompt as it would be served. Raises `BadData` when the template refuses the messages."""
        if not self.has_template:
            return self._start("\n\n".join(m["content"] for m in messages))
        return self._encode(self._render(messages, opens=True))

    def next_question(self, messages: list[Message]) -> Ids | None:
        """What follows the last answer, up to where the next question begins; None: one turn is all there is."""
        if not self.has_template:
            return None
        *earlier, answer = messages
        marked = [*earlier, {**answer, "content": _MARK}, {"role": "user", "content": _MARK}]
        parts = self._render(marked, opens=False).split(_MARK)
        return self._encode(parts[1]) if len(parts) == 3 else None

    def after_question(self, messages: list[Message]) -> Ids:
        """What follows a question, up to where its answer begins."""
        *earlier, question = messages
        _, after = self._around([*earlier, {**question, "content": _MARK}], "user", opens=True)
        return self._encode(after)

    def text(self, ids: Ids) -> str:
        """Text of what was written, without special tokens."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _around(self, messages: list[Message], role: str, opens: bool = False) -> tuple[str, str]:
        parts = self._render(messages, opens).split(_MARK)
        if len(parts) != 2:
            raise BadData(f"the chat template does not show what the {role} says exactly once: give --prompts files")
        return parts[0], parts[1]

    def _render(self, messages: list[Message], opens: bool) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens))
        except TemplateError as error:
            raise BadData(f"the model's chat template refuses these messages: {error}") from error

    def _encode(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)

    def _start(self, text: str) -> Ids:
        """As plain text is served; where the tokenizer begins a text by itself with nothing, the end of another."""
        ids = np.array(self._tokenizer.encode(text, add_special_tokens=True), np.int32)
        if len(ids):
            return ids
        first = self._tokenizer.bos_token_id
        return np.array([self._tokenizer.eos_token_id if first is None else first], np.int32)
