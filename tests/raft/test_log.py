"""The write-ahead log: every cut and every flipped bit of small logs, segments, resets, syncs that report success without
writing, speed of opening."""

import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from replicated_namesrv.raft.entry_log import CUT, ENTRY, MARK, RESET, TERM, Log
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.raft_errors import CorruptionError, InvariantError
from replicated_namesrv.simulation.disk import SimulatedDisk
from tests.support.raft_world import Disk, Inode

State = tuple[list[tuple[bytes, int, int]], int, str | None]


def state(log: Log) -> State:
    return [log[i] for i in range(len(log))], log.getCurrentTerm(), log.getVotedForNodeId()  # type: ignore[misc]  # the items are entries


def small_log(segment_bytes: int = 16 << 20) -> tuple[Disk, list[tuple[int, State]]]:
    """A disk with a log of every kind of record, and the states it went through: (total bytes when synced, state)."""
    disk = Disk()
    log = Log(disk, segment_bytes)
    states = [(total(disk), state(log))]

    def synced() -> None:
        log.sync_now()
        while log.dirty:
            log.sync_now()
        states.append((total(disk), state(log)))

    log.add(b"\x01", 1, 0)
    synced()
    log.setCurrentTerm(1, "n2")
    synced()
    for index in range(2, 6):
        log.add(b"\x00\x00" + b"x" * index, index, 1)
    log.setRaftCommitIndex(3)
    synced()
    log.deleteEntriesFrom(4)
    log.setCurrentTerm(2, None)
    log.add(b"\x00\x00other", 5, 2)
    synced()
    log.mark()
    synced()
    return disk, states


def total(disk: Disk) -> int:
    return sum(len(i.data) for name, i in disk.files.items())


def copy_of(disk: Disk) -> Disk:
    copy = Disk()
    copy.files = {name: Inode(bytes(inode.data)) for name, inode in disk.files.items()}
    return copy


@pytest.mark.parametrize("segment_bytes", [16 << 20, 100])
def test_cut_at_every_offset_opens_with_a_prefix(segment_bytes: int) -> None:
    """Any part of the end of the log may survive a power loss. The log then opens with a state that it had, not older than the
    last sync within the part that survived.
    """
    disk, states = small_log(segment_bytes)
    names = disk.list_names()
    assert (len(names) > 1) == (segment_bytes == 100)
    before = 0
    for position, name in enumerate(names):
        for size in range(len(disk.files[name].data)):
            cut = copy_of(disk)
            del cut.files[name].data[size:]
            for later in names[position + 1 :]:
                del cut.files[later]
            opened = Log(cut, segment_bytes)
            known = [s for at, s in states if at <= before + size]
            if known:
                entries, term, vote = known[-1]
                assert opened.getCurrentTerm() >= term
                assert opened.getCurrentTerm() > term or opened.getVotedForNodeId() in (vote, "n2")
                if len(opened) < len(entries):
                    assert opened.getCurrentTerm() >= 1
                    assert state(opened)[0] == entries[: len(opened)]
            again = Log(copy_of(cut), segment_bytes)
            assert state(again) == state(opened)
            opened.add(b"\x00\x00more", opened.last_index + 1, 9)
            opened.sync_now()
            assert state(Log(cut, segment_bytes)) == state(opened)
        before += len(disk.files[name].data)


@pytest.mark.parametrize("segment_bytes", [16 << 20, 100])
def test_every_flipped_bit_is_refused_or_harmless(segment_bytes: int) -> None:
    """Damage to synced data is refused with file and offset. The log ends with a mark, so only damage to that mark itself
    looks like a torn tail, and then nothing is lost."""
    disk, states = small_log(segment_bytes)
    whole = state(Log(copy_of(disk), segment_bytes))
    assert whole == states[-1][1]
    refused = harmless = 0
    messages = set()
    for name in disk.list_names():
        for offset in range(len(disk.files[name].data)):
            for bit in (0, 3, 7):
                damaged = copy_of(disk)
                damaged.files[name].data[offset] ^= 1 << bit
                try:
                    opened = Log(damaged, segment_bytes)
                except CorruptionError as error:
                    refused += 1
                    messages.add(f"{name in str(error)} {'offset' in str(error)}")
                else:
                    harmless += 1
                    assert state(opened) == whole
    assert messages == {"True True"}
    assert refused > 8 * harmless > 0


