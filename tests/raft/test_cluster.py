"""Clusters in virtual time: founding, elections, proposals, reads, snapshots, lost disks."""

import pytest

from replicated_namesrv.raft.interfaces import Committed, Indeterminate, ReadReady, Rejected
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import IdentityError
from replicated_namesrv.raft.raft_messages import Message, SnapshotChunk
from replicated_namesrv.raft.snapshots import RECEIVING
from tests.support.raft_world import Disk, World


def test_three_nodes_found_elect_and_commit() -> None:
    """Dissertation, 3.4 and 3.5."""
    world = World()
    world.start_all()
    leader = world.elect()
    follower = next(n for n in world.nodes if n is not leader)
    first = world.propose(leader.node_id, b"one")
    second = world.propose(follower.node_id, b"two")
    world.run_until(lambda: first and second)
    assert isinstance(first[0], Committed)
    assert isinstance(second[0], Committed)
    world.run_until(lambda: all(h.machine.commands == [b"one", b"two"] for h in world.hosts.values()))


def test_reads_on_every_node() -> None:
    """Dissertation, 6.4."""
    world = World()
    world.start_all()
    leader = world.elect()
    done = world.propose(leader.node_id, b"x")
    world.run_until(lambda: done)
    for name in world.names:
        read = world.read(name)
        world.run_until(lambda read=read: read)  # type: ignore[misc]  # a default in a lambda
        assert isinstance(read[0], ReadReady)
        assert world.hosts[name].machine.commands == [b"x"]


def test_group_of_one() -> None:
    world = World(1)
    world.start_all()
    world.elect()
    done = world.propose("n1", b"x")
    world.run_until(lambda: done)
    assert isinstance(done[0], Committed)
    world.hosts["n1"].crash()
    world.hosts["n1"].start()
    world.elect()
    assert world.hosts["n1"].machine.commands == [b"x"]


def committed(world: World, name: str, commands: list[bytes]) -> None:
    outcomes = [world.propose(name, command) for command in commands]
    world.run_until(lambda: all(outcomes))
    assert all(isinstance(outcome[0], Committed) for outcome in outcomes), outcomes


def equal_states(world: World) -> bool:
    states = [h.machine.commands for h in world.hosts.values()]
    return all(s == states[0] for s in states) and len({n.applied_index for n in world.nodes}) == 1


def test_power_loss_of_all_keeps_what_was_acknowledged() -> None:
    """Dissertation, 3.8."""
    world = World()
    world.start_all()
    for round_number in range(4):
        committed(world, world.elect().node_id, [b"%d-%d" % (round_number, i) for i in range(20)])
        for host in world.hosts.values():
            host.crash()
        world.start_all()
    world.elect()
    world.run_until(lambda: equal_states(world))
    assert len(world.hosts["n1"].machine.commands) == 80


def test_follower_far_behind_gets_a_snapshot() -> None:
    """Dissertation, 5.1. The log of the leader is compacted twice, and then all nodes restart from snapshots."""
    config = RaftConfig(
        compact_entries=30, compact_margin_entries=5, entry_bytes_max=1, segment_bytes=500, snapshot_slice_bytes=64
    )
    world = World(config=config)
    world.start_all()
    leader = world.elect()
    lagging = next(n.node_id for n in world.nodes if n is not leader)
    committed(world, leader.node_id, [b"a%d" % i for i in range(10)])
    world.isolate(lagging)
    for batch in range(12):
        committed(world, leader.node_id, [b"b%d-%d" % (batch, i) for i in range(10)])
    world.run_until(lambda: leader.taking.taken >= 2)
    world.heal()
    world.run_until(lambda: equal_states(world))
    status = world.hosts[lagging].node.status()  # type: ignore[union-attr]  # the node runs
    assert status["snapshots_installed"] == 1
    for host in world.hosts.values():
        assert len([n for n in host.disk.list_names() if n.startswith("snapshot-")]) <= 2
        host.crash()
    world.start_all()
    committed(world, world.elect().node_id, [b"last"])
    world.run_until(lambda: equal_states(world))
    assert len(world.hosts[lagging].machine.commands) == 131


