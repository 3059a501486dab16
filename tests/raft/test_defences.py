"""Directed tests: for each defence a schedule in which its absence does harm."""

from typing import Any

import pytest

from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.members import VACANT
from replicated_namesrv.raft.payloads import NO_OP, pack_entries, pack_join
from replicated_namesrv.raft.raft_config import Defences, RaftConfig
from replicated_namesrv.raft.raft_errors import CorruptionError, InvariantError
from replicated_namesrv.raft.raft_messages import Append, AppendReply, Message, PreVoteReply, TimeoutNow, Vote, VoteReply
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.raft_world import Disk, World

both = pytest.mark.parametrize("defended", [True, False], ids=["with", "without"])


def world_with(defence: str, defended: bool, size: int = 3, also_off: tuple[str, ...] = (), **config: object) -> World:
    """``also_off``: other defences that would stop the schedule before it reaches the state to be tested."""
    switches = dict.fromkeys(also_off, False) | {defence: defended}
    world = World(size, RaftConfig(defences=Defences(**switches), **config))  # type: ignore[arg-type]  # names and types come from the caller
    world.start_all()
    return world


def commit(world: World, node: RaftNode, command: bytes) -> None:
    outcome = world.propose(node.node_id, command)
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)


def hand_over(world: World, leader: RaftNode, target: RaftNode) -> None:
    """``target`` campaigns although the leader works."""
    target.on_message(leader.node_id, TimeoutNow(leader.incarnation, target.incarnation, leader.term))


@both
def test_distinct_votes(defended: bool) -> None:
    """Raft 5.2: one of five nodes votes and its answer arrives three times, which is not a majority."""
    world = world_with("distinct_votes", defended, 5)
    leader = world.elect()
    candidate, voter = [n for n in world.nodes if n is not leader][:2]
    world.isolate(candidate.node_id)
    hand_over(world, leader, candidate)
    for _ in range(3):
        candidate.on_message(voter.node_id, VoteReply(voter.incarnation, candidate.incarnation, candidate.term))
    assert (candidate.role == "leader") == (not defended)


