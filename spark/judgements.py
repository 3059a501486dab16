"""Judges histories in Spark, key by key, with the pure functions of ``histories`` and the linearizability checker.

A history is judged once for each read level, with all writes and only the reads of that level, because reads of a level that
promises less must not affect the verdict on one that promises more.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark.client_operations import completed_invocations
from replicated_namesrv.spark.histories import KeyJudgement, judge, visibility
from replicated_namesrv.spark.schemas import JUDGED, KEYS, READS, VISIBILITY, WRITES, arrow
from replicated_namesrv.verify import Operation, Outcome, SearchLimits, check_history
from replicated_namesrv.verify.attribution import NEVER, KeyEvent

LIMITS = SearchLimits()


def kv_operations(records: DataFrame, operations: DataFrame) -> DataFrame:
    """Reads of the judged phases and writes of all phases, for the judging functions. Values written during start-up may be
    read later."""
    reads = operations.where(F.col("kind") == "get").withColumn("final", F.col("phase") == "final")
    writes = completed_invocations(records, "put", "delete").withColumn("final", F.lit(False))
    columns = ("run", "key", "level", "op", "client", "kind", "value", "start_ns", "end_ns", "outcome", "final")
    return reads.select(*columns).unionByName(writes.select(*columns))


def events_of(table: pa.Table) -> list[tuple[KeyEvent, str]]:
    """Rows as events, each with the level of its read."""
    names = ("op", "client", "kind", "value", "start_ns", "end_ns", "outcome", "final")
    columns = [table.column(name).to_pylist() for name in names]
    events = (KeyEvent(*row) for row in zip(*columns, strict=True))
    known = [event._replace(end_ns=NEVER) if event.outcome == "indeterminate" else event for event in events]
    return list(zip(known, table.column("level").to_pylist(), strict=True))


def by_level(events: Iterable[tuple[KeyEvent, str]], read: str) -> list[tuple[str, list[KeyEvent]]]:
    """For each level of a read (kind ``read``): all writes, and the reads of that level."""
    known = list(events)
    levels = sorted({level for event, level in known if event.kind == read})
    return [(level, [event for event, own in known if event.kind != read or own == level]) for level in levels]


def judged(kv: DataFrame) -> DataFrame:
    """Each key judged: the rows of READS, WRITES, KEYS and VISIBILITY in one table, with the kind in ``what``."""

    def of_key(table: pa.Table) -> pa.Table:
        def rows() -> Iterable[dict[str, Any]]:
            for level, events in by_level(events_of(table), "get"):
                found = verdict(events)
                yield from rows_of(judge(events, atomic=found == "valid"), level, found, events, visibility(events))

        return judged_table(table, rows)

    return kv.groupBy("run", "key").applyInArrow(of_key, JUDGED)


def judged_table(table: pa.Table, rows: Callable[[], Iterable[dict[str, Any]]]) -> pa.Table:
    """Rows of JUDGED for the run and key of a group."""
    same = {"run": table.column("run")[0].as_py(), "key": table.column("key")[0].as_py()}
    return pa.Table.from_pylist([{**same, **row} for row in rows()], schema=arrow(JUDGED))


def rows_of(
    judgement: KeyJudgement, level: str, found: str, events: Sequence[Any], ages: dict[float, tuple[int, int]]
) -> Iterable[dict[str, Any]]:
    """The rows of one judgement."""
    for read in judgement.reads:
        yield {"what": "read", "level": level, **read._asdict()}
    for window in judgement.windows:
        yield {"what": "write", "level": level, **window._asdict()}
    for age_ms, (compared, seen) in ages.items():
        yield {"what": "visibility", "level": level, "age_ms": age_ms, "compared": compared, "seen": seen}
    yield {"what": "key", "level": level, "verdict": found, "operations": len(events), **judgement.distance._asdict()}


def reads(judged_rows: DataFrame) -> DataFrame:
    """READS: every answered read, judged."""
    return judged_rows.where(F.col("what") == "read").select(*READS.names)


def writes(judged_rows: DataFrame) -> DataFrame:
    """WRITES: every acknowledged write with its inconsistency window at each level."""
    return judged_rows.where(F.col("what") == "write").select(*WRITES.names)


def keys(judged_rows: DataFrame) -> DataFrame:
    """KEYS: each key's verdict (valid, violated, unknown) and distance from atomicity, at each level."""
    return judged_rows.where(F.col("what") == "key").select(*KEYS.names)


def visible(judged_rows: DataFrame) -> DataFrame:
    """VISIBILITY: pairs of a write and a later read by the time between them (at most ``age_ms``), and how many reads saw the
    write.
    """
    return judged_rows.where(F.col("what") == "visibility").select(*VISIBILITY.names)


def verdict(events: list[KeyEvent]) -> str:
    """M1 of one key, by ``replicated_namesrv.verify``."""
    operations = [
        Operation(
            event.client, event.kind, "key", event.value, int(event.start_ns),
            None if event.end_ns == NEVER else int(event.end_ns), Outcome(event.outcome),
        )
        for event in events
        if event.kind != "get" or event.outcome == "ok"
    ]  # fmt: skip  # items grouped by line
    if not operations:
        return "valid"
    return check_history(operations, LIMITS).verdict.value
