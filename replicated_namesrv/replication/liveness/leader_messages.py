"""Messages between nodes that are not part of Raft: reports of brokers, renewals, and questions for the leader. Strict binary
encoding; every length is checked.

``NodeReport``: a node to the leader, answered by ``ReportAnswer``. ``Inquiry``: a node to the leader, answered by ``Decision``.

**Bounds.** A report is at most as long as ``Room`` permits. The client cuts longer ones into parts with consecutive numbers. Each
part is a report of its own. A part of the whole list says so in ``NodeReport.part``. An answer has at most one refusal for each
entry of its report. The other messages have one key and a few texts. So every message has at most MESSAGE_BYTES_MAX bytes. There
are two exceptions: a name that 0.1 accepted may be longer, and so may a report while some node may still run 0.1 (``Room``).

The layouts are those of version 0.1, so that nodes of both versions understand each other in a rolling upgrade. Fields that only
0.1 reads are sent as *unknown*. A 0.1 leader then counts each entry as a contact at this moment, which only extends time-outs.
Its ``Ages`` (kind 3) are ignored. A leader of an older version takes the first part of a whole list for the whole list, and the
other parts for changes of it.
"""

import struct
from functools import lru_cache
from typing import NamedTuple

from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.routes.commands import BrokerRemoval
from replicated_namesrv.routes.encoding import dump, load
from replicated_namesrv.routes.sizes import text_bytes

KNOWN, HELD, LOST, RELEASED = range(4)
"""State of a broker at a node. KNOWN: no connection (sent by 0.1). HELD: attached. LOST: the broker closed the last connection.
RELEASED: the last connection ended otherwise (``attachments.py``)."""
ENTRIES_MAX = 200_000
MESSAGE_BYTES_MAX = 1 << 20
"""A longer frame would delay the messages of Raft, which use the same connection. A frame above
``TransportSettings.frame_bytes_max`` closes the connection."""
PART_ENTRIES_MAX = 1_000
"""Maximum number of entries in a report. Writing or reading this number takes a few milliseconds of one turn of the event
loop."""
OLD_REPORT_BYTES_MAX = 8 << 20
"""Maximum size of a report while some node may run 0.1, whose leaders do not know parts. It may have ENTRIES_MAX entries."""
_REPORT = struct.Struct("<BQQQBIQIII")
_ANSWER = struct.Struct("<BQQQBQI")
_INQUIRY = struct.Struct("<BQQQBQI")
_DECISION = struct.Struct("<BQQB")
_ENTRY = struct.Struct("<BBQQIII")
_REFUSAL = struct.Struct("<IB")
_LENGTH = struct.Struct("<I")
KEYS_REMEMBERED, REMEMBERED_BYTES_MAX = 4_096, 256
"""Encoded keys are cached, because most reports name the same brokers. The first number limits how many are cached, the second
how long each one is."""
AGE_MAX = 0xFFFFFFFF
"""The greatest age that can be sent. It also means "unknown"."""


class ReportEntry(NamedTuple):
    """One broker as a node sees it. In a report that is not part of the whole list, an entry with HELD is a contact."""

    key: Key
    state: int
    renews: bool
    """Whether a caller waits for the leader's decision on this renewal."""
    epoch: int
    generation: int
    """``group_generation`` at which the node found that the registration is a no-op. 0: the leader does not compare
    generations."""
    opened_ms: int
    """HELD, RELEASED: age of the newest connection, which may have ended; AGE_MAX: unknown."""


ALONE, MORE, LAST = range(3)
"""Place of a report in the whole list. ALONE: the report is the whole list, or it contains only changes. MORE: it is a part, and
other parts follow. LAST: it is the last part. Changes may come between the parts."""


class NodeReport(NamedTuple):
    session: int
    """A random number of the sending process, drawn at its start."""
    sequence: int
    term: int
    is_full: bool
    """Whether the whole list begins with this report."""
    entries: tuple[ReportEntry, ...]
    running_ms: int
    """Time for which the sending process has run."""
    part: int = ALONE

    @property
    def is_listed(self) -> bool:
        """Whether the entries belong to the whole list. If so, entries that do not renew are not contacts."""
        return self.is_full or self.part != ALONE


DIFFERS, REMOVING = 1, 2
"""Refusals of a renewal. DIFFERS: it does not match the leader's state. REMOVING: a removal of this registration is proposed."""


class ReportAnswer(NamedTuple):
    session: int
    sequence: int
    term: int
    wants_full: bool
    time_ms: int
    """The leader's clock in milliseconds since 1970."""
    refusals: tuple[tuple[int, int], ...]
    """(position in the report, DIFFERS or REMOVING)."""


REGISTER, REMOVE, WITHDRAW = range(3)


class Inquiry(NamedTuple):
    """A question about a registration that may change something, or about a removal. WITHDRAW withdraws a question about a
    registration that will not be proposed, or whose proposal failed. It has no answer, and a leader of an older version drops
    it."""

    session: int
    number: int
    term: int
    kind: int
    """REGISTER, REMOVE or WITHDRAW."""
    serial: int
    """REGISTER: number of commands that the node had applied when it found that the registration would change something. REMOVE:
    the leader's clock at the moment of sending, as far as the sender knows it, in milliseconds since 1970; ``since_ms`` counts
    back from this moment. 0: unknown; version 0.1 sends 0 and its leaders ignore the field. WITHDRAW: 0."""
    since_ms: int
    """REMOVE: connections that are younger than this belong to another process; AGE_MAX: no connection does."""
    key: Key
    content: str
    """REGISTER and WITHDRAW: the registration's hash. REMOVE: the removal, as JSON, and the caller who asked for the removal, if
    known."""


