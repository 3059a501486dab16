"""Snapshot files: written to a temporary file, synced, read back and renamed; the last two are kept.

A file is a header, blocks of ``length u32, checksum u32, bytes`` and an empty block whose checksum covers all before it. The
first block is the metadata (JSON), the others are the chunks of the state machine. Files travel to other nodes as they are.

A block of a chunk is written with at most ``BLOCK_BYTES_MAX`` bytes: a longer chunk becomes several blocks. Earlier versions
wrote a block for each chunk, however long. So the reader accepts blocks of any length up to the file's. It reads a block that is
longer than ``BLOCK_BYTES_MAX`` twice: first to check it, then to return it in parts of this size. So it never has more than one
part in memory.
"""

import errno
import json
import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple
from zlib import crc32

from replicated_namesrv.raft.interfaces import Storage
from replicated_namesrv.raft.members import RaftMember, members_of, rows_of
from replicated_namesrv.raft.raft_errors import CorruptionError

HEADER = struct.Struct("<8sI")
BLOCK = struct.Struct("<II")
MAGIC = b"RAFTSNAP"
VERSION = 2
"""The newest format that this program reads. Format 2 has members in its metadata; a file without them has format 1."""
BLOCK_BYTES_MAX = 1 << 20
METADATA_BYTES_MAX = 1 << 30
"""Maximum size of the first block, which is read as a whole. Sessions with the maximum of open numbers take 1.25 MiB per node,
and nodes that were removed keep theirs, so the maximum is far above what can be written."""
PREFIX = "snapshot-"
WRITING = "snapshot.writing"
RECEIVING = "snapshot.receiving"


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, or the quota, has no room. A snapshot is then given up, and tried again later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Metadata(NamedTuple):
    cluster: str
    previous: tuple[int, int]
    """(index, term) of the entry before ``last``."""
    last: tuple[int, int]
    voters: dict[str, int]
    sessions: list[list[object]]
    members: dict[str, RaftMember] | None = None
    """All members of the cluster; None if the members are the founders."""

    def encode(self) -> bytes:
        raw = self._asdict()
        members = raw.pop("members")
        return json.dumps(raw if members is None else {**raw, "members": rows_of(members)}, separators=(",", ":")).encode()

    @property
    def version(self) -> int:
        """The format of a file with this metadata."""
        return 1 if self.members is None else 2

    @classmethod
    def decode(cls, data: bytes) -> "Metadata":
        """Raises ValueError for input that ``encode`` did not create."""
        try:
            raw = json.loads(data)
            pairs = [tuple(int(n) for n in raw[key]) for key in ("previous", "last")]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError("an entry is (index, term)")
            voters = {str(name): int(incarnation) for name, incarnation in raw["voters"].items()}
            members = members_of(raw["members"]) if "members" in raw else None
            first, last = (pairs[0][0], pairs[0][1]), (pairs[1][0], pairs[1][1])
            return cls(str(raw["cluster"]), first, last, voters, list(raw["sessions"]), members)
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"malformed snapshot metadata: {error!r}") from None


class UnknownFormatError(ValueError):
    """The file was written by a newer version; it is not damaged."""


class Snapshot(NamedTuple):
    """A complete file."""

    name: str
    size: int
    checksum: int
    metadata: Metadata
    version: int = 1
    """Format of the file."""

    @property
    def last_index(self) -> int:
        return self.metadata.last[0]


class Writer:
    """Writes a snapshot file block by block. It is durable only after the caller has synced ``WRITING`` and, after ``publish``,
    the directory.
    """

    def __init__(self, storage: Storage, metadata: Metadata) -> None:
        self._storage = storage
        self.metadata = metadata
        self.checksum, self.size = 0, 0
        storage.remove(WRITING)
        self._append(HEADER.pack(MAGIC, metadata.version))
        self._block(metadata.encode())

    def _append(self, data: bytes) -> None:
        self._storage.append(WRITING, data)
        self.checksum = crc32(data, self.checksum)
        self.size += len(data)

    def _block(self, data: bytes) -> None:
        self._append(BLOCK.pack(len(data), crc32(data)) + data)

    def write(self, chunk: bytes) -> None:
        """Append a chunk of the state machine."""
        for start in range(0, len(chunk), BLOCK_BYTES_MAX):
            self._block(chunk[start : start + BLOCK_BYTES_MAX])

    def finish(self) -> None:
        self._storage.append(WRITING, BLOCK.pack(0, self.checksum))
        self.size += BLOCK.size


