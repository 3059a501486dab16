"""Replication: how the leader's log reaches the others, and what a follower answers.

Follower. What may be cut is decided before PySyncObj sees the message: entries at or below the commit index are known to be
equal, entries that are already there with the same term are skipped, and only a real term conflict behind both cuts the log.
The answer leaves once the entries, and the term, are on disk.

Leader. Each follower is probed (where do our logs meet?), replicated to, or sent a snapshot. Appends carry a sequence number
that the reply repeats; replies of another term, or to something sent before the last change of state, are not believed.
``match`` only rises, the next index never falls on success, and what is in flight is bounded (``progress.py``). PySyncObj is
told of a match only as far as a majority with the leader's own disk has it: its commit rule counts the leader, so a follower's
match is clipped to what the leader has synced, or to what a majority of others has without it.
"""

from typing import TYPE_CHECKING

from replicated_namesrv.raft.errors import CorruptionError, InvariantError
from replicated_namesrv.raft.log import Entry
from replicated_namesrv.raft.messages import Append, AppendReply, HigherTerm, SnapshotAck, SnapshotChunk
from replicated_namesrv.raft.payloads import WIRE_ENTRY, pack_entries, unpack_entries
from replicated_namesrv.raft.progress import HEARTBEATS_REMEMBERED_MAX, NEVER, PROBE, REPLICATE, SNAPSHOT, Progress, Transfer
from replicated_namesrv.raft.snapshots import Snapshot
from replicated_namesrv.raft.standing import NOTHING, Memory

if TYPE_CHECKING:
    from replicated_namesrv.raft.bounds import Bounded
    from replicated_namesrv.raft.node import RaftNode

ENCODED_BYTES_MAX = 1 << 20
"""Encoded entries kept for the followers that are in step, four messages of usual size; a single longer one is kept too."""
ROUND_TRIP_ELECTIONS = 2
"""Greatest election times that a message may wait in queues, and its answer still counts for CheckQuorum, which is that much
later for a leader whose answers are late. Two windows of entries take 0.7 s over 100 Mbit/s."""


