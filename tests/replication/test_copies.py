"""Copies of one registration reach all nodes at the same time. No copy waits for the time-out of another one."""

import dataclasses
from random import Random
from typing import Any

import pytest

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.replication.marks import Key
from replicated_namesrv.replication.route_machine import (
    Ignored,
    RouteStateMachine,
    content_of,
    encode_lead,
    encode_register,
    encode_unregister,
)
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.service import CloseReason
from replicated_namesrv.simulation.route_cluster import NameServer, SimulatedConnection, Wire
from tests.replication.virtual import KEY, Cluster, registration, virtual_cluster

AT_ONCE_S = 0.4
"""Some round trips of virtual time; a copy that waits for the time-out of another one takes 5 s."""
ALL_REPLACED = 10_000
ONE_TOPIC = {"T": QueueData(8, 8, 6, 0)}


def refused_for_its_single_topic() -> RegisterBroker:
    """The registration has a new broker name, so it creates an empty group and is not a renewal."""
    return dataclasses.replace(registration(address="b:1"), broker_name="b", topics=ONE_TOPIC)


def refused_for_a_deposed_master() -> RegisterBroker:
    """Another address has the id with a newer state version. The zone is changed even by a refused registration."""
    return dataclasses.replace(registration(), broker_addr="a:2", zone_name="z", data_version=DataVersion(9, -1, 9))


def an_address_registered_under_another_name() -> RegisterBroker:
    """The registration is refused, and the earlier one of the address stays."""
    return dataclasses.replace(registration(2), broker_name="b", topics=ONE_TOPIC)


def connected(cluster: Cluster) -> list[Wire]:
    """Open connections to all nodes, so that requests that are sent at once arrive at once."""
    wires = [cluster.wire(name) for name in cluster.machines]
    for wire in wires:
        cluster.heartbeat(wire)
    cluster.run(0.5)
    return wires


def send_to_all(cluster: Cluster, wires: list[Wire], command: RegisterBroker) -> tuple[list[Any], float]:
    """The nodes' answers, and the virtual seconds until the last one."""
    said = [cluster.say(wire, lambda server, connection: server.node.register(command, connection)) for wire in wires]
    seconds = cluster.until(lambda: all(each.ended for each in said), "answers", 60)
    return [each.result for each in said], seconds


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (registration(7), 0),
        (refused_for_its_single_topic(), 1),
        (refused_for_a_deposed_master(), 0),
        (an_address_registered_under_another_name(), 1),
    ],
    ids=["accepted", "refused: one topic", "refused: deposed", "refused: another name"],
)
def test_copies_are_answered_at_once_whatever_the_outcome(command: RegisterBroker, code: int) -> None:
    with virtual_cluster() as cluster:
        wires = connected(cluster)
        cluster.register(wires[0], registration())
        cluster.run(0.5)
        serial = cluster.serial()
        results, seconds = send_to_all(cluster, wires, command)
        assert [result.code for result in results] == [code] * 3
        assert seconds < AT_ONCE_S
        assert cluster.serial() == serial + 1, "one change, one entry"


def test_late_copies_are_answered_at_once() -> None:
    with virtual_cluster() as cluster:
        old = connected(cluster)
        cluster.register(cluster.wire("n2"), registration(2))
        cluster.run(0.5)
        results, seconds = send_to_all(cluster, old, registration(1))
        assert [result.code for result in results] == [0] * 3
        assert cluster.counters() == {2}
        assert seconds < AT_ONCE_S


def test_a_copy_whose_connection_ended_before_it_was_proposed_holds_up_no_other() -> None:
    def register_and_go(server: NameServer, connection: SimulatedConnection) -> object:
        outcome = server.node.register(registration(), connection)
        connection.close(CloseReason.PEER)
        return outcome

    with virtual_cluster() as cluster:
        first, *others = (cluster.wire(name) for name in [cluster.leader(), *cluster.followers()])
        cluster.say(first, register_and_go)
        results, seconds = send_to_all(cluster, others, registration())
        assert [result.code for result in results] == [0, 0]
        assert seconds < AT_ONCE_S


