"""Tokens in bytes, and what two vocabularies have in common."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.translate.spelling import UnsuitableTokenizer, shared_tokens, spell
from tests.unit.drafters.translate.conftest import END, KINDS, spelling, tokenizer

TEXTS = st.text(st.sampled_from(list("the Licen\n  .é→😀x7")), max_size=30)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_the_pieces_of_an_encoded_text_are_its_bytes(kind: str, text: str) -> None:
    one = spelling(kind)
    assert b"".join(one.literal(token) for token in one.encode(text).ids) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_are_told_apart_and_every_other_id_stands_for_something(kind: str) -> None:
    one = spelling(kind)
    assert END[kind] in one.special.values()
    assert not one.pieces.keys() & one.special.keys()
    assert one.size == len(tokenizer(kind))
    assert one.pieces.keys() | one.special.keys() == set(range(one.size))
    assert one.eos_id is not None and one.special[one.eos_id] == END[kind]


@pytest.mark.parametrize("lower", KINDS)
@pytest.mark.parametrize("upper", KINDS)
def test_shared_tokens_have_the_same_bytes_or_name_and_the_ends_belong_together(lower: str, upper: str) -> None:
    one, other = spelling(lower), spelling(upper)
    shared = shared_tokens(one, other)
    assert len(shared) >= 256
    assert sorted(shared.lower_of) == shared.upper.tolist()
    assert len(set(shared.lower.tolist())) == len(shared)
    for a, b in zip(shared.lower.tolist(), shared.upper.tolist(), strict=True):
        assert shared.lower_of[b] == a
        if b == other.eos_id:
            assert a == one.eos_id
        else:
            assert one.literal(a) == other.literal(b)
    spaced = [one.pieces[a] for a in shared.lower.tolist() if a in one.pieces]
    if "bytes" not in (lower, upper):
        assert sum(piece.startswith(b" ") and len(piece) > 2 for piece in spaced) > 10  # " the" in any spelling


def test_where_bytes_stand_beside_characters_the_tokenizers_own_choice_is_shared() -> None:
    one = spelling("spaced")
    shared = shared_tokens(one, spelling("merged"))
    newline = next(token for token, piece in spelling("merged").pieces.items() if piece == b"\n")
    assert shared.lower_of[newline] == one.encode("\n").ids[-1]


def test_a_tokenizer_without_a_fast_form_is_refused() -> None:
    class Slow:
        backend_tokenizer = None

    with pytest.raises(UnsuitableTokenizer, match="fast form"):
        spell(Slow())  # type: ignore[arg-type]
