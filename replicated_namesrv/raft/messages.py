"""Messages between nodes: immutable values, and one strict binary encoding of each.

A message carries the incarnation of its sender and of the node it is meant for. Messages of or for another life of a node
are dropped on receipt, so neither a vote nor an acknowledgement survives the disk it was written on.
"""

from typing import NamedTuple


class Greeting(NamedTuple):
    """First message over a connection, both ways: who is there and what its disk knows."""

    source: int
    """Incarnation of the sender: a number drawn when its data directory was created."""
    state: int
    """0 blank, 1 promised to form a cluster with ``founders``, 2 member."""
    founders: tuple[tuple[str, int], ...]
    """(node, incarnation) of every founder, sorted; empty while blank."""
    echo: int
    """Incarnation the sender knows of the receiver, 0 for none: greet again until it is right."""


class Append(NamedTuple):
    """AppendEntries (Raft, 5.3); without entries a heartbeat."""

    source: int
    destination: int
    term: int
    sequence: int
    """Ascending per leader; the reply repeats it."""
    previous_index: int
    previous_term: int
    commit_index: int
    entries: bytes
    """Encoded entries, see ``pack_entries``; shared by all followers."""


class AppendReply(NamedTuple):
    source: int
    destination: int
    term: int
    sequence: int
    success: bool
    log_index: int
    """Success: the last index known durable and equal to the leader's. Conflict: where to try next."""


class PreVote(NamedTuple):
    """Would you vote for me in ``term``? Changes nothing at the receiver (dissertation, 9.6)."""

    source: int
    destination: int
    term: int
    last_index: int
    last_term: int


class PreVoteReply(NamedTuple):
    source: int
    destination: int
    term: int
    """The term asked for if granted, else the refuser's current term."""
    granted: bool


class Vote(NamedTuple):
    """RequestVote (Raft, 5.2)."""

    source: int
    destination: int
    term: int
    last_index: int
    last_term: int
    forced: bool
    """Part of a leadership transfer: stickiness does not apply."""


class VoteReply(NamedTuple):
    """A vote granted; a refusal is silence or HigherTerm."""

    source: int
    destination: int
    term: int


class HigherTerm(NamedTuple):
    """Your term is over: mine is ``term``."""

    source: int
    destination: int
    term: int


class TimeoutNow(NamedTuple):
    """Campaign at once: the leader hands over (dissertation, 3.10)."""

    source: int
    destination: int
    term: int


class SnapshotChunk(NamedTuple):
    """A piece of the leader's snapshot file; also a heartbeat."""

    source: int
    destination: int
    term: int
    sequence: int
    snapshot_index: int
    snapshot_term: int
    checksum: int
    """Of the whole file: chunks of different files never mix."""
    offset: int
    total: int
    data: bytes


class SnapshotAck(NamedTuple):
    """How much of the snapshot has arrived: the next chunk starts at ``offset``."""

    source: int
    destination: int
    term: int
    sequence: int
    snapshot_index: int
    offset: int


class ReadProbe(NamedTuple):
    """Am I still the leader of ``term``? (read index, dissertation 6.4)"""

    source: int
    destination: int
    term: int
    sequence: int


class ReadAck(NamedTuple):
    source: int
    destination: int
    term: int
    sequence: int


class ReadRequest(NamedTuple):
    """A follower asks the leader for a read index, for all its reads that wait."""

    source: int
    destination: int
    sequence: int


class ReadReply(NamedTuple):
    source: int
    destination: int
    sequence: int
    log_index: int
    """0: not confirmed."""


class Forward(NamedTuple):
    """Proposals of a node that is not the leader."""

    source: int
    destination: int
    term: int
    sequence: int
    """Number of this forward; the reply repeats it."""
    proposals: bytes
    """One packed group, see ``proposals.py``."""


class ForwardReply(NamedTuple):
    source: int
    destination: int
    sequence: int
    log_index: int
    """Where the proposals went in the log; 0: surely nowhere."""
    term: int


class DigestReport(NamedTuple):
    """Digest of the sender's state after applying ``index``."""

    source: int
    destination: int
    log_index: int
    digest: bytes


Message = (
    Greeting
    | Append
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
)
