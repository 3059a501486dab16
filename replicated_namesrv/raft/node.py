"""RaftNode: one member of the group, without IO.

Events go in (messages, ticks, completed syncs), messages and sync requests come out through ``Environment``. The same code
runs in production and in the simulator.
"""

from collections.abc import Callable, Mapping, Sequence

from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.interfaces import Environment, Observer, Outcome, ReadOutcome, StateMachine, Storage
from replicated_namesrv.raft.messages import Message


class RaftNode:
    """Opens ``storage`` (recovering from whatever a crash left), and is then driven by its entry points, one at a time.

    Raises CorruptionError, IdentityError or OSError if the directory cannot be used.
    """

    def __init__(
        self,
        node_id: str,
        members: Sequence[str],
        cluster_id: str,
        environment: Environment,
        storage: Storage,
        state_machine: StateMachine,
        config: RaftConfig | None = None,
        observer: Observer | None = None,
    ) -> None:
        """``members``: all configured nodes, this one included. One member makes a group of its own."""
        raise NotImplementedError

    # Events

    def on_connected(self, peer: str) -> None:
        """This node's own connection to ``peer`` was established: messages sent from now on can arrive."""

    def on_disconnected(self, peer: str) -> None:
        """That connection is gone."""

    def on_message(self, peer: str, message: Message) -> None:
        """``message`` arrived over a connection that ``peer`` opened (and authenticated)."""

    def on_synced(self, token: int) -> None:
        """The request of this token is durable."""

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        """It is not, and never will be: the node stops."""

    def tick(self) -> None:
        """Do what is due. Call it after each batch of events and at ``next_wakeup``."""

    def next_wakeup(self) -> float:
        """Time of ``Environment.now`` at which ``tick`` is due at the latest; not later than now if there is work at hand."""
        raise NotImplementedError

    def stop(self) -> None:
        """End every proposal and read; nothing happens afterwards. Idempotent."""

    # Callers

    def propose(self, command: bytes, done: Callable[[Outcome], None], timeout_ms: int | None = None) -> None:
        """Have ``command`` applied once on every node. ``done`` is called exactly once, perhaps before this returns.

        A node that is not the leader forwards it. Nothing happens before the next ``tick``, which packs what waits.
        """

    def read_index(self, done: Callable[[ReadOutcome], None], timeout_ms: int | None = None) -> None:
        """Wait until the local state holds all that was acknowledged before this call. On any node."""

    def lease_read(self, done: Callable[[ReadOutcome], None], timeout_ms: int | None = None) -> None:
        """As ``read_index``; answered at once on a leader whose lease holds, if ``RaftConfig.lease_reads``."""

    def lease_valid(self) -> bool:
        """Whether this node may answer reads of its applied state at this moment without asking anybody."""
        raise NotImplementedError

    def transfer_leadership(self, peer: str | None, done: Callable[[bool], None]) -> None:
        """Hand over to ``peer`` (None: the furthest). ``done(True)`` once this node has stepped down for a new leader,
        ``done(False)`` if it is not the leader or nothing came of it within the greatest election time."""

    # State, for status, metrics and invariants

    role: str
    """leader, candidate, follower or learner."""
    term: int
    leader_id: str | None
    commit_index: int
    applied_index: int
    """Applied to the state machine."""
    first_index: int
    """Oldest entry still in memory."""
    last_index: int
    durable_index: int
    incarnation: int
    voters: Mapping[str, int]
    """Node -> incarnation that may vote; empty before the cluster is formed."""
    failed: BaseException | None
    """Why the node stopped by itself."""
    stopped: bool
    writes_refused: str | None
    """Why this node takes no proposals though it runs: no majority of digests."""

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, None if it is not in memory."""
        raise NotImplementedError

    def entry_at(self, index: int) -> bytes | None:
        """Payload of the entry at ``index``, None if it is not in memory."""
        raise NotImplementedError

    def status(self) -> dict[str, object]:
        """Everything an operator or a metric wants, JSON-able."""
        raise NotImplementedError
