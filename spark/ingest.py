"""Ingest: traces of runs become two Parquet tables, observations and events, by run and mode; nothing is dropped in silence.

Bad input is refused before anything is written: no trace, no manifest, another schema version, a run given twice, a run cut
short. Lines that do not parse are kept, counted and reported. New runs are written aside and renamed into place when all of
them are whole, so that a failure leaves the output folder as it was; a run that is there already is not ingested again.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.spark.schemas import CORRUPT, OBSERVED, RECORD_TYPES, RECORDS, RUNS, TRACE_SCHEMA_VERSION
from replicated_namesrv.spark.storage import Entry, Storage

TRACE = "trace.jsonl"
MANIFEST = "manifest.json"
MODES = ("ap", "cp")
OBSERVE = "observe"


class InputError(NamesrvError):
    """A run that cannot be analysed; the text names the file and the remedy."""


class Source(NamedTuple):
    """A run as it was given."""

    run: str
    folder: str
    trace: Entry
    manifest: dict[str, Any]
    torn: bool


class Ingested(NamedTuple):
    """What became of one run's lines."""

    run: str
    records: int
    torn: int
    corrupt: int
    ended: bool


def find_runs(storage: Storage, paths: Sequence[str]) -> list[Source]:
    """Each path is a run's folder, or a folder that holds such folders at any depth up to three.

    Raises InputError.
    """
    folders: dict[str, None] = {}
    for path in paths:
        if not storage.exists(path):
            raise InputError(f"{path}: no such file or folder; give the folder of a run or of a suite")
        entry = storage.entry(path)
        if not entry.is_folder:
            raise InputError(f"{path}: is a file; give the folder that holds the run's {TRACE} and {MANIFEST}")
        found = _runs_below(storage, entry.path, 3)
        if not found:
            raise InputError(
                f"{path}: holds no run: no {TRACE} here or up to three folders below; record one with 'namesrv chaos run'"
            )
        folders.update(dict.fromkeys(found))
    sources: dict[str, Source] = {}
    for folder in folders:
        source = _source(storage, folder)
        if source.run in sources:
            raise InputError(f"{folder}: run '{source.run}' is in {sources[source.run].folder} too; give each run once")
        sources[source.run] = source
    return list(sources.values())


def _runs_below(storage: Storage, folder: str, depth: int) -> list[str]:
    content = storage.list(folder)
    if any(entry.path.endswith("/" + TRACE) for entry in content):
        return [folder]
    if depth == 0:
        return []
    inner = [entry for entry in content if entry.is_folder and not entry.path.endswith("/latest")]
    return [run for entry in inner for run in _runs_below(storage, entry.path, depth - 1)]


def _source(storage: Storage, folder: str) -> Source:
    manifest_path, trace_path = f"{folder}/{MANIFEST}", f"{folder}/{TRACE}"
    if not storage.exists(manifest_path):
        raise InputError(f"{manifest_path}: is missing; without it nobody knows what was run. Record the run again")
    try:
        manifest = json.loads(storage.read_text(manifest_path))
    except ValueError as cause:
        raise InputError(f"{manifest_path}: no JSON ({cause}); restore it or record the run again") from None
    _check_manifest(manifest, manifest_path)
    try:
        header = json.loads(storage.first_line(trace_path))
        is_header = isinstance(header, dict) and header.get("record") == "header"
    except ValueError:
        is_header = False
    if not is_header:
        raise InputError(f"{trace_path}: does not begin with a header record, so it is no trace of a run")
    if header.get("schema") != TRACE_SCHEMA_VERSION:
        raise InputError(
            f"{trace_path}: schema version {header.get('schema')}, this version reads {TRACE_SCHEMA_VERSION}; "
            f"record it again or use the release that wrote it"
        )
    if header.get("run") != manifest["run"]:
        raise InputError(
            f"{trace_path}: is of run '{header.get('run')}', {MANIFEST} beside it of '{manifest['run']}'; files were mixed up"
        )
    return Source(manifest["run"], folder, storage.entry(trace_path), manifest, not storage.ends_with_line_feed(trace_path))


