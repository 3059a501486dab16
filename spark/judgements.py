"""Histories judged in Spark, key by key: the pure functions of ``histories`` and the one linearizability checker."""

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark.histories import NEVER, Event, judge
from replicated_namesrv.spark.schemas import JUDGED, KEYS, READS, WRITES, arrow
from replicated_namesrv.verify import Limits, Operation, Outcome, check_history

KINDS = ("put", "delete", "get")

_LIMITS = Limits()


def kv_operations(operations: DataFrame) -> DataFrame:
    """Those of the key-value store, in all judged phases, as the judging functions take them."""
    kv = operations.where(F.col("kind").isin(*KINDS))
    return kv.select(
        "run", "key", "op", "client", "kind", "value", "start_ns", "end_ns", "outcome", (F.col("phase") == "final").alias("final")
    )


def _events(table: pa.Table) -> list[Event]:
    names = ("op", "client", "kind", "value", "start_ns", "end_ns", "outcome", "final")
    columns = [table.column(name).to_pylist() for name in names]
    events = (Event(*row) for row in zip(*columns, strict=True))
    return [event._replace(end_ns=NEVER) if event.outcome == "indeterminate" else event for event in events]


def judged(kv: DataFrame) -> DataFrame:
    """Each key judged once: the rows of READS, WRITES and KEYS in one table, told apart by ``what``."""

    def of_key(table: pa.Table) -> pa.Table:
        same = {"run": table.column("run")[0].as_py(), "key": table.column("key")[0].as_py()}
        events = _events(table)
        found = verdict(events)
        judgement = judge(events, atomic=found == "valid")
        rows: list[dict[str, Any]] = [{**same, "what": "read", **read._asdict()} for read in judgement.reads]
        rows += [{**same, "what": "write", **window._asdict()} for window in judgement.windows]
        rows.append({**same, "what": "key", "verdict": found, "operations": len(events), **judgement.distance._asdict()})
        return pa.Table.from_pylist(rows, schema=arrow(JUDGED))

    return kv.groupBy("run", "key").applyInArrow(of_key, JUDGED)


def reads(judged_table: DataFrame) -> DataFrame:
    """READS: every answered read, judged."""
    return judged_table.where(F.col("what") == "read").select(*READS.names)


def writes(judged_table: DataFrame) -> DataFrame:
    """WRITES: every acknowledged write with its inconsistency window."""
    return judged_table.where(F.col("what") == "write").select(*WRITES.names)


def keys(judged_table: DataFrame) -> DataFrame:
    """KEYS: each key's verdict (valid, violated, unknown), and how far from atomic it is."""
    return judged_table.where(F.col("what") == "key").select(*KEYS.names)


def verdict(events: list[Event]) -> str:
    """M1 of one key by ``replicated_namesrv.verify``."""
    operations = [
        Operation(
            event.client, event.kind, "key", event.value, int(event.start_ns),
            None if event.end_ns == NEVER else int(event.end_ns), Outcome(event.outcome),
        )
        for event in events
        if event.kind != "get" or event.outcome == "ok"
    ]  # fmt: skip
    if not operations:
        return "valid"
    return check_history(operations, _LIMITS).verdict.value
