"""Conversion of Jepsen histories (EDN or JSON lines) to traces that ``namesrv analyze`` reads.

An operation is a map with ``type`` (invoke, ok, fail, info), ``f``, ``value``, ``process`` and ``time`` (nanoseconds), as in
``history.edn``: one per line, pretty-printed over several lines, or all in one vector. A process's next operation completes its
invocation. The outcome is unknown if this next operation is ``info`` or missing. The nemesis, any process that is not a number,
determines the phases: the fault lasts from its first to its last operation. If no operation has a time, they are placed one
millisecond apart in their order. Checks of order are then valid, durations are not.

=====================  ================================================================================================
f                      becomes
=====================  ================================================================================================
read, write            ``get`` and ``put`` of a key of the key-value store
cas                    its read and its write, at the same time. A reported violation is real. Another operation between
                       the read and the write is not detected
add, remove, read      a set: ``register`` and ``unregister`` of a member of a topic, and ``route`` of the topic
txn of append and r    the same for each list; the order within a list and transactions over several are not checked
txn of w and r         ``put`` and ``get`` of each key; the atomicity of the transaction is not checked
=====================  ================================================================================================

Values of independent keys are pairs [key, value]. A history has such keys if every value outside transactions is a pair, and not
all operations are cas. If values are written more than once, all figures but M1 are bounds (DESIGN.md). Counters (add, and read
of a number), queues, locks and transfers are refused, because no check applies to them.

Limits: 5,000,000 events, and 1 MiB of text or 1,000 lines per operation. The memory needed is about five times the file's
size.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from replicated_namesrv.chaos.records import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    TRACE_FILE,
    Complete,
    End,
    Header,
    Invoke,
    Member,
    Phase,
    TraceRecord,
    Truth,
    encode,
)
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.spark import edn

LINE_CHARACTERS_MAX = 1 << 20
LINES_MAX = 1000
"""Maximum number of lines of one operation."""
OPERATIONS_MAX = 5_000_000
SAY_EVERY = 200_000
TYPES = ("invoke", "ok", "fail", "info")
OUTCOMES = {"ok": "ok", "fail": "fail", "info": "indeterminate"}


class ForeignError(NamesrvError):
    """A history that cannot be imported. The text names file, line and remedy."""


@dataclass(slots=True)
class _Event:
    line: int
    type: str
    f: str
    value: Any
    process: Any
    time_ns: Any
    """Time of the event in nanoseconds. None if the history has no times, until all events are read."""


@dataclass(slots=True)
class Imported:
    """Summary of an import."""

    folder: Path
    operations: int
    unknown: int
    """Number of operations with unknown outcome."""
    torn: int
    """1 if the last line was cut off and therefore left out, else 0."""


def import_history(path: Path, name: str, mode: str, out: Path, say: Callable[[str], None]) -> Imported:
    """Create the run ``name`` in ``out`` from the history ``path`` (.edn, or JSON lines). Raises ForeignError."""
    folder = out / name
    if folder.exists():
        raise ForeignError(f"{folder}: exists already; remove it, or choose another --name or --out")
    if not name or not name.isprintable() or set(name) & set("/=%:\\"):
        raise ForeignError(f"--name {name}: a name without / = % : and \\ is expected")
    events, torn = _read(path, say)
    if not events:
        raise ForeignError(f"{path}: has no operation; Jepsen's history.edn of a test is expected")
    say(f"{path}: {len(events):,} events")
    pairs, nemesis = _paired(path, events)
    del events  # frees memory early: each pair keeps its events only until it has become lines
    trace, lines = _records(path, pairs, nemesis, name)
    staging = out / f".importing-{name}"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        (staging / MANIFEST_FILE).write_text(
            json.dumps(_manifest(name, mode, path, trace.names), indent=1) + "\n", encoding="utf-8"
        )
        with (staging / TRACE_FILE).open("wb") as file:
            file.writelines(lines)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Imported(folder, trace.operations, trace.unknown, torn)


def _read(path: Path, say: Callable[[str], None]) -> tuple[list[_Event], int]:
    events: list[_Event] = []
    reader = _HistoryReader(path)
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for line, value in reader.values(file):
                events.append(_event(value, line, f"{path}:{line}"))
                if len(events) > OPERATIONS_MAX:
                    raise ForeignError(f"{path}:{line}: more than {OPERATIONS_MAX:,} events; import the history in parts")
                if len(events) % SAY_EVERY == 0:
                    say(f"{path}: {len(events):,} events so far")
    except UnicodeDecodeError:
        raise ForeignError(f"{path}: is not UTF-8 text; Jepsen's history.edn is expected, not the binary test.jepsen") from None
    except OSError as cause:
        raise ForeignError(f"{path}: cannot be read ({cause.strerror}); give a history's file") from cause
    _complete_times(path, events)
    return events, reader.torn


class _HistoryReader:
    """Reads the operations of a file, each with its first line: one per line, over several lines, or elements of one vector."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_edn = path.suffix.lower() == ".edn"
        self._read = edn.read if self._is_edn else json.loads
        self.torn = 0
        """1 if the file ends within an operation and without a line feed, because its writer was interrupted."""

    def values(self, file: TextIO) -> Iterator[tuple[int, Any]]:
        """Line and value of each operation. Raises ForeignError."""
        number, began, begun, in_vector, ended = 0, 0, "", False, True
        while line := file.readline(LINE_CHARACTERS_MAX + 1):
            number += 1
            if not begun:
                began = number
            if len(begun) + len(line) > LINE_CHARACTERS_MAX:
                most = f"{LINE_CHARACTERS_MAX:,} characters"
                raise ForeignError(f"{self._path}:{began}: longer than {most}; {self._expected()}")
            ended = line.endswith("\n")
            raw = begun + line
            text = raw.strip().strip(",").strip()
            if begun and (line.startswith(("{", "#jepsen")) or number - began > LINES_MAX):
                raise ForeignError(f"{self._path}:{began}: is not closed before line {number}; {self._expected()}")
            if not text or (self._is_edn and text.startswith(";")) or (in_vector and text in ("]", ")")):
                continue
            begun = ""
            value, unfinished = self._value(text, began)
            if unfinished and not in_vector and text[0] in "[(":
                in_vector, raw = True, raw.lstrip()[1:]
                text = raw.strip()
                if not text:
                    continue
                value, unfinished = self._value(text, began)
            if unfinished:
                begun = raw
            elif isinstance(value, list) and not in_vector:
                yield from ((began, element) for element in value)
            else:
                yield began, value
        if begun and ended:
            raise ForeignError(f"{self._path}:{began}: is not closed; {self._expected()}")
        self.torn = int(bool(begun))

    def _value(self, text: str, line: int) -> tuple[Any, bool]:
        """The value, and whether it continues after ``text``, in the next lines."""
        try:
            return self._read(text), False
        except ValueError as cause:
            if _goes_on(cause, text):
                return None, True
            if text.endswith(("]", ")")):  # the closing bracket of the vector that contains all operations
                with contextlib.suppress(ValueError, RecursionError):
                    return self._read(text[:-1]), False
            raise ForeignError(f"{self._path}:{line}: {cause}; {self._expected()}") from None
        except RecursionError:
            raise ForeignError(f"{self._path}:{line}: nested too deeply; {self._expected()}") from None

    def _expected(self) -> str:
        return f"one operation a line in {'EDN' if self._is_edn else 'JSON'} is expected"