def test_records_that_were_never_synced_may_be_torn_anywhere() -> None:
    """Pages of an unsynced batch reach the disk in any order, so a hole in the batch is not damage."""
    disk, _ = small_log()
    log = Log(disk)
    synced = state(log)
    name = disk.list_names()[-1]
    start = len(disk.files[name].data)
    for index in range(log.last_index + 1, log.last_index + 6):
        log.add(b"\x00\x00" + b"y" * 50, index, 3)
    log.begin_sync()
    for offset in range(start, len(disk.files[name].data)):
        torn = copy_of(disk)
        torn.files[name].data[offset] ^= 0xFF
        opened = Log(torn)
        assert opened.cut_records == 1
        assert state(opened)[0][: len(synced[0])] == synced[0]


def test_missing_segment_is_refused_without_a_snapshot_of_what_it_held() -> None:
    """The log treats segments before a gap as deleted ones that reappeared. Then a snapshot must replace them. If there is none,
    the file can be put back."""
    disk, _ = small_log(100)
    whole = state(Log(copy_of(disk), 100))
    for name in disk.list_names()[1:-1]:
        damaged = copy_of(disk)
        missing = damaged.files.pop(name)
        log = Log(damaged, 100)
        assert log.first_number > 1, "a node that has no snapshot refuses such a log"
        if len(log) == 0 or log.first_index > 2:
            with pytest.raises(CorruptionError, match="newest readable snapshot ends at 1"):
                log.align((0, 0), (1, 0))
        damaged.files[name] = missing
        assert state(Log(damaged, 100)) == whole


def test_deleted_segments_that_come_back_are_deleted_again() -> None:
    """A power loss may bring back any of the segments whose deletion was not synced, not only the newest of them."""
    disk, states = small_log(100)
    names = disk.list_names()
    damaged = copy_of(disk)
    del damaged.files[names[1]]
    log = Log(damaged, 100)
    (entries, term, vote) = states[-1][1]
    assert (log.getCurrentTerm(), log.getVotedForNodeId()) == (term, vote)
    assert state(log)[0] == entries[-len(log) :]
    assert names[0] in damaged.list_names()
    snapshot_ends_at = log.first_index - 1
    log.align((snapshot_ends_at - 1, 1), (snapshot_ends_at, 1))
    assert names[0] not in damaged.list_names()
    assert state(log)[0][2:] == entries[-len(log) + 2 :]


def test_a_cut_whose_entries_were_in_deleted_segments() -> None:
    disk = Disk()
    log = Log(disk, 100)
    log.add(b"\x01", 1, 0)
    for index in range(2, 8):
        log.add(b"\x00\x00" + b"x" * 40, index, 1)
        log.sync_now()
    log.deleteEntriesFrom(5)
    for index in range(6, 12):
        log.add(b"\x00\x00" + b"y" * 40, index, 2)
        log.sync_now()
    log.mark()
    while log.dirty:
        log.sync_now()
    expected = state(log)
    for kept in range(1, len(disk.list_names())):
        left = copy_of(disk)
        for name in disk.list_names()[:kept]:
            del left.files[name]
        again = state(Log(left, 100))
        assert again[0] == expected[0][len(expected[0]) - len(again[0]) :]
        assert again[1:] == expected[1:]


def test_another_format_version_is_refused() -> None:
    disk, _ = small_log()
    data = disk.files[disk.list_names()[0]].data
    data[8:12] = struct.pack("<I", 9)
    data[20:24] = struct.pack("<I", crc32(bytes(data[:20])))
    with pytest.raises(CorruptionError, match="version 9"):
        Log(disk)


def test_reset_replaces_everything_once_durable() -> None:
    disk, _ = small_log(100)
    log = Log(disk, 100)
    log.clear()
    log.add(b"ignored", 99, 4)
    log.add(b"ignored", 100, 4)
    log.release(100)
    assert len(disk.list_names()) > 2
    log.sync_now()
    log.add(b"\x00\x00after", 101, 4)
    while log.dirty:
        log.sync_now()
    log.release(100)
    assert len(disk.list_names()) <= 2
    opened = Log(disk, 100)
    opened.align((99, 4), (100, 4))
    assert (opened.first_index, opened.base_index, opened.last_index) == (99, 100, 101)


