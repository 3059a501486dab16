"""Decides when this node takes a snapshot, and how much of the log is dropped after it.

PySyncObj starts a snapshot when the log has ``compact_entries`` entries; this module starts one when ``compact_bytes`` were
written. The log is then dropped up to ``compact_margin_entries`` before the end of the snapshot. But while a leader sends a
snapshot to a follower, it keeps the log after that snapshot. Otherwise the follower would need another snapshot as soon as it has
this one, again and again while writes continue.

    follower to which a snapshot, or the entries after it, are sent    the log after the snapshot is
    has answered in the last ``transfer_silence_ms``                   kept from the end of its snapshot, then from its match
    lags by at most ``compact_margin_entries``                         no longer kept
    silent for ``transfer_silence_ms``                                 dropped, the transfer is given up
    lags by more than ``transfer_log_*_max``                           dropped, the transfer is given up

On a disk that is nearly full, a check every ``SHORT_DISK_PAUSE_S`` starts a snapshot if ``SHORT_DISK_BYTES`` were written since
the last one, or if anything was written and the log is longer than ``SHORT_DISK_BYTES``. Segments are then closed early and one
snapshot is kept, so that data deleted from the state is soon deleted from the disk, too.

A follower whose transfer was given up is sent the newest snapshot; while it is still silent, no log is kept for it.
"""

from typing import Protocol

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.interfaces import RaftState
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.progress import REPLICATE, SNAPSHOT, Progress
from replicated_namesrv.raft.snapshot_taking import SnapshotTaking
from replicated_namesrv.raft.snapshots import SnapshotStore
from replicated_namesrv.raft.stall import Stall

SHORT_DISK_BYTES, SHORT_DISK_SEGMENT_BYTES, SHORT_DISK_PAUSE_S = 4 << 20, 256 << 10, 2.0
"""Size of the log, size of a segment, and pause between checks on a disk that is nearly full. Each snapshot costs a copy of the
state, so the pause is not shorter."""


class CompactionCore(RaftState, Protocol):
    """The methods of the consensus core that compaction needs."""

    def force_compaction(self) -> None: ...


class Compaction:
    """The compaction of one node's log."""

    def __init__(
        self,
        context: NodeContext,
        core: CompactionCore,
        log: Log,
        followers: Followers,
        snapshots: SnapshotStore,
        taking: SnapshotTaking,
        stall: Stall,
    ) -> None:
        self._context, self._config, self._defences, self._now = context, context.config, context.defences, context.now
        self._core, self._log, self._followers = core, log, followers
        self._snapshots, self._taking, self._stall = snapshots, taking, stall
        self._bytes = 0
        """``written_bytes`` of the log at the last snapshot."""
        self._target = 0
        """Index up to which entries may be dropped because our newest snapshot covers them."""
        self._forced = False
        self._disk_is_short = False
        self._look_at = 0.0
        self._silence = self._config.transfer_silence_ms / 1000

    # Taking a snapshot

    def tick(self) -> None:
        """Start a snapshot if enough bytes were written and the disk is not stalled: on a stalled disk, it could not end."""
        if self._taking.running or self._stall.stalled:
            return
        written = self._log.written_bytes - self._bytes
        if written > self._config.compact_bytes or (self._disk_is_short and self._is_due_on_short_disk(written)):
            self._bytes = self._log.written_bytes
            self._forced = True
            self._core.force_compaction()

    def _is_due_on_short_disk(self, written: int) -> bool:
        if self._now() < self._look_at:
            return False
        self._look_at = self._now() + SHORT_DISK_PAUSE_S
        self._log.release(self._snapshots.oldest_index())
        return written > SHORT_DISK_BYTES or (written > 0 and self._log.file_bytes > SHORT_DISK_BYTES)

    def disk_is_short(self, short: bool) -> None:
        """Note whether the disk is nearly full. If so, the log is compacted early, and one snapshot is kept instead of two."""
        self._disk_is_short = short
        self._snapshots.kept = 1 if short else 2
        self._log.segment_bytes = (
            min(self._config.segment_bytes, SHORT_DISK_SEGMENT_BYTES) if short else self._config.segment_bytes
        )

    def wanted(self, last_index: int) -> bool:
        """Whether to take a snapshot up to ``last_index``, the last entry applied. Called when PySyncObj finds the log too long,
        or a snapshot was forced.
        """
        current, config = self._snapshots.current, self._config
        if self._stall.stalled:
            return False
        if current is not None:
            fresh = last_index - current.last_index
            if fresh <= 0:
                return False  # nothing was applied since the last snapshot, so another one would free nothing
            is_kept = self._target > self._log.first_index
            if is_kept and not self._forced and fresh < config.compact_entries - config.compact_margin_entries:
                return False  # the log is long only because it is kept for a follower, so a snapshot would free nothing
        self._bytes, self._forced = self._log.written_bytes, False
        return True

    # Dropping the log

    def dropped(self) -> int | None:
        """Index up to which entries are dropped now; None: no entries are dropped now."""
        done = self._taking.take_done()
        if done is not None:
            self._target = max(self._target, done)
        first = self._log.first_index
        if self._target <= first:
            return None
        index = self._needed_from() if self._core.is_leader else self._target
        if index < self._target and index - first < self._config.compact_entries // 8:
            return None  # wait until the piece is large, because each drop costs a pass over the log
        return index if index > first else None

    def _needed_from(self) -> int:
        """Index up to which entries are not needed: the target, or a lower index if a follower needs earlier entries."""
        index = self._target
        for progress in self._followers.progress.values():
            if progress.kept_from is None:
                continue
            if progress.state == REPLICATE and progress.match >= self._target:
                progress.drop_log()
            elif self._is_overdue(progress, progress.kept_from):
                self._give_up(progress)
            else:
                index = min(index, progress.kept_from)
        return index

    def _is_overdue(self, progress: Progress, kept_from: int) -> bool:
        config = self._config
        return (
            progress.silent_seconds(self._now()) > self._silence
            or self._log.last_index - kept_from > config.transfer_log_entries_max
            or self._log.written_bytes - progress.kept_bytes > config.transfer_log_bytes_max
        )

    def _give_up(self, progress: Progress) -> None:
        self._context.counters["transfers_given_up"] += 1
        self._context.note(f"{progress.peer} lags too far behind the snapshot that it was sent: the log is no longer kept for it")
        progress.drop_log()
        if progress.state == SNAPSHOT:
            progress.become_snapshot()

    def transfer_began(self, progress: Progress, log_index: int) -> None:
        """A snapshot that ends at ``log_index`` is being sent to a follower."""
        if self._now() - progress.acknowledged_at <= self._silence:
            self.keep_log(progress, log_index)

    def keep_log(self, progress: Progress, log_index: int) -> bool:
        """Keep the entries after ``log_index`` for a follower that answers. False if some are already dropped."""
        if self._defences.transfer_log:
            if log_index < self._log.base_index:
                return False
            progress.keep_log(log_index, self._now(), self._log.written_bytes)
        return True

    def log_sent(self, progress: Progress) -> None:
        """A follower for which the log is kept has acknowledged entries and may have caught up."""
        if progress.match >= self._log.last_index - self._config.compact_margin_entries:
            progress.drop_log()
