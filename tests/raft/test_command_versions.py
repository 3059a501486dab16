"""Upgrades one node at a time: newer commands wait until all members apply them. A node that nevertheless has to apply an unknown
command stops with an error.
"""

from replicated_namesrv.raft.interfaces import Committed, Outcome, Rejected
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import UnknownCommandError
from replicated_namesrv.raft.raft_messages import Greeting, Message
from tests.raft.test_members import add, make, remove, wait_for
from tests.support.raft_world import Machine, World


class OldMachine(Machine):
    """Knows commands of version 1 only."""

    def apply(self, command: bytes) -> object:
        if command.startswith(b"2:"):
            raise UnknownCommandError("a command of version 2; install the version that the other nodes run")
        return super().apply(command)


def started() -> World:
    world = World(3, RaftConfig(command_version=1))
    world.start_all()
    world.elect()
    return world


def restart(world: World, name: str, version: int) -> None:
    world.config = RaftConfig(command_version=version)
    world.hosts[name].crash()
    world.hosts[name].start()
    world.elect()
    world.run(0.5)


def propose(world: World, name: str, command: bytes, version: int) -> Outcome:
    outcomes: list[Outcome] = []
    node = world.hosts[name].node
    assert node is not None
    node.propose(command, outcomes.append, None, version)
    world.run_until(lambda: outcomes)
    return outcomes[0]


def test_newer_commands_wait_until_every_member_is_upgraded() -> None:
    world = started()
    for upgraded in ("n1", "n2"):
        restart(world, upgraded, 2)
        for name in world.names:
            refused = propose(world, name, b"2:x", 2)
            assert isinstance(refused, Rejected)
            assert "upgrade every member first" in refused.reason
            assert isinstance(propose(world, name, b"old", 1), Committed), "the group works on"
    restart(world, "n3", 2)
    for name in world.names:
        assert isinstance(propose(world, name, b"2:x", 2), Committed)


def test_a_member_that_was_not_heard_of_is_not_counted_on() -> None:
    world = started()
    for name in world.names:
        restart(world, name, 2)
    world.hosts["n3"].crash()
    assert isinstance(propose(world, "n1", b"2:x", 2), Committed), "what n3 applied before, it applies again"
    restart(world, "n1", 2)
    refused = propose(world, "n1", b"2:y", 2)
    assert isinstance(refused, Rejected)
    assert refused.reason.startswith("commands of version 2 have to wait: n3 is known to apply none newer than 0")
    assert isinstance(propose(world, "n1", b"2:y", 0), Committed), "its user may know better"


def test_a_member_that_is_added_again_counts_only_after_its_greeting() -> None:
    """A member is removed and added again while its connections stay, and its greetings are lost for a while. It continues to
    introduce itself. Without a greeting, its versions are not known."""
    world = World(3, RaftConfig(leaving_ms=300))
    world.start_all()
    leader = world.elect()
    name = next(node.node_id for node in world.nodes if node is not leader)
    make(world, remove(name))
    world.run_until(lambda: name not in leader.peers)

    def is_lost(source: str, target: str, message: Message) -> bool:
        return isinstance(message, Greeting) and name in (source, target)

    world.drop = is_lost
    make(world, add(name))
    world.run(1)
    assert name not in leader.membership.known
    world.drop = lambda source, target, message: False
    wait_for(world, world.hosts[name], "voter")
    assert isinstance(propose(world, leader.node_id, b"a", 1), Committed)


def test_an_unknown_command_stops_the_node_that_does_not_know_it_and_no_other() -> None:
    world = started()
    host = world.hosts["n3"]
    host.crash()
    node = host.start(OldMachine())
    world.elect()
    assert isinstance(propose(world, "n1", b"2:x", 0), Committed)
    world.run_until(lambda: node.stopped)
    assert isinstance(node.failed, UnknownCommandError)
    applied = node.applied_index
    assert isinstance(propose(world, "n1", b"goes on", 1), Committed)
    host.crash()
    again = host.start()
    assert again.applied_index <= applied
    world.run_until(lambda: host.machine.commands == [b"2:x", b"goes on"])
