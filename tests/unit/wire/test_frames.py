"""Frames survive any cut of the stream, and a stream of something else is refused."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.wire.frames import _HEADER, BadFrame, FrameParser

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
frames = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**64 - 1), st.binary(max_size=40)), max_size=8)


def stream(items: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(_HEADER.pack(len(payload), kind, call) + payload for kind, call, payload in items)


@relaxed
@given(items=frames, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_frames_arrive_whole_however_the_stream_is_cut(items: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    data = stream(items)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser = FrameParser(1000)
    got = [frame for a, b in zip(edges, edges[1:], strict=False) for frame in parser.feed(data[a:b])]
    assert got == items


def test_a_frame_that_is_too_long_is_refused_before_it_is_stored() -> None:
    parser = FrameParser(10)
    with pytest.raises(BadFrame, match="11 bytes: at most 10"):
        list(parser.feed(_HEADER.pack(11, 1, 1)))


def test_a_limit_raised_by_a_frame_holds_for_the_next_one_in_the_same_piece() -> None:
    parser = FrameParser(4)
    got = []
    for kind, _, payload in parser.feed(stream([(0, 0, b"1234"), (1, 1, b"12345678")])):
        got.append((kind, payload))
        parser.max_payload_bytes = 8
    assert got == [(0, b"1234"), (1, b"12345678")]
