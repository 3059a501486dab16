"""Directed tests: a virtual machine is reset to a snapshot, memory included, while its node leads, or while proposals wait."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome
from replicated_namesrv.raft.membership import REJOIN_STEP
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_messages import Append, Introduction, Message
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import both, commit, world_with
from tests.raft.test_lost_memory import others
from tests.support.raft_world import Host, World


def led_with_one_follower(defences: Defences) -> tuple[World, RaftNode, Host]:
    """A leader and a follower of three nodes; the third node is down, so nobody else can be elected."""
    world = World(config=RaftConfig(defences=defences))
    world.start_all()
    leader = world.elect()
    follower, third = others(world, leader)
    third.crash()
    world.run(1)
    commit(world, leader, b"old")
    world.run(1)
    world.run_until(lambda: not leader.log.syncing)
    return world, leader, follower


def reset(world: World, image: Host, *reached: Host) -> None:
    """Replace a machine of ``world`` by its image from an equal world. It has new connections with ``reached``."""
    former, name = world.hosts[image.name], image.name
    for peer in world.names:
        world.disconnect(name, peer)
        world.disconnect(peer, name)
    former.node, former.life = None, former.life + 1
    image.lag_s = world.time - image.now()
    image.world, world.hosts[name] = world, image
    assert image.node is not None
    for peer in image.node.peers:
        image.node.on_disconnected(peer)
    for host in reached:
        world.connect(name, host.name)
        world.connect(host.name, name)


def reset_after_a_commit(defences: Defences, delay_s: float = 0.0) -> tuple[World, Host, Host]:
    """The leader commits X, and its machine is reset to the time before. It still leads. Then introductions of the follower
    arrive late by ``delay_s``. Returns the host of the leader and that of the follower."""
    world, leader, follower = led_with_one_follower(defences)
    image = led_with_one_follower(defences)[0].hosts[leader.node_id]  # the world is equal at the time of the snapshot
    commit(world, leader, b"X")
    world.run(2)
    transmit = world.transmit

    def late(source: Host, target: str, message: Message) -> None:
        delay = delay_s if isinstance(message, Introduction) and source is follower else 0.0
        world.later(delay, lambda: transmit(source, target, message))

    world.transmit = late  # type: ignore[method-assign]  # of this world alone
    reset(world, image, follower)
    assert image.node is not None
    assert image.node.role == "leader"
    return world, image, follower


def restore_the_third(world: World) -> None:
    """Start the node that is down, and let a leader emerge."""
    next(host for host in world.hosts.values() if host.node is None).start()
    world.elect()
    world.run(5)


def test_a_reset_by_months_costs_one_incarnation() -> None:
    """The image of the leader's machine is months old, so the follower has received far greater numbers of introductions. In an
    earlier version, the leader gave up one incarnation after the other, each with a sync: 200 of them after a month."""
    world, leader, follower = led_with_one_follower(Defences())
    image = led_with_one_follower(Defences())[0].hosts[leader.node_id]
    commit(world, leader, b"X")
    leader.membership._sequence += 500 * REJOIN_STEP
    world.run(2)
    reset(world, image, follower)
    world.run(5)
    assert image.node is not None
    assert image.node.counters["rejoined"] == 1
    restore_the_third(world)
    assert image.node.counters["rejoined"] == 1
    assert image.node.role != "learner"
    assert image.machine.commands == [b"old", b"X"]


@both
def test_own_entries_cut(defended: bool) -> None:
    """The leader that was reset appends Y with the index and term of X. It learns from an introduction that it was reset, and
    rejoins. Its log must not keep Y, because the other nodes cannot distinguish this entry from X."""
    world, image, follower = reset_after_a_commit(Defences(own_entries_cut=defended))
    world.propose(image.name, b"Y")
    world.run(1)
    assert image.node is not None
    assert image.node.counters["rejoined"] == 1
    restore_the_third(world)
    assert follower.machine.commands[:2] == [b"old", b"X"]
    assert (image.machine.commands[:2] == [b"old", b"X"]) == defended
    assert (image.node.failed is None) == defended


def test_nothing_is_cut_while_acknowledgements_count() -> None:
    """The disk fails when the leader that was reset gives up its incarnation. With the old incarnation, other nodes count what it
    has acknowledged, so its log must stay."""
    world, image, _ = reset_after_a_commit(Defences())
    assert image.node is not None
    node, storage = image.node, image.disk
    world.propose(image.name, b"Y")
    last_index, save = node.log.last_index, node.identity.save

    def fail() -> None:
        storage.fail = OSError(5, "input/output error")
        save()

    node.identity.save = fail  # type: ignore[method-assign]  # of this node alone
    world.run(1)
    assert isinstance(node.failed, OSError)
    assert node.log.last_index == last_index + 1, "Y is in the log"


@both
def test_confirmed_connections(defended: bool) -> None:
    """The leader that was reset appends Y with the index and term of X. Introductions of the follower arrive late. The leader
    must not get its acknowledgements before, because it would commit Y instead of X."""
    world, image, follower = reset_after_a_commit(Defences(confirmed_connections=defended), delay_s=0.2)
    outcome = world.propose(image.name, b"Y")
    reads = world.read(image.name)
    world.run(0.15)
    assert bool(outcome) == bool(reads) == (not defended)
    if not defended:
        assert image.machine.commands == [b"old", b"Y"], "X was acknowledged"
        return
    restore_the_third(world)
    assert image.node is not None
    assert image.node.counters["rejoined"] == 1
    assert follower.machine.commands[:2] == image.machine.commands[:2] == [b"old", b"X"]


def test_a_reset_is_noticed_although_the_numbers_have_passed() -> None:
    """After the reset, introductions of the leader are lost, and those of the follower arrive late. Meanwhile the leader appends
    other entries. So its introduction that arrives first has a greater number, a newer echo, and more records than the follower
    remembers."""
    world, image, follower = reset_after_a_commit(Defences(), delay_s=0.05)
    end = world.time + 0.2
    world.drop = lambda source, _, message: source == image.name and isinstance(message, Introduction) and world.time < end
    for command in (b"Y", b"Z"):
        world.propose(image.name, command)
        world.run(0.02)
    world.run(1)
    assert image.node is not None
    assert image.node.counters["rejoined"] == 1
    restore_the_third(world)
    assert follower.machine.commands[:2] == image.machine.commands[:2] == [b"old", b"X"]


def test_a_late_introduction_from_before_the_reset_confirms_nothing() -> None:
    """The follower sent an introduction before the reset. It arrives afterwards, and echoes a number that the leader has not sent
    yet in its memory."""
    world, leader, follower = led_with_one_follower(Defences())
    image = led_with_one_follower(Defences())[0].hosts[leader.node_id]
    kept = world.keep(Introduction, follower.name, leader.node_id)
    commit(world, leader, b"X")
    world.run(2)
    reset(world, image, follower)
    assert image.node is not None
    image.node.on_message(follower.name, kept[-1])
    assert not image.node.outbox.reaches(follower.name, Append)
    assert image.node.counters["rejoined"] == 1


def test_a_new_connection_costs_little_time() -> None:
    """A leader sends entries over a new connection after one exchange of introductions, and does not wait for a heartbeat."""
    world = World()
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    world.run(1)
    follower = others(world, leader)[0]
    for source, target in ((leader.node_id, follower.name), (follower.name, leader.node_id)):
        world.disconnect(source, target)
        world.connect(source, target)
    began = world.time
    appends = world.keep(Append, leader.node_id, follower.name)
    world.run_until(lambda: appends)
    assert world.time - began <= 3 * world.delay + 0.001
    outcome = world.propose(leader.node_id, b"b")
    world.run_until(lambda: follower.machine.commands == [b"a", b"b"])
    assert outcome


def test_writes_continue_while_connections_are_established_again() -> None:
    """Each connection is lost and established again 19 times per second. Entries and forwards wait until the processes have
    accepted each other. If they were dropped instead, they would be sent again only after a heartbeat, or after 0.3 s."""
    world = World()
    world.start_all()
    leader = world.elect()
    follower = others(world, leader)[0]
    world.run(0.5)
    links = [(source, target) for source in world.names for target in world.names if source != target]
    began, reconnections, committed_at = world.time, 0, [world.time]
    outcomes = world.propose(follower.name, b"a")
    while world.time < began + 1:
        while began + reconnections * 0.053 / len(links) <= world.time:
            link = links[reconnections % len(links)]
            world.disconnect(*link)
            world.connect(*link)
            reconnections += 1
        if outcomes:
            assert isinstance(outcomes[0], Committed)
            committed_at.append(world.time)
            outcomes = world.propose(follower.name, b"a")
        world.step()
    assert leader.role == "leader"
    assert max(later - earlier for earlier, later in pairwise([*committed_at, world.time])) < 0.03


def test_an_introduction_from_before_the_connection_confirms_nothing() -> None:
    """The follower sent an introduction before the connection was lost. It arrives over the next connection."""
    world = world_with("confirmed_connections", True)
    leader = world.elect()
    follower = others(world, leader)[0]
    kept = world.keep(Introduction, follower.name, leader.node_id)
    world.run_until(lambda: kept)
    world.isolate(follower.name)
    world.disconnect(leader.node_id, follower.name)
    world.connect(leader.node_id, follower.name)
    leader.on_message(follower.name, kept[-1]._replace(sequence=kept[-1].sequence + 1))
    leader.tick()
    assert not leader.outbox.reaches(follower.name, Append)
    world.heal()
    world.run_until(lambda: leader.outbox.reaches(follower.name, Append))


def cut_off_follower() -> tuple[World, RaftNode, Host]:
    """A leader, and a follower that has lost its connections."""
    world = World()
    world.start_all()
    leader = world.elect()
    follower = others(world, leader)[0]
    world.run(1)
    for peer in world.names:
        if peer != follower.name:
            world.disconnect(follower.name, peer)
            world.disconnect(peer, follower.name)
    return world, leader, follower


def reconnect(world: World, follower: Host) -> None:
    """Establish the connections that ``cut_off_follower`` has ended."""
    for peer in world.names:
        if peer != follower.name:
            world.connect(follower.name, peer)
            world.connect(peer, follower.name)


def waiting_for_a_leader() -> tuple[World, RaftNode, Host, list[Outcome]]:
    """A follower has lost its connections, and a proposal waits there. Returns the leader, the follower and the outcomes."""
    world, leader, follower = cut_off_follower()
    outcomes = world.propose(follower.name, b"X=1")
    return world, leader, follower, outcomes


def test_entries_of_a_later_leader_are_kept() -> None:
    """A process that led gives up its incarnation, because its directory was copied. Its log has an entry of the next leader,
    which may be committed. Only entries of terms up to the last one that it led can be others than the committed ones."""
    world = World()
    world.start_all()
    former = world.elect()
    commit(world, former, b"a")
    former.transfer_leadership(None, lambda done: None)
    world.run_until(lambda: world.leader not in (None, former))
    assert world.leader is not None
    world.run(1)
    world.propose(world.leader.node_id, b"b")
    world.run_until(lambda: former.log.last_index > former.commit_index)
    last = former.log.last_index
    former.rejoin("a copy of its directory is in use")
    assert former.log.last_index == last


def waiting_for_a_read() -> tuple[World, RaftNode, Host, list[Outcome]]:
    """A follower has lost its connections. A request waits there for a read index, and then proposes."""
    world, leader, follower = cut_off_follower()
    node, outcomes = follower.node, list[Outcome]()
    assert node is not None
    node.read_index(lambda ready: node.propose(b"X=1", outcomes.append))
    return world, leader, follower, outcomes


@pytest.mark.parametrize("prepare", [waiting_for_a_leader, waiting_for_a_read])
def test_what_waits_in_the_image_is_not_executed_again(
    prepare: Callable[[], tuple[World, RaftNode, Host, list[Outcome]]],
) -> None:
    """After the snapshot, what waits is committed, and then a later write. After the reset it waits again: as a proposal in the
    queue, or as a request that proposes when it has its read index and the node has rejoined."""
    world, leader, follower, outcomes = prepare()
    _, _, image, outcomes_of_the_image = prepare()  # the world is equal at the time of the snapshot
    reconnect(world, follower)
    world.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], Committed)
    commit(world, leader, b"X=2")
    world.run(2)
    assert not outcomes_of_the_image
    reset(world, image, world.hosts[leader.node_id])
    world.run(5)
    node = image.node
    assert node is not None
    assert node.counters["rejoined"] == 1
    assert isinstance(outcomes_of_the_image[0], Indeterminate)
    assert [host.machine.commands for host in world.hosts.values()] == [[b"X=1", b"X=2"]] * 3
    world.run(world.config.proposal_timeout_ms / 1000)
    commit(world, node, b"X=3")
