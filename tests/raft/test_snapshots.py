"""Snapshot files: every cut and every flipped bit is detected. The previous file is used as long as the log begins at or before
its end."""

import errno
import random
from collections.abc import Iterator
from zlib import crc32

import pytest

from replicated_namesrv.raft.interfaces import Committed
from replicated_namesrv.raft.members import MEMBERS_MAX
from replicated_namesrv.raft.message_bounds import NUMBER_MAX
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import CorruptionError
from replicated_namesrv.raft.sessions import Origin, Session, Sessions
from replicated_namesrv.raft.snapshot_taking import RETRY_SECONDS
from replicated_namesrv.raft.snapshots import (
    BLOCK,
    BLOCK_BYTES_MAX,
    HEADER,
    MAGIC,
    METADATA_BYTES_MAX,
    WRITING,
    Metadata,
    Reader,
    SnapshotStore,
    Writer,
)
from tests.support.raft_world import Disk, Machine, World

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


def test_the_longest_metadata_can_be_read() -> None:
    """Each node can have ``pending_proposals_max`` undecided numbers, and the metadata also has sessions of removed nodes."""
    disk, sessions, most = Disk(), Sessions(), RaftConfig().pending_proposals_max
    first = NUMBER_MAX - most
    sessions._sessions["n1"] = Session(Origin("n1", NUMBER_MAX, NUMBER_MAX), first, first, range(first + 1, first + most))
    writer = Writer(disk, METADATA._replace(sessions=sessions.dump()))
    writer.finish()
    assert Reader(disk, WRITING).metadata.sessions == sessions.dump()
    assert 8 * MEMBERS_MAX * writer.size < METADATA_BYTES_MAX


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
        world.run_until(lambda: outcome)  # noqa: B023 - called within this turn of the loop
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
        ("identity", "not a complete data directory"),
        ("snapshot-", "no snapshot"),
    ):
        host.disk.files = {n: f for n, f in whole.items() if not n.startswith(missing)}
        with pytest.raises(CorruptionError, match=message):
            host.start()
    host.disk.files = {**whole, "identity": type(whole["identity"])(bytes(whole["identity"].data).replace(b"n1", b"n2"))}
    with pytest.raises(CorruptionError, match="checksum"):
        host.start()


@pytest.mark.parametrize("kept", [0, 23, 24, 30, 40])
@pytest.mark.parametrize("garbage", [b"", bytes(100), b"garbage"], ids=["cut", "zeros", "garbage"])
def test_a_log_without_a_readable_segment_is_refused_and_stays(kept: int, garbage: bytes) -> None:
    """The log of a member was synced before it became one, so this is no torn tail. A log that begins anew would forget
    everything after the newest snapshot."""
    host = world_with_two_snapshots().hosts["n1"]
    logs = [name for name in host.disk.files if name.startswith("log-")]
    damaged = [bytes(host.disk.files[name].data[:kept]) + garbage for name in logs]
    for name, data in zip(logs, damaged, strict=True):
        host.disk.files[name] = type(host.disk.files[name])(data)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="its start is damaged"):
            host.start()
    assert [bytes(host.disk.files[name].data) for name in logs] == damaged


def old_file(chunks: list[bytes]) -> Disk:
    """A file as earlier versions wrote it, with one block of any length for each chunk."""
    disk = Disk()
    data = HEADER.pack(MAGIC, 1)
    for block in (METADATA.encode(), *chunks):
        data += BLOCK.pack(len(block), crc32(block)) + block
    disk.append("snapshot-1", data + BLOCK.pack(0, crc32(data)))
    return disk


def test_an_older_snapshot_is_used_if_a_sector_of_the_newest_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = old_file([b"state"])
    disk.append("snapshot-2", bytes(disk.files["snapshot-1"].data))
    read = disk.read

    def failing(name: str, offset: int = 0, size: int | None = None) -> bytes:
        if name == "snapshot-2" and offset:
            raise OSError(errno.EIO, "Input/output error")
        return read(name, offset, size)

    monkeypatch.setattr(disk, "read", failing)
    store = SnapshotStore(disk, "c")
    opened = store.open_newest()
    assert opened is not None
    assert opened[0].name == "snapshot-1"
    assert "Input/output error" in store.skipped[0]


@pytest.mark.parametrize("size", [BLOCK_BYTES_MAX - 1, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1, 5 * BLOCK_BYTES_MAX, (64 << 20) + 1])
def test_blocks_that_earlier_versions_wrote_are_read_in_parts(size: int) -> None:
    """Earlier versions themselves could not read blocks above 64 MiB."""
    disk = old_file([b"before", b"\n".ljust(size, b"x"), b"after"])
    parts = list(Reader(disk, "snapshot-1").chunks())
    assert max(map(len, parts)) <= BLOCK_BYTES_MAX
    assert b"".join(parts) == b"before" + b"\n".ljust(size, b"x") + b"after"
    opened = SnapshotStore(disk, "c").open_newest()
    assert opened is not None
    assert sum(map(len, opened[1])) == size + 11


