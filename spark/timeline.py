"""The phases of each run, and each node's side of the fault over time."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

NOWHERE = "none"
"""Side of an operation without a known node."""

JUDGED_PHASES = ("steady", "fault", "heal", "final")

WHOLE, MAJORITY, MINORITY = "whole", "majority", "minority"
"""Sides: all nodes are connected; the connected part has more than half of them; the rest."""


def phases(records: DataFrame) -> DataFrame:
    """PHASES: each begins where the previous one ends; ``end`` closes the last and is not a phase."""
    of_run = Window.partitionBy("run").orderBy("time_ns")
    marks = records.where((F.col("record") == "phase") & F.col("corrupt_line").isNull())
    spans = marks.select("run", "phase", F.col("time_ns").alias("start_ns"), F.lead("time_ns").over(of_run).alias("end_ns"))
    return spans.where(F.col("end_ns").isNotNull())


def sides(records: DataFrame, runs: DataFrame) -> DataFrame:
    """SIDES: from each edge of a fault to the next. Before the first edge all nodes are on the side ``whole``."""
    of_run = Window.partitionBy("run").orderBy("time_ns", "edge_order")
    edges = (
        records.where((F.col("record") == "fault") & F.col("sides").isNotNull() & F.col("corrupt_line").isNull())
        .withColumn("edge_order", F.when(F.col("edge") == "end", 0).otherwise(1))
        .select("run", "time_ns", "edge_order", "sides")
        .withColumn("until_ns", F.lead("time_ns").over(of_run))
        .withColumn("until_ns", F.coalesce("until_ns", F.lit(2**63 - 1)))
    )
    parts = edges.select("run", "time_ns", "until_ns", F.explode("sides").alias("part")).where(
        F.col("until_ns") > F.col("time_ns")
    )
    size = F.size("part")
    side = F.when(size == F.col("nodes"), WHOLE).when(size * 2 > F.col("nodes"), MAJORITY).otherwise(MINORITY)
    named = parts.join(F.broadcast(runs.select("run", "nodes")), "run").withColumn("side", side)
    return named.select(
        "run", F.explode("part").alias("node"), "side", F.col("time_ns").alias("start_ns"), F.col("until_ns").alias("end_ns")
    )


def with_phase(rows: DataFrame, phases_table: DataFrame, moment: Column) -> DataFrame:
    """``rows`` (with ``run``) of the judged phases, with the column ``phase``."""
    spans = phases_table.where(F.col("phase").isin(*JUDGED_PHASES)).select(
        F.col("run").alias("_run"), "phase", F.col("start_ns").alias("_start"), F.col("end_ns").alias("_end")
    )
    joined = rows.withColumn("_moment", moment)
    within = (F.col("run") == F.col("_run")) & (F.col("_moment") >= F.col("_start")) & (F.col("_moment") < F.col("_end"))
    return joined.join(F.broadcast(spans), within).drop("_run", "_start", "_end", "_moment")


def with_side(rows: DataFrame, sides_table: DataFrame, node: Column, moment: Column) -> DataFrame:
    """``rows`` with the column ``side`` of the node at that moment: whole if no fault was active, none without a node."""
    spans = sides_table.select(
        F.col("run").alias("_run"), F.col("node").alias("_node"), F.col("side").alias("_side"),
        F.col("start_ns").alias("_start"), F.col("end_ns").alias("_end"),
    )  # fmt: skip  # items grouped by line
    joined = rows.withColumn("_at", node).withColumn("_moment", moment)
    within = (
        (F.col("run") == F.col("_run"))
        & (F.col("_at") == F.col("_node"))
        & (F.col("_moment") >= F.col("_start"))
        & (F.col("_moment") < F.col("_end"))
    )
    side = F.when(F.col("_at").isNull(), NOWHERE).otherwise(F.coalesce(F.col("_side"), F.lit(WHOLE)))
    named = joined.join(F.broadcast(spans), within, "left").withColumn("side", side)
    return named.drop("_run", "_node", "_side", "_start", "_end", "_at", "_moment")
