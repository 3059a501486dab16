"""Frames: total length, serialize type and header length, header, body (``RemotingCommand``, ``NettyDecoder``).

``next_frame`` finds a frame in a read buffer by its first eight bytes, without a copy. An invalid frame is refused as soon as
those bytes show it, long before its announced megabytes arrive. All numbers are big-endian.

A server that accepts PROXY protocol waits for ``FIRST_JUDGED_BYTES`` of a new connection, as RocketMQ 5.x does, because until
then the bytes may be a PROXY header.
"""

from struct import Struct
from typing import Final, NamedTuple

from replicated_namesrv.errors import FrameError

MAX_TOTAL: Final = 16_777_212
"""Greatest value of the length field. A frame of this length, with the length field, is 16 MiB long
(``com.rocketmq.remoting.frameMaxLength``)."""
MAX_HEADER_BYTES: Final = 2 << 20
"""Maximum length of a request's header, stricter than Java's limits. A header is not read in slices, so this limits how long one
peer delays the others. An answer may have a longer one: in JSON, a value of 1 MiB in the KV config can have 6 MiB."""
FRAME_PREFIX_BYTES: Final = 8
"""Length of the fields before the header: frame length, serialize type and header length."""
FIRST_JUDGED_BYTES: Final = 12
"""Number of bytes of a new connection that must have arrived before its protocol is determined."""

_PREFIX = Struct(">iI")
_TOTAL = Struct(">i")

Buffer = bytes | bytearray | memoryview


class FrameBounds(NamedTuple):
    """Position of one whole frame in a buffer: its header is ``[header_start:body_start]``, its body ``[body_start:end]``."""

    serialize_type: int
    """Encoding of the header: 0 JSON, 1 ROCKETMQ."""
    header_start: int
    body_start: int
    end: int


def next_frame(buffer: Buffer, start: int, end: int, header_bytes_max: int = MAX_HEADER_BYTES) -> FrameBounds | None:
    """The frame that begins at ``start`` if all of it is before ``end``; None while bytes are missing.

    Raises FrameError as soon as the bytes show that it is invalid.
    """
    if end - start < FRAME_PREFIX_BYTES:
        if end - start >= 4:
            _check_total(_TOTAL.unpack_from(buffer, start)[0])
        return None
    total, word = _PREFIX.unpack_from(buffer, start)
    header_bytes = word & 0xFFFFFF
    if not 4 <= total <= MAX_TOTAL or header_bytes > total - 4 or header_bytes > header_bytes_max or word > 0x1FFFFFF:
        _refuse(total, word)
    frame_end = start + 4 + total
    if frame_end > end:
        return None
    header_start = start + FRAME_PREFIX_BYTES
    return FrameBounds(word >> 24, header_start, header_start + header_bytes, frame_end)


def missing_bytes(buffer: Buffer, start: int, end: int) -> int:
    """How many more bytes the frame at ``start`` needs, as far as known: at least 1 while ``next_frame`` returns None.

    With it a server grows its buffer once instead of many times. Raises FrameError like ``next_frame``.
    """
    have = end - start
    if have < FRAME_PREFIX_BYTES:
        return FRAME_PREFIX_BYTES - have
    if next_frame(buffer, start, end) is not None:
        return 0
    return int(_TOTAL.unpack_from(buffer, start)[0]) + 4 - have


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """One whole frame. Raises FrameError if it would be longer than a peer accepts."""
    header_bytes = len(header)
    total = 4 + header_bytes + len(body)
    if total > MAX_TOTAL:
        raise FrameError(f"a frame of {total} bytes is longer than {MAX_TOTAL}; send less in one request")
    return b"".join((_PREFIX.pack(total, serialize_type << 24 | header_bytes), header, body))


def frame_prefix(header_bytes: int, body_bytes: int, serialize_type: int) -> bytes:
    """The eight bytes before a header, for callers that write header and body separately."""
    return _PREFIX.pack(4 + header_bytes + body_bytes, serialize_type << 24 | header_bytes)


def _check_total(total: int) -> None:
    if not 4 <= total <= MAX_TOTAL:
        raise FrameError(f"frame length {total} is not between 4 and {MAX_TOTAL}")


def _refuse(total: int, word: int) -> None:
    _check_total(total)
    if word > 0x1FFFFFF:
        raise FrameError(f"serialize type {word >> 24} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    header_bytes = word & 0xFFFFFF
    if header_bytes > total - 4:
        raise FrameError(f"header length {header_bytes} does not fit into a frame of length {total}")
    raise FrameError(f"a header of {header_bytes} bytes is longer than {MAX_HEADER_BYTES}; send long data as a body")
