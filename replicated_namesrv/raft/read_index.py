"""Linearizable reads without a log entry: read index (dissertation, 6.4) and leader lease.

A leader that has committed an entry of its own term notes its commit index, and asks all voters whether it still leads: a round.
When a majority has confirmed, everything acknowledged before the question is at or below the index, and the read is ready when
that index is applied. One round serves all reads that came before it was sent. A follower requests one index from the leader for
all its waiting reads, and waits until it has applied that index.

On a fast link, one round or request at a time is enough: reads that come meanwhile share the next one. On a slow link they would
wait for up to a round trip more. Therefore the next one is sent PIPELINE_SECONDS after the last one, even if that has no answer.
An answer also counts for all earlier rounds or requests of the same term, because it was sent after them. So only the newest one
is sent again if it is lost.

The lease saves the round: a node that acknowledged an append votes for no other node for one minimum election time, by its
clock. So if a majority acknowledged appends sent at time t or later, no other leader exists before t plus that time, shortened
by the declared drift of clocks. A leader that transfers leadership first ends its lease, because nodes then vote for the new
leader within that time, too.
"""

from collections import deque
from collections.abc import Callable, Sequence
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

PIPELINE_SECONDS = 0.010
"""Time after which the next round or request is sent although the last one is not answered. Longer than a round trip between
machines of one site, so that reads share rounds there."""
IN_FLIGHT_MAX = 8
"""Maximum number of rounds or requests without an answer."""


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

    __slots__ = ("askers", "batches", "confirmed", "log_index", "sent_at", "sequence", "term")

    def __init__(
        self, sequence: int, term: int, log_index: int, batches: list[Batch], askers: list[Asking], node: str, now: float
    ) -> None:
        self.sequence, self.term, self.log_index, self.batches, self.askers = sequence, term, log_index, batches, askers
        self.confirmed = {node}
        self.sent_at = now


class IndexRequest:
    """A follower's request for an index that the leader has not answered."""

    __slots__ = ("batches", "sent_at", "sequence")

    def __init__(self, sequence: int, batches: list[Batch], now: float) -> None:
        self.sequence, self.batches, self.sent_at = sequence, batches, now


