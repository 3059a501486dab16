"""Observations: what every node would answer over time, how far the nodes' answers differ, and when they agree again (M14, M15).

It begins with looks in succession that had the same answer, each such succession a row already (``looks``).

Knowledge ends with silence: from the moment a node is asked and does not answer, its last state is forgotten, and so it is
where the observer itself stood still. A node without a known state differs from nobody.
"""

from collections.abc import Iterator

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from replicated_namesrv.spark.divergence import Change, segments_of
from replicated_namesrv.spark.looks import STANDSTILL_NS
from replicated_namesrv.spark.schemas import EPISODES, SEGMENTS, arrow

RESOLUTION_LOOKS = 2
"""A node is looked at again so long after it has answered, so between two answers lie the interval and the time that the second
took: what two nodes differ in for less than two intervals may be one change, seen on one node after the other."""


def states(looks: DataFrame) -> DataFrame:
    """STATES: node ``node`` answered ``members`` from ``from_ns`` until ``until_ns``. Spans without an answer are left out."""
    of_node = Window.partitionBy("run", "key", "node").orderBy("from_ns")
    alike = looks.select(
        "run", "key", "node", "from_ns", "last_ns", "members",
        F.lag("members").over(of_node).alias("_members"), F.lag("last_ns").over(of_node).alias("_last"),
        F.lead("from_ns").over(of_node).alias("_next"),
    )  # fmt: skip
    stood_still = F.coalesce(F.col("from_ns") - F.col("_last") > STANDSTILL_NS, F.lit(True))
    begins = ~F.col("members").eqNullSafe(F.col("_members")) | stood_still
    ends = F.coalesce(F.col("_next") - F.col("last_ns") > STANDSTILL_NS, F.lit(True))
    edges = alike.withColumn("begins", begins).withColumn("ends", ends).where(F.col("begins") | F.col("ends"))
    # What follows a row that begins a state is the next state, or the last look at this one.
    follows = F.lead(F.when(F.col("begins"), F.col("from_ns")).otherwise(F.col("last_ns"))).over(of_node)
    until = F.when(F.col("ends"), F.col("last_ns")).otherwise(F.col("_follows"))
    spans = edges.withColumn("_follows", follows).where(F.col("begins") & F.col("members").isNotNull())
    return spans.withColumn("until_ns", until).select("run", "key", "node", "from_ns", "until_ns", "members")


def segments(states_table: DataFrame, runs: DataFrame) -> DataFrame:
    """SEGMENTS: spans of time in which the divergence of a key is one number; see ``divergence.segments_of``."""

    def of_group(table: pa.Table) -> pa.Table:
        run, key = table.column("run")[0].as_py(), table.column("key")[0].as_py()
        resolution_ns = RESOLUTION_LOOKS * table.column("observe_interval_ms")[0].as_py() * 1_000_000
        found = [{"run": run, "key": key, **segment._asdict()} for segment in segments_of(_changes(table), resolution_ns)]
        return pa.Table.from_pylist(found, schema=arrow(SEGMENTS))

    known = states_table.join(F.broadcast(runs.select("run", "observe_interval_ms")), "run")
    return known.groupBy("run", "key").applyInArrow(of_group, SEGMENTS)


def _changes(table: pa.Table) -> Iterator[Change]:
    decoded: dict[str | None, frozenset[str]] = {None: frozenset()}
    columns = (table.column(name).to_pylist() for name in ("node", "from_ns", "until_ns", "members"))
    for node, from_ns, until_ns, members in zip(*columns, strict=True):
        state = decoded.get(members)
        if state is None:
            state = frozenset(f"{m['name']}@{m['version']}" for m in orjson.loads(members))
            decoded[members] = state
        yield Change(node, from_ns, until_ns, state)


def episodes(segments_table: DataFrame) -> DataFrame:
    """EPISODES: longest spans with resolved divergence; and, ``resolved`` false, those with divergence of which nothing
    is resolved: below resolution, neither zero nor real. ``ended`` is false for one that observation did not see the end of."""
    unresolved = _spans(segments_table, "divergence").where(F.col("_resolved") == 0)
    both = _spans(segments_table, "resolved").unionByName(unresolved)
    return both.withColumn("resolved", F.col("_resolved") > 0).select(*EPISODES.names)


def _spans(segments_table: DataFrame, measure: str) -> DataFrame:
    """Longest spans with ``measure`` above zero."""
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


def convergence(episodes_table: DataFrame, segments_table: DataFrame, phases_table: DataFrame) -> DataFrame:
    """M15, one row a run and key: ``converged_ns`` from the begin of ``heal`` until no resolved divergence is left to the
    run's end; 0 where there was none; null where the last one was not seen to end: as many nodes as took part in its last
    moments must have answered again afterwards, since that one is no longer looked at makes no node agree."""
    heal = phases_table.where(F.col("phase") == "heal").select("run", F.col("start_ns").alias("heal_ns"))
    late = episodes_table.where("resolved").join(F.broadcast(heal), "run").where(F.col("end_ns") > F.col("heal_ns"))
    ends = late.groupBy("run", "key").agg(F.max("end_ns").alias("_end"))
    then, after = F.col("end_ns") == F.col("_end"), F.col("start_ns") >= F.col("_end")
    seen = (
        segments_table.join(F.broadcast(ends), ["run", "key"], "left")
        .groupBy("run", "key", "_end")
        .agg(F.max(F.when(then, F.col("nodes_known"))).alias("_then"), F.max(F.when(after, F.col("nodes_known"))).alias("_after"))
    )
    waited = F.when(F.col("_end").isNull(), F.lit(0)).when(F.col("_after") >= F.col("_then"), F.col("_end") - F.col("heal_ns"))
    return seen.join(F.broadcast(heal), "run").select("run", "key", waited.alias("converged_ns"))
