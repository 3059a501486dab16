"""Write-ahead log: the entries of one node, its term and its vote, in segment files.

The guarantee: after any crash, the log contains a prefix of its records. This prefix includes every record whose sync was
reported. The argument:

1. All facts are records of one stream (entry, cut, term and vote, reset, mark), so a prefix of the stream is a state that the
   node had. Each record has its number in the stream and a checksum, so a lost, doubled or foreign record is detected.
2. ``begin_sync`` passes everything written so far to the disk in one append; one fsync covers all waiting records (group
   commit). ``durable_index`` and ``durable_number`` increase only when that fsync has been reported.
3. A mark records the number of the last record that had been synced before it. On opening, the log searches the bytes after the
   first bad record for a valid mark that reports this record as synced. If there is none, the record counts as a torn tail that
   was never acknowledged, and the stream is cut there. Otherwise acknowledged data is damaged, and the log refuses to open,
   because a node that forgets what it acknowledged breaks Raft. A mark is also written when writing pauses, so that damage to the
   last batch is recognised, too. If the process crashes before that mark, damage to the last batch looks like a torn tail. A
   member's log was synced before the node became a member. So the log also refuses to open if no segment has a readable record.
4. Records that were readable on opening but are not marked as synced may exist only in memory: after a failed fsync Linux treats
   the pages as clean, and the next fsync succeeds without writing them. So the segments that hold such records are copied to new
   files, which are synced and then take the old names, before any of these records counts as durable.
5. Only whole segments are deleted. Each begins with the term, vote and commit index, so it can be read without earlier ones. A
   segment whose first record is torn is removed on opening, because it lacks these values.

The commit index in a mark is a hint that lets a restarted node apply before it has contact with a leader; it is never ahead of
the entries before the mark.

The list interface at the end (``add``, ``clear``, ``deleteEntriesFrom`` …) is the one PySyncObj expects of a journal.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from replicated_namesrv.raft.interfaces import Storage
from replicated_namesrv.raft.raft_errors import CorruptionError, InvariantError

RECORD = struct.Struct("<2sIIBQ")
"""The head of a record: marker, payload length, checksum of all that follows, type, number in the stream."""
MARKER = b"\xa5\x5a"
CHECKED = struct.Struct("<BQ")
CHECKED_FROM = RECORD.size - CHECKED.size
"""Offset in the head of a record at which the checked bytes begin. The length is the start value of the checksum, so it is
checked, too."""
HEADER = struct.Struct("<8sIQI")
"""The head of a segment: magic, format version, number of the first record, checksum."""
MAGIC = b"RAFTLOG\n"
ASIDE = "log.writing"
"""Name of a segment that is being copied."""
VERSION = 1
INDEX_TERM = struct.Struct("<QQ")
TWO_INDEX_TERMS = struct.Struct("<QQQQ")
NUMBER = struct.Struct("<Q")

ENTRY, CUT, TERM, RESET, MARK = 1, 2, 3, 4, 5

Entry = tuple[bytes, int, int]
"""(payload, index, term), which is the form that PySyncObj uses."""
PLACEHOLDER = b"\x01"
"""Payload of an entry that is known only through a snapshot. It is never sent or applied."""
ENTRIES_READ_MAX = 1 << 30


def segment_name(number: int) -> str:
    return f"log-{number:020d}"


class Segment:
    """One file of the stream."""

    __slots__ = ("first_number", "last_index", "name", "size")

    def __init__(self, name: str, first_number: int, size: int) -> None:
        self.name, self.first_number, self.size = name, first_number, size
        self.last_index = 0
        """Last entry of the log when this segment was closed. A snapshot that covers this entry replaces the segment."""


class _Opened(NamedTuple):
    """A segment that was read on opening."""

    segment: Segment
    data: bytes
    """Bytes up to the end of the last good record."""
    last_number: int
    torn: bool
    """Whether bytes follow the last good record."""


class Log:
    """The log of one node. Opening recovers; writing is buffered until ``begin_sync``.

    Raises CorruptionError if synced data is damaged, InvariantError if a caller would break the log, OSError from the disk.
    """

    def __init__(
        self, storage: Storage, segment_bytes: int = 16 << 20, rewrite_tail: bool = True, must_exist: bool = False
    ) -> None:
        """``rewrite_tail`` False: everything that can be read counts as durable (``Defences.tail_rewrite``). ``must_exist``: the
        node is a member, so its log was synced before. Then it is an error if no segment has a readable record."""
        self._storage = storage
        self._must_exist = must_exist
        self._rewrite_tail = rewrite_tail
        self.segment_bytes = segment_bytes
        """A segment is closed when it reaches this size. Only closed segments can be deleted."""
        self._entries: list[Entry] = []
        self.base_index = 0
        """The payloads of entries after this index are known. Of earlier entries, at most index and term are known."""
        self._term, self._vote = 0, None  # type: int, str | None
        self._commit = 1
        self._commit_written = 1
        self._segments: list[Segment] = []
        self._buffer: list[bytes] = []
        self.written_bytes = 0
        """Number of bytes of records that were read or written since the log was opened."""
        self.number = 0
        """Number of the last record written. ``durable_number`` is that of the last record known to be synced."""
        self.durable_number = 0
        self.vote_number = 0
        """Number of the last record with term and vote."""
        self.durable_index = 0
        self._marked = 0
        """Number in the newest mark: records up to this number had been synced."""
        self._reappeared: list[str] = []
        """Names of segments on disk that do not belong to the log any more."""
        self._data_number = 0
        self._reset_number = 0
        self._syncing_number = 0
        self._syncing_index = 0
        self._handed_bytes = 0
        """The part of ``written_bytes`` that was passed to the disk."""
        self._directory_dirty = False
        self._reset_entries: list[Entry] | None = None
        self.keep_tail = False
        """While True, ``deleteEntriesFrom`` has no effect, because the guard knows that the following entries are equal."""
        self.read_max = ENTRIES_READ_MAX
        self.read_bytes_max = ENTRIES_READ_MAX
        """Limits on the entries and bytes of a slice that has an end, so that a long backlog is applied in steps."""
        self.entries_max = self.buffered_bytes_max = ENTRIES_READ_MAX
        """Limits on unsynced entries and bytes, for ``is_full``."""
        self.on_add: Callable[[int, bytes], None] = lambda index, payload: None
        """Called for each entry that is appended, with its index and payload."""
        self.on_cut: Callable[[int], None] = lambda index: None
        """Called with the first removed index when the log is cut."""
        self.cut_records = 0
        """1 if a torn tail was dropped when the log was opened, otherwise 0."""
        self._open()

    # Opening

    def _open(self) -> None:
        self._storage.remove(ASIDE)
        names = [n for n in self._storage.list_names() if n.startswith("log-")]
        expected = 0
        opened: list[_Opened] = []
        for position, name in enumerate(names):
            data = self._storage.read(name)
            if expected and self._follows_released(names[position:], data, expected):
                self._leave_out_reappeared()
                expected, opened = 0, []
            offset = self._read_header(name, data, expected)
            if offset:
                segment, before = Segment(name, self.number + 1, len(data)), self.number
                self._segments.append(segment)
                offset = self._replay_segment(data, offset)
                segment.last_index = self.last_index
                if self.number == before:  # without term and vote at its start, it could not be read alone later
                    self._segments.pop()
                    offset = 0
                else:
                    opened = [o for o in opened if o.last_number > self._marked]
                    opened.append(_Opened(segment, data[:offset], self.number, offset < len(data)))
            if offset < len(data) or not offset:
                self._cut_tail(names[position:], data, offset)
                break
            expected = self.number + 1
        self._make_durable(opened)
        self.durable_number, self.durable_index, self._data_number = self.number, self.last_index, self.number
        self._handed_bytes = self.written_bytes
        self._commit_written = self._commit
        if self._entries and self._commit > self.last_index:
            raise CorruptionError(
                f"{self._segments[-1].name}: entry {self._commit} was committed but the log ends at {self.last_index}; " + REMEDY
            )

    def _make_durable(self, opened: list[_Opened]) -> None:
        """Make everything that was replayed durable, including what an earlier process could not sync."""
        if not self._segments:
            if self._must_exist:
                raise CorruptionError("this data directory belongs to a member but its log is missing; " + REMEDY)
            self._new_segment()
            self.sync_now()
            return
        for segment, data, last_number, torn in opened:
            if torn or (self._rewrite_tail and last_number > self._marked):
                self._storage.append(ASIDE, data)
                self._storage.sync([ASIDE], False)
                self._storage.rename(ASIDE, segment.name)
                segment.size = len(data)
        self._storage.sync([s.name for s in self._segments], True)

    def _follows_released(self, names: list[str], data: bytes, expected: int) -> bool:
        """Whether synced records are missing before the first of ``names``. Then a snapshot had replaced them, and everything
        opened so far is even older. (``align`` checks that the snapshot is there.)"""
        if len(data) < HEADER.size or crc32(data[: HEADER.size - 4]) != HEADER.unpack_from(data)[3]:
            return False
        first = HEADER.unpack_from(data)[2]
        return first > expected and any(self._synced_behind(self._storage.read(name), 0) >= first - 1 for name in names)

    def _leave_out_reappeared(self) -> None:
        """Leave out the segments that were opened so far, because segments between them and the next one are missing. There are
        two possible causes. Deleted segments reappeared after a power loss, but not all of them. Or a segment was lost, and an
        operator may put it back. Because of the second cause, these segments are removed only when a snapshot replaces them."""
        self._reappeared += [segment.name for segment in self._segments]
        self._segments, self._entries, self.base_index = [], [], 0

    def _read_header(self, name: str, data: bytes, expected: int) -> int:
        """Offset of the first record, 0 if the header is bad or not the one expected."""
        if len(data) < HEADER.size:
            return 0
        magic, version, first, checksum = HEADER.unpack_from(data)
        if crc32(data[: HEADER.size - 4]) != checksum or magic != MAGIC or (expected and first != expected):
            return 0
        if version != VERSION:
            raise CorruptionError(
                f"{name}: format version {version}, this program reads {VERSION}: use the release that wrote it"
            )
        if not expected:
            self.number = first - 1
        return HEADER.size

    def _replay_segment(self, data: bytes, offset: int) -> int:
        """Replay records from ``offset`` on. Returns the offset of the first bad record, or the end."""
        view, end, number = memoryview(data), len(data), self.number
        unpack, size, entries = RECORD.unpack_from, RECORD.size, self._entries
        read_index_term = INDEX_TERM.unpack_from
        try:
            while offset + size <= end:
                marker, length, checksum, kind, found = unpack(data, offset)
                stop = offset + size + length
                if (
                    marker != MARKER
                    or stop > end
                    or found != number + 1
                    or crc32(view[offset + CHECKED_FROM : stop], length) != checksum
                ):
                    break
                if kind == ENTRY:
                    index, term = read_index_term(data if length >= INDEX_TERM.size else b"", offset + size)
                    if entries and index != entries[-1][1] + 1:
                        raise CorruptionError(
                            f"{self._segments[-1].name}: offset {offset}: entry {index} after {entries[-1][1]}; {REMEDY}"
                        )
                    entries.append((data[offset + size + 16 : stop], index, term))
                else:
                    self._replay(kind, data[offset + size : stop])
                    entries = self._entries
                number = found
                offset = stop
        except (struct.error, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"{self._segments[-1].name}: offset {offset}: record {number + 1} cannot be decoded: {error}; {REMEDY}"
            ) from None
        self.number = number
        self.written_bytes += offset
        return offset

    def _replay(self, kind: int, payload: bytes) -> None:
        if kind == CUT:
            # The log may lack the entries that this record cuts: a snapshot may have replaced their segments since.
            (first,) = NUMBER.unpack(payload)
            if self._entries:
                del self._entries[max(0, first - self._entries[0][1]) :]
        elif kind == TERM:
            self._term = NUMBER.unpack_from(payload)[0]
            self._vote = payload[8:].decode() or None
            self.vote_number = self.number
        elif kind == RESET:
            a, b, c, d = TWO_INDEX_TERMS.unpack(payload)
            self._set_entries([(PLACEHOLDER, a, b), (PLACEHOLDER, c, d)], c)
            self._commit = max(self._commit, c)
            self._forget_segments()
        elif kind == MARK:
            marked, commit = INDEX_TERM.unpack(payload)
            self._marked, self._commit = max(self._marked, marked), max(self._commit, commit)

    def _cut_tail(self, names: list[str], data: bytes, offset: int) -> None:
        """The record after ``self.number`` is bad: drop it and all later ones, or refuse to open if it had been synced."""
        bad = self.number + 1
        synced = self._synced_behind(data, offset)
        for name in names[1:]:
            synced = max(synced, self._synced_behind(self._storage.read(name), 0))
        if synced >= bad:
            raise CorruptionError(
                f"{names[0]}: record {bad} at offset {offset} is damaged, but records up to {synced} had been synced; " + REMEDY
            )
        if self._must_exist and not self._segments:
            raise CorruptionError(f"{names[0]}: its start is damaged, and no earlier segment is there; " + REMEDY)
        self.cut_records += 1
        for name in reversed(names[1:]):
            self._storage.remove(name)
        if not offset:
            self._storage.remove(names[0])
            if not self._segments:
                self.number = 0

    @staticmethod
    def _synced_behind(data: bytes, offset: int) -> int:
        """The greatest number of a synced record that a valid mark after ``offset`` reports."""
        synced = 0
        position = data.find(MARKER, offset)
        while position >= 0 and position + RECORD.size <= len(data):
            _, length, checksum, kind, _ = RECORD.unpack_from(data, position)
            stop = position + RECORD.size + length
            if stop <= len(data) and crc32(data[position + CHECKED_FROM : stop], length) == checksum:
                if kind == MARK and length == INDEX_TERM.size:
                    synced = max(synced, INDEX_TERM.unpack_from(data, position + RECORD.size)[0])
                position = data.find(MARKER, stop)
            else:
                position = data.find(MARKER, position + 1)
        return synced

    def align(self, previous: tuple[int, int], last: tuple[int, int]) -> None:
        """Make the log begin with the (index, term) pairs at which the snapshot ends, and keep every later entry.

        (PySyncObj itself would clear a log that begins anywhere else, and acknowledged entries would be lost.)
        """
        if not self._entries and self._commit > last[0]:
            raise CorruptionError(
                f"{self._segments[0].name}: entry {self._commit} was committed and is missing, and the newest readable snapshot "
                f"ends at {last[0]}; " + REMEDY
            )
        if self._entries and self._entries[0][1] > last[0] + 1:
            raise CorruptionError(
                f"{self._segments[0].name}: the log begins at entry {self._entries[0][1]}, "
                f"but the newest readable snapshot ends at {last[0]}; " + REMEDY
            )
        fits = bool(self._entries and self._entries[0][1] == last[0] + 1) or self.term_at(last[0]) == last[1]
        if last[0] < self.base_index or (not fits and self._commit > last[0]):
            raise CorruptionError(
                f"{self._segments[0].name}: the log needs a snapshot that ends at {self.base_index or self._commit} or later, "
                f"but the newest readable one ends at {last[0]} in term {last[1]}; " + REMEDY
            )
        for name in self._reappeared:
            self._storage.remove(name)
        self._directory_dirty |= bool(self._reappeared)
        self._reappeared.clear()
        placeholders: list[Entry] = [(PLACEHOLDER, *previous), (PLACEHOLDER, *last)]
        if fits:
            self._set_entries(placeholders + self.entries(last[0] + 1, ENTRIES_READ_MAX), last[0])
            self._commit = max(self._commit, last[0])
        else:
            self._commit = last[0]
            self._set_entries(placeholders, last[0])
            self._write(RESET, TWO_INDEX_TERMS.pack(*previous, *last))
            self._forget_segments()
            self.sync_now()

    def _set_entries(self, entries: list[Entry], base_index: int) -> None:
        self._entries = entries
        self.base_index = base_index

    # Writing

    def _write(self, kind: int, payload: bytes, more: bytes = b"") -> None:
        """Buffer a record of ``payload`` and ``more``, which is kept separate so that large commands are not copied."""
        self.number += 1
        length = len(payload) + len(more)
        checksum = crc32(more, crc32(payload, crc32(CHECKED.pack(kind, self.number), length)))
        self._buffer.append(RECORD.pack(MARKER, length, checksum, kind, self.number) + payload)
        self._buffer.append(more)
        self.written_bytes += RECORD.size + length
        if kind != MARK:
            self._data_number = self.number

    def _new_segment(self) -> None:
        first = self.number + 1
        header = HEADER.pack(MAGIC, VERSION, first, 0)[:-4]
        self._buffer.append(header + struct.pack("<I", crc32(header)))
        if self._segments:
            self._segments[-1].last_index = self.last_index
        self._segments.append(Segment(segment_name(first), first, 0))
        self._directory_dirty = True
        self._write(TERM, NUMBER.pack(self._term) + (self._vote or "").encode())
        self.mark()

    @property
    def dirty(self) -> bool:
        """Whether records were written that no sync in progress covers."""
        return bool(self._buffer)

    @property
    def syncing(self) -> bool:
        """Whether a sync has begun and is not complete."""
        return self._syncing_number > 0

    @property
    def is_unsynced(self) -> bool:
        """Whether a part of the log is not known to be on disk."""
        return self.dirty or self.syncing

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait for ``begin_sync``."""
        return self.written_bytes - self._handed_bytes

    @property
    def is_full(self) -> bool:
        """Whether disk or snapshots lag so far that no entries are accepted."""
        return self.buffered_bytes >= self.buffered_bytes_max or len(self) >= self.entries_max

    @property
    def wants_mark(self) -> bool:
        """Whether everything is synced, and the newest mark does not report this or has an older commit index."""
        behind = self._marked < self._data_number or self._commit_written != self._commit
        return behind and not self._buffer and not self._syncing_number

    def mark(self) -> None:
        """Write a mark of what has been synced and committed. A mark needs no further mark."""
        self._write(MARK, INDEX_TERM.pack(self.durable_number, self._commit))
        self._marked, self._commit_written = self.durable_number, self._commit

    def begin_sync(self) -> tuple[list[str], bool]:
        """Pass the buffer to the disk and return what the caller must sync: (names, directory). Then call ``complete_sync``."""
        if self._syncing_number:
            raise InvariantError("a sync of the log is already in progress")
        if self._marked < self.durable_number or self._commit_written != self._commit:
            self.mark()
        segment, data = self._segments[-1], b"".join(self._buffer)
        is_new = segment.size == 0
        self._buffer, self._handed_bytes = [], self.written_bytes
        self._storage.append(segment.name, data)
        segment.size += len(data)
        directory, self._directory_dirty = self._directory_dirty, False
        self._syncing_number, self._syncing_index = self.number, self.last_index
        if segment.size >= self.segment_bytes and not is_new:
            self._new_segment()
        return [segment.name], directory

    def complete_sync(self) -> None:
        """The sync begun last is complete."""
        self.durable_number, self.durable_index = self._syncing_number, self._syncing_index
        self._syncing_number = 0

    def sync_now(self) -> None:
        """Write and sync while the caller waits. Used only when the log is opened."""
        names, directory = self.begin_sync()
        self._storage.sync(names, directory)
        self.complete_sync()

    def release(self, index: int) -> None:
        """A durable snapshot replaces entries up to ``index``: delete the segments that contain nothing else."""
        if self._reset_number > self.durable_number:
            return
        while (
            len(self._segments) > 1
            and self._segments[0].last_index <= index
            and self._segments[1].first_number < self.durable_number
        ):
            self._storage.remove(self._segments.pop(0).name)
            self._directory_dirty = True

    def _forget_segments(self) -> None:
        """After a reset: when the reset is durable, records before its segment are not needed."""
        self._reset_number = self.number
        for segment in self._segments[:-1]:
            segment.last_index = 0

    # Reading

    @property
    def first_index(self) -> int:
        return self._entries[0][1]

    @property
    def name(self) -> str:
        """Name of the oldest file."""
        return self._segments[0].name

    @property
    def first_number(self) -> int:
        """Number of the oldest record on disk: 1 unless a snapshot has replaced something."""
        return self._segments[0].first_number

    @property
    def last_index(self) -> int:
        return self._entries[-1][1] if self._entries else 0

    @property
    def last_term(self) -> int:
        return self._entries[-1][2] if self._entries else 0

    @property
    def file_bytes(self) -> int:
        """Size of all segments on disk."""
        return sum(s.size for s in self._segments)

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``; None if the log does not have it."""
        entries = self._entries
        if not entries or not 0 <= (position := index - entries[0][1]) < len(entries):
            return None
        return entries[position][2]

    def entries(self, index: int, count: int) -> list[Entry]:
        """At most ``count`` entries from ``index`` on, which must not be before the first."""
        position = index - self._entries[0][1]
        return self._entries[position : position + count]

    def first_of_term(self, index: int) -> int:
        """Index of the first entry that has the term of the one at ``index`` (bisecting: terms never fall)."""
        entries = self._entries
        low, high = 0, index - entries[0][1]
        term = entries[high][2]
        while low < high:
            middle = (low + high) // 2
            if entries[middle][2] < term:
                low = middle + 1
            else:
                high = middle
        return entries[low][1]

    # The journal that PySyncObj expects (pysyncobj.journal.Journal)

    def add(self, command: bytes, idx: int, term: int) -> None:
        if self._reset_entries is not None:
            self._add_after_clear((command, idx, term))
            return
        if self._entries and (idx != self._entries[-1][1] + 1 or term < self._entries[-1][2]):
            raise InvariantError(f"entry {idx} of term {term} after entry {self.last_index} of term {self.last_term}")
        self._entries.append((command, idx, term))
        self._write(ENTRY, INDEX_TERM.pack(idx, term), command)
        self.on_add(idx, command)

    def clear(self) -> None:
        self._reset_entries = []

    def _add_after_clear(self, entry: Entry) -> None:
        """The two entries at which a snapshot ends are written as one record, when both are known."""
        assert self._reset_entries is not None
        self._reset_entries.append(entry)
        if len(self._reset_entries) < 2:
            return
        entries, self._reset_entries = self._reset_entries, None
        self._set_entries(entries, entries[1][1])
        self.durable_index = self._syncing_index = 0
        self._write(RESET, TWO_INDEX_TERMS.pack(*entries[0][1:], *entries[1][1:]))
        self._forget_segments()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        if self.keep_tail or entryFrom >= len(self._entries):
            return
        index = self._entries[entryFrom][1]
        if index <= self._commit:
            raise InvariantError(f"cut of committed entry {index}: the commit index is {self._commit}")
        del self._entries[entryFrom:]
        self.durable_index = min(self.durable_index, index - 1)
        self._syncing_index = min(self._syncing_index, index - 1)
        self._write(CUT, NUMBER.pack(index))
        self.on_cut(index)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        if entryTo > 0:
            del self._entries[:entryTo]
            self.base_index = max(self.base_index, self._entries[0][1])

    def __getitem__(self, key: int | slice) -> Entry | list[Entry]:
        if isinstance(key, slice) and key.stop is not None:
            entries = self._entries[key.start : min(key.stop, key.start + self.read_max)]
            size = 0
            for position, entry in enumerate(entries):
                size += len(entry[0])
                if size > self.read_bytes_max and position >= 2:  # PySyncObj also asks for the last two entries that were applied
                    return entries[:position]
            return entries
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        pass

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        self._commit = raftCommitIndex

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the name is PySyncObj's
        return self._commit

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803 - the name is PySyncObj's
        if term < self._term or (term == self._term and self._vote is not None and votedForNodeId != self._vote):
            raise InvariantError(f"term and vote went from {self._term}, {self._vote} to {term}, {votedForNodeId}")
        self._term, self._vote = term, votedForNodeId
        self._write(TERM, NUMBER.pack(term) + (votedForNodeId or "").encode())
        self.vote_number = self.number

    def getCurrentTerm(self) -> int:  # noqa: N802 - the name is PySyncObj's
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the name is PySyncObj's
        return self._vote

    def onOneSecondTimer(self) -> None:  # noqa: N802 - the name is PySyncObj's
        pass


REMEDY = (
    "this node may have forgotten what it acknowledged and must not vote. If the other nodes are well, move this data directory "
    "away and start again: the node returns without a vote, copies the state and is then promoted"
)
