"""Leadership over time (M18), from samples of every node's standing: how many believe that they lead."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

SAMPLE_HOLDS_NS = 1_500_000_000
"""A sample speaks for its node until the next one, at most so long: nodes are sampled at least once a second."""


def leader_spans(records: DataFrame) -> DataFrame:
    """Spans of time and how many nodes believed to lead in each: run, start_ns, end_ns, leaders."""
    samples = records.where((F.col("record") == "status") & F.col("corrupt_line").isNull())
    of_node = Window.partitionBy("run", "node").orderBy("time_ns")
    next_ns = F.coalesce(F.lead("time_ns").over(of_node), F.col("time_ns"))
    held = samples.select("run", "node", "role", "answered", "time_ns", next_ns.alias("_next"))
    held = held.withColumn("_until", F.least(F.col("_next"), F.col("time_ns") + SAMPLE_HOLDS_NS))
    leads = held.where((F.col("role") == "leader") & F.col("answered"))
    steps = leads.select("run", F.col("time_ns").alias("at_ns"), F.lit(1).alias("step"))
    steps = steps.unionByName(leads.select("run", F.col("_until").alias("at_ns"), F.lit(-1).alias("step")))
    bounds = (
        held.where(F.col("role").isNotNull()).groupBy("run").agg(F.min("time_ns").alias("_first"), F.max("_until").alias("_last"))
    )
    for edge in ("_first", "_last"):
        steps = steps.unionByName(bounds.select("run", F.col(edge).alias("at_ns"), F.lit(0).alias("step")))
    of_run = Window.partitionBy("run").orderBy("at_ns")
    summed = steps.groupBy("run", "at_ns").agg(F.sum("step").alias("step"))
    counted = summed.withColumn("leaders", F.sum("step").over(of_run)).withColumn("end_ns", F.lead("at_ns").over(of_run))
    return counted.where(F.col("end_ns").isNotNull()).select("run", F.col("at_ns").alias("start_ns"), "end_ns", "leaders")
