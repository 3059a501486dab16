"""Leadership over time (M18): how many nodes regard themselves as the leader, from samples of every node's status."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

SAMPLE_HOLDS_NS = 1_500_000_000
"""A sample is valid until the next one of the node, at most this long. Nodes are sampled at least once a second."""


def leader_spans(records: DataFrame) -> DataFrame:
    """Spans of time with the number of nodes that believed to be the leader: run, start_ns, end_ns, leaders.

    They reach from the first sample that names a role to the last. If no node has a valid sample because the observer stalled,
    there is no span."""
    samples = records.where((F.col("record") == "status") & F.col("corrupt_line").isNull())
    of_node = Window.partitionBy("run", "node").orderBy("time_ns")
    next_ns = F.coalesce(F.lead("time_ns").over(of_node), F.col("time_ns"))
    held = samples.select("run", "role", "answered", F.col("time_ns").alias("at_ns"), next_ns.alias("_next"))
    held = held.withColumn("_until", F.least(F.col("_next"), F.col("at_ns") + SAMPLE_HOLDS_NS))
    leads = F.coalesce((F.col("role") == "leader") & F.col("answered"), F.lit(False)).cast("int")
    begins = held.select("run", "at_ns", F.lit(1).alias("known"), leads.alias("leads"))
    ends = held.select("run", F.col("_until").alias("at_ns"), F.lit(-1).alias("known"), (-leads).alias("leads"))
    told = F.col("role").isNotNull()
    bounds = held.groupBy("run").agg(
        F.min(F.when(told, F.col("at_ns"))).alias("_first"), F.max(F.when(told, F.col("_until"))).alias("_last")
    )
    of_run = Window.partitionBy("run").orderBy("at_ns")
    steps = begins.unionByName(ends).groupBy("run", "at_ns").agg(F.sum("known").alias("known"), F.sum("leads").alias("leads"))
    counted = steps.select(
        "run", F.col("at_ns").alias("start_ns"), F.lead("at_ns").over(of_run).alias("end_ns"),
        F.sum("known").over(of_run).alias("known"), F.sum("leads").over(of_run).alias("leaders"),
    )  # fmt: skip  # items grouped by line
    within = (F.col("start_ns") >= F.col("_first")) & (F.col("end_ns") <= F.col("_last")) & (F.col("known") > 0)
    return counted.join(F.broadcast(bounds), "run").where(within).select("run", "start_ns", "end_ns", "leaders")
