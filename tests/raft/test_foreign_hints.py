"""A node with the data directory of another cluster of the same name: its list of members has no effect."""

from replicated_namesrv.raft.identity import MEMBER
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import Kind, RaftMember, pack_members
from replicated_namesrv.raft.raft_messages import PROTOCOL, Greeting, MemberHint
from tests.raft.test_defences import commit
from tests.raft.test_lost_memory import others
from tests.raft.test_members import equal, make
from tests.support.raft_world import Disk, World


def disk_of_another_cluster(name: str) -> Disk:
    """The disk of node ``name`` of a cluster with the same names, in which another node has moved, and with a longer log."""
    world = World(seed=2)
    world.start_all()
    moved = next(other for other in world.names if other != name)
    make(world, MemberChange("move", moved, ("elsewhere", 1)))
    for _ in range(20):
        commit(world, world.elect(), b"foreign")
    equal(world)
    world.hosts[name].crash()
    return world.hosts[name].disk


def test_members_of_another_cluster_do_not_replace_addresses() -> None:
    """The volume of another cluster is attached to one node. The other two nodes must continue to reach each other."""
    world = World()
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    host = others(world, leader)[1]
    host.crash()
    host.disk = disk_of_another_cluster(host.name)
    foreign = host.start()
    world.run(2)
    assert foreign.membership.problem is not None
    for node in world.nodes:
        if node is not foreign:
            assert "another cluster" in str(node.membership.problem)
            addresses = [member.host for peer in node.peers if (member := node.group.member(peer)) is not None]
            assert "elsewhere" not in addresses
    commit(world, world.elect(), b"b")


def test_a_stranger_of_another_cluster_is_a_peer_only_until_this_is_known() -> None:
    """A hint makes a stranger a peer. Its greeting, which counts from then on, shows that it is of another cluster."""
    world = World()
    world.start_all()
    leader = world.elect()
    incarnation = 77
    hint = MemberHint(incarnation, 0, 1_000, pack_members({"n9": RaftMember(Kind.VOTER, incarnation, "elsewhere", 1)}))
    greeting = Greeting(incarnation, MEMBER, (("n9", incarnation),), 0, PROTOCOL << 16 | 1)
    seen = []
    for message in (greeting, hint, greeting, hint, greeting, hint):
        leader.on_message("n9", message)
        leader.tick()
        seen.append("n9" in leader.peers)
    assert seen == [False, True, False, False, False, False]
