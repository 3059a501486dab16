"""What heartbeats carry and confirm beside entries: introductions in the same packet, and the age of a leader's state."""

from itertools import pairwise

import pytest

from replicated_namesrv.raft import membership
from replicated_namesrv.raft.heartbeat_confirmations import REQUEST_HEARTBEATS
from replicated_namesrv.raft.interfaces import NEVER, Committed, Outcome
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.membership import EARLY_HEARTBEATS, INTRODUCTION_HEARTBEATS, LATE_HEARTBEATS
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    Confirmation,
    ConfirmationRequest,
    Introduction,
    Message,
    ReadProbe,
)
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_reset_machines import reset
from tests.support.raft_world import World

HEARTBEAT_S = RaftConfig().heartbeat_ms / 1000


def started(size: int = 3) -> tuple[World, RaftNode]:
    """A cluster whose nodes have accepted each other, and its leader, whose term has a committed entry."""
    world = World(size)
    world.start_all()
    leader = world.elect()
    world.run(1.0)
    return world, leader


def introductions_in(world: World) -> dict[tuple[str, str], list[float]]:
    """For each sender and receiver, the times of the introductions that are sent from now on."""
    times: dict[tuple[str, str], list[float]] = {}

    def note(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Introduction):
            times.setdefault((source, target), []).append(world.time)
        return False

    world.drop = note
    return times


def test_introductions_travel_with_heartbeats_and_their_answers() -> None:
    world, leader = started()
    sent: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    heartbeats: set[tuple[str, str, float]] = set()

    def note(source: str, target: str, message: Message) -> bool:
        if isinstance(message, Append | AppendReply):
            heartbeats.add((source, target, world.time))
        elif isinstance(message, Introduction):
            sent.setdefault((source, target), []).append((world.time, (source, target, world.time) in heartbeats))
        return False

    world.drop = note
    world.run(5.0)
    assert len(sent) == 6, "every node introduces itself to both others"
    for (source, target), introductions in sent.items():
        pauses = [later - earlier for (earlier, _), (later, _) in pairwise(introductions)]
        assert min(pauses) >= (INTRODUCTION_HEARTBEATS - EARLY_HEARTBEATS) * HEARTBEAT_S - 0.002
        assert max(pauses) <= (INTRODUCTION_HEARTBEATS + LATE_HEARTBEATS) * HEARTBEAT_S + 0.002
        if leader.node_id in (source, target):
            assert all(accompanied for _, accompanied in introductions[1:]), (source, target)


def test_without_heartbeats_introductions_are_sent_alone() -> None:
    """A node that has lost contact with the leader still introduces itself to the other follower in time."""
    world, leader = started()
    one, other = (node.node_id for node in world.nodes if node is not leader)
    times = introductions_in(world)
    world.run(0.5)
    world.isolate(leader.node_id)
    cut_at = world.time
    world.run(0.29)  # no election ends before that
    for pair in (one, other), (other, one):
        assert times[pair][-1] > cut_at, pair
        pauses = [later - earlier for earlier, later in pairwise(times[pair])]
        assert max(pauses) <= (INTRODUCTION_HEARTBEATS + LATE_HEARTBEATS) * HEARTBEAT_S + 0.002, pair


def age(node: RaftNode) -> float:
    """How old the state of ``node`` is at most, in seconds."""
    return node.context.now() - node.confirmed_at


def ages(world: World) -> dict[str, float]:
    return {node.node_id: age(node) for node in world.nodes}


def test_heartbeats_confirm_the_state_of_every_node_without_reads() -> None:
    world, leader = started(5)
    rounds = world.keep(ReadProbe)
    for _ in range(100):
        world.run(0.013)
        for name, seconds in ages(world).items():
            assert seconds <= HEARTBEAT_S * (1 if name == leader.node_id else REQUEST_HEARTBEATS + 3) + 5 * world.delay, name
    assert not rounds


