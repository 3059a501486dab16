"""Messages between a leader and its observers: an observer without news costs little, and news reach it as soon as a voter."""

from collections import Counter

import pytest

from replicated_namesrv.raft.elections import PATIENCE_ELECTIONS
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.message_bounds import TERM_STEP_MAX
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Append, HigherTerm, Message
from replicated_namesrv.raft.transport import LIVE_SECONDS
from tests.raft.test_defences import commit
from tests.raft.test_members import grow, make
from tests.support.raft_world import World

SECONDS = 5
OBSERVER = "n4"
FEW, MANY = 6 * SECONDS, 15 * SECONDS
"""Numbers of heartbeats: at most six a second, and at least fifteen a second."""


def with_observer(config: RaftConfig | None = None) -> World:
    """Three voters and an observer."""
    world = World(3, config)
    world.start_all()
    world.elect()
    grow(world, OBSERVER, observer=True)
    commit(world, world.elect(), b"first")
    world.run(2)
    return world


@pytest.fixture
def world() -> World:
    return with_observer()


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
    assert 4 * SECONDS <= found[Append, name, OBSERVER] <= FEW
    assert found[Append, name, voter] >= MANY


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


def test_a_lost_commit_index_reaches_an_observer_with_the_next_heartbeat(world: World) -> None:
    """The message that only has the commit index is lost."""
    lost: list[Message] = []

    def lose(source: str, target: str, message: Message) -> bool:
        if target != OBSERVER or not isinstance(message, Append) or message.entries or lost or message.sequence:
            return False
        lost.append(message)
        return True

    world.drop = lose
    world.propose(world.elect().node_id, b"second")
    world.run_until(lambda: lost, 5)
    world.run_until(lambda: world.hosts[OBSERVER].machine.commands[-1] == b"second", 0.25)


@pytest.mark.parametrize(("heartbeat_ms", "late_ms"), [(50, 12), (20, 2), (10, 1)])
def test_an_idle_observer_hears_from_its_leader_within_the_minimum_election_time(heartbeat_ms: int, late_ms: int) -> None:
    """Each wake-up of the leader's loop is late: always by ``TIMER_SECONDS`` (1 ms) of the service, and more on a busy machine.
    After a longer silence, the observer would raise its term for any peer (``approach_term``), and then accept strangers."""
    world = with_observer(RaftConfig(heartbeat_ms=heartbeat_ms))
    leader, observer = world.elect(), world.hosts[OBSERVER].node
    assert observer is not None
    wake_up = leader.next_wakeup

    def late() -> float:
        at = wake_up()
        return at + late_ms / 1000 if at > world.time else at

    leader.next_wakeup = late  # type: ignore[method-assign]  # it simulates a late driver
    longest, strangers, end = 0.0, 0, world.time + 6
    while world.time < end:
        world.step()
        longest = max(longest, world.time - observer.leadership.last_contact_at)
        strangers += observer.group.accepts_strangers
    assert world.leader is leader
    assert longest < 0.3
    assert not strangers


def test_an_idle_observer_accepts_no_strangers_though_a_heartbeat_is_lost(world: World) -> None:
    observer = world.hosts[OBSERVER].node
    assert observer is not None
    lost: list[Message] = []

    def lose(source: str, target: str, message: Message) -> bool:
        if target != OBSERVER or not isinstance(message, Append) or lost:
            return False
        lost.append(message)
        return True

    world.drop = lose
    strangers = 0
    for _ in range(200):
        world.run(0.01)
        strangers += observer.group.accepts_strangers
    assert lost
    assert not strangers


@pytest.mark.parametrize("heartbeat_ms", [250, 300])
def test_a_live_connection_of_an_observer_counts_as_live(heartbeat_ms: int) -> None:
    """H8 in transport.py: a connection is live if bytes arrived within LIVE_SECONDS."""
    world = with_observer(
        RaftConfig(election_min_ms=6 * heartbeat_ms, election_max_ms=12 * heartbeat_ms, heartbeat_ms=heartbeat_ms)
    )
    world.run(5)
    arrived: dict[tuple[str, str], float] = {}
    longest: dict[tuple[str, str], float] = {}

    def note(source: str, target: str, message: Message) -> bool:
        link = source, target
        if link in arrived:
            longest[link] = max(longest.get(link, 0.0), world.time - arrived[link])
        arrived[link] = world.time
        return False

    world.drop = note
    world.run(30)
    assert max(longest.values()) < LIVE_SECONDS


def test_a_node_of_a_far_term_deposes_no_leader_before_the_patience_of_its_peers_has_ended(world: World) -> None:
    """A voter restarts with a term three steps ahead. Nodes that have a leader, the idle observer included, raise their terms
    only after PATIENCE_ELECTIONS maximum election times (6 s) of refused terms."""
    leader, observer = world.elect(), world.hosts[OBSERVER].node
    assert observer is not None
    host = next(world.hosts[name] for name in world.names if name != leader.node_id)
    away = host.node
    other = next(node for node in world.nodes if node not in (leader, away, observer))
    assert away is not None
    world.isolate(host.name)
    for _ in range(3):
        away.on_message(other.node_id, HigherTerm(other.incarnation, away.incarnation, away.term + TERM_STEP_MAX))
        away.tick()
    world.run(0.05)
    host.crash()
    world.heal()
    before = leader.term
    assert (leader.role, observer.term) == ("leader", before)
    again = host.start()
    assert again.term > 3 * TERM_STEP_MAX
    start = world.time
    world.run_until(lambda: observer.term != before or leader.term != before, 30)
    assert world.time - start >= PATIENCE_ELECTIONS * 0.6


def test_an_idle_observer_is_as_patient_with_far_terms_as_every_node_that_has_a_leader(world: World) -> None:
    """Refused terms arrive at the observer alone, nine a second."""
    leader, observer = world.elect(), world.hosts[OBSERVER].node
    assert observer is not None
    peer = next(node for node in world.nodes if node not in (leader, observer))
    before, end = leader.term, world.time + 5
    while world.time < end:
        observer.on_message(peer.node_id, HigherTerm(peer.incarnation, observer.incarnation, before + 2 * TERM_STEP_MAX))
        observer.tick()
        world.run(0.11)
    assert observer.term == before
    assert (leader.role, leader.term) == ("leader", before)
