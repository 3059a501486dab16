"""Every rule of liveness is needed: for each rule there is a schedule that has another outcome if the rule is switched off.

The simulator has the same switches (``--off``).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv import replication
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.liveness.departures import Departures
from replicated_namesrv.replication.liveness.leader_messages import AGE_MAX, LOST, NodeReport, ReportEntry
from replicated_namesrv.replication.liveness.silence import Lease
from replicated_namesrv.routes.commands import BrokerRemoval, UnregisterBrokers
from replicated_namesrv.simulation.route_cluster import NameServer, SimulatedConnection, Wire
from replicated_namesrv.simulation.world import SECOND
from tests.replication.virtual import KEY, TIMEOUT_MS, Cluster, registration, virtual_cluster
from tests.support.places import assert_same_names

T = TIMEOUT_MS / 1000
LONG_MS = 60_000


def registered(cluster: Cluster, timeout_ms: int = TIMEOUT_MS, nodes: int = 3) -> list[Wire]:
    """Register the broker over connections to this number of nodes."""
    wires = [cluster.wire(name) for name in list(cluster.machines)[:nodes]]
    for wire in wires:
        assert cluster.register(wire, registration(timeout_ms=timeout_ms)).code == 0
    return wires


def renewals_count(cluster: Cluster) -> bool:
    """A broker that renews within a third of its time-out causes no log entry."""
    (wire,) = registered(cluster, nodes=1)
    cluster.run(0.5)
    assert cluster.register(wire, registration()).code == 0
    serial = cluster.serial()
    for _ in range(6):
        cluster.run(T / 4)
        assert cluster.register(wire, registration()).code == 0
    return cluster.serial() == serial


def change_leaders(cluster: Cluster, count: int, every_s: float) -> None:
    names = list(cluster.machines)
    for _ in range(count):
        cluster.transfer(names[(names.index(cluster.leader()) + 1) % 3])
        cluster.run(every_s)


def a_dead_broker_goes_while_leaders_change(cluster: Cluster) -> bool:
    registered(cluster)
    change_leaders(cluster, 4, T / 2)
    return cluster.is_gone()


def contact_recorded(cluster: Cluster) -> bool:
    """The leader is lost soon after it has accepted a renewal of a suspected broker."""
    (wire, *_) = registered(cluster)
    for _ in range(3):
        cluster.run(T / 3 + 0.3)
        if not cluster.is_shown():
            return False
        assert cluster.register(wire, registration()) is not None
        change_leaders(cluster, 1, 0)
    return True


def silent_removed(cluster: Cluster) -> bool:
    registered(cluster)
    cluster.run(2 * T)
    return cluster.is_gone()


def released_nodes(cluster: Cluster) -> bool:
    """One node fences itself, and so closes the broker's connection. The other nodes see their connections to the broker end."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)
    far = cluster.followers()[0]
    mend = cluster.isolate(far)
    cluster.run(3)
    mend()
    cluster.run(2)
    for wire in wires:
        if wire.machine.name != far:
            wire.hang_up()
    cluster.run(2)
    return cluster.is_shown()


def earlier_epochs(cluster: Cluster) -> bool:
    """The broker gets another id over one connection, and closes it. The others have the epoch of its earlier id."""
    slave = replace(registration(timeout_ms=LONG_MS, broker_id=1), enable_acting_master=False)
    wires = [cluster.wire(name) for name in cluster.machines]
    for wire in wires:
        assert cluster.register(wire, slave).code == 0
    cluster.run(3)
    (first,) = (wire for wire in wires if wire.machine.name == cluster.followers()[0])
    master = replace(registration(2, timeout_ms=LONG_MS, broker_id=0), enable_acting_master=False)
    assert cluster.register(first, master).code == 0
    cluster.run(0.2)
    first.hang_up()
    cluster.run(3)
    return cluster.is_shown()


def unheard_nodes(cluster: Cluster) -> bool:
    """The broker's only connection left is to a node that cannot reach the leader."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)
    far = cluster.followers()[0]
    cluster.isolate(far)
    cluster.run(0.5)
    for wire in wires:
        if wire.machine.name != far:
            wire.hang_up()
    cluster.run(3)
    return all(cluster.is_shown(name) for name in cluster.machines if name != far)


def young_nodes(cluster: Cluster) -> bool:
    """One node restarts; the broker has not come back to it yet when its other connections end."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)
    far = cluster.followers()[0]
    cluster.machines[far].crash(power_loss=False)
    cluster.run(0.2)
    cluster.machines[far].start()
    cluster.until(lambda: cluster.servers.servers[far].serving, "it serves")
    cluster.run(1)
    for wire in wires:
        if wire.machine.name != far:
            wire.hang_up()
    cluster.run(3)
    return cluster.is_shown()


def removed_nodes(cluster: Cluster) -> bool:
    """The broker's only connection left is to a node that is removed from the cluster."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)
    far = cluster.followers()[0]
    for wire in wires:
        if wire.machine.name != far:
            wire.hang_up()
    cluster.run(2)
    cluster.remove_member(far)
    cluster.run(2)
    return all(cluster.is_shown(name) for name in cluster.machines if name != far)


def peace(cluster: Cluster) -> bool:
    """There is no leader for a moment, so answers are late. The broker closes its connections when it has just received them."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)
    mends = [cluster.isolate(name) for name in cluster.machines]
    cluster.run(0.1)
    said = [cluster.say(w, lambda server, c: server.node.register(registration(timeout_ms=LONG_MS), c)) for w in wires]
    cluster.run(1.2)
    for mend in mends:
        mend()
    cluster.until(lambda: all(each.ended and each.result is not None for each in said), "answers")
    for wire in wires:
        wire.hang_up()
    cluster.run(4)
    return cluster.is_shown()


