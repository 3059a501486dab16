"""Reads a node's data directory without changing it.

It is read in two ways. First, the records are read one by one, to show their content and position. Second, the files are opened
by the code of a starting node, over a storage that keeps changes in memory. Therefore the verdict is that of a starting node:
sound, a torn tail that a start removes, or damage that prevents a start.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from replicated_namesrv.raft.entry_log import (
    CHECKED_FROM,
    CUT,
    ENTRY,
    HEADER,
    INDEX_TERM,
    MAGIC,
    MARK,
    MARKER,
    NUMBER,
    RECORD,
    RESET,
    TERM,
    TWO_INDEX_TERMS,
    Log,
)
from replicated_namesrv.raft.identity import IDENTITY, MEMBER, STATES
from replicated_namesrv.raft.members import MEMBERS_ENTRY, unpack_members
from replicated_namesrv.raft.payloads import JOIN, NO_OP, PROPOSALS, Group, unpack_groups, unpack_join
from replicated_namesrv.raft.raft_errors import MalformedError, RaftError
from replicated_namesrv.raft.snapshots import PREFIX, Metadata, Reader


class UntouchedStorage:
    """``Storage`` over a directory: reads use the files, and writes stay in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed: dict[str, bytes | None] = {}
        """The values by name. None: the name was removed."""

    def list_names(self) -> list[str]:
        on_disk = {path.name for path in self._directory.iterdir() if path.is_file()}
        there = {name for name, content in self._changed.items() if content is not None}
        return sorted((on_disk - self._changed.keys()) | there)

    def size(self, name: str) -> int:
        return len(self.read(name)) if name in self._changed else (self._directory / name).stat().st_size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        if name not in self._changed:
            with (self._directory / name).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if size is None else size)
        content = self._changed[name]
        if content is None:
            raise FileNotFoundError(name)
        return content[offset:] if size is None else content[offset : offset + size]

    def append(self, name: str, data: bytes) -> None:
        self._changed[name] = (self.read(name) if name in self.list_names() else b"") + data

    def rename(self, old: str, new: str) -> None:
        self._changed[new], self._changed[old] = self.read(old), None

    def remove(self, name: str) -> None:
        self._changed[name] = None

    def sync(self, names: Sequence[str], directory: bool) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op."""


class Record(NamedTuple):
    """One record of the log with its position in its file."""

    file: str
    offset: int
    number: int
    kind: str
    """Kind of the record: entry, cut, term, reset or mark."""
    fields: dict[str, Any]
    payload: bytes
    """The payload, if the record is an entry."""


@dataclass
class SegmentFacts:
    """One file of the log."""

    name: str
    size: int
    first_number: int | None = None
    last_number: int | None = None
    record_counts: dict[str, int] = field(default_factory=dict)
    first_index: int | None = None
    last_index: int | None = None
    readable: int = 0
    """Length of the part at the start that consists of whole, sound records."""


class SnapshotFacts(NamedTuple):
    """One snapshot file. ``metadata`` None: the metadata cannot be read."""

    name: str
    size: int
    metadata: Metadata | None
    problem: str | None


@dataclass
class Inspection:
    """The content of a data directory."""

    identity: dict[str, Any] | None
    segments: list[SegmentFacts]
    snapshots: list[SnapshotFacts]
    terms: list[dict[str, Any]]
    """Every change of term or vote, with the fields file, offset, term and votedFor."""
    commit_index: int
    """Highest commit index recorded in the log. A node may know a higher index, because it does not record every change."""
    last_index: int
    problems: list[str]
    """Damage that keeps a node from starting, or snapshots that a start would ignore. Each text names the file and, if known, the
    offset."""
    torn: str | None
    """Text if the log ends within a record that was never acknowledged; None: it does not. A start cuts this record off."""


_KINDS = {ENTRY: "entry", CUT: "cut", TERM: "term", RESET: "reset", MARK: "mark"}


def inspect(directory: Path) -> Inspection:
    """Read everything. Raises OSError if a file cannot be read, FileNotFoundError if this is not a data directory of a node."""
    storage = UntouchedStorage(directory)
    names = storage.list_names()
    logs = [name for name in names if name.startswith("log-")]
    if not logs and IDENTITY not in names and not any(name.startswith(PREFIX) for name in names):
        raise FileNotFoundError(f"no log, no snapshot and no file {IDENTITY} there")
    problems: list[str] = []
    identity = _identity(storage, names, problems)
    segments, terms, commit = [], [], 0
    for name in logs:
        facts = SegmentFacts(name, storage.size(name))
        for record in records_of(storage.read(name), facts):
            if record.kind == "term":
                terms.append({"file": name, "offset": record.offset, **record.fields})
            elif record.kind == "mark":
                commit = max(commit, record.fields["commitIndex"])
        segments.append(facts)
    snapshots = [_snapshot(storage, name) for name in names if name.startswith(PREFIX)]
    problems += [f"{snapshot.name}: {snapshot.problem}" for snapshot in snapshots if snapshot.problem]
    is_member = identity is not None and identity["state"] == STATES[MEMBER]
    last_index, torn = _verdict(storage, segments, snapshots, is_member, problems)
    return Inspection(identity, segments, snapshots, _changes(terms), commit, last_index, problems, torn)


def _changes(terms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The changes of term or vote, without the copy at the start of each segment."""
    before: tuple[object, object] | None = None
    found = []
    for term in terms:
        value = (term["term"], term["votedFor"])
        if value != before:
            found.append(term)
        before = value
    return found