def _check_manifest(manifest: Any, path: str) -> None:
    def need(name: str, good: bool, expected: str) -> None:
        if not good:
            value = manifest.get(name) if isinstance(manifest, dict) else manifest
            raise InputError(f"{path}: {name} is {value!r}, expected {expected}")

    need("the manifest", isinstance(manifest, dict), "a JSON object")
    need(
        "schema",
        manifest.get("schema") == TRACE_SCHEMA_VERSION,
        f"{TRACE_SCHEMA_VERSION}; record the run again with this version",
    )
    run = manifest.get("run")
    need("run", isinstance(run, str) and run != "" and not set(run) & set("/=%:\\"), "a name without / = % : \\")
    need("mode", manifest.get("mode") in MODES, "ap or cp")
    need("nodes", isinstance(manifest.get("nodes"), list) and len(manifest["nodes"]) > 0, "a list of nodes")
    need("seed", isinstance(manifest.get("seed"), int), "a number")


def runs_table(spark: SparkSession, sources: Sequence[Source]) -> DataFrame:
    """One row a run, from the manifests."""
    return spark.createDataFrame([_run_row(source.manifest) for source in sources], RUNS)


def _run_row(manifest: dict[str, Any]) -> dict[str, Any]:
    scenario = manifest.get("scenario") or {}
    scenario = {"name": scenario} if isinstance(scenario, str) else scenario
    offsets = ((manifest.get("clock") or {}).get("offsets") or {}).values()
    return {
        "run": manifest["run"],
        "mode": manifest["mode"],
        "scenario": str(scenario.get("name", "unnamed")),
        "suite": str(manifest.get("suite") or ""),
        "seed": manifest["seed"],
        "nodes": len(manifest["nodes"]),
        "read_consistency": manifest.get("read_consistency") or ("linearizable" if manifest["mode"] == "cp" else "local"),
        "judged_as": manifest.get("judged_as") or manifest["mode"],
        "observe_interval_ms": int(manifest.get("observe_interval_ms") or 0),
        "deadline_ms": int(manifest.get("deadline_ms") or 0),
        "fault_s": float((scenario.get("timing") or {}).get("fault_s") or 0.0),
        "clock_uncertainty_ns": max((int(offset.get("uncertainty_ns") or 0) for offset in offsets), default=0),
    }


class Traces(NamedTuple):
    """Lines of traces as tables, each with ``run``, ``mode`` and ``corrupt_line`` (the text of a line that is no record)."""

    observations: DataFrame
    """Records ``observe``, and lines of which not even the type of record is known; columns OBSERVED."""
    events: DataFrame
    """All other records; columns RECORDS."""


_SCHEMAS = {"observations": OBSERVED, "events": RECORDS}


def ingest(
    spark: SparkSession, storage: Storage, sources: Sequence[Source], out: str, say: Callable[[str], None]
) -> tuple[Traces, list[Ingested]]:
    """Lines of all ``sources``, and what became of each run's lines. New runs are added to ``out``/tables/observations and
    ``out``/tables/events.

    Raises InputError: a run's trace is not the one ingested earlier, its clock went back, it was cut short, nothing parses.
    """
    known = {source.run: _ingested_before(storage, source, out) for source in sources}
    new = [source for source in sources if known[source.run] is None]
    if new:
        total = sum(source.trace.size_bytes for source in new)
        say(f"ingesting {len(new)} run{'s' * (len(new) > 1)}, {total / 1e6:,.0f} MB")
        known.update(_ingest_new(spark, storage, new, out, say))
    if len(new) < len(sources):
        say(f"{len(sources) - len(new)} runs were ingested before")
    ours = F.col("run").isin([source.run for source in sources])
    tables = (_stored(spark, f"{out}/tables", name).where(ours) for name in Traces._fields)
    return Traces(*tables), [entry for entry in known.values() if entry is not None]


def _note(out: str, run: str) -> str:
    return f"{out}/tables/ingested/{run}.json"