def may_start(in_flight: Sequence[Round | IndexRequest], now: float) -> bool:
    """Whether the next round or request may start beside those in flight."""
    if not in_flight:
        return True
    return len(in_flight) < IN_FLIGHT_MAX and now >= in_flight[-1].sent_at + PIPELINE_SECONDS


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
        self._rounds: list[Round] = []
        """The leader's confirmations in progress, oldest first."""
        self._requests: list[IndexRequest] = []
        """A follower's requests without an answer, oldest first."""
        self._ready: deque[tuple[int, Batch]] = deque()
        """(index, reads): reads that can be answered when this index is applied."""
        self._sequence = first_sequence
        """The sequence starts at a random number in each process, so that a late answer is not matched to another request."""
        self.count = 0
        self.has_confirmed = False
        """Whether a round was confirmed since the last tick. An acknowledgement that confirms no round needs no tick."""

    @property
    def _leader(self) -> str | None:
        return self._leadership.leader_of(self._core.term)

    # Callers

    def ask(self, done: Done) -> None:
        """``done`` is called in one of the next ticks, even if reads are refused now; at once if too many reads are waiting."""
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
        if not self.is_term_committed():
            return False
        if self._context.quorum == 1:
            return True
        self._context.measurements.lease_renewals += 1
        leadership.renew_lease(term, self._quorum_acknowledged_at())
        return leadership.lease_holds(term, now)

    def is_term_committed(self) -> bool:
        """Whether an entry of the current term is committed, so that this leader knows all committed entries."""
        return not self._defences.read_term_commit or self._log.term_at(self._core.commit_index) == self._core.term

    # Progress

    def tick(self, now: float) -> None:
        self.has_confirmed = False
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

    def next_wakeup(self) -> float:
        """The time at which ``tick`` has to send again, or to end a read."""
        if self._waiting:
            return 0.0
        wake_at = FOREVER
        if self._batches:
            wake_at = self._batches[0].deadline
        if self._ready:
            wake_at = min(wake_at, self._ready[0][1].deadline)
        in_flight: Sequence[Round | IndexRequest] = self._rounds or self._requests
        if in_flight:
            waits = (self._batches or self._askers) and len(in_flight) < IN_FLIGHT_MAX
            wake_at = min(wake_at, in_flight[-1].sent_at + (PIPELINE_SECONDS if waits else self._context.heartbeat_seconds))
        return wake_at

    def _tick_leader(self, now: float) -> None:
        if self._requests:
            self._requeue_requests()
        if self._rounds:
            if self._rounds[0].term != self._core.term:
                self._step_down()
            elif now - self._rounds[-1].sent_at >= self._context.heartbeat_seconds:
                for one in self._rounds:
                    one.batches = self._expire(one.batches, now)
                self._send_round(now)
        if (self._batches or self._askers) and may_start(self._rounds, now) and self.is_term_committed():
            self._start_round(now)

    def _requeue_requests(self) -> None:
        """The node that we asked has stepped down: ask the new leader."""
        self._batches = [batch for request in self._requests for batch in request.batches] + self._batches
        self._requests = []

    def _start_round(self, now: float) -> None:
        self._sequence += 1
        batches, self._batches = self._batches, []
        askers, self._askers = self._askers, []
        self._measure(batches, len(askers))
        core = self._core
        self._rounds.append(Round(self._sequence, core.term, core.commit_index, batches, askers, self._context.node_id, now))
        if self._context.quorum == 1 or not self._defences.read_index:
            self._confirm(len(self._rounds))
        else:
            self._send_round(now)

    def _measure(self, batches: list[Batch], askers: int) -> None:
        self._context.measurements.read_batches.observe(sum([len(batch.dones) for batch in batches]) + askers)

    def _send_round(self, now: float) -> None:
        """Ask for confirmations of the newest round."""
        newest = self._rounds[-1]
        newest.sent_at = now
        for peer in self._context.voting_peers:
            self._outbox.send(peer, ReadProbe(*self._outbox.address(peer), self._core.term, newest.sequence))

    def _confirm(self, count: int) -> None:
        """The ``count`` oldest rounds are confirmed."""
        self.has_confirmed = True
        confirmed, self._rounds = self._rounds[:count], self._rounds[count:]
        for done in confirmed:
            for batch in done.batches:
                self._ready.append((done.log_index, batch))
            for asker in done.askers:
                self._outbox.send(asker.peer, ReadReply(*self._outbox.address(asker.peer), asker.sequence, done.log_index))

    def _tick_follower(self, now: float) -> None:
        if self._rounds or self._askers:
            self._step_down()
        leader = self._leader
        if leader is None or leader == self._context.node_id:
            self._requeue_requests()
            return
        requests = self._requests
        if self._batches and may_start(requests, now):
            self._sequence += 1
            self._measure(self._batches, 0)
            requests.append(IndexRequest(self._sequence, self._batches, now))
            self._batches = []
        elif requests and now - requests[-1].sent_at >= self._context.heartbeat_seconds:
            for request in requests:
                request.batches = self._expire(request.batches, now)
            requests[-1].sent_at = now
            if not any(request.batches for request in requests):
                requests.clear()
                return
        else:
            return
        self._outbox.send(leader, ReadRequest(*self._outbox.address(leader), requests[-1].sequence))

    def _step_down(self) -> None:
        """This node does not lead the term of the rounds any more: request our own reads again. Each peer requests its own."""
        self._batches = [batch for one in self._rounds for batch in one.batches] + self._batches
        self._rounds, self._askers = [], []

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
        if not self.count and not self._rounds and not self._askers:
            return
        self._batch_waiting()
        self._step_down()
        self._requeue_requests()
        batches = self._batches + [batch for _, batch in self._ready]
        self._batches, self._ready = [], deque()
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
        rounds, sequence = self._rounds, message.sequence
        if (
            not rounds
            or not rounds[0].sequence <= sequence <= rounds[-1].sequence
            or message.term != self._core.term
            or message.term != rounds[0].term
            or not self._core.is_leader
            or not self._voters.counts(peer, message.source)
            or self._refused()
        ):
            return
        count = 0
        for one in rounds:
            if one.sequence > sequence:
                break
            one.confirmed.add(peer)
            if len(one.confirmed & self._context.voters) >= self._context.quorum:
                count += 1
        if count:
            self._confirm(count)

    def on_request(self, peer: str, message: ReadRequest) -> None:
        asking = Asking(peer, message.sequence)
        if self._core.is_leader and not any(asking in one.askers for one in self._rounds):
            self._askers = [a for a in self._askers if a.peer != peer]
            self._askers.append(asking)

    def on_reply(self, peer: str, message: ReadReply) -> None:
        for position, request in enumerate(self._requests):
            if request.sequence == message.sequence:
                answered, self._requests = self._requests[: position + 1], self._requests[position + 1 :]
                self._ready.extend((message.log_index, batch) for one in answered for batch in one.batches)
                return

    def memory(self) -> dict[str, Bounded]:
        """The memory used here, and its bounds."""
        most = self._config.pending_reads_max
        return {
            "pending_reads": (self.count, most),
            "read_batches": (len(self._batches) + len(self._ready), most),
            "read_askers": (len(self._askers), MEMBERS_MAX),
            "reads_in_flight": (max(len(self._rounds), len(self._requests)), IN_FLIGHT_MAX),
        }
