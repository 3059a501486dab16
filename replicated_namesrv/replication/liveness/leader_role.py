"""LeaderRole: what a node does for the group in one term that it leads. The life and death of brokers are decided here.

**Renewals** are judged after a read index that was asked for after they came, and once this leader's own LEAD is applied: so it
led, its state holds everything acknowledged before, and no removal that it does not know of can happen any more, since
removals name their term and are void in another (``route_machine.py``). A renewal is accepted if the registration has the epoch
named, its group is as the sender saw it, and no removal of that epoch is proposed.

**Removals** are proposed by the leader alone: expiries of its own accord, those of code 104 for the node that was asked. A
proposal whose outcome is unknown is repeated until it is known; as long as it is not, renewals of that life are refused.

**Copies** of one registration are let through one at a time (``admission.py``).
"""

import logging
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence

from replicated_namesrv.raft.interfaces import ReadOutcome, ReadReady
from replicated_namesrv.raft.raft_errors import MalformedError
from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.liveness.admission import Admission, Asker, Decided
from replicated_namesrv.replication.liveness.leader_messages import (
    AGE_MAX,
    DIFFERS,
    LATE,
    LOST,
    REGISTER,
    REMOVED,
    REMOVING,
    WITHDRAW,
    Ages,
    Decision,
    Inquiry,
    Key,
    Message,
    NodeReport,
    ReportAnswer,
    ReportEntry,
)
from replicated_namesrv.replication.liveness.leases import DueRemoval, Lease, LeaseTable
from replicated_namesrv.replication.route_machine import (
    ProposalResult,
    RouteStateMachine,
    encode_expire,
    encode_lead,
    encode_unregister,
)
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers
from replicated_namesrv.routes.encoding import dump, load
from replicated_namesrv.routes.state import RouteSettings

log = logging.getLogger(__name__)

SCAN_INTERVAL_MS = 2_000.0
"""All brokers are looked at this often, and all nodes told their ages; those that lost a connection several times a second."""
JUDGING_INTERVAL_MS = 25.0
"""At least this passes between two questions to a majority on behalf of renewals: those that come meanwhile share the next, but
copies of a change do not wait for it."""
REMOVALS_PER_COMMAND = 4
"""Every node applies a command in one go."""
REMOVED_TOPICS_MAX = 200_000
"""Of the brokers whose removal is under way at a time, unless one alone has more; so many take about 40 ms."""
LARGE_TOPICS = 20_000
"""A broker with more is removed alone by code 104; the next one waits for a tick."""
ACCEPTED = 0
Decide = Callable[[bytes], "Future[ProposalResult | None]"]
"""Propose a command; None: its outcome is not known, or it was not taken."""


def encode_removal(removal: BrokerRemoval) -> str:
    """As the content of an Inquiry."""
    return dump([removal.broker_name, removal.broker_id, removal.epoch]).decode("utf-8", "surrogatepass")


def decode_removal(key: Key, content: str) -> BrokerRemoval:
    """Inverse of ``encode_removal``. Raises MalformedError."""
    try:
        broker_name, broker_id, epoch = load(content.encode("utf-8", "surrogatepass"))
        if not (isinstance(broker_name, str) and type(broker_id) is int and type(epoch) is int):
            raise ValueError("a field has the wrong type")
    except (ValueError, TypeError) as error:
        raise MalformedError(f"a removal cannot be read: {error}") from None
    return BrokerRemoval(*key, broker_name, broker_id, epoch)


