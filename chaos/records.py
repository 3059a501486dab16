"""The trace of a run: JSON lines, one record each, schema version 1. This module is the only declaration of a trace's content.

The record types are the contract. The tables of the analysis (``spark/schemas.py``) are derived from them, and tests compare
DESIGN.md and docs/tables.md with them. New fields are added at the end of a record and have a default, because older traces lack
them.

A trace only grows at its end. Each record is one ``write`` to the file, so after a kill of the harness all earlier records are
there. The last line may be torn: readers count and skip it. Any other broken line is counted as corrupt. Times are nanoseconds
of one monotonic clock of the machine (``time.monotonic_ns``), which all processes on it share.
"""

import dataclasses
import gzip
import os
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints

import orjson

from replicated_namesrv.errors import NamesrvError

SCHEMA_VERSION = 1
TRACE_FILE = "trace.jsonl"
PACKED_TRACE_FILE = f"{TRACE_FILE}.gz"
"""The compressed trace, which a study keeps instead of the trace."""
MANIFEST_FILE = "manifest.json"
READ_ONLY, READ_WRITE = "4", "6"
"""Values of write-perm and perm operations: the permission as RocketMQ's routes encode it."""
CRASH, KILLED = "crash", "killed"
"""Names of faults that the scenario did not plan. ``crash: how``: a node ended by itself. ``killed: how``: another program ended
it. Their number is 0, or that of the fault ``wrong-state`` that caused the end."""
READER_SUFFIX = "-reader"
"""End of the name of a client that names a read level in its requests. Its name begins with the level."""
LINE_BYTES_MAX = 4 << 20


class TraceError(NamesrvError):
    """A trace that cannot be read or written; the text names the file and the remedy."""


class Member(NamedTuple):
    """One entry of an answer, with its version."""

    name: str
    """``brokerName/brokerId``; in the table of KV entries the key of the entry."""
    version: str
    """Route: the number of write queues that the registration gave the topic. brokers: the time of its data version. KV: the
    value."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """The fields of all records."""

    record: ClassVar[str]
    time_ns: int


@dataclass(frozen=True, slots=True)
class Header(TraceRecord):
    """The first line."""

    record: ClassVar[str] = "header"
    schema: int
    run: str
    wall_ns: int
    """Reading of the wall clock at ``time_ns``."""


@dataclass(frozen=True, slots=True)
class Phase(TraceRecord):
    """A phase begins, and the previous one ends."""

    record: ClassVar[str] = "phase"
    phase: str
    """Name of the phase: settle, steady, fault, heal, final or end."""
    slowdown: float | None = None
    """Slowdown of the phase that ends: time in which the processes of the run ran or waited for a core, divided by the time in
    which they ran. 1 without other load. None: the system does not report these times, or no phase has ended."""


@dataclass(frozen=True, slots=True)
class Invoke(TraceRecord):
    """A client begins an operation. The ``Complete`` record with the same ``op`` ends it; there is none if the harness died."""

    record: ClassVar[str] = "invoke"
    op: int
    """A number that is unique in the trace; later operations have higher numbers."""
    client: str
    kind: str
    """put, get or delete (KV); route; register, unregister, register-copy, unregister-copy, heartbeat (brokers); write-perm,
    delete-topic, set-config (sent by mqadmin); perm, topic, config (reads on each node that show their effect); roles (the ids of
    a group's brokers); master (the broker that a node names as master to a slave); hung-up (a node closed a connection that a
    silent death had left open). DESIGN.md has further kinds."""
    key: str
    """The object of the operation: a KV key, a topic, or for roles a brokerName. For brokers' operations it is
    ``brokerName/brokerId``, with the id that the broker has at that time."""
    value: str | None
    """The value of a put, or the version of a registration."""
    node: str | None
    """The node asked. None: the client chooses a node and fails over."""
    level: str | None
    """Read level in the request; None: the request names none and gets the node's own level (manifest: read_consistency)."""
    probe: int | None
    """Number of a probe: the reads with this number were sent to all nodes at the same time. None: not a probe."""
    topics: list[str] | None
    """For registrations: the user topics in the registration."""


@dataclass(frozen=True, slots=True)
class Complete(TraceRecord):
    """The outcome of an operation as its client knows it."""

    record: ClassVar[str] = "complete"
    op: int
    outcome: str
    """ok; fail: certainly not applied; indeterminate: applied, not applied, or applied later."""
    node: str | None
    """The node that answered."""
    value: str | None
    """The result of a get; None: absent. For roles: the permission."""
    members: list[Member] | None
    """The result of a route look-up; empty: no route. For roles: the brokers by their first names, with their present broker
    ids."""
    error: str | None


@dataclass(frozen=True, slots=True)
class Observe(TraceRecord):
    """A node's answer at its admin port, under the same rules as answers to its clients; of foreign nodes, by remoting."""

    record: ClassVar[str] = "observe"
    asked_ns: int
    """When the question was sent. ``time_ns`` is when the answer arrived or the time-out passed."""
    node: str
    key: str
    """The table that was asked for: brokers (all registrations) or kv (all KV entries)."""
    answered: bool
    """False: no answer came, so the node's answer is unknown from ``asked_ns`` on."""
    members: list[Member] | None
    revision: int | None
    reason: str
    """Why the answer was recorded. change: it is new; cover: no change for a second; edge: a fault began or ended."""


