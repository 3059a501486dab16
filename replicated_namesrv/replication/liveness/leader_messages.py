"""What nodes tell each other beside Raft: signs of life, ages, and what only the leader may decide. Strict binary, every length
checked, nothing evaluated.

``NodeReport``: a node to the leader, answered by ``ReportAnswer``. ``Inquiry``: the same, answered by ``Decision``. ``Ages``: the
leader to all, so that its successor knows.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from replicated_namesrv.raft.raft_errors import MalformedError

Key = tuple[str, str]
"""(clusterName, brokerAddr); ("", node id) stands for a node."""
KNOWN, HELD, LOST, RELEASED = range(4)
"""How a node stands to a broker: knows only when it was last heard; holds a connection of it; lost the last one because the
peer closed it or it was silent; closed it by our own doing."""
ENTRIES_MAX = 200_000
_REPORT = struct.Struct("<BQQQBIQIII")
_ANSWER = struct.Struct("<BQQQBQI")
_AGES = struct.Struct("<BQI")
_INQUIRY = struct.Struct("<BQQQBQI")
_DECISION = struct.Struct("<BQQB")
_ENTRY = struct.Struct("<BBQQIII")
_AGE = struct.Struct("<I")
_REFUSAL = struct.Struct("<IB")
_LENGTH = struct.Struct("<I")
KEYS_REMEMBERED, REMEMBERED_BYTES_MAX = 4_096, 256
"""The same brokers are told of over and over: encoded keys that are not worked out again, and the longest of them."""
AGE_MAX = 0xFFFFFFFF
"""The greatest age that is told, and "never"."""


class ReportEntry(NamedTuple):
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
    reattached_ms: int
    """Since when a connection is there that was not the first; AGE_MAX: none is."""


class NodeReport(NamedTuple):
    session: int
    """Drawn at the start of the sending process."""
    sequence: int
    term: int
    is_full: bool
    entries: tuple[ReportEntry, ...]
    told_term: int
    """Of the leader that told this process all ages last; 0: none has."""
    told_ms: int
    """Since then, by a clock that goes on while the process is stopped."""
    running_ms: int
    """Since the process began, by the same clock."""
    confirmed_ms: int
    """Since an earlier leader than this one served this process last, counted while it runs; AGE_MAX: none ever has."""


DIFFERS, REMOVING = 1, 2
"""The renewal does not fit the leader's state; a removal of that life is proposed."""


class ReportAnswer(NamedTuple):
    session: int
    sequence: int
    term: int
    wants_full: bool
    time_ms: int
    """The leader's clock: milliseconds since 1970."""
    refusals: tuple[tuple[int, int], ...]
    """(position in the report, DIFFERS or REMOVING)."""


class Ages(NamedTuple):
    term: int
    ages: tuple[tuple[Key, int], ...]


REGISTER, REMOVE, WITHDRAW = range(3)


class Inquiry(NamedTuple):
    """A registration that may change something, or a removal: may it, and will it? Or the end of an inquiry about a registration
    that will not be proposed, or whose proposal failed; it has no answer. A leader of an older version drops a WITHDRAW."""

    session: int
    number: int
    term: int
    kind: int
    """REGISTER, REMOVE or WITHDRAW."""
    serial: int
    """REGISTER: commands applied when the registration was found to change something."""
    registered_ms: int
    """REMOVE: since the connection it came over registered the broker; AGE_MAX: it never did."""
    key: Key
    content: str
    """REGISTER and WITHDRAW: the registration's hash. REMOVE: the removal, as JSON."""


GRANTED, LOOK_AGAIN, REMOVED, LATE = range(4)
"""Propose it; a copy of it has been applied; the removal has been applied; the broker has a newer life, nothing was done."""


class Decision(NamedTuple):
    session: int
    number: int
    verdict: int


Message = NodeReport | ReportAnswer | Ages | Inquiry | Decision


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(raw)) + raw


def _pack_key(key: Key) -> bytes:
    return _text(key[0]) + _text(key[1])


_packed_key = lru_cache(KEYS_REMEMBERED)(_pack_key)


def _key(key: Key) -> bytes:
    return _packed_key(key) if len(key[0]) + len(key[1]) <= REMEMBERED_BYTES_MAX else _pack_key(key)


