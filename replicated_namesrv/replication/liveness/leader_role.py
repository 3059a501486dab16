"""LeaderRole: the work of a leader in one term. It decides about all brokers.

    departures.py    which node is connected to which broker; which brokers have left; which ``UNREGISTER_BROKER`` (104) is late
    silence.py       for how long there was no contact with each broker; recording that in the log
    renewals.py      the leader's decisions on renewals
    removals.py      proposing removals
    copies.py        admitting one of the copies of a registration

The first command of a leader is LEAD. Before it is applied, the leader decides only which copies to admit. From then on, no
other leader's removals or suspicions can take effect (``route_machine.py``).
"""

import math
from asyncio import Future
from collections.abc import Callable, Iterable, Iterator

from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication.liveness.copies import Admission, Asker, Decided
from replicated_namesrv.replication.liveness.departures import Departures
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    HELD,
    LATE,
    REGISTER,
    REMOVED,
    WITHDRAW,
    Decision,
    Inquiry,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
    decode_removal,
)
from replicated_namesrv.replication.liveness.liveness_context import LivenessContext, Term
from replicated_namesrv.replication.liveness.removals import Removals
from replicated_namesrv.replication.liveness.renewals import Renewals, Reported
from replicated_namesrv.replication.liveness.silence import Lease, Silence, Suspicions
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import ProposalResult, Suspect, encode_lead
from replicated_namesrv.routes.commands import BrokerRemoval

LATELY_MS = 2_000.0
"""Time within which the copies of a change arrive. Copies that have become renewals do not wait for heartbeats."""


