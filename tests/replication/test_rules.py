"""The rules of replication/DESIGN.md, one test each, on whole nodes in virtual time."""

from asyncio import Future

import pytest

from replicated_namesrv.model import DataVersion
from replicated_namesrv.routes.commands import UpdateSettings
from replicated_namesrv.routes.results import Result
from replicated_namesrv.service import CloseReason
from replicated_namesrv.simulation.brokers import or_else
from replicated_namesrv.simulation.route_cluster import WALL_S, NameServer, SimulatedConnection
from replicated_namesrv.simulation.world import SECOND
from tests.replication.virtual import KEY, TIMEOUT_MS, registration, virtual_cluster

TIMEOUT_S = TIMEOUT_MS / 1000
PERIOD_S = 1.0
V1 = DataVersion(1, 0, 1)


def test_copies_of_one_registration_are_one_change() -> None:
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for counter in range(1, 6):
            before = cluster.serial(), cluster.node("n1").state.revision
            said = [
                cluster.say(wire, lambda server, c, counter=counter: server.node.register(registration(counter), c))  # type: ignore[misc]  # a default in a lambda
                for wire in wires
            ]
            cluster.until(lambda: all(each.ended for each in said), "answers")  # noqa: B023 - waited for in the loop
            assert [each.result.code for each in said] == [0, 0, 0]
            assert (cluster.serial(), cluster.node("n1").state.revision) == (before[0] + 1, before[1] + 1)


def test_a_copy_that_comes_after_the_commit_is_a_renewal_even_to_a_node_that_lags() -> None:
    with virtual_cluster() as cluster:
        leader, (near, far) = cluster.leader(), cluster.followers()
        cluster.register(cluster.wire(near), registration())
        serial = cluster.serial()
        mend = cluster.isolate(far)
        cluster.register(cluster.wire(leader), registration(2))
        late = cluster.say(cluster.wire(far), lambda server, c: server.node.register(registration(2), c))
        cluster.run(0.5)
        assert not late.ended
        mend()
        cluster.until(lambda: late.ended, "an answer")
        assert late.result.code == 0
        assert cluster.serial() - serial <= 2, "the change, and perhaps the LEAD of another leader"


@pytest.mark.parametrize("through", ["leader", "follower"])
def test_whatever_changes_nothing_writes_nothing_to_the_log(through: str) -> None:
    with virtual_cluster() as cluster:
        name = cluster.leader() if through == "leader" else cluster.followers()[0]
        wire = cluster.wire(name)
        cluster.register(wire, registration())
        cluster.run(1)
        node = cluster.node(cluster.leader())
        last, serial, digest = node.consensus._raft.node.last_index, cluster.serial(), node._machine.digest()
        for _ in range(12):
            assert cluster.register(wire, registration()).code == 0
            cluster.run(TIMEOUT_S / 6)
            answer = cluster.query(wire, V1)
            assert (answer.changed, answer.stored) == (False, V1)
            cluster.heartbeat(wire)
            cluster.run(TIMEOUT_S / 6)
        assert cluster.is_shown()
        assert (node.consensus._raft.node.last_index, cluster.serial(), node._machine.digest()) == (last, serial, digest)


def test_322_alone_keeps_a_broker() -> None:
    with virtual_cluster() as cluster:
        wire = cluster.wire(cluster.followers()[0])
        cluster.register(wire, registration())
        for _ in range(10):
            cluster.run(TIMEOUT_S / 3)
            assert not cluster.query(wire, V1).changed
        assert cluster.is_shown()


def test_322_reads_what_was_acknowledged_elsewhere() -> None:
    with virtual_cluster() as cluster:
        near, far = cluster.followers()
        wires = cluster.wire(near), cluster.wire(far)
        for counter in range(1, 6):
            cluster.register(wires[0], registration(counter))
            assert cluster.query(wires[1], V1).stored.counter == counter


def test_through_a_single_node_a_closed_connection_ends_the_broker() -> None:
    for name in ("leader", "follower"):
        with virtual_cluster() as cluster:
            wire = cluster.wire(cluster.leader() if name == "leader" else cluster.followers()[0])
            cluster.register(wire, registration(timeout_ms=120_000))
            cluster.run(PERIOD_S)
            wire.hang_up()
            assert cluster.until(cluster.is_gone, "gone") < 4