def encode(message: Message) -> bytes:
    """The bytes of one message."""
    match message:
        case NodeReport():
            session, sequence, term, is_full, entries, told_term, *times = message
            ages = (told_term, *map(_age, times))
            head = _REPORT.pack(1, session, sequence, term, is_full, len(entries), *ages)
            return head + b"".join(_ENTRY.pack(*entry[1:5], *map(_age, entry[5:])) + _key(entry.key) for entry in entries)
        case ReportAnswer():
            *fields, refusals = message
            return _ANSWER.pack(2, *fields, len(refusals)) + b"".join(_REFUSAL.pack(*refusal) for refusal in refusals)
        case Ages():
            head = _AGES.pack(3, message.term, len(message.ages))
            return head + b"".join(_AGE.pack(_age(age_ms)) + _key(key) for key, age_ms in message.ages)
        case Inquiry():
            *fields, registered_ms, key, content = message
            return _INQUIRY.pack(4, *fields, _age(registered_ms)) + _key(key) + _text(content)
        case Decision():
            return _DECISION.pack(5, *message)


def _age(value: int) -> int:
    return min(value, AGE_MAX)


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
        data, start = self.data, self.offset
        (length,) = _LENGTH.unpack_from(data, start)
        second = start + _LENGTH.size + length
        (length,) = _LENGTH.unpack_from(data, second)
        self.offset = second + _LENGTH.size + length
        if self.offset > len(data):
            raise MalformedError("a text ends in the middle")
        raw = data[start : self.offset]
        return _unpacked_key(raw) if len(raw) <= REMEMBERED_BYTES_MAX else _unpack_key(raw)


def _unpack_key(raw: bytes) -> Key:
    reader = _Reader(raw)
    return reader.text(), reader.text()


_unpacked_key = lru_cache(KEYS_REMEMBERED)(_unpack_key)


def decode(data: bytes) -> Message:
    """Inverse of ``encode``. Raises MalformedError."""
    reader = _Reader(data)
    try:
        message = _decode(reader)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise MalformedError(f"a message between nodes cannot be read: {error}") from None
    if reader.offset != len(data):
        raise MalformedError("a message between nodes has the wrong length")
    return message


def _decode(reader: _Reader) -> Message:
    match reader.data[0]:
        case 1:
            _, session, sequence, term, is_full, count, *ages = reader.take(_REPORT)
            _check(count, is_full)
            return NodeReport(session, sequence, term, bool(is_full), tuple(_entry(reader) for _ in range(count)), *ages)
        case 2:
            _, session, sequence, term, wants_full, time_ms, count = reader.take(_ANSWER)
            _check(count, wants_full)
            refusals = tuple((position, why) for position, why in (reader.take(_REFUSAL) for _ in range(count)))
            return ReportAnswer(session, sequence, term, bool(wants_full), time_ms, refusals)
        case 3:
            _, term, count = reader.take(_AGES)
            _check(count, 0)
            told = []
            for _ in range(count):
                (age,) = reader.take(_AGE)
                told.append((reader.key(), age))
            return Ages(term, tuple(told))
        case 4:
            _, session, number, term, kind, serial, registered_ms = reader.take(_INQUIRY)
            if kind > WITHDRAW:
                raise MalformedError(f"no inquiry is of kind {kind}")
            return Inquiry(session, number, term, kind, serial, registered_ms, reader.key(), reader.text())
        case 5:
            _, session, number, verdict = reader.take(_DECISION)
            if verdict > LATE:
                raise MalformedError(f"no decision is {verdict}")
            return Decision(session, number, verdict)
    raise MalformedError(f"no message between nodes has kind {reader.data[0]}")


def _entry(reader: _Reader) -> ReportEntry:
    state, renews, epoch, generation, age_ms, lost_ms, reattached_ms = reader.take(_ENTRY)
    if state > RELEASED or renews > 1:
        raise MalformedError("an entry of a report is malformed")
    return ReportEntry(reader.key(), state, bool(renews), epoch, generation, age_ms, lost_ms, reattached_ms)


def _check(count: int, switch: int) -> None:
    if count > ENTRIES_MAX or switch > 1:
        raise MalformedError(f"a message between nodes with {count} entries and switch {switch}")
