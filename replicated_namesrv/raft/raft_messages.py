"""Messages between nodes: immutable values, and one strict binary encoding of each.

A message has the incarnations of its sender and receiver. Messages from or for another incarnation are dropped on receipt, so
neither a vote nor an acknowledgement outlives the disk it was written on. The Greeting has had the same layout since the first
version, so any two versions understand it. It contains the newest protocol of its sender. Kinds in ``SINCE`` are sent only to
peers of that protocol or a newer one, except MemberHint, which is also sent before the peer's Greeting.
"""

import struct
from typing import Annotated, NamedTuple, get_type_hints

from replicated_namesrv.raft.raft_errors import MalformedError

Identity = Annotated[int, "identity"]
"""A number drawn at random, or a checksum. Every value is accepted."""
Term = Annotated[int, "term"]
Ordinal = Annotated[int, "ordinal"]
"""A number that counts up: an index, a sequence number, a size. ``message_bounds.py`` says which values are accepted."""


class Greeting(NamedTuple):
    """First message over a connection, in both directions: the sender, and the state of its disk."""

    source: Identity
    """Incarnation of the sender: a number drawn when its data directory was created."""
    state: Ordinal
    """0 blank, 1 promised to form a cluster with ``founders``, 2 member."""
    founders: tuple[tuple[str, int], ...]
    """(node, incarnation) of every founder, sorted by node; empty while the sender is blank."""
    echo: Identity
    """The incarnation of the receiver that the sender knows, 0 for none. The receiver greets again until the incarnation is
    right."""
    versions: Ordinal
    """Lower 16 bits: the sender's ``RaftConfig.command_version``. Upper 16 bits: the sender's ``PROTOCOL``. Versions of protocol
    0 read the whole number as a command version. Their rule, that every member applies at least a given version, stays
    correct."""

    @property
    def command_version(self) -> int:
        return self.versions & 0xFFFF

    @property
    def protocol(self) -> int:
        return self.versions >> 16


class Introduction(NamedTuple):
    """The sender's process and the content of its disk, and what it remembers of the receiver's disk (standing.py).

    Sent after the Greeting and repeated while both nodes run.
    """

    source: Identity
    destination: Identity
    process: Identity
    """Nonce of the sender's process, drawn when it started."""
    boot: Ordinal
    """How many processes have been started on this data directory; see ``Identity``."""
    sequence: Ordinal
    """Ascending per process."""
    echo_process: Identity
    """The process of the receiver that sent the last introduction to the sender, 0 for none."""
    echo_sequence: Ordinal
    """The newest sequence number that the sender has received from ``echo_process``."""
    opened_number: Ordinal
    """Number of records in the sender's log when this process opened it. All of these records are durable."""
    opened_term: Term
    """The sender's term when this process opened the log, and the log's last entry at that time."""
    opened_index: Ordinal
    durable_number: Ordinal
    """Number of durable records in the sender's log now."""
    snapshot_version: Ordinal
    """The newest format of snapshot files that the sender can read."""
    digest_version: Ordinal
    """``RaftConfig.digest_version``: digests of different versions are not compared."""
    standing: Ordinal
    """The sender's judgement of the receiver's process, as a ``Standing``."""
    remembered_number: Ordinal
    """The data of the receiver's incarnation that the sender remembers: records, term and last acknowledged entry of that term,
    all of which must be on the receiver's disk."""
    remembered_term: Term
    remembered_index: Ordinal


class MemberHint(NamedTuple):
    """The members that the sender knows, so that a node that was away or is new finds them. It decides nothing.

    Sent with the Greeting, also to a node that does not know the sender."""

    source: Identity
    destination: Identity
    """The incarnation of the receiver that the sender knows, 0 for none. It is not compared."""
    log_index: Ordinal
    """The sender has applied the log up to this index. A receiver that has applied this index itself ignores the hint."""
    members: bytes
    """``pack_members``."""


class Append(NamedTuple):
    """AppendEntries (Raft, 5.3); without entries a heartbeat."""

    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal
    """A number that ascends for each leader. The reply repeats it."""
    previous_index: Ordinal
    previous_term: Term
    commit_index: Ordinal
    acknowledged: Ordinal
    """The receiver has acknowledged entries up to this index in this term. If it does not have these entries, its disk has lost
    them."""
    entries: bytes
    """Encoded entries (``pack_entries``). The messages to all followers share these bytes."""


class AppendReply(NamedTuple):
    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal
    success: bool
    log_index: Ordinal
    """Success: the last index that is known to be durable and equal to the leader's log. Conflict: the index to try next."""


