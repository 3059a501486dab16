"""The leader of the current term, the last contact with it, the election time-out, and the lease.

Pure: time and randomness are arguments.

A large command is received, written and applied in one piece by every node. While one is in progress, a grace period extends
the election time-out and the time after which a leader steps down for lack of a majority, because a new leader would have to
do the same work. It does not change the time for which a node refuses to vote after contact with a leader. The lease depends on
this time only.
"""

from replicated_namesrv.raft.interfaces import NEVER
from replicated_namesrv.raft.raft_config import RaftConfig


class Leadership:
    """One node's knowledge of the leader and, on a leader, its lease."""

    def __init__(self, config: RaftConfig, now: float) -> None:
        """``now``: the start of the process."""
        self._min = config.election_min_ms / 1000
        self._spread = (config.election_max_ms - config.election_min_ms) / 1000
        self._large_bytes = config.append_bytes_max
        self._grace_bytes_per_second = config.election_grace_bytes_per_second
        self._grace_max = config.election_grace_ms_max / 1000
        drift = 2 * config.clock_drift_max if config.defences.lease_drift else 0.0
        self._lease_seconds = self._min * (1 - drift)
        self._leader: tuple[str | None, int] = (None, 0)
        self._last_contact = now if config.defences.boot_silence else NEVER
        """A restarted node does not know its last contact with a leader, so its start counts as contact."""
        self._grace_until, self._grace = NEVER, 0.0
        self._large_entry = 0, 0
        """(index, size) of the newest entry that cannot be processed in slices."""
        self.election_deadline = 0.0
        """The node campaigns if it has had no contact with a leader by then."""
        self._lease = (0, 0.0)
        """(term, end) of the lease, as far as computed; the lease may be valid for longer."""
        self._lease_ended_term = 0
        """Term in which this leader transferred leadership. In this term it has no lease any more."""

    # The leader

    def leader_of(self, term: int) -> str | None:
        """The leader of ``term``; None if it is unknown."""
        leader, known_term = self._leader
        return leader if known_term == term else None

    def recognise(self, leader: str, term: int) -> bool:
        """``leader`` is the leader of ``term``. Returns whether that is new."""
        if self._leader == (leader, term):
            return False
        self._leader = leader, term
        return True

    def stepped_down(self) -> None:
        """This node has stepped down."""
        self._leader = None, 0

    # Contact and the election time-out

    def contact(self, now: float, commit_index: int) -> None:
        """A message of the current leader arrived."""
        self._last_contact = now
        if self._large_entry[0] > commit_index:
            # the leader may begin to apply the large command at any moment, and is silent meanwhile
            self.extend_election_timeout(self._large_entry[1], now)

    @property
    def last_contact_at(self) -> float:
        """When there was last contact with a leader."""
        return self._last_contact

    def in_contact(self, now: float) -> bool:
        """Whether there was contact with a leader within the minimum election time (dissertation, 4.2.3)."""
        return now - self._last_contact < self._min

    def restart_timer(self, now: float, share: float) -> None:
        """Campaign after an election time from now. ``share``, 0 to 1, selects a time between minimum and maximum."""
        self.election_deadline = now + self._min + self._spread * share
        if now < self._grace_until:
            self.election_deadline += self._remaining_grace(now)

    # Grace for large commands

    def is_large(self, size: int) -> bool:
        """Whether a command of ``size`` bytes is processed in one piece."""
        return size > self._large_bytes

    def extend_election_timeout(self, size: int, now: float, log_index: int = 0) -> None:
        """A large command of ``size`` bytes is in progress, so nodes may be silent while they process it. ``log_index``: its
        index in the log, 0 if it is not in the log."""
        if log_index:
            self._large_entry = log_index, size
        before = self._remaining_grace(now)
        seconds = min(size / self._grace_bytes_per_second, self._grace_max)
        if seconds > before:
            self._grace, self._grace_until = seconds, now + seconds
            self.election_deadline += seconds - before

    def _remaining_grace(self, now: float) -> float:
        return max(0.0, self._grace_until - now)

    def quorum_timeout(self, now: float, commit_index: int) -> float:
        """Seconds without answers of a majority after which a leader steps down. It is longer by the grace time in two cases:
        while a large command is not committed, and until one minimum election time has passed since the end of the grace
        period."""
        if now >= self._grace_until + self._min and self._large_entry[0] <= commit_index:
            return self._min
        return self._min + self._grace

    # The lease

    def lease_holds(self, term: int, now: float) -> bool:
        """Whether the lease of ``term`` is valid. Later acknowledgements can only extend it."""
        return self._lease[0] == term and now < self._lease[1]

    def renew_lease(self, term: int, acknowledged_at: float) -> None:
        """A majority has acknowledged messages of ``term`` that were sent at ``acknowledged_at`` or later. None of these nodes
        votes for another node within the minimum election time, shortened by the declared drift of clocks."""
        self._lease = term, acknowledged_at + self._lease_seconds

    def end_lease(self, term: int) -> None:
        """This leader transfers leadership: ``term`` has no more lease."""
        self._lease_ended_term = term

    def lease_ended(self, term: int) -> bool:
        return self._lease_ended_term == term
