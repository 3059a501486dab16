"""Every line of a trace, of any form, is in exactly one of two tables with its correct content, whether workers or Spark read the
file."""

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.chaos.records import RECORDS
from replicated_namesrv.spark import parts
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.ingest import ingest
from replicated_namesrv.spark.judge_job import judge_runs
from replicated_namesrv.spark.lines import EVENTS, OBSERVATIONS, read, split
from replicated_namesrv.spark.schemas import CORRUPT
from replicated_namesrv.spark.sources import find_runs
from replicated_namesrv.spark.storage import SparkStorage

ODD = (
    b"{}", b"[]", b" [ ]", b"null", b"3", b'"record"', b'{"record":null}', b'{"record":5,"time_ns":1}', b'{"record":"end"}',
    b'{"record":"observe","time_ns":12', b'5,"asked_ns":4,"node":"n1"}', b'{"record":"observe","time_ns":012,"node":"n1"}',
    b'{"record":"observe","time_ns":12,}', b'{"record":"observe","time_ns":12,"asked_ns":,"node":"n1"}',
    b'{"record":"observe","time_ns":-12,"node":"n1"}', b'{"record":"observe","time_ns":12,"asked_ns":-3,"node":"n1"}',
    b'{"record":"observe","time_ns":12,"node":"n1","time_ns":13}', b'{"record":"observe","time_ns":12}',
    b'{"record":"observe","time_ns":12,"node":"n1","record":"end"}', b'{"record":"observe","time_ns":12,"asked_ns":null}',
    b'{"record":"observe","time_ns":9223372036854775807,"node":"n1"}', b'{"record":"observe","time_ns":9223372036854775808}',
    b'{"record":"observe","time_ns":1.5,"node":"n1"}', b'{"record":"observe","time_ns":1e3,"node":"n1"}',
    b'{"record":"observe","time_ns":12,"answered":"yes"}', b'{"record":"observe","time_ns":12,"node":5,"key":true}',
    b'{"record":"observe","time_ns":12,"node":"\xff"}', b'{"record":"observe","time_ns":12,"node":"\\u00e9","members":{"a":1.0}}',
    b'{"record":"truth","time_ns":12,"topics":["a",null]}', b'{"record":"truth","time_ns":12,"topics":[1]}',
    b'{"record":"fault","time_ns":12,"sides":[["n1"],["n2"]]}', b'{"record":"fault","time_ns":12,"sides":["n1"]}',
    b'{"record":"header","time_ns":12,"schema":9223372036854775808}', b'{"record":"invoke","time_ns":12,"value":{"a":[1]}}',
    b'{"record":"phase","time_ns":12,"slowdown":1.25}', b'{"record":"phase","time_ns":12,"slowdown":"1.25"}',
)  # fmt: skip  # items grouped by line


def spoiled(line: bytes, chooser: random.Random) -> bytes:
    """The line, with one error or unchanged."""
    match chooser.randrange(8):
        case 0:
            return line[: chooser.randrange(1, len(line))]
        case 1:
            place = chooser.randrange(len(line))
            return line[:place] + bytes([chooser.randrange(32, 256)]) + line[place + 1 :]
        case 2:
            return line.replace(b":", b": ").replace(b",", b", ")
        case 3:
            return line.replace(b'"time_ns":', b'"time_ns":"x') if chooser.random() < 0.5 else line.replace(b"time_ns", b"time")
        case 4:
            return line.replace(b'"record"', b'"recorded"')
        case 5:
            return chooser.choice(ODD)
        case 6:
            return line + line
        case _:
            return line


def spoiled_lines(folder: Path, seed: int, count: int) -> list[bytes]:
    (run, _) = generate(10_000, 3, seed, folder, print)
    lines = (run / "trace.jsonl").read_bytes().splitlines()
    rare = [line for line in lines if not line.startswith(b'{"record":"observe"')]
    chooser = random.Random(seed)
    chosen = [spoiled(chooser.choice(chooser.choice((lines, rare))), chooser) for _ in range(count)]
    return [line for line in chosen if line.strip() and b"\n" not in line]


def fits(value: Any, kind: pa.DataType) -> bool:
    if value is None or pa.types.is_string(kind):
        return True
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_floating(kind):
        return isinstance(value, float)
    if pa.types.is_list(kind):
        strict = pa.types.is_list(kind.value_type)
        return isinstance(value, list) and all(
            fits(item, kind.value_type) and (strict or item is None or isinstance(item, str)) for item in value
        )
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value >> (kind.bit_width - 1) <= 0


