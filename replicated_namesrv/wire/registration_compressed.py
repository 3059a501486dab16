"""The compressed form of a registration: one zlib stream of length-prefixed strings (``RegisterBrokerBody.encode(true)``).

The stream is inflated only as far as the next text needs it. So a compression bomb costs at most the work up to the limit on
inflated bytes, an announced count of 2,000,000,000 costs nothing, and bytes after the last text are ignored.
"""

import re
import zlib
from collections.abc import Generator
from sys import intern
from typing import Final

from replicated_namesrv.model import TOPICS_MAX, QueueData
from replicated_namesrv.wire.codes import V5_0_0
from replicated_namesrv.wire.fastjson import INT_MAX, INT_MIN, MalformedJsonError, loads
from replicated_namesrv.wire.registration_values import (
    RegisterBrokerBody,
    check_count,
    data_version_of,
    filter_servers_of,
    interned,
    mapping_info_of,
)

MAX_TEXT_BYTES: Final = 1 << 20
"""Maximum length of a text in the stream."""
SLICE_WORK: Final = 300_000
"""Work between two yields: the number of inflated bytes, plus 200 for each text, plus 1,000 for each topic line that is not
cached. Takes about 2 ms."""
MAX_REMEMBERED: Final = 65_536
MAX_REMEMBERED_BYTES: Final = 256

_WORK_OF_A_TEXT, _MORE_WORK_OF_A_NEW_LINE = 200, 1_000
_INPUT_BYTES = 16_384
_OUTPUT_BYTES = 65_536
_NUMBER = re.compile(rb"[+-]?[0-9]{1,11}")
_FILTER_TYPES = (b"SINGLE_TAG", b"MULTI_TAG")
_lines: dict[bytes, tuple[str, QueueData]] = {}
"""Cache of decoded topic lines."""


def decode_compressed(body: bytes, version: int, max_inflated_bytes: int) -> Generator[None, None, RegisterBrokerBody]:
    """Decode in slices. Raises MalformedJsonError: not a zlib stream, truncated, a limit exceeded, or an invalid text.

    Topic-queue mappings are included from 5.0.0 on.
    """
    stream = _InflatedTexts(body, max_inflated_bytes)
    data_version = data_version_of(_json(stream.text()))
    topics: dict[str, QueueData] = {}
    for _ in range(stream.count("topics")):
        line = stream.text()
        topic = _lines.get(line)
        if topic is None:
            topic = _understand_line(line)
            stream.work += _MORE_WORK_OF_A_NEW_LINE
        topics[topic[0]] = topic[1]
        if stream.work > SLICE_WORK:
            stream.work = 0
            yield
    filter_servers = _filter_servers(stream.text())
    mappings = {}
    if version >= V5_0_0:
        for _ in range(stream.count("topic queue mappings")):
            info = mapping_info_of(_json(stream.text()))
            if not info.topic:
                raise MalformedJsonError("a topic queue mapping has no topic")
            mappings[info.topic] = info
            if stream.work > SLICE_WORK:
                stream.work = 0
                yield
    return RegisterBrokerBody(data_version, topics, mappings, filter_servers)


def _understand_line(line: bytes) -> tuple[str, QueueData]:
    """``topicName readQueueNums writeQueueNums perm topicFilterType`` and, from 5.x, attributes, which are ignored."""
    fields = line.rstrip(b" ").split(b" ")
    if len(fields) < 5:
        raise MalformedJsonError(f"a topic line has {len(fields)} fields instead of 5 or more: {line[:60]!r}")
    if fields[4] not in _FILTER_TYPES:
        raise MalformedJsonError(f"a topic line has the unknown topicFilterType {fields[4][:60]!r}")
    read_queue_nums, write_queue_nums, perm = map(_number, fields[1:4])
    topic = intern(str(fields[0], "utf-8", "replace")), interned(QueueData(perm, read_queue_nums, 0, write_queue_nums))
    if len(line) <= MAX_REMEMBERED_BYTES:
        if len(_lines) >= MAX_REMEMBERED:
            _lines.clear()
        _lines[line] = topic
    return topic


def _number(field: bytes) -> int:
    if _NUMBER.fullmatch(field) is None or not INT_MIN <= int(field) <= INT_MAX:
        raise MalformedJsonError(f"a topic line has {field[:60]!r} where a number belongs")
    return int(field)


def _json(text: bytes) -> object:
    """A JSON text; an empty one reads as null."""
    return loads(text) if text else None


def _filter_servers(text: bytes) -> tuple[str, ...] | None:
    """A JSON array of strings. null is None, and malformed text is empty, as in Java."""
    try:
        return filter_servers_of(_json(text))
    except MalformedJsonError:
        return ()


class _InflatedTexts:
    """Numbers and strings from a zlib stream, inflated on demand."""

    def __init__(self, body: bytes, max_inflated_bytes: int) -> None:
        self.work = 0
        self._body = memoryview(body)
        self._taken = 0
        self._left = max_inflated_bytes
        self._inflater = zlib.decompressobj()
        self._inflated = b""
        self._position = 0

    def integer(self) -> int:
        """The next int32."""
        return int.from_bytes(self._take(4), signed=True)

    def count(self, what: str) -> int:
        """The number of strings of one kind that follow."""
        count = self.integer()
        check_count(what, count, TOPICS_MAX)
        return count

    def text(self) -> bytes:
        """The next text, by its length."""
        size = self.integer()
        if not 0 <= size <= MAX_TEXT_BYTES:
            raise MalformedJsonError(f"a text of {size} bytes is not between 0 and {MAX_TEXT_BYTES}")
        self.work += _WORK_OF_A_TEXT
        return self._take(size)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._inflated):
            self._inflate(size)
            end = size
        taken = self._inflated[self._position : end]
        self._position = end
        return taken

    def _inflate(self, size: int) -> None:
        """Drop the bytes already read and inflate until ``size`` bytes are there."""
        parts = [self._inflated[self._position :]]
        have = len(parts[0])
        while have < size:
            part = self._next_part()
            parts.append(part)
            have += len(part)
        self._inflated = b"".join(parts)
        self._position = 0

    def _next_part(self) -> bytes:
        pending: bytes | memoryview = self._inflater.unconsumed_tail
        if not pending:
            pending = self._body[self._taken : self._taken + _INPUT_BYTES]
            self._taken += len(pending)
            if not pending or self._inflater.eof:
                raise MalformedJsonError("End of compressed data has reached")
        try:
            part = self._inflater.decompress(pending, _OUTPUT_BYTES)
        except zlib.error as error:
            raise MalformedJsonError(f"not a zlib stream: {error}") from None
        self.work += len(part) + 1000
        self._left -= len(part)
        if self._left < 0:
            raise MalformedJsonError("the compressed body inflates to more than is allowed")
        return part
