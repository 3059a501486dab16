"""Schedules that once broke a promise of broker liveness, each as a test on whole nodes in virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.replication import consensus
from replicated_namesrv.replication.liveness.leader_messages import HELD
from replicated_namesrv.replication.liveness.leader_role import LeaderRole
from replicated_namesrv.replication.liveness.silence import Suspicions
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.service import CloseReason
from replicated_namesrv.simulation.process_views import Process
from replicated_namesrv.simulation.route_cluster import NameServer, SimulatedConnection, Wire
from replicated_namesrv.simulation.world import MS, SECOND
from tests.replication.virtual import KEY, TIMEOUT_MS, Cluster, Said, registration, virtual_cluster


def now_s(cluster: Cluster) -> float:
    return cluster.world.now_ns / SECOND


def role(cluster: Cluster) -> LeaderRole:
    found = cluster.node(cluster.leader()).liveness.role
    assert found is not None
    return found


def suspicions(cluster: Cluster) -> Suspicions:
    return role(cluster)._suspicions


def is_suspected(cluster: Cluster) -> bool:
    return KEY in cluster.node(cluster.leader())._machine.suspected


def expired(cluster: Cluster) -> int:
    return sum(node.expired_count for node in cluster.nodes)


def named(name: str, timeout_ms: int) -> RegisterBroker:
    """A registration of another broker than ``a``."""
    return replace(registration(timeout_ms=timeout_ms, address=f"{name}:1"), broker_name=name)


def register_twice(cluster: Cluster, wire: Wire, timeout_ms: int) -> None:
    """Register, and make contact once more."""
    for _ in range(2):
        assert cluster.register(wire, registration(timeout_ms=timeout_ms)).code == 0


def renew(cluster: Cluster, wire: Wire, timeout_ms: int) -> Said:
    """Send a renewal without waiting for its answer."""
    return cluster.say(wire, lambda server, c: server.node.register(registration(timeout_ms=timeout_ms), c))


def renew_at_once(cluster: Cluster, wire: Wire, timeout_ms: int) -> bool:
    """Whether a renewal is acknowledged."""
    result = cluster.register(wire, registration(timeout_ms=timeout_ms))
    return result is not None and result.code == 0


@contextmanager
def nothing_commits(cluster: Cluster) -> Iterator[None]:
    """The disks of both followers hang: they confirm that the leader leads, and acknowledge no entry."""
    followers = [cluster.machines[name] for name in cluster.followers()]
    for machine in followers:
        machine.disk.hung = True
    yield
    for machine in followers:
        machine.resume_disk()


def test_silence_before_an_accepted_renewal_is_not_recorded() -> None:
    """A SUSPECT of broker b is under way and nothing commits. Broker a reaches T/3 of silence, and its SUSPECT waits for its
    turn. Then a's renewal is accepted. When commits continue, broker a must not become suspected."""
    with virtual_cluster(fenceAfterMs="10000") as cluster:
        wire, other = (cluster.wire(cluster.leader()) for _ in range(2))
        register_twice(cluster, wire, 6_000)
        cluster.run(1.5)
        assert cluster.register(other, named("b", 600)).code == 0
        with nothing_commits(cluster):
            cluster.run(0.8)
            assert suspicions(cluster)._flying is not None
            assert KEY in suspicions(cluster)._wanted
            assert renew_at_once(cluster, wire, 6_000)
        cluster.run(0.5)
        assert not is_suspected(cluster)


