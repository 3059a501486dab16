"""Rules of the log: the effect of a command depends on state and command alone."""

from dataclasses import replace

import pytest

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.replication.route_machine import (
    Ignored,
    ProposalResult,
    RouteStateMachine,
    content_of,
    encode_expire,
    encode_lead,
    encode_plain,
    encode_register,
    encode_suspect,
    encode_unregister,
)
from replicated_namesrv.routes.commands import BrokerRemoval, ChangeWritePerm, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.state import RouteSettings

KEY = ("c", "a:1")


def broker(counter: int = 1) -> RegisterBroker:
    topics = {"T": QueueData(6, 8, 0, 8), "U": QueueData(6, 8, 0, 8)}
    return RegisterBroker("c", "a", "a:1", 0, "", None, None, False, DataVersion(counter, 0, counter), topics, {}, None)


def led(term: int = 1) -> RouteStateMachine:
    """A machine that has applied the LEAD of ``term``."""
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(), 0, term))
    return machine


def register(
    machine: RouteStateMachine, counter: int = 1, received: int | None = None, replaces: int | None = None, time_ms: int = 0
) -> ProposalResult:
    now = machine.state.revision
    command = broker(counter)
    received = now if received is None else received
    return machine.apply(encode_register(command, time_ms, received, now if replaces is None else replaces, content_of(command)))


def with_queues(machine: RouteStateMachine, queues: int, received: int) -> ProposalResult:
    """The registration of ``broker()`` with another number of queues."""
    command = replace(broker(), topics=dict.fromkeys(("T", "U"), QueueData(6, queues, 0, queues)))
    return machine.apply(encode_register(command, 0, received, 0, content_of(command)))


def queues_of(machine: RouteStateMachine) -> int:
    found = machine.state.topic_queues("T")
    assert found is not None
    return found["a"].write_queue_nums


def unregister(machine: RouteStateMachine, epoch: int, term: int = 1, time_ms: int = 0) -> ProposalResult:
    return machine.apply(encode_unregister(removal(epoch), time_ms, term))


def expire(machine: RouteStateMachine, epoch: int, serial: int, term: int = 1) -> ProposalResult:
    return machine.apply(encode_expire(removal(epoch), 0, term, serial, False))


def counter_of(machine: RouteStateMachine) -> int:
    registration = machine.state.registration(*KEY)
    assert registration is not None
    return registration.data_version.counter


def removal(epoch: int | None) -> UnregisterBrokers:
    return UnregisterBrokers((BrokerRemoval("c", "a:1", "a", 0, epoch),))


def epoch_of(machine: RouteStateMachine) -> int:
    registration = machine.state.registration(*KEY)
    assert registration is not None
    return registration.epoch


def test_an_older_version_is_a_late_copy() -> None:
    machine = led()
    register(machine, 1)
    replaces = machine.state.revision
    register(machine, 2)
    digest = machine.state.digest()
    assert register(machine, 1, replaces=0).ignored is Ignored.LATE_COPY
    assert register(machine, 1, replaces=replaces).ignored is Ignored.LATE_COPY, "the newer one was committed after its receipt"
    assert (counter_of(machine), machine.state.digest()) == (2, digest)


def test_a_repeated_older_version_is_taken() -> None:
    machine = led()
    register(machine, 1)
    register(machine, 2)
    assert register(machine, 1, replaces=machine.state.revision).ignored is None
    assert counter_of(machine) == 1


def test_other_content_of_one_version_is_late_if_it_was_received_before_the_stored_one() -> None:
    machine = led()
    machine.apply(encode_suspect([], 0, 1, machine.serial))
    received = machine.state.revision
    register(machine)
    between = machine.state.revision
    assert with_queues(machine, 16, received).ignored is Ignored.LATE_COPY
    assert with_queues(machine, 8, received).ignored is None, "a copy of what is stored"
    assert (with_queues(machine, 4, between).ignored, queues_of(machine)) == (None, 4)
    digest = machine.state.digest()
    assert with_queues(machine, 16, between).ignored is Ignored.LATE_COPY
    assert (queues_of(machine), machine.state.digest()) == (4, digest)
    assert (with_queues(machine, 16, machine.state.revision).ignored, queues_of(machine)) == (None, 16)


