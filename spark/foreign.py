"""Histories of other tools as runs of ours: Jepsen's, in EDN or as JSON lines, into a trace that ``namesrv analyze`` reads.

An operation is a map with ``type`` (invoke, ok, fail, info), ``f``, ``value``, ``process`` and ``time`` (nanoseconds); what a
process invokes is completed by its next line, and ``info``, or no completion, means that nobody knows. The nemesis, any process
that is no number, gives the phases: from its first to its last operation lies the fault.

=====================  ================================================================================================
f                      becomes
=====================  ================================================================================================
read, write            ``get`` and ``put`` of a key of the key-value store
cas                    its read and its write, both, in the same time: what is found wrong with them is wrong, but that
                       nothing came between the two is not checked
add, remove, read      a set: ``register`` and ``unregister`` of a member of a topic, and ``route`` of the topic
txn of append and r    the same for each list; the order within a list and transactions over several are not checked
=====================  ================================================================================================

Values of independent keys are pairs [key, value]; they are known by every value of a read or write being one. Values that are
written more than once make all but M1 bounds, as in any history; DESIGN.md says which.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.spark import edn

LINE_CHARACTERS_MAX = 1 << 20
OPERATIONS_MAX = 5_000_000
TYPES = ("invoke", "ok", "fail", "info")
OUTCOMES = {"ok": "ok", "fail": "fail", "info": "indeterminate"}


class ForeignError(NamesrvError):
    """A history that cannot be imported; the text names file, line and remedy."""


Record = dict[str, Any]
"""A line of the trace."""


@dataclass(slots=True)
class _Event:
    line: int
    type: str
    f: str
    value: Any
    process: Any
    time_ns: int


@dataclass(slots=True)
class Imported:
    """What was made."""

    folder: Path
    operations: int
    unknown: int
    """Operations of which nobody learned what became of them."""
    torn: int
    """1 if the last line was cut off, and left out."""


def import_history(path: Path, name: str, mode: str, out: Path, say: Callable[[str], None]) -> Imported:
    """Make the run ``name`` in ``out`` from the history ``path`` (.edn, or JSON lines). Raises ForeignError."""
    folder = out / name
    if folder.exists():
        raise ForeignError(f"{folder}: exists already; remove it, or choose another --name or --out")
    if not name or set(name) & set("/=%:\\"):
        raise ForeignError(f"--name {name}: a name without / = % : and \\ is expected")
    events, torn = _read(path)
    if not events:
        raise ForeignError(f"{path}: holds no operation; Jepsen's history.edn of a test is expected")
    say(f"{path}: {len(events):,} events")
    pairs, nemesis = _paired(path, events)
    records, operations, unknown, keys = _records(path, pairs, nemesis, name)
    staging = out / f".importing-{name}"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        (staging / "manifest.json").write_text(json.dumps(_manifest(name, mode, path, keys), indent=1) + "\n", encoding="utf-8")
        with (staging / "trace.jsonl").open("w", encoding="utf-8") as trace:
            trace.writelines(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Imported(folder, operations, unknown, torn)


def _read(path: Path) -> tuple[list[_Event], int]:
    is_edn = path.suffix.lower() == ".edn"
    events: list[_Event] = []
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            number = 0
            while line := lines.readline(LINE_CHARACTERS_MAX + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > LINE_CHARACTERS_MAX:
                    most = f"{LINE_CHARACTERS_MAX:,} characters"
                    raise ForeignError(f"{where}: longer than {most}; one operation a line is expected")
                text = line.strip() if not is_edn else _without_brackets(line)
                if not text or text.startswith(";"):
                    continue
                try:
                    value = edn.read(text) if is_edn else json.loads(text)
                except ValueError as cause:
                    if not line.endswith("\n"):
                        return events, 1  # the writer was cut off
                    expected = f"one operation a line in {'EDN' if is_edn else 'JSON'} is expected"
                    raise ForeignError(f"{where}: {cause}; {expected}") from None
                events.append(_event(value, number, where))
                if len(events) > OPERATIONS_MAX:
                    raise ForeignError(f"{where}: more than {OPERATIONS_MAX:,} events; import the history in parts")
    except UnicodeDecodeError:
        raise ForeignError(f"{path}: is no UTF-8 text; Jepsen's history.edn is expected, not the binary test.jepsen") from None
    except OSError as cause:
        raise ForeignError(f"{path}: cannot be read ({cause.strerror}); give a history's file") from cause
    return events, 0


def _without_brackets(line: str) -> str:
    """An operation's own text where the whole history is one vector, an operation a line."""
    text = line.strip().strip(",")
    if (text.startswith("[") and not text.endswith("]")) or text == "[":
        text = text[1:].strip()
    if text.endswith("]") and text.count("[") + 1 == text.count("]"):
        text = text[:-1].strip()
    return text