@pytest.mark.parametrize(
    ("fence_ms", "timeout_ms", "other_ms", "before_s", "hung_s"),
    [
        pytest.param("20000", 6_000, 5_400, 1.5, 2.9, id="long"),
        pytest.param("1500", 2_600, 2_000, 0.5, 1.4, id="default-fence"),
    ],
)
def test_acknowledged_renewal_outlives_a_leader_change(
    fence_ms: str, timeout_ms: int, other_ms: int, before_s: float, hung_s: float
) -> None:
    """As in the previous test, but the waiting SUSPECT of ``a`` records 2T/3, and the leader changes after the renewal was
    acknowledged. The next leader must not remove ``a`` before T has passed since the acknowledgement."""
    with virtual_cluster(fenceAfterMs=fence_ms) as cluster:
        wire, other = (cluster.wire(cluster.leader()) for _ in range(2))
        assert cluster.register(other, named("b", other_ms)).code == 0
        if fence_ms == "20000":
            cluster.run(0.2)
        register_twice(cluster, wire, timeout_ms)
        cluster.run(before_s)
        with nothing_commits(cluster):
            cluster.run(hung_s)
            assert KEY in suspicions(cluster)._wanted
            assert renew_at_once(cluster, wire, timeout_ms)
            acknowledged_s = now_s(cluster)
        cluster.run(0.1)
        cluster.transfer(cluster.followers()[0])
        cluster.until(cluster.is_gone, "removed")
        assert now_s(cluster) - acknowledged_s >= timeout_ms / 1000 - 0.1


@pytest.mark.parametrize(
    ("fence_ms", "timeout_ms", "before_s", "renewals_s"),
    [
        pytest.param("10000", 6_000, 1.9, (2.11, 4.0, 6.0), id="long"),
        pytest.param("1500", 2_700, 0.85, (1.01, 1.9, 2.75), id="default-fence"),
    ],
)
def test_a_removal_does_not_overtake_a_contact(
    fence_ms: str, timeout_ms: int, before_s: float, renewals_s: tuple[float, ...]
) -> None:
    """A broker renews every T/3. Its SUSPECT is under way and nothing commits for almost T. The contacts wait behind the SUSPECT,
    so T passes without a contact in the log. The removal must wait until the contact is recorded."""
    with virtual_cluster(fenceAfterMs=fence_ms) as cluster:
        wire = cluster.wire(cluster.leader())
        register_twice(cluster, wire, timeout_ms)
        began_s = now_s(cluster)
        cluster.run(before_s)
        with nothing_commits(cluster):
            said = []
            for at_s in renewals_s:
                cluster.run(at_s - (now_s(cluster) - began_s))
                said.append(renew(cluster, wire, timeout_ms))
            cluster.run(0.2)
            assert suspicions(cluster)._flying is not None, "the same command is under way since the first third"
        cluster.until(lambda: all(each.ended for each in said), "answers")
        cluster.run(0.5)
        assert expired(cluster) == 0
        assert cluster.is_shown()


def lead_with_clock_ahead(cluster: Cluster, skew_ms: int) -> None:
    """Commands are applied at the times of a leader whose clock is ahead, and then another node leads."""
    node = cluster.node(cluster.leader()).liveness._node
    wall_ms = node.wall_ms
    object.__setattr__(node, "wall_ms", lambda: wall_ms() + skew_ms)
    cluster.run(1)
    for counter in (1, 2):
        other = replace(registration(counter, address="x:1", timeout_ms=60_000), broker_name="x")
        assert cluster.register(cluster.wire(cluster.leader()), other).code == 0
        cluster.run(0.5)
    cluster.transfer(cluster.followers()[0])
    cluster.run(1)
    leader = cluster.node(cluster.leader())
    assert leader.liveness._node.wall_ms() < leader._machine.time_ms - skew_ms // 2


