"""A disk on which a sync hangs: a test for each row of the table in ``stall.py``, and for the bounds on everything that waits
meanwhile."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, Outcome, Rejected
from replicated_namesrv.raft.memory_bounds import exceeded
from replicated_namesrv.raft.outbox import HELD_MAX
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_messages import Message, PreVote, PreVoteReply, TimeoutNow
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.snapshot_receiving import RECEIVED_SYNCS_MAX
from tests.support.raft_world import Host, World

both = pytest.mark.parametrize("defended", [True, False], ids=["with", "without"])
STALL_SECONDS = 1.0


class HungDisk:
    """From now on no sync of ``host`` ends until ``recover``, not even one that is already in progress."""

    def __init__(self, host: Host) -> None:
        self._host, self._hangs = host, True
        self._waiting: list[Callable[[], None]] = []
        host.request_sync = self._request  # type: ignore[method-assign]  # of this host alone

    def _request(self, token: int, names: Sequence[str], directory: bool) -> None:
        self._waiting.append(lambda: Host.request_sync(self._host, token, names, directory))

    def recover(self) -> None:
        del self._host.request_sync
        for request in self._waiting:
            request()


def settled(size: int = 3, without: str | None = None, **config: Any) -> tuple[World, RaftNode]:
    defences = Defences() if without is None else Defences.without(without)
    settings: dict[str, Any] = {"sync_stall_ms": int(STALL_SECONDS * 1000), "defences": defences, **config}
    world = World(size, RaftConfig(**settings))
    world.start_all()
    leader = world.elect()
    world.run_until(lambda: all(node.leader_id == leader.node_id for node in world.nodes))
    world.run(0.2)
    return world, leader


def leads(node: RaftNode) -> bool:
    return node.role == "leader"


def write(world: World, name: str, command: bytes = b"x") -> list[Outcome]:
    outcome = world.propose(name, command)
    world.hosts[name].wake()
    return outcome


def write_on(world: World, leader: RaftNode, size: int = 2_000) -> None:
    """Write every 5 ms at ``leader``, as long as it leads."""
    if leader.role == "leader":
        write(world, leader.node_id, b"x" * size)
        world.later(0.005, lambda: write_on(world, leader, size))


@both
def test_a_leader_on_a_hung_disk_hands_over(defended: bool) -> None:
    """Dissertation, 3.10. A majority commits without the leader's disk. So nothing else would detect the stall while the leader's
    buffer grows."""
    world, leader = settled(without=None if defended else "disk_stall")
    HungDisk(world.hosts[leader.node_id])
    write_on(world, leader)
    world.run(STALL_SECONDS * 0.9)
    assert leader.role == "leader", "a pause of this length does not count"
    assert leader.commit_index > leader.durable_index
    term = leader.term
    world.run(3)
    if defended:
        new = world.elect()
        assert new is not leader
        assert new.term == term + 1, "handed over, not elected after a silence"
        outcome = write(world, new.node_id)
        world.run_until(lambda: outcome)
        assert isinstance(outcome[0], Committed)
        assert leader.leader_id == new.node_id
        assert isinstance(write(world, leader.node_id)[0], Rejected)
    else:
        assert leader.role == "leader"
        assert leader.log.buffered_bytes > 3 * 100 * 2_000


class FixedJitter(Random):
    """Every election time-out of a node is the same."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


@both
def test_a_candidate_on_a_hung_disk_does_not_prevent_elections(defended: bool) -> None:
    """The node with the longest log cannot write its vote, so its vote requests are never sent. If it campaigned again and again,
    it would raise its term each time, and its answers with this term would end the pre-votes of the others."""
    world, longest = settled(without=None if defended else "durable_vote_first", sync_stall_ms=60_000)
    others = [host for name, host in world.hosts.items() if name != longest.node_id]
    world.hosts[longest.node_id].jitter = FixedJitter(0.0)
    for host, value in zip(others, (0.5, 0.9), strict=True):
        host.crash(power=False)
        host.jitter = FixedJitter(value)
    write(world, longest.node_id)
    world.run(0.05)
    HungDisk(world.hosts[longest.node_id])
    world.run_until(lambda: longest.role != "leader")
    term = longest.term

    def delay_grants(source: str, target: str, message: Message) -> bool:
        """The refusals of the node with the longest log arrive first."""
        is_grant = isinstance(message, PreVoteReply) and message.granted and target != longest.node_id
        if is_grant:
            world.later(2 * world.delay, lambda: world._deliver(source, target, message))
        return is_grant

    world.drop = delay_grants
    for host in others:
        host.start()
    world.run(5)
    assert (world.leader is not None) == defended
    assert (longest.term > term + 5) != defended


