"""Who says what: shares of agreement and second guesses, and the laws that tell of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.emulation.head import Head
from actors.emulation.voice import ROOT, Choice, Speaker, extend, shares
from actors.spec import Voice
from tests.unit.emulation.devices import TARGET, VOCAB, WORDS

NUM = 20_000
PREFIXES = [extend(ROOT, i) for i in range(NUM)]


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.mark.parametrize(("agreement", "second_guess"), [(0.0, 1.0), (0.3, 0.2), (0.85, 0.5), (1.0, 0.0)])
def test_a_voice_agrees_and_guesses_second_as_often_as_it_is_told(agreement: float, second_guess: float) -> None:
    draft = Speaker((Voice("draft", 0, (agreement,), (second_guess,)), TARGET), len(WORDS))
    target = Speaker((TARGET,), len(WORDS))
    pairs = [(draft.choose(p), target.choose(p)) for p in PREFIXES]
    assert share([d.best == t.best for d, t in pairs]) == pytest.approx(agreement, abs=0.015)
    wrong = [(d, t) for d, t in pairs if d.best != t.best]
    if wrong:
        assert share([d.words[1] == t.best for d, t in wrong]) == pytest.approx(second_guess, abs=0.03)
    assert all(d.best != d.words[1] for d, _ in pairs)


def test_further_guesses_are_right_by_rank_where_all_better_ones_are_wrong() -> None:
    chances = (0.5, 0.4, 0.3, 0.6)
    draft = Speaker((Voice("draft", 0, chances[:1], chances[1:]), TARGET), len(WORDS))
    target = Speaker((TARGET,), len(WORDS))
    pairs = [(draft.choose(p).words, target.choose(p).best) for p in PREFIXES]
    assert all(len(set(words)) == 4 for words, _ in pairs)
    for rank, expected in enumerate(shares(chances)):
        assert share([words[rank] == right for words, right in pairs]) == pytest.approx(expected, abs=0.015)
    row = Head(WORDS, VOCAB).rows([Choice((3, 7, 8, 2), chances)]).double()
    law = torch.softmax(row, -1).numpy()[0, WORDS[[3, 7, 8, 2]]]
    assert law == pytest.approx([0.5, 0.2, 0.09, 0.081], rel=1e-4)  # the fourth stays behind the third


def test_agreements_multiply_along_the_ladder() -> None:
    small, medium = Voice("small", 0, (0.55,), (0.5,)), Voice("medium", 0, (0.9,), (0.5,))
    speakers = [Speaker(v, len(WORDS)) for v in ((small, medium, TARGET), (medium, TARGET), (TARGET,))]
    said = [[s.choose(p).best for s in speakers] for p in PREFIXES]
    assert share([s == m for s, m, _ in said]) == pytest.approx(0.55, abs=0.015)
    assert share([m == t for _, m, t in said]) == pytest.approx(0.9, abs=0.015)
    assert share([s == t for s, _, t in said]) == pytest.approx(0.55 * 0.9, abs=0.015)


def test_agreement_goes_by_the_position_and_its_last_value_repeats() -> None:
    draft = Speaker((Voice("draft", 0, (0.9, 0.5)), TARGET), len(WORDS))
    target = Speaker((TARGET,), len(WORDS))
    for position, expected in ((0, 0.9), (1, 0.5), (7, 0.5)):
        right = share([draft.choose(p, position).best == target.choose(p).best for p in PREFIXES])
        assert right == pytest.approx(expected, abs=0.015)


def test_neighbouring_prefixes_agree_independently() -> None:
    draft = Speaker((Voice("draft", 0, (0.85,)), TARGET), len(WORDS))
    target = Speaker((TARGET,), len(WORDS))
    prefix, right = ROOT, []
    for _ in range(NUM):
        word = target.choose(prefix).best
        right.append(draft.choose(prefix).best == word)
        prefix = extend(prefix, int(WORDS[word]))
    after_right = [b for a, b in zip(right, right[1:], strict=False) if a]
    assert share(after_right) == pytest.approx(0.85, abs=0.015)


def test_another_seed_makes_other_choices() -> None:
    one, two = (Speaker((Voice("target", seed),), len(WORDS)) for seed in (0, 1))
    assert share([one.choose(p).best == two.choose(p).best for p in PREFIXES[:1000]]) < 0.05


def test_too_few_words_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 64"):
        Speaker((TARGET,), 63)


def test_laws_say_how_far_a_voice_is_to_be_trusted() -> None:
    head = Head(WORDS, VOCAB)
    law = torch.softmax(head.rows([Choice((3, 7), (0.85, 0.5)), Choice((0,), (1.0,))]).double(), -1).numpy()
    assert law[0, WORDS[[3, 7]]] == pytest.approx([0.85, 0.075], rel=1e-4)
    assert law[0, WORDS[0]] == pytest.approx(0.075 / (len(WORDS) - 2), rel=1e-4)
    assert law[1, WORDS[0]] == pytest.approx(1.0, abs=1e-4)
    no_words = np.setdiff1d(np.arange(VOCAB), WORDS)
    assert law[:, no_words].max() == 0.0


@pytest.mark.parametrize("agreement", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("second_guess", [0.0, 0.5, 1.0])
def test_best_and_second_are_the_likeliest_words_whatever_the_shares(agreement: float, second_guess: float) -> None:
    row = Head(WORDS, VOCAB).rows([Choice((5, 9), (agreement, second_guess))])[0].numpy()
    assert row.argmax() == WORDS[5]
    row[WORDS[5]] = -np.inf
    assert row[WORDS[9]] == row.max()


def test_rows_carry_nothing_over_from_the_pass_before() -> None:
    head = Head(WORDS, VOCAB)
    head.rows([Choice((i, i + 1), (0.9, 0.5)) for i in range(5)])
    again = head.rows([Choice((50, 51), (0.9, 0.5))]).clone()
    assert torch.equal(again, Head(WORDS, VOCAB).rows([Choice((50, 51), (0.9, 0.5))]))
    more = head.rows([Choice((60, 61), (0.9, 0.5))] * 20)
    assert torch.equal(more, Head(WORDS, VOCAB).rows([Choice((60, 61), (0.9, 0.5))] * 20))
