"""Interfaces of RaftNode: the protocols that it uses, and the results that it returns.

RaftNode does no IO and reads no clock: time, randomness, messages and files come through these protocols. The shipped driver
provides real sockets and files, the simulator simulated ones; the node cannot distinguish them.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from random import Random
from typing import NamedTuple, Protocol

from replicated_namesrv.raft.raft_messages import Message

FOREVER, NEVER = float("inf"), float("-inf")
"""A time after, and a time before, every value of ``Environment.now``."""


class Work(IntEnum):
    """What a driver has to do after a message. A greater value includes the smaller ones."""

    SEND = 0
    """Flush the messages that the node has sent, if any."""
    READS = 1
    """Call ``tick_reads``."""
    TICK = 2
    """Call ``tick``."""


class Environment(Protocol):
    """Clock, randomness, network and disk completion, as seen by one node."""

    rng: Random
    """Source of incarnation numbers and other identifiers, which must not repeat on a copied machine. With a fixed seed a run can
    be repeated."""
    jitter: Random
    """Source of election times. They are drawn often and may be guessed, so a fast source is enough. This source may be
    ``rng``."""

    def now(self) -> float:
        """Seconds of a clock that never goes back. Its rate may differ between nodes by ``RaftConfig.clock_drift_max``."""

    def send(self, peer: str, message: Message) -> None:
        """Send over this node's own connection to ``peer``. Without a connection the message is dropped.

        Messages over one connection arrive in order or not at all. Called from inside a node entry point: do not call back.
        """

    def request_sync(self, token: int, names: Sequence[str], directory: bool) -> None:
        """Start ``Storage.sync(names, directory)``; afterwards call ``node.on_synced(token)`` or, on any error,
        ``node.on_sync_failed(token, error)``, never from inside this call.

        It must cover at least the bytes appended, files created and renames made before this call. A few requests (one for the
        log, the others for snapshots) may be outstanding at a time and may complete in any order.
        """


class Storage(Protocol):
    """A flat directory of files that belong to one node. Names are plain file names.

    After a power loss these are guaranteed: bytes of a file up to its last ``sync``; existence, absence and name of a file as
    of the last ``sync`` with ``directory``. Later changes may be there, partly there or not at all. Every call may raise
    OSError (disk full, failing device); the node then stops. After a failed ``sync`` its bytes may be readable and yet never
    become durable, even if later syncs of that file succeed. Only a new file helps.
    """

    def list_names(self) -> list[str]:
        """Names of all files, sorted."""

    def size(self, name: str) -> int:
        """Size in bytes; FileNotFoundError if there is none."""

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes from ``offset``, at most ``size`` of them; FileNotFoundError if there is no such file."""

    def append(self, name: str, data: bytes) -> None:
        """Write at the end, creating the file if there is none. Visible to ``read`` at once, durable after ``sync``."""

    def rename(self, old: str, new: str) -> None:
        """Rename ``old`` to ``new``, atomically replacing an existing file."""

    def remove(self, name: str) -> None:
        """Delete the file; no error if there is none."""

    def sync(self, names: Sequence[str], directory: bool) -> None:
        """Make the named files durable and then, if ``directory``, all names. May be called from another thread than the other
        methods. A file that was removed or renamed since the request is skipped; FileNotFoundError if another one is missing."""

    def close(self) -> None:
        """Release handles; no implied sync."""


class Restoration(Protocol):
    """A state being built beside the current one."""

    def feed(self, chunk: bytes) -> None:
        """Process the next chunk as ``StateMachine.snapshot`` yielded it; one of more than 1 MiB comes in parts. At most a few
        milliseconds."""

    def finish(self) -> None:
        """Replace the current state by the new one, at once. Not called if the installation is given up."""