class LeaderRole:
    """One term of one leader. ``send`` may be called for this node itself."""

    def __init__(
        self,
        term: int,
        node_id: str,
        members: Sequence[str],
        machine: RouteStateMachine,
        consensus: Consensus,
        decide: Decide,
        initial_settings: Callable[[], RouteSettings],
        send: Callable[[str, Message], None],
        grace_ms: float,
        now_ms: Callable[[], float],
        wall_ms: Callable[[], int],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """``decide`` proposes a command of the leader's. ``initial_settings``: the settings of a cluster that nobody has led
        before. ``later(seconds, act)``: as ``loop.call_later``."""
        self.term = term
        self.expired_count = self.lost_count = 0
        self._node_id, self._members = node_id, members
        self._machine, self._consensus, self._send = machine, consensus, send
        self._propose, self._initial_settings = decide, initial_settings
        self._now_ms, self._wall_ms, self._later = now_ms, wall_ms, later
        self._grace_ms = grace_ms
        self.table = LeaseTable(members, node_id, grace_ms, now_ms())
        self._admission = Admission(machine.marks)
        self._large_removals: set[tuple[Key, int]] = set()
        """Of brokers with many topics the one that a code 104 removes now: one at a time, so that no entry holds many."""
        self._removing: set[tuple[Key, int]] = set()
        self._suspects: dict[Key, float] = {}
        """Brokers of which a connection was lost, and when this was told; until all were looked at after the grace."""
        self._unjudged: list[tuple[str, NodeReport, bool]] = []
        self._is_judging = False
        self._judged_ms = -JUDGING_INTERVAL_MS
        """When a majority was asked last."""
        self._is_pausing = self._is_hurried = False
        """Whether the interval is waited for; whether somebody cannot."""
        self._registered_lately: set[Key] = set()
        """Since all were looked at."""
        self._early: dict[Asker, Inquiry] = {}
        """Removals that came before this leader knew enough."""
        self._removals: set[Asker] = set()
        """Removals under way for other nodes."""
        self._again: list[Callable[[], None]] = []
        """Proposals without an outcome, to be repeated at the next tick."""
        self._last_scan_ms = -SCAN_INTERVAL_MS
        self._is_scan_unfinished = False
        """More were due at the last one than one command removes."""
        self._claim()

    @property
    def is_over(self) -> bool:
        """Whether this node no longer leads this term."""
        return self._consensus.led_term != self.term

    @property
    def is_known(self) -> bool:
        """Whether this leader's LEAD has been applied: nobody else's removals can happen any more."""
        return self._machine.led_term == self.term

    def _time_ms(self) -> int:
        return max(self._wall_ms(), self._machine.time_ms)

    def _claim(self) -> None:
        """Propose LEAD until it is applied."""

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            if not outcome.cancelled() and not self.is_over and not self.is_known:
                self._again.append(self._claim)

        self._propose(encode_lead(self._initial_settings(), self._time_ms(), self.term)).add_done_callback(ended)

    # What was applied

    def led(self, before: int) -> None:
        """LEAD was applied; ``before``: term of the one before."""
        self.table.succeed(before, self._machine.state.revision, self._now_ms())
        self._judge_next()

    def registered(self, key: Key, epoch: int | None, content: str) -> None:
        """A registration was applied. ``epoch``: of what it registered, if that is in force; then it is a sign of life."""
        if epoch is not None:
            self._registered_lately.add(key)
            self.table.heard(key, epoch, self._now_ms())
        self._decide_all(self._admission.applied(key, content))

    def removed(self, key: Key, epoch: int) -> None:
        """A registration ended."""
        self._suspects.pop(key, None)
        self.table.forget(key)

    # Reports

    def on_report(self, peer: str, report: NodeReport) -> None:
        """Take a node's report; it is answered, at once or when its renewals were judged."""
        if report.term != self.term or self.is_over:
            return
        entries = tuple(entry for entry in report.entries if self._may_be_registered(entry))
        for entry in entries:
            if entry.state >= LOST:
                self._suspects[entry.key] = self._now_ms()
        taken = self.table.report(peer, report._replace(entries=entries), self._now_ms())
        if report.is_full and self.is_known:
            self._tell_ages([peer], self._leases())
        renewed = [entry.key for entry in report.entries if entry.renews]
        if renewed:
            self._unjudged.append((peer, report, taken))
            self._is_hurried = self._is_hurried or not self._registered_lately.isdisjoint(renewed)
            self._judge_next()
        else:
            self._answer(peer, report, taken, ())

    def _may_be_registered(self, entry: ReportEntry) -> bool:
        """False for a broker whose removal this leader has applied and the sender had not: nothing would remove its record again.
        An entry about a node always counts."""
        state = self._machine.state
        return entry.key[0] == "" or entry.epoch > state.revision or state.registration(*entry.key) is not None

    def _answer(self, peer: str, report: NodeReport, taken: bool, refusals: tuple[tuple[int, int], ...]) -> None:
        self._send(peer, ReportAnswer(report.session, report.sequence, report.term, not taken, self._time_ms(), refusals))

    def _judge_next(self) -> None:
        if self._is_judging or not self._unjudged or not self.is_known:
            return
        pause_ms = self._judged_ms + JUDGING_INTERVAL_MS - self._now_ms()
        if self._is_hurried or pause_ms <= 0:
            self._ask_majority()
        elif not self._is_pausing:
            self._is_pausing = True
            self._later(pause_ms / 1000, self._paused)

    def _paused(self) -> None:
        self._is_pausing = False
        self._is_hurried = True
        self._judge_next()

    def _ask_majority(self) -> None:
        """One question for all that came so far."""
        self._is_judging, self._is_hurried = True, False
        self._judged_ms = self._now_ms()
        batch, self._unjudged = self._unjudged, []
        self._consensus.read_index().add_done_callback(lambda outcome: self._judge(batch, outcome))

    def _judge(self, batch: list[tuple[str, NodeReport, bool]], outcome: "Future[ReadOutcome]") -> None:
        self._is_judging = False
        if self.is_over:
            return
        if not outcome.cancelled() and isinstance(outcome.result(), ReadReady):
            for peer, report, taken in batch:
                refusals = tuple(
                    (position, why)
                    for position, entry in enumerate(report.entries)
                    if entry.renews and (why := self._verdict(entry)) != ACCEPTED
                )
                self._answer(peer, report, taken, refusals)
        self._judge_next()

    def _verdict(self, entry: ReportEntry) -> int:
        state = self._machine.state
        registration = state.registration(*entry.key)
        if registration is None or registration.epoch != entry.epoch:
            return DIFFERS
        if (entry.key, entry.epoch) in self._removing:
            return REMOVING
        if entry.generation and state.group_generation(registration.broker_name) != entry.generation:
            return DIFFERS
        self.table.heard(entry.key, entry.epoch, self._now_ms())
        return ACCEPTED

    # Inquiries

    def on_inquiry(self, peer: str, inquiry: Inquiry) -> None:
        """Take a node's inquiry; it is answered once it is decided. Raises MalformedError."""
        if inquiry.term != self.term or self.is_over:
            return
        asker = Asker(peer, inquiry.session, inquiry.number)
        if inquiry.kind == REGISTER:
            verdict = self._admission.ask(asker, inquiry.key, inquiry.content, inquiry.serial, self._now_ms())
            if verdict is not None:
                self._decide(asker, verdict)
        elif inquiry.kind == WITHDRAW:
            self._decide_all(self._admission.withdraw(asker, inquiry.key, inquiry.content, self._now_ms()))
        elif self.is_known and self.table.is_ready:
            self._remove(asker, inquiry)
        else:
            self._early[asker] = inquiry

    def _decide_all(self, decisions: Iterable[Decided]) -> None:
        for decided in decisions:
            self._decide(decided.asker, decided.verdict)

    def _decide(self, asker: Asker, verdict: int) -> None:
        self._send(asker.node, Decision(asker.session, asker.number, verdict))

    def _remove(self, asker: Asker, inquiry: Inquiry) -> None:
        """Code 104, for the node that was asked; repeated inquiries start no second proposal."""
        removal = decode_removal(inquiry.key, inquiry.content)
        if asker in self._removals:
            return
        assert removal.epoch is not None
        registered_ms = self._now_ms() - inquiry.registered_ms
        if inquiry.registered_ms != AGE_MAX and self.table.came_back(inquiry.key, removal.epoch, asker.node, registered_ms):
            self._decide(asker, LATE)
            return
        life = (inquiry.key, removal.epoch)
        self._removals.add(asker)
        self._removing.add(life)

        command = UnregisterBrokers((removal,))

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            self._large_removals.discard(life)
            if outcome.cancelled() or self.is_over:
                return
            applied = outcome.result()
            if applied is None:
                self._again.append(propose)
                return
            self._removals.discard(asker)
            self._removing.discard(life)
            if applied.ignored is None:
                self._decide(asker, REMOVED)

        def propose() -> None:
            if self._machine.state.topics_concerned(command) > LARGE_TOPICS:
                if self._large_removals:
                    self._again.append(propose)
                    return
                self._large_removals.add(life)
            self._propose(encode_unregister(command, self._time_ms(), self.term)).add_done_callback(ended)

        propose()

    # Time

    def tick(self) -> None:
        """Call it a few times a second."""
        now = self._now_ms()
        again, self._again = self._again, []
        for propose in again:
            propose()
        self._decide_all(self._admission.overdue(self.table.silent_nodes(now), now))
        if not self.is_known:
            return
        self._judge_next()
        if self._early and self.table.is_ready:
            early, self._early = self._early, {}
            for asker, inquiry in early.items():
                self._remove(asker, inquiry)
        self._expire(now)

    def _expire(self, now: float) -> None:
        if not self.table.is_ready:
            return
        is_scan = now - self._last_scan_ms >= SCAN_INTERVAL_MS
        if is_scan:
            self._registered_lately.clear()
        leases = self._leases() if is_scan or self._is_scan_unfinished else self._suspected(now)
        if is_scan:
            self._last_scan_ms, self._is_scan_unfinished = now, True
            self._tell_ages(self._members, leases)
        if len(self._removing) >= REMOVALS_PER_COMMAND:
            return
        due = [expiry for expiry in self.table.due(leases, now) if (expiry.key, expiry.epoch) not in self._removing]
        batch = self._first(due)
        self._is_scan_unfinished = self._is_scan_unfinished and len(due) > len(batch)
        for is_lost in (True, False):
            of_kind = [expiry for expiry in batch if expiry.is_lost == is_lost]
            if of_kind:
                self._propose_expiry(of_kind, is_lost)

    def _first(self, due: list[DueRemoval]) -> list[DueRemoval]:
        """Those to be removed by one command, with regard to the topics of those that are being removed."""
        state = self._machine.state

        def topics_of(key: Key) -> int:
            held = state.registration(*key)
            return 0 if held is None else state.topic_count(held.broker_name)

        topics = sum(topics_of(key) for key, _ in self._removing)
        for position, expiry in enumerate(due[:REMOVALS_PER_COMMAND]):
            topics += topics_of(expiry.key)
            if topics > REMOVED_TOPICS_MAX and (position or self._removing):
                return due[:position]
        return due[:REMOVALS_PER_COMMAND]

    def _suspected(self, now: float) -> list[Lease]:
        looked_at_ms = now - self._grace_ms - SCAN_INTERVAL_MS
        self._suspects = {key: told_ms for key, told_ms in self._suspects.items() if told_ms > looked_at_ms}
        found = ((key, self._machine.state.registration(*key)) for key in self._suspects)
        return [Lease(key, held.epoch, held.heartbeat_timeout_ms) for key, held in found if held is not None]

    def _propose_expiry(self, batch: list[DueRemoval], is_lost: bool) -> None:
        removals = []
        for expiry in batch:
            registration = self._machine.state.registration(*expiry.key)
            assert registration is not None, "leases are made of registrations"
            removals.append(BrokerRemoval(*expiry.key, registration.broker_name, registration.broker_id, expiry.epoch))
        lives = {(expiry.key, expiry.epoch) for expiry in batch}
        self._removing |= lives
        why = "lost" if is_lost else "silent"
        log.warning("removing brokers", extra={why: [expiry.key[1] for expiry in batch]})
        data = encode_expire(UnregisterBrokers(tuple(removals)), self._time_ms(), self.term, self._machine.serial, is_lost)

        def propose() -> None:
            self._propose(data).add_done_callback(ended)

        def ended(outcome: "Future[ProposalResult | None]") -> None:
            if outcome.cancelled() or self.is_over:
                return
            if outcome.result() is None:
                self._again.append(propose)
                return
            self._removing.difference_update(lives)
            gone = sum(self._is_gone(*life) for life in lives)
            if is_lost:
                self.lost_count += gone
            else:
                self.expired_count += gone

        propose()

    def _is_gone(self, key: Key, epoch: int) -> bool:
        registration = self._machine.state.registration(*key)
        return registration is None or registration.epoch != epoch

    def _leases(self) -> list[Lease]:
        registrations = self._machine.state.registrations()
        return [Lease((r.cluster_name, r.broker_addr), r.epoch, r.heartbeat_timeout_ms) for r in registrations]

    def _tell_ages(self, members: Sequence[str], leases: list[Lease]) -> None:
        ages = self.table.ages(leases, self._now_ms())
        if ages:
            message = Ages(self.term, tuple(ages))
            for member in members:
                self._send(member, message)
