"""A node is silent while it works on a command that is too large for slices. This silence causes no election. Any other silence
soon causes one."""

import pytest

from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Forward, Message
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.raft_world import Host, World

LARGE = b"x" * 2_000_000
"""A command that extends the time-out by 0.8 s at the usual pace."""
BUSY_SECONDS = 0.6
"""A time that is longer than the minimum election time and than the usual time-out of CheckQuorum."""


def elected() -> tuple[World, RaftNode]:
    world = World(3, RaftConfig())
    world.start_all()
    return world, world.elect()


def silent_for(world: World, names: set[str], seconds: float) -> None:
    """No message of ``names`` arrives: they are busy."""
    world.drop = lambda source, target, message: source in names
    world.run(seconds)
    world.drop = lambda source, target, message: False


@pytest.mark.parametrize("command", [LARGE, b"small"])
def test_a_leader_that_works_on_a_large_command_is_not_deposed(command: bytes) -> None:
    world, leader = elected()
    outcome = world.propose(leader.node_id, command)
    leader.tick()
    world.run(0.01)
    term, asked = leader.term, sum(n.counters["pre_votes"] for n in world.nodes)
    silent_for(world, {leader.node_id}, BUSY_SECONDS)
    assert (sum(n.counters["pre_votes"] for n in world.nodes) > asked) == (command != LARGE)
    if command == LARGE:
        world.run_until(lambda: outcome)
        assert isinstance(outcome[0], Committed)
        assert (leader.role, leader.term) == ("leader", term)


@pytest.mark.parametrize("command", [LARGE, b"small"])
def test_a_leader_waits_for_followers_that_work_on_a_large_command(command: bytes) -> None:
    world, leader = elected()
    world.propose(leader.node_id, command)
    leader.tick()
    world.run(0.01)
    silent_for(world, set(world.names) - {leader.node_id}, BUSY_SECONDS)
    assert (leader.role == "leader") == (command == LARGE)


def test_a_part_of_a_large_message_is_a_sign_of_work() -> None:
    """On a slow link the first bytes arrive long before the whole message."""
    world, leader = elected()
    followers = [n for n in world.nodes if n is not leader]
    asked = sum(n.counters["pre_votes"] for n in followers)
    for follower in followers:
        follower.on_arriving(leader.node_id, len(LARGE))
    silent_for(world, {leader.node_id}, BUSY_SECONDS)
    assert sum(n.counters["pre_votes"] for n in followers) == asked


def test_a_leader_that_dies_over_a_large_command_is_replaced_soon_after() -> None:
    world, leader = elected()
    world.propose(leader.node_id, LARGE)
    leader.tick()
    world.run(world.delay + 0.0001)
    died_at = world.time
    world.hosts[leader.node_id].crash()
    world.run_until(lambda: world.leader is not None)
    most = len(LARGE) / world.config.election_grace_bytes_per_second + 2 * world.config.election_max_ms / 1000
    assert world.time - died_at < most


def test_a_large_command_is_forwarded_only_once_over_a_slow_link() -> None:
    """The message takes 1.3 s, much longer than a small forward may take before it counts as lost."""
    world, leader = elected()
    follower = next(node for node in world.nodes if node is not leader)
    world.run_until(lambda: follower.leader_id == leader.node_id)
    transmit, forwards = world.transmit, 0

    def slow(source: Host, target: str, message: Message) -> None:
        nonlocal forwards
        seconds = 0.0
        if isinstance(message, Forward):
            forwards += 1
            seconds = len(message.proposals) / 1_500_000
        world.later(seconds, lambda: transmit(source, target, message))

    world.transmit = slow  # type: ignore[method-assign]  # of this world alone
    outcome = world.propose(follower.node_id, LARGE)
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    assert forwards == 1