def _event(value: Any, number: int, where: str) -> _Event:
    if not isinstance(value, dict):
        raise ForeignError(f"{where}: is no map; an operation like {{:type :invoke, :f :read, …}} is expected")
    kind = value.get("type")
    if kind not in TYPES:
        raise ForeignError(f"{where}: type is {kind!r}, expected one of {', '.join(TYPES)}")
    if not isinstance(value.get("f"), str):
        raise ForeignError(f"{where}: f is {value.get('f')!r}, expected a name such as read")
    time_ns = value.get("time")
    if isinstance(time_ns, bool) or not isinstance(time_ns, int) or not 0 <= time_ns < 2**62:
        raise ForeignError(f"{where}: time is {time_ns!r}, expected nanoseconds since the begin of the test")
    if value.get("process") is None:
        raise ForeignError(f"{where}: process is missing, so it cannot be told whose operation this is")
    return _Event(number, kind, str(value["f"]), value.get("value"), value["process"], time_ns)


_Pair = tuple[_Event, _Event | None]


def _paired(path: Path, events: list[_Event]) -> tuple[list[_Pair], list[_Event]]:
    """Invocations with their completions, and what the nemesis did."""
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
                    f"{where}: process {event.process} invokes before its last operation ended; are lines missing?"
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


def _records(
    path: Path, pairs: list[_Pair], nemesis: list[_Event], name: str
) -> tuple[list[Record], int, int, tuple[list[str], list[str]]]:
    times = [began.time_ns for began, _ in pairs] + [end.time_ns for _, end in pairs if end is not None]
    first, last = min(times), max(times)
    faults = [event.time_ns for event in nemesis if first <= event.time_ns <= last]
    body: list[Record] = []
    members: dict[str, dict[str, int]] = {}
    keys: dict[str, None] = {}
    independent = _is_independent(pairs)
    number = unknown = 0
    for began, end in pairs:
        outcome = "indeterminate" if end is None else OUTCOMES[end.type]
        unknown += outcome == "indeterminate"
        for kind, key, said, seen in _parts(path, began, end, independent):
            number += 1
            topics = None
            if kind in ("register", "unregister"):
                topics, member = [key], _member(key, said)
                first_ns = members.setdefault(key, {}).setdefault(member, began.time_ns)
                if first_ns == began.time_ns and kind == "register":
                    body.append(_truth(began.time_ns, member, "starting", key))
                    if outcome == "ok" and end is not None:
                        body.append(_truth(end.time_ns, member, "serving", key))
                key, said = member, "1"
            elif kind != "route":
                keys[key] = None
            body.append(
                {
                    "record": "invoke", "time_ns": began.time_ns, "op": number, "kind": kind,
                    "client": f"process-{began.process}", "key": key, "value": said, "node": None, "level": None, "probe": None,
                    "topics": topics,
                }
            )  # fmt: skip
            if end is not None:
                listed = (
                    None if seen is None or kind != "route" else [{"name": _member(key, text), "version": "1"} for text in seen]
                )
                value = seen if kind == "get" and outcome == "ok" else None
                body.append(
                    {
                        "record": "complete", "time_ns": end.time_ns, "op": number, "outcome": outcome, "node": None,
                        "value": value, "members": listed, "error": None,
                    }
                )  # fmt: skip
    marks: list[Record] = [
        {"record": "header", "time_ns": first, "schema": 1, "run": name, "wall_ns": 0},
        _phase(first, "steady"),
    ]
    if faults:
        marks += [_phase(min(faults), "fault"), _phase(max(faults), "heal")]
    body += [*marks[2:], _phase(last + 1, "final"), _phase(last + 1, "end")]
    body.sort(key=lambda record: record["time_ns"])
    records = [*marks[:2], *body]
    return (
        [*records, {"record": "end", "time_ns": last + 1, "records": len(records)}],
        number,
        unknown,
        (list(keys), list(members)),
    )


