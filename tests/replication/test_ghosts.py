"""Data about brokers refers to existing registrations: every removal of a registration also removes its data."""

from collections.abc import Awaitable
from random import Random
from typing import Any

import pytest

from replicated_namesrv.model import DataVersion
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.replication.route_machine import ProposalResult
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.simulation.route_cluster import Wire
from tests.replication.virtual import KEY, Cluster, registration, virtual_cluster

TIMEOUT_MS = 1_500


def ghosts(node: ReplicatedNode) -> list[str]:
    """Data of a node about brokers that are not in its routes."""
    live = {(held.cluster_name, held.broker_addr): held.epoch for held in node.state.registrations()}
    attached = dict(node.liveness.attachments.known())
    found = [f"attached {key}" for key, epoch in attached.items() if key not in live or epoch > live[key]]
    if node._machine.marks.keys() != live.keys():
        found.append(f"marks {node._machine.marks.keys() ^ live.keys()}")
    found += [f"suspected {key}" for key in node._machine.suspected.keys() - live.keys()]
    found += [f"late copy of {key}" for key in node.broker_calls._late_copies._seen.keys() - live.keys()]
    leading = node.liveness.role
    if leading is not None and not leading.term.is_over:
        silence, departures, revision = leading.silence, leading.departures, node.state.revision
        told = {f"silence of {key}": key for key in ([*silence._watched, *silence._unread] if silence is not None else ())}
        told |= {f"beginning of {key}": key for key in departures._registered_ms}
        told |= {f"suspicion of {key}": key for key in leading._suspicions._doubtful}
        for name, reporter in departures._nodes.items():
            words = [*reporter.words.items(), *(reporter.arriving or {}).items()]
            told |= {f"{name} told of {key}": key for key, word in words if word.epoch <= revision}
        found += [what for what, key in told.items() if key not in live]
    return found


def assert_no_ghosts(cluster: Cluster, when: object) -> None:
    for name, machine in cluster.machines.items():
        if machine.is_up():
            assert ghosts(cluster.node(name)) == [], f"{name}: {when}"


def test_a_broker_that_registered_and_left_in_one_turn_is_forgotten() -> None:
    """A node that was cut off applies the registration and the unregistration in one turn."""
    with virtual_cluster() as cluster:
        near, far = cluster.followers()
        mend = cluster.isolate(far)
        wire = cluster.wire(near)
        cluster.register(wire, registration())
        cluster.unregister(wire)
        mend()
        applied = cluster.node(cluster.leader()).state.revision
        cluster.until(lambda: cluster.node(far).state.revision == applied, "caught up")
        cluster.run(0.5)
        assert cluster.is_gone()
        assert_no_ghosts(cluster, "after both")
        assert cluster.node(far).heartbeat_age_ms(*KEY) is None


def test_a_broker_that_left_in_the_turn_in_which_its_node_applied_its_registration_is_forgotten() -> None:
    """The node that proposes the registration receives no entries until the broker has left."""
    with virtual_cluster() as cluster:
        (near, far), leader = cluster.followers(), cluster.leader()
        calls = cluster.node(far).broker_calls
        propose = calls._propose

        def propose_and_cut(*arguments: Any) -> Awaitable[ProposalResult]:
            cluster.network.cut([(leader, far)], hold=False)
            return propose(*arguments)

        calls._propose = propose_and_cut
        said = cluster.say(cluster.wire(far), lambda server, c: server.node.register(registration(), c))
        cluster.until(lambda: cluster.is_shown(near), "committed")
        assert cluster.unregister(cluster.wire(near)).code == 0
        assert not said.ended
        cluster.network.mend([(leader, far)])
        cluster.until(lambda: said.ended, "an answer")
        assert said.result.epoch is not None, "it was registered"
        assert cluster.is_gone()
        assert_no_ghosts(cluster, "after both")


