"""Directed tests: a virtual machine is reset to a snapshot, memory included, while its node leads."""

import pytest

from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import commit
from tests.raft.test_lost_memory import others
from tests.support.raft_world import Host, World


def led_with_one_follower() -> tuple[World, RaftNode, Host]:
    """A leader and a follower of three nodes; the third node is down, so nobody else can be elected."""
    world = World()
    world.start_all()
    leader = world.elect()
    follower, third = others(world, leader)
    third.crash()
    world.run(1)
    commit(world, leader, b"old")
    world.run(1)
    world.run_until(lambda: not leader.log.syncing)
    return world, leader, follower


def reset(world: World, image: Host, follower: Host) -> None:
    """Replace the leader of ``world`` by its image from an equal world. Its connections are new."""
    former, name = world.hosts[image.name], image.name
    for peer in world.names:
        world.disconnect(name, peer)
        world.disconnect(peer, name)
    former.node, former.life = None, former.life + 1
    image.world, world.hosts[name] = world, image
    assert image.node is not None
    for peer in image.node.peers:
        image.node.on_disconnected(peer)
    world.connect(name, follower.name)
    world.connect(follower.name, name)


@pytest.mark.xfail(strict=True, reason="known limit, see Limits in raft/DESIGN.md: the two nodes apply different commands")
def test_a_leader_that_is_reset_with_its_memory_applies_no_other_entry() -> None:
    """The leader commits X, and its machine is reset to the time before. It still leads, and appends Y with the index and term of
    X. It learns from an introduction that it was reset, and rejoins. Its log must not keep Y, because the other nodes cannot
    distinguish this entry from X."""
    world, leader, follower = led_with_one_follower()
    image = led_with_one_follower()[0].hosts[leader.node_id]  # the world is equal at the time of the snapshot
    commit(world, leader, b"X")
    world.run(0.5)
    reset(world, image, follower)
    world.propose(image.name, b"Y")
    world.run(1)
    assert image.node is not None
    assert image.node.counters["rejoined"] == 1
    third = next(host for host in world.hosts.values() if host.node is None)
    third.start()
    world.elect()
    world.run(5)
    assert image.machine.commands[:2] == follower.machine.commands[:2] == [b"old", b"X"]
