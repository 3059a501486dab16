"""Traces: every written record is read back, even if the writer was killed. A file that is not a trace is refused by name."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicated_namesrv.chaos import records
from replicated_namesrv.chaos.records import (
    RECORDS,
    Complete,
    End,
    FaultRecord,
    Header,
    Member,
    Observe,
    TraceError,
    TraceRecord,
    TraceWriter,
    Truth,
    decode,
    encode,
    read_trace,
)

SAMPLES: list[TraceRecord] = [
    Header(1, records.SCHEMA_VERSION, "run", 2),
    Complete(2, 1, "ok", "n1", None, [Member("b/0", "7")], None),
    Observe(3, 2, "n1", "brokers", True, [], 4, "cover"),
    FaultRecord(4, 1, "start", 3, "halves", "held", ["n1"], ["n1>n2"], [["n2", "n3"], ["n1"]], ["both"]),
    Truth(5, "b/0", 1, "serving", True, None, ["t"], 3000),
    End(6, 5),
]


def write(path: Path, samples: list[TraceRecord]) -> None:
    writer = TraceWriter(path)
    for sample in samples:
        writer.write(sample)
    writer.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "trace.jsonl", SAMPLES)
    trace = read_trace(tmp_path / "trace.jsonl")
    assert trace.records == SAMPLES
    assert trace.complete


def test_every_field_is_always_present() -> None:
    for sample in SAMPLES:
        assert set(json.loads(encode(sample))) == {"record", *sample.__slots__, "time_ns"}


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, SAMPLES)
    path.write_bytes(path.read_bytes()[:-9])
    trace = read_trace(path)
    assert (trace.records, trace.torn, trace.corrupt) == (SAMPLES[:-1], 1, [])
    assert not trace.complete


def test_a_corrupt_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, SAMPLES)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{oops\n", *lines[2:]]))
    trace = read_trace(path)
    assert trace.records == SAMPLES
    assert trace.corrupt[0].startswith("line 3:")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "does not begin with a header"),
        (encode(End(1, 0)), "does not begin with a header"),
        (encode(Header(1, 99, "run", 2)), "schema version 99"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=expected):
        read_trace(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"[]", "an object is expected"),
        (b'{"record":"bogus"}', "unknown record type 'bogus'"),
        (b'{"record":"end","time_ns":1}', "records is missing"),
        (b'{"record":"end","time_ns":"1","records":2}', "time_ns is '1', expected int"),
        (b'{"record":"end","time_ns":true,"records":2}', "time_ns is True, expected int"),
    ],
)
def test_a_wrong_record_is_named(line: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        decode(line)


def test_a_fault_of_an_older_trace_does_not_say_which_streams_it_bore_on() -> None:
    fields = json.loads(encode(next(sample for sample in SAMPLES if isinstance(sample, FaultRecord))))
    del fields["streams"]
    found = decode(json.dumps(fields).encode())
    assert isinstance(found, FaultRecord)
    assert (found.links, found.streams) == (["n1>n2"], None)


def test_a_trace_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "trace.jsonl", SAMPLES)
    with pytest.raises(TraceError, match="folder of its own"):
        TraceWriter(tmp_path / "trace.jsonl")


def test_records_survive_kill_9_of_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    program = (
        "import sys, pathlib; from replicated_namesrv.chaos.records import *\n"
        "writer = TraceWriter(pathlib.Path(sys.argv[1])); writer.write(Header(0, SCHEMA_VERSION, 'run', 0))\n"
        "for number in range(1, 10**9):\n"
        "    writer.write(Phase(number, 'steady'))\n"
        "    if number == 1000: print('ready', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    trace = read_trace(path)
    assert len(trace.records) > 1000
    assert trace.torn <= 1
    assert not trace.corrupt


def test_the_schema_page_names_every_record_and_field() -> None:
    page = (Path(__file__).parents[2] / "chaos" / "DESIGN.md").read_text(encoding="utf-8")
    for name, kind in RECORDS.items():
        row = next((line for line in page.splitlines() if line.startswith(f"| {name} |")), "")
        assert row, f"the record {name} has no row in chaos/DESIGN.md"
        missing = [field for field in kind.__slots__ if field not in row]
        assert not missing, f"the row {name} of chaos/DESIGN.md lacks {', '.join(missing)}"