class Reader:
    """Reads a snapshot file part by part and checks each block. ValueError has the offset of the damage."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._file_bytes = storage.size(name)
        header = storage.read(name, 0, HEADER.size)
        if len(header) < HEADER.size or header[:8] != MAGIC:
            raise ValueError("offset 0: no snapshot header")
        self.version = HEADER.unpack(header)[1]
        if not 1 <= self.version <= VERSION:
            raise UnknownFormatError(f"offset 8: format version {self.version}, this program reads versions up to {VERSION}")
        self.offset, self.checksum = HEADER.size, crc32(header)
        self._left = 0
        """Number of bytes of a checked block that are still to be returned."""
        self._held = b""
        """The bytes of this block, if they are one part, because the check has already read them."""
        metadata = self.next(METADATA_BYTES_MAX)
        if metadata is None:
            raise ValueError(f"offset {self.offset}: no metadata")
        if self._left:
            raise ValueError(f"offset {HEADER.size}: metadata of {len(metadata) + self._left} bytes")
        self.metadata = Metadata.decode(metadata)

    def next(self, bytes_max: int = BLOCK_BYTES_MAX) -> bytes | None:
        """The next block, or its next part of ``bytes_max``; None after the last block, when the whole file has been checked."""
        if not self._left and not self._open_block():
            return None
        part, self._held = self._held, b""
        if not part:
            part = self._storage.read(self._name, self.offset, min(self._left, bytes_max))
        if not part:
            raise ValueError(f"offset {self.offset}: the file ends in the middle")
        self.offset += len(part)
        self._left -= len(part)
        return part

    def _open_block(self) -> bool:
        """Check the block that begins at ``offset`` and move past its head. False: it is the end of the file."""
        head = self._storage.read(self._name, self.offset, BLOCK.size)
        if len(head) < BLOCK.size:
            raise ValueError(f"offset {self.offset}: the file ends in the middle")
        length, checksum = BLOCK.unpack(head)
        start = self.offset + BLOCK.size
        if length == 0:
            if checksum != self.checksum or self._file_bytes != start:
                raise ValueError(f"offset {self.offset}: the checksum of the whole does not match")
            return False
        if start + length > self._file_bytes:
            raise ValueError(f"offset {self.offset}: the file ends in a block of {length} bytes")
        part, found, total = b"", 0, crc32(head, self.checksum)
        for position in range(start, start + length, BLOCK_BYTES_MAX):
            part = self._storage.read(self._name, position, min(BLOCK_BYTES_MAX, start + length - position))
            found, total = crc32(part, found), crc32(part, total)
        if found != checksum:
            raise ValueError(f"offset {self.offset}: damaged block of {length} bytes")
        self.checksum, self.offset, self._left = total, start, length
        self._held = part if len(part) == length else b""
        return True

    def chunks(self) -> Iterator[bytes]:
        """All remaining chunks."""
        while (chunk := self.next()) is not None:
            yield chunk


class SnapshotStore:
    """The snapshot files of one node."""

    def __init__(self, storage: Storage, cluster: str) -> None:
        self._storage, self._cluster = storage, cluster
        self.current: Snapshot | None = None
        self.kept = 2
        """Number of files that are kept: the newest, and one more in case the newest becomes unreadable."""
        self.skipped: list[str] = []
        """Damaged files that were ignored when opening, each with its reason."""
        self._damaged: list[str] = []
        for name in (WRITING, RECEIVING):
            storage.remove(name)

    def names(self) -> list[str]:
        """Complete files, oldest first."""
        return [n for n in self._storage.list_names() if n.startswith(PREFIX)]

    def open_newest(self) -> tuple[Snapshot, Iterator[bytes]] | None:
        """The newest snapshot that can be read to its end, and its chunks, which are read again. Raises CorruptionError if
        there are files but none is readable."""
        names = self.names()
        for name in reversed(names):
            try:
                reader = Reader(self._storage, name)
                for _ in reader.chunks():
                    pass
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno != errno.EIO:  # a sector that cannot be read
                    raise
                self.skipped.append(f"{name}: {error}")
                self._damaged.append(name)
                continue
            self.current = Snapshot(name, reader.offset + BLOCK.size, reader.checksum, reader.metadata, reader.version)
            return self.current, Reader(self._storage, name).chunks()
        if names:
            raise CorruptionError(
                f"no snapshot is readable ({'; '.join(self.skipped)}); move the data directory away and start again: "
                "the node returns without a vote, copies the state from the others and is then promoted"
            )
        return None

    def publish(self, temporary: str, size: int, checksum: int, metadata: Metadata) -> Snapshot:
        """Give a synced file its name. The caller syncs the directory and then calls ``adopt``. That sync must not fail, not even
        on a full disk: the names of log segments may be lost with this one, and no later sync would report it."""
        index, term = metadata.last
        snapshot = Snapshot(f"{PREFIX}{index:020d}-{term:020d}", size, checksum, metadata, metadata.version)
        self._storage.rename(temporary, snapshot.name)
        return snapshot

    def adopt(self, snapshot: Snapshot, in_use: Collection[str] = ()) -> None:
        """The file and its name are durable: use it, and delete what was damaged and all but the last ``kept``.

        ``in_use``: names of files that are being sent to another node. They stay for now, because otherwise their transfers would
        have to start again.
        """
        if self.current is None or snapshot.last_index > self.current.last_index:
            self.current = snapshot
        damaged, self._damaged = self._damaged, []
        for name in damaged:
            if name != snapshot.name:
                self._storage.remove(name)
        for name in self.names()[: -self.kept]:
            if name not in in_use:
                self._storage.remove(name)

    def oldest_index(self) -> int:
        """Index at which the oldest kept snapshot ends. No snapshot needs the log before it."""
        names = self.names()
        return int(names[0][len(PREFIX) :][:20]) if names else 0