class PreVote(NamedTuple):
    """Asks for a vote in ``term`` without any effect on the receiver (dissertation, 9.6)."""

    source: Identity
    destination: Identity
    term: Term
    last_index: Ordinal
    last_term: Term


class PreVoteReply(NamedTuple):
    source: Identity
    destination: Identity
    term: Term
    """The term that was asked for, if the vote is granted; otherwise the current term of the node that refuses."""
    granted: bool


class Vote(NamedTuple):
    """RequestVote (Raft, 5.2)."""

    source: Identity
    destination: Identity
    term: Term
    last_index: Ordinal
    last_term: Term
    forced: bool
    """True if the vote is part of a transfer of leadership, so that stickiness does not apply."""


class VoteReply(NamedTuple):
    """A vote granted; a refusal is silence or HigherTerm."""

    source: Identity
    destination: Identity
    term: Term


class HigherTerm(NamedTuple):
    """The receiver's term is stale; the sender's is ``term``."""

    source: Identity
    destination: Identity
    term: Term


class TimeoutNow(NamedTuple):
    """Campaign at once: the leader transfers leadership (dissertation, 3.10)."""

    source: Identity
    destination: Identity
    term: Term


class SnapshotChunk(NamedTuple):
    """A piece of the leader's snapshot file; also a heartbeat."""

    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal
    snapshot_index: Ordinal
    snapshot_term: Term
    checksum: Identity
    """Checksum of the whole file, so that chunks of different files never mix."""
    offset: Ordinal
    total: Ordinal
    data: bytes


class SnapshotAck(NamedTuple):
    """How much of the snapshot has arrived: the next chunk starts at ``offset``."""

    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal
    snapshot_index: Ordinal
    offset: Ordinal


class ReadProbe(NamedTuple):
    """Asks whether the sender is still the leader of ``term`` (read index, dissertation 6.4)."""

    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal


class ReadAck(NamedTuple):
    source: Identity
    destination: Identity
    term: Term
    sequence: Ordinal


class ReadRequest(NamedTuple):
    """A follower asks the leader for a read index for all its waiting reads."""

    source: Identity
    destination: Identity
    sequence: Ordinal


class ReadReply(NamedTuple):
    source: Identity
    destination: Identity
    sequence: Ordinal
    log_index: Ordinal
    """The index to be applied before the read."""


class ConfirmationRequest(NamedTuple):
    """A follower asks the leader for a read index that the next heartbeats confirm (``heartbeat_confirmations.py``)."""

    source: Identity
    destination: Identity
    sequence: Ordinal


class Confirmation(NamedTuple):
    """The leader led after ConfirmationRequest ``sequence`` had arrived."""

    source: Identity
    destination: Identity
    sequence: Ordinal
    log_index: Ordinal
    """The commit index when the request arrived."""


class Forward(NamedTuple):
    """Proposals of a node that is not the leader."""

    source: Identity
    destination: Identity
    term: Term
    """The term in which the receiver leads, as the sender assumes."""
    sequence: Ordinal
    """Number of this forward; the reply repeats it."""
    proposals: bytes
    """One packed group (``payloads.py``)."""


class ForwardReply(NamedTuple):
    source: Identity
    destination: Identity
    sequence: Ordinal
    log_index: Ordinal
    """The index of the proposals in the log. 0: the sender does not lead the term of the Forward."""
    term: Term


class DigestReport(NamedTuple):
    """Digest of the sender's state after applying ``log_index``."""

    source: Identity
    destination: Identity
    log_index: Ordinal
    digest: bytes


class ApplicationData(NamedTuple):
    """Bytes between the applications of two nodes, which Raft only transports: in order, or lost with the connection."""

    source: Identity
    destination: Identity
    data: bytes


PeerMessage = (
    Append
    | AppendReply
    | PreVote
    | PreVoteReply
    | Vote
    | VoteReply
    | HigherTerm
    | TimeoutNow
    | SnapshotChunk
    | SnapshotAck
    | ReadProbe
    | ReadAck
    | ReadRequest
    | ReadReply
    | Forward
    | ForwardReply
    | DigestReport
    | ApplicationData
    | ConfirmationRequest
    | Confirmation
)
"""Messages between processes that have accepted each other."""
Message = Greeting | Introduction | MemberHint | PeerMessage


