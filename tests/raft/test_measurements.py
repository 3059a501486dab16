"""Measurements count what happened: elections and ends of leadership by cause, proposals by outcome, durations, batches."""

from replicated_namesrv.raft.measurements import COMMITTED, NEWER_TERM, NO_MAJORITY, REJECTED, TIMEOUT, TRANSFER, UNKNOWN
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_node import RaftNode
from tests.support.raft_world import World


def elections(world: World, cause: str) -> int:
    return sum(node.context.measurements.elections[cause] for node in world.nodes)


def started() -> tuple[World, RaftNode]:
    world = World()
    world.start_all()
    leader = world.elect()
    world.run_until(lambda: all(node.leader_id == leader.node_id for node in world.nodes))
    world.run(0.1)
    return world, leader


def test_first_leader_is_one_election_and_one_change_of_leader() -> None:
    world, leader = started()
    assert (elections(world, TIMEOUT), elections(world, TRANSFER)) == (leader.term, 0)
    assert [node.context.measurements.leader_changes for node in world.nodes] == [1, 1, 1]
    assert leader.context.measurements.role_since > 0


def test_leader_without_a_majority_steps_down_for_that_cause() -> None:
    world, leader = started()
    world.isolate(leader.node_id)
    world.run_until(lambda: leader.role != "leader")
    assert leader.context.measurements.step_downs == {NEWER_TERM: 0, NO_MAJORITY: 1}
    world.run_until(lambda: world.leader is not None)
    assert elections(world, TIMEOUT) >= 2
    world.heal()
    world.run_until(lambda: leader.leader_id is not None and leader.role == "follower")
    assert leader.context.measurements.leader_changes == 2


def test_transferred_leadership_is_an_election_of_that_cause() -> None:
    world, leader = started()
    before = elections(world, TIMEOUT)
    done: list[bool] = []
    leader.transfer_leadership(None, done.append)
    world.run_until(lambda: done)
    assert done == [True]
    assert (elections(world, TIMEOUT), elections(world, TRANSFER)) == (before, 1)
    assert leader.context.measurements.step_downs == {NEWER_TERM: 1, NO_MAJORITY: 0}


def test_proposals_are_counted_by_outcome_and_commits_are_timed() -> None:
    world, leader = started()
    measured = leader.context.measurements
    outcomes = world.propose(leader.node_id, b"x")
    world.run_until(lambda: outcomes)
    assert measured.proposals == {COMMITTED: 1, REJECTED: 0, UNKNOWN: 0}
    assert sum(measured.commit_seconds.counts) == 1
    assert 2 * world.delay <= measured.commit_seconds.sum < 0.1
    world.propose(leader.node_id, b"x" * (RaftConfig().command_bytes_max + 1))
    assert measured.proposals[REJECTED] == 1
    world.isolate(leader.node_id)
    unknown = world.propose(leader.node_id, b"y", timeout_ms=300)
    world.run_until(lambda: unknown)
    assert measured.proposals == {COMMITTED: 1, REJECTED: 1, UNKNOWN: 1}


def test_each_sync_of_the_log_is_timed_from_its_request() -> None:
    world, leader = started()
    histogram = leader.context.measurements.fsync_seconds
    count, total = sum(histogram.counts), histogram.sum
    outcomes = world.propose(leader.node_id, b"x")
    world.run_until(lambda: outcomes)
    assert sum(histogram.counts) > count
    assert histogram.sum > total


def test_reads_of_one_turn_share_one_round_and_a_follower_counts_as_one() -> None:
    world, leader = started()
    follower = next(node for node in world.nodes if node is not leader)
    of_leader, of_follower = leader.context.measurements.read_batches, follower.context.measurements.read_batches
    before = sum(of_leader.counts), of_leader.sum, sum(of_follower.counts), of_follower.sum
    answers = [world.read(follower.node_id) for _ in range(5)]
    world.run_until(lambda: all(answers))
    assert (sum(of_follower.counts) - before[2], of_follower.sum - before[3]) == (1, 5)
    assert (sum(of_leader.counts) - before[0], of_leader.sum - before[1]) == (1, 1)


def test_a_snapshot_is_timed() -> None:
    world = World(3, RaftConfig(compact_entries=30, compact_margin_entries=5, entry_bytes_max=1))
    world.start_all()
    leader = world.elect()
    outcomes = [world.propose(leader.node_id, b"%d" % number) for number in range(60)]
    world.run_until(lambda: all(outcomes) and leader.taking.taken > 0)
    assert sum(leader.context.measurements.snapshot_seconds.counts) == leader.taking.taken
