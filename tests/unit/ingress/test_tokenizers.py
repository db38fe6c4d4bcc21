"""A draft in other ids than the target's is refused at start, with a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from actors.loading.tokenizer import fingerprint, load_tokenizer
from actors.messages import ReplicaInfo
from cluster.config import load_config
from cluster.ingress.deployment import TokenizersDiffer, check_tokenizers

Save = Callable[[str, dict[str, int]], ReplicaInfo]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def make(name: str, vocab: dict[str, int]) -> ReplicaInfo:
        raw: Any = Tokenizer(models.WordLevel(vocab, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path / name)
        LlamaConfig(vocab_size=len(vocab)).save_pretrained(tmp_path / name)
        model = str(tmp_path / name)
        return ReplicaInfo(0, model, len(vocab), 64, 1, 64, fingerprint(load_tokenizer(model)))

    return make


CONFIG = load_config({"tiers": [{"name": "draft", "model": "d"}, {"name": "target", "model": "t"}]}, environ={})


def test_different_tokenizers_are_refused_with_the_first_difference(save: Save) -> None:
    draft, target = save("d", {"a": 0, "b": 1, "c": 2}), save("t", {"a": 0, "c": 1, "b": 2})
    with pytest.raises(TokenizersDiffer, match=r"'draft' .*id 1 is 'b' in one tokenizer and 'c' in the other"):
        check_tokenizers(CONFIG, [draft, target])


def test_the_ways_to_draft_in_spite_of_it_are_named(save: Save) -> None:
    draft, target = save("d", {"a": 0, "b": 1, "c": 2}), save("t", {"a": 0, "c": 1, "b": 2})
    with pytest.raises(TokenizersDiffer, match=r"set drafter\.tokenizers to intersection or text$"):
        check_tokenizers(CONFIG, [draft, target])


def test_equal_tokenizers_and_drafters_without_one_are_accepted(save: Save) -> None:
    vocab = {"a": 0, "b": 1, "c": 2}
    target = save("t", vocab)
    check_tokenizers(CONFIG, [save("d", vocab), target])
    check_tokenizers(CONFIG, [ReplicaInfo(0, "ngram", 0, 64, 0, 64, ""), target])
