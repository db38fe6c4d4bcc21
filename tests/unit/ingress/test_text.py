"""Incremental text: detokenizer, stop strings, and both together."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.ingress.detokenizer import Detokenizer
from cluster.ingress.stops import StopMatcher
from cluster.ingress.text import TextStream
from cluster.ingress.tokenizing import TextCodec

relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
unicode_text = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from("👩‍👧🏳️🌈你好e\u0301\ufffd \n")), max_size=40
)


def blocks(items: Sequence[int], seed: int) -> list[Sequence[int]]:
    """`items` cut at random into blocks, empty ones included."""
    rng = random.Random(seed)
    cuts = sorted(rng.randint(0, len(items)) for _ in range(rng.randint(0, len(items) + 2)))
    return [items[a:b] for a, b in zip([0, *cuts], [*cuts, len(items)], strict=True)]


@relaxed
@given(text=unicode_text, seed=st.integers(0, 2**32))
def test_deltas_join_to_the_text_for_any_split(codec: TextCodec, text: str, seed: int) -> None:
    ids = codec.encode(text)
    detokenizer = codec.detokenizer()
    deltas = [detokenizer.push(block) for block in blocks(ids, seed)]
    joined = "".join(deltas) + detokenizer.flush()
    assert joined == codec.decode(ids) == text


@relaxed
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_deltas_join_to_decode_for_arbitrary_ids(codec: TextCodec, data: st.DataObject, seed: int) -> None:
    ids = data.draw(st.lists(st.integers(0, codec.vocab_size - 1), max_size=60))
    detokenizer = codec.detokenizer()
    deltas = [detokenizer.push(block) for block in blocks(ids, seed)]
    assert "".join(deltas) + detokenizer.flush() == codec.decode(ids)


@relaxed
@given(runs=st.lists(st.binary(min_size=1, max_size=30), max_size=6), seed=st.integers(0, 2**32))
def test_deltas_join_to_decode_for_long_runs_of_invalid_bytes(runs: list[bytes], seed: int) -> None:
    ids = [byte for run in runs for byte in run.translate(bytes(0x80 + i % 0x80 for i in range(256)))]
    detokenizer = Detokenizer(lambda window: bytes(window).decode("utf-8", "replace"))
    deltas = [detokenizer.push(block) for block in blocks(ids, seed)]
    assert "".join(deltas) + detokenizer.flush() == bytes(ids).decode("utf-8", "replace")


def test_no_delta_splits_a_character() -> None:
    text = "a👩‍👧你é\u0301z"
    detokenizer = Detokenizer(lambda window: bytes(window).decode("utf-8", "replace"))
    deltas = [detokenizer.push([byte]) for byte in text.encode()]
    assert [d for d in deltas if d] == list(text)
    assert detokenizer.flush() == ""


def test_an_incomplete_character_at_the_end_is_flushed_as_a_replacement() -> None:
    detokenizer = Detokenizer(lambda window: bytes(window).decode("utf-8", "replace"))
    assert detokenizer.push("x你".encode()[:-1]) == ""
    assert detokenizer.flush() == "x\ufffd"


@pytest.mark.parametrize("ids", [b"a" * 4000, b"\x80" * 4000], ids=["text", "no text"])
def test_decoding_work_is_linear_in_the_tokens(ids: bytes) -> None:
    decoded = 0

    def decode(window: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(window)
        return bytes(window).decode("utf-8", "replace")

    detokenizer = Detokenizer(decode)
    for token_id in ids:
        detokenizer.push([token_id])
    assert decoded <= 20 * len(ids)


def test_special_ids_yield_no_text_even_inside_a_character() -> None:
    detokenizer = Detokenizer(lambda window: bytes(window).decode("utf-8", "replace"), special_ids=[0])
    first, *rest = "你".encode()
    assert detokenizer.push([0, first, 0]) == ""
    assert detokenizer.push([*rest, 0]) == "你"


def oracle(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None, int]:
    """Character by character: (text, stop, characters read)."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end if include else end - len(stop)], stop, end
    return text, None, len(text)


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("abc", max_size=24), stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(), seed=st.integers(0, 2**32),
)
def test_stop_outcome_is_that_of_the_whole_text_for_any_split(
    text: str, stops: list[str], include: bool, seed: int
) -> None:
    matcher = StopMatcher(stops, include)
    emitted = ""
    for block in blocks(text, seed):  # type: ignore[arg-type]
        emitted += matcher.push(block)  # type: ignore[arg-type]
        assert oracle(text, stops, include)[0].startswith(emitted)  # never text that must be taken back
    emitted += matcher.flush()
    assert (emitted, matcher.matched) == oracle(text, stops, include)[:2]


def test_only_a_possible_beginning_of_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["STOP", "TOES"])
    assert [matcher.push(c) for c in "aSTxTO"] == ["a", "", "", "STx", "", ""]
    assert matcher.flush() == "TO"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab你", max_size=16), stops=st.lists(st.text("ab你", min_size=1, max_size=4), max_size=3),
    include=st.booleans(), seed=st.integers(0, 2**32),
)
def test_tokens_count_up_to_the_one_that_completed_the_stop(
    text: str, stops: list[str], include: bool, seed: int
) -> None:
    stream = TextStream(
        Detokenizer(lambda ids: bytes(ids).decode("utf-8", "replace")), stops, include_stop=include
    )
    expected, stop, end = oracle(text, stops, include)
    emitted, num_tokens = "", 0
    for block in blocks(list(text.encode()), seed):
        piece = stream.push(block)
        emitted += piece.text
        num_tokens += piece.num_tokens
    emitted += stream.finish().text
    assert (emitted, stream.stop) == (expected, stop)
    assert num_tokens == stream.num_tokens == len(text[:end].encode())


@pytest.mark.parametrize("size", range(1, 9))
def test_stop_is_found_at_every_position_of_a_block(codec: TextCodec, size: int) -> None:
    ids = codec.encode("the fox STOP the dog")
    stream = TextStream(codec.detokenizer(), ["STOP"])
    pieces = [stream.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    assert "".join(p.text for p in pieces) == "the fox "
    kept = ids[: stream.num_tokens]
    assert "STOP" in codec.decode(kept)
    assert "STOP" not in codec.decode(kept[:-1])
    assert [p.stop for p in pieces if p.stop] == ["STOP"]
    assert (stream.finish().text, stream.push(ids).num_tokens) == ("", 0)


def test_stop_ids_count_but_are_silent(codec: TextCodec) -> None:
    stop_id, *rest = codec.encode("dog")
    stream = TextStream(codec.detokenizer(), silent_ids=[stop_id])
    assert stream.push([*rest, stop_id]).num_tokens == len(rest) + 1
    assert stream.finish().text == ""


def test_stop_strings_are_not_looked_for_before_min_tokens() -> None:
    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    stream = TextStream(Detokenizer(decode), ["x"], min_tokens=3)
    piece = stream.push(b"xxxx")
    assert (piece.text, piece.num_tokens, piece.stop) == ("xx", 3, "x")
