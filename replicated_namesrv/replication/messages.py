"""What nodes tell each other beside Raft: signs of life and ages. Strict binary, every length checked, nothing evaluated.

``Report``: a node to the leader. ``Answer``: the leader to that node. ``Ages``: the leader to all, so that its successor knows.
"""

import struct
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import MalformedError

Key = tuple[str, str]
"""(clusterName, brokerAddr); ("", node id) stands for a node."""
KNOWN, HELD, LOST, RELEASED = range(4)
"""How a node stands to a broker: knows only when it was last heard; holds a connection of it; lost the last one because the
peer closed it or it was silent; closed it by our own doing."""
ENTRIES_MAX = 200_000
TEXT_BYTES_MAX = 65_535
_REPORT = struct.Struct("<BQQQBI")
_ANSWER = struct.Struct("<BQQQBI")
_AGES = struct.Struct("<BQI")
_ENTRY = struct.Struct("<BBQQII")
_AGE = struct.Struct("<I")
_REFUSAL = struct.Struct("<IB")
_LENGTH = struct.Struct("<H")
AGE_MAX = 0xFFFFFFFF


class Entry(NamedTuple):
    """One broker as a node sees it."""

    key: Key
    state: int
    renews: bool
    """Somebody waits for the leader's word on this renewal."""
    epoch: int
    generation: int
    """``group_generation`` at which the node found that nothing changes; 0: only a sign of life."""
    age_ms: int
    lost_ms: int
    """Since when the last connection is gone (LOST)."""


class Report(NamedTuple):
    session: int
    """Drawn at the start of the sending process."""
    sequence: int
    term: int
    is_full: bool
    entries: tuple[Entry, ...]


DIFFERS, REMOVING = 1, 2
"""The renewal does not fit the leader's state; a removal of that life is proposed."""


class Answer(NamedTuple):
    session: int
    sequence: int
    term: int
    wants_full: bool
    refusals: tuple[tuple[int, int], ...]
    """(position in the report, DIFFERS or REMOVING)."""


class Ages(NamedTuple):
    term: int
    ages: tuple[tuple[Key, int], ...]


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(raw)) + raw


def _key(key: Key) -> bytes:
    return _text(key[0]) + _text(key[1])


def encode(message: Report | Answer | Ages) -> bytes:
    """The bytes of one message."""
    if isinstance(message, Report):
        head = _REPORT.pack(1, message.session, message.sequence, message.term, message.is_full, len(message.entries))
        return head + b"".join(
            _ENTRY.pack(e.state, e.renews, e.epoch, e.generation, min(e.age_ms, AGE_MAX), min(e.lost_ms, AGE_MAX)) + _key(e.key)
            for e in message.entries
        )
    if isinstance(message, Answer):
        head = _ANSWER.pack(2, message.session, message.sequence, message.term, message.wants_full, len(message.refusals))
        return head + b"".join(_REFUSAL.pack(*refusal) for refusal in message.refusals)
    return _AGES.pack(3, message.term, len(message.ages)) + b"".join(
        _AGE.pack(min(age, AGE_MAX)) + _key(key) for key, age in message.ages
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return values

    def text(self) -> str:
        (length,) = self.take(_LENGTH)
        end = self.offset + length
        if end > len(self.data):
            raise MalformedError("a text ends in the middle")
        value = self.data[self.offset : end].decode("utf-8", "surrogatepass")
        self.offset = end
        return value

    def key(self) -> Key:
        return self.text(), self.text()


def decode(data: bytes) -> Report | Answer | Ages:
    """Inverse of ``encode``. Raises MalformedError."""
    reader = _Reader(data)
    try:
        message = _decode(reader)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise MalformedError(f"a message between nodes cannot be read: {error}") from None
    if reader.offset != len(data):
        raise MalformedError("a message between nodes has the wrong length")
    return message


def _decode(reader: _Reader) -> Report | Answer | Ages:
    kind = reader.data[0]
    if kind == 1:
        _, session, sequence, term, is_full, count = reader.take(_REPORT)
        _check(count, is_full)
        return Report(session, sequence, term, bool(is_full), tuple(_entry(reader) for _ in range(count)))
    if kind == 2:
        _, session, sequence, term, wants_full, count = reader.take(_ANSWER)
        _check(count, wants_full)
        refusals = tuple((position, why) for position, why in (reader.take(_REFUSAL) for _ in range(count)))
        return Answer(session, sequence, term, bool(wants_full), refusals)
    if kind == 3:
        _, term, count = reader.take(_AGES)
        _check(count, 0)
        ages = []
        for _ in range(count):
            (age,) = reader.take(_AGE)
            ages.append((reader.key(), age))
        return Ages(term, tuple(ages))
    raise MalformedError(f"no message between nodes has kind {kind}")


def _entry(reader: _Reader) -> Entry:
    state, renews, epoch, generation, age_ms, lost_ms = reader.take(_ENTRY)
    if state > RELEASED or renews > 1:
        raise MalformedError("an entry of a report is malformed")
    return Entry(reader.key(), state, bool(renews), epoch, generation, age_ms, lost_ms)


def _check(count: int, switch: int) -> None:
    if count > ENTRIES_MAX or switch > 1:
        raise MalformedError(f"a message between nodes with {count} entries and switch {switch}")
