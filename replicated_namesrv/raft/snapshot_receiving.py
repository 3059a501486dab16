"""Receiving the leader's snapshot, in small steps between other work.

Chunks are appended to a temporary file. After a reconnection the transfer continues. Then, with the complete file:

1. The file is synced.
2. A second state is built from it, chunk by chunk. The old state stays in use.
3. The file is renamed, and the directory is synced.
4. At the leader's next message, the log is reset to begin after the snapshot, and the new state replaces the old one. Both happen
   in one step.
"""

from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import RaftState, Restoration, StateMachine, Storage
from replicated_namesrv.raft.members import Members
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_messages import AppendReply, SnapshotAck, SnapshotChunk
from replicated_namesrv.raft.sessions import Sessions
from replicated_namesrv.raft.snapshots import RECEIVING, Reader, Snapshot, SnapshotStore, UnknownFormatError, is_disk_full
from replicated_namesrv.raft.syncs import Syncs

RECEIVED_SYNCS_MAX = 2
"""Maximum number of syncs of received snapshots in progress, including syncs of transfers that were given up. Another transfer
waits, because these syncs would accumulate on a disk that does not answer."""


class InstallingCore(RaftState, Protocol):
    """The methods of the consensus core that the installation of a snapshot needs."""

    def leader_contact_without_entries(self, peer: str, term: int) -> None: ...

    def install_snapshot(self, peer: str, term: int, previous: tuple[int, int], last: tuple[int, int]) -> None: ...


