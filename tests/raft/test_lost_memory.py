"""Directed tests: disks that are lost, rolled back to an older image or copied, and the votes that must not count then.

Every test with ``defended`` runs twice: with the defence the rule is kept, without it the damage is visible. An "image" is the
content of a snapshot of the volume or virtual machine.
"""

from collections.abc import Callable
from typing import Any

import pytest

from replicated_namesrv.raft.configuration import Configuration
from replicated_namesrv.raft.interfaces import ApplyFailed, Committed, ReadReady, Rejected
from replicated_namesrv.raft.members import VACANT
from replicated_namesrv.raft.membership import ANSWERS_MAX
from replicated_namesrv.raft.message_bounds import NUMBER_MAX
from replicated_namesrv.raft.payloads import pack_join, unpack_join
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_errors import RolledBackError
from replicated_namesrv.raft.raft_messages import (
    SINCE,
    AppendReply,
    DigestReport,
    Greeting,
    Introduction,
    MemberHint,
    Message,
    ReadReply,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    VoteReply,
)
from replicated_namesrv.raft.raft_node import RaftNode
from tests.raft.test_defences import both, commit, hand_over, world_with
from tests.support.raft_world import Disk, Host, Inode, Machine, World


def image_of(disk: Disk) -> Disk:
    """A copy of the present content of ``disk``."""
    copy = Disk()
    copy.files = {name: Inode(bytes(inode.data)) for name, inode in disk.files.items()}
    for inode in copy.files.values():
        inode.synced = bytes(inode.data)
    copy.durable = dict(copy.files)
    return copy


def elected() -> tuple[World, RaftNode]:
    """Three nodes, and their leader."""
    world = World()
    world.start_all()
    return world, world.elect()


def others(world: World, *nodes: RaftNode) -> list[Host]:
    """Hosts of all other nodes, in order."""
    return [host for host in world.hosts.values() if host.node not in nodes]


def settle(world: World) -> None:
    """All nodes have applied the same, and each knows what is on the others' disks."""
    world.run_until(lambda: len({tuple(h.machine.commands) for h in world.hosts.values() if h.node is not None}) == 1)
    world.run(0.5)


@both
def test_current_votes(defended: bool) -> None:
    """Raft 5.2: two copies of one vote arrive, and between them a late vote of the term before. The voter counts once."""
    world = world_with("current_votes", defended, 5)
    leader = world.elect()
    candidate, voter = [n for n in world.nodes if n is not leader][:2]
    world.isolate(candidate.node_id)
    hand_over(world, leader, candidate)
    for term in (candidate.term, candidate.term - 1, candidate.term):
        candidate.on_message(voter.node_id, VoteReply(voter.incarnation, candidate.incarnation, term))
    assert (candidate.role == "leader") == (not defended)


def lose_leader_when_join_commits(world: World) -> tuple[RaftNode, RaftNode]:
    """A follower loses its disk, and its leader is lost for ever at the moment when the join commits. Returns (the follower with
    its new disk, the third node)."""
    leader = world.elect()
    commit(world, leader, b"acknowledged")
    lost, third = others(world, leader)
    lost.crash()
    lost.disk = Disk()
    node = lost.start()
    world.run_until(lambda: leader.voters[lost.name] == node.incarnation)
    assert third.node is not None
    assert third.node.voters[lost.name] != node.incarnation, "the third node has not applied the join"
    world.hosts[leader.node_id].crash()
    return node, third.node


@both
def test_changes_in_log(defended: bool) -> None:
    """Dissertation 4.1: both remaining nodes have every committed entry; one of them has a join that it has not applied."""
    world = world_with("changes_in_log", defended)
    node, third = lose_leader_when_join_commits(world)
    if not defended:
        world.run(20)
        assert world.leader is None
        return
    world.run_until(lambda: world.leader is not None)
    outcome = world.propose(third.node_id, b"after")
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    settle(world)
    assert world.hosts[node.node_id].machine.commands == [b"acknowledged", b"after"]