@pytest.mark.parametrize("skew_ms", [0, 2_000_000])
def test_a_104_held_between_nodes_is_late_by_its_age_when_it_arrives(skew_ms: int) -> None:
    """Follower A receives a 104, and its inquiry is delayed on the link to the leader. The broker is killed and started again,
    and its new process registers with the two other nodes. 3 s later the inquiry arrives: the new connections are newer.
    ``skew_ms``: an earlier leader's clock was ahead by this time, so commands have later times than the leader's clock."""
    with virtual_cluster() as cluster:
        if skew_ms:
            lead_with_clock_ahead(cluster, skew_ms)
        leader, (near, far) = cluster.leader(), cluster.followers()
        command = registration(timeout_ms=60_000)
        old = [cluster.wire(name) for name in (leader, near, far)]
        for wire in old:
            assert cluster.register(wire, command).code == 0
        cluster.run(3)
        removal = UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),))
        cluster.say(old[1], lambda server, c: server.node.propose(removal, c))
        questions = cluster.node(near).liveness.client._questions
        while not questions:
            cluster.world.run_until(cluster.world.now_ns + MS // 50)
        cluster.network.cut([(near, leader)], hold=True)
        cluster.run(0.1)
        for wire in old:
            wire.hang_up()
        new = [cluster.wire(name) for name in (leader, far)]
        cluster.run(0.1)
        for wire in new:
            assert cluster.register(wire, command).code == 0
        cluster.run(3)
        assert renew_at_once(cluster, new[1], 60_000)
        cluster.network.mend([(near, leader)])
        cluster.run(0.5)
        assert cluster.leader() == leader
        assert cluster.is_shown()


def ask_two_leaders(cluster: Cluster, skew_s: int) -> tuple[str, str, str]:
    """A broker has been registered over all nodes for 3 s. The third node receives a 104, and its inquiry does not reach the
    leader. The second node becomes leader. The third node sends it the inquiry before the second node has answered a report.
    The result is the nodes' names.

    ``skew_s``: the first leader's clock is ahead of the second leader's by this time. If it is ahead, the broker's process ends
    after the inquiry was sent."""
    leader, (near, far) = cluster.leader(), cluster.followers()
    clock = cluster.node(leader).liveness._node
    wall_ms = clock.wall_ms
    object.__setattr__(clock, "wall_ms", lambda: wall_ms() + skew_s * 1000)
    wires = [cluster.wire(name) for name in (leader, near, far)]
    for wire in wires:
        assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
    cluster.run(3)
    removal = UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),))
    cluster.say(wires[2], lambda server, c: server.node.propose(removal, c))
    asker, server = cluster.servers.servers[far], cluster.servers.servers[leader]
    client = asker.node.liveness.client
    while not client._questions:
        cluster.world.run_until(cluster.world.now_ns + MS // 50)
    cluster.network.cut([(far, leader)], hold=True)
    server.machine.enqueue(lambda process: server.raft.node.transfer_leadership(near, lambda handed_over: None))
    while asker.node.consensus.leader != near:
        cluster.world.run_until(cluster.world.now_ns + MS // 50)
    asker.machine.enqueue(lambda process: client.tick())
    cluster.world.run_until(cluster.world.now_ns + MS // 50)
    assert client._leader_clock is not None
    assert client._leader_clock[0] < asker.node.consensus.term, "the second leader has not answered"
    for wire in wires[:2] if skew_s > 0 else ():
        wire.hang_up()
    return leader, near, far


def test_a_104_is_not_late_by_the_difference_between_the_clocks_of_two_leaders() -> None:
    with virtual_cluster() as cluster:
        ask_two_leaders(cluster, -600)
        cluster.until(cluster.is_gone, "removed", 5)


def test_a_104_that_is_held_up_on_the_way_to_the_next_leader_is_late() -> None:
    """The inquiry to the second leader is held up, and the broker is started again meanwhile."""
    with virtual_cluster() as cluster:
        leader, near, far = ask_two_leaders(cluster, 600)
        cluster.network.cut([(far, near)], hold=True)
        cluster.run(0.2)
        new = [cluster.wire(name) for name in (leader, near)]
        for wire in new:
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(3)
        assert renew_at_once(cluster, new[1], 60_000)
        cluster.network.mend([(far, near), (far, leader)])
        cluster.run(1)
        assert cluster.leader() == near
        assert cluster.is_shown()


def test_a_104_after_an_outage_is_not_late() -> None:
    """The broker renews over each connection while there is no leader. The next leader learns of these renewals 3 s later. They
    must not make the connections look younger."""
    with virtual_cluster(fenceAfterMs="10000") as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            assert renew_at_once(cluster, wire, 6_000)
        cluster.run(0.5)
        mends = [cluster.isolate(name) for name in cluster.machines]
        command = registration(timeout_ms=6_000)
        said = [cluster.say(wire, lambda server, c: server.node.register(command, c)) for wire in wires]
        cluster.run(3)
        for mend in mends:
            mend()
        cluster.until(lambda: all(each.ended for each in said), "answers")
        assert all(each.result.code == 0 for each in said)
        cluster.run(1)
        assert cluster.unregister(wires[0]) is not None
        assert cluster.is_gone()


def test_broker_that_registers_an_older_version_is_attached() -> None:
    """A broker closes its connections and returns within the grace period with an older data version, restored from a backup. Its
    registrations are answered and have no effect yet. It must not be removed as gone."""
    with virtual_cluster() as cluster:
        old = [cluster.wire(name) for name in cluster.machines]
        for wire in old:
            assert cluster.register(wire, registration(5, timeout_ms=120_000)).code == 0
        cluster.run(6)
        for wire in old:
            wire.hang_up()
        cluster.run(0.1)
        for wire in [cluster.wire(name) for name in cluster.machines]:
            assert cluster.register(wire, registration(3, timeout_ms=120_000)).code == 0
        cluster.run(2)
        assert cluster.is_shown()
        assert cluster.counters() == {5}


def test_registrations_of_an_older_version_are_contacts() -> None:
    """A broker repeats an older data version every T/3, and T is shorter than ``lateCopyMs``. Each time it is answered. It must
    not be removed as silent before the older version is accepted."""
    with virtual_cluster() as cluster:
        wire = cluster.wire(cluster.leader())
        assert cluster.register(wire, registration(5, timeout_ms=9_000)).code == 0
        for _ in range(5):
            cluster.run(2.9)
            assert cluster.register(wire, registration(3, timeout_ms=9_000)).code == 0
        assert expired(cluster) == 0
        assert cluster.counters() == {3}, "at last it is accepted"


@pytest.mark.slow
def test_reports_that_wait_for_a_contact_do_not_pile_up() -> None:
    """A suspected broker renews through each node while nothing commits. The nodes get no answer and send whole lists of 50
    brokers again and again. The leader keeps one report for each node."""
    with virtual_cluster(fenceAfterMs="1500") as cluster:
        names = list(cluster.machines)
        wires = [cluster.wire(name) for name in names]
        for number in range(50):
            for wire in wires:
                assert cluster.register(wire, named(f"x{number}", 60_000)).code == 0
        wires = [cluster.wire(name) for name in names]
        for wire in wires:
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(21)
        assert is_suspected(cluster)
        waiting = []
        with nothing_commits(cluster):
            for wire in wires:
                renew(cluster, wire, 60_000)
            for _ in range(12):
                cluster.run(1)
                waiting.append(len(role(cluster)._renewals._unrecorded))
        assert 1 <= max(waiting) <= len(names)


@pytest.mark.slow
def test_renewals_that_gave_up_without_a_leader_are_dropped() -> None:
    with virtual_cluster(noQuorumPolicy="serve-stale") as cluster:
        name = cluster.leader()
        wire = cluster.wire(name)
        assert cluster.register(wire, registration(timeout_ms=120_000)).code == 0
        cluster.isolate(name)
        client = cluster.node(name).liveness.client
        cluster.until(lambda: cluster.node(name).consensus.leader is None, "it knows no leader")
        for _ in range(3):
            for _ in range(20):
                cluster.say(wire, lambda server, c: server.node.register(registration(timeout_ms=120_000), c))
            cluster.run(25)
        cluster.say(wire, lambda server, c: server.node.register(registration(timeout_ms=120_000), c))
        cluster.run(0.1)
        assert 1 <= len(client._renewals) <= 2


def test_heartbeats_whose_report_is_lost_are_contacts() -> None:
    """A broker sends only heartbeats, every T/4, through a follower. Each time the follower's report is lost, and a whole list
    follows. The contact must reach the leader after the list."""
    with virtual_cluster() as cluster:
        leader, near = cluster.leader(), cluster.followers()[0]
        wire = cluster.wire(near)
        assert cluster.register(wire, registration(timeout_ms=6_000)).code == 0
        for _ in range(6):
            cluster.run(1.3)
            cluster.network.cut([(near, leader)], hold=False)
            cluster.heartbeat(wire)
            cluster.run(0.2)
            cluster.network.mend([(near, leader)])
        assert cluster.leader() == leader
        assert expired(cluster) == 0
        assert cluster.is_shown()


def slow_link(cluster: Cluster, name: str, round_trip_ms: int) -> None:
    """Give the links of this node this round trip, which is longer than the first time-out of nodes for an answer."""
    for link in cluster.network.links:
        if name in link:
            cluster.network.late_ms[link] = round_trip_ms // 2


def test_renewals_over_a_slow_link_are_answered() -> None:
    """Each answer comes after the node has sent its whole list and the renewal again."""
    with virtual_cluster() as cluster:
        wires = {name: cluster.wire(name) for name in cluster.machines}
        for wire in wires.values():
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        far = cluster.followers()[0]
        slow_link(cluster, far, 700)
        cluster.run(0.1)
        said = renew(cluster, wires[far], 60_000)
        cluster.until(lambda: said.ended, "an answer", 2)
        assert said.result.code == 0
        cluster.run(2)
        client = cluster.node(far).liveness.client
        whole_list = client._whole_list
        cluster.run(3)
        assert client._whole_list == whole_list, "the node knows how long an answer takes"


def test_a_dead_broker_goes_that_was_last_heard_over_a_slow_link() -> None:
    with virtual_cluster() as cluster:
        wires = {name: cluster.wire(name) for name in cluster.machines}
        for wire in wires.values():
            assert cluster.register(wire, registration()).code == 0
        far = cluster.followers()[0]
        slow_link(cluster, far, 600)
        cluster.run(1)
        cluster.heartbeat(wires[far])
        assert cluster.until(cluster.is_gone, "removed", 20) < TIMEOUT_MS / 1000 + 1.5


@pytest.mark.parametrize("flags", [{"noQuorumPolicy": "serve-stale"}, {"fenceAfterMs": "5000"}], ids=str)
def test_a_contact_counts_from_when_it_was_made(flags: dict[str, str]) -> None:
    """The last contact is with a node that is cut off for more than half the time-out. The leader then learns of the connection,
    but not of a new contact."""
    with virtual_cluster(3, **flags) as cluster:
        wires = {name: cluster.wire(name) for name in cluster.machines}
        for name, wire in wires.items():
            if name != cluster.followers()[0]:
                assert cluster.register(wire, registration()).code == 0
        far, wire = cluster.followers()[0], wires[cluster.followers()[0]]
        mend = cluster.isolate(far)
        cluster.run(0.05)
        cluster.heartbeat(wire)
        died_s = now_s(cluster)
        cluster.run(2.4)
        mend()
        cluster.run(0.6)
        assert role(cluster).departures._nodes[far].words[KEY].state == HELD
        cluster.until(cluster.is_gone, "removed", 20)
        assert now_s(cluster) - died_s < TIMEOUT_MS / 1000 + 1.5


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_time_out_that_is_not_positive_ends(timeout_ms: int) -> None:
    """A broker registers with a time-out of 0 or less, and is silent: it is removed."""
    with virtual_cluster() as cluster:
        assert cluster.register(cluster.wire(cluster.leader()), registration(timeout_ms=timeout_ms)).code == 0
        cluster.run(3)
        assert cluster.is_gone()


def test_time_outs_that_are_not_positive_do_not_stop_the_leader() -> None:
    """One broker dies. In the group ``z``, two brokers take the id 0 from each other. One is z:1, with time-outs of 0 and 1,000 s
    in turn. The other has a new address each time, and a time-out of 0. The leader's tick must not fail, and the dead broker is
    removed."""
    with virtual_cluster() as cluster:
        failures: list[str] = []
        cluster.servers.on_failure = failures.append
        dead, wire = (cluster.wire(cluster.leader()) for _ in range(2))
        assert cluster.register(dead, registration(timeout_ms=1_000)).code == 0
        for number in range(60):
            for command in (named("z", number % 2 * 1_000_000), replace(named("z", 0), broker_addr=f"z{number}:1")):
                cluster.say(wire, lambda server, c, command=command: server.node.register(command, c))  # type: ignore[misc]  # a default in a lambda
            cluster.run(0.08)
        assert failures == []
        assert cluster.is_gone()


@pytest.mark.parametrize("is_recognised", [False, True], ids=["compared", "recognised by the server"])
def test_late_copies_with_renewals_between_them_are_not_repeats(is_recognised: bool) -> None:
    """A copy of version 1 comes late. The broker renews version 2 for 4 s. Then another copy of version 1 comes to the same
    node. It must not replace version 2."""

    def again(server: NameServer, connection: SimulatedConnection) -> object:
        if is_recognised:
            return server.node.renew_unchanged(*KEY, connection)
        return server.node.register(registration(2, timeout_ms=120_000), connection)

    with virtual_cluster(lateCopyMs="3000") as cluster:
        name = cluster.leader()
        wire, first, second = (cluster.wire(name) for _ in range(3))
        for counter in (1, 2):
            assert cluster.register(wire, registration(counter, timeout_ms=120_000)).code == 0
        cluster.register(first, registration(1, timeout_ms=120_000))
        for _ in range(4):
            cluster.run(1)
            assert cluster.ask(wire, again).code == 0
        cluster.register(second, registration(1, timeout_ms=120_000))
        cluster.run(0.1)
        assert cluster.counters() == {2}


def test_a_registration_names_its_own_caller() -> None:
    """The command does not name the caller of the connection's next request, which is read before the registration begins."""
    with virtual_cluster() as cluster:
        name = cluster.leader()
        origins: list[str] = []
        cluster.node(name).on_change(lambda change: origins.append(change.origin.identity if change.origin else ""))

        def both(server: NameServer, connection: SimulatedConnection) -> object:
            connection.origin = ChangeOrigin("first", "10.0.0.1", name)  # type: ignore[attr-defined]  # as the server's has
            registered = server.node.register(registration(), connection)
            connection.origin = ChangeOrigin("second", "10.0.0.1", name)  # type: ignore[attr-defined]  # as above
            return registered

        said = cluster.say(cluster.wire(name), both)
        cluster.until(lambda: said.ended, "an answer")
        assert origins == ["first"]


def test_a_broker_that_registers_while_the_leader_catches_up_is_watched() -> None:
    """A new leader may wait for a read index while another node serves already. The process of the broker ends before its
    registration is applied, so that no node reports a contact. The leader must measure the broker's silence nevertheless."""
    with virtual_cluster() as cluster:
        leader, other = cluster.leader(), cluster.followers()[0]
        cluster.node(leader)._applied.is_live = False
        wire, command = cluster.wire(other), registration(timeout_ms=2_000)
        cluster.say(wire, lambda server, c: server.node.register(command, c))
        waiting = cluster.node(other).proposer._waiting
        while not waiting:
            cluster.world.run_until(cluster.world.now_ns + MS // 50)
        wire.hang_up()
        cluster.run(0.5)
        assert cluster.is_shown(leader)
        role = cluster.node(leader).liveness.role
        assert role is not None
        assert role.silence is not None
        assert role.silence.watches(KEY)
        cluster.run(3)
        assert not cluster.is_shown(leader)


def test_the_leader_learns_of_added_and_removed_members() -> None:
    with virtual_cluster() as cluster:
        node = cluster.node(cluster.leader())
        role = node.liveness.role
        assert role is not None
        node._members.append("n4")
        node.liveness.members_changed()
        assert not role.departures.can_judge(node.liveness._node.running_ms()), "n4 counts as if it had just reported"
        node._members.remove("n4")
        node.liveness.members_changed()
        assert role.departures.can_judge(node.liveness._node.running_ms())


def change_id(cluster: Cluster, wires: list[Wire], timeout_ms: int) -> None:
    """The broker, which has id 1, registers with id 0 over these connections."""
    master = replace(registration(2, timeout_ms=timeout_ms, broker_id=0), enable_acting_master=False)
    for wire in wires:
        assert cluster.register(wire, master).code == 0


def with_id_1(cluster: Cluster, timeout_ms: int) -> dict[str, Wire]:
    """Register the broker with id 1 over a connection to each node."""
    slave = replace(registration(timeout_ms=timeout_ms, broker_id=1), enable_acting_master=False)
    wires = {name: cluster.wire(name) for name in cluster.machines}
    for wire in wires.values():
        assert cluster.register(wire, slave).code == 0
    cluster.run(3)
    return wires


def test_a_node_that_closed_the_connection_of_an_earlier_id_may_be_used_next() -> None:
    """A node is cut off. The broker gets another id over the other nodes. The node fences itself, so it closes its connection,
    which has the earlier epoch. Then the connections to the other nodes end. The broker must not be removed as gone."""
    with virtual_cluster() as cluster:
        wires = with_id_1(cluster, 60_000)
        far = cluster.followers()[0]
        others = [wire for name, wire in wires.items() if name != far]
        mend = cluster.isolate(far)
        cluster.run(1)
        change_id(cluster, others, 60_000)
        cluster.run(2)
        mend()
        cluster.run(2)
        for wire in others:
            wire.hang_up()
        cluster.run(3)
        assert cluster.is_shown()


def test_a_snapshot_with_another_id_of_a_broker_keeps_its_connections() -> None:
    """Two nodes learn from a snapshot that the broker got another id over the third node, which then leads. Its connection to the
    third node ends. The other nodes must report their connections, which are open."""
    with virtual_cluster() as cluster:
        timeout_ms = 10_000
        cluster.run(timeout_ms / 1000)
        wires = with_id_1(cluster, timeout_ms)
        third = cluster.followers()[0]
        change_id(cluster, [wires[third]], timeout_ms)
        cluster.run(0.2)
        for name in cluster.machines:
            if name != third:
                cluster.node(name).liveness.restored()
        cluster.transfer(third)
        cluster.run(1)
        wires[third].hang_up()
        cluster.run(3)
        assert cluster.is_shown()


def test_the_leader_was_removed_from_the_cluster() -> None:
    """The broker has closed its connections to two nodes, and uses the third, which leads. The third node hands leadership over
    and is removed. The next leader has no report from the third node."""
    with virtual_cluster() as cluster:
        wires = {name: cluster.wire(name) for name in cluster.machines}
        for wire in wires.values():
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(3)
        third, others = cluster.leader(), cluster.followers()
        for name in others:
            wires[name].hang_up()
        cluster.run(2)
        cluster.transfer(others[0])
        cluster.run(1)
        cluster.remove_member(third)
        cluster.transfer(others[1])
        cluster.run(2)
        assert all(cluster.is_shown(name) for name in others)


def close_idle(connection: SimulatedConnection, process: Process) -> None:
    connection.close(CloseReason.IDLE)


def test_idle_connections_are_no_evidence_that_a_broker_left() -> None:
    """The nodes close connections that have been idle for 120 s. The broker's time-out is longer."""
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            assert cluster.register(wire, registration(timeout_ms=600_000)).code == 0
        cluster.run(3)
        for server in cluster.servers.servers.values():
            for connection in list(server.connections.values()):
                server.machine.enqueue(partial(close_idle, connection))
        cluster.run(3)
        assert [wire.is_open for wire in wires] == [False] * 3
        assert cluster.is_shown()


def test_closed_because_queries_had_no_answer() -> None:
    """There is no leader for 3.2 s, and the nodes are not fenced yet. The broker's queries have no answer, so it closes its
    connections. No registration of it is in progress. A leader comes before the broker returns."""
    with virtual_cluster(fenceAfterMs="6000") as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(3)
        mends = [cluster.isolate(name) for name in cluster.machines]
        cluster.run(3.2)
        for wire in wires:
            wire.hang_up()
        cluster.run(0.2)
        for mend in mends:
            mend()
        cluster.run(4)
        assert sum(node.fence_count for node in cluster.nodes) == 0
        assert cluster.is_shown()


def test_sleep_makes_no_node_older() -> None:
    """A node restarts, and then all machines sleep for T. The broker has not returned to that node yet when its other connections
    end."""
    with virtual_cluster() as cluster:
        timeout_ms = 60_000
        far = cluster.followers()[0]
        wires = [cluster.wire(name) for name in cluster.machines if name != far]
        for wire in wires:
            assert cluster.register(wire, registration(timeout_ms=timeout_ms)).code == 0
        cluster.machines[far].crash(power_loss=False)
        cluster.run(0.05)
        cluster.machines[far].start()
        for machine in cluster.machines.values():
            machine.pause()
        cluster.run(timeout_ms / 1000)
        for machine in cluster.machines.values():
            machine.resume()
        cluster.run(4)
        cluster.leader()
        for wire in wires:
            wire.hang_up()
        cluster.run(3)
        assert cluster.is_shown()


@contextmanager
def changes_wait(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every registration waits for its turn as if it had many topics, until the block ends."""
    monkeypatch.setattr(consensus, "HEAVY_TOPICS", -1)
    for node in cluster.nodes:
        with pytest.raises(StopIteration):
            node.proposer._heavy.acquire().send(None)
    yield
    for server in cluster.servers.servers.values():
        server.machine.enqueue(partial(release, server))


def release(server: NameServer, process: Process) -> None:
    server.node.proposer._heavy.release()


def test_a_broker_that_returned_stays_while_its_change_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker closes its connections and returns within the grace period with other content. Its registrations wait for longer
    than the grace period. It must not be removed as gone."""
    with virtual_cluster(fenceAfterMs="10000") as cluster:
        for wire in (old := [cluster.wire(name) for name in cluster.machines]):
            assert cluster.register(wire, registration(1, timeout_ms=60_000)).code == 0
        cluster.run(3)
        for wire in old:
            wire.hang_up()
        cluster.run(0.1)
        new = [cluster.wire(name) for name in cluster.machines]
        with changes_wait(cluster, monkeypatch):
            said = [cluster.say(w, lambda server, c: server.node.register(registration(2, timeout_ms=60_000), c)) for w in new]
            cluster.run(2)
            assert cluster.is_shown()
        cluster.until(lambda: all(each.ended and each.result is not None for each in said), "answers")
        assert cluster.counters() == {2}
        assert sum(node.lost_count for node in cluster.nodes) == 0


def test_a_late_104_has_no_effect_while_a_change_of_the_next_process_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_cluster(fenceAfterMs="10000") as cluster:
        old, new = ([cluster.wire(name) for name in cluster.machines] for _ in range(2))
        for wire in old:
            assert cluster.register(wire, registration(1, timeout_ms=60_000)).code == 0
        cluster.run(3)
        with changes_wait(cluster, monkeypatch):
            said = [cluster.say(w, lambda server, c: server.node.register(registration(2, timeout_ms=60_000), c)) for w in new]
            cluster.run(0.3)
            assert cluster.unregister(old[1]) is None, "its connection is closed"
            assert cluster.is_shown()
        cluster.until(lambda: all(each.ended for each in said), "answers")
        assert [each.result and each.result.code for each in said] == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "removed"),
    [
        pytest.param((0.99 / 3,), 4 / 3, id="just before a third"),
        pytest.param((0.99 / 3, 1.98 / 3, 2.97 / 3), 2, id="just before each third"),
        pytest.param((0.37, 0.74), 0.74 + 1 / 3, id="after the silence is recorded"),
    ],
)
def test_a_dead_broker_goes_by_the_bound_of_the_design(changes: tuple[float, ...], removed: float) -> None:
    """All times are parts of the time-out. The leader changes at ``changes``, and the broker is removed at ``removed``. A leader
    that leads for less than a third of the time-out records nothing, so each change costs a third."""
    with virtual_cluster() as cluster:
        for name in cluster.machines:
            assert cluster.register(cluster.wire(name), registration(timeout_ms=6_000)).code == 0
        died_s = now_s(cluster)
        for change in changes:
            cluster.run(died_s + 6 * change - now_s(cluster))
            cluster.transfer(cluster.followers()[0])
        cluster.until(cluster.is_gone, "removed")
        assert -0.3 < now_s(cluster) - died_s - 6 * removed < 0.5


@pytest.mark.parametrize("changes", [(0.3, 0.34), (0.34, 0.49), (0.49, 0.5)], ids=str)
def test_a_broker_that_renews_twice_in_a_time_out_outlives_two_leaders_in_each_period(changes: tuple[float, float]) -> None:
    """As in production, the time-out is twice the period between registrations (here 6 s and 3 s, by default 120 s and 60 s).
    Each period has two changes of leader, before and after silence is recorded."""
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            assert renew_at_once(cluster, wire, 6_000)
        for period in range(4):
            began_s = now_s(cluster)
            for change in changes:
                cluster.run(began_s + 6 * change - now_s(cluster))
                cluster.transfer(cluster.followers()[0])
            cluster.run(max(0.0, began_s + 3 - now_s(cluster)))
            assert renew_at_once(cluster, wires[period % 3], 6_000)
            assert cluster.is_shown()
        assert expired(cluster) == 0
