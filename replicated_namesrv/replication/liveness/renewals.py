"""Renewals: the leader's decision on no-op registrations, heartbeats and queries of a data version.

The leader judges a renewal when its LEAD is applied and a read index is confirmed. The read index must be requested after the
renewal arrived. It proves three facts: this node was the leader when the renewal arrived, its state includes everything
acknowledged before, and no removal that it does not know can still take effect. One read index serves all renewals that arrived
before its request, and there is at most one request per JUDGING_INTERVAL_MS, unless a report is urgent.

    row  registration in the state  removal     group         suspected     the renewal is              test
    R1   none, or another epoch     -           -             -             refused: DIFFERS            test_unknown_epoch
    R2   the epoch named            proposed    -             -             refused: REMOVING           test_removal_under_way
    R3   the epoch named            none        has changed   -             refused: DIFFERS            test_changed_group
    R4   the epoch named            none        the same      yes           judged again once the       test_suspected_broker
                                                                            contact is recorded
    R5   the epoch named            none        the same      no            accepted: a contact         test_unsuspected_broker

The node of a refused renewal registers the broker through the log, or asks again. A ``BROKER_HEARTBEAT`` (904) needs no answer,
so it counts as a contact at once. A node that begins a whole list repeats its unanswered renewals. Therefore the leader drops the
reports that the node sent before this list and that still wait.
"""

from asyncio import Future
from collections.abc import Callable
from typing import NamedTuple

from replicated_namesrv.raft.interfaces import ReadReady
from replicated_namesrv.replication.liveness.leader_messages import DIFFERS, REMOVING, NodeReport, ReportEntry
from replicated_namesrv.replication.liveness.liveness_context import Term
from replicated_namesrv.replication.liveness.removals import Removals
from replicated_namesrv.replication.liveness.silence import Suspicions

JUDGING_INTERVAL_MS = 25.0
"""Minimum time between two requests to a majority for renewals. Renewals that come in between share the next request, but
copies of a change do not wait for it."""
ACCEPTED = 0


class Reported(NamedTuple):
    """A report whose renewals are still to be judged."""

    peer: str
    report: NodeReport
    is_taken: bool


class Renewals:
    """The renewals of one term of one leader."""

    def __init__(
        self,
        term: Term,
        removals: Removals,
        suspicions: Suspicions,
        contact: Callable[[ReportEntry], None],
        answer: Callable[[Reported, tuple[tuple[int, int], ...]], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """``contact``: called for a live broker. ``answer(reported, refusals)``. ``later(seconds, act)``: as
        ``loop.call_later``.
        """
        self._term, self._machine, self._removals, self._suspicions = term, term.node.machine, removals, suspicions
        self._contact, self._answer, self._later, self._now_ms = contact, answer, later, term.node.running_ms
        self.has_begun = False
        """Whether LEAD is applied, so that renewals can be judged."""
        self._waiting: list[Reported] = []
        self._unrecorded: list[Reported] = []
        """Reports that were judged, but whose answers wait until some contacts are recorded."""
        self._is_asking = False
        self._asked_ms = -JUDGING_INTERVAL_MS
        """When this leader last asked a majority."""
        self._is_pausing = self._is_hurried = False
        """Two flags: a timer runs until the end of the interval; a waiting report must not wait for this timer."""

    def put(self, reported: Reported, is_hurried: bool) -> None:
        """Judge this report. ``is_hurried``: do not wait for the interval."""
        self._waiting.append(reported)
        self._is_hurried = self._is_hurried or is_hurried
        self.proceed()

    def repeated(self, peer: str) -> None:
        """The node begins its whole list, and repeats every renewal that has no answer."""
        self._waiting = [other for other in self._waiting if other.peer != peer]
        self._unrecorded = [other for other in self._unrecorded if other.peer != peer]

    def heartbeat(self, entry: ReportEntry) -> None:
        """A contact that needs no answer."""
        if self.has_begun and self._verdict(entry) is None:
            self._suspicions.record(entry.key, entry.epoch, 0)
            self._suspicions.flush()

    def proceed(self) -> None:
        """Request a read index for the waiting reports, at most every JUDGING_INTERVAL_MS unless a report is urgent."""
        if self._is_asking or not self._waiting or not self.has_begun:
            return
        pause_ms = self._asked_ms + JUDGING_INTERVAL_MS - self._now_ms()
        if self._is_hurried or pause_ms <= 0:
            self._ask()
        elif not self._is_pausing:
            self._is_pausing = True
            self._later(pause_ms / 1000, self._paused)

    def _paused(self) -> None:
        self._is_pausing = False
        self._is_hurried = True
        self.proceed()

    def _ask(self) -> None:
        self._is_asking, self._is_hurried = True, False
        self._asked_ms = self._now_ms()
        batch, self._waiting = self._waiting, []

        def answered(outcome: "Future[object]") -> None:
            self._is_asking = False
            if self._term.is_over:
                return
            if not outcome.cancelled() and isinstance(outcome.result(), ReadReady):
                self._judge(batch)
            self.proceed()

        self._term.node.consensus.read_index().add_done_callback(answered)  # type: ignore[arg-type]  # a read outcome is an object

    def recorded(self) -> None:
        """Judge again the reports that wait for contacts: these were recorded, or the outcome is unknown."""
        batch, self._unrecorded = self._unrecorded, []
        self._judge(batch)

    def _judge(self, batch: list[Reported]) -> None:
        for reported in batch:
            verdicts = {at: self._verdict(entry) for at, entry in enumerate(reported.report.entries) if entry.renews}
            refusals = tuple((at, verdict) for at, verdict in verdicts.items() if verdict)
            unrecorded = [reported.report.entries[at] for at, verdict in verdicts.items() if verdict is None]
            if not unrecorded:
                self._answer(reported, refusals)
                continue
            self._unrecorded.append(reported)
            for entry in unrecorded:
                self._suspicions.record(entry.key, entry.epoch, 0)
        self._suspicions.flush()

    def _verdict(self, entry: ReportEntry) -> int | None:
        """ACCEPTED, DIFFERS or REMOVING. None: the contact has to be recorded first."""
        state = self._machine.state
        registration = state.registration(*entry.key)
        if registration is None or registration.epoch != entry.epoch:
            return DIFFERS
        if self._removals.is_removing(entry.key, entry.epoch):
            return REMOVING
        if entry.generation and state.group_generation(registration.broker_name) != entry.generation:
            return DIFFERS
        if self._term.node.defences.contact_recorded and self._suspicions.is_suspected(entry.key):
            return None
        self._contact(entry)
        return ACCEPTED
