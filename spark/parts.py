"""Parts of traces, and the Python worker's code for a part, which computes the rows of the ingest tables and the COUNTS.

If workers can open the files (``write``), each line is read once and pyarrow writes Parquet. Otherwise Spark reads the lines
and takes the rows (``rows_of_text``), once for each table. Both use ``lines.read``.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicated_namesrv.spark.lines import Lines, read, split
from replicated_namesrv.spark.looks import Looks
from replicated_namesrv.spark.schemas import CORRUPT

BLOCK_BYTES = 16 << 20
"""Amount of text that is parsed at once. Its rows become one row group."""


class Part(NamedTuple):
    """Lines of a local file that begin in [start, stop)."""

    run: str
    mode: str
    path: str
    start: int
    stop: int


COUNTS = pa.schema(
    [("run", pa.string()), *((name, pa.int64()) for name in
     ("records", "corrupt", "began_ns", "ended_ns", "first_ns", "last_ns", "backwards", "final", "checksum"))]
)  # fmt: skip  # items grouped by line
"""Counts and times of a part: good and other lines; times of the header record, of the end record, of the first record and of
the last record; records whose question is later than the answer; records of the phase ``final``; the sum of the blocks'
checksums."""


def blocks(part: Part) -> Iterator[pa.Array]:
    """The lines of a part in blocks."""
    with Path(part.path).open("rb") as file:
        if part.start > 0:
            file.seek(part.start - 1)
            file.readline()
        at = file.tell()
        while at < part.stop:
            text = file.read(min(BLOCK_BYTES, part.stop - at))
            if not text.endswith(b"\n"):
                text += file.readline()
            at += len(text)
            if not text:
                return
            yield split(text)


def write(part: Part, out: str) -> pa.Table:
    """Write the part's rows to files named after it in the tables below ``out``, whose folders exist. Returns COUNTS of the
    part.
    """
    looks = Looks()
    counts = []
    with _Files(part, out) as files:
        for block in blocks(part):
            found = read(block)
            looks.add(found.observations)
            counts.append(_counts(part.run, found, block))
            files.add("observations", found.observations)
            files.add("events", found.events)
        files.add("looks", looks.table())
    return pa.concat_tables(counts) if counts else COUNTS.empty_table()


def partition(run: str, mode: str) -> str:
    """The folder of a run below the folder of a table. The colon in the name of a foreign mode is encoded; Spark and DuckDB
    decode it.
    """
    return f"run={run}/mode={quote(mode, safe='')}"


class _Files:
    """One Parquet file in each table. The files appear only when all of them are complete. So a failed attempt leaves nothing,
    and a repeated attempt gives the same result."""

    def __init__(self, part: Part, out: str) -> None:
        self._part, self._out = part, out
        self._aside = f".{uuid4().hex}"
        self._open: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> "_Files":
        return self

    def add(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            if name not in self._open:
                self._make_folder(name)
                # Settings for tables in which times increase and all other columns repeat.
                times = [field.name for field in rows.schema if field.name.endswith("_ns")]
                self._open[name] = pq.ParquetWriter(
                    f"{self._folder(name)}/{self._aside}", rows.schema, compression="zstd", store_schema=False,
                    use_dictionary=[field.name for field in rows.schema if field.name not in times],
                    column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED"),
                )  # fmt: skip  # items grouped by line
            self._open[name].write_table(rows)

    def _make_folder(self, name: str) -> None:
        """Create a folder below the folder of the table. If the table's folder is gone, the job was cancelled, and nothing may be
        created.
        """
        for folder in (Path(self._folder(name)).parent, Path(self._folder(name))):
            folder.mkdir(exist_ok=True)

    def _folder(self, name: str) -> str:
        return f"{self._out}/{name}/{partition(self._part.run, self._part.mode)}"

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for name, file in self._open.items():
            file.close()
            aside = f"{self._folder(name)}/{self._aside}"
            if failed:
                os.remove(aside)
            else:
                os.replace(aside, f"{self._folder(name)}/part-{self._part.start:015}.parquet")


def _counts(run: str, found: Lines, lines: pa.Array) -> pa.Table:
    events = found.events
    good = events.filter(events[CORRUPT].is_null())
    records = (found.observations, good)
    times = pa.chunked_array([chunk for rows in records for chunk in rows["time_ns"].chunks], pa.int64())
    first_last = pc.min_max(times)
    row: dict[str, Any] = {
        "run": run,
        "records": len(times),
        "corrupt": events.num_rows - good.num_rows,
        "began_ns": pc.min(good.filter(pc.equal(good["record"], "header"))["time_ns"]).as_py(),
        "ended_ns": pc.max(good.filter(pc.equal(good["record"], "end"))["time_ns"]).as_py(),
        "first_ns": first_last["min"].as_py(),
        "last_ns": first_last["max"].as_py(),
        "backwards": sum(pc.sum(pc.greater(rows["asked_ns"], rows["time_ns"])).as_py() or 0 for rows in records),
        "final": pc.sum(pc.equal(good["phase"], "final")).as_py() or 0,
        "checksum": _checksum(lines),
    }
    return pa.Table.from_pylist([row], schema=COUNTS)


def _checksum(lines: pa.Array) -> int:
    """A checksum of 48 bits, so that many of them can be summed."""
    offsets, text = np.frombuffer(lines.buffers()[1], np.int32), lines.buffers()[2]
    first, last = offsets[lines.offset], offsets[lines.offset + len(lines)]
    content = memoryview(text)[first:last] if text is not None else b""
    return int.from_bytes(sha256(content).digest()[:6])


def _looks(found: Lines) -> pa.Table:
    looks = Looks()
    looks.add(found.observations)
    return looks.table()


MAKE: Mapping[str, Callable[[Lines], pa.Table]] = {
    "observations": lambda found: found.observations,
    "events": lambda found: found.events,
    "looks": _looks,
}


def rows_of_text(batches: Iterable[pa.RecordBatch], runs: Mapping[str, tuple[str, str]], name: str) -> Iterator[pa.RecordBatch]:
    """Rows of the table ``name``, with ``run`` and ``mode``. The batches have the columns ``value`` (a line) and ``path``.
    ``runs`` maps a path to run and mode."""
    for run, mode, lines in _of_runs(batches, runs):
        rows = MAKE[name](read(lines))
        for column, value in (("run", run), ("mode", mode)):
            rows = rows.append_column(column, pa.repeat(pa.scalar(value), rows.num_rows))
        yield from rows.to_batches()


def counts_of_text(batches: Iterable[pa.RecordBatch], runs: Mapping[str, tuple[str, str]]) -> Iterator[pa.RecordBatch]:
    """COUNTS of batches like those of ``rows_of_text``."""
    for run, _, lines in _of_runs(batches, runs):
        yield from _counts(run, read(lines), lines).to_batches()


def same_uri(uri: str) -> str:
    """A file's URI in one spelling. If a URI has no host, one slash and three slashes are both in use."""
    return re.sub("^file:/*", "file:/", uri)


def _of_runs(batches: Iterable[pa.RecordBatch], runs: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str, pa.Array]]:
    for batch in batches:
        for path in batch.column("path").unique().to_pylist():
            of_path = batch.filter(pc.equal(batch.column("path"), path))
            yield *runs[same_uri(unquote(path))], of_path.column("value").cast(pa.binary())