class SnapshotReceiving:
    """Receives and installs the leader's snapshot."""

    def __init__(
        self,
        context: NodeContext,
        core: InstallingCore,
        log: Log,
        storage: Storage,
        syncs: Syncs,
        state_machine: StateMachine,
        sessions: Sessions,
        configuration: Configuration,
        snapshots: SnapshotStore,
        elections: Elections,
        outbox: Outbox,
        publishing: Callable[[int, Members | None], None],
        installed: Callable[[int], None],
    ) -> None:
        """``publishing``: called with the last index and the members of a complete snapshot before it gets its name.
        ``installed``: called with the last index of a snapshot that has replaced the state."""
        self._context, self._defences = context, context.defences
        self._core, self._log, self._storage, self._syncs = core, log, storage, syncs
        self._state_machine, self._sessions, self._configuration = state_machine, sessions, configuration
        self._snapshots, self._elections, self._outbox = snapshots, elections, outbox
        self._on_publishing, self._on_installed = publishing, installed
        self._identity: tuple[int, int, int, int] | None = None
        """(index, term, checksum, size) of the file being received; chunks of another file start a new transfer."""
        self._unreadable: tuple[int, int, int, int] | None = None
        """The file of a newer version whose chunks are ignored; None: there is none."""
        self._received = 0
        self._generation = 0
        """Number of the transfer. With it, the end of a sync for a transfer that was given up is recognised and ignored."""
        self._syncing = 0
        """Number of syncs in progress, over all transfers."""
        self._reader: Reader | None = None
        self._restoration: Restoration | None = None
        self._ready: Snapshot | None = None
        self.installed = 0

    @property
    def wants_tick(self) -> bool:
        return self._restoration is not None and self._reader is not None

    def on_chunk(self, peer: str, message: SnapshotChunk) -> None:
        if not self._elections.accept_leader(peer, message.term):
            return
        self._core.leader_contact_without_entries(peer, message.term)
        self._elections.leader_contact(peer)
        index, term = message.snapshot_index, message.snapshot_term
        if index <= self._core.commit_index or self._log.term_at(index) == term:
            # Our log has everything that the snapshot covers: acknowledge that once it is on disk.
            self._give_up()
            self._outbox.send_when_durable(
                self._log.number, peer, AppendReply(*self._outbox.address(peer), message.term, message.sequence, True, index)
            )
            return
        if self._ready is not None and self._ready.last_index >= index:
            self._install(peer, message)
            return
        self._receive(message)
        self._outbox.send(peer, SnapshotAck(*self._outbox.address(peer), message.term, message.sequence, index, self._received))

    def _give_up(self) -> None:
        self._identity = self._reader = self._restoration = self._ready = None
        self._received = 0
        self._generation += 1

    def _receive(self, message: SnapshotChunk) -> None:
        identity = message.snapshot_index, message.snapshot_term, message.checksum, message.total
        if identity != self._identity:
            self._give_up()
            if self._syncing >= RECEIVED_SYNCS_MAX:
                return
            self._identity = identity
            self._storage.remove(RECEIVING)
        if identity == self._unreadable:
            return
        if message.offset != self._received or not message.data or self._received + len(message.data) > message.total:
            return
        try:
            self._storage.append(RECEIVING, message.data)
        except OSError as error:
            self._disk_full(error)
            return
        self._received += len(message.data)
        if self._received == message.total:
            generation = self._generation
            self._request_sync([RECEIVING], False, lambda: self._synced(generation), self._not_synced)

    def _request_sync(
        self, names: list[str], directory: bool, then: Callable[[], None], if_full: Callable[[OSError], None] | None = None
    ) -> None:
        if not self._defences.snapshot_before_reset:
            then()
            return
        self._syncing += 1

        def ended() -> None:
            self._syncing -= 1
            then()

        self._syncs.request(names, directory, ended, if_full)

    def _not_synced(self, error: OSError) -> None:
        """Drop the present file, even if the sync was for an earlier transfer. Syncs open files by name, so it may be the present
        file that has lost bytes, and no later sync would report it."""
        self._syncing -= 1
        self._disk_full(error)

    def _synced(self, generation: int) -> None:
        if generation != self._generation:
            return
        try:
            self._reader = Reader(self._storage, RECEIVING)
        except UnknownFormatError as error:
            self._refuse(error)
            return
        except ValueError as error:
            self._damaged(error)
            return
        self._restoration = self._state_machine.restore()

    def _refuse(self, error: ValueError) -> None:
        """A newer version wrote the snapshot, so fetching it again would not help. Wait for another one."""
        self._context.counters["unreadable_snapshots"] += 1
        self._context.note(f"the leader's snapshot cannot be read by this version: {error}; upgrade this node")
        self._unreadable = self._identity
        self._give_up()

    def _disk_full(self, error: OSError) -> None:
        """Free the space that the transfer took, and ask again from the start: there may be room later. Raises ``error`` if the
        disk is not full."""
        if not is_disk_full(error):
            raise error
        self._context.counters["unwritable_snapshots"] += 1
        self._context.note(f"received snapshot dropped: {error}")
        self._give_up()
        self._storage.remove(RECEIVING)

    def _damaged(self, error: ValueError) -> None:
        """The file differs from the leader's: start again from the beginning."""
        self._context.counters["damaged_snapshots"] += 1
        self._context.note(f"received snapshot dropped: {error}")
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
        if (*metadata.last, checksum) != self._identity[:3] or metadata.cluster != self._context.cluster_id:
            self._damaged(ValueError("it is not the one that was announced"))
            return
        self._reader = None
        self._on_publishing(metadata.last[0], metadata.members)
        try:
            snapshot = self._snapshots.publish(RECEIVING, self._received, checksum, metadata)
        except OSError as error:
            self._disk_full(error)
            return
        generation = self._generation
        self._request_sync([], True, lambda: self._named(generation, snapshot))

    def _named(self, generation: int, snapshot: Snapshot) -> None:
        self._snapshots.adopt(snapshot)
        if generation == self._generation:
            self._ready = snapshot

    def _install(self, peer: str, message: SnapshotChunk) -> None:
        snapshot, restoration = self._ready, self._restoration
        assert snapshot is not None
        assert restoration is not None
        self._give_up()
        metadata = snapshot.metadata
        restoration.finish()
        self._sessions.load(metadata.sessions)
        self._core.install_snapshot(peer, message.term, metadata.previous, metadata.last)
        self._configuration.replace(metadata.voters, metadata.members)
        self._on_installed(snapshot.last_index)
        self.installed += 1
        self._outbox.send_when_durable(
            self._log.number,
            peer,
            AppendReply(*self._outbox.address(peer), message.term, message.sequence, True, snapshot.last_index),
        )