def test_version_0_1_ignored_other_content_of_one_version() -> None:
    """Groups from that time keep its rule until their master registers a new data version, because requests may have changed
    their queues."""
    machine = led()
    register(machine)
    assert (with_queues(machine, 16, machine.state.revision).ignored, queues_of(machine)) == (None, 8)
    machine.apply(encode_suspect([], 0, 1, machine.serial))
    copy = RouteStateMachine()
    restoring = copy.restore()
    for chunk in machine.snapshot():
        restoring.feed(chunk)
    restoring.finish()
    for one in (machine, copy):
        with_queues(one, 16, one.state.revision)
    assert (queues_of(machine), queues_of(copy), copy.digest()) == (8, 8, machine.digest())
    for one in (machine, copy):
        register(one, 2)
        with_queues(one, 4, one.state.revision)
        assert queues_of(one) == 8, "the version is older"
    assert copy.digest() == machine.digest()


def test_a_wiped_write_permission_stays_wiped_when_the_last_node_is_upgraded() -> None:
    machine = led()
    register(machine)
    machine.apply(encode_plain(ChangeWritePerm("a", writable=False), 0))
    wiped = machine.state.topic_queues("T")
    before = machine.state.digest()
    machine.apply(encode_suspect([], 0, 1, machine.serial))
    assert machine.state.digest() != before, "it says that the group is overridden"
    with_queues(machine, 8, machine.state.revision)
    assert machine.state.topic_queues("T") == wiped, "the broker's next round changes nothing"


@pytest.mark.parametrize("knows_suspicion", [False, True])
def test_an_older_version_with_another_broker_id_is_a_late_copy_once_all_nodes_know_it(knows_suspicion: bool) -> None:
    """Two brokers of a group switch ids; a copy from before the switch evicts the other broker. Found by seed 3053 of the routes
    simulation with five nodes."""
    machine = led()
    if knows_suspicion:
        machine.apply(encode_suspect([], 0, 1, machine.serial))
    register(machine, 2)
    late = replace(broker(1), broker_id=1)
    outcome = machine.apply(encode_register(late, 0, machine.state.revision, 0, content_of(late)))
    assert outcome.ignored is (Ignored.LATE_COPY if knows_suspicion else None)
    held = machine.state.registration(*KEY)
    assert held is not None
    assert held.broker_id == (0 if knows_suspicion else 1)


@pytest.mark.parametrize("knows_suspicion", [False, True])
def test_a_registration_received_before_another_address_took_over_is_late_once_all_nodes_know_it(knows_suspicion: bool) -> None:
    """A broker moves to another address; a late registration of its earlier address takes the id back. Found by seed 40001 of the
    routes simulation."""
    machine = led()
    if knows_suspicion:
        machine.apply(encode_suspect([], 0, 1, machine.serial))
    received = machine.state.revision
    moved = replace(broker(1), broker_addr="a:2")
    machine.apply(encode_register(moved, 0, received, received, content_of(moved)))
    outcome = machine.apply(encode_register(broker(1), 0, received, received, content_of(broker(1))))
    assert outcome.ignored is (Ignored.TAKEN_OVER if knows_suspicion else None)
    assert (machine.state.registration("c", "a:2") is None) is not knows_suspicion
    again = machine.apply(encode_register(broker(2), 0, machine.state.revision, 0, content_of(broker(2))))
    assert again.ignored is None, "what is received later takes the id over, as in Java"
    assert machine.state.registration(*KEY) is not None