def test_a_confirmation_covers_what_was_acknowledged_before_its_request() -> None:
    """For every time that a node reports, its state includes every command that was acknowledged before that time."""
    world, _ = started()
    acknowledged: list[tuple[float, bytes]] = []
    checked = 0
    for number in range(200):
        name = world.names[number % 3]
        outcome = world.propose(name, b"%d" % number)
        for _ in range(4):
            world.run(0.003)
            for node in world.nodes:
                confirmed_at, commands = node.confirmed_at, world.hosts[node.node_id].machine.commands
                expected = {command for at, command in acknowledged if at < confirmed_at}
                assert expected <= set(commands), node.node_id
                checked += len(expected)
        world.run_until(lambda done=outcome: done)  # type: ignore[misc]  # bound in the loop
        assert isinstance(outcome[0], Committed)
        acknowledged.append((world.time, b"%d" % number))
    assert checked > 10_000, "nothing was confirmed"


@pytest.mark.parametrize("delay", [0.002, 0.075, 0.2])
def test_long_round_trips_do_not_prevent_confirmations(delay: float) -> None:
    world = World(3, RaftConfig(election_min_ms=3_000, election_max_ms=6_000))
    world.delay = delay
    world.start_all()
    world.elect()
    world.run(10.0)
    for name, seconds in ages(world).items():
        assert seconds < 4 * delay + 4 * HEARTBEAT_S, name


def test_without_a_majority_nothing_is_confirmed() -> None:
    world, leader = started()
    one, _ = (node.node_id for node in world.nodes if node is not leader)
    world.isolate(leader.node_id)
    cut_at = world.time
    world.run(0.25)
    assert all(node.confirmed_at <= cut_at for node in world.nodes)
    world.heal()
    world.elect()
    world.hosts[one].crash()
    world.run_until(lambda: all(seconds < 0.3 for seconds in ages(world).values()))  # two of three are a majority


def test_an_observer_is_confirmed_by_voters_alone() -> None:
    """The leader and the observer have contact, and no other voter: the leader cannot know that it still leads."""
    world, leader = started()
    observer = world.new_host("o1")
    observer.start()
    change = MemberChange("add", "o1", ("host-o1", 9_000), observer=True)
    outcomes: list[Outcome] = []
    leader.change_member(change, outcomes.append)
    world.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], Committed), outcomes
    assert observer.node is not None
    node = observer.node
    world.run_until(lambda: age(node) < 0.3)
    for name in world.names:
        if name != leader.node_id:
            world.isolate(name)
    cut_at = world.time
    world.run(0.25)
    assert leader.role == "leader"
    assert node.confirmed_at <= cut_at


def test_a_deposed_leader_confirms_no_time_after_the_election_of_its_successor() -> None:
    world, deposed = started()
    world.isolate(deposed.node_id)
    world.run_until(lambda: world.leader not in (None, deposed))
    assert age(deposed) > 0.2


def test_a_new_leader_confirms_nothing_before_an_entry_of_its_term_is_committed() -> None:
    """It may not know all committed entries before that (dissertation, 6.4)."""
    world, old = started()
    world.isolate(old.node_id)
    no_entries = True

    def lose_entries(source: str, target: str, message: Message) -> bool:
        return no_entries and isinstance(message, Append) and bool(message.entries)

    world.drop = lose_entries
    world.run_until(lambda: world.leader not in (None, old))
    new = world.leader
    assert new is not None
    elected_at = world.time
    follower = next(node for node in world.nodes if node not in (old, new))
    world.run(6 * HEARTBEAT_S)
    assert new.role == "leader"
    assert new.replication.quorum_acknowledged_at() > elected_at
    assert new.confirmed_at == NEVER
    assert follower.confirmed_at < elected_at
    no_entries = False
    world.run_until(lambda: max(age(new), age(follower)) < 5 * HEARTBEAT_S)


