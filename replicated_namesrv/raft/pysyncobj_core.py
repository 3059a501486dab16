"""PySyncObj's part in this Raft, and the only module that imports pysyncobj.

PySyncObj decides term, vote and role transitions, vote counting, the no-op of a new leader, the consistency check, append, the
commit rule, apply order, stepping down without a quorum, when to compact, and the reset of the log by a snapshot. ``Core`` turns
its dictionaries into calls: the guard (``RaftNode``) decides which messages reach PySyncObj and which of its answers are sent.
``TOUCHED`` lists the private members of PySyncObj that are used. Only this module uses them. ``RELIED_UPON`` lists the methods
whose source a test compares with that of the pinned version, so that another version is detected.
"""

import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import FAIL_REASON, SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from replicated_namesrv.raft.entry_log import PLACEHOLDER, Entry, Log
from replicated_namesrv.raft.raft_errors import CorruptionError, InvariantError

PINNED_VERSION = "0.3.17"
if library.VERSION != PINNED_VERSION:
    raise ImportError(
        f"this Raft was verified with pysyncobj {PINNED_VERSION}; found {library.VERSION}: install the pinned version"
    )

TOUCHED = {
    "SyncObj.__generateRaftTimeout": "overridden: returns infinity, the guard holds the election timer",
    "SyncObj.__sendAppendEntries": "overridden: the guard paces replication",
    "SyncObj.__doApplyCommand": "overridden: no pickle, never raises",
    "SyncObj.__raftElectionDeadline": "written: starts an election",
    "SyncObj.__newAppendEntriesTime": "written: when the next heartbeat is due",
    "SyncObj.__lastResponseTime": "kept: that an index is on a follower's disk is no contact with it now",
    "SyncObj.__raftMatchIndex": "written: what a lost disk acknowledged counts no longer",
    "SyncObj.__raftState": "read, without the call of ``_isLeader``",
    "SyncObj.__raftCurrentTerm": "read, without the call of its property",
    "SyncObj.__raftCommitIndex": "read, without the call of its property",
    "SyncObj.__raftLastApplied": "read, without the call of its property",
    "SyncObj.__deleteEntriesFrom": "called: removes uncommitted entries of a node that rejoins",
    "SyncObj.__doChangeCluster": "called: adds or removes a node that is counted",
    "SyncObj.__serializer": "written: our snapshot store in place of fork, gzip and pickle",
    "SyncObj.__loadDumpFile": "called when opening a snapshot; it swallows exceptions, so its result is checked",
    "SyncObj._poller": "replaced: there are no sockets in it",
    "SyncObj._applyCommand": "called: proposes",
    "SyncObj._checkCommandsToApply": "called: appends what was proposed",
    "syncobj.createJournal": "wrapped: returns a Log unchanged",
    "syncobj.monotonicTime": "replaced: the clock of the node being driven",
}
RELIED_UPON = (
    "__init__",
    "doTick",
    "_onTick",
    "_applyCommand",
    "_checkCommandsToApply",
    "_isLeader",
    "transferLeadership",
    "forceLogCompaction",
    "raftLastApplied",
    "raftCommitIndex",
    "raftCurrentTerm",
    "_SyncObj__applyLogEntries",
    "_SyncObj__onMessageReceived",
    "_SyncObj__onNodeConnected",
    "_SyncObj__onNodeDisconnected",
    "_SyncObj__sendNextNodeIdx",
    "_SyncObj__getCurrentLogIndex",
    "_SyncObj__getCurrentLogTerm",
    "_SyncObj__getEntries",
    "_SyncObj__deleteEntriesFrom",
    "_SyncObj__deleteEntriesTo",
    "_SyncObj__onBecomeLeader",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_SyncObj__onLeaderChanged",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__tryLogCompaction",
    "_SyncObj__loadDumpFile",
    "_SyncObj__doChangeCluster",
)

