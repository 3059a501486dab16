"""Detects a stalled disk. A leader with a stalled disk transfers leadership.

A hanging sync is not a failure, so no other part notices it: heartbeats continue, and a majority of other nodes may commit
without this disk. Such a node counts as failed for everything that needs its disk:

| row | disk stalled | role                          | what the node does                                                        |
|-----|--------------|-------------------------------|---------------------------------------------------------------------------|
| D1  | no           | any                           | nothing                                                                   |
| D2  | yes          | follower, learner             | does not campaign and rejects pre-votes, because no vote could be sent    |
| D3  | yes          | leader, follower has its log  | transfers leadership to the follower with the longest log                 |
| D4  | yes          | leader, no transfer succeeds  | steps down; the others elect a leader after an election time              |
| D5  | yes          | leader of a cluster of one    | continues to lead                                                         |

On a stalled disk every leader stops appending, and every node rejects proposals, which are then certainly not applied. The
tests are in ``tests/raft/test_stall.py``, the transcripts are ``tests/golden/raft/disk_hangs_*.txt``.

Proposals that were waiting when the disk stalled go to the next leader, or end as rejected when their time is up. A stalled
follower is harmless: it acknowledges nothing, so the leader sends it one window and then heartbeats. It continues to apply
entries that it has and that a majority without it has committed. In a new term, which is not on its disk, it does not
even answer heartbeats, so the leader sends it no entries.

When the sync ends after all, the node takes part again at once. A sync that fails stops the node (``entry_log.py``).
"""

from replicated_namesrv.raft.interfaces import FOREVER
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.syncs import Syncs

SNAPSHOT_FACTOR = 12
"""A sync of a snapshot writes many megabytes at once, so its limit is this many times the limit for the log."""


class Stall:
    """Watches the syncs of one node."""

    def __init__(self, context: NodeContext, syncs: Syncs) -> None:
        self._context, self._syncs = context, syncs
        self._limit_ms = context.config.sync_stall_ms
        self._limit = self._limit_ms / 1000
        self._log_since: float | None = None
        self._ticked_at = self._ran_since = context.now()
        """Time of the last tick, and time since which ticks have come without delay. Time in which the process itself was stalled
        does not count."""
        self.stalled = False
        """Whether the disk was stalled at the last tick."""

    def log_sync_began(self, now: float) -> None:
        """A sync of the log began."""
        self._log_since = now

    def log_sync_ended(self) -> None:
        """The sync of the log ended."""
        self._log_since = None

    def age(self, now: float) -> float:
        """Seconds that the oldest write to the log has waited for its sync; 0.0 if there is none."""
        return now - self._log_since if self._log_since is not None else 0.0

    def problem(self, now: float) -> str | None:
        """The disk's problem; None if there is none."""
        oldest = self._syncs.oldest_at
        if oldest is None or not self._is_stalled(now):
            return None
        waited_ms = (now - oldest) * 1000
        return f"the disk has not finished a sync that was requested {waited_ms:.0f} ms ago (limit {self._limit_ms} ms)"

    def tick(self, now: float) -> None:
        """Update the judgement of the disk."""
        if now - self._ticked_at > self._limit / 2:
            self._ran_since = now
        self._ticked_at = now
        stalled = self._is_stalled(now)
        if stalled != self.stalled:
            self.stalled = stalled
            if stalled:
                self._context.counters["disk_stalls"] += 1
                self._context.note(f"the disk has not finished a sync for more than {self._limit_ms} ms")

    def _is_stalled(self, now: float) -> bool:
        return now >= self._stalls_at()

    def _stalls_at(self) -> float:
        """When the oldest sync in progress exceeds its limit."""
        oldest = self._syncs.oldest_at
        if oldest is None or not self._context.defences.disk_stall:
            return FOREVER
        stalls_at = max(oldest, self._ran_since) + self._limit * SNAPSHOT_FACTOR
        if self._log_since is not None:
            stalls_at = min(stalls_at, max(self._log_since, self._ran_since) + self._limit)
        return stalls_at

    def next_wakeup(self) -> float:
        """Time of the next tick. While a sync is in progress, ticks are frequent enough to distinguish a stall of this process
        from a stall of the disk. A tick also comes when the sync exceeds its limit."""
        if self._syncs.oldest_at is None:
            return FOREVER
        wake_at = self._ticked_at + self._limit / 4
        return wake_at if self.stalled else min(wake_at, self._stalls_at())
