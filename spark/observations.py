"""Each node's answers over time, how far they differ, and when they agree again (M14, M15).

The definitions are those of ``verify.divergence``. This module applies them in Spark, key by key. Its input is ``looks``, in
which consecutive looks with the same answer are one row.
"""

from collections.abc import Iterator

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from replicated_namesrv.spark.schemas import CONVERGENCE, EPISODES, SEGMENTS, STATES, arrow
from replicated_namesrv.verify.divergence import (
    DivergenceSegment,
    Look,
    NodeAnswer,
    convergence_ns,
    known_answers,
    resolution_ns,
    segments_of,
)


def states(looks: DataFrame) -> DataFrame:
    """STATES: node ``node`` answered ``members`` from ``from_ns`` until ``until_ns``. Spans without an answer are left out."""

    def of_node(table: pa.Table) -> pa.Table:
        run, key, node = (table.column(name)[0].as_py() for name in ("run", "key", "node"))
        columns = (table.column(name).to_pylist() for name in ("from_ns", "last_ns", "members"))
        seen = (Look(*row) for row in zip(*columns, strict=True))
        rows = [
            {"run": run, "key": key, "node": node, "from_ns": from_ns, "until_ns": until_ns, "members": members}
            for from_ns, until_ns, members in known_answers(seen)
        ]
        return pa.Table.from_pylist(rows, schema=arrow(STATES))

    return looks.groupBy("run", "key", "node").applyInArrow(of_node, STATES)


def segments(states_table: DataFrame, runs: DataFrame) -> DataFrame:
    """SEGMENTS: spans of time with constant divergence of a key (``segments_of``)."""

    def of_group(table: pa.Table) -> pa.Table:
        run, key = table.column("run")[0].as_py(), table.column("key")[0].as_py()
        resolution = resolution_ns(table.column("observe_interval_ms")[0].as_py())
        found = [{"run": run, "key": key, **segment._asdict()} for segment in segments_of(_changes(table), resolution)]
        return pa.Table.from_pylist(found, schema=arrow(SEGMENTS))

    known = states_table.join(F.broadcast(runs.select("run", "observe_interval_ms")), "run")
    return known.groupBy("run", "key").applyInArrow(of_group, SEGMENTS)


def _changes(table: pa.Table) -> Iterator[NodeAnswer]:
    decoded: dict[str | None, frozenset[str]] = {None: frozenset()}
    columns = (table.column(name).to_pylist() for name in ("node", "from_ns", "until_ns", "members"))
    for node, from_ns, until_ns, members in zip(*columns, strict=True):
        state = decoded.get(members)
        if state is None:
            state = frozenset(f"{m['name']}@{m['version']}" for m in orjson.loads(members))
            decoded[members] = state
        yield NodeAnswer(node, from_ns, until_ns, state)


def episodes(segments_table: DataFrame) -> DataFrame:
    """EPISODES: maximal spans with resolved divergence and, with ``resolved`` false, spans with divergence below the
    resolution.

    ``ended`` is false if the observation ended first."""
    unresolved = _spans(segments_table, "divergence").where(F.col("_resolved") == 0)
    both = _spans(segments_table, "resolved").unionByName(unresolved)
    return both.withColumn("resolved", F.col("_resolved") > 0).select(*EPISODES.names)


def _spans(segments_table: DataFrame, measure: str) -> DataFrame:
    """Maximal spans with ``measure`` above zero."""
    of_key = Window.partitionBy("run", "key").orderBy("start_ns")
    apart = F.col(measure) > 0
    begins = apart & ~(F.coalesce(F.lag(apart).over(of_key), F.lit(False)) & (F.lag("end_ns").over(of_key) == F.col("start_ns")))
    numbered = segments_table.withColumn(
        "_number", F.sum(begins.cast("int")).over(of_key.rowsBetween(Window.unboundedPreceding, 0))
    )
    following = F.lead("start_ns").over(of_key)
    numbered = numbered.withColumn("_open", ~F.coalesce(following == F.col("end_ns"), F.lit(False)))
    seconds = (F.col("end_ns") - F.col("start_ns")) / 1e9
    found = numbered.where(apart).groupBy("run", "key", "_number")
    summed = found.agg(
        F.min("start_ns").alias("start_ns"),
        F.max("end_ns").alias("end_ns"),
        F.sum(F.col(measure) * seconds).alias("area_s"),
        F.max(measure).alias("divergence_max"),
        F.max("resolved").alias("_resolved"),
        F.max(F.when(F.col("_open"), F.col("end_ns"))).alias("_open_ns"),
    )
    return summed.withColumn("ended", ~F.coalesce(F.col("_open_ns") == F.col("end_ns"), F.lit(False)))


def convergence(segments_table: DataFrame, phases_table: DataFrame) -> DataFrame:
    """CONVERGENCE: M15, one row per run and key with segments and the phase ``heal``."""

    def of_group(table: pa.Table) -> pa.Table:
        run, key, heal_ns = (table.column(name)[0].as_py() for name in ("run", "key", "heal_ns"))
        columns = (table.column(name).to_pylist() for name in DivergenceSegment._fields)
        converged_ns = convergence_ns(map(DivergenceSegment, *columns), heal_ns)
        return pa.Table.from_pylist([{"run": run, "key": key, "converged_ns": converged_ns}], schema=arrow(CONVERGENCE))

    heal = phases_table.where(F.col("phase") == "heal").select("run", F.col("start_ns").alias("heal_ns"))
    return segments_table.join(F.broadcast(heal), "run").groupBy("run", "key").applyInArrow(of_group, CONVERGENCE)
