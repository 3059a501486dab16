"""Replication of the leader's log to the followers. ``appending.py`` has the follower's side.

Each follower is probed (where do our logs meet?), replicated to, or sent a snapshot (``progress.py``). Appends carry a
sequence number that the reply repeats; replies of another term, or to messages sent before the last change of state, are
ignored. ``match`` only rises, the next index never falls on success, and what is in flight is bounded. PySyncObj's commit rule
assumes that the leader has every entry on disk. So the match that PySyncObj gets is limited to the last entry that the leader has
synced, or to the last one that a majority has without the leader, whichever is higher.
"""

from collections.abc import Callable
from typing import Protocol

from replicated_namesrv.raft.compaction import Compaction
from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.followers import Followers
from replicated_namesrv.raft.interfaces import NEVER, RaftState, Voters
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.payloads import WIRE_ENTRY, pack_entries
from replicated_namesrv.raft.progress import HEARTBEATS_REMEMBERED_MAX, PROBE, REPLICATE, SNAPSHOT, Progress
from replicated_namesrv.raft.promotion import Promotion
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.raft.raft_messages import Append, AppendReply, SnapshotAck
from replicated_namesrv.raft.snapshot_sending import SnapshotSending

ENCODED_BYTES_MAX = 1 << 20
"""Size of the cache: four messages of usual size. If a single message is longer, it is cached, too."""
UNDEFENDED_SLICES_MAX = 16


class EncodedEntries:
    """Cache of encoded slices of the log for followers that receive the same ones."""

    def __init__(self, log: Log, is_bounded: bool = True) -> None:
        """``is_bounded``: the defence ``encoded_bound``."""
        self._log, self._is_bounded = log, is_bounded
        self._slices: dict[tuple[int, int, int], bytes] = {}
        """Encoded slices by (first index, count, term of the last entry), the oldest first."""
        self.bytes = 0
        self._used = False
        """True if slices were used since the last heartbeat."""

    def __len__(self) -> int:
        return len(self._slices)

    def encoded(self, index: int, count: int) -> bytes:
        """``count`` entries from ``index`` on, encoded once for all followers."""
        log, slices = self._log, self._slices
        key = index, count, log.term_at(index + count - 1) or 0
        self._used = True
        found = slices.get(key)
        if found is None:
            found = pack_entries(log.entries(index, count))
            self.bytes += len(found)
            while slices and self._exceeds():
                self.bytes -= len(slices.pop(next(iter(slices))))
            slices[key] = found
        return found

    def _exceeds(self) -> bool:
        return self.bytes > ENCODED_BYTES_MAX if self._is_bounded else len(self._slices) >= UNDEFENDED_SLICES_MAX

    def heartbeat(self) -> None:
        """Drop everything if nothing was used since the last heartbeat."""
        if self._used:
            self._used = False
        elif self._slices and self._is_bounded:
            self.drop()

    def drop(self) -> None:
        """Release everything."""
        self._slices.clear()
        self.bytes, self._used = 0, False


ROUND_TRIP_ELECTIONS = 2
"""How long a message may wait in queues so that its answer still counts for CheckQuorum, in units of the maximum election time.
If answers are late, a leader that lost its majority steps down up to this much later. Two windows of entries take 0.7 s over 100
Mbit/s."""


class ReplicationCore(RaftState, Protocol):
    """The methods of the consensus core that replication needs."""

    def observe_term(self, peer: str, term: int) -> None: ...

    def acknowledged(self, peer: str, index: int) -> None: ...

    def follower_contact(self, peer: str) -> None: ...


