"""What a node tells about itself to operators and metrics."""

from typing import TYPE_CHECKING

from replicated_namesrv.raft.membership import STATES
from replicated_namesrv.raft.messages import ApplicationData

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode


def status_of(node: "RaftNode") -> dict[str, object]:
    """Everything, JSON-able."""
    log, membership = node.log, node.membership
    followers = {
        p.peer: {
            "connected": p.connected,
            "state": p.state,
            "match_index": p.match,
            "next_index": p.next,
            "inflight_bytes": p.inflight_bytes,
            "votes": membership.counts_now(p.peer),
        }
        for p in node.replication.progress.values()
    }
    peers = {
        peer: {
            "protocol": membership.protocol(peer),
            "standing": membership.standing_now(peer).name.lower(),
            "accepts_us": membership.may_send(peer, ApplicationData),
        }
        for peer in node.peers
    }
    return {
        "node": node.node_id,
        "cluster": node.cluster_id,
        "members": node.members,
        "role": node.role,
        "term": node.term,
        "leader": node.leader_id,
        "state": STATES[membership.identity.state],
        "problem": membership.problem or (str(node.failed) if node.failed else None) or node.disk_problem or node.writes_refused,
        "incarnation": node.incarnation,
        "boot": node.boot,
        "voters": dict(node.voters),
        "command_version": node.config.command_version,
        "command_version_of_all": node.command_version,
        "commit_index": node.commit_index,
        "applied_index": node.applied_index,
        "first_index": node.first_index,
        "last_index": node.last_index,
        "durable_index": node.durable_index,
        "unsynced_ms": round(node.unsynced_seconds * 1000, 3),
        "log_bytes": log.file_bytes,
        "snapshot_index": node.snapshots.current.last_index if node.snapshots.current else 0,
        "snapshot_bytes": node.snapshots.current.size if node.snapshots.current else 0,
        "snapshots_taken": node.taking.taken,
        "snapshot_problem": node.taking.problem,
        "snapshots_installed": node.receiving.installed,
        "snapshot_running": node.taking.running,
        "pending_proposals": node.proposals.count,
        "pending_reads": node.reads.count,
        "digests_compared": node.digests.compared,
        "digest_mismatches": node.digests.mismatches,
        "lease_valid": node.lease_valid(),
        "peers": peers,
        "followers": followers if node.core.is_leader else {},
        "counters": dict(node.counters),
        "notes": list(node.notes),
    }