def _verdict(
    storage: UntouchedStorage, segments: list[SegmentFacts], snapshots: list[SnapshotFacts], is_member: bool, problems: list[str]
) -> tuple[int, str | None]:
    """(last index, torn tail), as a starting node finds them. ``problems`` gets the reason if a node could not start."""
    try:
        log = Log(storage, must_exist=is_member)
        newest = max((s.metadata for s in snapshots if s.metadata and not s.problem), key=lambda m: m.last, default=None)
        if newest is not None:
            log.align(newest.previous, newest.last)
    except RaftError as error:
        problems.append(str(error))
        return 0, None
    torn = next((s for s in segments if s.readable < s.size), None)
    text = (
        None
        if torn is None
        else f"{torn.name}: incomplete record at offset {torn.readable}; "
        f"the {torn.size - torn.readable} bytes from there on are torn"
    )
    return log.last_index, text


def entries_of(directory: Path, first: int, last: int) -> Iterator[Record]:
    """Records of entries with indexes from ``first`` to ``last``, as they were written. An entry that was cut and written
    again appears twice."""
    storage = UntouchedStorage(directory)
    for name in storage.list_names():
        if name.startswith("log-"):
            for record in records_of(storage.read(name), SegmentFacts(name, 0)):
                if record.kind == "entry" and first <= record.fields["index"] <= last:
                    yield record


def records_of(data: bytes, facts: SegmentFacts) -> Iterator[Record]:
    """The sound records at the start of a segment. Facts about the segment are added to ``facts``."""
    if len(data) < HEADER.size or crc32(data[: HEADER.size - 4]) != HEADER.unpack_from(data)[3] or data[:8] != MAGIC:
        return
    offset, number = HEADER.size, HEADER.unpack_from(data)[2] - 1
    facts.first_number, facts.readable = number + 1, offset
    while offset + RECORD.size <= len(data):
        marker, length, checksum, kind, found = RECORD.unpack_from(data, offset)
        stop = offset + RECORD.size + length
        sound = marker == MARKER and stop <= len(data) and found == number + 1 and kind in _KINDS
        if not sound or crc32(data[offset + CHECKED_FROM : stop], length) != checksum:
            return
        record = _record(facts.name, offset, found, kind, data[offset + RECORD.size : stop])
        facts.record_counts[record.kind] = facts.record_counts.get(record.kind, 0) + 1
        if kind == ENTRY:
            facts.first_index = record.fields["index"] if facts.first_index is None else facts.first_index
            facts.last_index = record.fields["index"]
        yield record
        number, offset = found, stop
        facts.last_number, facts.readable = number, offset


def _record(file: str, offset: int, number: int, kind: int, payload: bytes) -> Record:
    fields: dict[str, Any] = {}
    rest = b""
    if kind == ENTRY:
        fields["index"], fields["term"] = INDEX_TERM.unpack_from(payload)
        rest = payload[INDEX_TERM.size :]
    elif kind == CUT:
        fields["fromIndex"] = NUMBER.unpack(payload)[0]
    elif kind == TERM:
        fields["term"], fields["votedFor"] = NUMBER.unpack_from(payload)[0], payload[NUMBER.size :].decode() or None
    elif kind == RESET:
        fields["lastIndex"], fields["lastTerm"] = TWO_INDEX_TERMS.unpack(payload)[2:]
    else:
        fields["syncedNumber"], fields["commitIndex"] = INDEX_TERM.unpack(payload)
    return Record(file, offset, number, _KINDS[kind], fields, rest)


def content_of(payload: bytes) -> tuple[str, list[Group], tuple[str, int] | None]:
    """The content of an entry: its kind (no-op, proposals, join, members, unreadable), proposals, and the node that joins."""
    try:
        if payload == NO_OP:
            return "no-op", [], None
        if payload[:2] == JOIN:
            return "join", [], unpack_join(payload)
        if payload[:2] == MEMBERS_ENTRY:
            unpack_members(payload)
            return "members", [], None
        if payload[:2] == PROPOSALS:
            return "proposals", unpack_groups(payload, 2), None
    except MalformedError:
        pass
    return "unreadable", [], None


def _identity(storage: UntouchedStorage, names: list[str], problems: list[str]) -> dict[str, Any] | None:
    if IDENTITY not in names:
        problems.append(
            f"file {IDENTITY} is missing, so this is not a complete data directory; give the dataDir of a node, or restore "
            "the file"
        )
        return None
    text, _, checksum = storage.read(IDENTITY).rstrip(b"\n").rpartition(b"\n")
    try:
        if int(checksum) != crc32(text):
            raise ValueError("the checksum does not match")
        found = json.loads(text)
        return {**found, "state": STATES[found["state"]]}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        problems.append(f"file {IDENTITY}: {error}")
        return None


def _snapshot(storage: UntouchedStorage, name: str) -> SnapshotFacts:
    metadata, problem = None, None
    try:
        reader = Reader(storage, name)
        metadata = reader.metadata
        for _ in reader.chunks():
            pass
    except ValueError as error:
        problem = str(error)
    return SnapshotFacts(name, storage.size(name), metadata, problem)
