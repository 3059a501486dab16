"""The views of a node: state for metrics, tests and the invariants of the simulator, and reports for operators."""

from collections import Counter
from collections.abc import Mapping

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.digests import Digests
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.group import Group
from replicated_namesrv.raft.heartbeat_confirmations import HeartbeatConfirmations
from replicated_namesrv.raft.identity import MEMBER, STATES, Identity
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.members import Kind, Members, RaftMember, rows_of
from replicated_namesrv.raft.membership import Membership
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import HELD_MAX, Outbox
from replicated_namesrv.raft.proposals import Proposals
from replicated_namesrv.raft.pysyncobj_core import Core
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.read_index import ReadIndex
from replicated_namesrv.raft.replication import Replication
from replicated_namesrv.raft.snapshot_receiving import RECEIVED_SYNCS_MAX, SnapshotReceiving
from replicated_namesrv.raft.snapshot_taking import SnapshotTaking
from replicated_namesrv.raft.snapshots import SnapshotStore
from replicated_namesrv.raft.stall import Stall
from replicated_namesrv.raft.standing import PeerMemories
from replicated_namesrv.raft.syncs import Syncs


class NodeViews:
    """The read-only side of ``RaftNode``, which sets these attributes."""

    node_id: str
    cluster_id: str
    config: RaftConfig
    defences: Defences
    context: NodeContext
    identity: Identity
    configuration: Configuration
    core: Core
    log: Log
    snapshots: SnapshotStore
    memories: PeerMemories
    followers: Followers
    membership: Membership
    outbox: Outbox
    syncs: Syncs
    stall: Stall
    leadership: Leadership
    taking: SnapshotTaking
    receiving: SnapshotReceiving
    replication: Replication
    digests: Digests
    reads: ReadIndex
    confirmations: HeartbeatConfirmations
    proposals: Proposals
    group: Group
    counters: Counter[str]
    notes: list[str]
    incarnation: int
    boot: int
    failed: BaseException | None
    stopped: bool
    _role: str
    _log_entries_max: int
    _log_buffer_bytes_max: int

    # The group

    @property
    def peers(self) -> list[str]:
        """Nodes with which this one exchanges messages now (``group.py``). A new list after each change."""
        return self.context.peers

    @property
    def members(self) -> list[str]:
        """Names of the members, as applied; of the configured nodes before this node has a configuration."""
        return sorted(self.configuration.applied) or self.context.configured

    @property
    def member_table(self) -> Members:
        """The members, as applied. In a static cluster their addresses are empty."""
        return self.configuration.applied_members

    def lease_valid(self) -> bool:
        """Whether this node may answer reads of its applied state now without asking other nodes."""
        return (
            not self.stopped
            and self.config.lease_reads
            and not self.reads_refused
            and self.core.applied_index >= self.core.commit_index
            and self.reads.lease_valid()
        )

    def _least_version(self) -> str:
        """The member with the oldest command version, as far as known."""
        return min(self.members, key=self.membership.command_version)

    @property
    def command_version(self) -> int:
        """The newest version of commands that every member is known to apply; 0 while one has not greeted since our start."""
        return self.membership.command_version(self._least_version())

    # State, for status, metrics and invariants

    @property
    def role(self) -> str:
        """leader, candidate, follower, learner, observer or removed."""
        if self.identity.removed_at:
            return "removed"
        member = self.configuration.applied_members.get(self.node_id, RaftMember())
        if member.kind is Kind.OBSERVER:
            return "observer"
        promoted = self.membership.voters.get(self.node_id) == self.incarnation or not self.defences.incarnations
        return "learner" if self._role == "follower" and not promoted else self._role

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader_id(self) -> str | None:
        """The leader of the current term, if it is known."""
        return self.leadership.leader_of(self.core.term)

    @property
    def commit_index(self) -> int:
        return self.core.commit_index

    @property
    def applied_index(self) -> int:
        """Index of the last entry applied to the state machine."""
        return self.core.applied_index

    @property
    def first_index(self) -> int:
        """Oldest entry still in memory."""
        return self.log.first_index

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def durable_index(self) -> int:
        return self.log.durable_index

    @property
    def voters(self) -> Mapping[str, int]:
        """Node -> incarnation that may vote; empty before the cluster is formed."""
        return self.membership.voters

    @property
    def founders(self) -> Mapping[str, int]:
        """Node -> incarnation of the founders of the cluster; empty before it is formed."""
        return self.identity.founders if self.identity.state == MEMBER else {}

    def remembered_records(self, peer: str, incarnation: int) -> int:
        """How many records the log of this incarnation of ``peer`` had, as far as this node knows."""
        return self.memories.memory(peer, incarnation).number

    def why_writes_are_refused(self) -> str | None:
        """Why this running node accepts no proposals: it was removed, its disk is stalled, or no majority agrees on a digest."""
        if self.identity.removed_at:
            return self.group.removed
        if self.stall.stalled:
            return f"the disk of this node has not finished a sync for more than {self.config.sync_stall_ms} ms"
        return self.digests.dissent if self.digests.mismatch_index else None

    @property
    def writes_refused(self) -> str | None:
        return self.why_writes_are_refused()

    def why_reads_are_refused(self) -> str | None:
        """Why this node confirms no reads: it was removed, or no majority agrees on a digest. None: it confirms reads."""
        if self.identity.removed_at:
            return self.group.removed
        return self.digests.dissent if self.digests.mismatch_index and self.defences.dissent_fences_reads else None

    @property
    def reads_refused(self) -> str | None:
        return self.why_reads_are_refused()

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, None if it is not in memory."""
        return self.log.term_at(index)

    def entry_at(self, index: int) -> bytes | None:
        """Payload of the entry at ``index``, None if it is not in memory."""
        if index <= self.log.base_index or self.log.term_at(index) is None:
            return None
        return self.log.entries(index, 1)[0][0]

    @property
    def unsynced_seconds(self) -> float:
        """How long the oldest write to the log has waited for the disk."""
        return self.stall.age(self.context.now())

    @property
    def disk_problem(self) -> str | None:
        """The disk's problem, if a sync has not ended in time."""
        return self.stall.problem(self.context.now())

    # Reports

    def memory(self) -> dict[str, Bounded]:
        """Memory that this node uses besides the state machine, with the bounds. Takes microseconds."""
        return {
            "log_entries": (len(self.log), self._log_entries_max),
            "log_buffer_bytes": (self.log.buffered_bytes, self._log_buffer_bytes_max),
            "held_messages": (self.outbox.held, HELD_MAX),
            "pending_syncs": (len(self.syncs), 2 + RECEIVED_SYNCS_MAX),
            **self.replication.memory(),
            **self.proposals.memory(),
            **self.reads.memory(),
            **self.confirmations.memory(),
            **self.digests.memory(),
        }

    def status(self) -> dict[str, object]:
        """State and counters for operators and metrics, JSON-able."""
        membership, snapshot = self.membership, self.snapshots.current
        problem = membership.problem or (str(self.failed) if self.failed else None)
        return {
            "node": self.node_id,
            "cluster": self.cluster_id,
            "members": self.members,
            "role": self.role,
            "term": self.term,
            "leader": self.leader_id,
            "state": STATES[self.identity.state],
            "problem": problem or self.stall.problem(self.context.now()) or self.writes_refused,
            "incarnation": self.incarnation,
            "boot": self.boot,
            "voters": dict(self.voters),
            "member_rows": rows_of(self.member_table),
            "members_in_log": not self.configuration.is_static,
            "removed_at": self.identity.removed_at,
            "command_version": self.config.command_version,
            "command_version_of_all": self.command_version,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "first_index": self.first_index,
            "last_index": self.last_index,
            "durable_index": self.durable_index,
            "unsynced_ms": round(self.unsynced_seconds * 1000, 3),
            "log_bytes": self.log.file_bytes,
            "snapshot_index": snapshot.last_index if snapshot else 0,
            "snapshot_bytes": snapshot.size if snapshot else 0,
            "snapshots_taken": self.taking.taken,
            "snapshot_problem": self.taking.problem,
            "snapshots_installed": self.receiving.installed,
            "snapshot_running": self.taking.running,
            "pending_proposals": self.proposals.count,
            "pending_reads": self.reads.count,
            "digests_compared": self.digests.compared,
            "digest_mismatches": self.digests.mismatches,
            "lease_valid": self.lease_valid(),
            "peers": {peer: membership.status_of(peer) for peer in self.peers},
            "followers": self._followers_status() if self.core.is_leader else {},
            "counters": dict(self.counters),
            "notes": list(self.notes),
        }

    def _followers_status(self) -> dict[str, dict[str, object]]:
        return {
            p.peer: {
                "connected": p.connected,
                "state": p.state,
                "match_index": p.match,
                "next_index": p.next,
                "inflight_bytes": p.inflight_bytes,
                "votes": self.membership.has_place(p.peer),
            }
            for p in self.followers.progress.values()
        }
