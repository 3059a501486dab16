"""The rows of decision tables that a story covers, and those that it lists in its ``# rows:`` line."""

import re
from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from replicated_namesrv.errors import StaleReadError, UnavailableError
from replicated_namesrv.raft import configuration, formation, member_changes, stall, standing
from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.elections import Elections
from replicated_namesrv.raft.member_changes import MemberChange, MemberChanges, Refusal
from replicated_namesrv.raft.members import MEMBERS_ENTRY, VACANT, unpack_members
from replicated_namesrv.raft.payloads import JOIN, unpack_join
from replicated_namesrv.raft.raft_messages import Introduction, PreVote
from replicated_namesrv.raft.standing import IncarnationRecord, PeerMemories, Standing
from replicated_namesrv.raft.transfer_leadership import LeadershipTransfer
from replicated_namesrv.replication import broker_calls, leader_preference, read_barrier
from replicated_namesrv.replication.leader_preference import LeaderPreference
from replicated_namesrv.replication.liveness import attachments, copies, departures, renewals, silence
from replicated_namesrv.replication.read_barrier import ReadBarrier
from replicated_namesrv.service import Freshness, ReadLevel
from tests.golden.liveness_rows import watch_liveness

TABLES = {
    "formation": formation,
    "standing": standing,
    "configuration": configuration,
    "members": member_changes,
    "stall": stall,
    "reads": read_barrier,
    "attachments": attachments,
    "silence": silence,
    "renewals": renewals,
    "departures": departures,
    "copies": copies,
    "calls": broker_calls,
    "preference": leader_preference,
}
WITHOUT_STORY = {
    "formation F12": "row_f12",
    "attachments C2": "test_slow_answer",
    "attachments C4": "test_unanswered_queries",
    "calls D4": "test_104_after_a_registration_that_failed",
    "copies P2": "test_the_next_is_let_through_if_the_first_withdraws",
    "copies P3": "test_the_next_is_let_through_if_the_first_does_not_come",
    "members M3": "row_m3",
    "departures N7": "test_removed_node",
    "departures N8": "test_unreported_registration",
    "departures U5": "test_104_waits_for_an_unreported_registration",
    "renewals R1": "test_unknown_epoch",
    "renewals R3": "test_changed_group",
    "silence W1": "test_silence_before_an_accepted_renewal_is_not_recorded",
    "silence W2": "test_a_removal_does_not_overtake_a_contact",
    "silence W3": "test_a_removal_does_not_overtake_a_contact",
    "standing S7": "test_a_process_that_goes_back_with_its_memory_rejoins",
}
"""Rows that need an outcome within a few milliseconds of another, a second world, another version, or a node that joins while a
member is blank. Each has a test in ``tests/replication`` or ``tests/raft``."""
NO_TRANSCRIPT = {
    "raft/message_bounds.py": "tests/raft/test_message_bounds.py",
    "raft/transport.py": "tests/raft/test_handshake_rows.py",
}
"""Modules with tables about bytes of connections, and the tests of these tables. The nodes of a story exchange no bytes."""
_ROW = re.compile(r"^(?:\| |    )([A-Z]\d+) +", re.MULTILINE)
_CLAIM = re.compile(r"^# rows: (.+)$", re.MULTILINE)


def rows_of_tables() -> set[str]:
    """``formation F1`` and so on: every row of the tables in the docstrings."""
    return {f"{name} {row}" for name, module in TABLES.items() for row in rows_in(module.__doc__ or "")}


def rows_in(docstring: str) -> list[str]:
    """The rows of the tables in a docstring."""
    return _ROW.findall(docstring)


def rows_claimed(text: str) -> set[str]:
    """The rows that a transcript names: ``# rows: formation F1 F2, standing S1``."""
    claimed = set()
    for line in _CLAIM.findall(text):
        for part in line.split(","):
            table, *rows = part.split()
            claimed |= {f"{table} {row}" for row in rows}
    return claimed


@contextmanager
def rows_taken() -> Iterator[set[str]]:
    """The rows that are taken while the block runs."""
    taken: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        _watch_formation(patch, taken)
        _watch_standing(patch, taken)
        _watch_configuration(patch, taken)
        _watch_member_changes(patch, taken)
        _watch_stall(patch, taken)
        _watch_reads(patch, taken)
        _watch_fence(patch, taken)
        _watch_preference(patch, taken)
        watch_liveness(patch, taken)
        yield taken


