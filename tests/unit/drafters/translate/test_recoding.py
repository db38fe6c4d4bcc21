"""A text in another tokenizer's tokens, through any growth and rollback, and a draft back from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.drafters.translate.recoding import Recoding, num_incomplete
from actors.drafters.translate.spelling import Spelling, shared_tokens
from actors.drafters.translate.text import translated
from tests.unit.drafters.translate.conftest import KINDS, TEXT, spelling

PAIRS = [(a, b) for a in KINDS for b in KINDS if a != b]


def recoding(upper: Spelling, lower: Spelling) -> Recoding:
    shared = shared_tokens(lower, upper)
    return Recoding(upper, lower, {t: shared.lower_of[t] for t in upper.special if t in shared.lower_of})


def text_of(one: Spelling, ids: list[int]) -> bytes:
    """Bytes of ordinary tokens; control tokens as a mark."""
    return b"".join(one.pieces.get(token, b"\0") for token in ids)


@pytest.mark.parametrize(("upper", "lower"), PAIRS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_says_the_same_after_any_growth_and_rollback(upper: str, lower: str, data: st.DataObject) -> None:
    above, below = spelling(upper), spelling(lower)
    it = recoding(above, below)
    ids: list[int] = []
    some = st.one_of(
        st.integers(0, above.size - 1),  # any id, half characters and control tokens included
        st.sampled_from(above.encode(TEXT[200:900]).ids),
    )
    for _ in range(data.draw(st.integers(1, 6))):
        keep = data.draw(st.integers(0, len(ids)))
        new = data.draw(st.lists(some, max_size=12))
        it.truncate(keep)
        ids = ids[:keep]
        assert it.num_upper == keep
        it.extend(new)
        ids += new
        said = text_of(below, it.ids[len(below.begin_ids) :])
        if all(t in above.pieces for t in ids):
            whole = b"".join(above.pieces[t] for t in ids)
            try:
                whole[: len(whole) - len(it.waiting)].decode()
            except UnicodeDecodeError:
                continue  # no text: what a tokenizer makes of it is its own affair
            assert said + it.waiting == whole
            assert it.num_lower(len(ids)) == len(it.ids)
            for count in range(len(ids)):
                part = b"".join(above.pieces[t] for t in ids[:count])
                assert part.startswith(text_of(below, it.ids[len(below.begin_ids) : it.num_lower(count)]))


@pytest.mark.parametrize(("upper", "lower"), PAIRS)
def test_told_piece_by_piece_a_text_is_cut_as_told_at_once(upper: str, lower: str) -> None:
    above, below = spelling(upper), spelling(lower)
    ids = above.encode(TEXT[:3000]).ids
    it = recoding(above, below)
    for start in range(0, len(ids), 3):
        it.extend(ids[start : start + 3])
    assert it.ids[len(below.begin_ids) :] == below.encode(TEXT[:3000]).ids


def test_control_tokens_that_both_have_are_carried_over_others_are_spelt_out() -> None:
    above, below = spelling("merged"), spelling("bytes")
    ids = {name: token for token, name in above.special.items()}
    turn, end = ids["<|turn|>"], ids["<|endoftext|>"]
    it = recoding(above, below)
    it.extend([*above.encode("hi").ids, turn, *above.encode("ho").ids, end])
    named = {name: t for t, name in below.special.items()}
    assert it.ids == [*below.encode("hi").ids, named["<|turn|>"], *below.encode("ho").ids, below.eos_id]
    spaced = recoding(above, spelling("spaced"))
    spaced.extend([turn])
    assert text_of(spelling("spaced"), spaced.ids).endswith(b"<|turn|>")


@pytest.mark.parametrize(("upper", "lower"), PAIRS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_translated_draft_says_what_was_said_and_nothing_else(upper: str, lower: str, data: st.DataObject) -> None:
    above, below = spelling(upper), spelling(lower)
    place = data.draw(st.integers(0, 3000))
    text = data.draw(st.sampled_from([TEXT, "naïve café → 😀 über alles " * 200]))
    before = above.encode(text[place : place + 60]).ids
    it = recoding(above, below)
    it.extend(before[: data.draw(st.integers(1, len(before)))])
    said = below.encode(it.waiting.decode("utf-8", "ignore") + text[place + 60 : place + 90]).ids
    got = translated(said, below, above, it.tail(8), it.waiting)
    spoken = b"".join(below.pieces[t] for t in said)
    if spoken.startswith(it.waiting):
        assert spoken[len(it.waiting) :].startswith(b"".join(above.pieces[t] for t in got))
    else:
        assert got == []


def test_a_draft_goes_on_from_the_middle_of_a_word_and_ends_where_the_model_ends() -> None:
    above, below = spelling("merged"), spelling("bytes")
    it = recoding(above, below)
    it.extend(above.encode("the Licens").ids)
    said = [*below.encode("e and").ids, below.eos_id, *below.encode("more").ids]
    got = translated(said, below, above, it.tail(8), it.waiting)
    assert got[-1] == above.eos_id
    assert b"".join(above.pieces[t] for t in got[:-1]) == b"e and"
    assert translated([below.eos_id], below, above, b"the", b"") == [above.eos_id]
    assert translated([], below, above, b"the", b"") == []


def test_half_characters_wait_for_their_other_half() -> None:
    above, below = spelling("bytes"), spelling("spaced")
    smile = above.encode("😀").ids
    assert len(smile) == 4
    it = recoding(above, below)
    it.extend([*above.encode("a").ids, *smile[:2]])
    assert it.waiting == "😀".encode()[:2] and text_of(below, it.ids[len(below.begin_ids) :]) == b"a"
    said = below.encode("😀!").ids
    assert translated(said, below, above, it.tail(8), it.waiting) == [*smile[2:], *above.encode("!").ids]
    assert translated(below.encode("x").ids, below, above, it.tail(8), it.waiting) == []
    assert [num_incomplete(t) for t in (b"", b"a", b"\xc3", b"\xe2\x86", "é".encode(), b"\x80\x80\x80\x80\x80")] == [
        0, 0, 1, 2, 0, 0,
    ]