def _ingested_before(storage: Storage, source: Source, out: str) -> Ingested | None:
    note = _note(out, source.run)
    if not storage.exists(note):
        return None
    known = json.loads(storage.read_text(note))
    if known["size_bytes"] != source.trace.size_bytes or known["modified_ms"] != source.trace.modified_ms:
        raise InputError(
            f"{source.trace.path}: run '{source.run}' was ingested into {out} from another trace; choose another --out"
        )
    return Ingested(**known["ingested"])


def _stored(spark: SparkSession, folder: str, name: str) -> DataFrame:
    columns = [field for field in _SCHEMAS[name].fields if field.name != "run"]
    extra = [StructField(name, StringType()) for name in (CORRUPT, "run", "mode")]
    return spark.read.schema(StructType([*columns, *extra])).parquet(f"{folder}/{name}")


_PARSED = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


def _with_corrupt(schema: StructType) -> StructType:
    return StructType([*(field for field in schema.fields if field.name != "run"), StructField(CORRUPT, StringType())])


def read_lines(spark: SparkSession, paths: Sequence[str]) -> Traces:
    """Lines of trace files, each in exactly one of the two tables, without ``run`` and ``mode``, with the column ``path``.

    The files are read twice. What Spark's JSON reader costs goes by the number of columns, so observations are read with few;
    the second reading parses only lines that do not begin as observations do, all others being known to be in the first.
    """
    path = F.col("_metadata.file_path").alias("path")
    # A line that is no JSON has no record in either reading, and is the first one's.
    looks = spark.read.schema(_with_corrupt(OBSERVED)).options(**_PARSED).json(list(paths)).select("*", path)
    observations = looks.where(F.coalesce("record", F.lit(OBSERVE)) == OBSERVE)
    text = (
        spark.read.text(list(paths))
        .select("value", path)
        .where(~F.col("value").startswith(f'{{"record":"{OBSERVE}"') & F.is_valid_utf8("value"))
    )
    # Spark takes an array for as many records as it has elements, and one without any for no line.
    array = F.ltrim("value").startswith("[").alias("array")
    parsed = text.select(F.from_json("value", _with_corrupt(RECORDS), _PARSED).alias("parsed"), array, "path")
    parsed = parsed.select("parsed.*", "array", "path").where(F.col("array") | (F.col("record") != OBSERVE))
    events = parsed.withColumn(CORRUPT, F.when(F.col("array"), F.lit("an array")).otherwise(F.col(CORRUPT))).drop("array")
    return Traces(*(table.withColumn(CORRUPT, F.coalesce(F.col(CORRUPT), _wrong())) for table in (observations, events)))


def _wrong() -> Column:
    """Text of a line that is JSON and yet no record; null for a good one."""
    known = F.col("record").isin(*RECORD_TYPES) & F.col("time_ns").isNotNull()
    return F.when(~F.coalesce(known, F.lit(False)), F.concat(F.lit("record "), F.coalesce(F.col("record"), F.lit("null"))))


TOGETHER_BYTES = 256 << 20
"""Traces are written together as long as they have no more than this: sorting rows into folders costs more than a job does."""