def _watch_formation(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    def watched(decide: Any) -> Any:
        def decided(*arguments: Any) -> Any:
            step = decide(*arguments)
            taken.add(f"formation {step.row}")
            return step

        return decided

    patch.setattr("replicated_namesrv.raft.membership.next_step", watched(formation.next_step))
    patch.setattr("replicated_namesrv.raft.membership.judge_member", watched(formation.judge_member))


def _watch_standing(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    judge, beside = IncarnationRecord.judge, PeerMemories.judge_beside

    def watched_judge(self: IncarnationRecord, said: Introduction, *arguments: Any, **options: Any) -> Standing | None:
        current = self.current
        result = judge(self, said, *arguments, **options)
        if result is not None:
            is_current = current in (0, said.process)
            by_standing = {
                Standing.PENDING: "S1",
                Standing.ACCEPTED: "S2" if is_current else "S6",
                Standing.CONTESTED: "S3" if is_current else "S4",
                Standing.REGRESSED: "S7" if is_current else "S5",
            }
            taken.add(f"standing {by_standing[result]}")
        return result

    def watched_beside(self: PeerMemories, peer: str, incarnation: int, known: int, *arguments: Any, **options: Any) -> Standing:
        result = beside(self, peer, incarnation, known, *arguments, **options)
        accepted = "I1" if known in (0, incarnation) else "I2"
        taken.add(f"standing {({Standing.ACCEPTED: accepted, Standing.CONTESTED: 'I3', Standing.PENDING: 'I4'})[result]}")
        return result

    patch.setattr(IncarnationRecord, "judge", watched_judge)
    patch.setattr(PeerMemories, "judge_beside", watched_beside)


def _watch_configuration(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    added = Configuration.added

    def watched(self: Configuration, index: int, payload: bytes) -> None:
        before = dict(self.latest)
        added(self, index, payload)
        if payload[:2] == JOIN:
            node, incarnation = unpack_join(payload)
            in_force = self.latest.get(node) == incarnation
            if incarnation == VACANT and in_force:
                taken.add("configuration C1")
            elif before.get(node) == VACANT and in_force:
                taken.add("configuration C2")
            elif before.get(node) not in (VACANT, incarnation) and not in_force:
                taken.add("configuration C3")

        elif payload[:2] == MEMBERS_ENTRY and self.members == unpack_members(payload):
            taken.add("configuration C4")

    patch.setattr(Configuration, "added", watched)


def _watch_member_changes(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    refusal = MemberChanges.refusal

    def watched(self: MemberChanges, change: MemberChange) -> Refusal | None:
        found = refusal(self, change)
        taken.update([f"members {found.row}"] if found is not None else ())
        return found

    patch.setattr(MemberChanges, "refusal", watched)


def _watch_stall(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    tick_stall, timeout_now = LeadershipTransfer.tick_stall, LeadershipTransfer.send_timeout_now
    tick, pre_vote = Elections.tick, Elections.on_pre_vote

    def watched_tick_stall(self: LeadershipTransfer) -> None:
        led = self._core.is_leader
        tick_stall(self)
        if not self._stall.stalled:
            taken.add("stall D1")
        elif led and not self._context.peers:
            taken.add("stall D5")
        elif led and not self._core.is_leader:
            taken.add("stall D4")

    def watched_timeout_now(self: LeadershipTransfer, peer: str, term: int) -> None:
        timeout_now(self, peer, term)
        if self._stall.stalled:
            taken.add("stall D3")

    def watched_tick(self: Elections, now: float) -> None:
        if self._stall.stalled and now >= self._leadership.election_deadline:
            taken.add("stall D2")
        tick(self, now)

    def watched_pre_vote(self: Elections, peer: str, message: PreVote) -> None:
        if self._stall.stalled:
            taken.add("stall D2")
        pre_vote(self, peer, message)

    patch.setattr(LeadershipTransfer, "tick_stall", watched_tick_stall)
    patch.setattr(LeadershipTransfer, "send_timeout_now", watched_timeout_now)
    patch.setattr(Elections, "tick", watched_tick)
    patch.setattr(Elections, "on_pre_vote", watched_pre_vote)


def _watch_reads(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    barrier, ask, answered, judged = ReadBarrier.barrier, ReadBarrier._ask, ReadBarrier._answered, ReadBarrier._judged

    def watched_barrier(self: ReadBarrier, level: ReadLevel | None, bound: int | None) -> Any:
        live = self._is_live
        stale = "R3" if level is ReadLevel.STALE else "R4" if self._default is ReadLevel.STALE else "R5"
        try:
            result = barrier(self, level, bound)
        except UnavailableError:
            taken.add("reads R6" if live else "reads R1")
            raise
        except StaleReadError:
            taken.add(f"reads {stale}")
            raise
        if isinstance(result, Freshness):
            taken.add(f"reads {'R2' if result.level is ReadLevel.LEASE else stale}")
        else:
            taken.add("reads R7")
        return result

    def watched_ask(self: ReadBarrier) -> None:
        shared = self._collecting
        was_done = shared is None or shared.done()
        ask(self)
        if shared is not None and shared.done() and not was_done:
            taken.add("reads W1")

    def watched_answered(self: ReadBarrier, shared: "Future[Freshness]", asked_ms: float, answer: Any) -> None:
        was_done = shared.done()
        answered(self, shared, asked_ms, answer)
        if shared.done() and not was_done:
            taken.add("reads W2" if shared.exception() is None else "reads W3")

    def watched_judged(self: ReadBarrier, shared: "Future[Freshness]", level: ReadLevel | None, bound: int | None) -> Any:
        own = judged(self, shared, level, bound)

        def done(future: "Future[Freshness]") -> None:
            if not shared.cancelled() and shared.exception() is None and shared.result().level is ReadLevel.STALE:
                taken.add("reads W5" if level is None else "reads W6")

        own.add_done_callback(done)
        return own

    patch.setattr(ReadBarrier, "barrier", watched_barrier)
    patch.setattr(ReadBarrier, "_ask", watched_ask)
    patch.setattr(ReadBarrier, "_answered", watched_answered)
    patch.setattr(ReadBarrier, "_judged", watched_judged)


def _watch_fence(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    tick, confirmed, fence = ReadBarrier.tick, ReadBarrier.confirmed, ReadBarrier._fence

    def watched_tick(self: ReadBarrier) -> None:
        live, fenced = self._is_live, self.fenced
        tick(self)
        if not live:
            row = "F1"
        elif fenced:
            row = "F5"
        elif self.fenced:
            row = "F4"
        else:
            row = "F3" if self._silent_ms > self._fence_after_ms else "F2"
        taken.add(f"reads {row}")

    def watched_confirmed(self: ReadBarrier, asked_ms: float) -> None:
        taken.add("reads F6" if self.fenced else "reads F7")
        confirmed(self, asked_ms)

    def watched_fence(self: ReadBarrier) -> None:
        waiting = [shared for shared in self._waiting if not shared.done()]
        fence(self)
        taken.update("reads W4" if shared.exception() else "reads W5" for shared in waiting)

    patch.setattr(ReadBarrier, "tick", watched_tick)
    patch.setattr(ReadBarrier, "confirmed", watched_confirmed)
    patch.setattr(ReadBarrier, "_fence", watched_fence)


def _watch_preference(patch: pytest.MonkeyPatch, taken: set[str]) -> None:
    is_due, target = LeaderPreference.is_due, LeaderPreference.target

    def watched_due(self: LeaderPreference, term: int | None, now_ms: float) -> bool:
        is_new = term != self._term
        found = is_due(self, term, now_ms)
        if term is None:
            taken.add("preference P1")
        elif not self._before_us:
            taken.add("preference P3")
        elif is_new:
            taken.add("preference P2")
        return found

    def watched_target(self: LeaderPreference, *arguments: Any) -> str | None:
        found = target(self, *arguments)
        taken.add("preference P4" if found is None else "preference P5")
        return found

    patch.setattr(LeaderPreference, "is_due", watched_due)
    patch.setattr(LeaderPreference, "target", watched_target)