class _Layout:
    """Encoding of one kind of message: its code, the numbers, then at most one field of bytes up to the end."""

    __slots__ = ("code", "fixed", "has_tail", "kind", "numbers", "only_numbers", "switches")

    def __init__(self, code: int, kind: type[PeerMessage | Introduction | MemberHint]) -> None:
        hints = get_type_hints(kind)
        self.code, self.kind = code, kind
        self.has_tail = list(hints.values())[-1] is bytes
        numbers = list(hints.values())[: -1 if self.has_tail else None]
        self.switches = [position for position, hint in enumerate(numbers) if hint is bool]
        fields = "".join("B" if hint is bool else "Q" for hint in numbers)
        self.fixed, self.numbers = struct.Struct("<B" + fields), struct.Struct("<x" + fields)
        """With and without the code."""
        self.only_numbers = not (self.has_tail or self.switches)


_KINDS: tuple[type[PeerMessage | Introduction | MemberHint], ...] = (
    Append, AppendReply, PreVote, PreVoteReply, Vote, VoteReply, HigherTerm, TimeoutNow, SnapshotChunk, SnapshotAck,
    ReadProbe, ReadAck, ReadRequest, ReadReply, Forward, ForwardReply, DigestReport, ApplicationData,
    Introduction, MemberHint, ConfirmationRequest, Confirmation,
)  # fmt: skip  # items grouped by line
"""Kinds of messages in the order of their codes. New kinds go to the end."""
PROTOCOL = 3
"""The newest protocol that this version speaks. This version speaks all older protocols, too."""
MEMBERS_PROTOCOL = 2
"""The protocol that introduced MEMBERS entries."""
SINCE: dict[type[Message], int] = {Introduction: 1, MemberHint: MEMBERS_PROTOCOL, ConfirmationRequest: 3, Confirmation: 3}
"""The protocol that introduced each kind of message. Kinds of protocol 0 are left out."""
GREETING_CODE = 1
_BY_CODE = {code: _Layout(code, kind) for code, kind in enumerate(_KINDS, GREETING_CODE + 1)}
_BY_KIND: dict[type[Message], _Layout] = {layout.kind: layout for layout in _BY_CODE.values()}
_GREETING = struct.Struct("<BQBQIB")
_FOUNDER = struct.Struct("<QB")
FOUNDERS_MAX = 64
DIGEST_BYTES_MAX = 128


def encode(message: Message) -> bytes:
    """The bytes of one message; the frame around them gives the length."""
    layout = _BY_KIND.get(type(message))
    if layout is not None and not layout.has_tail:
        return layout.fixed.pack(layout.code, *message)
    if isinstance(message, Greeting):
        head = message.source, message.state, message.echo, message.versions, len(message.founders)
        parts = [_GREETING.pack(GREETING_CODE, *head)]
        for node, incarnation in message.founders:
            name = node.encode()
            parts.append(_FOUNDER.pack(incarnation, len(name)) + name)
        return b"".join(parts)
    assert layout is not None
    return layout.fixed.pack(layout.code, *message[:-1]) + message[-1]  # type: ignore[operator]  # has_tail: the last field is bytes


def decode(data: bytes) -> Message:
    """Decode ``data``. Raises MalformedError with the reason."""
    if not data:
        raise MalformedError("an empty message")
    layout = _BY_CODE.get(data[0])
    if layout is None:
        if data[0] == GREETING_CODE:
            return _decode_greeting(data)
        raise MalformedError(f"unknown message code {data[0]}")
    size = layout.fixed.size
    if len(data) < size or (len(data) > size and not layout.has_tail):
        raise MalformedError(f"{layout.kind.__name__} of {len(data)} bytes")
    if layout.only_numbers:
        return layout.kind._make(layout.numbers.unpack(data))
    values: list[object] = list(layout.numbers.unpack_from(data))
    for position in layout.switches:
        if values[position] not in (0, 1):
            raise MalformedError(f"{layout.kind.__name__}: a boolean field is {values[position]}")
        values[position] = values[position] == 1
    if layout.has_tail:
        values.append(data[size:])
    message: Message = layout.kind._make(values)
    if isinstance(message, DigestReport) and len(message.digest) > DIGEST_BYTES_MAX:
        raise MalformedError(f"a digest of {len(message.digest)} bytes")
    return message


def _decode_greeting(data: bytes) -> Greeting:
    try:
        _, source, state, echo, versions, count = _GREETING.unpack_from(data)
        offset, founders = _GREETING.size, []
        for _ in range(count):
            incarnation, length = _FOUNDER.unpack_from(data, offset)
            offset += _FOUNDER.size + length
            founders.append((data[offset - length : offset].decode(), incarnation))
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedError(f"greeting: {error}") from None
    if offset != len(data) or state > 2 or count > FOUNDERS_MAX or len(dict(founders)) != count:
        raise MalformedError("greeting: wrong length, state or founders")
    return Greeting(source, state, tuple(founders), echo, versions)
