"""Metrics of one Raft node. The catalogue with types, labels and meanings is in ``admin/exposition.py``."""

from collections.abc import Iterator

from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.service import Measurement

ROLES = ("leader", "candidate", "follower", "learner", "observer", "removed")
FAILED_SNAPSHOTS = ("unwritable_snapshots", "unreadable_snapshots", "damaged_snapshots")


def measurements(node: RaftNode) -> Iterator[Measurement]:
    """Everything that is measured on ``node``, which has started."""
    yield from _leadership(node)
    yield from _log(node)
    yield from _peers(node)


def _leadership(node: RaftNode) -> Iterator[Measurement]:
    measured, counters = node.context.measurements, node.counters
    role = node.role
    for name in ROLES:
        yield Measurement("raft_role", int(role == name), (name,))
    yield Measurement("raft_term", node.term)
    yield Measurement("raft_has_leader", int(node.leader_id is not None))
    yield Measurement("raft_leader_changes", measured.leader_changes)
    for cause, count in measured.elections.items():
        yield Measurement("raft_elections", count, (cause,))
    yield Measurement("raft_elections_won", counters["elections_won"])
    yield Measurement("raft_pre_votes", counters["pre_votes"])
    for cause, count in measured.step_downs.items():
        yield Measurement("raft_step_downs", count, (cause,))
    yield Measurement("raft_lease_valid", int(node.lease_valid()))
    yield Measurement("raft_lease_renewals", measured.lease_renewals)
    yield Measurement("raft_read_index_batch_size", measured.read_batches)
    yield Measurement("raft_reads_pending", node.reads.count)


def _log(node: RaftNode) -> Iterator[Measurement]:
    measured, snapshot = node.context.measurements, node.snapshots.current
    yield Measurement("raft_commit_index", node.commit_index)
    yield Measurement("raft_applied_index", node.applied_index)
    yield Measurement("raft_last_index", node.last_index)
    yield Measurement("raft_durable_index", node.durable_index)
    yield Measurement("raft_log_bytes", node.log.file_bytes)
    for outcome, count in measured.proposals.items():
        yield Measurement("raft_proposals", count, (outcome,))
    yield Measurement("raft_proposals_pending", node.proposals.count)
    yield Measurement("raft_fsync_duration_seconds", measured.fsync_seconds)
    yield Measurement("raft_commit_duration_seconds", measured.commit_seconds)
    yield Measurement("raft_disk_stalls", node.counters["disk_stalls"])
    yield Measurement("raft_snapshot_bytes", 0 if snapshot is None else snapshot.size)
    yield Measurement("raft_snapshot_duration_seconds", measured.snapshot_seconds)
    yield Measurement("raft_snapshots_installed", node.receiving.installed)
    yield Measurement("raft_snapshots_failed", sum(node.counters[name] for name in FAILED_SNAPSHOTS))
    yield Measurement("raft_digests_compared", node.digests.compared)
    yield Measurement("raft_digest_mismatches", node.digests.mismatches)
    yield Measurement("raft_digest_dissent", int(node.digests.dissent is not None))


def _peers(node: RaftNode) -> Iterator[Measurement]:
    """Measurements about each peer. A leader knows the replication progress of all followers, and its last contact with each. A
    follower knows only its last contact with the leader."""
    now, leads, leader = node.context.now(), node.core.is_leader, node.leader_id
    for peer, progress in node.followers.progress.items():
        yield Measurement("raft_peer_connected", int(progress.connected), (peer,))
        if leads:
            yield Measurement("raft_peer_match_index", progress.match, (peer,))
            yield Measurement("raft_peer_lag_entries", max(0, node.last_index - progress.match), (peer,))
            contact_at = max(progress.acknowledged_at, node.context.measurements.role_since)
            yield Measurement("raft_peer_last_contact_seconds", now - contact_at, (peer,))
        elif peer == leader:
            yield Measurement("raft_peer_last_contact_seconds", now - node.leadership.last_contact_at, (peer,))