def test_another_life_of_the_broker_may_have_any_version() -> None:
    machine = led()
    register(machine, 2)
    received, replaces = machine.state.revision, 0
    unregister(machine, epoch_of(machine))
    register(machine, 2)
    expire(machine, epoch_of(machine), machine.serial)
    assert register(machine, 1, received + 1, replaces).ignored is None
    assert counter_of(machine) == 1


def test_a_registration_received_before_the_unregistration_does_not_bring_the_broker_back() -> None:
    machine = led()
    register(machine)
    received = machine.state.revision
    unregister(machine, epoch_of(machine))
    assert register(machine, received=received).ignored is Ignored.UNREGISTERED
    assert machine.state.registration(*KEY) is None
    assert register(machine).ignored is None
    assert machine.state.registration(*KEY) is not None


def test_an_unregistration_of_another_life_does_nothing() -> None:
    machine = led()
    register(machine)
    first = epoch_of(machine)
    unregister(machine, first)
    register(machine)
    for late in (first, 0):
        unregister(machine, late)
        assert machine.state.registration(*KEY) is not None


def test_a_registration_under_way_saves_the_broker_from_expiry() -> None:
    machine = led()
    register(machine)
    epoch, decided = epoch_of(machine), machine.serial
    register(machine, 2)
    assert epoch_of(machine) == epoch
    expire(machine, epoch, decided)
    assert machine.state.registration(*KEY) is not None
    expire(machine, epoch, machine.serial)
    assert machine.state.registration(*KEY) is None
    assert machine.expired == {KEY: epoch}


def test_a_removal_of_an_earlier_leader_is_void() -> None:
    machine = led(3)
    register(machine)
    epoch = epoch_of(machine)
    machine.apply(encode_lead(RouteSettings(), 0, 4))
    assert expire(machine, epoch, machine.serial, term=3).ignored is Ignored.OTHER_TERM
    assert unregister(machine, epoch, term=3).ignored is Ignored.OTHER_TERM
    assert machine.apply(encode_lead(RouteSettings(), 0, 3)).ignored is Ignored.OTHER_TERM
    assert machine.led_term == 4
    assert unregister(machine, epoch, term=4).ignored is None
    assert machine.state.registration(*KEY) is None


def test_the_first_leader_alone_sets_the_settings() -> None:
    machine = RouteStateMachine()
    machine.apply(encode_lead(RouteSettings(order_message_enable=True), 0, 1))
    machine.apply(encode_lead(RouteSettings(support_acting_master=True), 0, 2))
    assert machine.state.settings == RouteSettings(order_message_enable=True)


def test_time_never_goes_back() -> None:
    machine = led()
    unregister(machine, 5, time_ms=1_000)
    register(machine, time_ms=10)
    assert machine.state.registration(*KEY).since_ms == 1_000  # type: ignore[union-attr]  # registered above


@pytest.mark.parametrize(
    "data",
    [b"\x02[0]\n", b'\x01[99,0,0]\n\x01[100,0,"n","k","v"]', b"\x01[0]\n\x01[999,0]", b'\x01[0,1]\n\x01[100,0,"n","k","v"]'],
)
def test_a_command_of_a_newer_version_stops_the_node(data: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        RouteStateMachine().apply(data)


def test_a_snapshot_gives_the_same_state_and_the_same_future() -> None:
    machine, copy = led(), RouteStateMachine()
    register(machine)
    unregister(machine, epoch_of(machine), time_ms=5)
    restoring = copy.restore()
    whole = b"".join(machine.snapshot())
    for start in range(0, len(whole), 7):
        restoring.feed(whole[start : start + 7])
    restoring.finish()
    assert copy.digest() == machine.digest()
    for each in (machine, copy):
        assert register(each, received=0).ignored is Ignored.UNREGISTERED
        assert unregister(each, 1, term=2).ignored is Ignored.OTHER_TERM
    assert copy.digest() == machine.digest()