def test_a_learner_votes_for_a_candidate_that_has_its_join() -> None:
    """Only the third node has the join in its log. The promoted node has to vote, although it does not know that it is a
    voter."""
    world, leader = elected()
    commit(world, leader, b"acknowledged")
    lost, third = others(world, leader)
    lost.crash()
    lost.disk = Disk()
    node = lost.start()
    joins = pack_join(lost.name, node.incarnation)

    def without_join(source: str, target: str, message: Message) -> bool:
        return target == lost.name and joins in getattr(message, "entries", b"")

    world.drop = without_join
    world.run_until(lambda: leader.voters[lost.name] == node.incarnation)
    world.hosts[leader.node_id].crash()
    world.drop = lambda source, target, message: False
    world.run_until(lambda: world.leader is not None)
    assert world.leader is third.node
    outcome = world.propose(third.name, b"after")
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)


def test_a_join_that_is_not_committed_elects_nobody_beside_a_leader() -> None:
    """A leader that is cut off from the voters but not from a learner cannot make that learner a voter. The vacancy of the
    learner's place would have to be committed first, by the voters that it cannot reach."""
    world, leader = elected()
    commit(world, leader, b"acknowledged")
    lost, third = others(world, leader)
    lost.crash()
    lost.disk = Disk()
    world.cut |= {(leader.node_id, third.name), (third.name, leader.node_id), (lost.name, third.name), (third.name, lost.name)}
    node = lost.start()
    world.run(10)
    assert leader.membership.configuration.latest[lost.name] != node.incarnation
    assert node.role == "learner"
    assert [n.node_id for n in world.nodes if n.role == "leader"] == []


@pytest.mark.parametrize("in_log", [True, False])
def test_configuration_by_rows(in_log: bool) -> None:
    """The table in ``Configuration``, and what a cut or a snapshot takes back."""
    configuration = Configuration({"a": 1, "b": 2}, in_log)
    assert configuration.next_change("a", 1) is None
    first = configuration.next_change("a", 3)
    assert first is not None
    assert unpack_join(first) == ("a", VACANT if in_log else 3)
    configuration.added(10, pack_join("a", VACANT))
    assert configuration.latest["a"] == (VACANT if in_log else 1), "a vacancy is in force in the log"
    configuration.added(11, pack_join("a", 3))
    assert configuration.latest["a"] == (3 if in_log else 1), "so is a join into a vacant place"
    configuration.cut(11)
    assert configuration.latest["a"] == (VACANT if in_log else 1)
    configuration.apply(10, ("a", VACANT))
    assert configuration.applied["a"] == configuration.latest["a"] == VACANT
    configuration.added(12, pack_join("b", 4))
    assert configuration.latest["b"] == 2, "a join into an occupied place is in force when applied"
    assert configuration.last_change == 12
    configuration.apply(12, ("b", 4))
    assert configuration.latest["b"] == 4
    assert configuration.last_change == 0
    configuration.added(13, b"\x00\x00")
    assert configuration.last_change == 0
    configuration.added(14, pack_join("b", VACANT))
    configuration.replace({"a": 1, "b": 2})
    assert configuration.latest == {"a": 1, "b": 2}


def test_changes_are_found_again_when_the_log_is_opened() -> None:
    world = World()
    world.start_all()
    node, third = lose_leader_when_join_commits(world)
    host = world.hosts[third.node_id]
    host.disk.sync(host.disk.list_names(), True)
    host.crash()
    again = host.start()
    assert again.membership.configuration.latest[node.node_id] == node.incarnation
    world.run_until(lambda: world.leader is not None)


def go_back_and_lose_leader(world: World) -> tuple[RaftNode, Host, Host]:
    """The disk of a follower is rolled back, and the leader is gone. Returns (the former leader, the host of the follower, the
    third host).

    The acknowledged command ``X`` was on the disks of the leader and of the follower. The third host was cut off, but it
    remembers more of the disk that was rolled back than the image has.
    """
    leader = world.elect()
    back, third = others(world, leader)
    commit(world, leader, b"old")
    settle(world)
    image = image_of(back.disk)
    commit(world, leader, b"known to all")
    settle(world)
    world.isolate(third.name)
    commit(world, leader, b"X")
    back.crash()
    back.disk = image
    world.hosts[leader.node_id].crash()
    world.heal()
    back.start()
    return leader, back, third