def test_a_broker_lost_by_one_node_and_heard_by_another_stays() -> None:
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration())
        for wire in wires[:2]:
            wire.hang_up()
        for _ in range(8):
            cluster.run(PERIOD_S)
            cluster.register(wires[2], registration())
            assert cluster.is_shown()
        wires[2].hang_up()
        assert cluster.until(cluster.is_gone, "gone") < 4


def test_a_silent_broker_goes_and_its_connections_are_closed_on_all_nodes() -> None:
    with virtual_cluster() as cluster:
        for name in cluster.machines:
            cluster.register(cluster.wire(name), registration())
        cluster.run(0.9 * TIMEOUT_S)
        assert cluster.is_shown()
        assert [len(server.connections) for server in cluster.servers.servers.values()] == [1, 1, 1]
        assert cluster.until(cluster.is_gone, "gone") < 0.1 * TIMEOUT_S + 2
        cluster.run(0.1)
        assert [len(server.connections) for server in cluster.servers.servers.values()] == [0, 0, 0]


@pytest.mark.parametrize("how", ["transfer", "crash"])
def test_a_dead_broker_goes_within_a_time_out_and_a_third_for_each_leader(how: str) -> None:
    with virtual_cluster() as cluster:
        names = list(cluster.machines)
        for name in names:
            cluster.register(cluster.wire(name), registration())
        silent_since, changes = cluster.world.now_ns, 0
        while not cluster.is_gone():
            leader = cluster.leader()
            if how == "transfer":
                cluster.transfer(names[(names.index(leader) + 1) % 3])
            else:
                cluster.machines[leader].crash(power_loss=False)
                cluster.run(0.2)
                cluster.machines[leader].start()
            changes += 1
            cluster.run(TIMEOUT_S / 2)
            bound_s = TIMEOUT_S + changes * (TIMEOUT_S / 3 + 1)
            assert cluster.world.now_ns - silent_since < bound_s * SECOND, f"still there after {changes} leaders"
        assert 3 <= changes <= 5
        assert cluster.world.now_ns - silent_since > TIMEOUT_S * SECOND * 0.9


@pytest.mark.parametrize("how", ["transfer", "crash", "all crash", "outage"])
def test_a_broker_that_renews_every_third_outlives_leaders_lost_as_often(how: str) -> None:
    """The renewals come at about a third of the time-out, so silence is recorded repeatedly."""
    with virtual_cluster() as cluster:
        names = list(cluster.machines)
        wires = [cluster.wire(name) for name in names]
        for wire in wires:
            cluster.register(wire, registration())
        for _ in range(5):
            leader = cluster.leader()
            if how == "transfer":
                cluster.transfer(names[(names.index(leader) + 1) % 3])
            elif how == "outage":
                mends = [cluster.isolate(name) for name in names]
                cluster.run(2 * TIMEOUT_S)
                for mend in mends:
                    mend()
                cluster.until(lambda: not any(node.fenced for node in cluster.nodes), "they serve again")
            else:
                crashed = names if how == "all crash" else [leader]
                for name in crashed:
                    cluster.machines[name].crash(power_loss=True)
                cluster.run(0.2)
                for name in crashed:
                    cluster.machines[name].start()
            cluster.leader()
            cluster.run(TIMEOUT_S / 3 - 0.1)
            assert cluster.is_shown()
            cluster.until(lambda: all(server.serving for server in cluster.servers.servers.values()), "all serve")
            for wire in wires:
                said = cluster.say(wire, lambda server, c: server.node.register(registration(), c))
                cluster.until(lambda: said.ended, "an end")  # noqa: B023 - waited for in the loop
            assert cluster.is_shown()


def test_a_living_broker_outlives_all_leaders() -> None:
    with virtual_cluster() as cluster:
        names = list(cluster.machines)
        wires = [cluster.wire(name) for name in names]
        for round_number in range(12):
            for wire in wires:
                assert cluster.register(wire, registration()).code == 0
            assert cluster.is_shown()
            cluster.transfer(names[(names.index(cluster.leader()) + 1) % 3])
            cluster.run(PERIOD_S / 2)
            if round_number > 0:
                assert cluster.is_shown()