NEVER_SECONDS = 1e9
ROLES = ("follower", "candidate", "leader")
LEADER = ROLES.index("leader")
"""PySyncObj's number for the state of a leader."""
_REGULAR = 0
"""First byte of a command that PySyncObj applies."""
_FAIL_REASONS = {value: name for name, value in vars(FAIL_REASON).items() if name.isupper()}

_driven = threading.local()
"""The attribute ``now`` is the time of the node that this thread currently drives."""


def _driven_now() -> float:
    now: float = _driven.now()
    return now


_create_journal = library.createJournal
library.createJournal = lambda file: _create_journal(file) if file is None or isinstance(file, str) else file
library.monotonicTime = _driven_now


class Guard(Protocol):
    """Events that Core reports to its owner. Each is called from inside a call of Core."""

    def on_vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None: ...

    def on_vote_granted(self, peer: str, term: int) -> None: ...

    def on_append_answer(self, peer: str, success: bool, next_index: int) -> None: ...

    def on_timeout_now(self, peer: str, term: int) -> None: ...

    def on_role(self, role: str) -> None: ...

    def on_heartbeat_due(self) -> None: ...

    def on_apply(self, index: int, payload: bytes) -> None: ...

    def on_compaction_due(self, previous: Entry, last: Entry) -> None: ...

    def compaction_done(self) -> int | None:
        """Index up to which entries may be dropped, once after each snapshot taken; None if there is nothing to report."""

    def compaction_running(self) -> bool: ...


class _PeerNode(Node):
    """PySyncObj keeps nodes in sets: the hash is the position, so that their order never depends on PYTHONHASHSEED."""

    def __init__(self, name: str, position: int) -> None:
        super().__init__(name)
        self.position = position

    def __hash__(self) -> int:
        return self.position


class _NoPoller:
    def poll(self, timeout: float) -> None:
        pass


class _GuardedTransport(Transport):
    def __init__(self, guard: Guard) -> None:
        super().__init__(None, None, [])
        self._guard = guard

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        kind = message["type"]
        if kind == "next_node_idx":
            self._guard.on_append_answer(node.id, message["success"], message["next_node_idx"])
        elif kind == "request_vote":
            self._guard.on_vote_request(node.id, message["term"], message["last_log_index"], message["last_log_term"])
        elif kind == "response_vote":
            self._guard.on_vote_granted(node.id, message["term"])
        elif kind == "timeout_now":
            self._guard.on_timeout_now(node.id, message["term"])
        else:
            raise InvariantError(f"PySyncObj sent {kind!r}, which the guard should have prevented")
        return True


