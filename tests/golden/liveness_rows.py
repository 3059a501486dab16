"""Records the rows that a story takes in the tables of ``replication/liveness`` and of ``broker_calls.py``."""

from asyncio import Future
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from replicated_namesrv.model import DataVersion
from replicated_namesrv.replication.broker_calls import BrokerCalls
from replicated_namesrv.replication.liveness.attachments import Attachments, Conversations
from replicated_namesrv.replication.liveness.copies import Admission, LateCopies
from replicated_namesrv.replication.liveness.departures import Departures
from replicated_namesrv.replication.liveness.leader_client import LeaderClient
from replicated_namesrv.replication.liveness.leader_messages import HELD, LOST, RELEASED, REMOVING, ReportEntry
from replicated_namesrv.replication.liveness.leader_role import LeaderRole
from replicated_namesrv.replication.liveness.renewals import ACCEPTED, Renewals
from replicated_namesrv.replication.liveness.silence import SHARES, Lease, Silence, Suspicions
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers
from replicated_namesrv.service import Connection


def watch_liveness(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    """Add each row that is taken to ``taken``."""
    _watch_attachments(patch, taken)
    _watch_silence(patch, taken)
    _watch_suspicions(patch, taken)
    _watch_renewals(patch, taken)
    _watch_departures(patch, taken)
    _watch_copies(patch, taken)
    _watch_calls(patch, taken)


def _watch_attachments(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    entry, flush, closed = Attachments.entry, LeaderClient._flush, Conversations.closed

    def watched_entry(self: Attachments, key: Key, clock_ms: float) -> ReportEntry | None:
        found = entry(self, key, clock_ms)
        if found is not None:
            taken.add(f"attachments {({HELD: 'A1', LOST: 'A2', RELEASED: 'A3'})[found.state]}")
        return found

    def watched_flush(self: LeaderClient) -> None:
        before, known = self._told, dict(self._attachments.known())
        flush(self)
        registered = ((r.cluster_name, r.broker_addr) for r in self._machine.state.registrations())
        if self._told != before and any(key not in known for key in registered):
            taken.add("attachments A4")

    def watched_closed(self: Conversations, connection_id: int, is_acknowledged: bool, now_ms: float) -> bool:
        self.tick(now_ms)
        talk = self._open.get(connection_id)
        if talk is not None:
            rows = {
                "C1": talk.unanswered,
                "C2": now_ms <= talk.doubtful_until_ms,
                "C3": now_ms <= self._slow_until_ms,
                "C5": not is_acknowledged,
                "C6": True,
            }
            taken.add(f"attachments {next(row for row, holds in rows.items() if holds)}")
        return closed(self, connection_id, is_acknowledged, now_ms)

    patch.setattr(Attachments, "entry", watched_entry)
    patch.setattr(LeaderClient, "_flush", watched_flush)
    patch.setattr(Conversations, "closed", watched_closed)


def _watch_silence(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    continues, contact, due = Silence._continue, Silence.contact, Silence.due

    def watched_continue(self: Silence, lease: Lease, begun_ms: float) -> None:
        if lease.suspicion:
            taken.add("silence B2")
        continues(self, lease, begun_ms)

    def watched_contact(self: Silence, lease: Lease, now_ms: float) -> None:
        taken.add("silence B1")
        contact(self, lease, now_ms)

    def watched_due(self: Silence, lease_of: Callable[[Key], Lease | None], now_ms: float, can_record: bool = True) -> Any:
        for look_ms, key in self._heap:
            watched, lease = self._watched.get(key), lease_of(key)
            if look_ms <= now_ms and watched is not None and lease is not None and watched.look_ms == look_ms:
                share = min(SHARES, int((now_ms - watched.since_ms) / lease.third_ms))
                if share in (0, SHARES):
                    taken.add("silence S5" if share else "silence S1")
                elif can_record:
                    taken.add(f"silence {('S2' if share == 1 else 'S3') if share > lease.suspicion else 'S4'}")
        return due(self, lease_of, now_ms, can_record)

    patch.setattr(Silence, "_continue", watched_continue)
    patch.setattr(Silence, "contact", watched_contact)
    patch.setattr(Silence, "due", watched_due)


def _watch_suspicions(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    record, made_contact = Suspicions.record, Suspicions.made_contact

    def watched_record(self: Suspicions, key: Key, epoch: int, share: int) -> None:
        waits = self._wanted.get(key)
        if waits is not None and bool(waits.share) != bool(share):
            taken.add("silence W3" if share else "silence W2")
        record(self, key, epoch, share)

    def watched_made_contact(self: Suspicions, key: Key) -> None:
        waits = self._wanted.get(key)
        if waits is not None and waits.share:
            taken.add("silence W1")
        made_contact(self, key)

    patch.setattr(Suspicions, "record", watched_record)
    patch.setattr(Suspicions, "made_contact", watched_made_contact)


def _watch_renewals(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    verdict = Renewals._verdict

    def watched(self: Renewals, entry: ReportEntry) -> int | None:
        registration = self._machine.state.registration(*entry.key)
        found = verdict(self, entry)
        if registration is None or registration.epoch != entry.epoch:
            taken.add("renewals R1")
        else:
            taken.add(f"renewals {({REMOVING: 'R2', None: 'R4', ACCEPTED: 'R5'}).get(found, 'R3')}")
        return found

    patch.setattr(Renewals, "_verdict", watched)


def _watch_departures(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    left, late, early = Departures._left_ms, Departures.is_late, LeaderRole._unregister_early

    def watched_left(self: Departures, lease: Lease, now_ms: float) -> float:
        for name, node in self._nodes.items():
            word = node.words.get(lease.key)
            if not self._is_heard(name, node, now_ms):
                taken.add("departures N1")
            elif word is not None and word.epoch == lease.epoch:
                taken.add(f"departures {({HELD: 'N2', LOST: 'N3', RELEASED: 'N4'})[word.state]}")
            else:
                taken.add(f"departures {'N5' if node.began_clock_ms <= self._registered_at_ms(lease) else 'N6'}")
        return left(self, lease, now_ms)

    def watched_late(self: Departures, lease: Lease, since_ms: float, now_ms: float) -> bool:
        found = late(self, lease, since_ms, now_ms)
        taken.add("departures U3" if found else "departures U4")
        return found

    def watched_early(self: LeaderRole) -> None:
        now_ms, departures = self._now_ms(), self.departures
        if self._early and self.silence is not None:
            if not departures.can_judge(now_ms):
                taken.add("departures U1")
            elif departures.unheard(now_ms):
                taken.add("departures U2")
        early(self)

    patch.setattr(Departures, "_left_ms", watched_left)
    patch.setattr(Departures, "is_late", watched_late)
    patch.setattr(LeaderRole, "_unregister_early", watched_early)


def _watch_copies(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    def passing(row: str, method: Any) -> Any:
        def watched(self: Admission, *arguments: Any) -> Any:
            decided = method(self, *arguments)
            if decided:
                taken.add(f"copies {row}")
            return decided

        return watched

    repeated, no_effect, forget = LateCopies.is_repeated, LateCopies.had_no_effect, LateCopies.forget

    def watched_repeated(self: LateCopies, *arguments: Any) -> bool:
        found = repeated(self, *arguments)
        taken.update(["copies L4"] if found else ())
        return found

    def watched_no_effect(self: LateCopies, key: Key, version: DataVersion, received_ms: float) -> None:
        taken.add("copies L3" if self._seen.get(key, (None, 0.0))[0] == version else "copies L2")
        no_effect(self, key, version, received_ms)

    def watched_forget(self: LateCopies, key: Key) -> None:
        taken.add("copies L1")
        forget(self, key)

    for row, name in (("P1", "applied"), ("P2", "withdraw"), ("P3", "overdue")):
        patch.setattr(Admission, name, passing(row, getattr(Admission, name)))
    patch.setattr(LateCopies, "is_repeated", watched_repeated)
    patch.setattr(LateCopies, "had_no_effect", watched_no_effect)
    patch.setattr(LateCopies, "forget", watched_forget)


def _watch_calls(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    unregister, not_taken = BrokerCalls.unregister, BrokerCalls._not_taken

    def rows(self: BrokerCalls, command: UnregisterBrokers, connection: Connection) -> Iterator[str]:
        for removal in command.removals:
            epoch = self._registered_epoch(removal, connection)
            held = self._machine.state.registration(removal.cluster_name, removal.broker_addr)
            yield "D3" if epoch is None else "D2" if held is not None and held.epoch == epoch else "D1"

    def watched_unregister(self: BrokerCalls, command: UnregisterBrokers, connection: Connection | None) -> "Future[Any]":
        if connection is not None:
            taken.update(f"calls {row}" for row in rows(self, command, connection))
        return unregister(self, command, connection)

    def watched_not_taken(removal: BrokerRemoval, connection: Connection | None, why: str) -> Any:
        taken.add("calls D5" if "newer connection" in why else "calls D4")
        return not_taken(removal, connection, why)

    patch.setattr(BrokerCalls, "unregister", watched_unregister)
    patch.setattr(BrokerCalls, "_not_taken", staticmethod(watched_not_taken))