def test_time_in_which_nodes_did_not_run_is_not_silence() -> None:
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration())
        for machine in cluster.machines.values():
            machine.pause()
        cluster.run(5 * TIMEOUT_S)
        for machine in cluster.machines.values():
            machine.resume()
        cluster.run(TIMEOUT_S / 4)
        assert cluster.is_shown(), "nobody could hear it"
        assert cluster.until(cluster.is_gone, "gone") < TIMEOUT_S + 3


def test_a_full_restart_grants_one_time_out_and_no_more() -> None:
    with virtual_cluster() as cluster:
        cluster.register(cluster.wire("n1"), registration())
        for machine in cluster.machines.values():
            machine.crash(power_loss=True)
        cluster.run(2)
        for machine in cluster.machines.values():
            machine.start()
        cluster.leader()
        cluster.run(TIMEOUT_S * 0.75)
        assert cluster.is_shown()
        assert cluster.until(cluster.is_gone, "gone") < TIMEOUT_S


@pytest.mark.parametrize("how", ["crash", "crash and return", "fence", "closed at a limit"])
def test_what_we_close_and_a_nodes_crash_is_no_loss(how: str) -> None:
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        cluster.register(cluster.wire(name), registration())
        cluster.run(0.5)
        if how == "fence":
            cluster.isolate(name)
        elif how == "closed at a limit":
            server = cluster.servers.servers[name]
            with server.loop.running():
                for connection in list(server.connections.values()):
                    connection.close(CloseReason.OURS)
        else:
            cluster.machines[name].crash(power_loss=False)
        if how == "crash and return":
            cluster.run(0.5)
            cluster.machines[name].start()
        cluster.run(0.6 * TIMEOUT_S)
        others = [other for other in cluster.machines if other != name]
        assert all(cluster.is_shown(other) for other in others)
        cluster.until(lambda: not any(cluster.is_shown(other) for other in others), "gone", TIMEOUT_S + 2)


def test_an_isolated_node_fences_and_its_broker_goes_on_elsewhere() -> None:
    with virtual_cluster() as cluster:
        far, near = cluster.followers()
        wires = cluster.wire(far), cluster.wire(near)
        for wire in wires:
            cluster.register(wire, registration())
        cluster.isolate(far)
        for _ in range(int(3 * TIMEOUT_S)):
            cluster.run(1)
            assert cluster.register(wires[1], registration()).code == 0
        assert cluster.is_shown()
        assert not cluster.servers.servers[far].serving
        assert cluster.servers.servers[far].connections == {}


@pytest.mark.parametrize("pauses", ["leader", "follower"])
def test_what_waited_while_its_node_stood_still_is_a_late_copy(pauses: str) -> None:
    """The kernel opened the connection before a newer version was committed; it is accepted when the node has caught up again."""
    with virtual_cluster() as cluster:
        name = cluster.leader() if pauses == "leader" else cluster.followers()[0]
        cluster.register(cluster.wire(name), registration(1))
        cluster.machines[name].pause()
        cluster.run(1)
        other = next(other for other in cluster.machines if other != name)
        cluster.until(lambda: cluster.register(cluster.wire(other), registration(2)) is not None, "taken by the others")
        cluster.machines[name].resume()
        cluster.until(lambda: cluster.counters() == {2}, "caught up")
        assert cluster.register(cluster.wire(name), registration(1)).code == 0
        cluster.run(0.2)
        assert cluster.counters() == {2}


@pytest.mark.parametrize("said_before", ["a registration", "a heartbeat", "nothing"])
def test_an_unregistration_read_after_a_stall_does_not_end_a_later_life(said_before: str) -> None:
    """A node was paused. It reads all requests of the broker's earlier life when the next life has already registered with the
    other nodes."""
    with virtual_cluster() as cluster:
        name, other = cluster.followers()
        first = cluster.wire(other)
        cluster.register(first, registration(1))
        cluster.machines[name].pause()
        cluster.run(1)
        cluster.unregister(first)
        assert cluster.register(cluster.wire(other), registration(2)).code == 0
        cluster.machines[name].resume()
        cluster.until(lambda: cluster.counters() == {2}, "caught up")
        late = cluster.wire(name)
        if said_before == "a registration":
            cluster.say(late, lambda server, c: server.node.register(registration(1), c))
        elif said_before == "a heartbeat":
            cluster.heartbeat(late)
        cluster.unregister(late)
        cluster.run(0.5)
        assert cluster.is_shown()
        cluster.run(1)
        own = cluster.wire(name)
        cluster.register(own, registration(2))
        assert cluster.unregister(own).code == 0
        cluster.run(0.2)
        assert cluster.is_gone()