def row_of(line: bytes) -> dict[str, Any] | None:
    """The content of a line, read with the standard library's JSON, without nulls. None if it is not a record."""
    try:
        row = json.loads(line.decode(), parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return None
    if not isinstance(row, dict) or str(row.get("record")) not in RECORDS or row.get("time_ns") is None:
        return None
    schema = OBSERVATIONS if row["record"] == "observe" else EVENTS
    known = {name: value for name, value in row.items() if name in schema.names and value is not None}
    if not all(fits(value, schema.field(name).type) for name, value in known.items()):
        return None
    for name, value in known.items():
        if pa.types.is_string(schema.field(name).type) and not isinstance(value, str):
            known[name] = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return known


def texts(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps({k: v for k, v in row.items() if v is not None}, sort_keys=True) for row in rows)


@pytest.mark.parametrize("feed", [b"\n", b""])
def test_lines_are_read_as_what_they_say(tmp_path: Path, feed: bytes) -> None:
    lines = [*ODD, *spoiled_lines(tmp_path, 5, 6_000), *ODD]
    found = read(pa.array([line + feed for line in lines], pa.binary()))
    expected = [row_of(line) for line in lines]
    good = [row for row in expected if row is not None]
    assert 0.2 < len(good) / len(lines) < 0.8
    assert texts(found.observations.to_pylist()) == texts([row for row in good if row["record"] == "observe"])
    is_good = found.events[CORRUPT].is_null()
    assert texts(found.events.filter(is_good).to_pylist()) == texts([row for row in good if row["record"] != "observe"])
    corrupt = sorted(found.events[CORRUPT].drop_null().to_pylist())
    spoiled = [line for line, row in zip(lines, expected, strict=True) if row is None]
    assert corrupt == sorted(line.decode("utf-8", "replace").strip() for line in spoiled)


def test_parts_of_a_file_are_all_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = random.Random(2)
    trace = tmp_path / "trace.jsonl"
    for _ in range(300):
        content = b"".join(chooser.choice((b"a\n", b"\n", b"bcd\n", b"e" * 20 + b"\n")) for _ in range(chooser.randrange(12)))
        content += chooser.choice((b"", b"torn"))
        trace.write_bytes(content)
        monkeypatch.setattr(parts, "BLOCK_BYTES", chooser.randint(1, 30))
        cuts = sorted({0, len(content), *(chooser.randrange(len(content) + 1) for _ in range(chooser.randrange(5)))})
        pieces = [parts.Part("r", "ap", str(trace), start, stop) for start, stop in pairwise(cuts)]
        found = [line for piece in pieces for block in parts.blocks(piece) for line in block.to_pylist()]
        assert found == content.splitlines(keepends=True), (content, cuts)
    assert split(b"").to_pylist() == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_brought_by_spark_make_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If workers cannot open the files themselves, Spark reads the lines."""
    for folder in generate(10_000, 3, 3, tmp_path / "traces", print):
        with (folder / "trace.jsonl").open("ab") as trace:
            trace.writelines(line + b"\n" for line in ODD[:8])
    tables: dict[str, dict[str, list[str]]] = {}
    ingested = {}
    storage = SparkStorage(spark)
    for out in ("workers", "spark"):
        if out == "spark":
            monkeypatch.setattr("replicated_namesrv.spark.ingest._local", lambda uri: None)
            monkeypatch.setattr("replicated_namesrv.spark.judge_job.local_folder", lambda storage, out: None)
        sources = find_runs(storage, [str(tmp_path / "traces")])
        traces, ingested[out] = ingest(spark, storage, sources, str(tmp_path / out), print)
        stored = judge_runs(spark, storage, traces, sources, ingested[out], str(tmp_path / out), print)
        tables[out] = {
            name: sorted(str(row.asDict()) for row in table.collect())
            for name, table in {"observations": traces.observations, "events": traces.events}.items()
        }
        for name in ("states", "operations", "per_run"):
            tables[out][name] = sorted(str(row) for run in stored.values() for row in run.table(name).to_pylist())
    without = [[entry._replace(checksum=0) for entry in entries] for entries in ingested.values()]
    assert without[0] == without[1]
    assert [entry.corrupt for entry in ingested["workers"]] == [8, 8]
    assert tables["workers"] == tables["spark"]
    assert min(map(len, tables["spark"].values())) > 20