class _SnapshotBridge:
    """Replaces pysyncobj.serializer.Serializer in PySyncObj."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.installed: tuple[tuple[int, int], tuple[int, int]] | None = None
        """(index, term) of the last two entries that the current snapshot covers."""

    def serialize(self, data: tuple[Any, Entry, Entry, Any], identity: int) -> None:
        self._guard.on_compaction_due(data[2], data[1])

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802 - the name is PySyncObj's
        if self._guard.compaction_running():
            return SERIALIZER_STATE.SERIALIZING, None
        done = self._guard.compaction_done()
        return (SERIALIZER_STATE.NOT_SERIALIZING, None) if done is None else (SERIALIZER_STATE.SUCCESS, done)

    def setTransmissionData(self, data: object) -> bool:  # noqa: N802 - the name is PySyncObj's
        return True

    def deserialize(self) -> tuple[None, Entry, Entry, list[Node]]:
        assert self.installed is not None
        previous, last = self.installed
        return None, (PLACEHOLDER, *last), (PLACEHOLDER, *previous), []


class _Raft(SyncObj):
    """SyncObj with the overrides named in TOUCHED."""

    def __init__(self, guard: Guard, node: Node, others: list[Node], conf: SyncObjConf, transport: Transport) -> None:
        self._guard = guard
        super().__init__(node, others, conf, transport=transport)
        self._poller = _NoPoller()

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802 - the name is PySyncObj's
        return float("inf")

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 - the name is PySyncObj's
        self._SyncObj__newAppendEntriesTime = _driven_now() + self.conf.appendEntriesPeriod
        self._guard.on_heartbeat_due()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802 - the name is PySyncObj's
        self._guard.on_apply(self.raftLastApplied + 1, command)

    def start_election(self) -> None:
        self._SyncObj__raftElectionDeadline = float("-inf")
        self.doTick(0.0)
        self._SyncObj__raftElectionDeadline = float("inf")

    def answered_at(self, node: Node) -> float:
        return self._SyncObj__lastResponseTime.get(node, float("-inf"))

    def set_answered_at(self, node: Node, time: float) -> None:
        self._SyncObj__lastResponseTime[node] = time

    def change_cluster(self, change: str, node: Node) -> None:
        if not self._SyncObj__doChangeCluster((change, node.id, node)):
            raise InvariantError(f"PySyncObj refused to {change} {node.id}")

    def forget(self, node: Node) -> None:
        self._SyncObj__raftMatchIndex[node] = 0

    def cut_from(self, index: int) -> None:
        self._SyncObj__deleteEntriesFrom(index)

    def use_serializer(self, bridge: _SnapshotBridge) -> None:
        self._SyncObj__serializer = bridge

    def load_snapshot(self) -> None:
        self._SyncObj__loadDumpFile(clearJournal=False)


class Core:
    """PySyncObj behind method calls. ``now`` is the clock that it reads; the log is the journal that it writes."""

    def __init__(
        self,
        node: str,
        members: list[str],
        guard: Guard,
        log: Log,
        now: Callable[[], float],
        heartbeat_seconds: float,
        quorum_seconds: float,
        compact_entries: int,
    ) -> None:
        """``quorum_seconds``: a leader steps down after this long without answers from a majority."""
        self._now = now
        self._log = log
        self._guard = guard
        self._node_id = node
        self._nodes = {name: _PeerNode(name, position) for position, name in enumerate(members)}
        self._counted = set(members) - {node}
        """The other nodes whose votes and acknowledgements PySyncObj counts."""
        self._transport = _GuardedTransport(guard)
        self._bridge = _SnapshotBridge(guard)
        _driven.now = now
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            commandsWaitLeader=False,
            commandsQueueSize=0,
            appendEntriesPeriod=heartbeat_seconds,
            raftMinTimeout=NEVER_SECONDS,
            raftMaxTimeout=2 * NEVER_SECONDS,
            connectionTimeout=3 * NEVER_SECONDS,
            leaderFallbackTimeout=quorum_seconds,
            logCompactionMinEntries=compact_entries,
            logCompactionMinTime=NEVER_SECONDS,
            journalFile=log,
            dynamicMembershipChange=False,
            onStateChanged=lambda _, new: guard.on_role(ROLES[new]),
        )
        self._raft = _Raft(guard, self._nodes[node], [self._nodes[m] for m in members if m != node], conf, self._transport)
        self._raft.use_serializer(self._bridge)

    def _node(self, name: str) -> _PeerNode:
        if name not in self._nodes:
            self._nodes[name] = _PeerNode(name, len(self._nodes))
        return self._nodes[name]

    def set_voters(self, voters: Collection[str]) -> list[str]:
        """Count the votes, matches and answers of these nodes from now on. Returns the nodes that were not counted before."""
        _driven.now = self._now
        wanted = set(voters) - {self._node_id}
        added = sorted(wanted - self._counted)
        for name in sorted(self._counted - wanted):
            self._raft.change_cluster("rem", self._node(name))
        for name in added:
            self._raft.change_cluster("add", self._node(name))
        self._counted = wanted
        return added

    # State. Each message reads it several times, so the properties read PySyncObj's attributes, not its properties.

    @property
    def is_leader(self) -> bool:
        return self._raft._SyncObj__raftState == LEADER

    @property
    def term(self) -> int:
        return self._raft._SyncObj__raftCurrentTerm

    @property
    def commit_index(self) -> int:
        return self._raft._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._raft._SyncObj__raftLastApplied

    # Events

    def connected(self, peer: str) -> None:
        self._transport._onNodeConnected(self._node(peer))

    def disconnected(self, peer: str) -> None:
        self._transport._onNodeDisconnected(self._node(peer))

    def tick(self) -> None:
        """Commit, apply, step down, send heartbeats, compact: everything that is due."""
        _driven.now = self._now
        self._raft.doTick(0.0)

    def start_election(self) -> None:
        """Become candidate of the next term."""
        _driven.now = self._now
        self._raft.start_election()

    def propose(self, payload: bytes) -> int:
        """Append an entry. Returns its index. Only on a leader."""
        _driven.now = self._now
        expected = self._log.last_index + 1
        self._raft._applyCommand(payload, None)
        while self._log.last_index < expected:  # the method returns early if the process was paused meanwhile
            self._raft._checkCommandsToApply()
        if self._log.last_index != expected or not self.is_leader:
            raise InvariantError(f"a proposal for index {expected} was not appended there")
        return expected

    def set_quorum_seconds(self, seconds: float) -> None:
        """From now on, step down after ``seconds`` without answers from a majority."""
        self._raft.conf.leaderFallbackTimeout = seconds

    def step_down(self) -> None:
        """Step down in this term in the library's own way, as if no majority had answered. A group of one stays leader."""
        seconds, self._raft.conf.leaderFallbackTimeout = self._raft.conf.leaderFallbackTimeout, float("-inf")
        self.tick()
        self._raft.conf.leaderFallbackTimeout = seconds

    def cut_uncommitted(self, term: int) -> None:
        """Remove from the log the first entry after the commit index that is of ``term`` or an earlier one, and all after it.
        Only for a node that does not lead."""
        for index in range(self.commit_index + 1, self._log.last_index + 1):
            if (self._log.term_at(index) or 0) <= term:
                self._raft.cut_from(index)
                return

    def force_compaction(self) -> None:
        self._raft.forceLogCompaction()

    def transfer_leadership(self, peer: str) -> None:
        """Sends TimeoutNow (through the guard) if ``peer`` has the whole log."""
        self._raft.transferLeadership(self._node(peer))

    def _receive(self, peer: str, message: dict[str, Any]) -> None:
        _driven.now = self._now
        self._transport._onMessageReceived(self._node(peer), message)

    def vote_request(self, peer: str, term: int, last_index: int, last_term: int) -> None:
        self._receive(peer, {"type": "request_vote", "term": term, "last_log_index": last_index, "last_log_term": last_term})

    def observe_term(self, peer: str, term: int) -> None:
        """Adopt a newer term in the library's own way: by a vote request that cannot be granted."""
        if term > self.term:
            self.vote_request(peer, term, 0, -1)

    def vote_granted(self, peer: str, term: int) -> None:
        self._receive(peer, {"type": "response_vote", "term": term})

    def append(
        self, peer: str, term: int, commit_index: int, previous_index: int, previous_term: int, entries: list[Entry]
    ) -> None:
        """AppendEntries; PySyncObj answers through ``on_append_answer``."""
        self._receive(
            peer,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit_index,
                "entries": entries,
                "prevLogIdx": previous_index,
                "prevLogTerm": previous_term,
            },
        )

    def leader_contact_without_entries(self, peer: str, term: int) -> None:
        """The leader sent a message without entries: adopt its term, and follow it."""
        self._receive(peer, {"type": "append_entries", "term": term, "commit_index": self.commit_index, "serialized": None})

    def acknowledged(self, peer: str, index: int) -> None:
        """``peer`` has everything up to ``index`` on disk. This does not show that it answers now; see ``follower_contact``."""
        node = self._node(peer)
        answered_at = self._raft.answered_at(node)
        self._receive(peer, {"type": "next_node_idx", "reset": False, "success": True, "next_node_idx": index + 1})
        self._raft.set_answered_at(node, answered_at)

    def follower_contact(self, peer: str) -> None:
        """``peer`` answered in this term; counts for the quorum."""
        self._receive(peer, {"type": "next_node_idx", "reset": False, "success": False, "next_node_idx": 0})

    def forget(self, peer: str) -> None:
        self._raft.forget(self._node(peer))

    # Snapshots

    def load_snapshot(self, previous: tuple[int, int], last: tuple[int, int]) -> None:
        """Continue from a snapshot when the node opens its files. The last two entries that it covers have these (index, term).
        The state machine has been restored, and the log begins there.
        """
        _driven.now = self._now
        self._bridge.installed = previous, last
        self._raft.load_snapshot()
        if self.applied_index != last[0] or (self._log.first_index, self._log.base_index) != (previous[0], last[0]):
            raise CorruptionError(
                f"the snapshot that ends at {last[0]} does not fit the log, which begins at {self._log.first_index}"
            )

    def install_snapshot(self, peer: str, term: int, previous: tuple[int, int], last: tuple[int, int]) -> None:
        """A received snapshot is durable and restored: reset the log to begin there."""
        self._bridge.installed = previous, last
        self._receive(peer, {"type": "append_entries", "term": term, "commit_index": last[0], "serialized": (b"", True, True)})
        if (self.applied_index, self.commit_index, self._log.last_index) != (last[0],) * 3:
            raise InvariantError(f"the snapshot that ends at {last[0]} was not installed")


