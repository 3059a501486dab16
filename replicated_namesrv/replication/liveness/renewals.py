"""Renewals: the leader's decision on no-op registrations, heartbeats and queries of a data version.

The leader judges a renewal on two conditions. Its LEAD is applied, and a majority has confirmed its state for a moment after the
arrival of the renewal. This proves three facts: this node was the leader when the renewal arrived, its state includes everything
acknowledged before, and no removal that it does not know can still take effect. Heartbeats confirm the state without further
messages (``raft/heartbeat_confirmations.py``). In three cases, the leader requests a read index, which serves all renewals that
wait: a report is urgent; the oldest one has waited for WAIT_MS; or the last confirmation by heartbeats is older than AGE_MAX_MS,
because links are slow or there is only one voter. Only one read index is requested at a time. Reports that arrive meanwhile wait
for a heartbeat or for the next one.

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

WAIT_MS = 10.0
"""Time that the oldest waiting report waits for a heartbeat to confirm the state. Copies of a change do not wait."""
AGE_MAX_MS = 100.0
"""If the last confirmation is older than this, reports do not wait for the next one. Two heartbeats by default."""
MARGIN_MS = 1.0
"""The confirmed time must be later than the arrival by this much, because it is converted between two clocks."""
ACCEPTED = 0


class Reported(NamedTuple):
    """A report whose renewals are still to be judged."""

    peer: str
    report: NodeReport
    is_taken: bool
    arrived_ms: float
    """Its arrival, by ``LivenessContext.monotonic_ms``."""


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
        self._contact, self._answer, self._later = contact, answer, later
        self.has_begun = False
        """Whether LEAD is applied, so that renewals can be judged."""
        self._waiting: list[Reported] = []
        self._unrecorded: list[Reported] = []
        """Reports that were judged, but whose answers wait until some contacts are recorded."""
        self._is_asking = self._is_pausing = self._is_hurried = False
        """Three flags: a read index is requested; a timer runs until the look at the confirmed time; a waiting report needs a
        read index."""

    def put(self, reported: Reported, is_hurried: bool) -> None:
        """Judge this report. ``is_hurried``: do not wait for heartbeats."""
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
        """Wait for heartbeats, or request a read index for the waiting reports."""
        if not self._waiting or not self.has_begun:
            return
        node = self._term.node
        now_ms = node.monotonic_ms()
        if self._is_hurried or now_ms - node.consensus.confirmed_ms >= AGE_MAX_MS:
            if not self._is_asking:
                self._ask()
        elif not self._is_pausing:
            self._is_pausing = True
            wait_ms = max(0.0, self._waiting[0].arrived_ms + WAIT_MS - now_ms)
            self._later(wait_ms / 1000, self._look)

    def _look(self) -> None:
        """Judge the reports that arrived before the time for which heartbeats confirm the state. Request a read index for the
        others."""
        self._is_pausing = False
        if self._term.is_over:
            return
        confirmed_ms = self._term.node.consensus.confirmed_ms
        confirmed = [reported for reported in self._waiting if reported.arrived_ms + MARGIN_MS < confirmed_ms]
        self._waiting = self._waiting[len(confirmed) :]
        if confirmed:
            self._judge(confirmed)
        if self._waiting:
            self._is_hurried = True
            self.proceed()

    def _ask(self) -> None:
        self._is_asking, self._is_hurried = True, False
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
