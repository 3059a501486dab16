"""Schedules of a broker with several connections to one node, on whole nodes in virtual time."""

from dataclasses import replace

from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers
from replicated_namesrv.service import CloseReason
from replicated_namesrv.simulation.route_cluster import Wire
from tests.replication.virtual import KEY, Cluster, registration, virtual_cluster


def test_other_connections_to_the_node_count_after_a_change_of_the_id() -> None:
    """A broker has two connections to each node, because two addresses in its list lead to the node. It gets another id over one
    of them and closes it. In an earlier version, the node forgot the other connection at the change, and the broker was removed
    as gone."""
    with virtual_cluster() as cluster:
        slave = replace(registration(timeout_ms=60_000, broker_id=1), enable_acting_master=False)
        wires = [cluster.wire(name) for name in cluster.machines for _ in range(2)]
        for wire in wires:
            assert cluster.register(wire, slave).code == 0
        cluster.run(3)
        last, other, *rest = wires
        assert cluster.register(last, replace(slave, broker_id=0, data_version=registration(2).data_version)).code == 0
        for wire in (last, *rest):
            wire.hang_up()
        cluster.run(5)
        assert cluster.is_shown()
        other.hang_up()
        cluster.until(cluster.is_gone, "the broker has left")
        assert sum(node.lost_count for node in cluster.nodes) == 1


def restarted_and_closed(cluster: Cluster) -> Wire:
    """A broker restarts, and the only node closes the new connection, at a limit for example. Returns the earlier connection,
    which is still open."""
    (name,) = cluster.machines
    wires = cluster.wire(name), cluster.wire(name)
    for wire in wires:
        assert cluster.register(wire, registration(timeout_ms=60_000)).code == 0
        cluster.run(5)
    earlier, present = wires
    cluster.say(present, lambda server, connection: connection.close(CloseReason.OURS))
    cluster.run(1)
    return earlier


def test_a_connection_of_an_earlier_process_that_closes_last_is_no_evidence() -> None:
    """The end of the earlier connection comes late. The broker returns in its next round. An earlier version removed it as
    gone."""
    with virtual_cluster(1) as cluster:
        earlier = restarted_and_closed(cluster)
        earlier.hang_up()
        cluster.run(5)
        assert cluster.is_shown()


def test_a_late_104_after_the_node_closed_the_connection_of_the_present_process() -> None:
    """A heartbeat and a 104 of the earlier process come late. An earlier version removed the broker."""
    with virtual_cluster(1) as cluster:
        earlier = restarted_and_closed(cluster)
        cluster.say(earlier, lambda server, connection: server.node.heartbeat(*KEY, connection))
        cluster.run(1)
        removal = UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),))
        cluster.say(earlier, lambda server, connection: server.node.propose(removal, connection))
        cluster.run(5)
        assert cluster.is_shown()
