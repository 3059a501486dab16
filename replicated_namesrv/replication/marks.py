"""What is known of brokers beyond their registrations, and the first line of a snapshot, which holds it.

The line is one JSON array: three numbers, the table of marks, the table of unregistrations, each in the order of its table. A
fourth number is the command version, if it is newer than the first. The line is written and read ROWS_MAX rows at a time. Both
tables may have as many rows as there are brokers. Earlier versions wrote the same line in one step and read it so; hence its form
stays. It begins with a blank, which tells ``encoding.load`` to expect any text.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from replicated_namesrv.routes.encoding import RouteFormatError, dump
from replicated_namesrv.routes.snapshot import in_parts
from replicated_namesrv.routes.sums import SummedTable, entry_hash

ROWS_MAX = 1_000
"""Rows of a table written in one step: about 100 KB and a millisecond."""
_HEAD = re.compile(rb" ?\[(\d+),(\d+),(\d+),(?:(\d+),)?\[")
_ROWS = re.compile(rb'(?:\[(?:[^][\n"]|"(?:[^"\\\n]|\\.)*+")*+\],?)*+')
"""Complete rows: arrays of numbers and texts."""
_BETWEEN, _END = b"],[", b"]]\n"
"""What follows the rows of the first table, and those of the second."""
NOT_OURS = "snapshot cannot be read: its first line is not that of this version"
Key = tuple[str, str]
"""Cluster and address of a broker."""


class Mark(NamedTuple):
    """What is known of a registered broker beyond its registration."""

    version_revision: int
    """Revision that committed its present data version."""
    serial: int
    """Number of the last registration of it in the log, changed or not."""
    content: str
    """Hash of that registration (``content_of``)."""


def _mark_hash(key: Key, mark: Mark) -> int:
    return entry_hash("mark", *key, *mark)


def _unregistered_hash(key: Key, revision: int) -> int:
    return entry_hash("unregistered", *key, revision)


def marks_table() -> SummedTable[Key, Mark]:
    """An empty table of marks."""
    return SummedTable(_mark_hash)


def unregistered_table() -> SummedTable[Key, int]:
    """An empty table of unregistrations: the revision of each."""
    return SummedTable(_unregistered_hash)


def own_line(numbers: Sequence[int], marks: SummedTable[Key, Mark], unregistered: SummedTable[Key, int]) -> Iterator[bytes]:
    """Parts of the first line as of this call; what changes while they are taken is not in them."""
    return _parts(numbers, list(marks.items()), list(unregistered.items()))


def _parts(numbers: Sequence[int], marks: list[tuple[Key, Mark]], unregistered: list[tuple[Key, int]]) -> Iterator[bytes]:
    yield b" " + dump(list(numbers))[:-1] + b",["
    yield from _rows([*key, *mark] for key, mark in marks)
    yield _BETWEEN
    yield from _rows([*key, revision] for key, revision in unregistered)
    yield _END


def _rows(rows: Iterable[list[Any]]) -> Iterator[bytes]:
    iterator, comma = iter(rows), b""
    while part := list(islice(iterator, ROWS_MAX)):
        yield from in_parts(comma + dump(part).lstrip(b" ")[1:-1])
        comma = b","


class OwnLineReader:
    """Reads the first line, cut anywhere, as it comes."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.marks, self.unregistered = marks_table(), unregistered_table()
        self.complete = False
        self._rest = b""
        """Of a row that is not complete."""
        self._is_second = False

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes and give back those behind the line. Raises RouteFormatError."""
        data = self._rest + chunk
        if not self.numbers:
            head = _HEAD.match(data)
            if head is None:
                return self._wait(data)
            self.numbers = [int(number) for number in head.groups() if number is not None]
            data = data[head.end() :]
        while True:
            data = self._take_rows(data.removeprefix(b","))
            if not self._is_second and data.startswith(_BETWEEN):
                self._is_second, data = True, data[len(_BETWEEN) :]
            elif self._is_second and data.startswith(_END):
                self.complete = True
                return data[len(_END) :]
            else:
                return self._wait(data)

    def _wait(self, data: bytes) -> bytes:
        if b"\n" in data:
            raise RouteFormatError(NOT_OURS)
        self._rest = data
        return b""

    def _take_rows(self, data: bytes) -> bytes:
        found = _ROWS.match(data)
        assert found is not None, "it matches nothing at all, too"
        try:
            rows = json.loads(b"[" + data[: found.end()].removesuffix(b",") + b"]")
            for cluster, address, *values in rows:
                if self._is_second:
                    (revision,) = values
                    self.unregistered.put((cluster, address), revision)
                else:
                    self.marks.put((cluster, address), Mark(*values))
        except (ValueError, TypeError) as error:
            raise RouteFormatError(NOT_OURS) from error
        return data[found.end() :]
