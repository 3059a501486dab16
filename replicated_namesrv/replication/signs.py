"""SignsOfLife: signs of life from every node to the leader, and the leader's expiries as fenced commands.

A renewal takes one round trip and writes nothing to the log: all that wait in one turn of the loop travel in one report. The
leader judges them after a read index that was asked for after they came: so it led, an entry of its own term was committed, and
its state holds everything acknowledged before. It accepts a renewal if the registration has the epoch named, its group is as
the sender saw it, and no removal of that epoch is proposed.

Reports are numbered and arrive in order or not at all. A gap, another leader or an answer that does not come make the node
send its whole list.
"""

import asyncio
import logging
import secrets
from asyncio import Future
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.raft.interfaces import MalformedError, ReadOutcome, ReadReady
from replicated_namesrv.replication.leases import Attachments, Expiry, Lease, LeaseTable, RunningClock
from replicated_namesrv.replication.machine import RouteStateMachine
from replicated_namesrv.replication.messages import (
    DIFFERS,
    REMOVING,
    Ages,
    Answer,
    Entry,
    Key,
    Report,
    decode,
    encode,
)

log = logging.getLogger(__name__)

TICK_S = 0.1
REPORT_INTERVAL_MS = 250.0
ANSWER_TIMEOUT_MS = 500.0
SCAN_INTERVAL_MS = 1_000.0
AGES_INTERVAL_MS = 2_000.0
REMOVALS_PER_COMMAND = 4
"""Removing a broker with 10,000 topics takes about 3 ms, and every node applies a command in one go."""
ACCEPTED = 0


class Group(Protocol):
    """What is needed of Raft."""

    def tell(self, peer: str, data: bytes) -> None:
        """Send to another node; may be lost."""

    def read_index(self) -> "Future[ReadOutcome]":
        """See ``RaftService``."""

    @property
    def led_term(self) -> int | None:
        """The present term if this node leads it."""

    @property
    def term(self) -> int:
        """The present term."""

    @property
    def leader(self) -> str | None:
        """The leader of the present term, if known."""


class _Sent:
    __slots__ = ("renewals", "sent_ms")

    def __init__(self, sent_ms: float, renewals: list[tuple[int, Entry, "Future[int]"]]) -> None:
        self.sent_ms, self.renewals = sent_ms, renewals


