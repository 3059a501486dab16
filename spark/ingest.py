"""Ingest: converts traces to Parquet tables of observations, events and looks, partitioned by run and mode.

Unreliable runs are refused before any table changes: runs whose clock went back, and runs that were cut short. Lines that do not
parse are kept, counted and reported. New runs are written to a temporary place and renamed when all are complete, so a failure
leaves the output folder unchanged. A run that was ingested before is not ingested again.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from replicated_namesrv.spark import parts
from replicated_namesrv.spark.schemas import CORRUPT, LOOKS, OBSERVED, RECORD_COLUMNS
from replicated_namesrv.spark.sources import InputError, Source
from replicated_namesrv.spark.storage import SparkStorage


class Ingested(NamedTuple):
    """Line counts of one run."""

    run: str
    records: int
    torn: int
    corrupt: int
    ended: bool
    checksum: int
    """A checksum of the trace's lines."""


class Traces(NamedTuple):
    """Trace lines as tables, each with ``run`` and ``mode``."""

    observations: DataFrame
    """Table of the records ``observe``, with the columns OBSERVED."""
    events: DataFrame
    """Table of all other records, with the columns RECORD_COLUMNS. Lines that are not records have their text in
    ``corrupt_line``."""
    looks: DataFrame
    """Table with one row for consecutive observations with the same answer, with the columns LOOKS."""


_RUN_MODE = [StructField(name, StringType()) for name in ("run", "mode")]
_SCHEMAS = {
    "observations": StructType([*OBSERVED.fields, *_RUN_MODE]),
    "events": StructType(
        [*(field for field in RECORD_COLUMNS if field.name != "run"), StructField(CORRUPT, StringType()), *_RUN_MODE]
    ),
    "looks": StructType([*LOOKS.fields, *_RUN_MODE]),
}
_LAYOUT = 4
"""Version of the layout of these tables. Runs that were ingested with another version are ingested again."""


def ingest(
    spark: SparkSession, storage: SparkStorage, sources: Sequence[Source], out: str, say: Callable[[str], None]
) -> tuple[Traces, list[Ingested]]:
    """The lines of all ``sources``, and the line counts of each run. New runs are added to ``out``/tables.

    Raises InputError if a run's trace is not the one that was ingested earlier, if its clock went back, if it was cut short, or
    if no line is a record.
    """
    known = {source.run: _ingested_before(storage, source, out) for source in sources}
    new = [source for source in sources if known[source.run] is None]
    if new:
        total = sum(source.trace.size_bytes for source in new)
        say(f"ingesting {len(new)} run{'s' * (len(new) > 1)}, {total / 1e6:,.0f} MB")
        known.update(_ingest_new(spark, storage, new, out, say))
    if old_count := len(sources) - len(new):
        say(f"{old_count} {'runs were' if old_count > 1 else 'run was'} ingested before")
    for name in Traces._fields:
        # made here, because a run may have no row for a table, for example without an observer
        storage.make_folder(f"{out}/tables/{name}")
    ours = F.col("run").isin([source.run for source in sources])
    tables = (_stored(spark, f"{out}/tables", name).where(ours) for name in Traces._fields)
    return Traces(*tables), [entry for entry in known.values() if entry is not None]


def _note(out: str, run: str) -> str:
    return f"{out}/tables/ingested/{run}.json"


def _ingested_before(storage: SparkStorage, source: Source, out: str) -> Ingested | None:
    note = _note(out, source.run)
    if not storage.exists(note):
        return None
    try:
        known = json.loads(storage.read_text(note))
        if known.get("layout") != _LAYOUT:
            return None
        before, ingested = (known["size_bytes"], known["modified_ms"]), Ingested(**known["ingested"])
    except (AttributeError, ValueError, KeyError, TypeError):
        raise InputError(f"{note}: is not what an analysis wrote there; choose another --out, or remove that folder") from None
    if before != (source.trace.size_bytes, source.trace.modified_ms):
        raise InputError(
            f"{source.trace.path}: run '{source.run}' was ingested into {out} from another trace; choose another --out, "
            f"or remove that folder"
        )
    return ingested


def _stored(spark: SparkSession, folder: str, name: str) -> DataFrame:
    return spark.read.schema(_SCHEMAS[name]).parquet(f"{folder}/{name}")


def local_folder(storage: SparkStorage, out: str) -> str | None:
    """The folder ``out`` on this machine, if every worker can open it directly; else None."""
    return _local(storage.qualified(out))


PART_BYTES = 128 << 20
"""Maximum size of the part of a trace that one task reads. A task uses 32 bytes of memory per line of its part."""
TASKS_PER_CORE = 4
PROGRESS_S = 2.0


def _write(
    spark: SparkSession, storage: SparkStorage, new: Sequence[Source], staging: str, say: Callable[[str], None]
) -> list[Row]:
    """Write the lines of some runs below ``staging``. Returns COUNTS of parts."""
    *paths, out = (_local(storage.qualified(path)) for path in (*(source.trace.path for source in new), staging))
    if out is None or None in paths:
        return _write_text(spark, storage, new, staging)
    tasks = _tasks(spark, new, [str(path) for path in paths])

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                for part in tasks[task]:
                    yield from parts.write(part, out).to_batches()

    counted = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, from_arrow_schema(parts.COUNTS))
    for name in Traces._fields:
        storage.make_folder(f"{staging}/{name}")
    with _progress(spark, say):
        return counted.collect()