def _goes_on(cause: ValueError, text: str) -> bool:
    """Whether the text is incomplete rather than invalid."""
    if isinstance(cause, json.JSONDecodeError):
        return cause.pos >= len(text.rstrip()) or cause.msg.startswith("Unterminated string")
    return isinstance(cause, edn.UnfinishedError)


def _event(value: Any, number: int, where: str) -> _Event:
    if not isinstance(value, dict):
        raise ForeignError(f"{where}: is not a map; an operation like {{:type :invoke, :f :read, …}} is expected")
    kind = value.get("type")
    if kind not in TYPES:
        raise ForeignError(f"{where}: type is {kind!r}, expected one of {', '.join(TYPES)}")
    if not isinstance(value.get("f"), str):
        raise ForeignError(f"{where}: f is {value.get('f')!r}, expected a name such as read")
    time_ns = value.get("time")
    if time_ns is not None and (isinstance(time_ns, bool) or not isinstance(time_ns, int) or not 0 <= time_ns < 2**62):
        raise ForeignError(f"{where}: time is {time_ns!r}, expected nanoseconds since the beginning of the test")
    process = value.get("process")
    if process is None:
        raise ForeignError(f"{where}: process is missing, so the client of this operation is unknown")
    if isinstance(process, str) and process.isdecimal():
        process = int(process)
    return _Event(number, sys.intern(str(kind)), sys.intern(str(value["f"])), value.get("value"), process, time_ns)


