"""LeaderClient: a node's reports and questions to the leader.

A renewal takes one round trip and writes nothing to the log. The renewals of one turn of the loop share a report. Reports
are numbered and arrive in order or not at all. After a gap, a change of leader or a missing answer the node sends its whole
list. Unanswered questions are sent again to the current leader. A late answer still counts, so a slow link causes only delays.

A whole list does not show which brokers made contact, so contacts of unanswered reports follow in the next report. The leader
counts these contacts from the arrival of that next report. So a contact older than ``attachments.CONTACT_MS`` is no longer
reported as a contact: the node sends its whole list instead. ``leader_role.py`` has the leader's side.

A report has bounds (``leader_messages.py``). Content that does not fit follows in the next turn of the loop. Each part of the
whole list is sent after the previous part was answered, so a slow link carries one part at a time. Changes and renewals do not
wait for these answers.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from replicated_namesrv.errors import OutcomeUnknownError, UnavailableError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication.command_kinds import ORIGIN_VERSION, SUSPICION_VERSION
from replicated_namesrv.replication.liveness.attachments import ROUND_MS, Attachments
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    ALONE,
    DIFFERS,
    LAST,
    MORE,
    REGISTER,
    REMOVE,
    REMOVING,
    WITHDRAW,
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    Room,
    encode_removal,
)
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext
from replicated_namesrv.replication.liveness.renewals import ACCEPTED
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.routes.commands import BrokerRemoval

RENEWAL_OUTCOMES = {ACCEPTED: "accepted", DIFFERS: "differs", REMOVING: "removing"}
FAILED = "failed"
TICK_S = 0.1
REPORT_INTERVAL_MS = 250.0
ANSWER_TIMEOUT_MS = 500.0
"""Minimum time to wait for an answer. The node waits for twice the time that the last answer took, if that is longer."""
LATE_MS = 5_000.0
"""Age up to which a report is remembered after the node has stopped waiting for its answer."""


class _Sent:
    """A report without an answer. ``contacts``: brokers that made contact and are reported again if no answer comes."""

    __slots__ = ("contacts", "renewals", "sent_ms")

    def __init__(self, sent_ms: float, renewals: "list[tuple[int, ReportEntry, Future[int]]]", contacts: list[Key]) -> None:
        self.sent_ms, self.renewals, self.contacts = sent_ms, renewals, contacts


class _Question:
    """An inquiry without a decision."""

    __slots__ = ("content", "future", "key", "kind", "opened_ms", "sent_ms", "serial", "term")

    def __init__(self, kind: int, key: Key, content: str, serial: int, opened_ms: float | None, future: "Future[int]") -> None:
        self.kind, self.key, self.content, self.serial = kind, key, content, serial
        self.opened_ms, self.future = opened_ms, future
        self.sent_ms = 0.0
        self.term = -1
        """Term of the leader that was last asked."""


class LeaderClient:
    """The messages of one node, on its event loop."""

    def __init__(self, node: LivenessContext, attachments: Attachments, send: Callable[[str, Message], None]) -> None:
        """``attachments``: the content of the reports. ``send`` may be called for this node itself."""
        self._machine, self._attachments, self._consensus = node.machine, attachments, node.consensus
        self._send, self._running_ms, self._monotonic_ms = send, node.running_ms, node.monotonic_ms
        self._session = node.rng.getrandbits(63)
        self._sequence = 0
        self._began_ms = node.running_ms()
        self._told: tuple[int, str] | None = None
        """(term, leader) to which we send, or have sent, our whole list."""
        self._whole_list = 0
        """Number of the last report that began our whole list."""
        self._unlisted: deque[Key] = deque()
        """Brokers for the parts of our whole list that are still to be sent."""
        self._last_part = 0
        """Number of the report with the last part that was sent."""
        self._sent: dict[int, _Sent] = {}
        self._late: dict[int, _Sent] = {}
        """Reports whose contents were sent again."""
        self._timeout_ms = ANSWER_TIMEOUT_MS
        self._last_report_ms = 0.0
        self._renewals: list[tuple[ReportEntry, Future[int]]] = []
        self._flush_scheduled = False
        self._questions: dict[int, _Question] = {}
        self._last_question = 0
        self.renewed = dict.fromkeys((*RENEWAL_OUTCOMES.values(), FAILED), 0)
        """Number of renewals of this node's brokers, by outcome."""
        self._leader_clock: tuple[int, float] | None = None
        """(term, difference of the leader's clock to ours) according to the last answer of a leader; None: unknown."""

    @property
    def leader_time_ms(self) -> int:
        """The leader's clock, milliseconds since 1970, as far as known; never before the time of an applied command."""
        if self._leader_clock is None:
            return self._machine.time_ms
        return max(self._machine.time_ms, self._present_ms(self._leader_clock))

    def _present_ms(self, clock: tuple[int, float]) -> int:
        """The leader's clock now, even if commands have later times: an earlier leader's clock may have been ahead."""
        return int(clock[1] + self._monotonic_ms())

    # Renewals and questions

    def renew(self, key: Key, epoch: int, generation: int) -> "Future[int]":
        """ACCEPTED, DIFFERS or REMOVING, as the leader decides. The caller gives up by cancelling."""
        future: Future[int] = asyncio.get_running_loop().create_future()
        entry = self._attachments.entry(key, self._monotonic_ms())
        if entry is None or entry.epoch != epoch:
            future.set_result(DIFFERS)
            return future
        self._renewals.append((entry._replace(renews=True, generation=generation), future))
        self.report_soon()
        return future

    def may_register(self, key: Key, content: str, serial: int) -> "tuple[int, Future[int]]":
        """The number of the question, and GRANTED or LOOK_AGAIN. The caller must call ``withdraw`` in two cases: it
        gives up, or it was admitted and its registration was not applied."""
        future = self._ask(REGISTER, key, content, serial, None)
        return self._last_question, future

    def withdraw(self, number: int, key: Key, content: str) -> None:
        """End the wait of the other copies: the registration of this question will not be proposed, its proposal failed, or its
        outcome is unknown."""
        self._questions.pop(number, None)
        leader = self._consensus.leader
        if leader is not None:
            self._send(leader, Inquiry(self._session, number, self._consensus.term, WITHDRAW, 0, AGE_MAX, key, content))

    def remove(self, removal: BrokerRemoval, opened_ms: float | None, origin: ChangeOrigin | None = None) -> "Future[int]":
        """``UNREGISTER_BROKER`` (104): REMOVED or LATE. ``opened_ms``: when the connection over which it came was opened; None:
        it came over no connection. The caller gives up by cancelling; the broker may be removed nevertheless."""
        if origin is not None and self._consensus.command_version < ORIGIN_VERSION:
            origin = None  # the leader may be of a version that does not know origins
        content = encode_removal(removal, origin)
        return self._ask(REMOVE, (removal.cluster_name, removal.broker_addr), content, 0, opened_ms)

    def _ask(self, kind: int, key: Key, content: str, serial: int, opened_ms: float | None) -> "Future[int]":
        self._last_question += 1
        future: Future[int] = asyncio.get_running_loop().create_future()
        question = _Question(kind, key, content, serial, opened_ms, future)
        self._questions[self._last_question] = question
        self._put(self._last_question, question)
        return future

    def _put(self, number: int, question: _Question) -> None:
        leader, now = self._consensus.leader, self._running_ms()
        if leader is None:
            return
        serial = question.serial
        if question.kind == REMOVE:
            if self._leader_clock is None or self._leader_clock[0] != self._consensus.term:
                return  # the clocks of leaders differ, so ``tick`` asks only after this leader has answered a report
            serial = self._present_ms(self._leader_clock)
        question.sent_ms, question.term = now, self._consensus.term
        since_ms = AGE_MAX
        if question.opened_ms is not None:
            since_ms = min(AGE_MAX - 1, max(0, int(self._monotonic_ms() - question.opened_ms - ROUND_MS)))
        fields = (question.term, question.kind, serial, since_ms, question.key, question.content)
        self._send(leader, Inquiry(self._session, number, *fields))

    def report_soon(self) -> None:
        """Report a change to the leader soon."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        leader, now = self._consensus.leader, self._running_ms()
        if leader is None:
            self._renewals = [renewal for renewal in self._renewals if not renewal[1].done()]
            return
        term, clock_ms = self._consensus.term, self._monotonic_ms()
        old_contacts = self._attachments.old_contacts(clock_ms)
        is_first = self._told != (term, leader) or bool(old_contacts and not self._unlisted)
        if is_first:
            self._told, self._whole_list = (term, leader), self._sequence + 1
            self._requeue_sent()
            self._unlisted = deque(key for key, _ in self._attachments.known())
            old_contacts = self._attachments.old_contacts(clock_ms)
        else:
            self._unlisted.extend(old_contacts)
        for key in old_contacts:
            del self._attachments.changed[key]

        room = Room(may_be_old=self._consensus.command_version < SUSPICION_VERSION)
        contacts: list[Key] = []
        part = ALONE
        is_list = is_first or bool(self._unlisted and self._last_part not in self._sent)
        if is_list:
            entries = self._take_listed(room, clock_ms)
            part = MORE if self._unlisted else ALONE if is_first else LAST
            self._last_part = self._sequence + 1
        else:
            contacts = self._take_changed(room)
            entries = [e for e in (self._attachments.entry(key, clock_ms) for key in contacts) if e is not None]
        renewals = [] if part == MORE else self._take_renewals(room, len(entries), clock_ms)
        entries += (entry for _, entry, _ in renewals)
        self._sequence += 1
        self._last_report_ms = now
        self._sent[self._sequence] = _Sent(now, renewals, contacts)
        running_ms = int(now - self._began_ms)
        self._send(leader, NodeReport(self._session, self._sequence, term, is_first, tuple(entries), running_ms, part))
        if self._renewals or (self._attachments.changed and (part == MORE or not is_list)):
            self.report_soon()

    def _take_listed(self, room: Room, clock_ms: float) -> list[ReportEntry]:
        entries = []
        while self._unlisted and room.take(self._unlisted[0]):
            entry = self._attachments.entry(self._unlisted.popleft(), clock_ms)
            if entry is not None:
                entries.append(entry)
        return entries

    def _take_changed(self, room: Room) -> list[Key]:
        changed = self._attachments.changed
        keys = list(takewhile(room.take, changed))
        for key in keys:
            del changed[key]
        return keys

    def _take_renewals(self, room: Room, position: int, clock_ms: float) -> "list[tuple[int, ReportEntry, Future[int]]]":
        """The waiting renewals that fit, with their positions in the report. Renewals whose callers gave up are dropped. Those of
        registrations that have ended are refused."""
        waiting = []
        for renewal, future in self._renewals:
            if future.done():
                continue
            present = self._attachments.entry(renewal.key, clock_ms)
            if present is None or present.epoch != renewal.epoch:
                future.set_result(DIFFERS)
            else:  # the renewal may have waited, and the connections may have changed
                waiting.append((present._replace(renews=True, generation=renewal.generation), future))
        taken = list(takewhile(lambda renewal: room.take(renewal[0].key), waiting))
        self._renewals = waiting[len(taken) :]
        return [(at, *renewal) for at, renewal in enumerate(taken, position)]

    def _requeue_sent(self) -> None:
        for sent in self._sent.values():
            self._renewals.extend((entry, future) for _, entry, future in sent.renewals if not future.done())
            self._attachments.changed.update(dict.fromkeys(sent.contacts))
        self._late.update(self._sent)
        self._sent.clear()

    def tick(self) -> None:
        """Report to the leader if a report is due, and repeat questions without an answer. Call it every TICK_S."""
        now = self._running_ms()
        oldest = next(iter(self._sent.values()), None)
        if oldest is not None and now - oldest.sent_ms > self._timeout_ms:
            self._told = None
        while self._late and now - self._late[first := next(iter(self._late))].sent_ms > LATE_MS:
            del self._late[first]
        if self._told is None or self._attachments.changed or self._renewals or now - self._last_report_ms >= REPORT_INTERVAL_MS:
            self.report_soon()
        self._ask_again(now)

    def _ask_again(self, now: float) -> None:
        for number, question in list(self._questions.items()):
            if question.future.done():
                del self._questions[number]
            elif question.term != self._consensus.term or now - question.sent_ms > ANSWER_TIMEOUT_MS:
                self._put(number, question)

    def fail(self, reason: str) -> None:
        """The leader cannot be reached: fail everything that waits."""
        self._requeue_sent()
        waiting, self._renewals = self._renewals, []
        questions, self._questions = self._questions, {}
        failed: list[tuple[Future[int], type[UnavailableError | OutcomeUnknownError]]]
        failed = [(future, UnavailableError) for _, future in waiting]
        for question in questions.values():
            failed.append((question.future, UnavailableError if question.kind == REGISTER else OutcomeUnknownError))
        self.renewed[FAILED] += len(waiting)
        for future, error in failed:
            if not future.done():
                future.set_exception(error(reason))

    # Messages from the leader

    def on_decision(self, message: Decision) -> None:
        """The leader has decided a question of this node."""
        question = self._questions.pop(message.number, None) if message.session == self._session else None
        if question is not None and not question.future.done():
            question.future.set_result(message.verdict)

    def on_answer(self, answer: ReportAnswer) -> None:
        """The leader has processed a report of this node."""
        if answer.session != self._session:
            return
        if answer.term == self._consensus.term:
            self._leader_clock = (answer.term, answer.time_ms - self._monotonic_ms())
        # if a whole list was sent after this report, it contains this content, and nothing has to be sent again
        is_missed = answer.wants_full and answer.sequence > self._whole_list
        if is_missed and self._told is not None and answer.term == self._told[0]:
            self._told = None
            self.report_soon()
        sent = self._sent.pop(answer.sequence, None) or self._late.pop(answer.sequence, None)
        if sent is None:
            return
        self._timeout_ms = max(ANSWER_TIMEOUT_MS, 2 * (self._running_ms() - sent.sent_ms))
        if self._unlisted and answer.sequence == self._last_part:
            self.report_soon()
        refusals = dict(answer.refusals)
        for position, _, future in sent.renewals:
            if not future.done():
                verdict = refusals.get(position, ACCEPTED)
                self.renewed[RENEWAL_OUTCOMES[verdict]] += 1
                future.set_result(verdict)