def test_nodes_that_refuse_reads_confirm_nothing() -> None:
    """Nodes whose digests differ serve nobody."""
    world, leader = started()
    follower = next(node for node in world.nodes if node is not leader)
    assert max(age(leader), age(follower)) < 1
    leader.confirmations._refused = lambda: "the digests differ"
    refused_at = world.time
    world.run(1.0)
    assert leader.confirmed_at == NEVER
    assert follower.confirmed_at <= refused_at
    follower.confirmations._refused = lambda: "the digests differ"
    assert follower.confirmed_at == NEVER


def test_a_confirmation_counts_when_its_index_is_applied() -> None:
    world, leader = started()
    follower = next(node for node in world.nodes if node is not leader)
    request = world.keep(ConfirmationRequest, follower.node_id)
    world.run_until(lambda: request)
    asked_at = world.time
    last = request[-1].sequence
    name, source, destination = leader.node_id, leader.incarnation, follower.incarnation
    follower.on_message(name, Confirmation(source, destination, last, follower.core.applied_index + 1))
    assert follower.confirmed_at < asked_at
    done = world.propose(name, b"next")
    world.run_until(lambda: done)
    world.run(0.02)
    assert follower.confirmed_at >= asked_at
    follower.on_message(name, Confirmation(source, destination, last, 0))  # repeated
    follower.on_message(name, Confirmation(source, destination, last + 100, 0))  # never asked
    assert follower.confirmed_at <= world.time


@pytest.mark.parametrize("protocol", [0, 2])
def test_peers_of_an_earlier_protocol_get_no_requests(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would close the connection, because they do not know the message."""
    monkeypatch.setattr(membership, "PROTOCOL", protocol)
    world = World()
    requests = world.keep(ConfirmationRequest)
    world.start_all()
    leader = world.elect()
    world.run(1.0)
    assert not requests
    assert all(node.confirmed_at == NEVER for node in world.nodes if node is not leader)


def test_the_only_voter_confirms_by_its_reads() -> None:
    world = World(1)
    world.start_all()
    assert world.elect().confirmed_at == NEVER


def test_a_request_from_before_a_reset_confirms_no_request_after_it() -> None:
    """The machine of a follower is reset with its memory, by some milliseconds. The leader has noted a request, and the reset
    machine gives its number to a later one."""

    def before_a_request() -> tuple[World, RaftNode, int]:
        world, leader = started()
        node = next(node for node in world.nodes if node is not leader)
        asked = world.keep(ConfirmationRequest, node.node_id)
        world.run_until(lambda: asked)
        world.run(0.095)
        assert len(asked) == 1, "the next request is due with the next heartbeat"
        return world, node, asked[0].sequence

    world, former, sequence = before_a_request()
    image = before_a_request()[0].hosts[former.node_id]
    leader, name = world.leader, former.node_id
    assert leader is not None
    assert image.node is not None
    noted = leader.confirmations._noted
    world.run_until(lambda: any(request.sequence > sequence for request in noted.get(name, ())))
    reset(world, image, *(host for host in world.hosts.values() if host.name != name))
    world.drop = lambda source, target, message: target == name and isinstance(message, Append) and bool(message.entries)
    done = world.propose(leader.node_id, b"X")
    world.run_until(lambda: done)
    acknowledged_at = world.time
    for _ in range(300):
        world.run(0.001)
        assert image.node.confirmed_at + image.lag_s <= acknowledged_at, "X is not here"


def test_introductions_are_as_frequent_under_constant_writes() -> None:
    """Every write lets nodes answer appends. Neither do they introduce themselves with each, nor too late."""
    world, leader = started()
    times = introductions_in(world)
    for number in range(800):
        world.propose(leader.node_id, b"%d" % number)
        world.run(0.002)
    assert len(times) == 6
    for pair, at in times.items():
        pauses = [later - earlier for earlier, later in pairwise(at)]
        assert max(pauses) <= (INTRODUCTION_HEARTBEATS + LATE_HEARTBEATS) * HEARTBEAT_S + 0.002, pair
        assert min(pauses) >= (INTRODUCTION_HEARTBEATS - EARLY_HEARTBEATS) * HEARTBEAT_S - 0.002, pair
