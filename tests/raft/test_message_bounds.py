"""Every number of every message at its bounds: the node runs on, and the cluster keeps a leader and commits."""

import re
from typing import get_type_hints

import pytest

from replicated_namesrv.raft import message_bounds
from replicated_namesrv.raft.interfaces import Committed, Observer
from replicated_namesrv.raft.message_bounds import KINDS, NUMBER_MAX, TERM_STEP_MAX, check_numbers
from replicated_namesrv.raft.payloads import NO_OP, pack_entries
from replicated_namesrv.raft.raft_errors import CorruptionError, MalformedError
from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    HigherTerm,
    Message,
    PreVote,
    SnapshotChunk,
    Term,
    Vote,
)
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.extreme_messages import OF_LEADERS, Facts, at_bounds, contradicts, plausible
from tests.support.raft_world import World

YEAR_OF_ELECTIONS = 365 * 86_400 * 1_000 // 150


class Recorder(Observer):
    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []

    def refused(self, peer: str, reason: str) -> None:
        self.refusals.append((peer, reason))


def elected() -> tuple[World, Recorder]:
    world, recorder = World(), Recorder()
    world.observer = recorder
    world.start_all()
    world.elect()
    return world, recorder


def facts(sender: RaftNode, receiver: RaftNode) -> Facts:
    return Facts(
        sender.incarnation,
        receiver.incarnation,
        receiver.term,
        receiver.last_index,
        receiver.term_at(receiver.last_index) or 0,
        receiver.applied_index,
        dict(receiver.founders),
        sender.membership.process,
        receiver.membership.process,
        receiver.state_digest(),
    )


def commits(world: World) -> None:
    """A node proposes until its command is committed; every node runs."""
    number = len(world.hosts["n1"].machine.commands)

    def is_committed() -> bool:
        outcomes = world.propose("n1", b"command %d" % number, 1_000)
        world.run_until(lambda: outcomes)
        return isinstance(outcomes[0], Committed)

    world.run_until(is_committed, 60)
    for node in world.nodes:
        assert node.failed is None


