"""Schemas of all tables, declared once. docs/tables.md explains the columns.

The columns of trace lines are derived from the record types of ``chaos.records``.
"""

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from replicated_namesrv.chaos.records import RECORDS, Member, Observe, TraceRecord, types_of

_TEXT, _LONG, _FLAG, _REAL, _INT = StringType(), LongType(), BooleanType(), DoubleType(), IntegerType()
_TEXTS = ArrayType(_TEXT)


def _table(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


CORRUPT = "corrupt_line"

_OF_FIELD: tuple[tuple[Any, DataType], ...] = (
    (int, _LONG), (float, _REAL), (str, _TEXT), (bool, _FLAG),
    (list[str], _TEXTS), (list[list[str]], ArrayType(_TEXTS)), (list[Member], _TEXT),
)  # fmt: skip  # items grouped by line
"""Column types by the type of the record's field. Members stay JSON text, because most answers repeat and only new ones are
decoded."""


def _columns_of(*records: type[TraceRecord]) -> StructType:
    """All fields of some record types as columns. A name has the same type in all record types."""
    columns: dict[str, DataType] = {"record": _TEXT}
    for record in records:
        for name, declared in types_of(record).items():
            column = next(column for kind, column in _OF_FIELD if kind == declared)
            if columns.setdefault(name, column) != column:
                raise TypeError(f"{name} is {columns[name]} in one record and {column} in {record.record}")
    return _table(**columns)


RECORD_COLUMNS = _columns_of(*RECORDS.values())
"""The columns for the fields of all record types of a trace."""

OBSERVED = _columns_of(Observe)
"""The columns of observations. Observations have a table of their own: nearly all records of a trace are observations, and a
column costs time even where it is empty."""

LOOKS = _table(
    key=_TEXT, node=_TEXT, asked_ns=_LONG, from_ns=_LONG, last_asked_ns=_LONG, last_ns=_LONG, members=_TEXT,
)  # fmt: skip  # items grouped by line
"""Consecutive observations with the same answer as one row, with the times of the first and the last of them. ``members`` null:
no answer. Consecutive rows may be equal."""

MEMBERS = ArrayType(_table(name=_TEXT, version=_TEXT))

RUNS = _table(
    run=_TEXT, mode=_TEXT, scenario=_TEXT, suite=_TEXT, seed=_LONG, nodes=_INT, read_consistency=_TEXT,
    judged_as=_TEXT, observe_interval_ms=_LONG, deadline_ms=_LONG, fault_s=_REAL, clock_uncertainty_ns=_LONG,
)  # fmt: skip  # items grouped by line

PHASES = _table(run=_TEXT, phase=_TEXT, start_ns=_LONG, end_ns=_LONG)

SIDES = _table(run=_TEXT, node=_TEXT, side=_TEXT, start_ns=_LONG, end_ns=_LONG)

OPERATIONS = _table(
    run=_TEXT, mode=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, op=_LONG, client=_TEXT, kind=_TEXT, key=_TEXT, node=_TEXT,
    answered_by=_TEXT, access=_TEXT, probe=_LONG, start_ns=_LONG, end_ns=_LONG, outcome=_TEXT, value=_TEXT, members=_TEXT,
)  # fmt: skip  # items grouped by line

STATES = _table(
    run=_TEXT, key=_TEXT, node=_TEXT, from_ns=_LONG, until_ns=_LONG, last_asked_ns=_LONG, follows=_FLAG, members=_TEXT,
)  # fmt: skip  # items grouped by line

SEGMENTS = _table(run=_TEXT, key=_TEXT, start_ns=_LONG, end_ns=_LONG, certain=_REAL, possible=_REAL, nodes_known=_INT)

EPISODES = _table(
    run=_TEXT, key=_TEXT, start_ns=_LONG, end_ns=_LONG, area_s=_REAL, divergence_max=_REAL, certain=_FLAG, ended=_FLAG,
)  # fmt: skip  # items grouped by line

CONVERGENCE = _table(run=_TEXT, key=_TEXT, after_ns=_LONG, agreed_ns=_LONG)

PROBES = _table(
    run=_TEXT, level=_TEXT, phase=_TEXT, kind=_TEXT, key=_TEXT, probe=_LONG, asked=_LONG, answers=_LONG, equal=_FLAG,
    start_ns=_LONG,
)  # fmt: skip  # items grouped by line

GAPS = _table(
    run=_TEXT, level=_TEXT, kind=_TEXT, access=_TEXT, entity=_TEXT, phase=_TEXT, side=_TEXT, gap_ns=_LONG,
)  # fmt: skip  # items grouped by line

LOOK_UPS = _table(
    run=_TEXT, mode=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, op=_LONG, must=_INT, found=_INT, answered=_INT, ghosts=_INT,
)  # fmt: skip  # items grouped by line

DETECTIONS = _table(run=_TEXT, broker=_TEXT, life=_LONG, node=_TEXT, detected_ns=_LONG, observed_ns=_LONG)

MISTAKES = _table(
    run=_TEXT, broker=_TEXT, node=_TEXT, at_ns=_LONG, exposed=_FLAG, mistake_ns=_LONG, recurrence_ns=_LONG,
)  # fmt: skip  # items grouped by line

LEADER_SPANS = _table(run=_TEXT, start_ns=_LONG, end_ns=_LONG, leaders=_INT)

READS = _table(
    run=_TEXT, key=_TEXT, level=_TEXT, op=_LONG, anomalous=_FLAG, versions_behind=_LONG, fresh=_FLAG, age_ns=_LONG,
    read_your_writes=_FLAG, monotonic_reads=_FLAG, monotonic_writes=_FLAG, writes_follow_reads=_FLAG,
    lost=_FLAG, resurrected=_FLAG,
)  # fmt: skip  # items grouped by line

WRITES = _table(run=_TEXT, key=_TEXT, level=_TEXT, op=_LONG, window_ns=_LONG, seen_ns=_LONG, reads_after=_LONG)

KEYS = _table(
    run=_TEXT, key=_TEXT, level=_TEXT, verdict=_TEXT, operations=_LONG, delta_ns=_LONG, pairs=_LONG, conflicts=_LONG,
    gamma_max_ns=_LONG, gammas_ns=ArrayType(_LONG),
)  # fmt: skip  # items grouped by line

JUDGED = StructType(
    [
        *_table(run=_TEXT, key=_TEXT, level=_TEXT, what=_TEXT).fields,
        *{
            field.name: field
            for table in (READS, WRITES, KEYS)
            for field in table.fields
            if field.name not in ("run", "key", "level")
        }.values(),
    ]
)
"""Columns of READS, WRITES and KEYS in one table; ``what`` is the kind of row."""

_ARROW = {
    "string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "double": pa.float64(), "int": pa.int32(),
    "array<string>": pa.list_(pa.string()), "array<bigint>": pa.list_(pa.int64()),
    "array<array<string>>": pa.list_(pa.list_(pa.string())),
}  # fmt: skip  # items grouped by line


def arrow(schema: StructType) -> pa.Schema:
    """The same schema for PyArrow. It is needed because the types of a table without rows would be unknown."""
    return pa.schema([(field.name, _ARROW[field.dataType.simpleString()]) for field in schema.fields])


PER_RUN = _table(
    run=_TEXT, mode=_TEXT, scenario=_TEXT, seed=_LONG, nodes=_INT, fault_s=_REAL, level=_TEXT, phase=_TEXT, side=_TEXT,
    metric=_TEXT, value=_REAL, count=_LONG, clock_uncertainty_ms=_REAL,
)  # fmt: skip  # items grouped by line
"""Columns for one figure of one run. ``count`` is the number of observations. ``clock_uncertainty_ms``, for M4 to M8, is the
possible error between the clocks of two nodes."""

SUMMARY = _table(
    mode=_TEXT, scenario=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, metric=_TEXT, unit=_TEXT, runs=_INT, mean=_REAL,
    low=_REAL, high=_REAL, minimum=_REAL, maximum=_REAL, count=_LONG, clock_uncertainty_ms=_REAL, points=_TEXT,
)  # fmt: skip  # items grouped by line

PAIRED = _table(
    scenario=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, metric=_TEXT, unit=_TEXT, pairs=_INT, ap=_REAL, cp=_REAL,
    difference=_REAL, low=_REAL, high=_REAL, clock_uncertainty_ms=_REAL, is_primary=_FLAG, chance=_REAL, chance_adjusted=_REAL,
)  # fmt: skip  # items grouped by line

T_VISIBILITY = _table(
    mode=_TEXT, about=_TEXT, level=_TEXT, share=_REAL, age_ms=_REAL, low_ms=_REAL, high_ms=_REAL, runs=_INT, writes=_LONG,
    clock_uncertainty_ms=_REAL,
)  # fmt: skip  # items grouped by line
"""Columns of t-visibility. ``age_ms`` null: the share is not reached within the observed ages."""

DETECTION = _table(mode=_TEXT, at_s=_REAL, undetected=_REAL, pairs=_LONG)
"""Columns of the survival curve of detection: the share of the pairs of a death and a node for which the death is undetected
after ``at_s``."""

HELD = _table(
    run=_TEXT, about=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, asked=_LONG, answered=_LONG, **{"class": _TEXT}, held=_LONG,
)  # fmt: skip  # items grouped by line
"""Columns of the counts of reads: ``asked``, ``answered``, and answered as a class of consistency requires (``held``)."""

CONSISTABILITY = _table(
    mode=_TEXT, scenario=_TEXT, about=_TEXT, level=_TEXT, phase=_TEXT, side=_TEXT, **{"class": _TEXT}, probability=_REAL,
    low=_REAL, high=_REAL, of_answered=_REAL, whole_runs=_REAL, runs=_INT, asked=_LONG, clock_uncertainty_ms=_REAL,
)  # fmt: skip  # items grouped by line
"""Columns of M9: ``probability`` that a read is answered as the class requires, the same for answered reads only, and the share
of runs in which every answer met the class."""

CURVE_DIVERGENCE = _table(run=_TEXT, at_s=_REAL, divergence=_REAL, possible=_REAL)
CURVE_FAULTS = _table(run=_TEXT, steady_s=_REAL, end_s=_REAL, until_s=_REAL)
CURVE_WINDOWS = _table(run=_TEXT, about=_TEXT, window_ns=_LONG)
CURVE_VISIBILITY = _table(run=_TEXT, about=_TEXT, level=_TEXT, first=_INT, after=_INT, writes=_LONG)
CURVE_LATENCIES = _table(run=_TEXT, level=_TEXT, kind=_TEXT, latency_ns=_LONG)
