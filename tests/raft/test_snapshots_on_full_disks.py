"""A disk without room for a snapshot: the write, the sync or the rename fails. The node gives the snapshot up and continues."""

import dataclasses
import errno
from collections.abc import Sequence

import pytest

from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import SnapshotChunk
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.snapshot_taking import RETRY_SECONDS
from replicated_namesrv.raft.snapshots import RECEIVING, WRITING
from tests.support.raft_world import Disk, Host, Inode, World

STEPS = ["append", "sync", "rename"]
CONFIG = RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1, segment_bytes=400, snapshot_slice_bytes=64)


class FullDisk(Disk):
    """A disk on which one step fails for snapshots only."""

    def __init__(self, step: str, number: int = errno.ENOSPC) -> None:
        super().__init__()
        self.step, self.number = step, number
        self.is_full = True
        self.failures = 0

    def _check(self, step: str, name: str) -> None:
        if self.is_full and step == self.step and name in (WRITING, RECEIVING):
            self.failures += 1
            raise OSError(self.number, "no room")

    def append(self, name: str, data: bytes) -> None:
        self._check("append", name)
        super().append(name, data)

    def sync(self, names: Sequence[str], directory: bool) -> None:
        for name in names:
            self._check("sync", name)
        super().sync(names, directory)

    def rename(self, old: str, new: str) -> None:
        self._check("rename", old)
        super().rename(old, new)


def write(world: World, name: str, count: int) -> list[bytes]:
    commands = [b"%f-%d" % (world.time, number) for number in range(count)]
    for command in commands:
        outcome = world.propose(name, command)
        world.run_until(lambda: outcome)  # noqa: B023 - called within this turn of the loop
        assert isinstance(outcome[0], Committed)
    return commands


def lagging_behind_a_snapshot(config: RaftConfig, disk: Disk) -> tuple[World, RaftNode, Host, list[bytes]]:
    """A world, its leader, a host that is down and has to receive a snapshot, and the commands. ``disk`` gets the host's
    files."""
    world = World(3, config)
    world.start_all()
    leader = world.elect()
    lagging = next(host for host in world.hosts.values() if host.node is not leader)
    lagging.crash()
    commands = write(world, leader.node_id, 60)
    world.run_until(lambda: leader.taking.taken >= 2)
    disk.files, disk.durable = lagging.disk.files, lagging.disk.durable
    lagging.disk = disk
    return world, leader, lagging, commands


def snapshots(disk: Disk) -> list[str]:
    return [name for name in disk.list_names() if name.startswith("snapshot-")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
@pytest.mark.parametrize("step", STEPS)
def test_the_old_snapshot_stays_and_another_is_taken_later(step: str, number: int) -> None:
    world = World(1, CONFIG)
    host = world.hosts["n1"]
    host.disk = disk = FullDisk(step, number)
    disk.is_full = False
    world.start_all()
    node = world.elect()
    commands = write(world, "n1", 30)
    world.run_until(lambda: node.taking.taken)
    taken, kept = node.taking.taken, snapshots(disk)
    disk.is_full = True
    commands += write(world, "n1", 30)
    world.run_until(lambda: node.counters["unwritable_snapshots"])
    assert not node.stopped
    assert not node.taking.running
    assert snapshots(disk) == kept
    assert WRITING not in disk.files
    assert "a snapshot could not be written" in str(node.status()["snapshot_problem"])
    commands += write(world, "n1", 30)
    assert (node.taking.taken, disk.failures) == (taken, 1), "another one is tried later, not at once"
    disk.is_full = False
    world.run(RETRY_SECONDS + 1)
    commands += write(world, "n1", 30)
    world.run_until(lambda: node.taking.taken > taken)
    assert node.status()["snapshot_problem"] is None
    host.crash()
    host.start()
    world.elect()
    assert host.machine.commands == commands


@pytest.mark.parametrize("step", STEPS)
def test_a_received_snapshot_is_fetched_again(step: str) -> None:
    disk = FullDisk(step)
    world, _, lagging, commands = lagging_behind_a_snapshot(CONFIG, disk)
    node = lagging.start()
    world.run_until(lambda: node.counters["unwritable_snapshots"] > 1)
    assert not node.stopped
    assert node.receiving.installed == 0
    assert any("received snapshot dropped" in note for note in node.notes)
    disk.is_full = False
    world.run_until(lambda: lagging.machine.commands == commands)
    assert node.receiving.installed == 1


@pytest.mark.parametrize("part", ["another error of the snapshot", "the log", "the directory"])
def test_other_errors_still_stop_the_node(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the directory's sync concerns the names of log segments, too, and no later sync would report it."""
    world = World(1, CONFIG)
    host = world.hosts["n1"]
    host.disk = disk = FullDisk("sync", errno.EIO)
    disk.is_full = part == "another error of the snapshot"
    world.start_all()
    node = world.elect()
    sync = disk.sync

    def failing(names: Sequence[str], directory: bool) -> None:
        if (part == "the log" and names) or (part == "the directory" and directory and snapshots(disk)):
            raise OSError(errno.ENOSPC, "no room")
        sync(names, directory)

    monkeypatch.setattr(disk, "sync", failing)
    for _ in range(40):
        world.propose("n1", b"x")
    world.run_until(lambda: node.stopped)
    assert isinstance(node.failed, OSError)


class ForgetfulDisk(Disk):
    """A disk on which the first sync of a received snapshot finds no room, late. As on Linux, the bytes written until then are
    lost, and only this sync reports it: later ones succeed, and reads return the bytes while they are in the cache."""

    lost: Inode | None = None

    def sync(self, names: Sequence[str], directory: bool) -> None:
        if RECEIVING in names and RECEIVING in self.files and self.lost is None:
            self.lost = self.files[RECEIVING]
            raise OSError(errno.ENOSPC, "no room")
        super().sync(names, directory)
        if self.lost is not None:
            self.lost.synced = b""


def test_a_sync_for_an_earlier_transfer_may_report_the_loss_of_the_present_file() -> None:
    """The disk is slow. While the sync of a received snapshot waits, the leader sends a newer snapshot. The sync then opens the
    file of the newer one, because the name is the same, and fails."""
    disk = ForgetfulDisk()
    config = dataclasses.replace(CONFIG, transfer_log_entries_max=10)
    world, leader, lagging, commands = lagging_behind_a_snapshot(config, disk)
    node = lagging.start()
    sent = world.keep(SnapshotChunk, target=lagging.name)
    world.run_until(lambda: sent and node.memory()["pending_syncs"][0] == 0)
    lagging.sync_delay = 3.0
    world.run_until(lambda: node.memory()["pending_syncs"][0])
    commands += write(world, leader.node_id, 20)
    world.run_until(lambda: len({message.snapshot_index for message in sent}) > 1)
    assert disk.lost is None, "the first sync is still waiting"
    world.run_until(lambda: disk.lost is not None)
    lagging.sync_delay = 0.001
    world.run_until(lambda: lagging.machine.commands == commands)
    assert node.receiving.installed == 1
    world.run(1)
    lagging.crash()
    lagging.start()
    world.run_until(lambda: lagging.machine.commands == commands)