def test_segments_are_released_up_to_the_snapshot() -> None:
    disk = Disk()
    log = Log(disk, 200)
    for index in range(1, 50):
        log.add(b"\x00\x00" + b"z" * 20, index, 1)
        log.sync_now()
    segments = len(disk.list_names())
    log.release(25)
    left = len(disk.list_names())
    assert 2 < left < segments
    opened = Log(disk, 200)
    opened.align((24, 1), (25, 1))
    assert (opened.first_index, opened.base_index, opened.last_index) == (24, 25, 49)
    with pytest.raises(CorruptionError, match="newest readable snapshot"):
        Log(disk, 200).align((2, 1), (3, 1))


def test_the_vote_outlives_the_segment_in_which_it_was_written() -> None:
    """A node that forgot its vote could vote twice in one term (Raft, section 5.2)."""
    disk = Disk()
    log = Log(disk, 200)
    log.setCurrentTerm(7, "n2")
    log.sync_now()
    voted_in = disk.list_names()
    for index in range(1, 50):
        log.add(b"\x00\x00" + b"z" * 20, index, 7)
        log.sync_now()
    log.release(45)
    assert not set(voted_in) & set(disk.list_names())
    opened = Log(disk, 200)
    opened.align((44, 7), (45, 7))
    assert (opened.getCurrentTerm(), opened.getVotedForNodeId()) == (7, "n2")


def test_cut_of_a_committed_entry_is_refused() -> None:
    disk, _ = small_log()
    log = Log(disk)
    with pytest.raises(InvariantError, match="committed entry 3"):
        log.deleteEntriesFrom(2)


def test_acknowledged_only_when_synced() -> None:
    """A cut while a sync is in progress must not let the cut entries count as durable."""
    log = Log(Disk())
    log.add(b"\x01", 1, 0)
    log.add(b"\x00\x00a", 2, 1)
    assert log.durable_index == 0
    log.begin_sync()
    log.add(b"\x00\x00b", 3, 1)
    log.deleteEntriesFrom(1)
    log.add(b"\x00\x00c", 2, 2)
    log.complete_sync()
    assert log.durable_index == 1
    log.sync_now()
    assert log.durable_index == 2


