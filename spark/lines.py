"""Converts lines of a trace to columns: observations, and events (all other records and lines that are not records). Pure.

Nearly all lines are observations written by one program, and most differ from an earlier line in their two times only. A line
that begins in the usual way is split into these times, which numpy reads, and the rest, which is decoded once for all lines
with the same rest. The result equals that of decoding the whole line: the rest is a JSON object without the times, so both
together form one JSON object. Every other line is decoded by itself.

A line is a good record if it is a JSON object whose ``record`` is known, with an integer ``time_ns`` and values that fit the
columns. Text columns accept any value, as its JSON. Blank lines are ignored.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from replicated_namesrv.chaos.records import RECORDS, Observe
from replicated_namesrv.spark.schemas import CORRUPT, OBSERVED, RECORD_COLUMNS, arrow

OBSERVE = Observe.record
OBSERVATIONS = arrow(OBSERVED)
"""Schema of the observations."""
EVENTS = arrow(RECORD_COLUMNS).remove(RECORD_COLUMNS.names.index("run")).append(pa.field(CORRUPT, pa.string()))
"""Schema of the events. A line that is not a record has its text in the column CORRUPT and null in all others."""

_BEGIN = b'{"record":"observe","time_ns":'
_ASKED = b',"asked_ns":'
_BLANK = b" \t\r\n"
_DIGITS_MAX = 18
"""Maximum number of digits of a number that certainly fits into 64 bits."""
_LEAD = ("record", "time_ns", "asked_ns")
_OBSERVED = frozenset(OBSERVED.names)
_OTHER = frozenset(RECORD_COLUMNS.names) - {"run"}
_REST = _OBSERVED.difference(_LEAD)

Places = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Lines(NamedTuple):
    """The lines as two tables, OBSERVATIONS and EVENTS."""

    observations: pa.Table
    events: pa.Table


def split(text: bytes) -> pa.Array:
    """Lines of ``text``, each with its line feed."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    if text and not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    return _slices(pa.py_buffer(text), np.concatenate((np.zeros(1, np.int64), ends)))


def _slices(buffer: pa.Buffer, offsets: Places) -> pa.Array:
    """The bytes between each offset and the next one."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int32)), buffer])


def read(lines: pa.Array) -> Lines:
    """Read binary ``lines``, without nulls, with or without line feeds."""
    alike, regular = _regular(lines)
    events: list[dict[str, Any]] = []
    looks: list[dict[str, Any]] = []
    for line in lines.take(np.flatnonzero(~regular)).to_pylist():
        if line.strip(_BLANK):
            row = _decoded(line)
            (looks if row.get("record") == OBSERVE else events).append(row)
    return Lines(pa.concat_tables([alike, _columns(looks, OBSERVATIONS)]), _columns(events, EVENTS))


def _regular(lines: pa.Array) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Observations among the lines that begin in the usual way, and for each line whether it is one of them."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1].astype(np.int64)
    text = lines.buffers()[2] or pa.py_buffer(b"")
    content = np.frombuffer(text, np.uint8)
    begins = pc.starts_with(lines, _BEGIN).to_numpy(zero_copy_only=False)
    longest = len(_BEGIN) + len(_ASKED) + 2 * _DIGITS_MAX + 2
    places = np.flatnonzero(begins & (offsets[:-1] + longest <= len(content)))
    time_ns, after = _numbers(content, offsets[places] + len(_BEGIN))
    asked = (content[after[:, None] + np.arange(len(_ASKED))] == np.frombuffer(_ASKED, np.uint8)).all(axis=1)
    asked_ns = np.zeros(len(places), np.int64)
    asked_ns[asked], after[asked] = _numbers(content, after[asked] + len(_ASKED))
    good = (time_ns >= 0) & (asked_ns >= 0) & (after < offsets[places + 1]) & (content[after] == ord(","))
    places, time_ns, asked, asked_ns, after = (part[good] for part in (places, time_ns, asked, asked_ns, after))
    if len(places) == 0:
        return OBSERVATIONS.empty_table(), np.zeros(len(lines), bool)
    # ``_slices`` cuts at all places. Its even slices are the rests of the lines; the odd ones lie between them.
    rests = _slices(text, np.stack((after, offsets[places + 1]), axis=1).ravel())
    rests = rests.take(np.arange(0, 2 * len(places), 2)).dictionary_encode()
    decoded = [_rest(rest) for rest in rests.dictionary.to_pylist()]
    of_rest = rests.indices.to_numpy()
    fits = np.array([row is not None for row in decoded], bool)[of_rest]
    places, time_ns, asked, asked_ns, of_rest = (part[fits] for part in (places, time_ns, asked, asked_ns, of_rest))
    columns = {
        "record": pa.repeat(pa.scalar(OBSERVE), len(places)),
        "time_ns": pa.array(time_ns),
        "asked_ns": pa.array(asked_ns, mask=~asked),
    }
    for name in _REST:
        values = pa.array([row and row.get(name) for row in decoded], OBSERVATIONS.field(name).type)
        columns[name] = values.take(of_rest)
    regular = np.zeros(len(lines), bool)
    regular[places] = True
    return pa.table(columns, schema=OBSERVATIONS), regular


def _numbers(content: Bytes, starts: Places) -> tuple[Places, Places]:
    """The decimal number at each of ``starts`` and its end; -1 if there is no number in JSON's form."""
    # a character other than a digit becomes 10 or more, because the type is unsigned
    digits = content[starts[:, None] + np.arange(_DIGITS_MAX + 1)] - ord("0")
    lengths = np.argmax(digits > 9, axis=1)  # also 0 if all characters are digits, because these are too many
    values = np.full(len(starts), -1, np.int64)
    for length in np.flatnonzero(np.bincount(lengths, minlength=1)):
        same = np.flatnonzero((lengths == length) & ((length == 1) | (digits[:, 0] > 0)))
        if length > 0:
            values[same] = digits[same, :length].astype(np.int64) @ 10 ** np.arange(length - 1, -1, -1, dtype=np.int64)
    return values, starts + lengths