class StateMachine(Protocol):
    """The replicated state. A pure function of the commands applied, in order."""

    def apply(self, command: bytes) -> object:
        """Change the state. Must not raise (except UnknownCommandError) and must depend only on the state and the command. The
        result goes to the proposer on this node and is never sent anywhere.

        An exception counts as the result on every node (``ApplyFailed``). If the cause is the machine and not the command
        (MemoryError, RecursionError, OSError, ImportError, SystemError), the exception stops the node, because other nodes would
        not raise it.
        """

    def snapshot(self) -> Iterator[bytes]:
        """The state at the time of this call, in chunks of at most ``RaftConfig.snapshot_slice_bytes``. ``apply`` continues
        while the iterator is consumed, so yield from immutable values or from a copy. Each step takes at most a few
        milliseconds."""

    def restore(self) -> Restoration:
        """Begin to build another state; the current one stays in use until ``finish``."""

    def digest(self) -> bytes:
        """At most 64 bytes that are equal on two nodes if their states are equal. A difference that does not change the digest is
        not detected. Cheap: called every ``RaftConfig.digest_interval_entries`` entries and when idle."""


class RaftState(Protocol):
    """The state of the consensus core that the parts of a node read."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def applied_index(self) -> int: ...


class Voters(Protocol):
    """The nodes whose votes and acknowledgements count, by the newest configuration in this node's log."""

    @property
    def is_voter(self) -> bool:
        """Whether the votes and acknowledgements of this node count."""

    @property
    def is_silent(self) -> bool:
        """Whether this process has started so recently that it must not vote, acknowledge or campaign yet."""

    @property
    def may_propose(self) -> bool:
        """Whether the proposals of this node are applied."""

    def counts(self, peer: str, incarnation: int) -> bool:
        """Whether votes and acknowledgements of this incarnation of ``peer`` count."""

    def counts_now(self, peer: str) -> bool:
        """Whether votes and acknowledgements of the current incarnation of ``peer`` count."""


class Committed(NamedTuple):
    """The proposal is in the log of a majority and was applied here, exactly once."""

    result: object
    log_index: int
    term: int


class Rejected(NamedTuple):
    """The proposal was certainly not applied and never will be, or the read was not confirmed. A retry is safe."""

    reason: str
    leader: str | None = None
    """The leader that this node knows; None if it knows none."""
    is_passing: bool = False
    """The cause ends by itself within seconds. So a repeated request may succeed, here or at the next leader."""


class Indeterminate(NamedTuple):
    """The proposal may have been applied, may still be applied, or may never be."""

    reason: str


class ReadReady(NamedTuple):
    """The local state includes every write that was acknowledged anywhere before the read was requested."""

    log_index: int
    term: int


class ApplyFailed(NamedTuple):
    """Result of a command whose ``apply`` raised an exception, which its contract forbids. ``error``: type of the exception."""

    error: str


Outcome = Committed | Rejected | Indeterminate
ReadOutcome = ReadReady | Rejected


class Observer:
    """Events of a node. Override the ones you need. Called inside entry points: do not call back."""

    def waiting(self, reason: str) -> None:
        """The node cannot open its log yet."""

    def role_changed(self, role: str, term: int) -> None:
        """``role``: leader, candidate, follower, learner, observer or removed."""

    def voted(self, candidate: str, term: int) -> None:
        """This node votes for ``candidate`` in ``term``."""

    def leader_changed(self, leader: str | None, term: int) -> None:
        """The leader that this node knows. None: it knows none."""

    def applied(self, index: int, term: int, payload: bytes) -> None:
        """An entry was applied; ``payload`` is the whole entry, equal on every node."""

    def truncated(self, index: int, commit_index: int) -> None:
        """The log was cut; ``index`` is the first entry removed."""

    def forgot(self, index: int) -> None:
        """As ``truncated``, after this node gave up its incarnation and with it its acknowledgements. So the removed entries may
        be committed."""

    def restored(self, index: int) -> None:
        """The state was replaced by a snapshot that ends at ``index``."""

    def refused(self, peer: str, reason: str) -> None:
        """A message of ``peer`` was dropped because no correct node would send it."""

    def received(self, peer: str, data: bytes) -> None:
        """``peer`` sent ``data`` with ``RaftNode.tell``."""

    def members_changed(self) -> None:
        """An entry that changes the members was applied, or a snapshot replaced them."""

    def failed(self, error: BaseException) -> None:
        """The node has stopped for good."""