class SignsOfLife:
    """Both halves: what this node tells the leader, and what it does while it leads. Runs on the event loop."""

    def __init__(
        self,
        node_id: str,
        members: list[str],
        machine: RouteStateMachine,
        group: Group,
        expire: Callable[[list[Expiry]], "Future[bool]"],
        grace_ms: float,
        monotonic_ms: Callable[[], float],
    ) -> None:
        self.attachments = Attachments()
        self.clock = RunningClock(monotonic_ms())
        self._node_id, self._members = node_id, members
        self._machine, self._group, self._expire = machine, group, expire
        self._grace_ms, self._monotonic_ms = grace_ms, monotonic_ms
        self._session = secrets.randbits(63)
        self._sequence = 0
        self._told: tuple[int, str] | None = None
        """(term, leader) that has our whole list."""
        self._sent: dict[int, _Sent] = {}
        self._last_report_ms = 0.0
        self._renewals: list[tuple[Entry, Future[int]]] = []
        self._flush_scheduled = False
        self._table: LeaseTable | None = None
        self._led_term = 0
        self._removing: set[tuple[Key, int]] = set()
        self._suspects: dict[Key, None] = {}
        self._unjudged: list[tuple[str, Report, bool]] = []
        self._is_judging = False
        self._last_scan_ms = self._last_ages_ms = 0.0
        self.expired_count = self.lost_count = 0

    @property
    def now_ms(self) -> float:
        """Time that this process ran."""
        return self.clock.read(self._monotonic_ms())

    # This node

    def renew(self, key: Key, epoch: int, generation: int) -> "Future[int]":
        """ACCEPTED, DIFFERS or REMOVING, by the leader's word. The caller gives up by cancelling."""
        future: Future[int] = asyncio.get_running_loop().create_future()
        entry = self.attachments.entry(key, self.now_ms)
        if entry is None or entry.epoch != epoch:
            future.set_result(DIFFERS)
            return future
        self._renewals.append((entry._replace(renews=True, generation=generation), future))
        self._schedule_flush()
        return future

    def report_soon(self) -> None:
        """Something changed that the leader should know."""
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        leader, now = self._group.leader, self.now_ms
        if leader is None:
            return
        term = self._group.term
        is_full = self._told != (term, leader)
        if is_full:
            self._told = (term, leader)
            self._requeue_sent()
            entries = self.attachments.everything(now)
        else:
            entries = [e for e in (self.attachments.entry(key, now) for key in self.attachments.changed) if e is not None]
        self.attachments.changed.clear()
        renewals = []
        waiting, self._renewals = self._renewals, []
        for entry, future in waiting:
            if not future.done():
                renewals.append((len(entries), entry, future))
                entries.append(entry)
        self._sequence += 1
        self._last_report_ms = now
        self._sent[self._sequence] = _Sent(now, renewals)
        self._send(leader, Report(self._session, self._sequence, term, is_full, tuple(entries)))

    def _requeue_sent(self) -> None:
        for sent in self._sent.values():
            self._renewals.extend((entry, future) for _, entry, future in sent.renewals if not future.done())
        self._sent.clear()

    def _send(self, peer: str, message: Report | Answer | Ages) -> None:
        if peer == self._node_id:
            asyncio.get_running_loop().call_soon(self._take, peer, message)
        else:
            self._group.tell(peer, encode(message))

    def tick(self) -> None:
        """Call every TICK_S."""
        now = self.now_ms
        oldest = next(iter(self._sent.values()), None)
        if oldest is not None and now - oldest.sent_ms > ANSWER_TIMEOUT_MS:
            self._told = None
        if self._told is None or self.attachments.changed or self._renewals or now - self._last_report_ms >= REPORT_INTERVAL_MS:
            self._schedule_flush()
        if self._table is not None:
            if self._group.led_term != self._led_term:
                self._table = None
            else:
                self._tick_leader(self._table, now)

    def fail_renewals(self, reason: str) -> None:
        """The leader cannot be reached: everybody who waits is told so."""
        self._requeue_sent()
        waiting, self._renewals = self._renewals, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(UnavailableError(reason))

    def received(self, peer: str, data: bytes) -> None:
        """``RaftNode.tell`` of another node. Takes effect in a later turn: a node's entry points are not called back."""
        try:
            message = decode(data)
        except MalformedError as error:
            log.warning("message dropped: %s", error, extra={"peer": peer})
            return
        asyncio.get_running_loop().call_soon(self._take, peer, message)

    def _take(self, peer: str, message: Report | Answer | Ages) -> None:
        if isinstance(message, Report):
            self._on_report(peer, message)
        elif isinstance(message, Answer):
            self._on_answer(message)
        elif message.term == self._group.term:
            now = self.now_ms
            for key, age_ms in message.ages:
                if key[0] == "" or self._machine.state.registration(*key) is not None:
                    self.attachments.learn(key, now - age_ms)

    def _on_answer(self, answer: Answer) -> None:
        if answer.session != self._session:
            return
        if answer.wants_full and self._told is not None and answer.term == self._told[0]:
            self._told = None
            self._schedule_flush()
        sent = self._sent.pop(answer.sequence, None)
        if sent is None:
            return
        refusals = dict(answer.refusals)
        for position, _, future in sent.renewals:
            if not future.done():
                future.set_result(refusals.get(position, ACCEPTED))

    # The leader

    def lead(self, term: int) -> None:
        """This node leads ``term`` from now on."""
        self._table = LeaseTable(self._members, self._node_id, self._grace_ms, self.now_ms)
        self._led_term = term
        self._removing.clear()
        self._suspects.clear()
        self._unjudged.clear()

    def registered(self, key: Key) -> None:
        """A registration was applied: a sign of life."""
        registration = self._machine.state.registration(*key)
        if registration is None:
            return
        now = self.now_ms
        self.attachments.learn(key, now)
        if self._table is not None:
            self._table.heard(key, registration.epoch, now)

    def removed(self, key: Key, epoch: int) -> list[int]:
        """A registration ended; the connections that it was attached to here."""
        self._removing.discard((key, epoch))
        self._suspects.pop(key, None)
        if self._table is not None:
            self._table.forget(key)
        return self.attachments.remove(key, epoch)

    def _on_report(self, peer: str, report: Report) -> None:
        table = self._table
        if table is None or report.term != self._led_term or self._group.led_term != report.term:
            return
        for entry in report.entries:
            if entry.lost_ms or entry.state >= 2:
                self._suspects[entry.key] = None
        taken = table.report(peer, report.session, report.sequence, report.is_full, report.entries, self.now_ms)
        if any(entry.renews for entry in report.entries):
            self._unjudged.append((peer, report, taken))
            self._judge_next()
        else:
            self._send(peer, Answer(report.session, report.sequence, report.term, not taken, ()))

    def _judge_next(self) -> None:
        if self._is_judging or not self._unjudged:
            return
        self._is_judging = True
        batch, self._unjudged = self._unjudged, []
        self._group.read_index().add_done_callback(lambda outcome: self._judge(batch, outcome))

    def _judge(self, batch: list[tuple[str, Report, bool]], outcome: "Future[ReadOutcome]") -> None:
        self._is_judging = False
        if not outcome.cancelled() and isinstance(outcome.result(), ReadReady):
            for peer, report, taken in batch:
                if self._group.led_term == report.term == self._led_term:
                    refusals = tuple(
                        (position, why)
                        for position, entry in enumerate(report.entries)
                        if entry.renews and (why := self._verdict(entry)) != ACCEPTED
                    )
                    self._send(peer, Answer(report.session, report.sequence, report.term, not taken, refusals))
        self._judge_next()

    def _verdict(self, entry: Entry) -> int:
        state = self._machine.state
        registration = state.registration(*entry.key)
        if registration is None or registration.epoch != entry.epoch:
            return DIFFERS
        if (entry.key, entry.epoch) in self._removing:
            return REMOVING
        if entry.generation and state.group_generation(registration.broker_name) != entry.generation:
            return DIFFERS
        assert self._table is not None
        self._table.heard(entry.key, entry.epoch, self.now_ms)
        return ACCEPTED

    def _tick_leader(self, table: LeaseTable, now: float) -> None:
        state = self._machine.state
        if now - self._last_scan_ms >= SCAN_INTERVAL_MS:
            self._last_scan_ms = now
            leases = [Lease((r.cluster_name, r.broker_addr), r.epoch, r.heartbeat_timeout_ms) for r in state.registrations()]
            if now - self._last_ages_ms >= AGES_INTERVAL_MS:
                self._last_ages_ms = now
                self._tell_ages(table, leases, now)
        else:
            found = ((key, state.registration(*key)) for key in self._suspects)
            leases = [Lease(key, r.epoch, r.heartbeat_timeout_ms) for key, r in found if r is not None]
        if len(self._removing) >= REMOVALS_PER_COMMAND:
            return
        due = (e for e in table.due(leases, now) if (e.key, e.epoch) not in self._removing)
        batch = list(islice(due, REMOVALS_PER_COMMAND))
        if batch:
            self._propose_removal(batch)

    def _propose_removal(self, batch: list[Expiry]) -> None:
        self._removing.update((e.key, e.epoch) for e in batch)
        log.warning(
            "removing brokers",
            extra={"lost": [e.key[1] for e in batch if e.is_lost], "silent": [e.key[1] for e in batch if not e.is_lost]},
        )
        term = self._led_term

        def ended(outcome: "Future[bool]") -> None:
            if term != self._led_term:
                return
            is_decided = not outcome.cancelled() and outcome.result()
            if is_decided:
                for expiry in batch:
                    self._count(expiry)
                self._removing.difference_update((e.key, e.epoch) for e in batch)
            elif self._group.led_term == term:
                self._expire(batch).add_done_callback(ended)

        self._expire(batch).add_done_callback(ended)

    def _count(self, expiry: Expiry) -> None:
        registration = self._machine.state.registration(*expiry.key)
        if registration is None or registration.epoch != expiry.epoch:
            if expiry.is_lost:
                self.lost_count += 1
            else:
                self.expired_count += 1

    def _tell_ages(self, table: LeaseTable, leases: list[Lease], now: float) -> None:
        ages = table.ages(leases, now)
        if ages:
            for key, age_ms in ages:
                self.attachments.learn(key, now - age_ms)
            for member in self._members:
                if member != self._node_id:
                    self._send(member, Ages(self._led_term, tuple(ages)))