def test_isolated_leader_steps_down_and_nobody_campaigns_after_the_heal() -> None:
    """Dissertation, 6.2 (a leader without a majority steps down) and 9.6 (pre-vote)."""
    world = World()
    world.start_all()
    old = world.elect()
    world.isolate(old.node_id)
    cut_at = world.time
    world.run_until(lambda: old.role != "leader")
    assert world.time - cut_at < 2 * 0.6
    world.run_until(lambda: world.leader is not None)
    new = world.elect()
    assert new is not old
    term = new.term
    world.heal()
    world.run_until(lambda: old.leader_id == new.node_id)
    world.run(3)
    assert (new.role, new.term) == ("leader", term)


def test_hand_over() -> None:
    """Dissertation, 3.10."""
    world = World()
    world.start_all()
    old = world.elect()
    target = next(n for n in world.nodes if n is not old)
    done: list[bool] = []
    old.transfer_leadership(target.node_id, done.append)
    world.run_until(lambda: done)
    assert done == [True]
    world.run_until(lambda: target.role == "leader")
    committed(world, old.node_id, [b"x"])


def test_hand_over_without_a_name_avoids_a_voter_that_does_not_answer() -> None:
    """The connection of a paused process stays open, and in an idle cluster its log is as long as the others'."""
    world = World()
    world.start_all()
    old = world.elect()
    committed(world, old.node_id, [b"x"])
    world.run_until(lambda: equal_states(world))
    answering, silent = sorted((node for node in world.nodes if node is not old), key=lambda node: node.node_id)
    world.isolate(silent.node_id)
    world.run(2)
    done: list[bool] = []
    old.transfer_leadership(None, done.append)
    world.run_until(lambda: done)
    assert done == [True]
    world.run_until(lambda: answering.role == "leader")


def test_lost_disk_returns_as_learner_and_is_promoted() -> None:
    world = World()
    world.start_all()
    leader = world.elect()
    committed(world, leader.node_id, [b"a", b"b"])
    lost = next(h for h in world.hosts.values() if h.node is not leader)
    lost.crash()
    lost.disk = Disk()
    committed(world, leader.node_id, [b"c"])
    node = lost.start()
    assert node.role == "learner"
    world.run_until(lambda: node.role == "follower")
    assert leader.voters[lost.name] == node.incarnation
    world.run_until(lambda: equal_states(world))
    third = next(h for h in world.hosts.values() if h.node not in (leader, node))
    third.crash()
    committed(world, leader.node_id, [b"d"])


def test_blank_majority_does_not_found_beside_a_member() -> None:
    """Two of three disks are lost while the third node is down: the two must wait for it."""
    world = World()
    world.start_all()
    leader = world.elect()
    committed(world, leader.node_id, [b"a"])
    keeper = world.hosts["n1"]
    for host in world.hosts.values():
        host.crash()
        if host is not keeper:
            host.disk = Disk()
    world.hosts["n2"].start()
    world.hosts["n3"].start()
    world.run(5)
    assert world.leader is None
    keeper.start()
    world.run(5)
    assert world.leader is None
    assert keeper.node is not None
    assert {n.role for n in world.nodes if n is not keeper.node} == {"learner"}


def test_full_disk_stops_the_node_and_acknowledges_nothing() -> None:
    world = World(1)
    world.start_all()
    world.elect()
    committed(world, "n1", [b"a"])
    world.hosts["n1"].disk.fail = OSError(28, "No space left on device")
    outcome = world.propose("n1", b"b")
    world.run_until(lambda: outcome)
    assert isinstance(outcome[0], Indeterminate)
    node = world.hosts["n1"].node
    assert node is not None
    assert node.stopped
    assert isinstance(node.failed, OSError)