def test_the_hand_over_takes_no_election_time() -> None:
    world, leader = settled()
    HungDisk(world.hosts[leader.node_id])
    write(world, leader.node_id)
    hung_at = world.time
    world.run_until(lambda: world.leader is not None and world.leader is not leader)
    assert world.time - hung_at < STALL_SECONDS + 0.1


@pytest.mark.parametrize("reason", ["the others lag", "the others are down"])
def test_a_leader_that_cannot_hand_over_steps_down(reason: str) -> None:
    """No other node has its whole log, so an election has to find the next leader."""
    world, leader = settled(5)
    others = [node for node in world.nodes if node is not leader]
    HungDisk(world.hosts[leader.node_id])
    if reason == "the others are down":
        for node in others[:2]:
            world.hosts[node.node_id].crash()
        alive = others[2:]
    else:
        for node in others:
            HungDisk(world.hosts[node.node_id])
        alive = others
    term, outcome = leader.term, write(world, leader.node_id)
    began = world.time
    world.run_until(lambda: leader.role != "leader")
    assert world.time - began < STALL_SECONDS + 2 * world.config.election_max_ms / 1000
    assert leader.counters["stepped_down"] == 1
    assert leader.term == term, "there is no other leader yet"
    world.run(world.config.proposal_timeout_ms / 1000 + 1)
    assert world.leader is None, "with two disks of five no majority"
    assert isinstance(outcome[0], Indeterminate)
    assert all(node.term <= term + 1 for node in alive), "terms do not race"


def test_a_proposal_that_waits_when_the_disk_stalls_goes_to_the_next_leader() -> None:
    """The first entry cannot be committed: without the leader's disk and with one follower cut off there is no majority."""
    world, leader = settled(uncommitted_bytes_max=1)
    first, second = (node for node in world.nodes if node is not leader)
    HungDisk(world.hosts[leader.node_id])
    world.cut = {(leader.node_id, second.node_id)}
    taken = write(world, leader.node_id, b"appended")
    waiting = write(world, leader.node_id, b"waiting")
    world.run(STALL_SECONDS * 0.9)
    assert leader.proposals.count == 2
    assert leader.last_index == first.last_index == leader.commit_index + 1
    world.cut = set()
    world.run_until(lambda: world.leader is not None and world.leader is not leader)
    world.run_until(lambda: world.hosts[first.node_id].machine.commands == [b"appended", b"waiting"], 3)
    assert not any(isinstance(outcome, Rejected) for outcome in taken + waiting)


def test_a_group_of_one_on_a_stalled_disk_rejects_proposals_until_it_recovers() -> None:
    world, node = settled(1)
    disk = HungDisk(world.hosts[node.node_id])
    before = write(world, node.node_id)
    world.run(STALL_SECONDS + 0.1)
    last = node.last_index
    after = write(world, node.node_id, b"late")
    assert isinstance(after[0], Rejected)
    world.run(world.config.proposal_timeout_ms / 1000 + 1)
    assert (node.role, node.last_index) == ("leader", last), "there is nobody else"
    assert isinstance(before[0], Indeterminate)
    disk.recover()
    world.run(0.1)
    outcome = write(world, node.node_id, b"well again")
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    assert world.hosts[node.node_id].machine.commands == [b"x", b"well again"]


def test_a_stalled_follower_is_harmless() -> None:
    """The follower applies what others commit, receives at most one window, and does not campaign."""
    world, leader = settled(inflight_bytes_max=100_000)
    follower = next(node for node in world.nodes if node is not leader)
    disk = HungDisk(world.hosts[follower.node_id])
    write_on(world, leader)
    term = leader.term
    world.run(5)
    assert (leader.role, leader.term) == ("leader", term)
    assert follower.stall.stalled
    assert follower.durable_index < follower.applied_index
    assert follower.log.buffered_bytes < 100_000 + 3 * 2_000 + 1_000
    world.isolate(leader.node_id)
    world.run(5)
    assert all(node.role != "leader" for node in world.nodes)
    assert follower.counters["pre_votes"] == 0
    disk.recover()
    world.run_until(lambda: world.leader is not None, 3)


