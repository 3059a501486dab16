"""Snapshots in motion: taking one of our own state, and receiving the leader's, each in small steps between other work.

Taking: the state machine yields the state as of one index; each tick writes one chunk aside, then the file is synced and read
back, a block each tick. If that gives what was written, the file is renamed and the directory synced. Only then PySyncObj may
drop the log that it replaces, and older snapshots are deleted. If it does not, the file is deleted, and another snapshot is
tried after a while: the node goes on with a longer log.

Receiving: chunks are appended to a file aside; after a reconnection the transfer goes on where it was. The complete file is
synced, a second state is built from it chunk by chunk while the old one stays in use, the file is renamed and the directory
synced. Then, on the leader's next message, the log is reset to begin there and the states are swapped, all in one step.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from replicated_namesrv.raft.interfaces import Restoration
from replicated_namesrv.raft.log import Entry
from replicated_namesrv.raft.messages import AppendReply, SnapshotAck, SnapshotChunk
from replicated_namesrv.raft.snapshots import BLOCK, RECEIVING, WRITING, Metadata, Reader, Snapshot, UnknownFormatError, Writer

if TYPE_CHECKING:
    from replicated_namesrv.raft.node import RaftNode


RECEIVED_SYNCS_MAX = 2
"""Syncs of received snapshots under way, those of transfers given up included. Another transfer waits for them: on a disk that
does not answer they would pile up."""
RETRY_SECONDS = 30.0
"""After a snapshot that could not be read back: another one costs as much."""


class SnapshotTaking:
    """One snapshot of our own at a time."""

    def __init__(self, node: "RaftNode") -> None:
        self._node = node
        self._writer: Writer | None = None
        self._chunks: Iterator[bytes] | None = None
        self._reader: Reader | None = None
        """Reads back what was written and synced."""
        self._snapshot: Snapshot | None = None
        self._done: int | None = None
        self._not_before = 0.0
        self.taken = 0
        self.problem: str | None = None
        """Why the last snapshot could not be read back; None: it could."""

    @property
    def running(self) -> bool:
        return self._writer is not None

    @property
    def wants_tick(self) -> bool:
        return self._chunks is not None or self._reader is not None or self._done is not None

    def begin(self, previous: Entry, last: Entry) -> None:
        """The state is exactly that after applying ``last``."""
        node = self._node
        if node.environment.now() < self._not_before:
            return
        metadata = Metadata(
            node.cluster_id, (previous[1], previous[2]), (last[1], last[2]), dict(node.membership.voters), node.sessions.dump()
        )
        self._writer = Writer(node.storage, metadata)
        self._chunks = node.state_machine.snapshot()

    def tick(self) -> None:
        """Write one chunk, or read one back."""
        if self._chunks is not None and self._writer is not None:
            chunk = next(self._chunks, None)
            if chunk is not None:
                self._writer.write(chunk)
                return
            self._chunks = None
            self._writer.finish()
            self._node.request_sync([WRITING], False, self._written)
        elif self._reader is not None:
            self._read_back(self._reader)

    def _written(self) -> None:
        try:
            self._reader = Reader(self._node.storage, WRITING)
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
        self._reader = None
        self.problem = None
        self._snapshot = self._node.snapshots.publish(WRITING, writer.size, writer.checksum, writer.metadata)
        self._node.request_sync([], True, self._named)

    def _give_up(self, error: Exception) -> None:
        node = self._node
        node.counters["unreadable_snapshots"] += 1
        self.problem = f"a snapshot could not be read back after it was written: {error}; the log before it is kept"
        node.note(self.problem)
        node.storage.remove(WRITING)
        self._writer = self._reader = None
        self._not_before = node.environment.now() + RETRY_SECONDS

    def _named(self) -> None:
        assert self._snapshot is not None
        node = self._node
        node.snapshots.adopt(self._snapshot, node.replication.snapshots_in_use())
        node.log.release(node.snapshots.oldest_index())
        self._done = self._snapshot.last_index - node.config.compact_margin_entries
        self._writer = self._snapshot = None
        self.taken += 1

    def take_done(self) -> int | None:
        """Once after each snapshot: the index up to which entries may go."""
        done, self._done = self._done, None
        return done


class SnapshotReceiving:
    """The leader's snapshot on its way to us."""

    def __init__(self, node: "RaftNode") -> None:
        self._node = node
        self._identity: tuple[int, int, int, int] | None = None
        """(index, term, checksum, size) of the file being received; chunks of another start over."""
        self._unreadable: tuple[int, int, int, int] | None = None
        """The file that a newer version wrote; its chunks are ignored."""
        self._received = 0
        self._generation = 0
        """Distinguishes transfers: a sync that completes for one given up is ignored."""
        self._syncing = 0
        """Syncs under way, of whatever transfer."""
        self._reader: Reader | None = None
        self._restoration: Restoration | None = None
        self._ready: Snapshot | None = None
        self.installed = 0

    @property
    def wants_tick(self) -> bool:
        return self._restoration is not None and self._reader is not None

    def on_chunk(self, peer: str, message: SnapshotChunk) -> None:
        node = self._node
        if not node.replication.accept_leader(peer, message.term):
            return
        node.core.leader_alive(peer, message.term)
        node.elections.heard_leader(peer)
        index, term = message.snapshot_index, message.snapshot_term
        if index <= node.core.commit_index or node.log.term_at(index) == term:
            # We have it all: say so, once it is on disk.
            self._give_up()
            node.send_when_durable(node.log.number, peer, AppendReply, message.term, message.sequence, True, index)
            return
        if self._ready is not None and self._ready.last_index >= index:
            self._install(peer, message)
            return
        self._receive(message)
        node.send(peer, SnapshotAck, message.term, message.sequence, index, self._received)

    def _give_up(self) -> None:
        self._identity = self._reader = self._restoration = self._ready = None
        self._received = 0
        self._generation += 1

    def _receive(self, message: SnapshotChunk) -> None:
        node = self._node
        identity = message.snapshot_index, message.snapshot_term, message.checksum, message.total
        if identity != self._identity:
            self._give_up()
            if self._syncing >= RECEIVED_SYNCS_MAX:
                return
            self._identity = identity
            node.storage.remove(RECEIVING)
        if identity == self._unreadable:
            return
        if message.offset != self._received or not message.data or self._received + len(message.data) > message.total:
            return
        node.storage.append(RECEIVING, message.data)
        self._received += len(message.data)
        if self._received == message.total:
            generation = self._generation
            self._request_sync([RECEIVING], False, lambda: self._synced(generation))

    def _request_sync(self, names: list[str], directory: bool, then: Callable[[], None]) -> None:
        if not self._node.defences.snapshot_before_reset:
            then()
            return
        self._syncing += 1

        def ended() -> None:
            self._syncing -= 1
            then()

        self._node.request_sync(names, directory, ended)

    def _synced(self, generation: int) -> None:
        if generation != self._generation:
            return
        try:
            self._reader = Reader(self._node.storage, RECEIVING)
        except UnknownFormatError as error:
            self._refuse(error)
            return
        except ValueError as error:
            self._damaged(error)
            return
        self._restoration = self._node.state_machine.restore()

    def _refuse(self, error: ValueError) -> None:
        """A newer version wrote it: fetching it again would not help. Another snapshot is tried."""
        self._node.counters["unreadable_snapshots"] += 1
        self._node.note(f"the leader's snapshot cannot be read by this version: {error}; upgrade this node")
        self._unreadable = self._identity
        self._give_up()

    def _damaged(self, error: ValueError) -> None:
        """Not what the leader has: ask again from the start."""
        self._node.counters["damaged_snapshots"] += 1
        self._node.note(f"received snapshot dropped: {error}")
        self._give_up()

    def tick(self) -> None:
        """Restore one chunk."""
        if self._reader is None or self._restoration is None or self._ready is not None:
            return
        try:
            chunk = self._reader.next()
        except ValueError as error:
            self._damaged(error)
            return
        if chunk is not None:
            self._restoration.feed(chunk)
            return
        assert self._identity is not None
        metadata, checksum = self._reader.metadata, self._reader.checksum
        if (*metadata.last, checksum) != self._identity[:3] or metadata.cluster != self._node.cluster_id:
            self._damaged(ValueError("it is not the one that was announced"))
            return
        self._reader = None
        snapshot = self._node.snapshots.publish(RECEIVING, self._received, checksum, metadata)
        generation = self._generation
        self._request_sync([], True, lambda: self._named(generation, snapshot))

    def _named(self, generation: int, snapshot: Snapshot) -> None:
        self._node.snapshots.adopt(snapshot)
        if generation == self._generation:
            self._ready = snapshot

    def _install(self, peer: str, message: SnapshotChunk) -> None:
        node, snapshot, restoration = self._node, self._ready, self._restoration
        assert snapshot is not None
        assert restoration is not None
        self._give_up()
        metadata = snapshot.metadata
        restoration.finish()
        node.sessions.load(metadata.sessions)
        node.core.install_snapshot(peer, message.term, metadata.previous, metadata.last)
        node.membership.restored(metadata.voters)
        node.on_restored(snapshot.last_index)
        self.installed += 1
        node.send_when_durable(node.log.number, peer, AppendReply, message.term, message.sequence, True, snapshot.last_index)
