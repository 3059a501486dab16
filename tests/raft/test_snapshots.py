"""Snapshot files: every cut and flipped bit is noticed; the one before takes over as long as the log reaches back to it."""

import pytest

from replicated_namesrv.raft.config import RaftConfig
from replicated_namesrv.raft.interfaces import Committed, CorruptionError
from replicated_namesrv.raft.snapshots import BLOCK, WRITING, Metadata, Reader, SnapshotStore, Writer
from tests.support.raft_world import Disk, World

METADATA = Metadata("c", (6, 1), (7, 2), {"n1": 5}, [["n1", 5, 1, 0, 3, [4]]])
CHUNKS = [b"first", b"second" * 10, b"x"]


def small_snapshot(disk: Disk) -> str:
    store = SnapshotStore(disk, "c")
    writer = Writer(disk, METADATA)
    for chunk in CHUNKS:
        writer.write(chunk)
    writer.finish()
    return store.publish(WRITING, writer.size, writer.checksum, METADATA).name


def test_what_was_written_is_read() -> None:
    disk = Disk()
    name = small_snapshot(disk)
    reader = Reader(disk, name)
    assert reader.metadata == METADATA
    assert list(reader.chunks()) == CHUNKS
    assert disk.size(name) == reader.offset + BLOCK.size


def test_every_cut_and_every_flip_is_noticed() -> None:
    disk = Disk()
    data = disk.files[small_snapshot(disk)].data
    damaged = [bytes(data[:size]) for size in range(len(data))] + [bytes(data) + b"x"]
    damaged += [bytes(data[:i]) + bytes([data[i] ^ bit]) + bytes(data[i + 1 :]) for i in range(len(data)) for bit in (1, 128)]
    for content in damaged:
        broken = Disk()
        broken.append("snapshot-1", content)
        with pytest.raises(ValueError, match="offset"):
            list(Reader(broken, "snapshot-1").chunks())


def world_with_two_snapshots() -> World:
    config = RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1, segment_bytes=400)
    world = World(1, config)
    world.start_all()
    node = world.elect()
    for number in range(60):
        outcome = world.propose("n1", b"%d" % number)
        world.run_until(lambda: outcome)  # noqa: B023
        assert isinstance(outcome[0], Committed)
    assert node.taking.taken >= 2
    assert len(snapshots(world.hosts["n1"].disk)) == 2
    world.hosts["n1"].crash()
    return world


def snapshots(disk: Disk) -> list[str]:
    return [n for n in disk.list_names() if n.startswith("snapshot-")]


def test_a_damaged_newest_snapshot_is_passed_over() -> None:
    world = world_with_two_snapshots()
    host = world.hosts["n1"]
    host.disk.files[snapshots(host.disk)[-1]].data[50] ^= 1
    node = host.start()
    assert any("damaged snapshot" in note for note in node.notes)
    world.elect()
    assert host.machine.commands == [b"%d" % n for n in range(60)]


def test_two_damaged_snapshots_are_refused() -> None:
    world = world_with_two_snapshots()
    host = world.hosts["n1"]
    for name in snapshots(host.disk):
        host.disk.files[name].data[50] ^= 1
    with pytest.raises(CorruptionError, match="no snapshot is readable"):
        host.start()


def test_missing_files_are_refused() -> None:
    world = world_with_two_snapshots()
    host = world.hosts["n1"]
    whole = dict(host.disk.files)
    for missing, message in (
        ("log-", "its log is missing"),
        ("identity", "no complete data directory"),
        ("snapshot-", "no snapshot"),
    ):
        host.disk.files = {n: f for n, f in whole.items() if not n.startswith(missing)}
        with pytest.raises(CorruptionError, match=message):
            host.start()
    host.disk.files = {**whole, "identity": type(whole["identity"])(bytes(whole["identity"].data).replace(b"n1", b"n2"))}
    with pytest.raises(CorruptionError, match="checksum"):
        host.start()