def _groups(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Large traces one by one, the small ones together."""
    group: list[Source] = []
    for source in sources:
        if sum(one.trace.size_bytes for one in [*group, source]) > TOGETHER_BYTES and group:
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _write(spark: SparkSession, group: Sequence[Source], staging: str) -> None:
    """Write the lines of some runs below ``staging``."""
    traces = read_lines(spark, [source.trace.path for source in group])
    for name, table in zip(Traces._fields, traces, strict=True):
        if len(group) == 1:
            place = f"{staging}/{name}/run={group[0].run}/mode={group[0].manifest['mode']}"
            table.drop("path").write.parquet(place)
        else:
            decoded = F.url_decode(F.regexp_replace("path", r"\+", "%2B"))
            folder = F.regexp_extract(decoded, r"([^/]+)/[^/]+$", 1)
            for column, values in (("run", [s.run for s in group]), ("mode", [s.manifest["mode"] for s in group])):
                known = zip((_name(source) for source in group), values, strict=True)
                table = table.withColumn(column, F.create_map(*[F.lit(x) for pair in known for x in pair])[folder])
            table.drop("path").write.mode("append").partitionBy("run", "mode").parquet(f"{staging}/{name}")


def _name(source: Source) -> str:
    return source.folder.rstrip("/").rsplit("/", 1)[-1]


def _ingest_new(
    spark: SparkSession, storage: Storage, new: Sequence[Source], out: str, say: Callable[[str], None]
) -> dict[str, Ingested | None]:
    if len({_name(source) for source in new}) < len(new):
        raise InputError("two runs lie in folders of the same name; rename one")
    staging = f"{out}/tables/ingesting"
    storage.delete(staging)
    began = time.monotonic()
    try:
        done_bytes, total_bytes = 0, sum(source.trace.size_bytes for source in new)
        for group in _groups(new):
            _write(spark, group, staging)
            done_bytes += sum(source.trace.size_bytes for source in group)
            say(f"{time.monotonic() - began:5.1f} s  {100 * done_bytes // total_bytes} % read")
        counted = _count(*(_stored(spark, staging, name) for name in Traces._fields))
        done: dict[str, Ingested | None] = {}
        for source in new:
            done[source.run] = _judge(source, counted.get(source.run))
        for name in Traces._fields:
            storage.make_folder(f"{out}/tables/{name}")
        for source in new:
            for name in Traces._fields:
                target = f"{out}/tables/{name}/run={source.run}"
                storage.delete(target)
                if storage.exists(f"{staging}/{name}/run={source.run}"):
                    storage.rename(f"{staging}/{name}/run={source.run}", target)
            entry = done[source.run]
            assert entry is not None
            note = {"size_bytes": source.trace.size_bytes, "modified_ms": source.trace.modified_ms, "ingested": entry._asdict()}
            storage.write_json(_note(out, source.run), note)
        return done
    finally:
        storage.discard(staging)


def _count(observations: DataFrame, events: DataFrame) -> dict[str, Any]:
    """What is known of every run's lines; ``_judge`` says what may not be."""
    columns = ("run", CORRUPT, "record", "time_ns", "asked_ns")
    rows = observations.select(*columns, F.lit(None).cast("string").alias("phase")).unionByName(events.select(*columns, "phase"))
    good = F.col(CORRUPT).isNull()
    found = rows.groupBy("run").agg(
        F.count(F.when(good, 1)).alias("records"),
        F.count(F.when(~good, 1)).alias("corrupt"),
        F.min(F.when(good & (F.col("record") == "header"), F.col("time_ns"))).alias("began"),
        F.max(F.when(good & (F.col("record") == "end"), F.col("time_ns"))).alias("ended"),
        F.min(F.when(good, F.col("time_ns"))).alias("first"),
        F.max(F.when(good, F.col("time_ns"))).alias("last"),
        F.count(F.when(good & (F.col("asked_ns") > F.col("time_ns")), 1)).alias("backwards"),
        F.count(F.when(good & (F.col("phase") == "final"), 1)).alias("final"),
    )
    return {row["run"]: row for row in found.collect()}


def _judge(source: Source, row: Any) -> Ingested:
    path = source.trace.path
    if row is None or row["records"] <= 1:
        raise InputError(f"{path}: holds no record but the header; record the run again")
    if (
        row["backwards"]
        or (row["began"] is not None and row["first"] < row["began"])
        or (row["ended"] is not None and row["last"] > row["ended"])
    ):
        raise InputError(f"{path}: the clock went back during the run, so its order cannot be trusted; record it again")
    if row["ended"] is None or not row["final"]:
        raise InputError(
            f"{path}: the run was cut short: {'no end record' if row['ended'] is None else 'no final reads'}, so losses "
            f"would be over-counted; record it again"
        )
    torn = int(source.torn)
    return Ingested(source.run, row["records"], torn, max(row["corrupt"] - torn, 0), row["ended"] is not None)