def _phase(time_ns: int, phase: str) -> Record:
    return {"record": "phase", "time_ns": time_ns, "phase": phase}


def _truth(time_ns: int, member: str, state: str, key: str) -> Record:
    return {
        "record": "truth", "time_ns": time_ns, "broker": member, "life": 1, "state": state, "writable": True, "version": "1",
        "topics": [key], "timeout_ms": 0,
    }  # fmt: skip


def _is_independent(pairs: list[_Pair]) -> bool:
    values = [began.value for began, _ in pairs if began.f in ("read", "write", "add", "remove", "cas")]
    return (
        bool(values)
        and all(isinstance(value, list) and len(value) == 2 for value in values)
        and not all(began.f == "cas" for began, _ in pairs)
    )


def _text(value: Any) -> str:
    """A value as text; the same value, the same text."""
    return str(value) if isinstance(value, str | int) else json.dumps(value, sort_keys=True, default=str)


def _member(key: str, value: str | None) -> str:
    """Name of a member of a topic; what follows a slash would be taken for the number of a broker."""
    return f"{key}:{value}".replace("/", "%2F")


_Part = tuple[str, str, str | None, Any]
"""Kind, key, what is written, what was read: text, or of a set a list of texts."""


def _parts(path: Path, began: _Event, end: _Event | None, independent: bool) -> Iterator[_Part]:
    where = f"{path}:{began.line}"
    done = end is not None and end.type == "ok"
    asked = began.value
    answer = end.value if end is not None and done else None
    key = "value"
    if independent and began.f != "txn":
        key, asked = _text(asked[0]), asked[1]
        if done:
            if not isinstance(answer, list) or len(answer) != 2:
                raise ForeignError(f"{where}: ends with the value {answer!r}, expected a pair [key value] as everywhere else")
            answer = answer[1]
    match began.f:
        case "read" if isinstance(answer, list):
            yield "route", key, None, [_text(item) for item in dict.fromkeys(map(_text, answer))]
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
            yield from _transaction(where, asked, answer if done else asked)
        case other:
            raise ForeignError(
                f"{where}: f is {other}, which no check applies to; read, write, cas, add, remove and txn (of append "
                f"and r) are known"
            )


def _transaction(where: str, asked: Any, answer: Any) -> Iterator[_Part]:
    for wanted, got in zip(asked or [], answer or [], strict=False):
        if not (isinstance(wanted, list) and len(wanted) == 3 and wanted[0] in ("append", "r")):
            raise ForeignError(f"{where}: {wanted!r} in a txn, expected [:append key value] or [:r key nil]")
        if wanted[0] == "append":
            yield "register", _text(wanted[1]), _text(wanted[2]), None
        else:
            yield "route", _text(wanted[1]), None, [_text(item) for item in dict.fromkeys(map(_text, got[2] or []))]


def _manifest(name: str, mode: str, path: Path, keys: tuple[list[str], list[str]]) -> dict[str, Any]:
    return {
        "schema": 1, "run": name, "suite": "imported", "seed": 0, "mode": mode, "judged_as": mode,
        "scenario": {"name": f"imported {path.stem}", "workload": {}}, "read_consistency": "as imported",
        "nodes": [{"node": "unknown", "listen": "", "admin": ""}], "clients": [], "brokers": [], "topics": keys[1],
        "kv_keys": keys[0], "observe_interval_ms": 0, "deadline_ms": 0, "versions": {}, "machine": {}, "started_wall_ns": 0,
        "clock": {"source": "of the imported history", "offsets": {}},
    }  # fmt: skip
