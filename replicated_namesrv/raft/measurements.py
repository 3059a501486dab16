"""Counts and durations of one node, for metrics. Parts write them; nothing in Raft reads them.

Times come from the caller, so the simulator measures simulated time. All numbers only increase.
"""

from replicated_namesrv.histogram import Histogram

FSYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COMMIT_BOUNDS_S = FSYNC_BOUNDS_S
SNAPSHOT_BOUNDS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
READ_BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)

TIMEOUT, TRANSFER = "timeout", "transfer"
NEWER_TERM, NO_MAJORITY = "newer_term", "no_majority"
COMMITTED, REJECTED, UNKNOWN = "committed", "rejected", "unknown"


class Measurements:
    """Counts since the process started."""

    def __init__(self) -> None:
        self.leader_changes = 0
        """How often a new leader became known to this node."""
        self._leader: str | None = None
        self._term_led: int | None = None
        self.role_since = 0.0
        """When the role last changed."""
        self.elections = {TIMEOUT: 0, TRANSFER: 0}
        """Number of times that this node became a candidate, by cause: no contact with a leader, or a request of a leader that
        transfers leadership."""
        self.step_downs = {NEWER_TERM: 0, NO_MAJORITY: 0}
        """Number of times that this node's leadership ended, by cause. NO_MAJORITY: a majority did not answer, or the disk of
        this leader hung."""
        self.proposals = {COMMITTED: 0, REJECTED: 0, UNKNOWN: 0}
        """Number of proposals made on this node, by outcome."""
        self.commit_seconds = Histogram(COMMIT_BOUNDS_S)
        """Time from a proposal on this node until it was applied on this node."""
        self.fsync_seconds = Histogram(FSYNC_BOUNDS_S)
        """Time from the request for a sync of the log until the node learned that the sync had ended."""
        self.snapshot_seconds = Histogram(SNAPSHOT_BOUNDS_S)
        """Time from the beginning of a snapshot that this node takes until it was on disk and had been read back."""
        self.read_batches = Histogram(READ_BATCH_BOUNDS)
        """Number of reads that one round (leader) or one request (follower) confirms. In a round, the request of a follower
        counts as one read."""
        self.lease_renewals = 0

    def leader_known(self, leader: str | None) -> None:
        """The leader known to this node has changed. None: unknown."""
        if leader is not None and leader != self._leader:
            self._leader = leader
            self.leader_changes += 1

    def role_changed(self, role: str, term: int, now: float) -> None:
        """This node has another role in ``term``."""
        if self._term_led is not None:
            self.step_downs[NEWER_TERM if term > self._term_led else NO_MAJORITY] += 1
        self._term_led = term if role == "leader" else None
        self.role_since = now