@both
def test_regressions(defended: bool) -> None:
    """Acknowledged entries survive if a disk is rolled back and the leader changes."""
    world = world_with("regressions", defended)
    leader, back, third = go_back_and_lose_leader(world)
    world.run(5)
    assert (world.leader is None) == defended
    world.hosts[leader.node_id].start()
    if not defended:
        world.run(5)
        assert all(b"X" not in h.machine.commands for h in (back, third)), "an acknowledged command is gone"
        return
    world.elect()
    settle(world)
    assert back.machine.commands == third.machine.commands == [b"old", b"known to all", b"X"]
    assert back.node is not None
    assert back.node.counters["rejoined"] == 1
    world.run_until(lambda: back.node is not None and back.node.role != "learner")
    reads = world.read(back.name)
    world.run_until(lambda: reads)
    assert isinstance(reads[0], ReadReady)


def test_a_leader_whose_disk_went_back_steps_down() -> None:
    """The node was elected with the vote of a peer that did not know of the regression. It rejoins as soon as a peer that does
    know contacts it."""
    world = World(config=RaftConfig(defences=Defences(regressions=False)))
    world.start_all()
    _, back, _ = go_back_and_lose_leader(world)
    world.run_until(lambda: world.leader is not None)
    assert back.node is not None
    back.node.rejoin("a test says so")
    world.run_until(lambda: back.node is not None and back.node.role == "learner")
    world.run(2)
    assert world.leader is not back.node


def test_an_old_directory_that_is_put_back_is_not_counted() -> None:
    """The third node has the join of the second disk in its log, unapplied, and lacks what was acknowledged since. The first disk
    is put back. For the third node, this disk is not a voter."""
    world, leader = elected()
    commit(world, leader, b"old")
    settle(world)
    moved, third = others(world, leader)
    moved.crash()
    first_disk = image_of(moved.disk)
    moved.disk = Disk()
    node = moved.start()
    world.run_until(lambda: leader.voters[moved.name] == node.incarnation)
    assert third.node is not None
    assert third.node.voters[moved.name] != node.incarnation
    world.isolate(third.name)
    commit(world, leader, b"X")
    moved.crash()
    world.hosts[leader.node_id].crash()
    moved.disk = first_disk
    world.heal()
    moved.start()
    world.run(5)
    assert world.leader is None
    world.hosts[leader.node_id].start()
    world.elect()
    settle(world)
    assert third.machine.commands == [b"old", b"X"]


@both
def test_own_numbers(defended: bool) -> None:
    """A process on a disk that was rolled back uses the boot number of the process before it. Entries of the earlier process must
    not end proposals of the later process."""
    world = world_with("own_numbers", defended, also_off=("regressions", "single_process", "acknowledged_check"))
    leader = world.elect()
    back = others(world, leader)[0]
    commit(world, leader, b"old")
    settle(world)
    image = image_of(back.disk)
    back.crash()
    node = back.start()
    settle(world)
    for number in range(3):
        commit(world, node, b"former %d" % number)
    settle(world)
    back.crash()
    back.disk = image
    world.hosts[leader.node_id].crash()
    node = back.start()
    ended = [world.propose(back.name, b"new %d" % number) for number in range(2)]
    world.run_until(lambda: node.stopped or all(ended))
    if not defended:
        assert isinstance(ended[0][0], Committed)
        world.run(1)
        assert all(b"new 0" not in host.machine.commands for host in world.hosts.values()), "acknowledged, and never applied"
        return
    assert isinstance(node.failed, RolledBackError)
    assert "disk rolled back" in str(node.failed)
    assert not any(isinstance(outcome, Committed) for outcomes in ended for outcome in outcomes)
    back.crash(power=False)
    leader = world.hosts[leader.node_id].start()
    again = back.start()
    assert again.incarnation != node.incarnation
    world.run_until(lambda: leader.voters.get(back.name) == again.incarnation)
    commit(world, again, b"as another incarnation")


