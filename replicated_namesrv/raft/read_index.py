"""Linearizable reads without a log entry: read index (dissertation, 6.4) and leader lease.

A leader notes its commit index after an entry of its own term is committed, and asks all nodes whether it still leads. When a
majority has confirmed, everything acknowledged before the question is at or below the index, and the read is ready when that
index is applied. One round serves all reads that came before it was sent. A follower asks the leader for one index for all its
waiting reads and waits until it has applied it.

The lease saves the round: a node that acknowledged an append votes for no other node for one minimum election time, by its
clock. So if a majority acknowledged appends sent at time t or later, no other leader exists before t plus that time, shortened
by the declared drift of clocks. A leadership transfer ends the lease first, because its votes are forced.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import FOREVER, RaftState, ReadOutcome, ReadReady, Rejected, Voters
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.members import MEMBERS_MAX
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.node_context import NodeContext
from replicated_namesrv.raft.outbox import Outbox
from replicated_namesrv.raft.raft_messages import HigherTerm, ReadAck, ReadProbe, ReadReply, ReadRequest

Done = Callable[[ReadOutcome], None]


class Batch(NamedTuple):
    """Reads that are confirmed together."""

    dones: list[Done]
    deadline: float


class Asking(NamedTuple):
    """A peer's request waiting for the next round here."""

    peer: str
    sequence: int


class Round:
    """One confirmation in progress."""

    __slots__ = ("askers", "batches", "confirmed", "log_index", "sent_at", "sequence")

    def __init__(self, sequence: int, log_index: int, batches: list[Batch], askers: list[Asking], node: str, now: float) -> None:
        self.sequence, self.log_index, self.batches, self.askers = sequence, log_index, batches, askers
        self.confirmed = {node}
        self.sent_at = now