@pytest.mark.parametrize("to", ["leader", "follower"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_number_at_a_bound_neither_stops_a_node_nor_the_cluster(kind: type[Message], to: str) -> None:
    """Messages that only leaders send come from the leader. Accepted values near a bound may cause an election."""
    world, recorder = elected()
    receivers, tried = 0, 0
    while True:
        leader = world.elect()
        first, second = (node for node in world.nodes if node is not leader)
        sender, receiver = (first, leader) if to == "leader" else (leader if kind in OF_LEADERS else first, second)
        if kind in OF_LEADERS and to == "leader":
            return  # would come from a second leader of this term: not the subject of this test
        known = facts(sender, receiver)
        messages = [m for m in at_bounds(plausible(kind, known), receiver.term) if not contradicts(m, known)]
        if tried >= len(messages):
            break
        message = messages[tried]
        tried += 1
        before, term = len(recorder.refusals), receiver.term
        receiver.on_message(sender.node_id, message)
        receiver.tick()
        assert receiver.failed is None, message
        if is_beyond(message, term):
            assert receiver.term == term
            assert recorder.refusals[before][0] == sender.node_id
            receivers += 1
        if tried % 4 == 0:
            commits(world)
    commits(world)
    assert receivers or not any(hint == Term for hint in get_type_hints(kind, include_extras=True).values())


def is_beyond(message: Message, own_term: int) -> bool:
    hints = get_type_hints(type(message), include_extras=True)
    return any(hint == Term and getattr(message, name) > own_term + TERM_STEP_MAX for name, hint in hints.items())


def test_a_term_that_no_election_can_have_reached_is_refused_logged_and_counted() -> None:
    world, recorder = elected()
    leader = world.elect()
    follower = next(node for node in world.nodes if node is not leader)
    leader.on_message(follower.node_id, HigherTerm(follower.incarnation, leader.incarnation, 2**64 - 2))
    assert world.leader is leader
    assert leader.refusals == {"term": 1, "message": 0}
    ((peer, reason),) = recorder.refusals
    assert peer == follower.node_id
    assert f"message of {peer} dropped: HigherTerm.term=18446744073709551614 is beyond what elections can reach" in reason
    assert leader.notes[-1] == reason


def test_a_node_that_was_cut_off_for_a_year_is_accepted() -> None:
    world, _ = elected()
    leader = world.elect()
    follower = next(node for node in world.nodes if node is not leader)
    term = leader.term + YEAR_OF_ELECTIONS
    assert term < leader.term + TERM_STEP_MAX / 4
    leader.on_message(follower.node_id, HigherTerm(follower.incarnation, leader.incarnation, term))
    assert leader.term == term
    world.elect()
    commits(world)


def test_a_node_that_was_driven_away_by_several_steps_comes_back() -> None:
    """The other nodes have a leader. They raise their term by one step after ten election times of such messages; a single
    message has no effect."""
    world, _ = elected()
    leader = world.elect()
    away, other = (node for node in world.nodes if node is not leader)
    before = leader.term
    for _ in range(3):
        away.on_message(other.node_id, HigherTerm(other.incarnation, away.incarnation, away.term + TERM_STEP_MAX))
    leader.on_message(away.node_id, HigherTerm(away.incarnation, leader.incarnation, away.term))
    assert leader.term == before
    world.run_until(lambda: len({node.term for node in world.nodes}) == 1 and world.leader is not None, 60)
    assert world.elect().term > before + 3 * TERM_STEP_MAX - 1
    commits(world)


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_node_that_was_down_while_terms_were_raised_follows_them(restarted: bool) -> None:
    """The terms of the others rose by three steps. If their processes are new to this node, it refuses introductions."""
    world, _ = elected()
    away = next(host for host in world.hosts.values() if host.node is not world.leader)
    away.crash()
    first, second = world.nodes
    for _ in range(3):
        for receiver, sender in ((first, second), (second, first)):
            term = receiver.term + TERM_STEP_MAX
            receiver.on_message(sender.node_id, HigherTerm(sender.incarnation, receiver.incarnation, term))
            receiver.tick()
    world.run(1)
    if restarted:
        for host in world.hosts.values():
            if host is not away:
                host.crash()
                host.start()
    leader = world.elect()
    assert leader.term > 3 * TERM_STEP_MAX
    node = away.start()
    world.run_until(lambda: node.applied_index == world.elect().applied_index, 20)
    assert any("beyond what elections can reach" in note and "Leave all data directories" in note for note in node.notes)
    commits(world)


def test_a_new_disk_joins_a_cluster_of_any_term() -> None:
    world, _ = elected()
    lost = next(node for node in world.nodes if node is not world.leader).node_id
    for _ in range(3):  # 3 * 2^30 terms, more than one step
        leader = world.elect()
        peer = next(node for node in world.nodes if node not in (leader, world.hosts[lost].node))
        leader.on_message(peer.node_id, HigherTerm(peer.incarnation, leader.incarnation, leader.term + TERM_STEP_MAX))
        world.run(1)
    world.hosts[lost].crash()
    world.hosts[lost].disk = type(world.hosts[lost].disk)()
    node = world.hosts[lost].start()
    world.run_until(lambda: node.term > 2 * TERM_STEP_MAX)
    commits(world)


def test_a_node_with_a_forged_term_on_its_disk_says_so() -> None:
    world, _ = elected()
    name = next(node for node in world.nodes if node is not world.leader).node_id
    host = world.hosts[name]
    assert host.node is not None
    host.node.log.setCurrentTerm(2**64 - 2, None)
    host.node.tick()
    world.run(0.1)
    host.crash(power=False)
    with pytest.raises(CorruptionError, match=r"the term on this disk is 18446744073709551614.*move this data directory away"):
        host.start()
    host.node = None


APPEND = Append(1, 2, 5, 1, 10, 4, 10, 10, b"")
CHUNK = SnapshotChunk(1, 2, 5, 1, 20, 5, 7, 100, 100, b"")
BOUNDS_ROWS: dict[str, list[tuple[Message, Message]]] = {
    "B1": [(AppendReply(1, 2, 5, NUMBER_MAX, True, 1), AppendReply(1, 2, 5, NUMBER_MAX + 1, True, 1))],
    "B2": [(HigherTerm(1, 2, 5 + TERM_STEP_MAX), HigherTerm(1, 2, 6 + TERM_STEP_MAX))],
    "B3": [
        (APPEND._replace(previous_term=5), APPEND._replace(previous_term=6)),
        (Vote(1, 2, 6, 1, 5, False), Vote(1, 2, 6, 1, 6, False)),
        (PreVote(1, 2, 6, 1, 5), PreVote(1, 2, 6, 1, 6)),
        (CHUNK, CHUNK._replace(snapshot_term=6)),
    ],
    "B4": [(APPEND, APPEND._replace(acknowledged=11))],
    "B5": [(CHUNK, CHUNK._replace(offset=101))],
}
"""For each row: pairs of a message that a node in term 5 accepts and one that it drops."""


@pytest.mark.parametrize("row", BOUNDS_ROWS)
def test_rows_of_the_table(row: str) -> None:
    for taken, dropped in BOUNDS_ROWS[row]:
        check_numbers(taken, 5)
        with pytest.raises(MalformedError):
            check_numbers(dropped, 5)


def test_every_row_has_a_test() -> None:
    assert re.findall(r"^\| (B\d) +\|", message_bounds.__doc__ or "", flags=re.MULTILINE) == list(BOUNDS_ROWS)


def test_a_new_disk_takes_any_term() -> None:
    check_numbers(HigherTerm(1, 2, NUMBER_MAX), 0)


def test_entries_of_a_later_term_are_dropped() -> None:
    """With such an entry a node could win elections that it must lose."""
    world, _ = elected()
    leader = world.elect()
    follower = next(node for node in world.nodes if node is not leader)
    last = follower.last_index
    entries = pack_entries([(NO_OP, last + 1, 2**64 - 2)])
    head = leader.incarnation, follower.incarnation, leader.term, 0, last, follower.term_at(last) or 0, last, last
    follower.on_message(leader.node_id, Append(*head, entries))
    assert follower.last_index == last
    assert follower.counters["malformed"] == 1
    commits(world)
