"""Judges ingested runs, one Python task for each, and keeps their results.

The result of a run is one file. Its name contains a checksum of the run's trace and manifest and of this code. A run whose file
exists is not judged again.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from replicated_namesrv.spark.ingest import Ingested, Traces, local_folder
from replicated_namesrv.spark.lines import EVENTS
from replicated_namesrv.spark.one_run import judged_run
from replicated_namesrv.spark.parts import partition
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.schemas import LOOKS, arrow
from replicated_namesrv.spark.sources import Source
from replicated_namesrv.spark.storage import SparkStorage

FOLDER = "judged_runs"
TASKS_PER_CORE = 4
_PACKED = pa.schema([("table", pa.string()), ("rows", pa.large_binary())])


class StoredRun(NamedTuple):
    """The result of one run."""

    path: str
    storage: SparkStorage
    local: str | None
    """Path of the file on this machine, if every process can open it there."""

    def table(self, name: str) -> pa.Table:
        """One table of the run."""
        source = pa.memory_map(self.local) if self.local else pa.BufferReader(self.storage.read_bytes(self.path))
        with source, pa.ipc.open_file(source) as file:
            whole = file.read_all()
            place = whole["table"].to_pylist().index(name)
            return pa.ipc.open_stream(whole["rows"][place].as_buffer()).read_all()


def packed(tables: Mapping[str, pa.Table]) -> bytes:
    """Pack the tables into one file."""
    rows = {"table": list(tables), "rows": [_stream(table) for table in tables.values()]}
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, _PACKED) as file:
        file.write_table(pa.table(rows, schema=_PACKED))
    return bytes(out.getvalue())


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


@cache
def code_version() -> str:
    """A checksum of the code that results depend on."""
    digest = sha256()
    for package in ("replicated_namesrv.spark", "replicated_namesrv.verify"):
        files = (file for file in resources.files(package).iterdir() if file.name.endswith(".py"))
        for file in sorted(files, key=lambda file: file.name):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _key(source: Source, entry: Ingested) -> str:
    about = orjson.dumps([entry.checksum, source.about, source.clients, code_version()], option=orjson.OPT_SORT_KEYS)
    return sha256(about).hexdigest()[:24]


def judge_runs(
    spark: SparkSession, storage: SparkStorage, traces: Traces, sources: Sequence[Source], ingested: Iterable[Ingested], out: str,
    say: Callable[[str], None],
) -> dict[str, StoredRun]:  # fmt: skip  # items grouped by line
    """The result of each run."""
    began = time.monotonic()
    folder = f"{out}/tables/{FOLDER}"
    storage.make_folder(folder)
    entries = {entry.run: entry for entry in ingested}
    names = {source.run: f"{source.run}={_key(source, entries[source.run])}.arrow" for source in sources}
    stored = {Path(entry.path).name for entry in storage.list(folder)}
    new = [source for source in sources if names[source.run] not in stored]
    old = {name.rpartition("=")[0]: name for name in stored}
    here = local_folder(storage, out)
    if new:
        say(f"judging {len(new)} run{'s' * (len(new) > 1)}")
        if here is not None:
            _judge_here(spark, new, names, here)
        else:
            _judge_there(spark, storage, traces, new, names, folder)
        for source in new:
            if source.run in old:
                storage.delete(f"{folder}/{old[source.run]}")
    if old_count := len(sources) - len(new):
        say(f"{old_count} {'runs were' if old_count > 1 else 'run was'} judged before")
    say(f"{time.monotonic() - began:5.1f} s  judged")
    return {
        run: StoredRun(f"{folder}/{name}", storage, None if here is None else f"{here}/tables/{FOLDER}/{name}")
        for run, name in names.items()
    }


def _judge_here(spark: SparkSession, new: Sequence[Source], names: Mapping[str, str], here: str) -> None:
    """Judge runs in workers that read the ingested files and write the results themselves."""
    count = min(len(new), TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    by_size = sorted(new, key=lambda source: -source.trace.size_bytes)
    tasks = [by_size[number::count] for number in range(count)]
    work = [[(one.about, one.clients, names[one.run]) for one in task] for task in tasks]

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                for about, clients, name in work[task]:
                    _judge_one(here, about, clients, name)
                yield pa.record_batch({"id": pa.array([task], pa.int64())})

    spark.range(0, count, 1, count).mapInArrow(judge, "id long").collect()


def _judge_one(here: str, about: dict[str, Any], clients: dict[str, str], name: str) -> None:
    events, looks = (
        _read(Path(here, "tables", table, partition(about["run"], about["mode"])), schema)
        for table, schema in (("events", EVENTS), ("looks", arrow(LOOKS)))
    )
    content = packed(judged_run(RunRecords(about, clients, events, looks)))
    path = Path(here, "tables", FOLDER, name)
    aside = path.with_name(f".{name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)


def _read(folder: Path, schema: pa.Schema) -> pa.Table:
    parts = [
        pq.read_table(part, partitioning=None).select(schema.names).cast(schema) for part in sorted(folder.glob("*.parquet"))
    ]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _judge_there(
    spark: SparkSession, storage: SparkStorage, traces: Traces, new: Sequence[Source], names: Mapping[str, str], folder: str
) -> None:
    """Judge runs if only Spark can reach the files."""
    about = {source.run: (source.about, source.clients) for source in new}
    events, looks = (table.where(table["run"].isin(list(about))).groupBy("run") for table in (traces.events, traces.looks))

    def judge(lines: pa.Table, seen: pa.Table) -> pa.Table:
        run = lines["run"][0].as_py()
        schema = arrow(LOOKS)
        seen = seen.select(schema.names).cast(schema) if seen.num_rows else schema.empty_table()
        content = packed(judged_run(RunRecords(*about[run], lines.select(EVENTS.names).cast(EVENTS), seen)))
        return pa.table({"run": [run], "content": pa.array([content], pa.binary())})

    for row in events.cogroup(looks).applyInArrow(judge, "run string, content binary").toLocalIterator():
        storage.write_bytes(f"{folder}/{names[row['run']]}", bytes(row["content"]))