def test_a_copy_that_cannot_be_proposed_holds_up_no_other() -> None:
    """The copy was admitted, but its node had too many undecided proposals to accept another one."""
    with virtual_cluster() as cluster:
        name, *others = [*cluster.followers(), cluster.leader()]
        raft = cluster.servers.servers[name].raft.node
        raft.proposals.config = dataclasses.replace(raft.config, pending_proposals_bytes_max=1)
        first = cluster.say(cluster.wire(name), lambda server, connection: server.node.register(registration(), connection))
        cluster.run(0.02)
        results, seconds = send_to_all(cluster, [cluster.wire(other) for other in others], registration())
        assert [result.code for result in results] == [0, 0]
        assert seconds < AT_ONCE_S
        assert (first.ended, first.result) == (True, None), "its own connection was closed"


def any_registration(chance: Random) -> RegisterBroker:
    """A random registration. There are few brokers and names, so that most kinds of refusal, replacement and overtaking occur."""
    counter = chance.randint(1, 4)
    topics = {f"T{number}": QueueData(8, 8, 6, 0) for number in range(chance.randint(1, 3))}
    version = DataVersion(counter, chance.choice((0, 0, 1)), counter)
    return dataclasses.replace(
        registration(counter, address=f"a:{chance.randint(1, 3)}", broker_id=chance.choice((0, 0, 1))),
        broker_name=chance.choice(("a", "b")),
        zone_name=chance.choice((None, None, "z")),
        data_version=version,
        topics=topics,
    )


@pytest.mark.parametrize("seed", range(12))
def test_without_a_fault_no_registration_waits_for_a_time_out(seed: int) -> None:
    """To repeat one seed: -k 'time_out and [SEED]'."""
    chance = Random(seed)
    with virtual_cluster() as cluster:
        wires = connected(cluster)
        for _ in range(30):
            if chance.random() < 0.1:
                cluster.unregister(chance.choice(wires))
            if chance.random() < 0.1:
                chance.choice(wires).hang_up()
            _, seconds = send_to_all(cluster, chance.sample(wires, chance.randint(1, 3)), any_registration(chance))
            assert seconds < AT_ONCE_S, f"seed {seed}"


class Told:
    """A state machine, and every registration that it reported."""

    def __init__(self) -> None:
        self.machine, self.calls = RouteStateMachine(), list[tuple[Key, int | None, str]]()
        self.machine.on_registered = lambda *told: self.calls.append(told)
        self.machine.apply(encode_lead(RouteSettings(), 0, 1))

    def register(self, command: RegisterBroker, received: int = 10_000, replaces: int = ALL_REPLACED) -> Ignored | None:
        """Apply it; it is reported once, with its key and content."""
        before = len(self.calls)
        applied = self.machine.apply(encode_register(command, 0, received, replaces, content_of(command)))
        assert len(self.calls) == before + 1
        key, epoch, content = self.calls[-1]
        assert (key, content) == ((command.cluster_name, command.broker_addr), content_of(command))
        held = self.machine.state.registration(*key)
        if epoch is not None:
            assert held is not None
            assert (held.epoch, held.data_version) == (epoch, command.data_version)
        assert (epoch is None) == (applied.ignored is not None or applied.result.epoch is None)
        return applied.ignored


def test_the_machine_tells_of_every_registration_once() -> None:
    told = Told()
    assert told.register(refused_for_its_single_topic()) is None
    assert told.calls[-1][1] is None
    assert told.register(registration(2)) is None
    assert told.calls[-1][1] is not None
    assert told.register(registration(1), replaces=0) is Ignored.LATE_COPY
    assert told.register(refused_for_a_deposed_master()) is None
    assert told.register(an_address_registered_under_another_name()) is None
    assert told.calls[-1][1] is None, "no sign of life of what is registered under the other name"
    received = told.machine.state.revision
    told.machine.apply(encode_unregister(UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),)), 0, 1))
    assert told.register(registration(2), received) is Ignored.UNREGISTERED