def test_an_unregistration_is_answered_once_everybody_may_know() -> None:
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration())
        assert cluster.unregister(wires[1]).code == 0
        assert not cluster.is_shown("n2")
        for wire in wires:
            assert cluster.query(wire, V1).stored is None


@pytest.mark.parametrize("recognised", [False, True])
def test_a_registration_received_before_the_unregistration_does_not_bring_the_broker_back(recognised: bool) -> None:
    """``recognised``: the registration was recognised as a renewal by its bytes, but then has to be registered."""

    def ask(server: NameServer, connection: SimulatedConnection) -> object:
        renewed = server.node.renew_unchanged(*KEY, connection) if recognised else None
        if isinstance(renewed, Future):
            return or_else(renewed, lambda received: server.node.register(registration(), connection, received))
        return server.node.register(registration(), connection)

    with virtual_cluster() as cluster:
        near, far = cluster.followers()
        wire = cluster.wire(near)
        cluster.register(wire, registration())
        cluster.register(cluster.wire(far), registration())
        mend = cluster.isolate(far)
        late = cluster.say(cluster.wire(far), ask)
        cluster.run(0.1)
        assert cluster.unregister(wire).code == 0
        mend()
        cluster.until(lambda: late.ended, "an end")
        cluster.run(1)
        assert cluster.is_gone()
        assert cluster.register(wire, registration()).code == 0
        cluster.run(0.2)
        assert cluster.is_shown(), "received afterwards"


def test_a_registration_after_one_that_was_never_evaluated_counts_from_its_own_receipt() -> None:
    """A request was recognised as a renewal, then had to be registered, and was not, because the node had too much to decode. A
    later registration over the same connection was received after the unregistration."""
    with virtual_cluster() as cluster:
        near, far = cluster.followers()
        wires = [cluster.wire(name) for name in (near, far)]
        for wire in wires:
            assert cluster.register(wire, registration()).code == 0
        mend = cluster.isolate(far)
        renewed = cluster.say(wires[1], lambda server, c: server.node.renew_unchanged(*KEY, c))
        cluster.run(0.1)
        assert cluster.unregister(wires[0]).code == 0
        mend()
        cluster.until(lambda: renewed.ended, "the renewal is refused")
        assert not isinstance(renewed.result, Result)
        cluster.until(lambda: not cluster.is_shown(far), "the broker is removed")
        again = cluster.register(wires[1], registration())
        assert again is not None, "its connection was closed"
        assert again.code == 0
        cluster.until(cluster.is_shown, "it is registered")


@pytest.mark.parametrize("where", ["same node", "another node"])
def test_a_late_unregistration_does_not_remove_the_restarted_broker(where: str) -> None:
    """The broker restarted with the same content, so it has the same registration over new connections."""
    with virtual_cluster() as cluster:
        names = list(cluster.machines)
        before = [cluster.wire(name) for name in names]
        for wire in before:
            cluster.register(wire, registration())
        cluster.run(1.1)
        after = [cluster.wire(name) for name in names]
        for wire in after[:1] if where == "same node" else after[1:]:
            assert cluster.register(wire, registration()).code == 0
        cluster.run(0.5)
        answer = cluster.unregister(before[0])
        assert answer is None, "no false promise that it is gone"
        cluster.run(0.5)
        assert cluster.is_shown()
        own = after[0 if where == "same node" else 1]
        cluster.register(own, registration())
        assert cluster.unregister(own).code == 0, "but its own counts"
        cluster.run(0.2)
        assert cluster.is_gone()


def test_a_late_unregistration_comes_before_the_leader_knows_the_newer_connection() -> None:
    """The restarted broker sends a heartbeat, which its node reports with the next tick."""
    with virtual_cluster() as cluster:
        near = cluster.followers()[0]
        before = cluster.wire(near)
        cluster.register(before, registration())
        cluster.run(1.1)
        after, client = cluster.wire(near), cluster.node(near).liveness.client
        number = client._sequence
        cluster.until(lambda: client._sequence > number, "a report")
        cluster.heartbeat(after)
        assert cluster.unregister(before) is None
        cluster.run(0.5)
        assert cluster.is_shown()


