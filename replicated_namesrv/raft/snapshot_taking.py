"""Taking a snapshot of our own state, in small steps between other work.

The state machine yields the state as of one index; each tick writes one chunk to a temporary file. Then the file is synced and
read back, one block in each tick. If the bytes are those that were written, the file is renamed and the directory synced. Only
then may PySyncObj drop the log that the snapshot replaces; older snapshots are then deleted. If the bytes differ, or the disk is
full, the file is deleted, and another snapshot is tried after a pause. Until then the node works with a longer log.
"""

from collections.abc import Callable, Iterator

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.entry_log import Entry, Log
from replicated_namesrv.raft.interfaces import StateMachine, Storage
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.sessions import Sessions
from replicated_namesrv.raft.snapshots import (
    BLOCK,
    WRITING,
    Metadata,
    Reader,
    Snapshot,
    SnapshotStore,
    Writer,
    is_disk_full,
)
from replicated_namesrv.raft.syncs import Syncs

RETRY_SECONDS = 30.0
"""Pause after a snapshot that could not be written or read back, because another attempt costs as much."""


class SnapshotTaking:
    """Takes snapshots of our own state, one at a time."""

    def __init__(
        self,
        context: NodeContext,
        log: Log,
        storage: Storage,
        syncs: Syncs,
        state_machine: StateMachine,
        sessions: Sessions,
        configuration: Configuration,
        snapshots: SnapshotStore,
        in_use: Callable[[], set[str]],
    ) -> None:
        """``in_use``: names of snapshots that are being sent and must stay."""
        self._context, self._config, self._now = context, context.config, context.now
        self._log, self._storage, self._syncs = log, storage, syncs
        self._state_machine, self._sessions, self._configuration = state_machine, sessions, configuration
        self._snapshots, self._in_use = snapshots, in_use
        self._writer: Writer | None = None
        self._chunks: Iterator[bytes] | None = None
        self._reader: Reader | None = None
        """Reads back the file that was written and synced; None at other times."""
        self._snapshot: Snapshot | None = None
        self._done: int | None = None
        self._not_before = self._began_at = 0.0
        self.taken = 0
        self.problem: str | None = None
        """Why the last snapshot could not be written or read back; None: there was no problem."""

    @property
    def running(self) -> bool:
        return self._writer is not None

    @property
    def wants_tick(self) -> bool:
        return self._chunks is not None or self._reader is not None

    @property
    def is_done(self) -> bool:
        """Whether a snapshot has been taken, and the core does not know it yet."""
        return self._done is not None

    def begin(self, previous: Entry, last: Entry) -> None:
        """Begin. The state is exactly that after applying ``last``."""
        if self._now() < self._not_before:
            return
        metadata = Metadata(
            self._context.cluster_id,
            (previous[1], previous[2]),
            (last[1], last[2]),
            dict(self._configuration.applied_voters),
            self._sessions.dump(),
            None if self._configuration.is_static else dict(self._configuration.applied_members),
        )
        try:
            self._writer = Writer(self._storage, metadata)
        except OSError as error:
            self._disk_full(error)
            return
        self._began_at = self._now()
        self._chunks = self._state_machine.snapshot()

    def tick(self) -> None:
        """Write one chunk, or read one back."""
        if self._chunks is not None and self._writer is not None:
            try:
                self._write(self._chunks, self._writer)
            except OSError as error:
                self._disk_full(error)
        elif self._reader is not None:
            self._read_back(self._reader)

    def _write(self, chunks: Iterator[bytes], writer: Writer) -> None:
        chunk = next(chunks, None)
        if chunk is not None:
            writer.write(chunk)
            return
        self._chunks = None
        writer.finish()
        self._syncs.request([WRITING], False, self._written, self._disk_full)

    def _disk_full(self, error: OSError) -> None:
        """Give the snapshot up, which frees its space. Raises ``error`` if the disk is not full."""
        if not is_disk_full(error):
            raise error
        self._context.counters["unwritable_snapshots"] += 1
        self._drop(f"a snapshot could not be written: {error}; the log before it is kept")

    def _written(self) -> None:
        try:
            self._reader = Reader(self._storage, WRITING)
        except (ValueError, OSError) as error:
            self._give_up(error)

    def _read_back(self, reader: Reader) -> None:
        assert self._writer is not None
        writer = self._writer
        try:
            if reader.next() is not None:
                return
            if (reader.metadata, reader.checksum, reader.offset + BLOCK.size) != (writer.metadata, writer.checksum, writer.size):
                raise ValueError("it is whole, but not what was written")
        except (ValueError, OSError) as error:
            self._give_up(error)
            return
        try:
            self._snapshot = self._snapshots.publish(WRITING, writer.size, writer.checksum, writer.metadata)
        except OSError as error:
            self._disk_full(error)
            return
        self._reader = None
        self.problem = None
        self._syncs.request([], True, self._named)

    def _give_up(self, error: Exception) -> None:
        self._context.counters["unreadable_snapshots"] += 1
        self._drop(f"a snapshot could not be read back after it was written: {error}; the log before it is kept")

    def _drop(self, problem: str) -> None:
        self.problem = problem
        self._context.note(problem)
        self._storage.remove(WRITING)
        self._writer = self._reader = self._chunks = None
        self._not_before = self._now() + RETRY_SECONDS

    def _named(self) -> None:
        assert self._snapshot is not None
        self._snapshots.adopt(self._snapshot, self._in_use())
        self._log.release(self._snapshots.oldest_index())
        self._done = self._snapshot.last_index - self._config.compact_margin_entries
        self._writer = self._snapshot = None
        self.taken += 1
        self._context.measurements.snapshot_seconds.observe(self._now() - self._began_at)

    def take_done(self) -> int | None:
        """Once after each snapshot: the index up to which entries may be dropped."""
        done, self._done = self._done, None
        return done
