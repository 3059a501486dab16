"""A leader with many brokers: one turn does not visit all of them."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from replicated_namesrv.replication.applied_commands import AppliedCommands
from replicated_namesrv.replication.cluster_restore import RestorableMachine, encode
from replicated_namesrv.replication.command_kinds import BEGIN, FINISH, PIECE
from replicated_namesrv.replication.liveness import silence as silence_module
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.departures import Departures
from replicated_namesrv.replication.liveness.leader_role import LeaderRole
from replicated_namesrv.replication.liveness.silence import Due, Lease, Silence
from replicated_namesrv.routes.state import RouteInfoManager
from tests.replication.test_parts_alone import Parts, turns
from tests.support.routes import register
from tests.support.work import work_of

T = 9_000


class Reporting:
    """A node that leads and receives the commands of a restore."""

    def __init__(self, brokers: int) -> None:
        self.parts = Parts()
        self.machine = RestorableMachine(self.parts.consensus.machine)
        self.applied = AppliedCommands(
            self.machine.machine, self.parts.liveness, lambda effect, is_expired: None, self.parts.consensus
        )
        self.applied.is_live = True
        backup = RouteInfoManager()
        for number in range(brokers):
            backup.apply(register(f"b{number}", 0, f"a{number}", timeout_ms=9_000), 0)
        self.log = [encode(BEGIN, "r"), encode(PIECE, "r", 0, b"".join(backup.snapshot())), encode(FINISH, "r", 1)]

    @property
    def role(self) -> LeaderRole:
        role = self.parts.liveness.role
        assert role is not None
        return role

    @property
    def silence(self) -> Silence:
        assert self.role.silence is not None
        return self.role.silence

    def restore(self) -> None:
        for command in self.log:
            assert self.machine.apply(command).result.code == 0

    def callbacks_of_restore(self, patch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
        """The callbacks that a restore schedules. They are not called."""
        found: list[Callable[[], object]] = []
        patch.setattr(asyncio.get_running_loop(), "call_soon", lambda act, *given, **_: found.append(partial(act, *given)))
        self.restore()
        return found

    def ages(self) -> set[float | None]:
        """The ages of all registered brokers."""
        registrations = self.machine.machine.state.registrations()
        return {self.silence.age_ms((each.cluster_name, each.broker_addr), self.parts.now_ms) for each in registrations}


async def test_the_report_of_a_restore_is_one_callback_of_constant_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for count in (100, 200):
        node = Reporting(count)
        await node.parts.lead()
        await turns()
        node.parts.now_ms = 500.0
        with monkeypatch.context() as patch:
            (report,) = node.callbacks_of_restore(patch)
        node.parts.now_ms = 700.0
        lines.append(work_of(report).lines)
        assert node.ages() == {0.0}
        node.parts.now_ms = 3_700.0
        assert len(node.silence.due(node.role._lease_of, 3_700.0)) == count
        node.parts.tasks.stop()
    assert lines[0] == lines[1] < 50, lines


async def test_a_new_leader_reads_the_registrations_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """All brokers are watched from LEAD on, whenever their registrations are read."""
    monkeypatch.setattr(silence_module, "LOOKS_PER_TURN", 20)
    lines = []
    for count in (100, 200):
        node = Reporting(count)
        node.restore()
        await turns()
        consensus = node.parts.consensus
        node.parts.liveness.leads(3)
        node.parts.now_ms = 1_000.0
        consensus.machine.on_lead = lambda term: None
        await consensus.commit()
        role = node.role
        lines.append(work_of(role.lead_applied).lines)
        lines.append(work_of(role.tick).lines)
        assert node.ages() == {0.0}
        node.parts.now_ms = 1_500.0
        assert node.ages() == {500.0}
        for _ in range(count // 20 - 1):
            assert len(node.silence._unread) > 0
            role.tick()
        assert not node.silence._unread
        assert node.ages() == {500.0}
        node.parts.tasks.stop()
    assert lines[0] == lines[2] < 100, lines
    assert lines[3] <= lines[1] + 5, lines


def test_a_broker_counts_from_the_begin_until_its_lease_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows: unchanged, suspected, contact meanwhile, removed, and registered anew without a report."""
    monkeypatch.setattr(silence_module, "LOOKS_PER_TURN", 1)
    state = RouteInfoManager()
    for name in ("first", "suspected", "renewed", "removed", "anew"):
        state.apply(register(name, 0, name, timeout_ms=T), 0)
    registered = state.registrations_by_broker()
    leases = {key: Lease(key, one.epoch, T, int(key[1] == "suspected")) for key, one in registered.items()}
    silence = Silence(dict(registered), 1_000)
    keys = {key[1]: key for key in registered}
    silence.contact(leases[keys["renewed"]], 2_000)
    silence.forget(keys["removed"])
    del leases[keys["removed"]]
    leases[keys["anew"]] = leases[keys["anew"]]._replace(epoch=99)
    assert all(silence.watches(key) for key in leases)
    assert not silence.watches(keys["removed"])
    while silence._unread:
        assert silence.due(leases.get, 3_000) == []
    ages = {key[1]: silence.age_ms(key, 3_000) for key in leases}
    assert ages == {"first": 2_000, "suspected": 5_000, "renewed": 1_000, "anew": 0}
    monkeypatch.setattr(silence_module, "LOOKS_PER_TURN", 9)
    assert silence.due(leases.get, 3_999) == []
    first, suspected = leases[keys["first"]], leases[keys["suspected"]]
    assert silence.due(leases.get, 4_000) == [Due(first, 1), Due(suspected, 2)]
    silence.due(leases.get, 7_000)
    assert list(silence.silent(leases.get, 7_000)) == [suspected]


def test_brokers_of_a_backup_began_when_it_was_restored() -> None:
    """This holds also for brokers that have registered again without a change."""
    departures = Departures(["n1"], "n1", 500, 0, LivenessDefences())
    lease = Lease(("C", "a"), 7, T, 0)
    departures.restored(7, 1.0)
    assert departures._registered_at_ms(lease) == float("-inf"), "it was before the term"
    departures.lead_applied(6)
    departures.restored(7, 2.0)
    departures.registered(lease.key, 7, 3.0, 3.0)
    assert departures._registered_at_ms(lease) == 2.0
    departures.registered(lease.key, 8, 4.0, 4.0)
    assert departures._registered_at_ms(lease._replace(epoch=8)) == 4.0