def test_other_members_than_the_data_directory_knows() -> None:
    world = World()
    world.start_all()
    world.elect()
    world.hosts["n3"].crash()
    world.names = ["n1", "n3", "n9"]
    with pytest.raises(IdentityError, match=r"n2.*n9"):
        world.hosts["n3"].start()


def test_differing_digest_stops_the_minority() -> None:
    world = World()
    world.start_all()
    leader = world.elect()
    committed(world, leader.node_id, [b"a"])
    wrong = next(h for h in world.hosts.values() if h.node is not leader)
    wrong.machine.commands.append(b"bit flip")
    world.run_until(lambda: wrong.node is not None and wrong.node.stopped)
    assert "differs" in str(wrong.node.failed)  # type: ignore[union-attr]  # the node runs
    world.run_until(lambda: leader.writes_refused is None)
    committed(world, leader.node_id, [b"b"])


def test_without_a_majority_of_digests_writes_are_refused() -> None:
    world = World()
    world.start_all()
    leader = world.elect()
    committed(world, leader.node_id, [b"a"])
    world.run_until(lambda: equal_states(world))
    others = [h for h in world.hosts.values() if h.node is not leader]
    others[0].crash()
    others[1].machine.commands.append(b"bit flip")
    world.run_until(lambda: all(n.writes_refused for n in world.nodes))
    outcome = world.propose(leader.node_id, b"b")
    assert isinstance(outcome[0], Rejected)
    others[0].start()
    world.run_until(lambda: others[1].node is not None and others[1].node.stopped)
    world.run_until(lambda: leader.writes_refused is None)
    committed(world, leader.node_id, [b"b"])


def test_a_disk_that_lied_is_found_out() -> None:
    """A follower whose syncs did not happen loses power. The leader remembers what the follower acknowledged, and the follower
    rejoins."""
    world = World()
    world.start_all()
    leader = world.elect()
    liar = next(h for h in world.hosts.values() if h.node is not leader)
    committed(world, leader.node_id, [b"a"])
    world.run_until(lambda: equal_states(world))
    world.run(0.2)
    liar.disk.lie = True
    committed(world, leader.node_id, [b"b"])
    world.run_until(lambda: equal_states(world))
    liar.crash()
    liar.disk.lie = False
    node = liar.start()
    before = node.incarnation
    world.run_until(lambda: leader.voters[liar.name] not in (0, before))
    assert node.counters["rejoined"] == 1
    assert leader.voters[liar.name] == node.incarnation
    assert any("this disk was rolled back" in note for note in node.notes)
    world.run_until(lambda: equal_states(world))


def test_a_snapshot_transfer_goes_on_where_it_was_cut() -> None:
    config = RaftConfig(compact_entries=30, compact_margin_entries=5, entry_bytes_max=1, snapshot_slice_bytes=64)
    world = World(config=config)
    world.start_all()
    leader = world.elect()
    lagging = next(n.node_id for n in world.nodes if n is not leader)
    world.isolate(lagging)
    for batch in range(10):
        committed(world, leader.node_id, [b"%d-%d" % (batch, i) for i in range(20)])
    assert leader.snapshots.current is not None
    offsets: list[int] = []

    def watch(source: str, target: str, message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            offsets.append(message.offset)
        return False

    world.drop = watch
    world.heal()
    disk = world.hosts[lagging].disk
    world.run_until(lambda: RECEIVING in disk.list_names() and disk.size(RECEIVING) > 1_000)
    world.disconnect(leader.node_id, lagging)
    arrived, cut_at = disk.size(RECEIVING), len(offsets)
    world.run(0.1)
    world.connect(leader.node_id, lagging)
    world.run_until(lambda: equal_states(world))
    assert min(offsets[cut_at + 1 :]) >= arrived, "the first chunk finds out how much had arrived"
