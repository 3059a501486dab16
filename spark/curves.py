"""Curves of the report's figures over time, age or quantiles, reduced in Spark to a few hundred points per run."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark import judgements
from replicated_namesrv.spark.run_figures import REGISTRATIONS

BIN_NS = 250_000_000
"""Width of a point of a curve over time."""
BINS_MAX = 4_000

QUANTILES = [*(index / 100 for index in range(100)), 0.995, 0.999, 1.0]

KV, ROUTES = "key-value store", "registrations"
"""The subject of a curve."""


def _fault(phases: DataFrame) -> DataFrame:
    return phases.where(F.col("phase") == "fault").select("run", F.col("start_ns").alias("_at"), F.col("end_ns").alias("_end"))


def divergence(segments: DataFrame, phases: DataFrame) -> DataFrame:
    """Greatest resolved divergence of registrations in each bin of a run: run, at_s since the begin of its fault, divergence."""
    binned = segments.where((F.col("key") == REGISTRATIONS) & (F.col("resolved") > 0)).join(F.broadcast(_fault(phases)), "run")
    bins = {}
    for name, at in (("_first", F.col("start_ns")), ("_last", F.col("end_ns") - 1)):
        bins[name] = F.floor((at - F.col("_at")) / BIN_NS)
    binned = binned.withColumns(bins)
    last = F.least("_last", F.col("_first") + BINS_MAX)
    binned = binned.withColumn("bin", F.explode(F.sequence("_first", last)))
    curve = binned.groupBy("run", "bin").agg(F.max("resolved").alias("divergence"))
    return curve.select("run", (F.col("bin") * (BIN_NS / 1e9)).alias("at_s"), "divergence")


def faults(phases: DataFrame) -> DataFrame:
    """Length of the phases of each run, relative to the begin of its fault: run, steady_s (negative), end_s, until_s."""
    of_run = phases.groupBy("run").agg(
        F.min(F.when(F.col("phase") == "steady", F.col("start_ns"))).alias("_from"),
        F.max(F.when(F.col("phase") == "heal", F.col("end_ns"))).alias("_until"),
    )
    found = _fault(phases).join(of_run, "run")
    seconds = {
        name: (F.col(at) - F.col("_at")) / 1e9 for name, at in (("steady_s", "_from"), ("end_s", "_end"), ("until_s", "_until"))
    }
    return found.select("run", *[value.alias(name) for name, value in seconds.items()])


def windows(judged: DataFrame, routes: DataFrame, runs: DataFrame) -> DataFrame:
    """Quantiles of inconsistency windows: mode, about, quantile, window_ms, writes."""
    both = judgements.writes(judged).withColumn("about", F.lit(KV))
    both = both.unionByName(judgements.writes(routes).withColumn("about", F.lit(ROUTES)))
    strongest = F.broadcast(runs.select("run", "mode", F.col("read_consistency").alias("level")))
    known = both.where(F.col("reads_after") > 0).join(strongest, ["run", "level"])
    found = known.groupBy("mode", "about").agg(
        F.percentile("window_ns", F.array(*map(F.lit, QUANTILES))).alias("q"), F.count("*").alias("writes")
    )
    return found.select("mode", "about", "writes", F.posexplode("q").alias("at", "ns")).select(
        "mode", "about", _quantile(), (F.col("ns") / 1e6).alias("window_ms"), "writes"
    )


def _quantile() -> Column:
    return F.element_at(F.array(*map(F.lit, QUANTILES)), F.col("at") + 1).alias("quantile")


def visibility(judged: DataFrame, routes: DataFrame, runs: DataFrame) -> DataFrame:
    """Pairs of a write and a later read by the time between them: run, mode, about, level, age_ms, compared, seen."""
    both = judgements.visible(judged).withColumn("about", F.lit(KV))
    both = both.unionByName(judgements.visible(routes).withColumn("about", F.lit(ROUTES)))
    known = both.join(F.broadcast(runs.select("run", "mode")), "run")
    return known.groupBy("run", "mode", "about", "level", "age_ms").agg(
        F.sum("compared").alias("compared"), F.sum("seen").alias("seen")
    )


def latencies(operations: DataFrame) -> DataFrame:
    """Quantiles of answered operations before the fault: mode, level, kind, quantile, latency_ms, operations."""
    calm = operations.where((F.col("phase") == "steady") & (F.col("outcome") == "ok") & F.col("kind").isin("get", "put", "route"))
    took = (F.col("end_ns") - F.col("start_ns")) / 1e6
    found = calm.groupBy("mode", "level", "kind").agg(
        F.percentile(took, F.array(*map(F.lit, QUANTILES))).alias("q"), F.count("*").alias("operations")
    )
    return found.select("mode", "level", "kind", "operations", F.posexplode("q").alias("at", "latency_ms")).select(
        "mode", "level", "kind", _quantile(), "latency_ms", "operations"
    )
