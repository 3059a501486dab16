"""A disk is replaced and later put back, or its process returns: no earlier proposal is applied again.

Every test with ``defended`` runs twice: with the defence the rule is kept, without it the damage is visible.
"""

import pytest

from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Forward, Message
from tests.raft.test_defences import both, commit, world_with
from tests.raft.test_lost_memory import elected, others, settle
from tests.raft.test_members import add, make, remove, wait_for
from tests.support.raft_world import Disk, World


@both
def test_current_forwards(defended: bool) -> None:
    """A node proposes X, then gets a new disk and proposes Y, then gets its complete first disk back. The network repeats the
    forward of X; term and leader are the same. The session of Y has replaced the one that knows X."""
    world = world_with("current_forwards", defended, also_off=("lost_places",))
    leader = world.elect()
    moved = others(world, leader)[0]
    kept = world.keep(Forward, source=moved.name)
    assert moved.node is not None
    first = moved.node
    commit(world, first, b"X")
    repeated = kept[-1]
    settle(world)
    moved.crash()
    first_disk, moved.disk = moved.disk, Disk()
    second = moved.start()
    world.run_until(lambda: leader.voters[moved.name] == second.incarnation)
    commit(world, second, b"Y")
    settle(world)
    moved.crash()
    moved.disk = first_disk
    back = moved.start()
    assert back.incarnation == first.incarnation
    world.run_until(lambda: leader.voters[moved.name] == first.incarnation)
    assert (leader.role, leader.term) == ("leader", repeated.term)
    leader.on_message(moved.name, repeated)
    leader.tick()
    world.run(1)
    assert leader.counters["stale_forwards"] == defended
    for host in world.hosts.values():
        assert host.machine.commands == [b"X", b"Y"] + [b"X"] * (not defended)
    commit(world, back, b"Z")


class DisplacedProcess:
    """A follower's process that proposed X and lost its connections. Another process with a new disk took its place and proposed
    Y."""

    def __init__(self, world: World) -> None:
        self.world, self.leader = world, world.elect()
        self.host = host = others(world, self.leader)[0]
        forwards = world.keep(Forward, source=host.name)
        assert host.node is not None
        self.node, self.incarnation = host.node, host.node.incarnation
        commit(world, self.node, b"X")
        self.repeated = forwards[-1]
        """The forward of X, which a test can repeat."""
        settle(world)
        self._disk, self._machine = host.disk, host.machine
        host.crash(power=False)
        for peer in world.names:
            self.node.on_disconnected(peer)
        host.disk = Disk()
        second = host.start()
        world.run_until(lambda: self.leader.voters[host.name] == second.incarnation)
        commit(world, second, b"Y")
        settle(world)

    def come_back(self) -> None:
        """Put the first process and its disk back in their place."""
        self.host.disk, self.host.machine, self.host.node = self._disk, self._machine, self.node
        for peer in self.world.names:
            self.world.connect(self.host.name, peer)
            self.world.connect(peer, self.host.name)


@both
def test_lost_places(defended: bool) -> None:
    """As above, but the first process only loses its connections while another process with a new disk has its place. When the
    first process is back, it still has the boot number with which it sent the forward of X."""
    world = world_with("lost_places", defended)
    displaced = DisplacedProcess(world)
    leader, moved, first, repeated = displaced.leader, displaced.host, displaced.node, displaced.repeated
    moved.crash()
    displaced.come_back()
    world.run_until(lambda: leader.voters[moved.name] == first.incarnation)
    assert (first.incarnation != displaced.incarnation) == defended
    assert (leader.role, leader.term) == ("leader", repeated.term)
    leader.on_message(moved.name, repeated)
    leader.tick()
    world.run(1)
    for host in world.hosts.values():
        assert host.machine.commands == [b"X", b"Y"] + [b"X"] * (not defended)
    commit(world, first, b"Z")
    if defended:
        assert first.counters["rejoined"] == 1
        assert any("has taken the place of this one" in note for note in first.notes)


