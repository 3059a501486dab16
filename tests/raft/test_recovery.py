"""Conclusions of a node from the files that it finds when it opens."""

from itertools import pairwise

import pytest

from replicated_namesrv.raft.entry_log import Log
from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.payloads import PROPOSALS
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import CorruptionError
from replicated_namesrv.raft.raft_messages import AppendReply, SnapshotAck
from replicated_namesrv.raft.snapshots import WRITING, Metadata, SnapshotStore, Writer
from tests.support.raft_world import Disk, World


def log_reset_at(index: int) -> Disk:
    """A disk with a log that a snapshot up to ``index`` has replaced; that snapshot is not there."""
    disk = Disk()
    log = Log(disk)
    log.add(b"\x01", 1, 0)
    log.setCurrentTerm(1, "n2")
    log.clear()
    log.add(b"\x01", index - 1, 1)
    log.add(b"\x01", index, 1)
    log.setRaftCommitIndex(index)
    log.add(b"\x00\x00x", index + 1, 1)
    log.sync_now()
    return disk


@pytest.mark.parametrize("behind", [1, 2])
def test_entries_known_by_index_and_term_alone_are_never_applied(behind: int) -> None:
    """The newest snapshot is unreadable, and the one before it ends just before the entries that the newest one replaced."""
    log = Log(log_reset_at(100))
    last = 100 - behind
    with pytest.raises(CorruptionError, match="needs a snapshot that ends at 100 or later"):
        log.align((last - 1, 1), (last, 1))


def test_the_right_snapshot_fits() -> None:
    log = Log(log_reset_at(100))
    log.align((99, 1), (100, 1))
    assert (log.first_index, log.base_index, log.last_index) == (99, 100, 101)


def test_a_committed_entry_that_a_snapshot_contradicts_is_not_thrown_away() -> None:
    """Snapshot and log of one directory cannot disagree about a committed entry: one of them is foreign."""
    disk = Disk()
    log = Log(disk)
    log.add(b"\x01", 1, 0)
    log.setCurrentTerm(1, "n2")
    for index in range(2, 11):
        log.add(b"\x00\x00x", index, 1)
    log.setRaftCommitIndex(9)
    log.sync_now()
    with pytest.raises(CorruptionError, match="ends at 5 in term 2"):
        Log(disk).align((4, 2), (5, 2))


def write_snapshot(store: SnapshotStore, disk: Disk, index: int) -> str:
    writer = Writer(disk, Metadata("test", (index - 1, 1), (index, 1), {}, []))
    writer.write(b"state")
    writer.finish()
    snapshot = store.publish(WRITING, writer.size, writer.checksum, writer.metadata)
    store.adopt(snapshot)
    return snapshot.name


def test_a_damaged_snapshot_does_not_count_as_one_of_the_two_kept() -> None:
    """Otherwise the log would be dropped up to an unreadable snapshot."""
    disk = Disk()
    store = SnapshotStore(disk, "test")
    first, second = write_snapshot(store, disk, 10), write_snapshot(store, disk, 20)
    disk.files[second].data[40] ^= 1
    reopened = SnapshotStore(disk, "test")
    opened = reopened.open_newest()
    assert opened is not None
    assert opened[0].name == first
    third = write_snapshot(reopened, disk, 30)
    assert reopened.names() == [first, third]
    assert reopened.oldest_index() == 10


def test_a_snapshot_on_its_way_is_not_deleted() -> None:
    """A slow transfer must be able to end although the leader takes more snapshots meanwhile."""
    config = RaftConfig(compact_entries=12, compact_margin_entries=2, entry_bytes_max=1, snapshot_slice_bytes=64)
    world = World(config=config)
    world.start_all()
    leader = world.elect()
    lagging = next(n for n in world.nodes if n is not leader)

    def commit(count: int) -> None:
        for number in range(count):
            done = world.propose(leader.node_id, b"%0100d" % number)
            world.run_until(lambda done=done: done)  # type: ignore[misc]  # a default in a lambda

    world.isolate(lagging.node_id)
    commit(30)
    world.drop = lambda source, target, message: isinstance(message, SnapshotAck)
    world.heal()
    progress = leader.followers.progress[lagging.node_id]
    world.run_until(lambda: progress.snapshot is not None)
    sent = progress.snapshot
    assert sent is not None
    before = leader.taking.taken
    commit(60)
    assert leader.taking.taken >= before + 3
    assert progress.snapshot is sent
    assert sent.name in leader.snapshots.names()
    world.drop = lambda source, target, message: False
    world.run_until(lambda: lagging.applied_index == leader.applied_index)
    commit(60)
    world.run(0.2)
    assert len(leader.snapshots.names()) == 2


def test_nothing_applied_since_means_no_other_snapshot() -> None:
    """A log that grows without commits must not cause one snapshot after the other."""
    world = World(config=RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1))
    world.start_all()
    leader = world.elect()
    world.drop = lambda source, target, message: isinstance(message, AppendReply) and message.success
    before = leader.taking.taken
    for number in range(60):
        world.propose(leader.node_id, b"%d" % number)
    world.run(0.25)
    assert leader.role == "leader"
    assert leader.last_index - leader.applied_index >= 60
    assert leader.taking.taken <= before + 1


def test_a_backlog_of_packed_entries_is_applied_in_short_steps() -> None:
    """After a restart a node has much to apply. Between the steps it must receive and answer messages."""
    world = World(1, RaftConfig(apply_bytes_max=10_000, entry_bytes_max=5_000, compact_bytes=1 << 30))
    world.start_all()
    world.elect()
    asked = [world.propose("n1", b"%0100d" % number) for number in range(3_000)]
    world.run_until(lambda: all(asked))
    world.run(0.5)
    host = world.hosts["n1"]
    host.crash()
    node = host.start()
    steps = [0]
    while node.applied_index < node.commit_index:
        world.step()
        steps.append(len(host.machine.commands))
    assert host.machine.commands[-1] == b"%0100d" % 2_999
    assert max(after - before for before, after in pairwise(steps)) <= 200


def test_an_entry_that_cannot_be_decoded_stops_the_node() -> None:
    """The entry is committed. If this node skipped it or repeated the attempt for ever, its state would differ from that of the
    others."""
    world = World(1)
    world.start_all()
    leader = world.elect()
    done = world.propose("n1", b"x")
    world.run_until(lambda: done)
    assert isinstance(done[0], Committed)
    index = leader.core.propose(PROPOSALS + b"\xff")
    world.run_until(lambda: leader.stopped)
    assert isinstance(leader.failed, CorruptionError)
    assert f"entry {index}" in str(leader.failed)