@pytest.mark.slow
def test_a_million_entries_open_within_five_seconds(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    log = Log(storage)
    for index in range(1, 1_000_001):
        log.add(b"\x00\x00" + b"%032d" % index, index, 1)
        if index % 20_000 == 0:
            log.sync_now()
    storage.close()
    started = time.process_time()
    opened = Log(FileStorage(tmp_path))
    assert time.process_time() - started < 5
    assert opened.last_index == 1_000_000


@pytest.mark.parametrize("segment_bytes", [16 << 20, 100])
@pytest.mark.parametrize("defended", [True, False], ids=["with", "without"])
def test_what_a_failed_sync_left_in_memory_becomes_durable(segment_bytes: int, defended: bool) -> None:
    """A sync fails and the process stops. The next process reads what was written, continues, and its syncs succeed. Then the
    power fails. Without a copy of the tail in a new file, that process has acknowledged records that never reached the disk."""
    harmed = 0
    for seed in range(30):
        disk = SimulatedDisk(Random(seed))
        log = Log(disk, segment_bytes, defended)
        for index in range(1, 4):
            log.add(b"\x00\x00synced", index, 1)
            log.sync_now()
        log.add(b"\x00\x00failed", 4, 1)
        disk.failing = True
        with pytest.raises(OSError, match="input/output"):
            log.sync_now()
        disk.failing = False
        disk.drop_pages()
        log = Log(disk, segment_bytes, defended)
        log.add(b"\x00\x00later", log.last_index + 1, 1)
        while log.dirty:
            log.sync_now()
        acknowledged = state(log)
        disk.lose_power()
        try:
            harmed += state(Log(disk, segment_bytes, defended)) != acknowledged
        except CorruptionError:
            harmed += 1
    assert bool(harmed) == (not defended)


@pytest.mark.parametrize("cut_at", range(1, 9))
def test_power_fails_while_the_tail_is_copied(cut_at: int) -> None:
    """The power may fail at any step of the copy and may keep any part of it. The log opens again with everything that had been
    synced."""
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        log = Log(disk, 100)
        for index in range(1, 4):
            log.add(b"\x00\x00synced", index, 1)
            log.sync_now()
        log.add(b"\x00\x00loose", 4, 1)
        log.begin_sync()
        steps = iter(range(1, cut_at))

        def step(call: Callable[..., None]) -> Callable[..., None]:
            def run(*arguments: object) -> None:
                if next(steps, None) is None:  # noqa: B023 - called within this turn of the loop
                    raise EOFError("the power fails")
                call(*arguments)

            return run

        for name in ("append", "sync", "rename", "remove"):
            setattr(disk, name, step(getattr(disk, name)))
        with contextlib.suppress(EOFError):
            Log(disk, 100)
        for name in ("append", "sync", "rename", "remove"):
            delattr(disk, name)
        disk.lose_power()
        opened = Log(disk, 100)
        assert opened.last_index in (3, 4)
        assert [opened.term_at(index) for index in (1, 2, 3)] == [1, 1, 1]
        assert opened.durable_index == opened.last_index


def test_a_cut_of_entries_in_a_deleted_segment() -> None:
    """After a reset, earlier segments may be deleted. The segment of the reset may then begin with a cut of entries that are
    gone, which is ignored."""
    disk = Disk()
    log = Log(disk, 300)
    index = 0
    while len(disk.list_names()) < 2:
        index += 1
        log.add(b"\x00\x00" + b"z" * 20, index, 1)
        log.sync_now()
    log.deleteEntriesFrom(index - 2)
    log.clear()
    log.add(b"", 99, 2)
    log.add(b"", 100, 2)
    log.sync_now()
    log.add(b"\x00\x00after", 101, 2)
    log.sync_now()
    log.release(0)
    assert len(disk.list_names()) == 1
    assert Log(disk, 300).last_index == 101


def test_new_directories_are_synced_in_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss must not take away a directory whose files were synced: all parents are synced, too, also those that something
    else created, or a process that was killed before it synced them."""
    synced: list[int] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    expected = [path.stat().st_ino for path in (tmp_path.parent, tmp_path)]
    FileStorage(tmp_path / "a" / "b").close()
    expected += [(tmp_path / "a").stat().st_ino]
    assert synced[-3:] == expected
    synced.clear()
    FileStorage(tmp_path / "a" / "b").close()
    assert synced[-3:] == expected, "parents that exist are synced, too: their creator may have ended before it synced them"


@pytest.mark.parametrize("kind", [ENTRY, CUT, TERM, RESET, MARK])
def test_a_record_with_a_right_checksum_and_no_meaning_is_corruption(kind: int) -> None:
    """Found by fuzzing: the start ended with a struct.error or a UnicodeDecodeError that named no file."""
    disk = Disk()
    log = Log(disk)
    log._write(kind, b"\xff" * 9)
    log.sync_now()
    with pytest.raises(CorruptionError, match=r"log-\d+: offset \d+: record \d+ cannot be decoded"):
        Log(disk)


@pytest.mark.parametrize("kept", [10, 24, 30, 60])
def test_a_segment_with_a_torn_start_does_not_lose_the_vote(kept: int) -> None:
    """A power loss tears a new segment in its first record. The node continues, and a snapshot replaces the earlier segment."""
    disk = Disk()
    log = Log(disk, 100)
    log.setCurrentTerm(7, "n2")
    log.add(b"\x01", 1, 7)
    log.sync_now()
    log.add(b"\x00\x00a", 2, 7)
    log.sync_now()
    newest = disk.list_names()[-1]
    assert len(disk.list_names()) == 2
    del disk.files[newest].data[kept:]
    log = Log(disk, 1000, must_exist=True)
    for index in range(log.last_index + 1, 8):
        log.add(b"\x00\x00b", index, 7)
    log.setRaftCommitIndex(7)
    log.sync_now()
    log.mark()
    log.sync_now()
    log.release(7)
    opened = Log(disk, 1000, must_exist=True)
    opened.align((6, 7), (7, 7))
    assert (opened.getCurrentTerm(), opened.getVotedForNodeId()) == (7, "n2")
