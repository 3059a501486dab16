"""Histories of client operations: one JSON object per line, so that other checkers can read them.

    {"client": "c1", "op": "write", "key": "k", "value": "v1", "start_ns": 10, "end_ns": 20, "outcome": "ok"}

``value`` is the value written or read; null is "absent". All times come from one clock. ``outcome`` is ``ok``, ``fail`` if the
operation was certainly not applied, or ``indeterminate`` if the client did not learn the outcome (time-out, connection lost,
leader changed). An indeterminate operation may take effect at any time after its start, or never. Its ``end_ns`` is ignored
and may be null.
"""

import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeAlias

from replicated_namesrv.errors import NamesrvError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_MAX_LINE_BYTES = 1 << 20


class HistoryError(NamesrvError):
    """A history that cannot be read or is inconsistent. The text names file, line, field and remedy."""


class Outcome(StrEnum):
    """The outcome of an operation as its client knows it."""

    OK = "ok"
    FAIL = "fail"
    """The operation was certainly not applied."""
    INDETERMINATE = "indeterminate"
    """The operation was applied, was not applied, or will be applied later."""


class Operation(NamedTuple):
    """One operation of one client."""

    client: str
    op: str
    key: str
    value: Json
    start_ns: int
    end_ns: int | None
    """When the operation ended. None is allowed only for an indeterminate operation."""
    outcome: Outcome

    def describe(self, origin_ns: int = 0) -> str:
        """One line of text; times in milliseconds after ``origin_ns``."""
        start = f"{(self.start_ns - origin_ns) / 1e6:.3f}"
        known = self.outcome is not Outcome.INDETERMINATE and self.end_ns is not None
        end = f"{((self.end_ns or 0) - origin_ns) / 1e6:.3f}" if known else "never known"
        return f"{start} .. {end} ms  {self.client}: {self.op} {self.key} = {json.dumps(self.value)} ({self.outcome})"


def parse_operation(line: str | bytes, where: str) -> Operation:
    """Decode one line. ``where`` (file and line number) prefixes the text of a HistoryError."""
    if len(line) > _MAX_LINE_BYTES:
        raise HistoryError(f"{where}: longer than {_MAX_LINE_BYTES} bytes; one operation on each line is expected")
    try:
        record = json.loads(line)
    except ValueError as error:
        raise HistoryError(f"{where}: not JSON ({error}); expected one JSON object on each line") from None
    if not isinstance(record, dict):
        raise HistoryError(f"{where}: a JSON {type(record).__name__} where an object is expected")
    for name in ("client", "op", "key"):
        if not isinstance(record.get(name), str):
            raise HistoryError(f"{where}: {name} is {record.get(name)!r}; a string is expected")
    if "value" not in record:
        raise HistoryError(f"{where}: value is missing; null means absent")
    try:
        outcome = Outcome(str(record.get("outcome")))
    except ValueError:
        raise HistoryError(f"{where}: outcome is {record.get('outcome')!r}; expected ok, fail or indeterminate") from None
    start_ns = _time(record, "start_ns", where)
    end_ns = None
    if outcome is not Outcome.INDETERMINATE or record.get("end_ns") is not None:
        end_ns = _time(record, "end_ns", where)
        if end_ns < start_ns:
            raise HistoryError(f"{where}: end_ns {end_ns} is before start_ns {start_ns}; one monotonic clock is expected")
    return Operation(record["client"], record["op"], record["key"], record["value"], start_ns, end_ns, outcome)


def _time(record: dict[str, Json], field: str, where: str) -> int:
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HistoryError(
            f"{where}: {field} is {value!r}; nanoseconds as an integer are expected (end_ns null if indeterminate)"
        )
    return value


def iterate_history(path: Path) -> Iterator[Operation]:
    """Read a history line by line. Empty lines are skipped, additional fields are ignored. Raises HistoryError."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield parse_operation(line, f"{path}:{number}")
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read: {error.strerror}") from error


def read_history(path: Path) -> list[Operation]:
    """The whole history of ``path``. Raises HistoryError."""
    return list(iterate_history(path))


def format_operation(operation: Operation) -> str:
    """One line without its line feed."""
    return json.dumps(operation._asdict(), separators=(",", ":"))


def write_history(path: Path, operations: Iterable[Operation]) -> None:
    """Write ``operations`` to ``path``, replacing it. Raises HistoryError."""
    try:
        with path.open("w", encoding="utf-8") as lines:
            for operation in operations:
                lines.write(format_operation(operation) + "\n")
    except OSError as error:
        raise HistoryError(f"{path}: cannot be written: {error.strerror}") from error