def _complete_times(path: Path, events: list[_Event]) -> None:
    """Check that either all events have a time or none has one. If none has one, each event gets a time by its position."""
    missing = next((event for event in events if event.time_ns is None), None)
    if missing is None:
        return
    if any(event.time_ns is not None for event in events):
        raise ForeignError(f"{path}:{missing.line}: time is missing here and not elsewhere; give all operations one, or none")
    for place, event in enumerate(events):
        event.time_ns = place * 1_000_000


_Pair = tuple[_Event, _Event | None]


def _paired(path: Path, events: list[_Event]) -> tuple[list[_Pair], list[_Event]]:
    """Invocations with their completions, and the nemesis's events."""
    opened: dict[Any, int] = {}
    pairs: list[_Pair] = []
    nemesis = []
    for event in events:
        where = f"{path}:{event.line}"
        if isinstance(event.process, bool) or not isinstance(event.process, int):
            nemesis.append(event)
        elif event.type == "invoke":
            if event.process in opened:
                raise ForeignError(
                    f"{where}: process {event.process} invokes before its last operation ended; give the whole history"
                )
            opened[event.process] = len(pairs)
            pairs.append((event, None))
        else:
            if event.process not in opened:
                raise ForeignError(f"{where}: process {event.process} completes what it never invoked; give the whole history")
            place = opened.pop(event.process)
            began = pairs[place][0]
            if event.time_ns < began.time_ns:
                raise ForeignError(f"{where}: ends before it began in line {began.line}; times of one clock are expected")
            pairs[place] = (began, event)
    if not pairs:
        raise ForeignError(f"{path}: only the nemesis acts in it; a history with clients' operations is expected")
    return pairs, nemesis


class _Kinds(NamedTuple):
    """Properties that can only be determined from the whole history."""

    independent: bool
    """True if the values are pairs [key, value]."""
    registers: bool
    """True if transactions write values (w); False if they append."""