@dataclass(frozen=True, slots=True)
class Status(TraceRecord):
    """A sample of a node's status (``/v1/status``), taken like an observation."""

    record: ClassVar[str] = "status"
    asked_ns: int
    node: str
    process: str
    """State of the process according to the harness: running, paused (SIGSTOP) or dead."""
    answered: bool
    ready: bool | None
    role: str | None
    """The node's role in Raft: leader, follower and so on; None in AP."""
    term: int | None
    leader: str | None
    commit_index: int | None
    applied_index: int | None
    digest: str | None
    """Digest of the state at ``applied_index``."""
    revision: int | None
    fenced: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class FaultRecord(TraceRecord):
    """A fault begins or ends."""

    record: ClassVar[str] = "fault"
    fault: int
    """Number of the fault in the run's schedule. The records of its start and of its end have the same number."""
    edge: str
    """start or end. The record is written when the change is complete."""
    began_ns: int
    """When the change began. From then until ``time_ns`` links change, up to sixteen at a time."""
    name: str
    variant: str | None
    """Effect on links (``Effect``), such as silent (bytes are dropped) or held (they wait). None: the fault changes processes."""
    nodes: list[str]
    """The target nodes."""
    links: list[str]
    """Affected links, as ``source>target``."""
    sides: list[list[str]]
    """Groups of members that can communicate in both directions under all active faults. The largest group comes first."""
    streams: list[str] | None = None
    """The affected stream of each of ``links``, in that order: upstream (what ``source`` sends), downstream (what comes back) or
    both. In older traces it is None, which means both."""
    voters: list[list[str]] | None = None
    """The voters. While members change: each set of voters that may be in force. In older traces it is None: all nodes vote."""


@dataclass(frozen=True, slots=True)
class Election(TraceRecord):
    """A node became leader of a term."""

    record: ClassVar[str] = "election"
    node: str
    term: int


@dataclass(frozen=True, slots=True)
class ExpiryRecord(TraceRecord):
    """A node dropped a registration: no contact within its time-out, or every connection lost."""

    record: ClassVar[str] = "expiry"
    node: str
    broker: str
    """``brokerName/brokerId``."""
    cause: str
    """expired (silent for its time-out) or lost (every connection ended)."""
    revision: int


@dataclass(frozen=True, slots=True)
class Truth(TraceRecord):
    """An action of the harness on a broker. Answers are compared with it."""

    record: ClassVar[str] = "truth"
    broker: str
    life: int
    """Number of the present life: how often this broker has started."""
    state: str
    """starting, serving (its first registration was acknowledged), stopping, stopped, dead (connections closed), silent (dead,
    but its connections stay open), exposed (alive, but a correct CP cluster may drop it), safe (the exposure ended)."""
    writable: bool
    version: str | None
    """Version of the broker's current topics."""
    topics: list[str]
    timeout_ms: int
    """Time-out after which name servers may drop the broker."""


@dataclass(frozen=True, slots=True)
class Send(TraceRecord):
    """A client with a route cache picked a broker to send to."""

    record: ClassVar[str] = "send"
    client: str
    topic: str
    broker: str | None
    """``brokerName/brokerId``; None: the client has no route."""
    learned_ns: int | None
    """When the client got the answer with this route."""
    reachable: bool
    """Whether the broker is alive and writable at this moment."""


@dataclass(frozen=True, slots=True)
class End(TraceRecord):
    """The last line of a run that ended normally. Without it the run was interrupted."""

    record: ClassVar[str] = "end"
    records: int
    """Number of records before this last one."""


RECORDS: dict[str, type[TraceRecord]] = {
    kind.record: kind
    for kind in (Header, Phase, Invoke, Complete, Observe, Status, FaultRecord, Election, ExpiryRecord, Truth, Send, End)
}


def encode(record: TraceRecord) -> bytes:
    """One line with its line feed."""
    fields = {"record": record.record}
    fields.update({name: getattr(record, name) for name in _NAMES[type(record)]})
    return orjson.dumps(fields, default=_member, option=orjson.OPT_APPEND_NEWLINE)


def _member(value: Any) -> Any:
    if isinstance(value, Member):
        return value._asdict()
    raise TypeError


def types_of(kind: type[TraceRecord]) -> dict[str, Any]:
    """The fields of a record type in order, each with its type. ``None``, which any field may allow, is left out."""
    hints = get_type_hints(kind)
    return {field.name: _without_none(hints[field.name]) for field in dataclasses.fields(kind)}


def _without_none(hint: Any) -> Any:
    return get_args(hint)[0] if isinstance(hint, types.UnionType) else hint


_NAMES = {kind: tuple(types_of(kind)) for kind in RECORDS.values()}
_HINTS = {kind: get_type_hints(kind) for kind in RECORDS.values()}
_ADDED = {
    (kind, field.name)
    for kind in RECORDS.values()
    for field in dataclasses.fields(kind)
    if field.default is not dataclasses.MISSING
}
"""Fields that are missing in the first traces of this schema."""