GRANTED, LOOK_AGAIN, REMOVED, LATE = range(4)
"""GRANTED: propose the registration. LOOK_AGAIN: a copy of it has been applied. REMOVED: the removal has been applied. LATE: the
broker has a newer connection, so the removal is not proposed (U3 in ``departures.py``)."""


class Decision(NamedTuple):
    session: int
    number: int
    verdict: int


Message = NodeReport | ReportAnswer | Inquiry | Decision


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(raw)) + raw


def _pack_key(key: Key) -> bytes:
    return _text(key[0]) + _text(key[1])


_packed_key = lru_cache(KEYS_REMEMBERED)(_pack_key)


def _key(key: Key) -> bytes:
    return _packed_key(key) if len(key[0]) + len(key[1]) <= REMEMBERED_BYTES_MAX else _pack_key(key)


class Room:
    """The room for entries in one report. The first entry always fits, because a name that 0.1 accepted may have any length."""

    def __init__(self, may_be_old: bool) -> None:
        """``may_be_old``: the leader may run 0.1."""
        self._bytes = (OLD_REPORT_BYTES_MAX if may_be_old else MESSAGE_BYTES_MAX) - _REPORT.size
        self._entries = self._entries_max = ENTRIES_MAX if may_be_old else PART_ENTRIES_MAX

    def take(self, key: Key) -> bool:
        """Whether an entry for this broker fits. If so, it takes up the room."""
        size = _ENTRY.size + 2 * _LENGTH.size + text_bytes(key[0]) + text_bytes(key[1])
        if self._entries < self._entries_max and (size > self._bytes or not self._entries):
            return False
        self._bytes -= size
        self._entries -= 1
        return True


def is_obsolete(data: bytes) -> bool:
    """Whether ``data`` is a message of kind 3, ``Ages``, which only leaders of version 0.1 send."""
    return data[:1] == b"\x03"


def encode(message: Message) -> bytes:
    """The bytes of one message."""
    match message:
        case NodeReport():
            *fields, entries, running_ms, part = message
            head = _REPORT.pack(1, *fields, len(entries), 0, AGE_MAX - part, _age(running_ms), AGE_MAX)
            return head + b"".join(_ENTRY.pack(*entry[1:5], 0, 0, _age(entry.opened_ms)) + _key(entry.key) for entry in entries)
        case ReportAnswer():
            *fields, refusals = message
            return _ANSWER.pack(2, *fields, len(refusals)) + b"".join(_REFUSAL.pack(*refusal) for refusal in refusals)
        case Inquiry():
            *fields, since_ms, key, content = message
            return _INQUIRY.pack(4, *fields, _age(since_ms)) + _key(key) + _text(content)
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
            _, session, sequence, term, is_full, count, told_term, place, running_ms, _ = reader.take(_REPORT)
            _check(count, is_full)
            part = ALONE if told_term or place < AGE_MAX - LAST else AGE_MAX - place  # version 0.1.0 sends an age
            if is_full and part == LAST:
                raise MalformedError("a whole list begins and ends with the same part")
            entries = tuple(_entry(reader) for _ in range(count))
            return NodeReport(session, sequence, term, bool(is_full), entries, running_ms, part)
        case 2:
            _, session, sequence, term, wants_full, time_ms, count = reader.take(_ANSWER)
            _check(count, wants_full)
            refusals = tuple((position, why) for position, why in (reader.take(_REFUSAL) for _ in range(count)))
            return ReportAnswer(session, sequence, term, bool(wants_full), time_ms, refusals)
        case 4:
            _, session, number, term, kind, serial, since_ms = reader.take(_INQUIRY)
            if kind > WITHDRAW:
                raise MalformedError(f"unknown kind of inquiry: {kind}")
            return Inquiry(session, number, term, kind, serial, since_ms, reader.key(), reader.text())
        case 5:
            _, session, number, verdict = reader.take(_DECISION)
            if verdict > LATE:
                raise MalformedError(f"unknown decision: {verdict}")
            return Decision(session, number, verdict)
    raise MalformedError(f"unknown kind of message between nodes: {reader.data[0]}")


def _entry(reader: _Reader) -> ReportEntry:
    state, renews, epoch, generation, _, _, opened_ms = reader.take(_ENTRY)
    if state > RELEASED or renews > 1:
        raise MalformedError("an entry of a report is malformed")
    return ReportEntry(reader.key(), state, bool(renews), epoch, generation, opened_ms)


def _check(count: int, switch: int) -> None:
    if count > ENTRIES_MAX or switch > 1:
        raise MalformedError(f"a malformed message between nodes: {count} entries, flag {switch}")


def encode_removal(removal: BrokerRemoval, origin: ChangeOrigin | None = None) -> str:
    """A removal as the content of an Inquiry. ``origin`` is only for leaders of this version."""
    fields = [removal.broker_name, removal.broker_id, removal.epoch, *(origin or ())]
    return dump(fields).decode("utf-8", "surrogatepass")


def decode_removal(key: Key, content: str) -> tuple[BrokerRemoval, ChangeOrigin | None]:
    """Inverse of ``encode_removal``. Raises MalformedError."""
    try:
        broker_name, broker_id, epoch, *rest = load(content.encode("utf-8", "surrogatepass"))
        origin = ChangeOrigin(*rest) if rest else None
        if not all(isinstance(text, str) for text in rest):
            raise ValueError("a field has the wrong type")
        if not (isinstance(broker_name, str) and type(broker_id) is int and type(epoch) is int):
            raise ValueError("a field has the wrong type")
    except (ValueError, TypeError) as error:
        raise MalformedError(f"a removal cannot be read: {error}") from None
    return BrokerRemoval(*key, broker_name, broker_id, epoch), origin