def test_a_restarted_broker_that_leaves_at_once_is_gone_with_the_first_answer() -> None:
    """The broker registered with all nodes in one round. It unregisters first from the node with which it registered first."""
    with virtual_cluster() as cluster:
        names = list(cluster.machines)
        for wire in (before := [cluster.wire(name) for name in names]):
            cluster.register(wire, registration())
        for wire in before:
            wire.hang_up()
        for wire in (after := [cluster.wire(name) for name in names]):
            assert cluster.register(wire, registration()).code == 0
        cluster.run(0.3)
        assert cluster.unregister(after[0]).code == 0
        cluster.run(0.2)
        assert cluster.is_gone()


def test_a_late_unregistration_of_an_earlier_life_does_nothing() -> None:
    with virtual_cluster() as cluster:
        old, other = cluster.wire("n1"), cluster.wire("n2")
        cluster.register(old, registration())
        cluster.register(other, registration())
        cluster.unregister(other)
        cluster.register(cluster.wire("n2"), registration())
        assert cluster.unregister(old).code == 0
        cluster.run(0.5)
        assert cluster.is_shown()


@pytest.mark.parametrize("held_back", ["late copy", "heartbeat", "322"])
def test_what_an_earlier_life_said_last_does_not_arm_its_late_unregistration(held_back: str) -> None:
    """The bytes delayed on one link arrive together: another request of the earlier life, then its 104."""
    with virtual_cluster() as cluster:
        old, other = cluster.wire("n1"), cluster.wire("n2")
        cluster.register(old, registration(1))
        cluster.register(other, registration(1))
        cluster.unregister(other)
        assert cluster.register(cluster.wire("n2"), registration(3)).code == 0
        cluster.run(0.5)
        if held_back == "late copy":
            assert cluster.register(old, registration(2)).code == 0
        elif held_back == "heartbeat":
            cluster.heartbeat(old)
        else:
            cluster.query(old, registration(1).data_version)
        cluster.run(0.1)
        assert cluster.unregister(old).code == 0
        cluster.run(0.5)
        assert cluster.is_shown()
        assert cluster.counters() == {3}


@pytest.mark.parametrize("held_back", ["late copy", "322", "heartbeat, 322, late copy"])
def test_a_connection_that_told_only_of_an_earlier_life_does_not_end_a_later_one(held_back: str) -> None:
    """The link was already delayed when the earlier life began, so all its requests arrive after the registration of the later
    life."""
    with virtual_cluster() as cluster:
        early, other = cluster.wire("n1"), cluster.wire("n2")
        cluster.heartbeat(early)  # opened before any registration
        cluster.register(other, registration(1))
        cluster.unregister(other)
        cluster.run(1.1)
        for name in ("n2", "n3"):
            assert cluster.register(cluster.wire(name), registration(3)).code == 0
        cluster.run(0.5)
        if "heartbeat" in held_back:
            cluster.heartbeat(early)
        if "322" in held_back:
            cluster.query(early, registration(1).data_version)
        if "late copy" in held_back:
            assert cluster.register(early, registration(1)).code == 0
        assert cluster.unregister(early) is None, "other connections are newer"
        cluster.run(0.5)
        assert cluster.is_shown()
        assert cluster.counters() == {3}
        own = cluster.wire("n1")
        assert cluster.register(own, registration(3)).code == 0
        assert cluster.unregister(own).code == 0
        cluster.run(0.2)
        assert cluster.is_gone()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_a_broker_that_leaves_over_all_its_connections_is_gone(order: tuple[int, ...]) -> None:
    """The newest connection decides, in any order of the requests."""
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration(timeout_ms=120_000))
            cluster.run(1.2)
        answers = [cluster.unregister(wires[number]) for number in order]
        assert answers[order.index(2)].code == 0
        cluster.run(0.2)
        assert cluster.is_gone()


def test_a_broker_whose_newest_connection_breaks_while_it_leaves_is_gone_too() -> None:
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration(timeout_ms=120_000))
            cluster.run(1.2)
        assert cluster.unregister(wires[0]) is None
        assert cluster.unregister(wires[1]) is None
        wires[2].hang_up()
        assert cluster.until(cluster.is_gone, "gone") < 4


