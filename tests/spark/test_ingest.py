"""Every line of a trace is in exactly one of the two tables, whatever it looks like."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.ingest import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def spoiled(line: bytes, chooser: random.Random) -> bytes:
    """A line with one thing wrong, or nothing. Spark takes an array for as many rows as it has elements, so those are empty."""
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
            return chooser.choice(
                (b"{}", b"[]", b" [ ]", b"null", b"3", b'"record"', b'{"record":null}', b'{"record":5,"time_ns":1}')
            )
        case 6:
            return line + line
        case _:
            return line


def test_no_line_is_lost_or_counted_twice(spark: SparkSession, tmp_path: Path) -> None:
    (folder, _) = generate(10_000, 3, 3, tmp_path / "traces", print)
    lines = (folder / "trace.jsonl").read_bytes().splitlines()
    rare = [line for line in lines if not line.startswith(b'{"record":"observe"')]
    chooser = random.Random(1)
    chosen = [spoiled(chooser.choice(chooser.choice((lines, rare))), chooser) for _ in range(6_000)]
    chosen = [line for line in chosen if line.strip() and b"\n" not in line and b"\r" not in line]
    numbered = [b'{"record":"end","time_ns":%d}' % number for number in range(100)]
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"\n".join([*chosen, *numbered]) + b"\n")
    traces = read_lines(spark, [str(trace)])
    observations, events = traces.observations.count(), traces.events.count()
    assert observations + events == len(chosen) + len(numbered)
    assert events >= len(numbered)
    corrupt = sum(table.where("corrupt_line is not null").count() for table in traces)
    assert 0.2 < corrupt / len(chosen) < 0.8