@both
def test_own_numbers_in_a_snapshot(defended: bool) -> None:
    """Like ``test_own_numbers``, but the entries of the earlier process arrive in a snapshot, which is not applied one by one."""
    world = world_with(
        "own_numbers", defended, also_off=("regressions", "single_process", "acknowledged_check"),
        compact_entries=20, compact_margin_entries=0,
    )  # fmt: skip  # items grouped by line
    leader = world.elect()
    back = others(world, leader)[0]
    commit(world, leader, b"old")
    settle(world)
    image = image_of(back.disk)
    back.crash()
    node = back.start()
    settle(world)
    commit(world, node, b"former")
    for number in range(100):
        commit(world, leader, b"later %d" % number)
    settle(world)
    back.crash()
    back.disk = image
    hand_over(world, leader, next(host.node for host in others(world, leader) if host.node is not None))
    node = back.start()
    world.run_until(lambda: node.stopped or node.core.applied_index > 100)
    assert node.stopped is defended
    if defended:
        assert isinstance(node.failed, RolledBackError)


@both
def test_own_sequence_numbers(defended: bool) -> None:
    """A process on a disk that was rolled back has the boot number of the process before it, and asks the leader for a read
    index. A late answer to the earlier process must not confirm the read: the node that remembers more has not introduced itself
    yet."""
    world = world_with("own_numbers", defended)
    leader = world.elect()
    commit(world, leader, b"old")
    settle(world)
    back, third = others(world, leader)
    first = world.hosts[leader.node_id]
    image = image_of(back.disk)
    back.crash()
    earlier = back.start()
    kept = world.keep(ReadReply, target=back.name)
    world.run_until(lambda: earlier.leader_id == leader.node_id)
    answered = world.read(back.name)
    world.run_until(lambda: answered and kept)
    back.crash()
    first.crash()
    first.start()  # ``first`` has forgotten the data of ``back``
    leader = world.elect()
    if leader.node_id != first.name:
        assert first.node is not None
        hand_over(world, leader, first.node)
        leader = world.elect()
    assert leader is first.node
    commit(world, leader, b"X")
    back.disk = image
    world.cut = {(back.name, third.name), (third.name, back.name)}
    node = back.start()
    assert node.boot == earlier.boot
    world.run_until(lambda: node.leader_id == first.name, 0.2)
    read = world.read(back.name)
    node.tick()  # the request is under way
    node.on_message(first.name, kept[0])
    node.tick()
    assert len(read) == (not defended)
    if not defended:
        assert isinstance(read[0], ReadReady)
        assert back.machine.commands == [b"old"], "X is missing, although it was acknowledged before the read began"
        return
    world.heal()
    world.run_until(lambda: read)
    assert node.counters["rejoined"] == 1


def test_sequence_numbers_leave_room_for_the_next_ones() -> None:
    world = World()
    host = world.hosts["n1"]
    host.rng.getrandbits = lambda bits: (1 << bits) - 1  # type: ignore[method-assign]  # the greatest random number
    assert host.start().proposals.first_sequence < NUMBER_MAX // 2


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError, ImportError])
@both
def test_fatal_errors(defended: bool, error: type[Exception]) -> None:
    """An error of one machine is not a result of a command: the node stops before its state differs."""
    world = world_with("fatal_errors", defended, also_off=("digest_check",))
    leader = world.elect()
    commit(world, leader, b"a")
    settle(world)
    host = others(world, leader)[0]
    apply = host.machine.apply

    def fails(command: bytes) -> object:
        host.machine.apply = apply  # type: ignore[method-assign]  # of this machine alone
        raise error

    host.machine.apply = fails  # type: ignore[method-assign]  # the same
    commit(world, leader, b"b")
    world.run(0.5)
    assert host.node is not None
    assert host.node.stopped == defended
    if not defended:
        reads = world.read(host.name)
        world.run_until(lambda: reads)
        assert isinstance(reads[0], ReadReady)
        assert host.machine.commands == [b"a"], "a linearizable read misses an acknowledged command"
        return
    assert isinstance(host.node.failed, error)
    host.crash(power=False)
    host.start()
    settle(world)
    assert host.machine.commands == [b"a", b"b"]


def test_an_error_of_the_command_is_its_result_everywhere() -> None:
    world, leader = elected()
    for host in world.hosts.values():
        host.machine.apply = lambda command: 1 // 0  # type: ignore[method-assign]  # of this machine alone
    outcome = world.propose(leader.node_id, b"a")
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    assert outcome[0].result == ApplyFailed("ZeroDivisionError")
    world.run(3)
    assert len(world.nodes) == 3
    assert not any(node.stopped for node in world.nodes)