def decode(line: bytes) -> TraceRecord:
    """Decode one line. Raises ValueError with the reason."""
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"longer than {LINE_BYTES_MAX} bytes")
    fields = orjson.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON {type(fields).__name__} where an object is expected")
    record = str(fields.pop("record", None))
    kind = RECORDS.get(record)
    if kind is None:
        raise ValueError(f"unknown record type {record!r:.60}; known: {', '.join(RECORDS)}")
    hints = _HINTS[kind]
    values = {}
    for name in _NAMES[kind]:
        if name not in fields:
            if (kind, name) in _ADDED:
                continue
            raise ValueError(f"{kind.record}: {name} is missing")
        values[name] = _typed(fields[name], hints[name], name)
    return kind(**values)


def _typed(value: Any, hint: Any, name: str) -> Any:
    """``value`` if it has the declared type of the field; members become tuples."""
    if isinstance(hint, types.UnionType):
        return None if value is None else _typed(value, _without_none(hint), name)
    if get_origin(hint) is list:
        if not isinstance(value, list):
            raise ValueError(f"{name} is {value!r}, expected an array")
        return [_typed(item, get_args(hint)[0], name) for item in value]
    if hint is Member:
        if not isinstance(value, dict):
            raise ValueError(f"{name} holds {value!r}, expected an object with name and version")
        return Member(_typed(value.get("name"), str, "name"), _typed(value.get("version"), str, "version"))
    if type(value) is not hint:
        raise ValueError(f"{name} is {value!r}, expected {hint.__name__}")
    return value


class TraceWriter:
    """Appends records to a new trace. After ``write`` the operating system has the record."""

    def __init__(self, path: Path) -> None:
        """Raises TraceError if the file exists or cannot be created."""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as cause:
            raise TraceError(f"{path}: cannot be created ({cause.strerror}); every run needs a folder of its own") from cause
        self._path = path
        self.count = 0

    def write(self, record: TraceRecord) -> None:
        """Append a record. Raises TraceError if the disk refuses, because a run without its trace cannot be judged."""
        line = encode(record)
        try:
            written = os.write(self._file, line)
        except OSError as cause:
            raise TraceError(f"{self._path}: cannot be written ({cause.strerror}); make room and run again") from cause
        if written != len(line):
            raise TraceError(f"{self._path}: the disk took {written} of {len(line)} bytes; make room and run again")
        self.count += 1

    def close(self) -> None:
        os.close(self._file)


@dataclass(slots=True)
class RecordedTrace:
    """The content of a trace file."""

    records: list[TraceRecord]
    torn: int
    """1 if the last line was cut off, else 0."""
    corrupt: list[str]
    """Texts about invalid lines other than the last, as ``line N: …``."""

    @property
    def complete(self) -> bool:
        """Whether the run ended normally."""
        return bool(self.records) and isinstance(self.records[-1], End) and not self.torn and not self.corrupt


def trace_path(folder: Path) -> Path:
    """The trace of the run in this folder. It is the compressed one if there is no other."""
    plain, packed = folder / TRACE_FILE, folder / PACKED_TRACE_FILE
    return packed if packed.exists() and not plain.exists() else plain


def read_trace(path: Path) -> RecordedTrace:
    """Read a whole trace, which may be compressed. Raises TraceError: no file, no header, another schema version."""
    trace = RecordedTrace([], 0, [])
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                _read_line(trace, number, line)
    except (OSError, EOFError, zlib.error) as cause:
        why = (cause.strerror if isinstance(cause, OSError) else None) or cause
        raise TraceError(f"{path}: cannot be read ({why}); give the folder of a run") from cause
    header = trace.records[0] if trace.records else None
    if not isinstance(header, Header):
        raise TraceError(
            f"{path}: does not begin with a header record, so it is not the trace of a run; give the folder of a run"
        )
    if header.schema != SCHEMA_VERSION:
        raise TraceError(
            f"{path}: schema version {header.schema}, but this release reads only version {SCHEMA_VERSION}; use the release that "
            "recorded the trace"
        )
    return trace


def _read_line(trace: RecordedTrace, number: int, line: bytes) -> None:
    if not line.endswith(b"\n"):
        trace.torn += 1
        return
    try:
        trace.records.append(decode(line))
    except ValueError as cause:
        trace.corrupt.append(f"line {number}: {cause}")


def invocations(records: list[TraceRecord]) -> Iterator[tuple[Invoke, Complete | None]]:
    """Each operation with its completion, in order of invocation. None: the harness died before the end was known."""
    completions = {record.op: record for record in records if isinstance(record, Complete)}
    for record in records:
        if isinstance(record, Invoke):
            yield record, completions.get(record.op)


def majority_side(parts: Iterable[Sequence[str]], voters: Iterable[Collection[str]]) -> Sequence[str]:
    """The side that has a majority of the voters, whichever of the sets ``voters`` is in force; empty if there is none."""
    sets = [frozenset(one) for one in voters]
    return next((side for side in parts if all(2 * len(one.intersection(side)) > len(one) for one in sets)), ())