class Replication:
    def __init__(self, node: "RaftNode") -> None:
        self._node = node
        self.progress = {peer: Progress(peer, node.config.inflight_messages_max) for peer in node.peers}
        self._sequence = 0
        self._answering: tuple[int, int, int, bool] | None = None
        """(term, sequence, previous index, with entries) of the append that PySyncObj is looking at."""
        self._blobs: dict[tuple[int, int, int], bytes] = {}
        """Encoded entries by (first index, count, term of the last), oldest first."""
        self._blob_bytes = 0
        self._blobs_used = False
        """Since the last heartbeat."""
        self._round_seconds = node.config.election_max_ms / 1000
        self._round_trip_seconds = ROUND_TRIP_ELECTIONS * node.config.election_max_ms / 1000
        self._changing = 0
        """Index of the newest change of the configuration proposed here."""
        self._term_led = 0
        self._unreadable: set[tuple[str, int]] = set()
        """(peer, format) of snapshots that could not be sent, so that each is noted once."""
        self._noticed_commit = 0
        """Commit index at the last tick."""

    # Follower

    def on_append(self, peer: str, message: Append) -> None:
        node = self._node
        core, log = node.core, node.log
        if not self.accept_leader(peer, message.term):
            return
        if message.entries and node.log_is_full:
            node.counters["appends_refused"] += 1
            if message.term == core.term:
                node.elections.heard_leader(peer)
            return  # without an answer, so that the leader's window closes
        entries = unpack_entries(message.entries, message.previous_index + 1)
        node.elections.forgive(len(message.entries), message.previous_index + len(entries))
        with_entries = bool(entries)
        previous_index, previous_term, commit_index = message.previous_index, message.previous_term, message.commit_index
        if message.acknowledged > log.last_index and node.defences.acknowledged_check:
            raise CorruptionError(
                f"this node acknowledged entries up to {message.acknowledged} but its log ends at {log.last_index}: "
                "the disk has lost synced data. Replace it, move the data directory away and start again: "
                "the node returns without a vote, copies the state and is then promoted"
            )
        if node.defences.idempotent_append:
            previous_index, previous_term, entries = self._skip_known(peer, previous_index, previous_term, entries)
            if log.term_at(previous_index) == previous_term:
                log.keep_tail = not entries
                commit_index = min(commit_index, previous_index + len(entries))
        self._answering = message.term, message.sequence, previous_index, with_entries
        try:
            core.append(peer, message.term, commit_index, previous_index, previous_term, entries)
        finally:
            log.keep_tail = False
            self._answering = None
        node.elections.heard_leader(peer)

    def accept_leader(self, peer: str, term: int) -> bool:
        core = self._node.core
        if term < core.term:
            self._node.send(peer, HigherTerm, core.term)
            return False
        if term == core.term and core.is_leader:
            raise InvariantError(f"{peer} leads in term {term} as this node does")
        return True

    def _skip_known(
        self, peer: str, previous_index: int, previous_term: int, entries: list[Entry]
    ) -> tuple[int, int, list[Entry]]:
        """Drop from the front what is here already."""
        log, commit = self._node.log, self._node.core.commit_index
        if previous_index < commit:
            for _, index, term in entries[: commit - previous_index]:
                if log.term_at(index) not in (None, term):
                    raise InvariantError(
                        f"{peer} sends entry {index} of term {term}; committed here is term {log.term_at(index)}"
                    )
            entries = entries[commit - previous_index :]
            previous_index, previous_term = commit, log.term_at(commit) or 0
        if log.term_at(previous_index) == previous_term:
            known = 0
            for _, index, term in entries:
                if log.term_at(index) != term:
                    break
                known += 1
            if known:
                previous_index, previous_term = entries[known - 1][1:]
                entries = entries[known:]
        return previous_index, previous_term, entries

    def append_answered(self, peer: str, success: bool, next_index: int) -> None:
        """PySyncObj answers an append: let it leave when it is true."""
        node, log = self._node, self._node.log
        if self._answering is None or self._answering[1] == 0:
            return
        term, sequence, previous_index, with_entries = self._answering
        if not success:
            node.send_when_durable(log.vote_number, peer, AppendReply, term, sequence, False, self._conflict_hint(previous_index))
            return
        match = next_index - 1
        if not node.defences.durable_acks or (match <= log.durable_index and log.vote_number <= log.durable_number):
            node.send(peer, AppendReply, term, sequence, True, match)
        elif not with_entries and log.vote_number <= log.durable_number:
            node.send(peer, AppendReply, term, sequence, True, min(match, log.durable_index))
        else:
            node.send_when_durable(log.number, peer, AppendReply, term, sequence, True, match)

    def _conflict_hint(self, previous_index: int) -> int:
        """Where the leader should try next: behind our log, or before the term that conflicts."""
        log = self._node.log
        hint = log.last_index + 1 if log.term_at(previous_index) is None else log.first_of_term(previous_index)
        return max(self._node.core.commit_index + 1, min(hint, previous_index))

    # Leader

    def lead(self) -> None:
        """A new term of ours begins."""
        for progress in self.progress.values():
            self._remember(progress)
            progress.reset(self._node.log.last_index + 1, self._sequence)
        self._changing = 0
        self._term_led = self._node.core.term

    def follow(self) -> None:
        """This node has lost leadership: release what only a leader needs."""
        self._drop_blobs()

    def connected(self, peer: str) -> None:
        progress = self.progress[peer]
        progress.connected = True
        self._restart(progress)

    def disconnected(self, peer: str) -> None:
        progress = self.progress[peer]
        progress.connected = False
        self._restart(progress)

    def _restart(self, progress: Progress) -> None:
        following = progress.match + 1 if progress.match else min(progress.next, self._node.log.last_index + 1)
        progress.reconnected(following, self._sequence)

    def new_incarnation(self, peer: str, incarnation: int) -> None:
        """Another data directory speaks under this name: nothing is known of it."""
        self.forget(peer)
        self.progress[peer].incarnation = incarnation

    def forget(self, peer: str) -> None:
        """Nothing that ``peer`` has acknowledged counts any more: its disk is another, or has lost it."""
        progress = self.progress[peer]
        self._remember(progress)
        progress.reset(self._node.log.last_index + 1, self._sequence)
        self._node.core.forget(peer)

    def memory_of(self, peer: str, incarnation: int) -> Memory:
        """What this incarnation of ``peer`` has acknowledged to us in the last term that we led."""
        progress = self.progress[peer]
        return Memory(0, self._term_led, progress.match) if progress.match and progress.incarnation == incarnation else NOTHING

    def _remember(self, progress: Progress) -> None:
        self._node.membership.remember(progress.peer, progress.incarnation, self.memory_of(progress.peer, progress.incarnation))

    def heartbeat(self) -> None:
        if self._blobs_used:
            self._blobs_used = False
        elif self._blobs:
            self._drop_blobs()
        for progress in self.progress.values():
            progress.backoff.heartbeat()
            self._pump(progress, True)

    def tick(self) -> None:
        """Send what is due to every follower, and promote a learner that keeps up.

        A new commit index alone is told one tick later: by then the proposals that it set free carry it along.
        """
        last, commit = self._node.log.last_index, self._node.core.commit_index
        notify, self._noticed_commit = commit == self._noticed_commit, commit
        for progress in self.progress.values():
            if progress.next <= last or (notify and progress.commit_sent < commit):
                self._pump(progress, False)
            if progress.state == REPLICATE and not self._node.membership.counts_now(progress.peer) and self._keeps_up(progress):
                self._promote(progress)

    @property
    def wants_tick(self) -> bool:
        """Somebody is still to be told of the newest commit index."""
        commit = self._node.core.commit_index
        return any(p.commit_sent < commit and p.state == REPLICATE and p.connected for p in self.progress.values())

    def _keeps_up(self, progress: Progress) -> bool:
        node = self._node
        if not node.defences.promotion_rounds:
            return progress.match >= node.core.commit_index
        now, last = node.environment.now(), node.log.last_index
        return progress.rounds.kept_up(now, last, progress.match, progress.acknowledged_at, self._round_seconds)

    def _promote(self, progress: Progress) -> None:
        """One change at a time, and none before an entry of this term is committed (dissertation, 4.1)."""
        node = self._node
        newest = max(self._changing, node.membership.configuration.last_change)
        if (
            newest > node.core.applied_index
            or node.log.term_at(node.core.commit_index) != node.core.term
            or not progress.connected
            or node.stall.stalled
        ):
            return
        change = node.membership.configuration.next_change(progress.peer, progress.incarnation)
        if change is not None:
            self._changing = node.core.propose(change)

    def _pump(self, progress: Progress, heartbeat: bool) -> None:
        node = self._node
        if not progress.connected or not progress.incarnation:
            return
        log = node.log
        if progress.state != SNAPSHOT and progress.next <= log.base_index:
            progress.become_snapshot()
        if progress.state == SNAPSHOT:
            self._pump_snapshot(progress, heartbeat)
        elif progress.state == PROBE:
            if heartbeat or not progress.probe_sent:
                progress.probe_sent = True
                self._send_append(progress, 0, True)
        elif not self._send_entries(progress) and (heartbeat or progress.commit_sent < node.core.commit_index):
            self._send_append(progress, 0, heartbeat)

    def _send_entries(self, progress: Progress) -> bool:
        config, log = self._node.config, self._node.log
        sent = False
        while (
            progress.next <= log.last_index
            and not progress.backoff.pause
            and progress.inflight.bytes < config.inflight_bytes_max
            and progress.inflight.with_data < config.inflight_messages_max
        ):
            self._send_append(progress, self._fitting(progress.next), True)
            sent = True
        return sent

    def _fitting(self, index: int) -> int:
        """How many entries from ``index`` on go into one message."""
        count = size = 0
        for payload, _, _ in self._node.log.entries(index, self._node.config.apply_entries_max):
            size += len(payload) + WIRE_ENTRY.size
            if count and size > self._node.config.append_bytes_max:
                break
            count += 1
        return count

    def _send_append(self, progress: Progress, count: int, reply: bool) -> None:
        """Send ``count`` entries from ``progress.next`` on; without ``reply`` only the commit index is told."""
        node, log = self._node, self._node.log
        previous_index = progress.next - 1
        blob = self._blob(progress.next, count) if count else b""
        sequence = 0
        if reply:
            self._sequence += 1
            sequence = self._sequence
            progress.inflight.add(sequence, node.environment.now(), len(blob), previous_index + count)
        progress.commit_sent = node.core.commit_index
        progress.next += count
        node.send(
            progress.peer, Append, node.core.term, sequence, previous_index, log.term_at(previous_index) or 0,
            node.core.commit_index, progress.match, blob,
        )  # fmt: skip

    def _blob(self, index: int, count: int) -> bytes:
        """Encoded entries; followers in step share one."""
        log, blobs = self._node.log, self._blobs
        key = index, count, log.term_at(index + count - 1) or 0
        self._blobs_used = True
        blob = blobs.get(key)
        if blob is None:
            blob = pack_entries(log.entries(index, count))
            self._blob_bytes += len(blob)
            while blobs and self._blob_bytes > ENCODED_BYTES_MAX:
                self._blob_bytes -= len(blobs.pop(next(iter(blobs))))
            blobs[key] = blob
        return blob

    def _drop_blobs(self) -> None:
        self._blobs.clear()
        self._blob_bytes, self._blobs_used = 0, False

    def on_append_reply(self, peer: str, message: AppendReply) -> None:
        node, progress = self._node, self.progress[peer]
        if message.term > node.core.term:
            node.core.observe_term(peer, message.term)
            return
        fresh = message.term == node.core.term or not node.defences.fresh_acks
        if not node.core.is_leader or not fresh or message.source != progress.incarnation:
            node.counters["stale_replies"] += 1
            return
        self._alive(progress, message.sequence)
        if message.success:
            self._on_success(progress, message)
        else:
            self._on_conflict(progress, message)

    def _on_success(self, progress: Progress, message: AppendReply) -> None:
        node = self._node
        if message.log_index > node.log.last_index:
            raise InvariantError(f"{progress.peer} acknowledges entry {message.log_index}; the log ends at {node.log.last_index}")
        progress.matched(message.log_index)
        if progress.kept_from is not None:
            node.compaction.log_sent(progress)
        if progress.state == PROBE and message.sequence > progress.floor:
            progress.become_replicate(self._sequence)
        elif progress.state == SNAPSHOT and progress.match >= node.log.base_index:
            self._snapshot_arrived(progress)
        elif progress.transfer is not None and progress.match >= progress.transfer.snapshot.last_index:
            progress.become_snapshot()  # compacted further meanwhile: send the newer one
        self._tell_core(progress)
        if progress.next <= node.log.last_index or progress.state == PROBE:
            self._pump(progress, False)

    def _on_conflict(self, progress: Progress, message: AppendReply) -> None:
        node = self._node
        if progress.state == SNAPSHOT or (node.defences.fresh_acks and message.sequence <= progress.floor):
            node.counters["stale_replies"] += 1
            return
        node.counters["conflicts"] += 1
        progress.entries_lost(max(progress.match + 1, min(message.log_index, node.log.last_index + 1)), self._sequence)
        self._pump(progress, False)

    # What PySyncObj is told

    def _clip(self) -> int:
        """Up to where the leader may be counted: what it has synced, or what a majority has without it."""
        node = self._node
        if not node.defences.durable_acks:
            return node.log.last_index
        matches = sorted((p.match for p in self.progress.values() if self._counts(p)), reverse=True)
        without = matches[node.quorum - 1] if len(matches) >= node.quorum else 0
        return max(node.log.durable_index, without)

    def _counts(self, progress: Progress) -> bool:
        return self._node.membership.counts(progress.peer, progress.incarnation)

    def _tell_core(self, progress: Progress) -> None:
        """``progress`` has advanced: others, too, may now have more on disk than PySyncObj knows."""
        if not self._counts(progress):
            return
        clip = self._clip()
        for other in self.progress.values():
            index = min(other.match, clip)
            if index > other.delivered and self._counts(other):
                other.delivered = index
                self._node.core.acknowledged(other.peer, index)

    def _alive(self, progress: Progress, sequence: int) -> None:
        """A follower answered message ``sequence``. It counts for CheckQuorum only if the answer is to a message that was not
        answered before, and that was sent lately: a late answer shows what was. Lately is longer than the time that CheckQuorum
        allows: where a full window fills a slow link, answers arrive steadily, and each takes as long as the window."""
        node = self._node
        sent_at = progress.acknowledge(sequence)
        now = node.environment.now()
        lately = now - sent_at < node.elections.patience(now) + self._round_trip_seconds or not node.defences.fresh_acks
        if lately and self._counts(progress):
            node.core.follower_alive(progress.peer)

    def on_log_synced(self) -> None:
        """The leader's own disk has caught up: commit what waited for it."""
        for progress in self.progress.values():
            if progress.match > progress.delivered:
                self._tell_core(progress)

    def quorum_acknowledged_at(self) -> float:
        """A majority, the leader included, has acknowledged messages sent at or after this time."""
        node = self._node
        times = sorted((p.acknowledged_at for p in self.progress.values() if self._counts(p)), reverse=True)
        return times[node.quorum - 2] if len(times) >= node.quorum - 1 else NEVER

    def furthest_voter(self) -> str | None:
        voters = [p for p in self.progress.values() if p.connected and self._counts(p)]
        return max(voters, key=lambda p: (p.match, p.peer)).peer if voters else None

    def has_all(self, peer: str) -> bool:
        """Whether ``peer`` is known to hold the whole log, and PySyncObj knows it too."""
        progress = self.progress[peer]
        return progress.delivered == self._node.log.last_index and progress.connected

    # Snapshots, leader's side

    def snapshots_in_use(self) -> set[str]:
        """Names of the files that are being sent."""
        if not self._node.core.is_leader:
            return set()
        return {p.transfer.snapshot.name for p in self.progress.values() if p.transfer is not None and p.connected}

    def _pump_snapshot(self, progress: Progress, heartbeat: bool) -> None:
        """Send as many chunks as the window takes. A heartbeat without one is an empty chunk: it is answered with the follower's
        offset, which shows what was lost, and it lets a follower that has everything put the snapshot in place."""
        node, config = self._node, self._node.config
        transfer = progress.transfer
        if transfer is None:
            if node.snapshots.current is None:
                raise InvariantError("the log was compacted without a snapshot")
            transfer = progress.transfer = Transfer(node.snapshots.current)
            node.compaction.transfer_began(progress, transfer.snapshot.last_index)
        sent = False
        readable = self._is_readable(progress, transfer.snapshot)
        while (
            readable
            and transfer.room(config.snapshot_window_bytes)
            and not progress.backoff.pause
            and progress.inflight.with_data < config.inflight_messages_max
        ):
            try:
                data = node.storage.read(transfer.snapshot.name, transfer.sent, config.snapshot_slice_bytes)
            except FileNotFoundError:
                progress.become_snapshot()
                return
            self._send_chunk(progress, transfer, data)
            sent = True
        if heartbeat and not sent:
            self._send_chunk(progress, transfer, b"")

    def _is_readable(self, progress: Progress, snapshot: Snapshot) -> bool:
        """Whether the follower reads files of this format; else it gets heartbeats alone, and operators are told."""
        node = self._node
        reads = node.membership.snapshot_version(progress.peer)
        if snapshot.version <= reads:
            return True
        if (progress.peer, snapshot.version) not in self._unreadable:
            self._unreadable.add((progress.peer, snapshot.version))
            node.note(
                f"{progress.peer} needs a snapshot and reads formats up to {reads}; ours has format {snapshot.version}: "
                "upgrade that node"
            )
        return False

    def _send_chunk(self, progress: Progress, transfer: Transfer, data: bytes) -> None:
        node, snapshot, offset = self._node, transfer.snapshot, transfer.sent
        self._sequence += 1
        progress.inflight.add(self._sequence, node.environment.now(), len(data), offset + len(data))
        transfer.chunk_sent(self._sequence, len(data))
        index, term = snapshot.metadata.last
        node.send(
            progress.peer, SnapshotChunk, node.core.term, self._sequence, index, term,
            snapshot.checksum, offset, snapshot.size, data,
        )  # fmt: skip

    def on_snapshot_ack(self, peer: str, message: SnapshotAck) -> None:
        node, progress = self._node, self.progress[peer]
        if not node.core.is_leader or message.term != node.core.term or message.source != progress.incarnation:
            return
        self._alive(progress, message.sequence)
        transfer = progress.transfer
        if (
            progress.state != SNAPSHOT
            or transfer is None
            or message.snapshot_index != transfer.snapshot.last_index
            or message.sequence <= progress.floor
            or message.offset > transfer.snapshot.size
        ):
            return
        if progress.kept_from is None and not node.compaction.keep_log(progress, transfer.snapshot.last_index):
            progress.become_snapshot()
        else:
            transfer.answered(message.sequence, message.offset, progress.inflight, progress.backoff)
        self._pump(progress, False)

    def _snapshot_arrived(self, progress: Progress) -> None:
        """What follows the snapshot is sent from the log, which is kept until that has arrived too."""
        if progress.kept_from is not None:
            self._node.compaction.keep_log(progress, progress.match)
        progress.become_probe(progress.match + 1, self._sequence)

    def memory(self) -> "dict[str, Bounded]":
        """Sizes that must stay bounded, see ``bounds.py``."""
        config = self._node.config
        followers = self.progress.values()
        window = max(config.inflight_bytes_max, config.snapshot_window_bytes) + config.message_bytes_max
        return {
            "inflight_messages": (
                max((len(p.inflight) for p in followers), default=0),
                config.inflight_messages_max + HEARTBEATS_REMEMBERED_MAX,
            ),
            "inflight_bytes": (max((p.inflight.bytes for p in followers), default=0), window),
            "encoded_bytes": (self._blob_bytes, ENCODED_BYTES_MAX + config.message_bytes_max),
        }