def acknowledged_answers(cluster: Cluster) -> bool:
    """The network loses the answers to the broker. The broker closes its connections afterwards."""
    wires = registered(cluster, LONG_MS)
    cluster.run(1)

    def ask(wire: Wire, server: NameServer, connection: SimulatedConnection) -> object:
        wire.is_cut = True  # from now on, so that the request has arrived
        return server.node.register(registration(timeout_ms=LONG_MS), connection)

    for wire in wires:
        cluster.say(wire, partial(ask, wire))
    cluster.run(0.5)
    assert all(wire.is_cut for wire in wires)
    for wire in wires:
        wire.is_cut = False
        wire.hang_up()
    cluster.run(4)
    return cluster.is_shown()


def newest_connection(cluster: Cluster) -> bool:
    """The process was restarted with equal content, and a 104 of the earlier process arrives late."""
    before = registered(cluster)
    cluster.run(1.2)
    registered(cluster)
    cluster.run(0.3)
    cluster.unregister(before[0])
    cluster.run(0.3)
    return cluster.is_shown()


def released_connection(cluster: Cluster) -> bool:
    """As ``newest_connection``, but the ``UNREGISTER_BROKER`` (104) arrives while there is no leader. Then the nodes fence
    themselves and close all connections."""
    before = registered(cluster, LONG_MS)
    cluster.run(1.2)
    registered(cluster, LONG_MS)
    mends = [cluster.isolate(name) for name in cluster.machines]
    cluster.run(1.3)
    removal = UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),))
    cluster.say(before[0], lambda server, connection: server.node.propose(removal, connection))
    cluster.until(lambda: not any(server.serving for server in cluster.servers.servers.values()), "all nodes are fenced")
    for mend in mends:
        mend()
    cluster.leader()
    cluster.run(3)
    return cluster.is_shown()


def running_time(cluster: Cluster) -> bool:
    """The only node is paused for longer than a time-out."""
    registered(cluster)
    for machine in cluster.machines.values():
        machine.pause()
    cluster.run(3 * T)
    for machine in cluster.machines.values():
        machine.resume()
    cluster.run(T / 4)
    return cluster.is_shown()


def repeated_versions(cluster: Cluster) -> bool:
    """A copy of an earlier registration arrives late."""
    (old, new, _) = registered(cluster)
    assert cluster.register(new, registration(2)).code == 0
    cluster.register(old, registration(1))
    cluster.run(0.2)
    return cluster.counters() == {2}


SCHEDULES: dict[str, Callable[[Cluster], bool]] = {
    "renewals_count": renewals_count,
    "silence_recorded": a_dead_broker_goes_while_leaders_change,
    "silence_continued": a_dead_broker_goes_while_leaders_change,
    "contact_recorded": contact_recorded,
    "silent_removed": silent_removed,
    "released_nodes": released_nodes,
    "earlier_epochs": earlier_epochs,
    "unheard_nodes": unheard_nodes,
    "young_nodes": young_nodes,
    "removed_nodes": removed_nodes,
    "peace": peace,
    "acknowledged_answers": acknowledged_answers,
    "newest_connection": newest_connection,
    "released_connection": released_connection,
    "running_time": running_time,
    "repeated_versions": repeated_versions,
}


def test_every_rule_has_a_schedule() -> None:
    tested = {*SCHEDULES, "all_lists", "reports_awaited"}
    assert_same_names(tested, "SCHEDULES of this file", LivenessDefences.names(), "LivenessDefences")
    design = Path(replication.__file__).with_name("DESIGN.md").read_text(encoding="utf-8")
    missing = [name for name in LivenessDefences.names() if f"| `{name}` |" not in design]
    assert not missing, f"replication/DESIGN.md has no row for {', '.join(missing)}"


def test_without_all_lists_a_new_leader_decides_too_early() -> None:
    for off in (False, True):
        departures = Departures(("n1", "n2"), "n1", 500, 0, LivenessDefences(all_lists=not off))
        departures.report("n1", NodeReport(1, 1, 5, True, (), 0), 0, 0)
        assert not departures.is_late(Lease(KEY, 7, 10_000, 0), 0, 0), "n2 may have a newer connection"
        assert departures.can_judge(0) is off


def test_without_reports_awaited_a_registration_is_overlooked() -> None:
    lease, lost = Lease(KEY, 7, 10_000, 0), ReportEntry(KEY, LOST, False, 7, 0, AGE_MAX)
    for off in (False, True):
        departures = Departures(("n1",), "n1", 0, 0, LivenessDefences(reports_awaited=not off))
        departures.report("n1", NodeReport(1, 1, 5, True, (lost,), 0), 0, 0)
        departures.registered(KEY, 7, 100, 100)
        assert departures.awaits_report(KEY, 100) is not off
        assert list(departures.gone(lambda key: lease, 100)) == [lease] * off


@pytest.mark.slow
@pytest.mark.parametrize("rule", SCHEDULES)
def test_a_rule_is_needed(rule: str) -> None:
    for off in (False, True):
        with virtual_cluster(1 if rule == "running_time" else 3, fenceAfterMs="5000" if rule == "peace" else "1500") as cluster:
            if off:
                cluster.defend(LivenessDefences.without(rule))
            assert SCHEDULES[rule](cluster) is not off, f"{rule} {'off' if off else 'on'}"
            assert cluster.world.now_ns < 120 * SECOND