@both
def test_fresh_acks(defended: bool) -> None:
    """A delayed acknowledgement of an earlier term, whose entry has been replaced since, does not commit anything."""
    world = world_with("fresh_acks", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    world.isolate(leader.node_id)
    follower = next(n for n in world.nodes if n is not leader)
    world.propose(leader.node_id, b"only here")
    world.run(0.02)
    committed = leader.commit_index
    assert leader.durable_index == leader.last_index == committed + 1
    stale = AppendReply(follower.incarnation, leader.incarnation, leader.term - 1, 1 << 40, True, leader.last_index)
    leader.on_message(follower.node_id, stale)
    leader.tick()
    assert (leader.commit_index > committed) == (not defended)


@pytest.mark.parametrize("behind", [0, 1], ids=["at the commit index", "below it"])
@pytest.mark.parametrize("with_entries", [True, False])
def test_a_leader_that_contradicts_a_committed_entry_stops_the_node(behind: int, with_entries: bool) -> None:
    """Log matching: no leader of a later term lacks a committed entry. The node must not cut its log, nor answer with
    conflicts for ever."""
    world = World()
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    commit(world, leader, b"b")
    world.run(0.5)
    follower = next(node for node in world.nodes if node is not leader)
    index, term = follower.commit_index - behind, leader.term + 1
    before, entries = (index, term), b""
    if with_entries:
        before, entries = (index - 1, follower.term_at(index - 1) or 0), pack_entries([(NO_OP, index, term)])
    follower.on_message(
        leader.node_id,
        Append(leader.incarnation, follower.incarnation, leader.term + 8, 1 << 40, *before, follower.commit_index, 0, entries),
    )
    assert isinstance(follower.failed, InvariantError)
    assert f"sends entry {index} of term {term}; committed here is term {leader.term}" in str(follower.failed)


@both
def test_blank_formation(defended: bool) -> None:
    """Two of three disks are lost while the third node is down: their owners must not found a second cluster."""
    world = world_with("blank_formation", True)
    commit(world, world.elect(), b"acknowledged")
    for host in world.hosts.values():
        host.crash()
    world.config = RaftConfig(defences=Defences() if defended else Defences.without("blank_formation"))
    for name in ("n2", "n3"):
        world.hosts[name].disk = Disk()
        world.hosts[name].start()
    world.run(5)
    assert (world.leader is None) == defended


@both
def test_boot_silence(defended: bool) -> None:
    """A follower acknowledges an append, restarts and is asked for its vote while the leader's lease still depends on it.

    Dissertation, 4.2.3 and 6.4.1.
    """
    world = world_with("boot_silence", defended, also_off=("introduced_first",), lease_reads=True)
    leader = world.elect()
    commit(world, leader, b"a")
    follower, candidate = (n for n in world.nodes if n is not leader)
    votes: list[Message] = []

    def watch(source: str, target: str, message: Message) -> bool:
        if isinstance(message, VoteReply):
            votes.append(message)
        return leader.node_id in (source, target)

    world.run_until(lambda: leader.lease_valid())
    world.drop = watch
    host = world.hosts[follower.node_id]
    host.crash()
    restarted = host.start()
    world.run(0.02)
    assert leader.lease_valid()
    last = candidate.last_index, candidate.term_at(candidate.last_index) or 0
    request = Vote(candidate.incarnation, restarted.incarnation, candidate.term + 1, *last, False)
    restarted.on_message(candidate.node_id, request)
    restarted.tick()
    world.run(0.02)
    assert leader.lease_valid()
    assert bool(votes) == (not defended)


@both
def test_lease_drift(defended: bool) -> None:
    """On a clock that is 5 % faster than the leader's, the minimum election time ends after 286 ms. So the lease must be over at
    290 ms.

    Dissertation, 6.4.1.
    """
    world = world_with("lease_drift", defended, lease_reads=True, clock_drift_max=0.05)
    leader = world.elect()
    world.run_until(lambda: leader.lease_valid())
    world.isolate(leader.node_id)
    acknowledged_at = leader.replication.quorum_acknowledged_at()
    world.time = acknowledged_at + 0.265
    assert leader.lease_valid()
    world.time = acknowledged_at + 0.290
    assert leader.lease_valid() == (not defended)


@both
def test_stickiness(defended: bool) -> None:
    """A vote request of the next term reaches a follower that has contact with the leader (dissertation, 4.2.3)."""
    world = world_with("stickiness", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    term = leader.term
    follower, candidate = (n for n in world.nodes if n is not leader)
    last = candidate.last_index, candidate.term_at(candidate.last_index) or 0
    follower.on_message(candidate.node_id, Vote(candidate.incarnation, follower.incarnation, term + 1, *last, False))
    world.run(0.2)
    assert (leader.role == "leader" and leader.term == term) == defended


@both
def test_transfer_ends_lease(defended: bool) -> None:
    """The election of a transfer overrides stickiness, on which the lease depends. The old leader receives no message of it."""
    world = world_with("transfer_ends_lease", defended, lease_reads=True)
    leader = world.elect()
    commit(world, leader, b"a")
    world.run_until(lambda: leader.lease_valid())
    target = next(n for n in world.nodes if n is not leader)
    world.drop = lambda source, destination, message: destination == leader.node_id
    leader.transfer_leadership(target.node_id, lambda is_done: None)
    world.run_until(lambda: target.role == "leader")
    assert leader.lease_valid() == (not defended)


@both
def test_digest_check(defended: bool) -> None:
    """A state that changed by itself (memory, a defect of the state machine) is detected, and its node stops serving."""
    world = world_with("digest_check", defended)
    leader = world.elect()
    commit(world, leader, b"a")
    wrong = next(h for h in world.hosts.values() if h.node is not leader)
    world.run_until(lambda: wrong.machine.commands == [b"a"])
    wrong.machine.commands[0] = b"b"
    world.run(10)
    assert wrong.node is not None
    assert wrong.node.stopped == defended


@both
def test_acknowledged_check(defended: bool) -> None:
    """A follower whose disk dropped synced data would help to elect a leader that lacks committed entries."""
    world = world_with("acknowledged_check", defended, also_off=("regressions",))
    leader = world.elect()
    liar = next(h for h in world.hosts.values() if h.node is not leader)
    commit(world, leader, b"a")
    world.run(0.5)
    liar.disk.lie = True
    commit(world, leader, b"b")
    world.run(0.5)
    liar.crash()
    liar.disk.lie = False
    liar.start()
    world.run(2)
    assert liar.node is not None
    assert liar.node.stopped == defended


@both
def test_snapshot_before_reset(defended: bool) -> None:
    """Power is lost just when a received snapshot has replaced the log: it must be on disk by then."""
    config: dict[str, Any] = {"compact_entries": 30, "compact_margin_entries": 5, "entry_bytes_max": 1, "segment_bytes": 500}
    world = world_with("snapshot_before_reset", defended, **config)
    leader = world.elect()
    commit(world, leader, b"first")
    lagging = next(h for h in world.hosts.values() if h.node is not leader)
    world.isolate(lagging.name)
    for number in range(100):
        commit(world, leader, b"%d" % number)
    world.run_until(lambda: leader.snapshots.current is not None)
    restored: list[int] = []
    world.observer.restored = restored.append  # type: ignore[method-assign,assignment]  # of this world alone
    world.heal()
    world.run_until(lambda: restored)
    disk = lagging.disk
    disk.sync([name for name in disk.list_names() if name.startswith("log-")], False)
    lagging.crash()
    if defended:
        assert lagging.start().applied_index >= restored[0]
    else:
        with pytest.raises(CorruptionError, match="snapshot"):
            lagging.start()


@pytest.mark.parametrize("is_vacant", [True, False], ids=["vacant", "occupied"])
def test_a_pre_vote_of_a_new_disk_does_not_count(is_vacant: bool) -> None:
    """One of three nodes has a new disk, and the leader is lost before it promotes this disk. The new disk grants a pre-vote, but
    has no place. With its pre-vote the third node would raise its term again and again, and could not win."""
    world = World()
    world.start_all()
    leader = world.elect()
    commit(world, leader, b"a")
    third, lost = (node for node in world.nodes if node is not leader)
    host, granted = world.hosts[lost.node_id], list[Message]()
    host.crash()

    def drop(source: str, target: str, message: Message) -> bool:
        if source == lost.node_id and isinstance(message, PreVoteReply) and message.granted:
            granted.append(message)
        return lost.node_id in (source, target) and leader.node_id in (source, target)

    world.drop = drop
    if is_vacant:
        leader.core.propose(pack_join(lost.node_id, VACANT))
        leader.tick()
        world.run_until(lambda: third.configuration.latest[lost.node_id] == VACANT)
    host.disk = Disk()
    host.start()
    world.run(0.5)
    world.hosts[leader.node_id].crash()
    term = third.term
    world.run_until(lambda: len(granted) > 2)
    world.run(0.1)
    assert (third.term, third.role) == (term, "follower")


def test_an_observer_does_not_replace_the_disk_of_the_leader() -> None:
    """A voter is cut off and the leader's disk is slow. The observer and the other voter have the entry. They are not a majority
    of the voters, so the entry waits for the leader's disk."""
    world = World()
    world.start_all()
    leader = world.elect()
    added: list[Outcome] = []
    leader.change_member(MemberChange("add", "n4", ("host-n4", 9_000), observer=True), added.append)
    world.run_until(lambda: added)
    world.new_host("n4").start()
    world.run_until(lambda: leader.member_table["n4"].incarnation)
    world.run_until(lambda: leader.followers.progress["n4"].match == leader.last_index)
    voter, away = (name for name in world.names if name != leader.node_id)
    world.isolate(away)
    world.run(0.1)
    world.hosts[leader.node_id].sync_delay = 0.5
    outcome = world.propose(leader.node_id, b"X")
    leader.tick()
    world.run_until(lambda: all(leader.followers.progress[n].match == leader.last_index for n in (voter, "n4")))
    world.run(0.1)
    assert (leader.durable_index, leader.commit_index) == (leader.last_index - 1,) * 2
    assert not outcome
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Committed)
    assert leader.durable_index >= outcome[0].log_index
