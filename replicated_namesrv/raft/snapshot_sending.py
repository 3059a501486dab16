"""Sending the leader's snapshot to followers that need entries which the log no longer has."""

from collections.abc import Callable

from replicated_namesrv.raft.compaction import Compaction
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.interfaces import RaftState, Storage
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.progress import SNAPSHOT, Progress, Transfer
from replicated_namesrv.raft.raft_errors import InvariantError
from replicated_namesrv.raft.raft_messages import SnapshotAck, SnapshotChunk
from replicated_namesrv.raft.snapshots import Snapshot, SnapshotStore


class SnapshotSending:
    """Chunks for all followers in state SNAPSHOT."""

    def __init__(
        self,
        context: NodeContext,
        core: RaftState,
        followers: Followers,
        outbox: Outbox,
        compaction: Compaction,
        snapshots: SnapshotStore,
        storage: Storage,
        snapshot_version: Callable[[str], int],
    ) -> None:
        """``snapshot_version``: the newest format of snapshot files that a peer reads."""
        self._context, self._config, self._now = context, context.config, context.now
        self._core, self._followers, self._outbox = core, followers, outbox
        self._compaction, self._snapshots, self._storage = compaction, snapshots, storage
        self._snapshot_version = snapshot_version
        self._unreadable: set[tuple[str, int]] = set()
        """(peer, format) of snapshots that could not be sent. They are remembered so that each is noted only once."""

    def pump(self, progress: Progress, heartbeat: bool) -> None:
        """Send as many chunks as the window allows. If no chunk can be sent, a heartbeat is an empty chunk. The answer to it has
        the follower's offset, which shows losses. It also lets a follower that has everything install the snapshot."""
        config = self._config
        transfer = progress.transfer
        if transfer is None:
            if self._snapshots.current is None:
                raise InvariantError("the log was compacted without a snapshot")
            transfer = progress.transfer = Transfer(self._snapshots.current)
            self._compaction.transfer_began(progress, transfer.snapshot.last_index)
        sent = False
        readable = self._is_readable(progress, transfer.snapshot)
        while (
            readable
            and transfer.room(config.snapshot_window_bytes)
            and not progress.backoff.pause
            and progress.inflight.with_data < config.inflight_messages_max
        ):
            try:
                data = self._storage.read(transfer.snapshot.name, transfer.sent, config.snapshot_slice_bytes)
            except FileNotFoundError:
                progress.become_snapshot()
                return
            self._send_chunk(progress, transfer, data)
            sent = True
        if heartbeat and not sent:
            self._send_chunk(progress, transfer, b"")

    def _is_readable(self, progress: Progress, snapshot: Snapshot) -> bool:
        """Whether the follower reads files of this format. If not, it gets only heartbeats, and a note is added for operators."""
        reads = self._snapshot_version(progress.peer)
        if snapshot.version <= reads:
            return True
        if (progress.peer, snapshot.version) not in self._unreadable:
            self._unreadable.add((progress.peer, snapshot.version))
            self._context.note(
                f"{progress.peer} needs a snapshot and reads formats up to {reads}; ours has format {snapshot.version}: "
                "upgrade that node"
            )
        return False

    def _send_chunk(self, progress: Progress, transfer: Transfer, data: bytes) -> None:
        snapshot, offset, sequence = transfer.snapshot, transfer.sent, self._followers.next_sequence()
        progress.inflight.add(sequence, self._now(), len(data), offset + len(data))
        transfer.chunk_sent(sequence, len(data))
        index, term = snapshot.metadata.last
        address = self._outbox.address(progress.peer)
        self._outbox.send(
            progress.peer,
            SnapshotChunk(*address, self._core.term, sequence, index, term, snapshot.checksum, offset, snapshot.size, data),
        )

    def answered(self, progress: Progress, message: SnapshotAck) -> bool:
        """The follower reports how much of the snapshot it has. False: the answer is old or for another snapshot."""
        transfer = progress.transfer
        if (
            progress.state != SNAPSHOT
            or transfer is None
            or message.snapshot_index != transfer.snapshot.last_index
            or message.sequence <= progress.floor
            or message.offset > transfer.snapshot.size
        ):
            return False
        if progress.kept_from is None and not self._compaction.keep_log(progress, transfer.snapshot.last_index):
            progress.become_snapshot()
        else:
            transfer.answered(message.sequence, message.offset, progress.inflight, progress.backoff)
        return True

    def arrived(self, progress: Progress) -> None:
        """The snapshot has arrived. The log after it is kept until that part has arrived, too."""
        if progress.kept_from is not None:
            self._compaction.keep_log(progress, progress.match)
        progress.become_probe(progress.match + 1, self._followers.sequence)