@both
@pytest.mark.parametrize("added", ["before the snapshot", "after the snapshot"])
def test_lost_places_in_a_snapshot(defended: bool, added: str) -> None:
    """As above, but the node is then removed and added again, and the log is compacted. The first process receives a snapshot in
    which its node is a learner without an incarnation, or no member."""
    world = world_with("lost_places", defended, compact_entries=20, compact_margin_entries=0)
    displaced = DisplacedProcess(world)
    leader, moved, first, repeated = displaced.leader, displaced.host, displaced.node, displaced.repeated
    make(world, remove(moved.name))
    moved.crash()
    if added == "before the snapshot":
        make(world, add(moved.name))
    for number in range(50):
        commit(world, leader, b"%d" % number)
    assert (leader.role, leader.term) == ("leader", repeated.term)
    assert leader.first_index > first.last_index + 1
    displaced.come_back()
    world.run_until(lambda: first.receiving.installed == 1)
    if added == "after the snapshot":
        make(world, add(moved.name))
    world.run_until(lambda: leader.voters.get(moved.name) == first.incarnation)
    assert (first.incarnation != displaced.incarnation) == defended
    leader.on_message(moved.name, repeated)
    leader.tick()
    world.run(1)
    for host in world.hosts.values():
        assert host.machine.commands.count(b"X") == (1 if defended else 2)
    commit(world, first, b"Z")
    assert first.counters["rejoined"] == defended


def test_a_removed_node_whose_proposals_are_still_known_keeps_its_incarnation() -> None:
    """A snapshot shows its removal and its return as a learner, and no other incarnation has proposed."""
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    leader = world.elect()
    host = others(world, leader)[0]
    node = host.node
    assert node is not None
    incarnation = node.incarnation
    commit(world, node, b"a")
    settle(world)
    world.isolate(host.name)
    make(world, remove(host.name))
    make(world, add(host.name))
    for number in range(50):
        commit(world, leader, b"%d" % number)
    world.heal()
    wait_for(world, host, "voter")
    assert node.receiving.installed == 1
    assert (node.incarnation, node.counters["rejoined"]) == (incarnation, 0)
    commit(world, node, b"b")


def test_a_forward_of_an_earlier_boot_is_dropped() -> None:
    """The forward was on its way when the node restarted. The caller ended with the earlier process."""
    world, leader = elected()
    host = others(world, leader)[0]
    kept: list[Forward] = []

    def delay(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Forward):
            kept.append(message)
        return isinstance(message, Forward)

    world.drop = delay
    world.propose(host.name, b"X")
    world.run_until(lambda: kept)
    host.crash()
    node = host.start()
    world.drop = lambda source, target, message: False
    world.run_until(lambda: leader.membership.boot_of(host.name, node.incarnation) == 2)
    leader.on_message(host.name, kept[0])
    leader.tick()
    assert leader.counters["stale_forwards"] == 1
    commit(world, node, b"Y")
    settle(world)
    assert host.machine.commands == [b"Y"]


def test_a_forward_that_waits_at_a_leader_ends_with_its_term() -> None:
    """The leader loses its term before it appends the forward, and leads again before it knows another leader. The sender has
    proposed the command again; an entry at the index in its reply may have been cut."""
    world, leader = elected()
    host = others(world, leader)[0]
    kept = world.keep(Forward, source=host.name)
    assert host.node is not None
    commit(world, host.node, b"X")
    settle(world)
    may_append, leader.proposals._may_append = leader.proposals._may_append, lambda: False
    leader.on_message(host.name, kept[-1])
    for name in world.names:
        world.isolate(name)
    world.run_until(lambda: leader.role != "leader")
    world.heal()
    leader.core.start_election()
    world.run_until(lambda: leader.role == "leader")
    last = leader.last_index
    leader.proposals._may_append = may_append
    leader.tick()
    assert (leader.counters["stale_forwards"], leader.last_index) == (1, last)
    commit(world, host.node, b"Y")


def test_a_removed_node_that_is_added_again_keeps_its_incarnation() -> None:
    """No other data directory has had its place."""
    world = World(3)
    world.start_all()
    commit(world, world.elect(), b"a")
    host = next(host for host in world.hosts.values() if host.node is not world.leader)
    node = host.node
    assert node is not None
    incarnation = node.incarnation
    make(world, remove(host.name))
    world.run_until(lambda: node.role == "removed")
    make(world, add(host.name))
    wait_for(world, host, "voter")
    assert (node.incarnation, node.counters["rejoined"]) == (incarnation, 0)
    commit(world, node, b"b")