def test_a_removal_under_way_at_a_change_of_leader_is_decided_once() -> None:
    with virtual_cluster() as cluster:
        leader, (near, far) = cluster.leader(), cluster.followers()
        wire = cluster.wire(near)
        cluster.register(wire, registration())
        mend = cluster.isolate(leader)
        assert cluster.unregister(wire).code == 0, "answered by the next leader"
        assert not cluster.is_shown(near)
        assert not cluster.is_shown(far) or cluster.until(lambda: not cluster.is_shown(far), "applied") < 1
        mend()
        cluster.until(cluster.is_gone, "gone everywhere")


def test_settings_hold_on_all_nodes_and_through_a_restart() -> None:
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        assert cluster.propose(cluster.wire(name), UpdateSettings({"order_message_enable": True})).code == 0
        cluster.run(0.3)
        assert all(node.state.settings.order_message_enable for node in cluster.nodes)
        cluster.machines[name].crash(power_loss=True)
        cluster.run(1)
        cluster.machines[name].start()
        cluster.until(lambda: cluster.servers.servers[name].serving, "serving")
        assert cluster.node(name).state.settings.order_message_enable


def test_the_time_in_the_state_is_the_leaders_and_never_goes_back() -> None:
    with virtual_cluster() as cluster:
        skews = {"n1": 3_600.0, "n2": -3_600.0, "n3": 0.0}
        cluster.servers.clock_skew_s.update(skews)
        seen = []
        for number, leader in enumerate(("n1", "n2", "n3")):
            for machine in cluster.machines.values():  # clocks are read at the start
                machine.crash(power_loss=False)
                machine.start()
            if cluster.leader() != leader:
                cluster.run(1)
                cluster.transfer(leader)
            cluster.run(1)
            address = f"a:{number}"
            command = registration(address=address, broker_id=number, timeout_ms=600_000)
            assert cluster.register(cluster.wire(cluster.followers()[0]), command).code == 0
            cluster.run(0.2)
            since = {node.state.registration(KEY[0], address).since_ms for node in cluster.nodes}  # type: ignore[union-attr]  # registered above
            assert len(since) == 1
            seen.append(since.pop() / 1000 - WALL_S)
            if leader == "n1":
                assert seen[0] - cluster.machines[leader].local_now() == pytest.approx(3_600, abs=1)
        assert seen == sorted(seen)
        assert seen[-1] - seen[0] < 60, "later leaders go on from there, whatever their clocks say"


def test_living_brokers_outlast_a_long_outage() -> None:
    """The nodes cannot communicate for three time-outs. A live broker, which returns a while later, stays; a dead one does
    not.
    """
    with virtual_cluster() as cluster:
        wires = [cluster.wire(name) for name in cluster.machines]
        for wire in wires:
            cluster.register(wire, registration())
        cluster.run(0.2)
        mends = [cluster.isolate(name) for name in cluster.machines]
        cluster.run(3 * TIMEOUT_S)
        assert all(node.fenced for node in cluster.nodes)
        for mend in mends:
            mend()
        cluster.until(lambda: not any(node.fenced for node in cluster.nodes), "they serve again")
        cluster.run(TIMEOUT_S / 2)
        assert cluster.is_shown()
        cluster.register(cluster.wire("n1"), registration())
        cluster.run(TIMEOUT_S * 0.8)
        assert cluster.is_shown()
        cluster.until(cluster.is_gone, "gone", TIMEOUT_S)


def test_a_suspected_broker_is_shown_on_every_node_until_it_makes_contact() -> None:
    with virtual_cluster() as cluster:
        wire = cluster.wire(cluster.followers()[0])
        told: dict[str, list[int | None]] = {name: [] for name in cluster.machines}
        for name, changes in told.items():
            cluster.node(name).on_suspected(lambda key, since_ms, changes=changes: changes.append(since_ms))  # type: ignore[misc]  # a default in a lambda
        cluster.register(wire, registration())
        cluster.run(TIMEOUT_S / 3 + 0.3)
        shown = [node.suspected_since() for node in cluster.nodes]
        assert [list(one) for one in shown] == [[KEY]] * 3
        since_ms = shown[0][KEY]
        assert all(one[KEY] == since_ms for one in shown)
        cluster.register(wire, registration())
        cluster.run(0.1)
        assert [node.suspected_since() for node in cluster.nodes] == [{}] * 3
        assert list(told.values()) == [[since_ms, None]] * 3