def test_a_stalled_node_neither_grants_pre_votes_nor_takes_over() -> None:
    """Such a node could not send a vote, because neither that vote nor its vote for itself would become durable."""
    world, leader = settled()
    follower = next(node for node in world.nodes if node is not leader)
    HungDisk(world.hosts[follower.node_id])
    write(world, leader.node_id)
    world.run(STALL_SECONDS + 0.2)
    assert follower.stall.stalled
    answers: list[PreVoteReply] = []

    def watch(source: str, target: str, message: object) -> bool:
        if isinstance(message, PreVoteReply):
            answers.append(message)
        return leader.node_id in (source, target)

    world.drop = watch
    world.run(world.config.election_min_ms / 1000 + 0.01)
    peer = next(node for node in world.nodes if node not in (leader, follower))
    question = PreVote(peer.incarnation, follower.incarnation, follower.term + 1, 10**9, follower.term)
    follower.on_message(peer.node_id, question)
    assert [answer.granted for answer in answers if answer.source == follower.incarnation] == [False] * len(answers)
    assert answers
    term = follower.term
    follower.on_message(leader.node_id, TimeoutNow(leader.incarnation, follower.incarnation, leader.term))
    assert follower.term == term


def test_a_leader_whose_disk_recovers_in_time_goes_on() -> None:
    world, leader = settled()
    term = leader.term
    for _ in range(5):
        disk = HungDisk(world.hosts[leader.node_id])
        write(world, leader.node_id)
        world.run(STALL_SECONDS * 0.8)
        disk.recover()
        world.run(0.1)
    assert (leader.role, leader.term) == ("leader", term)
    assert leader.counters["disk_stalls"] == 0


def test_a_pause_of_the_whole_process_is_no_stall() -> None:
    """A suspended machine: the sync ends a moment after the machine resumes, but the clock has not stopped."""
    world, node = settled(1)
    disk = HungDisk(world.hosts[node.node_id])
    outcome = write(world, node.node_id)
    world.time += 60
    node.tick()
    assert node.unsynced_seconds > 59
    assert not node.stall.stalled
    assert node.disk_problem is None
    disk.recover()
    world.run_until(lambda: outcome and node.unsynced_seconds == 0)


def test_a_former_leader_takes_part_again_when_its_disk_recovers() -> None:
    world, leader = settled()
    disk = HungDisk(world.hosts[leader.node_id])
    write_on(world, leader)
    world.run_until(lambda: leader.role != "leader")
    new = world.elect()
    disk.recover()
    world.run_until(lambda: not leader.stall.stalled)
    world.run_until(lambda: leader.durable_index == new.last_index)
    done: list[bool] = []
    new.transfer_leadership(leader.node_id, done.append)
    world.run_until(lambda: done)
    assert done == [True]
    settle_at = world.time + 1
    world.run_until(lambda: world.time > settle_at)
    HungDisk(world.hosts[leader.node_id])
    write(world, leader.node_id)
    stalled_at = world.time
    world.run_until(lambda: world.leader is not None and world.leader is not leader)
    assert world.time - stalled_at < STALL_SECONDS + 0.1, "it hands over again"


def test_a_sync_of_a_snapshot_that_hangs_counts_too() -> None:
    """The log is synced, but never gets shorter. The limit for the sync of a snapshot is twelve times as long."""
    world, leader = settled(compact_entries=30, compact_margin_entries=5, entry_bytes_max=1)
    host = world.hosts[leader.node_id]
    request = host.request_sync

    def hang(token: int, names: Sequence[str], directory: bool) -> None:
        if any(name.startswith("log-") for name in names):
            request(token, names, directory)

    host.request_sync = hang  # type: ignore[method-assign]  # of this host alone
    for number in range(60):
        write(world, leader.node_id, b"%d" % number)
    world.run(STALL_SECONDS * 11)
    assert leader.taking.running
    assert leader.role == "leader"
    world.run_until(lambda: leader.role != "leader", STALL_SECONDS * 2)
    world.run_until(lambda: world.leader is not None and world.leader is not leader)