class LeaderRole:
    """The leader's side in one term. ``send`` may be called for this node itself."""

    def __init__(
        self,
        number: int,
        node: LivenessContext,
        send: Callable[[str, Message], None],
        later: Callable[[float, Callable[[], None]], object],
        removed_ms: float = -math.inf,
    ) -> None:
        """``number``: the term. ``later(seconds, act)``: as ``loop.call_later``. ``removed_ms``: as for ``Departures``."""
        self.term = term = Term(number, node)
        self._machine, self._defences, self._send = node.machine, node.defences, send
        self._now_ms, self._clock_ms = node.running_ms, node.monotonic_ms
        self.silence: Silence | None = None
        """The silence of the registered brokers; None until LEAD is applied."""
        self.departures = Departures(node.members, node.node_id, node.grace_ms, node.running_ms(), node.defences, removed_ms)
        self.removals = Removals(term, self._expire)
        self._suspicions = Suspicions(term, self._recorded)
        self._renewals = Renewals(term, self.removals, self._suspicions, self._renewed, self._judged, later)
        self._admission = Admission(lambda key: node.machine.marks.get(key))
        self._registered_lately: dict[Key, float] = {}
        self._early: dict[Asker, tuple[BrokerRemoval, ChangeOrigin | None, float]] = {}
        """``UNREGISTER_BROKER`` (104) removals that wait until LEAD is applied and the nodes' reports have arrived
        (``Departures.can_judge``, ``Departures.awaits_report``). The float is a time of ``clock_ms``: connections opened after it
        belong to another process."""
        self._unregistering: set[Asker] = set()
        """Senders of the ``UNREGISTER_BROKER`` (104) removals that are in progress."""
        self._is_claimed = False
        """Whether this node has proposed LEAD."""
        self._claim()

    def _claim(self) -> None:
        """Propose LEAD."""
        self._is_claimed = True

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            self._is_claimed = self._machine.led_term == self.term.number

        lead = encode_lead(self.term.node.initial_settings(), self.term.time_ms(), self.term.number)
        self.term.node.decide(lead).add_done_callback(ended)

    # Events of the log

    def lead_applied(self) -> None:
        """LEAD was applied."""
        self._count_silence()
        self.departures.lead_applied(self._machine.state.revision)
        self._renewals.has_begun = True
        self._renewals.proceed()

    def _lease_of(self, key: Key) -> Lease | None:
        registration = self._machine.state.registration(*key)
        if registration is None:
            return None
        known = self._machine.suspected.get(key)
        share = 0 if known is None or not self._defences.silence_continued else known.share
        return Lease(key, registration.epoch, registration.heartbeat_timeout_ms, share)

    def registered(self, key: Key, epoch: int | None, content: str) -> None:
        """Process a registration that was applied. ``epoch``: its epoch if the registration is in force, so that it is a contact;
        None: it is not in force."""
        if epoch is not None:
            self._registered_lately[key] = now = self._now_ms()
            self.departures.registered(key, epoch, now, self._clock_ms())
            self._contact(key, epoch)
        self._decide_all(self._admission.applied(key, content))

    def restored(self, epoch: int) -> None:
        """A backup has replaced the state. All brokers in it count as having registered now, with this epoch."""
        self.departures.restored(epoch, self._clock_ms())
        if self.silence is not None:
            self._count_silence()

    def _count_silence(self) -> None:
        """Count the silence of all registered brokers from now on."""
        self.silence = Silence(self._machine.state.registrations_by_broker(), self._now_ms())

    def removed(self, key: Key, epoch: int) -> None:
        """The registration with this epoch ended."""
        self.departures.forget(key, epoch)
        self._suspicions.forget(key)
        if self.silence is not None:
            self.silence.forget(key)

    def _recorded(self, contacts: Iterable[Suspect]) -> None:
        for contact in contacts:
            self._contact(contact.key, contact.epoch)
        self._renewals.recorded()

    def _renewed(self, entry: ReportEntry) -> None:
        if self._defences.renewals_count:
            self._contact(entry.key, entry.epoch)

    def _contact(self, key: Key, epoch: int) -> None:
        lease = self._lease_of(key)
        if self.silence is not None and lease is not None and lease.epoch == epoch:
            self.silence.contact(lease, self._now_ms())
            self._suspicions.made_contact(key)

    # Reports

    def on_report(self, peer: str, report: NodeReport) -> None:
        """Process a node's report. It is answered at once, or when its renewals were judged."""
        if report.term != self.term.number or self.term.is_over:
            return
        known = tuple(entry for entry in report.entries if self._may_be_registered(entry))
        taken = self.departures.report(peer, report._replace(entries=known), self._now_ms(), self._clock_ms())
        if self._early:
            self._unregister_early()
        if report.is_full:
            self._renewals.repeated(peer)
        if not report.is_listed:
            for entry in known:
                if entry.state == HELD and not entry.renews:
                    self._renewals.heartbeat(entry)
        renewed = [entry.key for entry in report.entries if entry.renews]
        if renewed:
            is_hurried = not self._registered_lately.keys().isdisjoint(renewed)
            self._renewals.put(Reported(peer, report, taken, self._clock_ms()), is_hurried)
        else:
            self._answer(peer, report, taken, ())

    def _may_be_registered(self, entry: ReportEntry) -> bool:
        """Whether the broker of this entry may be registered. False: this leader has applied the removal of the broker, and the
        sender of the entry had not. ``Departures`` would keep such an entry for ever."""
        state = self._machine.state
        return entry.epoch > state.revision or state.registration(*entry.key) is not None

    def _judged(self, reported: Reported, refusals: tuple[tuple[int, int], ...]) -> None:
        self._answer(reported.peer, reported.report, reported.is_taken, refusals)

    def _answer(self, peer: str, report: NodeReport, taken: bool, refusals: tuple[tuple[int, int], ...]) -> None:
        clock_ms = self.term.node.wall_ms()
        self._send(peer, ReportAnswer(report.session, report.sequence, report.term, not taken, clock_ms, refusals))

    # Inquiries

    def on_inquiry(self, peer: str, inquiry: Inquiry) -> None:
        """Decide a question of a node. Raises MalformedError."""
        if inquiry.term != self.term.number or self.term.is_over:
            return
        asker = Asker(peer, inquiry.session, inquiry.number)
        if inquiry.kind == REGISTER:
            verdict = self._admission.ask(asker, inquiry.key, inquiry.content, inquiry.serial, self._now_ms())
            if verdict is not None:
                self._decide(asker, verdict)
        elif inquiry.kind == WITHDRAW:
            self._decide_all(self._admission.withdraw(asker, inquiry.key, inquiry.content, self._now_ms()))
        elif asker not in self._unregistering:
            self._early[asker] = *decode_removal(inquiry.key, inquiry.content), self._since_ms(inquiry)
            self._unregister_early()

    def _since_ms(self, inquiry: Inquiry) -> float:
        """``since_ms`` of a REMOVE, converted to ``clock_ms``. The time that the inquiry needed to arrive is subtracted."""
        if inquiry.since_ms == AGE_MAX:
            return math.inf
        way_ms = max(0, self.term.node.wall_ms() - inquiry.serial) if inquiry.serial else 0
        return self._clock_ms() - inquiry.since_ms - way_ms

    def _decide_all(self, decisions: Iterable[Decided]) -> None:
        for decided in decisions:
            self._decide(decided.asker, decided.verdict)

    def _decide(self, asker: Asker, verdict: int) -> None:
        self._send(asker.node, Decision(asker.session, asker.number, verdict))

    def _unregister_early(self) -> None:
        """Decide the waiting ``UNREGISTER_BROKER`` (104) removals. They continue to wait if LEAD is not applied yet, the list of
        a node is missing, or a registration of the broker is unreported."""
        now = self._now_ms()
        if self.silence is None or not self._early or not self.departures.can_judge(now):
            return
        early, self._early = self._early, {}
        for asker, (removal, origin, since_ms) in early.items():
            if self.departures.awaits_report((removal.cluster_name, removal.broker_addr), now):
                self._early[asker] = removal, origin, since_ms
            else:
                self._unregister(asker, removal, origin, since_ms)

    def _unregister(self, asker: Asker, removal: BrokerRemoval, origin: ChangeOrigin | None, since_ms: float) -> None:
        """Remove a broker for the node that asked. Repeated inquiries start no second proposal."""
        assert removal.epoch is not None, "the epoch is set by the node that asks"
        key = (removal.cluster_name, removal.broker_addr)
        lease = self._lease_of(key)
        if lease is not None and lease.epoch == removal.epoch and self.departures.is_late(lease, since_ms, self._now_ms()):
            self._decide(asker, LATE)
            return
        self._unregistering.add(asker)

        def done(is_removed: bool) -> None:
            self._unregistering.discard(asker)
            if is_removed:
                self._decide(asker, REMOVED)

        self.removals.unregister(removal, origin, done)

    # Time

    def tick(self) -> None:
        """Do the periodic work of the leader: repeat proposals without an outcome, decide waiting removals, record silence, and
        remove brokers. Call it a few times a second."""
        now = self._now_ms()
        if not self._is_claimed:
            self._claim()
        self._decide_all(self._admission.overdue(self.departures.unheard(now), now))
        if self.silence is None:
            return
        self._registered_lately = {key: at_ms for key, at_ms in self._registered_lately.items() if now - at_ms < LATELY_MS}
        self.removals.tick()
        self._renewals.recorded()
        self._renewals.proceed()
        self._unregister_early()
        self._watch(self.silence, now)

    def _watch(self, silence: Silence, now: float) -> None:
        """Record silence, and remove brokers that are silent or have left."""
        for lease, share in silence.due(self._lease_of, now, self._suspicions.can_record):
            if self._defences.silence_recorded:
                self._suspicions.record(lease.key, lease.epoch, share)
        self._suspicions.flush()
        self._expire()

    def _expire(self) -> None:
        self.removals.expire(self._overdue(self._now_ms()))

    def _overdue(self, now: float) -> Iterator[tuple[Lease, bool]]:
        """Brokers that have left, and then silent brokers."""
        for lease in self.departures.gone(self._lease_of, now):
            yield lease, True
        if self.silence is not None and self._defences.silent_removed:
            for lease in self.silence.silent(self._lease_of, now):
                if not self._suspicions.is_clearing(lease.key, lease.epoch):
                    yield lease, False