class _PlainTransport(Transport):
    def __init__(self, send: Callable[[str, Any], None]) -> None:
        super().__init__(None, None, [])
        self._send = send

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._send(node.id, message)
        return True


class PlainSyncObj(SyncObj):
    """Unmodified PySyncObj for comparison in the simulator. Only clock, randomness, sockets and pickle are replaced."""

    def __init__(
        self,
        node: str,
        members: list[str],
        journal: object,
        now: Callable[[], float],
        random: Callable[[], float],
        send: Callable[[str, Any], None],
        apply: Callable[[bytes], object],
    ) -> None:
        self._now, self._random, self._apply = now, random, apply
        self._peers = {name: _PeerNode(name, position) for position, name in enumerate(members)}
        self._sockets = _PlainTransport(send)
        self.role = "follower"
        _driven.now = now
        conf = SyncObjConf(
            autoTick=False,
            journalFile=journal,
            logCompactionMinEntries=1 << 60,
            logCompactionMinTime=NEVER_SECONDS,
            onStateChanged=self._role_changed,
        )
        others = [self._peers[name] for name in members if name != node]
        super().__init__(self._peers[node], others, conf, transport=self._sockets)
        self._poller = _NoPoller()

    def _role_changed(self, _: int, new: int) -> None:
        self.role = ROLES[new]

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802 - the name is PySyncObj's
        shortest, longest = self.conf.raftMinTimeout, self.conf.raftMaxTimeout
        return shortest + (longest - shortest) * self._random()

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:  # noqa: N802 - the name is PySyncObj's
        return self._apply(command[1:]) if command[0] == _REGULAR else None

    @property
    def leader_id(self) -> str | None:
        """Name of the leader that this node follows."""
        leader = self._getLeader()
        return None if leader is None else leader.id

    def connected(self, peer: str) -> None:
        self._sockets._onNodeConnected(self._peers[peer])

    def disconnected(self, peer: str) -> None:
        self._sockets._onNodeDisconnected(self._peers[peer])

    def received(self, peer: str, message: object) -> None:
        _driven.now = self._now
        self._sockets._onMessageReceived(self._peers[peer], message)

    def tick(self) -> None:
        _driven.now = self._now
        self.doTick(0.0)

    def propose(self, command: bytes, ended: Callable[[Any, str], None]) -> None:
        """``ended`` gets the result and the name of a FAIL_REASON."""
        _driven.now = self._now
        self._applyCommand(command, lambda result, reason: ended(result, _FAIL_REASONS[reason]), _REGULAR)