def unsynced_ms(node: RaftNode) -> float:
    age = node.status()["unsynced_ms"]
    assert isinstance(age, float)
    return age


def test_the_age_of_the_oldest_unsynced_write_is_shown() -> None:
    world, leader = settled()
    follower = next(node for node in world.nodes if node is not leader)
    assert unsynced_ms(follower) == 0
    disk = HungDisk(world.hosts[follower.node_id])
    write(world, leader.node_id)
    world.run(0.5)
    assert 400 < unsynced_ms(follower) < 600
    assert follower.status()["problem"] is None
    world.run(1)
    assert 1_400 < unsynced_ms(follower) < 1_600
    assert "has not finished a sync" in str(follower.status()["problem"])
    disk.recover()
    world.run(0.2)
    assert unsynced_ms(follower) == 0
    assert follower.status()["problem"] is None


# Waiting for a disk


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_what_waits_for_a_hung_disk_is_bounded_in_bytes(role: str) -> None:
    """This is true even before the disk counts as stalled: a leader stops appending, and a follower stops accepting entries."""
    world, leader = settled(sync_stall_ms=10_000, unsynced_bytes_max=100_000, inflight_bytes_max=100_000)
    host = next(host for host in world.hosts.values() if (host.node is leader) == (role == "leader"))
    disk = HungDisk(host)
    write_on(world, leader)
    world.run(3)
    assert host.node is not None
    assert 90_000 <= host.node.log.buffered_bytes <= 110_000
    for node in world.nodes:
        assert not exceeded(node.memory())
    disk.recover()
    outcome = write(world, leader.node_id)
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)


def test_a_follower_behind_by_more_than_its_bound_takes_nothing_until_its_disk_answers() -> None:
    """Each new leader may send it another window of entries."""
    world, leader = settled(unsynced_bytes_max=50_000, inflight_bytes_max=400_000)
    follower = next(node for node in world.nodes if node is not leader)
    disk = HungDisk(world.hosts[follower.node_id])
    write_on(world, leader)
    world.run(5)
    assert follower.counters["appends_refused"] > 0
    assert follower.log.buffered_bytes < 50_000 + world.config.append_bytes_max + 1_000
    assert follower.leader_id == leader.node_id
    disk.recover()
    world.run_until(lambda: follower.durable_index >= leader.commit_index - 5, 5)


def test_held_answers_are_bounded() -> None:
    """Heartbeats of a new term are answered when that term is on disk."""
    world, leader = settled()
    follower, other = (node for node in world.nodes if node is not leader)
    disk = HungDisk(world.hosts[follower.node_id])
    leader.transfer_leadership(other.node_id, lambda done: None)
    world.run_until(lambda: other.role == "leader")
    most = 0
    for _ in range(100):
        world.run(1)
        most = max(most, follower.memory()["held_messages"][0])
    assert HELD_MAX // 2 < most <= HELD_MAX
    write(world, other.node_id)
    disk.recover()
    world.run_until(lambda: follower.durable_index == other.last_index, 2)
    world.run_until(lambda: other.followers.progress[follower.node_id].match == other.last_index, 2)


def test_syncs_of_received_snapshots_do_not_pile_up() -> None:
    """The disk does not answer, and one leader after the other sends its snapshot."""
    world, leader = settled(compact_entries=30, compact_margin_entries=5, entry_bytes_max=1, sync_stall_ms=60_000)
    lagging = next(node for node in world.nodes if node is not leader)
    world.isolate(lagging.node_id)
    disk = HungDisk(world.hosts[lagging.node_id])
    for _ in range(6):
        leader = world.elect()
        for number in range(60):
            write(world, leader.node_id, b"%d" % number)
        world.run(1)
        world.heal()
        world.run(1)
        assert not exceeded(lagging.memory())
        world.isolate(lagging.node_id)
        target = next(node for node in world.nodes if node not in (leader, lagging))
        leader.transfer_leadership(target.node_id, lambda done: None)
        world.run_until(partial(leads, target))
    assert 1 <= lagging.memory()["pending_syncs"][0] <= 2 + RECEIVED_SYNCS_MAX
    world.heal()
    disk.recover()
    leader = world.elect()
    world.run_until(lambda: lagging.applied_index == leader.applied_index, 5)
