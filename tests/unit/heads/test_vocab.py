"""A part of the vocabulary: which ids, and the way there and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.heads.vocab import LEAST_LOGIT, DraftVocabulary, ReducedHead, most_frequent


def test_the_likeliest_ids_are_taken_after_those_that_must_be_there() -> None:
    counts = [5, 0, 9, 7, 0, 1]
    assert most_frequent(counts, 3).tolist() == [0, 2, 3]
    assert most_frequent(counts, 3, always=[4, 2]).tolist() == [2, 3, 4]
    assert most_frequent(counts, 6, always=[4]).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("size", "always"), [(0, []), (7, []), (1, [1, 2])])
def test_sizes_that_cannot_be_had_are_refused(size: int, always: list[int]) -> None:
    with pytest.raises(ValueError, match=f"a draft vocabulary of {size} ids"):
        most_frequent([1] * 6, size, always)


@pytest.mark.parametrize("ids", [[], [3, 3], [4, 2], [-1, 2], [2, 6], [[1]]])
def test_ids_that_are_no_part_of_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        DraftVocabulary(ids, 6)


def test_widened_logits_are_where_their_ids_are_and_nowhere_else() -> None:
    vocabulary = DraftVocabulary([1, 4, 5], 7)
    wide = vocabulary.widen(torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]]))
    least = LEAST_LOGIT
    assert wide.tolist() == [[least, 1, least, least, 2, 3, least], [least, -4, least, least, 5, 6, least]]
    assert wide.softmax(-1)[:, [0, 2, 3, 6]].sum() == 0
    assert vocabulary.places(torch.tensor([[1, 0], [5, 4]])).tolist() == [[0, -1], [2, 1]]


def test_the_whole_vocabulary_is_left_as_it_is() -> None:
    whole = DraftVocabulary(np.arange(5), 5)
    logits = torch.randn(2, 5)
    assert whole.is_whole
    assert whole.widen(logits) is logits
    assert whole.part(logits.T) is not None


def test_a_head_begins_with_the_targets_rows_of_its_ids() -> None:
    output, hidden = torch.randn(7, 4), torch.randn(2, 3, 4)
    head = ReducedHead(4, 3)
    head.begin(DraftVocabulary([1, 4, 5], 7), output)
    torch.testing.assert_close(head(hidden), (hidden @ output.T)[..., [1, 4, 5]])
    assert head.draft_vocab_ids.tolist() == [1, 4, 5]
