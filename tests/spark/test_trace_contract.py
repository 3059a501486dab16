"""``chaos.records`` is the only declaration of a trace's content. Pages and writers are compared with it."""

from pathlib import Path

import pyarrow as pa
import pytest

from replicated_namesrv.chaos.records import RECORDS, Observe, Send, TraceRecord, read_trace, types_of
from replicated_namesrv.spark import lines
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.lines import EVENTS, read
from replicated_namesrv.spark.schemas import RECORD_COLUMNS
from tests.spark import dictionary
from tests.support.places import assert_same_names


@pytest.mark.parametrize("kind", [kind for kind in RECORDS.values() if kind is not Observe])
def test_the_page_of_tables_has_every_field_of_every_record(kind: type[TraceRecord]) -> None:
    rows = [line.split("|") for line in dictionary.described()["events"].splitlines() if line.startswith(f"| {kind.record} |")]
    columns = [row[2].strip().split(", ") for row in rows]
    assert len(columns) == 1, f"docs/tables.md has {len(columns)} rows in its table of events for {kind.record}: write one"
    fields = [name for name in types_of(kind) if name not in ("time_ns", "run")]
    assert_same_names(columns[0], f"the row {kind.record} of docs/tables.md", fields, "the record in chaos/records.py")
    assert columns[0] == fields, f"docs/tables.md: the row {kind.record} has another order than chaos/records.py"


def test_columns_of_lines_are_the_fields_of_records() -> None:
    fields = {name for kind in RECORDS.values() for name in types_of(kind)}
    assert_same_names(RECORD_COLUMNS.names, "RECORD_COLUMNS of spark/schemas.py", ["record", *fields], "chaos/records.py")
    assert RECORD_COLUMNS["op"].dataType.simpleString() == "bigint"
    assert RECORD_COLUMNS["sides"].dataType.simpleString() == "array<array<string>>"
    assert types_of(Send)["broker"] is str, "that it may be null is left out"


def test_each_type_of_column_is_read() -> None:
    """A value of a type that the reader does not know would be taken for text, and Arrow refuses that as a number."""
    unknown = [field.name for field in EVENTS if field.type != pa.string() and lines._FITS_COLUMN[field.name] is None]
    assert not unknown, f"spark/lines.py has no reader in _FITS_COLUMN for the type of {', '.join(unknown)}"


def test_generated_traces_hold_whole_records(tmp_path: Path) -> None:
    for folder in generate(10_000, 3, 1, tmp_path, print):
        trace = read_trace(folder / "trace.jsonl")
        assert (trace.corrupt, trace.torn) == ([], 0)


def test_lines_of_older_traces_are_read() -> None:
    """Older traces lack fields that were added later. Fields that no record declares are ignored."""
    line = b'{"record":"fault","time_ns":5,"fault":1,"edge":"start","began_ns":4,"links":["n1>n2"],"sides":[["n1"]],"source":"n"}'
    (row,) = read(pa.array([line], pa.binary())).events.to_pylist()
    known = {name: value for name, value in row.items() if value is not None}
    assert known == {
        "record": "fault", "time_ns": 5, "fault": 1, "edge": "start", "began_ns": 4, "links": ["n1>n2"], "sides": [["n1"]],
    }  # fmt: skip  # items grouped by line
