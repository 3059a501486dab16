"""Rules of the log: what a command changes depends on state and command alone."""

import pytest

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.raft.interfaces import UnknownCommandError
from replicated_namesrv.replication.machine import EXPIRE, REGISTER, UNREGISTER, Applied, RouteStateMachine, encode_envelope
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers

KEY = ("c", "a:1")


def broker(counter: int = 1) -> RegisterBroker:
    topics = {"T": QueueData(6, 8, 0, 8), "U": QueueData(6, 8, 0, 8)}
    return RegisterBroker("c", "a", "a:1", 0, "", None, None, False, DataVersion(counter, 0, counter), topics, {}, None)


def register(machine: RouteStateMachine, counter: int = 1, received: int | None = None, opened: int | None = None) -> Applied:
    now = machine.state.revision
    received, opened = (now if value is None else value for value in (received, opened))
    return machine.apply(encode_envelope(REGISTER, broker(counter), 0, received, opened))


def removal(epoch: int | None) -> UnregisterBrokers:
    return UnregisterBrokers((BrokerRemoval("c", "a:1", "a", 0, epoch),))


def epoch_of(machine: RouteStateMachine) -> int:
    registration = machine.state.registration(*KEY)
    assert registration is not None
    return registration.epoch


def test_an_older_version_over_an_older_connection_is_a_late_copy() -> None:
    machine = RouteStateMachine()
    register(machine, 1)
    opened = machine.state.revision
    register(machine, 2)
    assert register(machine, 1, opened=opened).ignored is not None
    assert machine.state.registration(*KEY).data_version.counter == 2  # type: ignore[union-attr]
    assert register(machine, 1).ignored is None, "the connection is newer"
    assert machine.state.registration(*KEY).data_version.counter == 1  # type: ignore[union-attr]


def test_a_registration_received_before_the_unregistration_does_not_bring_the_broker_back() -> None:
    machine = RouteStateMachine()
    register(machine)
    received = machine.state.revision
    machine.apply(encode_envelope(UNREGISTER, removal(epoch_of(machine)), 0))
    assert register(machine, received=received).ignored is not None
    assert machine.state.registration(*KEY) is None
    assert register(machine).ignored is None
    assert machine.state.registration(*KEY) is not None


def test_an_unregistration_of_another_life_does_nothing() -> None:
    machine = RouteStateMachine()
    register(machine)
    first = epoch_of(machine)
    machine.apply(encode_envelope(UNREGISTER, removal(first), 0))
    register(machine)
    for late in (first, 0):
        machine.apply(encode_envelope(UNREGISTER, removal(late), 0))
        assert machine.state.registration(*KEY) is not None


def test_a_registration_under_way_saves_the_broker_from_expiry() -> None:
    machine = RouteStateMachine()
    register(machine)
    epoch, decided = epoch_of(machine), machine.serial
    register(machine, 2)
    assert epoch_of(machine) == epoch
    machine.apply(encode_envelope(EXPIRE, removal(epoch), 0, decided))
    assert machine.state.registration(*KEY) is not None
    machine.apply(encode_envelope(EXPIRE, removal(epoch), 0, machine.serial))
    assert machine.state.registration(*KEY) is None


def test_time_never_goes_back() -> None:
    machine = RouteStateMachine()
    machine.apply(encode_envelope(UNREGISTER, removal(5), 1_000))
    machine.apply(encode_envelope(REGISTER, broker(), 10))
    assert machine.state.registration(*KEY).since_ms == 1_000  # type: ignore[union-attr]


@pytest.mark.parametrize("data", [b"\x02[0,0,0]\n", b'\x01[99,0,0]\n\x01[100,0,"n","k","v"]', b"\x01[0,0,0]\n\x01[999,0]"])
def test_a_command_of_a_newer_version_stops_the_node(data: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        RouteStateMachine().apply(data)


def test_a_snapshot_gives_the_same_state_and_the_same_future() -> None:
    machine, copy = RouteStateMachine(), RouteStateMachine()
    register(machine)
    machine.apply(encode_envelope(UNREGISTER, removal(epoch_of(machine)), 5))
    restoring = copy.restore()
    whole = b"".join(machine.snapshot())
    for start in range(0, len(whole), 7):
        restoring.feed(whole[start : start + 7])
    restoring.finish()
    assert copy.digest() == machine.digest()
    for each in (machine, copy):
        assert register(each, received=0).ignored is not None
    assert copy.digest() == machine.digest()


def test_changes_nothing_tells_the_truth() -> None:
    machine = RouteStateMachine()
    assert not machine.state.changes_nothing(broker())
    register(machine)
    assert machine.state.changes_nothing(broker())
    assert not register(machine).result.changed
    assert not machine.state.changes_nothing(broker(2))