class ReadIndex:
    """The reads of one node and, on a leader, the requests of the other nodes."""

    def __init__(
        self,
        context: NodeContext,
        core: RaftState,
        log: Log,
        voters: Voters,
        outbox: Outbox,
        leadership: Leadership,
        leader_contact: Callable[[str], None],
        quorum_acknowledged_at: Callable[[], float],
        refused: Callable[[], str | None],
        first_sequence: int,
    ) -> None:
        """``leader_contact``: called with the sender of a leader's probe. ``quorum_acknowledged_at``: a majority has acknowledged
        what this leader sent at that time or later. ``refused``: why no read is confirmed now, or None.
        ``first_sequence``: requests have greater numbers."""
        self._context, self._config, self._defences, self._now = context, context.config, context.defences, context.now
        self._core, self._log, self._voters, self._outbox, self._leadership = core, log, voters, outbox, leadership
        self._leader_contact, self._quorum_acknowledged_at, self._refused = leader_contact, quorum_acknowledged_at, refused
        self._timeout = self._config.read_timeout_ms / 1000
        self._waiting: list[Done] = []
        """Reads that were requested since the last tick."""
        self._batches: list[Batch] = []
        """Batches of reads for the next round (leader) or the next request (follower)."""
        self._askers: list[Asking] = []
        self._round: Round | None = None
        self._request: tuple[int, list[Batch], float] | None = None
        """(sequence, reads, when sent) of the request that the leader has not answered; None: there is none."""
        self._ready: deque[tuple[int, Batch]] = deque()
        """(index, reads): reads that can be answered when this index is applied."""
        self._sequence = first_sequence
        """The sequence starts at a random number in each process, so that a late answer is not matched to another request."""
        self.count = 0

    @property
    def _leader(self) -> str | None:
        return self._leadership.leader_of(self._core.term)

    # Callers

    def ask(self, done: Done) -> None:
        """``done`` is called in one of the next ticks, even if reads are refused now."""
        if self.count >= self._config.pending_reads_max:
            done(Rejected(f"{self.count} reads are waiting, the most allowed", self._leader))
            return
        self.count += 1
        self._waiting.append(done)

    def ask_lease(self, done: Done) -> None:
        if (
            self._config.lease_reads
            and not self._refused()
            and self.lease_valid()
            and self._core.applied_index >= self._core.commit_index
        ):
            done(ReadReady(self._core.applied_index, self._core.term))
        else:
            self.ask(done)

    def lease_valid(self) -> bool:
        """Whether there can be no other leader now, and this one knows everything that was committed before."""
        term, leadership = self._core.term, self._leadership
        if not self._core.is_leader or leadership.lease_ended(term):
            return False
        now = self._now()
        if leadership.lease_holds(term, now):
            return True
        if not self._term_committed():
            return False
        if self._context.quorum == 1:
            return True
        self._context.measurements.lease_renewals += 1
        leadership.renew_lease(term, self._quorum_acknowledged_at())
        return leadership.lease_holds(term, now)

    def _term_committed(self) -> bool:
        return not self._defences.read_term_commit or self._log.term_at(self._core.commit_index) == self._core.term

    # Progress

    def tick(self, now: float) -> None:
        if (refused := self._refused()) is not None:
            self._refuse_all(refused)
            return
        if self._waiting:
            self._batches.append(Batch(self._waiting, now + self._timeout))
            self._waiting = []
        if self._core.is_leader:
            self._tick_leader(now)
        else:
            self._tick_follower(now)
        if self._ready:
            self._finish_ready(now)
        if self._batches and self._batches[0].deadline <= now:
            self._batches = self._expire(self._batches, now)

    @property
    def waits_for_acks(self) -> bool:
        """Whether a confirmation waits for acknowledgements."""
        return self._round is not None

    def next_wakeup(self) -> float:
        """Time to send again or to give up."""
        if self._waiting:
            return 0.0
        wake_at = FOREVER
        if self._batches:
            wake_at = self._batches[0].deadline
        if self._ready:
            wake_at = min(wake_at, self._ready[0][1].deadline)
        if self._round:
            wake_at = min(wake_at, self._round.sent_at + self._context.heartbeat_seconds)
        if self._request:
            wake_at = min(wake_at, self._request[2] + self._context.heartbeat_seconds)
        return wake_at

    def _tick_leader(self, now: float) -> None:
        if self._request:
            self._requeue_request()
        if self._round and now - self._round.sent_at >= self._context.heartbeat_seconds:
            self._round.batches = self._expire(self._round.batches, now)
            self._send_round(now)
        if self._round is None and (self._batches or self._askers) and self._term_committed():
            self._start_round(now)

    def _requeue_request(self) -> None:
        """The node that we asked has stepped down: ask the new leader."""
        if self._request:
            self._batches = self._request[1] + self._batches
            self._request = None

    def _start_round(self, now: float) -> None:
        self._sequence += 1
        batches, self._batches = self._batches, []
        askers, self._askers = self._askers, []
        self._measure(batches, len(askers))
        self._round = Round(self._sequence, self._core.commit_index, batches, askers, self._context.node_id, now)
        if self._context.quorum == 1 or not self._defences.read_index:
            self._confirm()
        else:
            self._send_round(now)

    def _measure(self, batches: list[Batch], askers: int) -> None:
        self._context.measurements.read_batches.observe(sum([len(batch.dones) for batch in batches]) + askers)

    def _send_round(self, now: float) -> None:
        assert self._round is not None
        self._round.sent_at = now
        for peer in self._context.voting_peers:
            self._outbox.send(peer, ReadProbe(*self._outbox.address(peer), self._core.term, self._round.sequence))

    def _confirm(self) -> None:
        assert self._round is not None
        done, self._round = self._round, None
        for batch in done.batches:
            self._ready.append((done.log_index, batch))
        for asker in done.askers:
            self._outbox.send(asker.peer, ReadReply(*self._outbox.address(asker.peer), asker.sequence, done.log_index))

    def _tick_follower(self, now: float) -> None:
        if self._round or self._askers:
            self._step_down()
        leader = self._leader
        if leader is None or leader == self._context.node_id:
            self._requeue_request()
            return
        if self._request is None and self._batches:
            self._sequence += 1
            self._measure(self._batches, 0)
            self._request = self._sequence, self._batches, now
            self._batches = []
        elif self._request and now - self._request[2] >= self._context.heartbeat_seconds:
            batches = self._expire(self._request[1], now)
            self._request = (self._request[0], batches, now) if batches else None
        if self._request and self._request[2] == now:
            self._outbox.send(leader, ReadRequest(*self._outbox.address(leader), self._request[0]))

    def _step_down(self) -> None:
        """This node has stepped down: request our own reads from the new leader. Each peer requests its own reads there."""
        if self._round:
            self._batches = self._round.batches + self._batches
            self._round = None
        self._askers = []

    def _finish_ready(self, now: float) -> None:
        applied, term = self._core.applied_index, self._core.term
        waiting: deque[tuple[int, Batch]] = deque()
        for log_index, batch in self._ready:
            if log_index <= applied:
                self.count -= len(batch.dones)
                ready = ReadReady(applied, term)
                for done in batch.dones:
                    done(ready)
            elif self._expire([batch], now):
                waiting.append((log_index, batch))
        self._ready = waiting

    def _expire(self, batches: list[Batch], now: float) -> list[Batch]:
        kept = []
        for batch in batches:
            if batch.deadline > now:
                kept.append(batch)
            else:
                self._reject(batch, f"not confirmed by a majority within {self._config.read_timeout_ms} ms")
        return kept

    def _reject(self, batch: Batch, reason: str) -> None:
        self.count -= len(batch.dones)
        rejected = Rejected(reason, self._leader)
        for done in batch.dones:
            done(rejected)

    def stop(self, reason: str) -> None:
        self._refuse_all(reason)

    def _refuse_all(self, reason: str) -> None:
        if not self.count and not self._round and not self._askers:
            return
        self._batch_waiting()
        self._step_down()
        batches = self._batches + (self._request[1] if self._request else []) + [batch for _, batch in self._ready]
        self._batches, self._request, self._ready = [], None, deque()
        for batch in batches:
            self._reject(batch, reason)

    def _batch_waiting(self) -> None:
        if self._waiting:
            self._batches.append(Batch(self._waiting, 0.0))
            self._waiting = []

    # Messages

    def on_probe(self, peer: str, message: ReadProbe) -> None:
        if message.term < self._core.term:
            self._outbox.send(peer, HigherTerm(*self._outbox.address(peer), self._core.term))
        elif message.term == self._core.term and not self._core.is_leader:
            self._leader_contact(peer)
            self._outbox.send(peer, ReadAck(*self._outbox.address(peer), message.term, message.sequence))

    def on_ack(self, peer: str, message: ReadAck) -> None:
        current = self._round
        if (
            current is None
            or message.sequence != current.sequence
            or message.term != self._core.term
            or not self._core.is_leader
            or not self._voters.counts(peer, message.source)
            or self._refused()
        ):
            return
        current.confirmed.add(peer)
        if len(current.confirmed & self._context.voters) >= self._context.quorum:
            self._confirm()

    def on_request(self, peer: str, message: ReadRequest) -> None:
        asking = Asking(peer, message.sequence)
        if self._core.is_leader and not (self._round and asking in self._round.askers):
            self._askers = [a for a in self._askers if a.peer != peer]
            self._askers.append(asking)

    def on_reply(self, peer: str, message: ReadReply) -> None:
        if self._request and message.sequence == self._request[0]:
            batches, self._request = self._request[1], None
            for batch in batches:
                self._ready.append((message.log_index, batch))

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        most = self._config.pending_reads_max
        return {
            "pending_reads": (self.count, most),
            "read_batches": (len(self._batches) + len(self._ready), most),
            "read_askers": (len(self._askers), MEMBERS_MAX),
        }
