"""Cutting frames out of a buffer, and the limits that close a connection."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.errors import FrameError
from replicated_namesrv.wire.frame import MAX_TOTAL, FrameBounds, frame, missing_bytes, next_frame


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 1), st.binary(max_size=9), st.binary(max_size=9))
def test_a_frame_is_found_when_all_of_it_is_there(header: bytes, body: bytes, kind: int, before: bytes, after: bytes) -> None:
    whole = frame(header, body, kind)
    buffer = bytearray(before + whole + after)
    start, end = len(before), len(before) + len(whole)
    for have in range(start, end):
        assert next_frame(buffer, start, have) is None
        assert 1 <= missing_bytes(buffer, start, have) <= end - have
    assert missing_bytes(buffer, start, end) == 0
    for view in (buffer, bytes(buffer), memoryview(buffer)):
        assert next_frame(view, start, len(buffer)) == FrameBounds(kind, start + 8, start + 8 + len(header), end)


@pytest.mark.parametrize(
    ("prefix", "words"),
    [
        ("00000000", "length 0"),
        ("00000003", "length 3"),
        ("ffffffff", "length -1"),
        ("80000000", "length -2147483648"),
        ("00fffffd", "length 16777213"),
        ("0000000a02000000", "serialize type 2"),
        ("0000000aff000000", "serialize type 255"),
        ("0000000400000001", "header length 1"),
        ("0000000a01000007", "header length 7"),
        ("47455420", "length 1195725856"),
        ("00f0000000200001", "a header of 2097153 bytes is longer than 2097152"),
        ("00f0000001ffffff", "header length 16777215"),
    ],
)
def test_what_can_never_become_a_frame_is_refused_at_once(prefix: str, words: str) -> None:
    data = bytes.fromhex(prefix)
    with pytest.raises(FrameError, match=words):
        next_frame(data, 0, len(data))


def test_the_longest_frame_is_accepted() -> None:
    prefix = struct.pack(">iI", MAX_TOTAL, 0)
    assert next_frame(prefix, 0, 8) is None
    assert missing_bytes(prefix, 0, 8) == MAX_TOTAL - 4
    whole = frame(b"", bytes(MAX_TOTAL - 4))
    assert next_frame(whole, 0, len(whole)) == FrameBounds(0, 8, 8, 1 << 24)
    with pytest.raises(FrameError, match="longer than"):
        frame(b"", bytes(MAX_TOTAL - 3))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_none_or_an_error(data: bytes) -> None:
    try:
        bounds = next_frame(data, 0, len(data))
    except FrameError:
        return
    assert bounds is None or bounds.end <= len(data)
