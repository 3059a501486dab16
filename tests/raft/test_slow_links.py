"""Slow links: a read waits for its own round trips, not for those of the reads before it, and many forwarded proposals do not
delay acknowledgements for so long that the leader steps down."""

import itertools

import pytest

from replicated_namesrv.raft import read_index
from replicated_namesrv.raft.interfaces import Committed, ReadOutcome, ReadReady
from replicated_namesrv.raft.raft_messages import Message, ReadAck, ReadProbe, ReadReply, ReadRequest, encode
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.raft_world import Host, World

ONE_WAY_SECONDS = 0.030
SPARE_SECONDS = 0.005
"""Tolerance for the ticks of the nodes and the steps of the test's clock."""


def slow_world() -> tuple[World, RaftNode]:
    world = World(3)
    world.delay = ONE_WAY_SECONDS
    world.start_all()
    leader = world.elect()
    done = world.propose(leader.node_id, b"x")
    world.run_until(lambda: done)
    world.run_until(lambda: all(node.leader_id == leader.node_id for node in world.nodes))
    return world, leader


def waits_of(world: World, name: str, reads: int, period: float) -> list[float]:
    """How long each of ``reads`` waited that began ``period`` seconds after the one before."""
    pending: list[tuple[float, list[ReadOutcome]]] = []
    waits: list[float] = []
    following = world.time
    while len(waits) < reads:
        if len(waits) + len(pending) < reads and world.time >= following:
            pending.append((world.time, world.read(name)))
            following = world.time + period
        world.run(0.001)
        for began, outcome in [one for one in pending if one[1]]:
            assert isinstance(outcome[0], ReadReady)
            waits.append(world.time - began)
            pending.remove((began, outcome))
    return waits


@pytest.mark.parametrize(("is_leader", "round_trips"), [(True, 1), (False, 2)], ids=["leader", "follower"])
def test_a_read_does_not_wait_for_the_round_of_an_earlier_read(is_leader: bool, round_trips: int) -> None:
    """Dissertation, 6.4: one round trip for the leader, and another one for a follower to ask it."""
    world, leader = slow_world()
    name = next(node.node_id for node in world.nodes if (node is leader) == is_leader)
    most = round_trips * 2 * ONE_WAY_SECONDS + 3 * read_index.PIPELINE_SECONDS + SPARE_SECONDS
    waits = waits_of(world, name, 60, 0.007)
    assert max(waits) <= most, waits


def test_reads_over_a_fast_link_share_rounds() -> None:
    world, leader = slow_world()
    world.delay = 0.002
    world.run(0.2)
    probes = world.keep(ReadProbe)
    began = world.time
    waits_of(world, leader.node_id, 50, 0.001)
    rounds = len({probe.sequence for probe in probes})
    assert rounds <= (world.time - began) / (2 * world.delay) + 1


@pytest.mark.parametrize("kind", [ReadProbe, ReadAck, ReadRequest, ReadReply])
def test_lost_messages_delay_reads_and_nothing_else(kind: type) -> None:
    """Every second message of one kind is lost. The newest round, or request, is repeated, and its answer counts for all."""
    world, _ = slow_world()
    numbers = itertools.count()
    world.drop = lambda source, target, message: isinstance(message, kind) and next(numbers) % 2 == 1
    for node in world.nodes:
        assert len(waits_of(world, node.node_id, 20, 0.007)) == 20
    assert next(numbers) > 10, "no message of this kind was sent"


def test_rounds_without_answers_are_bounded_and_end_with_the_leadership() -> None:
    """The leader is cut off. What it confirms later is confirmed by its successor."""
    world, leader = slow_world()
    world.isolate(leader.node_id)
    reads = []
    for _ in range(40):
        reads.append(world.read(leader.node_id))
        world.run(0.011)
        sizes = leader.memory()
        assert sizes["reads_in_flight"][0] <= read_index.IN_FLIGHT_MAX
    assert not any(reads), "a read was answered without a majority"
    world.run_until(lambda: any(node.role == "leader" for node in world.nodes if node is not leader))
    successor = next(node for node in world.nodes if node is not leader and node.role == "leader")
    done = world.propose(successor.node_id, b"newer")
    world.run_until(lambda: done)
    assert isinstance(done[0], Committed)
    world.heal()
    world.run_until(lambda: all(reads))
    for outcome in reads:
        if isinstance(outcome[0], ReadReady):
            assert world.hosts[leader.node_id].machine.commands[-1] == b"newer"
            assert outcome[0].log_index >= done[0].log_index


@pytest.mark.parametrize("megabits", [100, 50])
def test_many_forwarded_proposals_do_not_depose_the_leader(megabits: int) -> None:
    """One of three nodes is down. The follower's callers propose 4 MB at once. Its acknowledgements wait behind its forwards, and
    the leader steps down if it gets none for the minimum election time."""
    world = World(3)
    world.start_all()
    leader = world.elect()
    follower, down = (world.hosts[node.node_id] for node in world.nodes if node is not leader)
    down.crash()
    world.run(1)
    transmit, free_at = world.transmit, dict[tuple[str, str], float]()

    def slow(source: Host, target: str, message: Message) -> None:
        link = source.name, target
        free_at[link] = max(world.time, free_at.get(link, 0.0)) + len(encode(message)) * 8 / (megabits * 1_000_000)
        world.later(free_at[link] - world.time, lambda: transmit(source, target, message))

    world.transmit = slow  # type: ignore[method-assign]  # of this world alone
    term, outcomes = leader.term, [world.propose(follower.name, b"x" * 40_000) for _ in range(100)]
    world.run_until(lambda: all(outcomes))
    assert all(isinstance(outcome[0], Committed) for outcome in outcomes)
    assert (leader.role, leader.term) == ("leader", term)