def test_a_renewal_that_a_removal_overtakes_leaves_nothing() -> None:
    """The broker is removed between the arrival of the renewal and its first turn of the loop."""
    with virtual_cluster() as cluster:
        server = cluster.servers.servers[cluster.leader()]
        wire = cluster.wire(server.machine.name)
        cluster.register(wire, registration())
        assert wire.connection is not None
        with server.loop.running():
            server.node.renew_unchanged(*KEY, wire.connection)
            removal = UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),))
            for effect in server.node._machine.state.apply(removal, 0).effects:
                server.node.broker_calls.removed(effect, False)  # type: ignore[arg-type]  # what it ended
            server.loop.run()
            assert server.node.liveness.attachments.known() == []


def test_104_that_names_another_cluster() -> None:
    """The request means the broker with its name and address, in whatever cluster. So it ends no life that has a newer
    connection, and leaves no data behind."""
    wrong = UnregisterBrokers((BrokerRemoval("other", "a:1", "a", 0, None),))
    with virtual_cluster() as cluster:
        old = cluster.wire(cluster.followers()[0])
        cluster.ask(old, lambda server, c: None)
        cluster.run(3)
        new = [cluster.wire(name) for name in cluster.machines]
        for wire in new:
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(0.5)
        assert cluster.propose(old, wrong) is None, "its connection is closed"
        cluster.run(0.5)
        assert cluster.is_shown()
        assert cluster.propose(new[0], wrong).code == 0
        cluster.until(cluster.is_gone, "the broker is removed")
        assert all(node.state.cluster_info() == ((), ()) for node in cluster.nodes)
        assert_no_ghosts(cluster, "after the removal")


def say_anything(cluster: Cluster, wires: list[Wire], chance: Random) -> None:
    """One broker sends one request, without waiting for its answer."""
    wire = chance.choice(wires)
    key = ("c", f"a:{chance.randint(1, 3)}")
    broker_id = int(key[1][2:]) - 1
    command: RegisterBroker = registration(chance.randint(1, 3), TIMEOUT_MS, key[1], broker_id)
    match chance.randrange(8):
        case 0 | 1:
            cluster.say(wire, lambda server, c: server.node.register(command, c))
        case 2 | 3:
            cluster.say(wire, lambda server, c: server.node.renew_unchanged(*key, c))
        case 4:
            cluster.say(wire, lambda server, c: server.node.heartbeat(*key, c))
        case 5:
            cluster.say(wire, lambda server, c: server.node.query_data_version(*key, DataVersion(1, 0, 1), c))
        case 6:
            named = (chance.choice((key[0], "other")), key[1])
            removal = UnregisterBrokers((BrokerRemoval(*named, "a", broker_id, None),))
            cluster.say(wire, lambda server, c: server.node.propose(removal, c))
        case 7:
            wire.hang_up()


def disturb(cluster: Cluster, chance: Random) -> None:
    """Inject a fault into a random machine, which ends later. No fault while another machine is down."""
    machine = cluster.machines[chance.choice(list(cluster.machines))]
    others = [other for other in cluster.machines.values() if other is not machine]
    if not all(other.is_up() for other in others):
        return
    match chance.randrange(3):
        case 0:
            cluster.network.cut([link for link in cluster.network.links if machine.name in link], hold=False)
            cluster.run(chance.random())
            cluster.network.mend(cluster.network.links)
        case 1:
            machine.crash(power_loss=False)
            cluster.run(chance.random())
            machine.start()
        case 2:
            machine.pause()
            cluster.run(chance.random())
            machine.resume()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_nothing_is_remembered_of_what_is_not_registered(seed: int) -> None:
    """To repeat one seed: -k 'remembered and [SEED]'."""
    chance = Random(seed)
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines for _ in range(2)]
        for step in range(400):
            say_anything(cluster, wires, chance)
            if chance.random() < 0.02:
                disturb(cluster, chance)
            cluster.run(chance.choice((0, 0.001, 0.002, 0.02, 0.3)))
            assert_no_ghosts(cluster, f"seed {seed}, step {step}")
        cluster.run(6 * TIMEOUT_MS / 1000)
        assert cluster.node(cluster.leader()).state.registrations() == [], f"seed {seed}"
        assert_no_ghosts(cluster, f"seed {seed}, at the end")
        for node in cluster.nodes:
            assert node.liveness.attachments.known() == [], f"seed {seed}"