class _Trace:
    """The lines of the trace by time, and the names for the manifest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[tuple[int, bytes]] = []
        self._members: dict[str, dict[str, int]] = {}
        self._keys: dict[str, None] = {}
        self.operations = self.unknown = 0

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Keys of the store, and topics."""
        return list(self._keys), list(self._members)

    def add(self, record: TraceRecord) -> None:
        """Add a line. Lines of equal time keep the order in which they were added."""
        self._lines.append((record.time_ns, encode(record)))

    def lines(self, header: list[TraceRecord], last_ns: int) -> Iterator[bytes]:
        """The lines of the header, all added lines by time, and the line of the end record."""
        yield from map(encode, header)
        self._lines.sort(key=itemgetter(0))
        for _, line in self._lines:
            yield line
        yield encode(End(last_ns, len(header) + len(self._lines)))

    def add_operation(self, began: _Event, end: _Event | None, of: _Kinds) -> None:
        """Add an operation of the history. It may become several operations of the trace."""
        outcome = "indeterminate" if end is None else OUTCOMES[end.type]
        for kind, key, said, seen in _parts(self._path, began, end, of):
            self.operations += 1
            self.unknown += outcome == "indeterminate"
            topics = None
            if kind in ("register", "unregister"):
                topics, member = [key], _member(key, said)
                self._serve(key, member, began, end if outcome == "ok" else None, kind)
                key, said = member, "1"
            elif kind != "route":
                self._keys[key] = None
            client = f"process-{began.process}"
            self.add(Invoke(began.time_ns, self.operations, client, kind, key, said, None, None, None, topics))
            if end is not None:
                value = seen if kind == "get" and outcome == "ok" else None
                members = [Member(_member(key, text), "1") for text in seen] if seen is not None and kind == "route" else None
                self.add(Complete(end.time_ns, self.operations, outcome, None, value, members, None))

    def _serve(self, key: str, member: str, began: _Event, done: _Event | None, kind: str) -> None:
        """Record that a member exists, at its first registration."""
        first_ns = self._members.setdefault(key, {}).setdefault(member, began.time_ns)
        if first_ns == began.time_ns and kind == "register":
            self.add(Truth(began.time_ns, member, 1, "starting", True, "1", [key], 0))
            if done is not None:
                self.add(Truth(done.time_ns, member, 1, "serving", True, "1", [key], 0))


def _records(path: Path, pairs: list[_Pair], nemesis: list[_Event], name: str) -> tuple[_Trace, Iterator[bytes]]:
    """Convert the pairs to the trace and its lines. Consumes the pairs, because a history may be as large as memory allows."""
    times = [began.time_ns for began, _ in pairs] + [end.time_ns for _, end in pairs if end is not None]
    first, last = min(times), max(times)
    faults = [event.time_ns for event in nemesis if first <= event.time_ns <= last]
    trace, kinds = _Trace(path), _kinds(path, pairs)
    pairs.reverse()
    while pairs:
        trace.add_operation(*pairs.pop(), kinds)
    if faults:
        trace.add(Phase(min(faults), "fault"))
        trace.add(Phase(max(faults), "heal"))
    trace.add(Phase(last + 1, "final"))
    trace.add(Phase(last + 1, "end"))
    header = [Header(first, SCHEMA_VERSION, name, 0), Phase(first, "steady")]
    return trace, trace.lines(header, last + 1)


def _kinds(path: Path, pairs: list[_Pair]) -> _Kinds:
    values = [began.value for began, _ in pairs if began.f in ("read", "write", "add", "remove", "cas")]
    independent = (
        bool(values)
        and all(isinstance(value, list) and len(value) == 2 for value in values)
        and not all(began.f == "cas" for began, _ in pairs)
    )
    steps = {
        step[0]
        for began, _ in pairs
        if began.f == "txn" and isinstance(began.value, list)
        for step in began.value
        if isinstance(step, list) and step and isinstance(step[0], str)
    }
    if {"w", "append"} <= steps:
        raise ForeignError(f"{path}: its transactions both append and write (w), expected one of them")
    if any(began.f in ("add", "remove") for began, _ in pairs):
        for began, end in pairs:
            seen = end.value if end is not None and end.type == "ok" and began.f == "read" else []
            if independent and isinstance(seen, list) and len(seen) == 2:
                seen = seen[1]
            if not isinstance(seen, list) and seen is not None:
                raise ForeignError(
                    f"{path}:{began.line}: a read of {_text(seen)[:40]} where others add: a counter, to which no check applies; "
                    f"sets are read as collections"
                )
    return _Kinds(independent, "w" in steps)