def _rest(rest: bytes) -> dict[str, Any] | None:
    """The members of the record after the times. None if the bytes are not the rest of an observation, or contain the times
    again.
    """
    try:
        row = orjson.loads(b"{" + rest[1:])
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not row or any(name in row for name in _LEAD):
        return None
    return _fitting(row, _REST)


def _decoded(line: bytes) -> dict[str, Any]:
    """A record as a row, or its text as CORRUPT."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
    if isinstance(row, dict) and str(row.get("record")) in RECORDS and row.get("time_ns") is not None:
        found = _fitting(row, _OBSERVED if row["record"] == OBSERVE else _OTHER)
        if found is not None:
            return found
    return {CORRUPT: line.decode("utf-8", "replace").strip()}


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(text is None or type(text) is str for text in value)


_FITS: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.int64(): _is_int64,
    pa.float64(): lambda value: type(value) is float,
    pa.bool_(): lambda value: type(value) is bool,
    pa.list_(pa.string()): _is_texts,
    pa.list_(pa.list_(pa.string())): lambda value: type(value) is list and all(map(_is_texts, value)),
}
_FITS_COLUMN = {field.name: _FITS.get(field.type) for field in EVENTS}
"""For each column, whether a value fits into it; None for text."""


def _fitting(row: dict[str, Any], columns: Container[str]) -> dict[str, Any] | None:
    """The row's values of ``columns``, without nulls. None if a value does not fit."""
    found = {}
    for name, value in row.items():
        if value is not None and name in columns:
            fits = _FITS_COLUMN[name]
            if fits is None:
                found[name] = value if type(value) is str else orjson.dumps(value).decode()
            elif fits(value):
                found[name] = value
            else:
                return None
    return found


def _columns(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """The columns of rows. Each kind of record becomes a table of its own first, because it has only a few of the columns."""
    kinds: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[row.get("record")].append(row)
    tables = [schema.empty_table()]
    for alike in kinds.values():
        given = set().union(*alike)
        columns = [
            pa.array([row.get(field.name) for row in alike], field.type)
            if field.name in given
            else pa.nulls(len(alike), field.type)
            for field in schema
        ]
        tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables)