class Replication:
    """The leader's side of one node."""

    def __init__(
        self,
        context: NodeContext,
        core: ReplicationCore,
        log: Log,
        followers: Followers,
        voters: Voters,
        outbox: Outbox,
        leadership: Leadership,
        compaction: Compaction,
        sending: SnapshotSending,
        promotion: Promotion,
        takes_vote_of: Callable[[str], bool],
    ) -> None:
        """``takes_vote_of``: whether a change in the log that is not applied takes the vote of a node."""
        self._context, self._config, self._defences, self._now = context, context.config, context.defences, context.now
        self._core, self._log, self._followers, self._voters = core, log, followers, voters
        self._outbox, self._leadership = outbox, leadership
        self._compaction, self._sending, self._promotion = compaction, sending, promotion
        self._takes_vote_of = takes_vote_of
        self._encoded = EncodedEntries(log, context.defences.encoded_bound)
        self._round_trip_seconds = ROUND_TRIP_ELECTIONS * context.config.election_max_ms / 1000
        self._commit_at_last_tick = 0
        """Commit index at the last tick."""
        config = context.config
        self._inflight_messages_max = config.inflight_messages_max + HEARTBEATS_REMEMBERED_MAX
        self._inflight_bytes_max = max(config.inflight_bytes_max, config.snapshot_window_bytes) + config.message_bytes_max
        self._encoded_bytes_max = ENCODED_BYTES_MAX + config.message_bytes_max

    def lead(self) -> None:
        """This node became leader of a new term."""
        self._followers.lead()
        self._promotion.lead()

    def on_stepped_down(self) -> None:
        """This node has lost leadership: release what only a leader needs."""
        self._encoded.drop()

    def heartbeat(self) -> None:
        self._encoded.heartbeat()
        for progress in self._followers.progress.values():
            progress.backoff.heartbeat()
            self._pump(progress, True)

    def tick(self) -> None:
        """Promote a learner that keeps up, and send what is due to every follower.

        A new commit index alone is sent one tick later, because by then it can often be sent together with new proposals.
        """
        for progress in self._followers.progress.values():
            if progress.state == REPLICATE and not self._voters.counts_now(progress.peer):
                self._promotion.consider(progress)  # this may append an entry, which is sent below
        last, commit = self._log.last_index, self._core.commit_index
        notify, self._commit_at_last_tick = commit == self._commit_at_last_tick, commit
        for progress in self._followers.progress.values():
            has_entries = progress.next <= last and progress.next <= self._last_for(progress)
            if has_entries or (notify and progress.commit_sent < commit):
                self._pump(progress, False)

    def _last_for(self, progress: Progress) -> int:
        """The last entry that ``progress`` may receive: the last one of the log. If an uncommitted entry takes the member's vote,
        it is the last committed one. Otherwise this member could have the longest log, but could not campaign (``DESIGN.md``,
        "Membership changes")."""
        if self._takes_vote_of(progress.peer) and self._defences.removal_committed_first:
            return self._core.commit_index
        return self._log.last_index

    @property
    def wants_tick(self) -> bool:
        """Whether a follower has not been sent the newest commit index yet."""
        commit = self._core.commit_index
        return any(
            p.commit_sent < commit and p.state == REPLICATE and p.connected and self._outbox.reaches(p.peer, Append)
            for p in self._followers.progress.values()
        )

    def _pump(self, progress: Progress, heartbeat: bool) -> None:
        log = self._log
        if not progress.connected or not progress.incarnation or not self._outbox.reaches(progress.peer, Append):
            return
        if log.vote_number > log.durable_number and self._defences.durable_leadership:
            # the only voter leads at once; if its vote is not on disk and the power fails, it would lead this term again, with
            # other entries
            return
        if progress.state != SNAPSHOT and progress.next <= log.base_index:
            progress.become_snapshot()
        if progress.state == SNAPSHOT:
            self._sending.pump(progress, heartbeat)
        elif progress.state == PROBE:
            if heartbeat or not progress.probe_sent:
                progress.probe_sent = True
                self._send_append(progress, 0, True)
        elif not self._send_entries(progress) and (heartbeat or progress.commit_sent < self._core.commit_index):
            self._send_append(progress, 0, heartbeat)

    def _send_entries(self, progress: Progress) -> bool:
        config = self._config
        sent = False
        while (
            progress.next <= self._log.last_index
            and progress.next <= self._last_for(progress)
            and not progress.backoff.pause
            and progress.inflight.bytes < config.inflight_bytes_max
            and progress.inflight.with_data < config.inflight_messages_max
        ):
            self._send_append(progress, self._fitting(progress), True)
            sent = True
        return sent

    def _fitting(self, progress: Progress) -> int:
        """How many entries from ``progress.next`` on go into one message."""
        count = size = 0
        most = min(self._config.apply_entries_max, self._last_for(progress) - progress.next + 1)
        for payload, _, _ in self._log.entries(progress.next, most):
            size += len(payload) + WIRE_ENTRY.size
            if count and size > self._config.append_bytes_max:
                break
            count += 1
        return count

    def _send_append(self, progress: Progress, count: int, reply: bool) -> None:
        """Send ``count`` entries from ``progress.next`` on. ``reply`` False: only the commit index is sent."""
        log = self._log
        previous_index = progress.next - 1
        blob = self._encoded.encoded(progress.next, count) if count else b""
        sequence = 0
        if reply:
            sequence = self._followers.next_sequence()
            progress.inflight.add(sequence, self._now(), len(blob), previous_index + count)
        progress.commit_sent = self._core.commit_index
        progress.next += count
        address, previous_term = self._outbox.address(progress.peer), log.term_at(previous_index) or 0
        self._outbox.send(
            progress.peer,
            Append(
                *address, self._core.term, sequence, previous_index, previous_term, self._core.commit_index, progress.match, blob
            ),
        )

    def on_append_reply(self, peer: str, message: AppendReply) -> bool:
        """Returns whether it leaves work for the node's ``tick``. A voter that has confirmed nothing but committed entries leaves
        none."""
        progress, core = self._followers.progress[peer], self._core
        if message.term > core.term:
            core.observe_term(peer, message.term)
            return True
        fresh = message.term == core.term or not self._defences.fresh_acks
        if not core.is_leader or not fresh or message.source != progress.incarnation:
            self._context.counters["stale_replies"] += 1
            return True
        steady = progress.state == REPLICATE and progress.kept_from is None
        self._count_contact(progress, message.sequence)
        if message.success:
            self._on_success(progress, message)
        else:
            self._on_conflict(progress, message)
        steady = steady and message.success and progress.state == REPLICATE
        return not (steady and progress.match <= core.commit_index and self._counts(progress))

    def _on_success(self, progress: Progress, message: AppendReply) -> None:
        if message.log_index > self._log.last_index:
            raise MalformedError(
                f"{progress.peer} acknowledges entry {message.log_index}; the log ends at {self._log.last_index}"
            )
        progress.matched(message.log_index)
        if progress.kept_from is not None:
            self._compaction.log_sent(progress)
        if progress.state == PROBE and message.sequence > progress.floor:
            progress.become_replicate(self._followers.sequence)
        elif progress.state == SNAPSHOT and progress.match >= self._log.base_index:
            self._sending.arrived(progress)
        elif progress.transfer is not None and progress.match >= progress.transfer.snapshot.last_index:
            progress.become_snapshot()  # the log was compacted further, so send the newer snapshot
        self._report_matches(progress)
        if progress.next <= self._log.last_index or progress.state == PROBE:
            self._pump(progress, False)

    def _on_conflict(self, progress: Progress, message: AppendReply) -> None:
        if progress.state == SNAPSHOT or (self._defences.fresh_acks and message.sequence <= progress.floor):
            self._context.counters["stale_replies"] += 1
            return
        self._context.counters["conflicts"] += 1
        progress.entries_lost(max(progress.match + 1, min(message.log_index, self._log.last_index + 1)), self._followers.sequence)
        self._pump(progress, False)

    # Reports to PySyncObj

    def _clip(self) -> int:
        """The index up to which PySyncObj may count the leader: the last entry that the leader has synced, or the last one that a
        majority has without the leader."""
        if not self._defences.durable_acks:
            return self._log.last_index
        matches = sorted((p.match for p in self._followers.progress.values() if self._counts(p)), reverse=True)
        without = matches[self._context.quorum - 1] if len(matches) >= self._context.quorum else 0
        return max(self._log.durable_index, without)

    def _counts(self, progress: Progress) -> bool:
        return self._voters.counts(progress.peer, progress.incarnation)

    def _report_matches(self, progress: Progress) -> None:
        """``progress`` has advanced, which may raise the index of ``_clip``: report the matches of all followers up to this
        index."""
        if not self._counts(progress):
            return
        clip = self._clip()
        for other in self._followers.progress.values():
            index = min(other.match, clip)
            if index > other.delivered and self._counts(other):
                other.delivered = index
                self._core.acknowledged(other.peer, index)

    def _count_contact(self, progress: Progress, sequence: int) -> None:
        """A follower answered message ``sequence``. It counts for CheckQuorum only if the message was not answered before and
        was sent recently, because a late answer describes the past. The limit is longer than the time that CheckQuorum allows.
        Over a slow link with a full window, answers arrive steadily, but each takes as long as the whole window."""
        sent_at = progress.acknowledge(sequence)
        now = self._now()
        limit = self._leadership.quorum_timeout(now, self._core.commit_index) + self._round_trip_seconds
        if (now - sent_at < limit or not self._defences.fresh_acks) and self._counts(progress):
            self._core.follower_contact(progress.peer)

    def on_log_synced(self) -> None:
        """The leader's own disk has caught up: commit entries that waited for it."""
        for progress in self._followers.progress.values():
            if progress.match > progress.delivered:
                self._report_matches(progress)

    def quorum_acknowledged_at(self) -> float:
        """A majority, the leader included, has acknowledged messages sent at or after this time."""
        times = sorted((p.acknowledged_at for p in self._followers.progress.values() if self._counts(p)), reverse=True)
        return times[self._context.quorum - 2] if len(times) >= self._context.quorum - 1 else NEVER

    def furthest_voter(self) -> str | None:
        voters = [p for p in self._followers.progress.values() if p.connected and self._counts(p)]
        limit = self._now() - self._context.config.election_max_ms / 1000
        answering = [p for p in voters if p.acknowledged_at >= limit]  # the connection of a paused process stays open
        return max(answering or voters, key=lambda p: (p.match, p.peer)).peer if voters else None

    def has_all(self, peer: str) -> bool:
        """Whether ``peer`` is known to have the whole log, and PySyncObj knows it too."""
        progress = self._followers.progress.get(peer)
        return progress is not None and progress.delivered == self._log.last_index and progress.connected

    def places_changed(self, added: list[str]) -> None:
        """PySyncObj counts these voters from now on, and knows no match of theirs."""
        for peer in added:
            if peer in self._followers.progress:
                self._followers.progress[peer].delivered = 0

    def on_snapshot_ack(self, peer: str, message: SnapshotAck) -> None:
        progress = self._followers.progress[peer]
        if not self._core.is_leader or message.term != self._core.term or message.source != progress.incarnation:
            return
        self._count_contact(progress, message.sequence)
        if self._sending.answered(progress, message):
            self._pump(progress, False)

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        messages = size = 0
        for follower in self._followers.progress.values():
            messages = max(messages, len(follower.inflight))
            size = max(size, follower.inflight.bytes)
        return {
            "inflight_messages": (messages, self._inflight_messages_max),
            "inflight_bytes": (size, self._inflight_bytes_max),
            "encoded_bytes": (self._encoded.bytes, self._encoded_bytes_max),
        }