def _local(uri: str) -> str | None:
    """The path of a file that every machine can open directly; else None."""
    return uri.removeprefix("file:") if uri.startswith("file:") else None


def _tasks(spark: SparkSession, new: Sequence[Source], paths: Sequence[str]) -> list[list[parts.Part]]:
    """Parts of traces, distributed evenly by size."""
    total = sum(source.trace.size_bytes for source in new)
    of_task = min(PART_BYTES, total // (TASKS_PER_CORE * spark.sparkContext.defaultParallelism) + 1)
    tasks: list[list[parts.Part]] = [[]]
    left = of_task
    for source, path in zip(new, paths, strict=True):
        start = 0
        while start < source.trace.size_bytes:
            if left == 0:
                tasks.append([])
                left = of_task
            stop = min(start + left, source.trace.size_bytes)
            tasks[-1].append(parts.Part(source.run, source.mode, path, start, stop))
            left -= stop - start
            start = stop
    return tasks


def _write_text(spark: SparkSession, storage: SparkStorage, new: Sequence[Source], staging: str) -> list[Row]:
    """Like ``_write``, if only Spark can reach the files."""
    runs = {parts.same_uri(storage.qualified(source.trace.path)): (source.run, source.mode) for source in new}
    text = spark.read.option("lineSep", "\n").text([source.trace.path for source in new])
    text = text.select("value", F.col("_metadata.file_path").alias("path"))
    for name, schema in _SCHEMAS.items():

        def make(batches: Iterable[pa.RecordBatch], name: str = name) -> Iterator[pa.RecordBatch]:
            return parts.rows_of_text(batches, runs, name)

        text.mapInArrow(make, schema).write.partitionBy("run", "mode").parquet(f"{staging}/{name}")
    return text.mapInArrow(lambda batches: parts.counts_of_text(batches, runs), from_arrow_schema(parts.COUNTS)).collect()


@contextmanager
def _progress(spark: SparkSession, say: Callable[[str], None]) -> Iterator[None]:
    """Report from time to time how many tasks of the running stage are done."""
    began, ended = time.monotonic(), Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        said = 0
        while not ended.wait(PROGRESS_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            done, total = (sum(getattr(s, name) for s in stages if s) for name in ("numCompletedTasks", "numTasks"))
            if done > said:
                say(f"{time.monotonic() - began:5.1f} s  {100 * done // total} % read")
                said = done

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()


def _ingest_new(
    spark: SparkSession, storage: SparkStorage, new: Sequence[Source], out: str, say: Callable[[str], None]
) -> dict[str, Ingested | None]:
    staging = f"{out}/tables/ingesting"
    storage.delete(staging)
    began = time.monotonic()
    try:
        counted = _together(_write(spark, storage, new, staging, say))
        say(f"{time.monotonic() - began:5.1f} s  100 % read")
        done: dict[str, Ingested | None] = {}
        for source in new:
            done[source.run] = _judge(source, counted.get(source.run))
        for source in new:
            for name in Traces._fields:
                target = f"{out}/tables/{name}/run={source.run}"
                storage.delete(target)
                if storage.exists(f"{staging}/{name}/run={source.run}"):
                    storage.rename(f"{staging}/{name}/run={source.run}", target)
            entry = done[source.run]
            assert entry is not None
            about = {"size_bytes": source.trace.size_bytes, "modified_ms": source.trace.modified_ms, "layout": _LAYOUT}
            storage.write_json(_note(out, source.run), {**about, "ingested": entry._asdict()})
        return done
    finally:
        storage.discard(staging)


_FIRST, _LAST = ("began_ns", "first_ns"), ("ended_ns", "last_ns")


def _together(counts: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Merge the rows of COUNTS of each run's parts into one row per run."""
    found: dict[str, dict[str, Any]] = {}
    for row in counts:
        known = found.setdefault(row["run"], dict.fromkeys(parts.COUNTS.names[1:]))
        for name, before in known.items():
            values = [value for value in (before, row[name]) if value is not None]
            if values:
                known[name] = (min if name in _FIRST else max if name in _LAST else sum)(values)
    return found


def _judge(source: Source, row: dict[str, Any] | None) -> Ingested:
    path = source.trace.path
    if row is None or row["records"] <= 1:
        raise InputError(f"{path}: has no record but the header; record the run again")
    if (
        row["backwards"]
        or (row["began_ns"] is not None and row["first_ns"] < row["began_ns"])
        or (row["ended_ns"] is not None and row["last_ns"] > row["ended_ns"])
    ):
        raise InputError(f"{path}: the clock went back during the run, so its order cannot be trusted; record it again")
    if row["ended_ns"] is None or not row["final"]:
        raise InputError(
            f"{path}: the run was cut short: {'no end record' if row['ended_ns'] is None else 'no final reads'}, so losses "
            f"would be over-counted; record it again, or remove its folder"
        )
    torn = int(source.torn)
    return Ingested(source.run, row["records"], torn, max(row["corrupt"] - torn, 0), row["ended_ns"] is not None, row["checksum"])
