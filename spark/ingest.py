"""Ingest: traces of runs become two Parquet tables, observations and events, by run and mode; nothing is dropped in silence.

Runs that cannot be trusted are refused before anything is in place: a clock that went back, a run cut short. Lines that do not
parse are kept, counted and reported. New runs are written aside and renamed into place when all of them are whole, so that a
failure leaves the output folder as it was; a run that is there already is not ingested again.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from replicated_namesrv.spark.schemas import CORRUPT, OBSERVED, RECORD_TYPES, RECORDS
from replicated_namesrv.spark.sources import InputError, Source
from replicated_namesrv.spark.storage import Storage

OBSERVE = "observe"


class Ingested(NamedTuple):
    """What became of one run's lines."""

    run: str
    records: int
    torn: int
    corrupt: int
    ended: bool


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
    try:
        known = json.loads(storage.read_text(note))
        before, ingested = (known["size_bytes"], known["modified_ms"]), Ingested(**known["ingested"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{note}: is not what an analysis wrote there; choose another --out, or remove that folder") from None
    if before != (source.trace.size_bytes, source.trace.modified_ms):
        raise InputError(
            f"{source.trace.path}: run '{source.run}' was ingested into {out} from another trace; choose another --out, "
            f"or remove that folder"
        )
    return ingested


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
    """Large traces one by one, the small ones together, of folders of one name in different groups."""
    group: list[Source] = []
    for source in sources:
        is_large = sum(one.trace.size_bytes for one in [*group, source]) > TOGETHER_BYTES
        if group and (is_large or _name(source) in map(_name, group)):  # a group's lines are told apart by folders' names
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
            place = f"{staging}/{name}/run={group[0].run}/mode={group[0].mode}"
            table.drop("path").write.parquet(place)
        else:
            decoded = F.url_decode(F.regexp_replace("path", r"\+", "%2B"))
            folder = F.regexp_extract(decoded, r"([^/]+)/[^/]+$", 1)
            for column, values in (("run", [s.run for s in group]), ("mode", [s.mode for s in group])):
                known = zip((_name(source) for source in group), values, strict=True)
                table = table.withColumn(column, F.create_map(*[F.lit(x) for pair in known for x in pair])[folder])
            table.drop("path").write.mode("append").partitionBy("run", "mode").parquet(f"{staging}/{name}")


def _name(source: Source) -> str:
    return source.folder.rstrip("/").rsplit("/", 1)[-1]


def _ingest_new(
    spark: SparkSession, storage: Storage, new: Sequence[Source], out: str, say: Callable[[str], None]
) -> dict[str, Ingested | None]:
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
            f"would be over-counted; record it again, or remove its folder"
        )
    torn = int(source.torn)
    return Ingested(source.run, row["records"], torn, max(row["corrupt"] - torn, 0), row["ended"] is not None)
