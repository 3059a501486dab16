"""Nodes that learn from a snapshot that they were removed, or added again, and lose power before it is installed."""

import pytest

from replicated_namesrv.raft.interfaces import Rejected
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import commit
from tests.raft.test_members import add, grow, make, remove, wait_for
from tests.support.raft_world import Host, World


def lose_power_before_installation(world: World, host: Host) -> RaftNode:
    """``host`` loses power when a received snapshot has its final file name, but is not installed yet. Returns the next
    process."""
    world.run_until(lambda: any(name.startswith("snapshot-") for name in host.disk.durable))
    assert host.node is not None
    assert host.node.receiving.installed == 0
    host.crash()
    return host.start()


@pytest.mark.parametrize("named", [True, False])
def test_a_node_learns_of_its_removal_although_the_snapshot_with_it_was_not_installed(named: bool) -> None:
    """The node has never applied an entry of members. ``named``: the snapshot has its final file name, and the node starts from
    it. Otherwise the power fails just before the file gets this name, and the node starts from its log."""
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    gone = next(host for host in world.hosts.values() if host.node is not leader)
    world.isolate(gone.name)
    make(world, remove(gone.name))
    for number in range(50):
        commit(world, leader, b"%d" % number)
    world.heal()
    if named:
        node = lose_power_before_installation(world, gone)
    else:
        world.run_until(lambda: gone.node is not None and gone.node.identity.removed_at)
        gone.crash()
        assert not any(name.startswith("snapshot-") for name in gone.disk.durable)
        node = gone.start()
    assert (node.role, gone.name in node.member_table) == ("removed", not named)
    assert node.identity.members_in_log
    assert "was removed from the cluster by entry" in str(node.status()["problem"])
    assert isinstance(world.propose(gone.name, b"b")[0], Rejected)
    read = world.read(gone.name)
    world.run_until(lambda: read)
    assert isinstance(read[0], Rejected)
    make(world, add(gone.name))
    wait_for(world, gone, "voter")
    assert node.role == "follower"


def test_a_removed_node_learns_of_its_return_although_the_snapshot_with_it_was_not_installed() -> None:
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    host = next(host for host in world.hosts.values() if host.node is not leader)
    make(world, remove(host.name))
    world.run_until(lambda: host.node is not None and host.node.role == "removed")
    host.crash()
    make(world, add(host.name, observer=True))
    for number in range(50):
        commit(world, leader, b"%d" % number)
    host.start()
    node = lose_power_before_installation(world, host)
    assert node.role == "observer"
    wait_for(world, host, "observer")


def test_a_new_node_is_not_removed_by_a_snapshot_that_is_older_than_its_addition() -> None:
    world = World(3, RaftConfig(compact_entries=20, compact_margin_entries=0))
    world.start_all()
    grow(world, "n4", observer=True)
    leader = world.elect()
    for number in range(50):
        commit(world, leader, b"%d" % number)
    world.run_until(lambda: leader.first_index > 20)
    host = world.new_host("n5")
    host.start()
    make(world, add(host.name))
    node = lose_power_before_installation(world, host)
    assert (node.role, node.member_table.get(host.name)) == ("learner", None)
    wait_for(world, host, "voter")
