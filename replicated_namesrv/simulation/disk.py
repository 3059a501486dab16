"""A simulated disk that keeps what was synced and a random part of the rest.

Visible data (the page cache) and durable data are separate. A killed process loses no visible data. After a power loss each file
keeps its durable bytes and a random part of later writes, whose tail may be torn into zeros or noise. The directory keeps the
names of its last sync and some later changes. A disk can also be full or slow, it can hang or fail to sync, and its content can
be replaced by an earlier image.

A failed sync behaves as on Linux: its data counts as clean from then on. The data can still be read, and the next sync of the
file reports success without writing it. It is lost at a power loss, or when its pages are dropped from memory. In the
simulator, pages are dropped only while no process has the files open.
"""

import errno
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from replicated_namesrv.simulation.world import MS, exponential

FULL_FAILURES = 0.2
"""Share of the syncs and renames that fail on a full disk. Appends always do."""


class _File:
    """The bytes of one file, without its name."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.clean = 0
        """Length of the prefix of ``data`` that a sync skips: it counts as written, and is on the disk except for ``lost``."""
        self.lost: list[tuple[int, int]] = []
        """Ranges (from, to) that exist only in memory after a failed sync."""

    def synced(self, length: int) -> None:
        self.clean = max(self.clean, length)

    def sync_failed(self, length: int) -> None:
        if length > self.clean:
            self.lost.append((self.clean, length))
            self.clean = length

    def read_again(self, rng: Random) -> None:
        """Drop the pages: from now on reads return what is on the disk. Of each range that failed to sync, none, a part or all is
        there."""
        for start, end in self.lost:
            start = rng.choice((start, rng.randint(start, end)))
            if end == len(self.data) and rng.random() < 0.5:
                del self.data[start:]
            else:
                self.data[start:end] = rng.choice((bytes(end - start), rng.randbytes(end - start)))
        self.lost.clear()
        self.clean = min(self.clean, len(self.data))

    def lose_power(self, rng: Random) -> None:
        """Keep the durable bytes and a random part of the rest."""
        loose = len(self.data) - self.clean
        if loose > 0:
            kept = rng.choice((0, loose, rng.randint(0, loose)))
            del self.data[self.clean + kept :]
            if kept and rng.random() < 0.5:
                torn = rng.randint(1, min(kept, 512))
                self.data[len(self.data) - torn :] = rng.choice((bytes(torn), rng.randbytes(torn)))
        self.clean = len(self.data)
        self.read_again(rng)


class _Renamed(NamedTuple):
    """A change of the directory: ``name`` is now ``file`` (None: removed), and ``old`` is removed."""

    name: str
    file: _File | None
    old: str | None


class SyncRequest(NamedTuple):
    """The data that a sync has to cover: the state when it was requested."""

    files: tuple[tuple[str, _File, int], ...]
    """Each name with its file and the file's length at that time. The production driver opens a file by its name when the sync
    runs. So if another file has the name by then, the sync concerns that file, and a failure loses its data."""
    changes: int
    """Number of changes of the directory that the sync covers."""


class SimulatedDisk:
    """``Storage`` of one machine. It outlives the machine's processes."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._changes: list[_Renamed] = []
        self._changes_gone = 0
        self.mean_ms = 1.0
        """Mean duration of a sync without a fault."""
        self.full = False
        self.failing = False
        self.hung = False
        """While True, no sync completes. The owner of the disk queues the requests that wait."""
        self.slow_ms = 0
        """Longest random delay added to each sync."""
        self.affected: Counter[str] = Counter()
        """Appends, renames and syncs that a fault affected, by its kind: ``full``, ``failing``, ``hung``, ``slow``."""
        self.written = 0
        """Number of bytes appended since the disk was made."""

    # Storage

    def list_names(self) -> list[str]:
        return sorted(self._names)

    def _file(self, name: str) -> _File:
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", name) from None

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        data = self._file(name).data
        return bytes(data[offset:] if size is None else data[offset : offset + size])

    def append(self, name: str, data: bytes) -> None:
        if self.full:
            self.affected["full"] += 1
            written = self._rng.randint(0, len(data) // 2)
            if name in self._names:
                self._names[name].data += data[:written]
            raise OSError(errno.ENOSPC, "no space left on device", name)
        if name not in self._names:
            self._change(_Renamed(name, _File(), None))
        self._names[name].data += data
        self.written += len(data)

    def rename(self, old: str, new: str) -> None:
        if self.full and self._rng.random() < FULL_FAILURES:
            self.affected["full"] += 1
            raise OSError(errno.ENOSPC, "no space left on device", new)
        self._change(_Renamed(new, self._file(old), old))

    def remove(self, name: str) -> None:
        if name in self._names:
            self._change(_Renamed(name, None, None))

    def sync(self, names: Sequence[str], directory: bool) -> None:
        self.end_sync(self.begin_sync(names, directory))

    def close(self) -> None:
        pass

    # Durability

    def begin_sync(self, names: Sequence[str], directory: bool) -> SyncRequest:
        """Note what a sync that starts now must cover. FileNotFoundError if a file is missing."""
        files = tuple((name, self._file(name), len(self._file(name).data)) for name in names)
        return SyncRequest(files, self._changes_gone + len(self._changes) if directory else 0)

    def end_sync(self, request: SyncRequest) -> None:
        """Make durable exactly what ``request`` covers; OSError if the disk fails, or if it is full and needs space only now."""
        if self.failing:
            self.affected["failing"] += 1
            self._fail_sync(request)
            raise OSError(errno.EIO, "input/output error")
        if self.full and request.files and self._rng.random() < FULL_FAILURES:
            self.affected["full"] += 1
            self._fail_sync(request)
            raise OSError(errno.ENOSPC, "no space left on device")
        for name, file, length in request.files:
            if self._names.get(name) is file:
                file.synced(length)
        count = request.changes - self._changes_gone
        if count > 0:
            for change in self._changes[:count]:
                _apply(self._durable_names, change)
            del self._changes[:count]
            self._changes_gone += count

    def _fail_sync(self, request: SyncRequest) -> None:
        """Let ``request`` fail: none of its bytes become durable, and no later sync writes them."""
        for name, file, length in request.files:
            present = self._names.get(name)
            if present is not None:
                present.sync_failed(length if present is file else len(present.data))

    def sync_delay_ns(self) -> int:
        """How long the next sync takes."""
        delay = 0.1 + exponential(self._rng) * self.mean_ms
        if self.slow_ms:
            self.affected["slow"] += 1
            delay += self._rng.random() * self.slow_ms
        return int(min(delay, 5.0 * self.mean_ms + self.slow_ms) * MS)

    def _change(self, change: _Renamed) -> None:
        _apply(self._names, change)
        self._changes.append(change)

    def drop_pages(self) -> None:
        """Drop from memory, for some files, the data that no later sync would write. Call this while no process has the files
        open."""
        for name in sorted(self._names):
            file = self._names[name]
            if file.lost and self._rng.random() < 0.5:
                file.read_again(self._rng)

    def lose_power(self) -> None:
        """Drop a random part of the data that was not durable."""
        rng = self._rng
        names = dict(self._durable_names)
        share, in_order = rng.choice((0.0, 0.5, 1.0)), rng.random() < 0.5
        for change in self._changes:
            if rng.random() < share:
                _apply(names, change)
            elif in_order:
                break
        self._names = names
        self._durable_names = dict(names)
        self._changes_gone += len(self._changes)
        self._changes.clear()
        seen: set[int] = set()
        for name in sorted(names):
            file = names[name]
            if id(file) not in seen:
                seen.add(id(file))
                file.lose_power(rng)

    def image(self) -> dict[str, bytes]:
        """The visible content, as a snapshot of the volume has it."""
        return {name: bytes(file.data) for name, file in self._names.items()}

    def restore(self, image: dict[str, bytes]) -> None:
        """Another disk with the content of ``image``, all durable."""
        self.wipe()
        for name, data in image.items():
            file = _File()
            file.data, file.clean = bytearray(data), len(data)
            self._names[name] = self._durable_names[name] = file

    def wipe(self) -> None:
        """A new, empty disk."""
        self._names, self._durable_names = {}, {}
        self._changes_gone += len(self._changes)
        self._changes.clear()


def _apply(names: dict[str, _File], change: _Renamed) -> None:
    if change.old is not None and names.get(change.old) is change.file:
        del names[change.old]
    if change.file is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.file
