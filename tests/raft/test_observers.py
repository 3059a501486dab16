"""Messages between a leader and its observers: an observer without news costs little, and news reach it as soon as a voter."""

from collections import Counter

import pytest

from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_messages import Append, Introduction, Message
from tests.raft.test_defences import commit
from tests.raft.test_members import grow, make
from tests.support.raft_world import World

SECONDS = 5
OBSERVER = "n4"
FEW, MANY = 3 * SECONDS, 15 * SECONDS
"""Numbers of heartbeats: at most three a second, and at least fifteen a second."""


@pytest.fixture
def world() -> World:
    """Three voters and an observer."""
    world = World(3)
    world.start_all()
    world.elect()
    grow(world, OBSERVER, observer=True)
    commit(world, world.elect(), b"first")
    world.run(1)
    return world


def messages(world: World) -> Counter[tuple[type[Message], str, str]]:
    """The messages of the next seconds, by kind, source and target."""
    found: Counter[tuple[type[Message], str, str]] = Counter()

    def count(source: str, target: str, message: Message) -> bool:
        found[type(message), source, target] += 1
        return False

    world.drop = count
    world.run(SECONDS)
    world.drop = lambda source, target, message: False
    return found


def test_an_observer_without_news_gets_few_messages(world: World) -> None:
    leader, found = world.elect(), messages(world)
    name, voter = leader.node_id, leader.context.voting_peers[0]
    assert SECONDS <= found[Append, name, OBSERVER] <= FEW
    assert found[Append, name, voter] >= MANY
    for way in (name, OBSERVER), (OBSERVER, name):
        assert SECONDS <= found[Introduction, *way] <= FEW
    assert found[Introduction, name, voter] >= 4 * SECONDS


def test_an_observer_that_is_promoted_gets_every_heartbeat(world: World) -> None:
    make(world, MemberChange("promote", OBSERVER))
    world.run(1)
    assert messages(world)[Append, world.elect().node_id, OBSERVER] >= MANY


def test_an_observer_without_news_keeps_its_leader(world: World) -> None:
    """It knows the leader, and so accepts no strangers. A new leader is known as soon as at a voter."""
    observer, leader = world.hosts[OBSERVER].node, world.elect().node_id
    assert observer is not None
    for _ in range(100 * SECONDS):
        world.run(0.01)
        assert observer.leader_id == leader
        assert not observer.group.accepts_strangers
    world.hosts[leader].crash()
    world.run_until(lambda: observer.leader_id not in (None, leader), 3)


def test_news_reach_an_observer_at_once(world: World) -> None:
    commit(world, world.elect(), b"second")
    world.run(0.05)
    assert world.hosts[OBSERVER].machine.commands[-1] == b"second"


def test_an_entry_that_is_lost_on_the_way_to_an_observer_is_sent_again_soon(world: World) -> None:
    lost: list[Message] = []

    def lose(source: str, target: str, message: Message) -> bool:
        if target != OBSERVER or not isinstance(message, Append) or not message.entries or lost:
            return False
        lost.append(message)
        return True

    world.drop = lose
    commit(world, world.elect(), b"second")
    assert lost
    world.run_until(lambda: world.hosts[OBSERVER].machine.commands[-1] == b"second", 0.3)
