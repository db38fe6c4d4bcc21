"""The pieces of a chat template put together are what is served."""

from __future__ import annotations

import numpy as np

from actors.training.data.turns import Turns
from tests.conftest import _byte_tokenizer


def test_pieces_add_up_to_the_template() -> None:
    tokenizer = _byte_tokenizer()
    turns = Turns(tokenizer)
    talk = [
        {"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Three?"},
    ]
    first = turns.before_answer(talk[:1])
    answer = np.array(tokenizer.encode("Two."), np.int32)
    between = turns.next_question(talk[:2])
    assert between is not None
    question = np.array(tokenizer.encode("Three?"), np.int32)
    whole = np.concatenate([first, answer, between, question, turns.after_question(talk)])
    assert whole.tolist() == tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_dict=False)
    assert turns.text(answer) == "Two."


def test_a_question_begins_where_the_template_lets_the_user_speak() -> None:
    tokenizer = _byte_tokenizer()
    turns = Turns(tokenizer)
    assert tokenizer.decode(turns.before_question("", "")) == "<|user|>"
    assert tokenizer.decode(turns.before_question("Topic", "Why ")) == "<|system|>Topic<|endoftext|><|user|>Why "


def test_without_a_template_text_begins_after_the_end_of_another() -> None:
    tokenizer = _byte_tokenizer()
    tokenizer.chat_template = None
    turns = Turns(tokenizer)
    assert not turns.has_template and turns.next_question([]) is None
    assert turns.before_question("", "").tolist() == [0]
