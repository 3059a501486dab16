"""PROXY protocol headers, cut at every byte."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.errors import FrameError
from replicated_namesrv.wire.proxy_protocol import NO_PROXY_HEADER, ProxyHeader, parse_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(command: int, family: int, payload: bytes) -> bytes:
    return SIGNATURE + bytes([0x20 | command, family]) + struct.pack(">H", len(payload)) + payload


V4 = bytes([10, 0, 0, 1, 10, 0, 0, 2]) + struct.pack(">HH", 4711, 9876)
V6 = bytes(15) + b"\x01" + bytes(16) + struct.pack(">HH", 4711, 9876)


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 4711 9876\r\n", "10.0.0.1:4711"),
        (b"PROXY TCP6 ::1 ::2 4711 9876\r\n", "[::1]:4711"),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (version_2(1, 0x11, V4), "10.0.0.1:4711"),
        (version_2(1, 0x11, V4 + b"\x03\x00\x04abcd"), "10.0.0.1:4711"),
        (version_2(1, 0x21, V6), "[::1]:4711"),
        (version_2(0, 0x00, b""), None),
        (version_2(0, 0x11, V4), None),
        (version_2(1, 0x31, bytes(216)), None),
        (version_2(1, 0x00, b"xyz"), None),
    ],
)
def test_headers(header: bytes, source: str | None) -> None:
    stream = b"__" + header + b"\x00\x00\x00\x10rest"
    for end in range(2, 2 + len(header)):
        assert parse_proxy_header(stream, 2, end) is None
    for view in (stream, bytearray(stream), memoryview(stream)):
        assert parse_proxy_header(view, 2, len(stream)) == ProxyHeader(len(header), source)


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 10.0.0.1 10.0.0.2 4711\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 65536\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 -1 2\r\n",
        b"PROXY TCP4 x y 1 2\r\n" + bytes(20),
        b"PROXYTCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x11\x11\x00\x0c" + V4,
        SIGNATURE + b"\x22\x11\x00\x0c" + V4,
        SIGNATURE + b"\x21\x41\x00\x0c" + V4,
        SIGNATURE + b"\x21\x13\x00\x0c" + V4,
        SIGNATURE + b"\x21\x11\x00\x0b" + V4,
    ],
)
def test_what_begins_like_a_header_and_is_none(data: bytes) -> None:
    with pytest.raises(FrameError, match="PROXY header"):
        parse_proxy_header(data, 0, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b'\x00\x00\x00\x67\x00\x00\x00\x63{"co',
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
        b"GET / HTTP/1.1",
        b"PROXx" + bytes(7),
    ],
)
def test_anything_else_has_no_header(data: bytes) -> None:
    assert parse_proxy_header(data, 0, 11) is None
    assert parse_proxy_header(data, 0, len(data)) == NO_PROXY_HEADER


@given(st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21"]), st.binary(max_size=60))
def test_any_bytes_are_a_header_or_none_or_an_error(prefix: bytes, rest: bytes) -> None:
    data = prefix + rest
    try:
        header = parse_proxy_header(data, 0, len(data))
    except FrameError:
        return
    assert header is None or header.size <= len(data)