def test_a_large_block_is_checked_before_its_first_byte_is_given_out() -> None:
    disk = old_file([bytes(3 * BLOCK_BYTES_MAX)])
    disk.files["snapshot-1"].data[-BLOCK.size - 1] ^= 1
    with pytest.raises(ValueError, match="damaged block"):
        Reader(disk, "snapshot-1").next()


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES_MAX - 1, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1, 3 * BLOCK_BYTES_MAX])
def test_no_block_that_is_written_is_longer_than_any_version_reads(size: int) -> None:
    disk, chunk = Disk(), random.Random(size).randbytes(size)
    writer = Writer(disk, METADATA)
    writer.write(chunk)
    writer.finish()
    data, offset, read = bytes(disk.files[WRITING].data), HEADER.size, []
    while (length := BLOCK.unpack_from(data, offset)[0]) != 0:
        assert length <= BLOCK_BYTES_MAX
        read.append(data[offset + BLOCK.size : offset + BLOCK.size + length])
        offset += BLOCK.size + length
    assert offset + BLOCK.size == len(data) == writer.size
    assert b"".join(read[1:]) == chunk
    assert b"".join(Reader(disk, WRITING).chunks()) == chunk


class Forgetful(Disk):
    """A disk that writes some bytes of a snapshot wrongly."""

    spoils = True

    def append(self, name: str, data: bytes) -> None:
        super().append(name, data)
        if name == WRITING and self.spoils:
            self.files[name].data[-1] ^= 1


def filled(world: World, count: int) -> list[bytes]:
    commands = [b"%d" % number for number in range(count)]
    for command in commands:
        outcome = world.propose("n1", command)
        world.run_until(lambda: outcome)  # noqa: B023 - called within this turn of the loop
        assert isinstance(outcome[0], Committed)
    return commands


def test_nothing_is_given_up_for_a_snapshot_that_cannot_be_read_back() -> None:
    world = World(1, RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1, segment_bytes=400))
    host = world.hosts["n1"]
    host.disk = disk = Forgetful()
    world.start_all()
    node = world.elect()
    commands = filled(world, 60)
    world.run_until(lambda: node.counters["unreadable_snapshots"])
    assert node.taking.taken == 0
    assert node.log.base_index == 0
    assert not snapshots(disk)
    assert not node.taking.running
    assert WRITING not in disk.files
    assert any("could not be read back" in note for note in node.notes)
    assert "could not be read back" in str(node.status()["snapshot_problem"])
    assert node.counters["unreadable_snapshots"] == 1, "another one is tried later, not at once"
    host.crash()
    host.disk.files = {name: type(inode)(bytes(inode.data)) for name, inode in disk.files.items()}
    node = host.start()
    world.elect()
    assert host.machine.commands == commands, "the log has everything"
    disk.spoils = False
    world.run(RETRY_SECONDS + 1)
    commands += filled(world, 30)
    world.run_until(lambda: node.taking.taken)
    assert node.status()["snapshot_problem"] is None
    assert node.log.base_index > 0
    host.crash()
    host.start()
    world.elect()
    assert host.machine.commands == commands


def test_the_older_snapshot_stays_until_the_newer_one_was_read_back() -> None:
    world = world_with_two_snapshots()
    host = world.hosts["n1"]
    before = snapshots(host.disk)
    spoiling = Forgetful()
    spoiling.files, spoiling.durable = host.disk.files, host.disk.durable
    host.disk = spoiling
    node = host.start()
    world.elect()
    filled(world, 40)
    world.run_until(lambda: node.counters["unreadable_snapshots"])
    assert snapshots(spoiling) == before


def test_a_snapshot_is_read_back_a_block_a_tick() -> None:
    """No step reads more than one block, however large the snapshot is."""
    world = World(1, RaftConfig(compact_entries=20, compact_margin_entries=3, entry_bytes_max=1))
    reads: list[int] = []

    class Counting(Disk):
        def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
            found = super().read(name, offset, size)
            if name == WRITING:
                reads.append(len(found))
            return found

    host = world.hosts["n1"]
    host.disk = Counting()
    node = host.start(Large())
    world.elect()
    steps: list[int] = []
    tick = node.taking.tick

    def counted() -> None:
        reads.clear()
        tick()
        steps.append(sum(reads))

    node.taking.tick = counted  # type: ignore[method-assign]  # of this node alone
    filled(world, 30)
    world.run_until(lambda: node.taking.taken)
    assert sum(steps) > 3 * BLOCK_BYTES_MAX
    assert max(steps) <= BLOCK_BYTES_MAX + 2 * BLOCK.size


class Large(Machine):
    """Yields chunks that are far larger than a block may be."""

    def snapshot(self) -> Iterator[bytes]:
        return iter([bytes(3 * BLOCK_BYTES_MAX)])


@pytest.mark.parametrize("last", ["1e999", "[" * 100_000])
def test_metadata_that_no_node_writes_is_a_value_error(last: str) -> None:
    """A received file can have such metadata although its checksum is correct."""
    with pytest.raises(ValueError):  # noqa: PT011 - any text
        Metadata.decode(b'{"cluster":"c","previous":[1,1],"last":[2,%s],"voters":{},"sessions":[]}' % last.encode())
