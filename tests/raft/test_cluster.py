"""Clusters in virtual time: founding, elections, proposals, reads, snapshots, lost disks."""

from replicated_namesrv.raft.interfaces import Committed, ReadReady
from tests.support.raft_world import World


def test_three_nodes_found_elect_and_commit() -> None:
    world = World()
    world.start_all()
    leader = world.elect()
    follower = next(n for n in world.nodes if n is not leader)
    first = world.propose(leader.node_id, b"one")
    second = world.propose(follower.node_id, b"two")
    world.run_until(lambda: first and second)
    assert isinstance(first[0], Committed)
    assert isinstance(second[0], Committed)
    world.run_until(lambda: all(h.machine.commands == [b"one", b"two"] for h in world.hosts.values()))


def test_reads_on_every_node() -> None:
    world = World()
    world.start_all()
    leader = world.elect()
    done = world.propose(leader.node_id, b"x")
    world.run_until(lambda: done)
    for name in world.names:
        read = world.read(name)
        world.run_until(lambda read=read: read)  # type: ignore[misc]
        assert isinstance(read[0], ReadReady)
        assert world.hosts[name].machine.commands == [b"x"]


def test_group_of_one() -> None:
    world = World(1)
    world.start_all()
    world.elect()
    done = world.propose("n1", b"x")
    world.run_until(lambda: done)
    assert isinstance(done[0], Committed)
    world.hosts["n1"].crash()
    world.hosts["n1"].start()
    world.elect()
    assert world.hosts["n1"].machine.commands == [b"x"]