def _text(value: Any) -> str:
    """A value as text. Equal values have equal texts. Unpaired surrogates, which UTF-8 does not allow, become escapes."""
    text = str(value) if isinstance(value, str | int) else json.dumps(value, sort_keys=True, default=str)
    return text.encode("utf-8", "backslashreplace").decode()


def _member(key: str, value: str | None) -> str:
    """Name of a member of a topic, without a slash, because the text after a slash would be read as a broker id."""
    return f"{key}:{value}".replace("/", "%2F")


_Part = tuple[str, str, str | None, Any]
"""Kind, key, value written, value read. A value is a text or, for a set, a list of texts."""


def _parts(path: Path, began: _Event, end: _Event | None, of: _Kinds) -> Iterator[_Part]:
    where = f"{path}:{began.line}"
    done = end is not None and end.type == "ok"
    asked = began.value
    answer = end.value if end is not None and done else None
    key = "value"
    if of.independent and began.f != "txn":
        key, asked = _text(asked[0]), asked[1]
        if done:
            if not isinstance(answer, list) or len(answer) != 2:
                raise ForeignError(f"{where}: ends with the value {answer!r}, expected a pair [key value] as everywhere else")
            answer = answer[1]
    match began.f:
        case "read" if isinstance(answer, list):
            yield "route", key, None, list(dict.fromkeys(map(_text, answer)))
        case "read":
            yield "get", key, None, None if answer is None else _text(answer)
        case "write":
            yield "put", key, _text(asked), None
        case "cas":
            if not isinstance(asked, list) or len(asked) != 2:
                raise ForeignError(f"{where}: value of cas is {asked!r}, expected [old new]")
            if done:
                yield "get", key, None, _text(asked[0])
            yield "put", key, _text(asked[1]), None
        case "add" | "remove":
            yield ("register" if began.f == "add" else "unregister"), key, _text(asked), None
        case "txn":
            yield from _transaction(where, asked, answer if done else asked, of.registers)
        case other:
            raise ForeignError(
                f"{where}: f is {other}, which no check applies to; read, write, cas, add, remove and txn (of append "
                f"and r, or of w and r) are known"
            )


def _transaction(where: str, asked: Any, answer: Any, registers: bool) -> Iterator[_Part]:
    if not isinstance(asked, list) or not isinstance(answer, list):
        raise ForeignError(f"{where}: value of txn is {asked!r}, expected a list of [:append key value] and [:r key nil]")
    for wanted, got in zip(asked, answer, strict=False):
        is_step = all(isinstance(step, list) and len(step) == 3 for step in (wanted, got))
        if not is_step or wanted[0] not in ("append", "w", "r"):
            raise ForeignError(f"{where}: {wanted!r} in a txn, expected [:append key value], [:w key value] or [:r key nil]")
        key, said, seen = _text(wanted[1]), wanted[2], got[2]
        if wanted[0] == "append":
            yield "register", key, _text(said), None
        elif wanted[0] == "w":
            yield "put", key, _text(said), None
        elif registers:
            yield "get", key, None, None if seen is None else _text(seen)
        elif seen is None or isinstance(seen, list):
            yield "route", key, None, list(dict.fromkeys(map(_text, seen or [])))
        else:
            raise ForeignError(f"{where}: reads {_text(seen)[:40]} where lists are appended to, expected a list")


def _manifest(name: str, mode: str, path: Path, keys: tuple[list[str], list[str]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION, "run": name, "suite": "imported", "seed": 0, "mode": mode, "judged_as": mode,
        "scenario": {"name": f"imported {path.stem}", "workload": {}}, "read_consistency": "as imported",
        "nodes": [{"node": "unknown", "listen": "", "admin": ""}], "clients": [], "brokers": [], "topics": keys[1],
        "kv_keys": keys[0], "observe_interval_ms": 0, "deadline_ms": 0, "versions": {}, "machine": {}, "started_wall_ns": 0,
        "clock": {"source": "of the imported history", "offsets": {}},
    }  # fmt: skip  # items grouped by line
