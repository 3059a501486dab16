"""Marks, unregistrations and suspicions: what the state records about brokers besides their registrations.

The first line of a snapshot contains them. This module writes and reads that line. It is one JSON array: three numbers, the rows
of the table of marks, and the rows of the table of unregistrations. With a command version above the first one, the array has two
more items: the version is the fourth number, and the table of suspicions is the last table. The tables may have as many rows as
there are brokers. So the line is written and read ROWS_MAX rows at a time. While the command version is the first one, the form
of the line must not change, because nodes of version 0.1 read and write it, too. These nodes read the line with
``encoding.load``. The line begins with a blank, so this function uses a parser that accepts every text that a name can have."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

from replicated_namesrv.routes.encoding import RouteFormatError, dump
from replicated_namesrv.routes.snapshot import in_parts
from replicated_namesrv.routes.sums import SummedTable, entry_hash, entry_hashes

ROWS_MAX = 1_000
"""Number of rows of a table written in one step: about 100 KB and a millisecond."""
_HEAD = re.compile(rb" ?\[(\d+),(\d+),(\d+),(?:(\d+),)?\[")
_ROW = re.compile(rb'\[(?:[^][\n"]++|"(?:[^"\\\n]++|\\.)*")*\],?')
"""A complete row: an array of numbers and strings. Only repetitions of single characters are possessive: before Python 3.11.5, a
possessive repetition of a group can match text that the group does not match (python/cpython issue 106052)."""
_BETWEEN, _END = b"],[", b"]]\n"
"""The text between the rows of two tables, and the text after the rows of the last table."""
NOT_OURS = "snapshot cannot be read: its first line is not that of this version"
Key = tuple[str, str]
"""Cluster and address of a broker."""


class Mark(NamedTuple):
    """Facts about a registered broker beyond its registration."""

    version_revision: int
    """Revision at which the broker's newest content was committed. While a node may run version 0.1 (the command version is the
    first one), it is the revision at which the broker's data version was committed."""
    serial: int
    """Number of the last command that registered the broker or cleared its suspicion, even without a change."""
    content: str
    """Hash of the broker's last registration in the log (``content_of``)."""


class Suspicion(NamedTuple):
    """Recorded silence of a registered broker."""

    share: int
    """Recorded silence in thirds of the broker's time-out: 1 or 2."""
    since_ms: int
    """The leader's clock when the first third was recorded."""


def _mark_hash(key: Key, mark: Mark) -> int:
    return entry_hash("mark", *key, *mark)


def _unregistered_hash(key: Key, revision: int) -> int:
    return entry_hash("unregistered", *key, revision)


def mark_hashes(keys: Iterable[Key], mark: Mark) -> list[int]:
    """The hashes of the entries of these brokers, which all have this mark."""
    keys = list(keys)
    return entry_hashes("mark", *zip(*keys, strict=True), *map(repeat, mark)) if keys else []


def marks_table() -> SummedTable[Key, Mark]:
    """An empty table of marks."""
    return SummedTable(_mark_hash)


def unregistered_table() -> SummedTable[Key, int]:
    """An empty table of unregistrations: the revision of each."""
    return SummedTable(_unregistered_hash)


def _suspected_hash(key: Key, known: Suspicion) -> int:
    return entry_hash("suspected", *key, *known)


def suspected_table() -> SummedTable[Key, Suspicion]:
    """An empty table of suspicions."""
    return SummedTable(_suspected_hash)


def tables_of(numbers: Sequence[int]) -> int:
    """Number of tables in a line that begins with ``numbers``."""
    return len(numbers) - 1


class MarksOfBackup:
    """The marks of all brokers in a backup, which are equal. They are made a part at a time, while the backup arrives."""

    def __init__(self) -> None:
        self.table = marks_table()
        self._mark: Mark | None = None

    def advance(self, brokers: Mapping[Key, object], mark: Mark, rows_max: int) -> None:
        """Make at most ``rows_max`` more marks, in the order of ``brokers``. Between two calls, brokers may only be appended. If
        ``mark`` has changed since the last call, the table begins anew."""
        if mark != self._mark:
            self._mark, self.table = mark, marks_table()
        done = len(self.table)
        if done < len(brokers):
            keys = list(islice(brokers, done, done + rows_max))
            self.table.put_all(dict.fromkeys(keys, mark), mark_hashes(keys, mark))

    def complete(self, brokers: Mapping[Key, object], mark: Mark) -> SummedTable[Key, Mark]:
        """The table of all marks."""
        self.advance(brokers, mark, len(brokers))
        return self.table


Tables = tuple[SummedTable[Key, Mark], SummedTable[Key, int], SummedTable[Key, Suspicion]]


def own_line(numbers: Sequence[int], tables: Tables) -> Iterator[bytes]:
    """The parts of the first line at the time of this call. Changes while they are consumed are not included."""
    marks, unregistered, suspected = tables
    rows: list[Iterable[list[Any]]] = [
        ([*key, *mark] for key, mark in list(marks.items())),
        ([*key, revision] for key, revision in list(unregistered.items())),
        ([*key, *known] for key, known in list(suspected.items())),
    ]
    return _parts(numbers, rows[: tables_of(numbers)])


def _parts(numbers: Sequence[int], tables: list[Iterable[list[Any]]]) -> Iterator[bytes]:
    yield b" " + dump(list(numbers))[:-1] + b",["
    for position, rows in enumerate(tables):
        yield from _rows(rows)
        yield _BETWEEN if position + 1 < len(tables) else _END


def _rows(rows: Iterable[list[Any]]) -> Iterator[bytes]:
    iterator, comma = iter(rows), b""
    while part := list(islice(iterator, ROWS_MAX)):
        yield from in_parts(comma + dump(part).lstrip(b" ")[1:-1])
        comma = b","


class OwnLineReader:
    """Reads the first line from chunks cut at any place."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.marks, self.unregistered, self.suspected = marks_table(), unregistered_table(), suspected_table()
        self.complete = False
        self._rest = b""
        """The start of an incomplete row."""
        self._table = 0
        """Index of the table that is being read."""

    def feed(self, chunk: bytes) -> bytes:
        """Process the next bytes and return those after the line. Raises RouteFormatError."""
        data = self._rest + chunk
        if not self.numbers:
            head = _HEAD.match(data)
            if head is None:
                return self._wait(data)
            self.numbers = [int(number) for number in head.groups() if number is not None]
            data = data[head.end() :]
        while True:
            data = self._take_rows(data.removeprefix(b","))
            is_last = self._table + 1 == tables_of(self.numbers)
            if not is_last and data.startswith(_BETWEEN):
                self._table, data = self._table + 1, data[len(_BETWEEN) :]
            elif is_last and data.startswith(_END):
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
        end = 0
        while found := _ROW.match(data, end):
            end = found.end()
        try:
            rows = json.loads(b"[" + data[:end].removesuffix(b",") + b"]")
            for cluster, address, *values in rows:
                if self._table == 0:
                    self.marks.put((cluster, address), Mark(*values))
                elif self._table == 1:
                    (revision,) = values
                    self.unregistered.put((cluster, address), revision)
                else:
                    self.suspected.put((cluster, address), Suspicion(*values))
        except (ValueError, TypeError) as error:
            raise RouteFormatError(NOT_OURS) from error
        return data[end:]