@both
def test_dissent_fences_reads(defended: bool) -> None:
    """Two of three states differ and the third node is down: it is unknown which is right, so neither answers reads."""
    world = world_with("dissent_fences_reads", defended, lease_reads=True)
    leader = world.elect()
    commit(world, leader, b"a")
    settle(world)
    wrong, down = others(world, leader)
    down.crash()
    wrong.machine.commands[0] = b"b"
    world.run_until(lambda: all(node.writes_refused for node in world.nodes))
    outcomes: list[Any] = []
    for node in world.nodes:
        node.read_index(outcomes.append)
        node.lease_read(outcomes.append)
    world.run_until(lambda: len(outcomes) == 4)
    assert all(isinstance(outcome, Rejected) for outcome in outcomes) == defended
    assert any("states differ" in str(outcome) for outcome in outcomes) == defended
    assert not leader.lease_valid() or not defended
    down.start()
    world.run_until(lambda: not leader.writes_refused)
    reads = world.read(leader.node_id)
    world.run_until(lambda: reads)
    assert isinstance(reads[0], ReadReady)


class Copied:
    """A second process on a copy of the data directory of ``name``. Both use that name and receive its messages."""

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        original = world.hosts[name]
        self.host = Host(world, name)
        self.host.disk, self.host.life = disk, 1
        self.host.rng.seed("another machine")
        config = world.config
        self.node = RaftNode(name, world.names, "test", self.host, self.host.disk, Machine(), config)
        self.host.node = self.node
        deliver = world._deliver

        def to_both(source: str, target: str, message: Message) -> None:
            deliver(source, target, message)
            if target == name and (source, target) not in world.cut and self.host.node is not None:
                self.node.on_message(source, message)
                self.node.tick()

        world._deliver = to_both  # type: ignore[method-assign]  # of this world alone
        for peer in world.names:
            if peer != name:
                self.node.on_connected(peer)
        assert original.node is not self.node

    def ticking(self, world: World, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Let time pass for all nodes, including the copy, until ``condition`` is true."""
        end = world.time + seconds
        while not condition():
            assert world.time < end, f"not reached within {seconds} virtual seconds"
            world.run(0.01)
            self.node.tick()


@both
def test_single_process(defended: bool) -> None:
    """A data directory is copied and both copies are started: neither may vote, and both sides say so."""
    world = world_with("single_process", defended, also_off=("remembered_data",))
    leader = world.elect()
    commit(world, leader, b"a")
    settle(world)
    host, third = others(world, leader)
    assert host.node is not None
    copy = Copied(world, host.name, image_of(host.disk))
    if not defended:
        copy.ticking(world, lambda: bool(copy.node.membership.known))
        assert leader.membership.known[host.name] == copy.node.incarnation
        # Both vote in one term, each for another candidate: two leaders.
        leader.core.step_down()
        won: list[tuple[str, int]] = []
        for candidate, voter in ((leader, host.node), (third.node, copy.node)):
            assert candidate is not None
            candidate.core.start_election()
            vote = VoteReply(voter.incarnation, candidate.incarnation, candidate.term)
            candidate.on_message(host.name, vote)
            candidate.tick()
            won += [(candidate.node_id, candidate.term)] if candidate.role == "leader" else []
        assert len({name for name, _ in won}) == 2
        assert len({term for _, term in won}) == 1, "two leaders in one term"
        return
    copy.ticking(world, lambda: leader.membership.known.get(host.name) is None)
    copy.ticking(
        world, lambda: copy.node.counters["contested"] > 0 and host.node is not None and host.node.counters["contested"] > 0
    )
    assert any("two processes use the name" in note for note in leader.notes)
    assert any("stop one of the two processes" in note for note in copy.node.notes)
    assert any("stop one of the two processes" in note for note in host.node.notes)
    hand = TimeoutNow(leader.incarnation, copy.node.incarnation, leader.term)
    copy.node.on_message(leader.node_id, hand)
    copy.ticking(world, lambda: world.time > 0, 5)
    assert copy.node.role != "leader"
    commit(world, leader, b"b")
    copy.node.stop()
    copy.host.node = None
    world.run_until(lambda: leader.membership.known.get(host.name) is not None)
    settle(world)
    assert host.machine.commands == [b"a", b"b"]


def test_two_processes_cause_no_storm_of_introductions() -> None:
    """Each introduction of one process looks like a change, because the previous one came from the other process. The number of
    answers is bounded, and so are the notes."""
    world, leader = elected()
    settle(world)
    host = others(world, leader)[0]
    copy = Copied(world, host.name, image_of(host.disk))
    sent = 0

    def count(source: str, target: str, message: Message) -> bool:
        nonlocal sent
        sent += isinstance(message, Introduction)
        return sent > 10_000

    world.drop = count
    start = world.time
    copy.ticking(world, lambda: world.time - start >= 2)
    introductions = 2 / (4 * leader.context.heartbeat_seconds)
    pairs = 2 * 2 + 2 + 2  # both processes with each of two peers, and these with each other
    assert sent <= pairs * (ANSWERS_MAX + 2) * (introductions + 1)
    assert leader.notes.count(leader.notes[-1]) <= 2


def test_greetings_that_a_link_has_held_are_answered_once_per_heartbeat() -> None:
    """A node does not know its peer, and its repeated greetings arrive at once, when the link delivers again."""
    world, leader = elected()
    settle(world)
    host = others(world, leader)[0]
    assert host.node is not None
    sent = 0

    def count(source: str, target: str, message: Message) -> bool:
        nonlocal sent
        sent += isinstance(message, Greeting) and (source, target) == (leader.node_id, host.name)
        return False

    world.drop = count
    greeting = leader.membership._greetings[host.name]._replace(echo=0)
    for _ in range(1000):
        leader.on_message(host.name, greeting)
    assert sent == 1
    leader.on_message(host.name, greeting._replace(versions=greeting.versions + 1))
    assert sent == 2, "a different greeting is answered at once"
    world.run(2 * leader.context.heartbeat_seconds)
    before = sent
    leader.on_message(host.name, greeting._replace(versions=greeting.versions + 1))
    assert sent == before + 1, "the next one is answered after a heartbeat"


def old_version(world: World, name: str) -> None:
    """Let node ``name`` speak protocol 0: its greetings name no protocol, it ignores the protocol in the greetings of others, and
    it cannot read kinds of messages that came later."""
    transmit = world.transmit

    def as_protocol_0(source: Host, target: str, message: Message) -> None:
        if name in (source.name, target) and SINCE.get(type(message)) and not isinstance(message, MemberHint):
            assert target != name, f"{type(message).__name__} was sent to a node of protocol 0"
            return
        if isinstance(message, Greeting) and name in (source.name, target):
            message = message._replace(versions=message.command_version)
        transmit(source, target, message)

    world.transmit = as_protocol_0  # type: ignore[method-assign]  # of this world alone


def test_nodes_of_protocol_0_take_part() -> None:
    """A rolling upgrade: messages of a node without introductions count. The other nodes send it no kinds of messages that it
    cannot read."""
    world = World()
    old_version(world, "n3")
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    third = world.hosts["n3"].node
    assert third is not None
    commit(world, third, b"forwarded, if it does not lead")
    settle(world)
    world.isolate("n2" if leader.node_id != "n2" else "n1")
    commit(world, leader, b"b")
    assert world.hosts["n3"].node is not None
    assert leader.membership.protocol("n3") == 0 or leader.node_id == "n3"


def test_digests_of_different_versions_are_not_compared() -> None:
    """A rolling upgrade to another form of the digest: two of three nodes have it, and the third, of an earlier version that
    knows no digest versions, must not take them for a majority against itself."""
    world = World()
    old_version(world, "n3")
    reports: list[tuple[str, str]] = []

    def watch(source: str, target: str, message: Message) -> bool:
        if isinstance(message, DigestReport):
            reports.append((source, target))
        return False

    world.drop = watch
    world.hosts["n3"].start()
    world.config = RaftConfig(digest_version=2)
    for name in ("n1", "n2"):
        world.hosts[name].start(OtherDigest())
    leader = world.elect()
    commit(world, leader, b"a")
    world.run(10)
    assert not any(node.stopped for node in world.nodes)
    assert all(node.writes_refused is None for node in world.nodes)
    assert {("n1", "n2"), ("n2", "n1")} <= set(reports)
    assert not {pair for pair in reports if pair[1] == "n3"}, "the old node would compare them"


class OtherDigest(Machine):
    """The same state with another form of digest."""

    def digest(self) -> bytes:
        return b"2" + super().digest()


@pytest.mark.parametrize("kind", ["success", "conflict", "snapshot"])
def test_late_answers_do_not_keep_a_leader_that_is_cut_off(kind: str) -> None:
    """CheckQuorum counts only answers to recent messages. Copies of older answers arrive for ever; the leader steps down."""
    world, leader = elected()
    commit(world, leader, b"a")
    follower = others(world, leader)[0].node
    assert follower is not None
    seen = world.keep(AppendReply, source=follower.node_id)
    world.run_until(lambda: seen)
    world.isolate(leader.node_id)
    reply = seen[-1]
    late: Message = reply._replace(success=kind == "success")
    if kind == "snapshot":
        late = SnapshotAck(*reply[:4], 1, 0)
    world.propose(leader.node_id, b"only here")
    end = world.time + 0.4
    while world.time < end:
        world.run(0.03)
        leader.on_message(follower.node_id, late)
        leader.tick()
    assert leader.role != "leader"


def lagging_behind_snapshot() -> tuple[World, RaftNode, Host]:
    """A leader that has compacted its log, and a follower that needs the snapshot and is still cut off."""
    world = World(config=RaftConfig(compact_entries=30, compact_margin_entries=5, entry_bytes_max=1, snapshot_slice_bytes=64))
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"first")
    lagging = others(world, leader)[0]
    world.isolate(lagging.name)
    for number in range(100):
        commit(world, leader, b"%d" % number)
    world.run_until(lambda: leader.snapshots.current is not None)
    return world, leader, lagging


def data_chunks(world: World) -> list[SnapshotChunk]:
    """Chunks with data that are sent from now on."""
    chunks: list[SnapshotChunk] = []

    def watch(source: str, target: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk) and message.data:
            chunks.append(message)
        return False

    world.drop = watch
    return chunks


def test_a_snapshot_of_a_newer_format_is_not_sent() -> None:
    """The follower reports its formats. The leader names it in a note instead of sending a snapshot that it cannot read."""
    world, leader, lagging = lagging_behind_snapshot()
    chunks = data_chunks(world)
    current = leader.snapshots.current
    assert current is not None
    leader.snapshots.current = current._replace(version=3)
    leader.followers.progress[lagging.name].become_snapshot()
    world.heal()
    world.run(5)
    assert not chunks
    assert any(f"{lagging.name} needs a snapshot and reads formats up to 2" in note for note in leader.notes)
    assert leader.role == "leader"
    assert lagging.node is not None
    assert lagging.node.leader_id == leader.node_id, "heartbeats reach it all the same"
    leader.snapshots.current = current
    leader.followers.progress[lagging.name].become_snapshot()
    world.run_until(lambda: lagging.node is not None and lagging.node.applied_index == leader.applied_index)


def test_a_snapshot_of_an_unknown_format_is_fetched_once() -> None:
    """A leader that does not negotiate formats sends the snapshot nevertheless. The follower reports that it has to be upgraded,
    and fetches no more of the snapshot."""
    world, leader, lagging = lagging_behind_snapshot()
    current = leader.snapshots.current
    assert current is not None
    disk = world.hosts[leader.node_id].disk
    data = disk.files[current.name].data
    data[8:12] = (3).to_bytes(4, "little")
    leader.followers.progress[lagging.name].become_snapshot()
    chunks = data_chunks(world)
    world.heal()
    world.run(30)
    assert lagging.node is not None
    assert lagging.node.counters["unreadable_snapshots"] == 1
    assert any("upgrade this node" in note for note in lagging.node.notes)
    once = -(-len(data) // 64)
    assert once <= len(chunks) < 5 * once, "one chunk is offered again at ever longer intervals, the rest is not"
    assert not lagging.node.stopped
