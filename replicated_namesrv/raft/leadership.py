"""Who leads, when it was last in contact, until when it may be silent, and until when a lease holds.

Pure: every time is an argument, randomness too.

A large command is received, written and applied in one piece, by the leader and by everybody else. As soon as one is seen
coming, a grace period extends the election time-out, and the time after which a leader steps down for lack of a majority: an
election would only have the next leader do the same work. Votes are not affected, and so neither is the lease.
"""

from replicated_namesrv.raft.interfaces import NEVER
from replicated_namesrv.raft.raft_config import RaftConfig


class Leadership:
    """What one node knows of the leader; on a leader, its lease."""

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
        """A restarted node cannot know when it last heard a leader: the start counts as contact."""
        self._grace_until, self._grace = NEVER, 0.0
        self._large_entry = 0, 0
        """(index, size) of the newest entry that cannot be worked on in slices."""
        self.election_deadline = 0.0
        """Without contact until then, the node campaigns."""
        self._lease = (0, 0.0)
        """(term led, until when the lease holds at least)."""
        self._lease_ended_term = 0
        """Term in which this leader handed over: no lease in it any more."""

    # The leader

    def leader_of(self, term: int) -> str | None:
        """The leader of ``term``, None if it is not known."""
        leader, known_term = self._leader
        return leader if known_term == term else None

    def recognise(self, leader: str, term: int) -> bool:
        """``leader`` leads ``term``; whether that is new."""
        if self._leader == (leader, term):
            return False
        self._leader = leader, term
        return True

    def stepped_down(self) -> None:
        """This node led and does not any more."""
        self._leader = None, 0

    # Contact and the election time-out

    def contact(self, now: float, commit_index: int) -> None:
        """A message of the current leader arrived."""
        self._last_contact = now
        if self._large_entry[0] > commit_index:
            self.extend_election_timeout(self._large_entry[1], now)  # at any moment the leader may begin to apply it

    def in_contact(self, now: float) -> bool:
        """Whether a leader was in contact within the least election time (dissertation, 4.2.3)."""
        return now - self._last_contact < self._min

    def restart_timer(self, now: float, share: float) -> None:
        """Campaign after an election time from now. ``share``: 0 to 1, where between the least and the greatest time."""
        self.election_deadline = now + self._min + self._spread * share + self._remaining_grace(now)

    # Grace for large commands

    def is_large(self, size: int) -> bool:
        """Whether ``size`` bytes are worked on in one piece."""
        return size > self._large_bytes

    def extend_election_timeout(self, size: int, now: float, log_index: int = 0) -> None:
        """``size`` bytes, a large number, are under way: nodes that work on them may be silent meanwhile. ``log_index``: where
        they are in the log, 0 if they are not."""
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
        """Seconds without answers of a majority after which a leader steps down: longer until the usual time has passed since
        the grace period, and while a large command is not committed."""
        if now >= self._grace_until + self._min and self._large_entry[0] <= commit_index:
            return self._min
        return self._min + self._grace

    # The lease

    def lease_holds(self, term: int, now: float) -> bool:
        """Whether the lease of ``term`` is known to hold: later acknowledgements can only prolong it."""
        return self._lease[0] == term and now < self._lease[1]

    def renew_lease(self, term: int, acknowledged_at: float) -> None:
        """A majority has acknowledged messages of ``term`` that were sent at ``acknowledged_at`` or later: none of them votes
        for another within the least election time, shortened by the declared drift of clocks."""
        self._lease = term, acknowledged_at + self._lease_seconds

    def end_lease(self, term: int) -> None:
        """This leader hands over: there is no lease in ``term`` any more."""
        self._lease_ended_term = term

    def lease_ended(self, term: int) -> bool:
        return self._lease_ended_term == term
