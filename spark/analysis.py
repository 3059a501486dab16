"""The whole analysis: traces in, tables and figures out. Stages are functions from tables to tables; this is their order.

Tables that others may start from are kept as Parquet under ``tables/``; each is written aside and takes its place when the whole
analysis has succeeded, so a failed one leaves what was there before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from replicated_namesrv.spark import judgements, leaders, metrics, observations, operations, truth
from replicated_namesrv.spark.ingest import Ingested, find_runs, ingest, runs_table
from replicated_namesrv.spark.schemas import PAIRED, SUMMARY
from replicated_namesrv.spark.storage import Storage
from replicated_namesrv.spark.summary import paired, summary
from replicated_namesrv.spark.timeline import phases, sides, with_phase

KEPT = (
    "runs", "phases", "sides", "operations", "judged", "states", "segments", "episodes", "convergence", "probes", "look_ups",
    "detections", "mistakes", "leader_spans", "per_run", "summary", "paired",
)  # fmt: skip
"""Tables under ``tables/`` besides ``records``, in the order in which they are made."""


@dataclass(frozen=True, slots=True)
class Results:
    """What the report stands on: small tables as rows."""

    runs: list[dict[str, Any]]
    ingested: list[Ingested]
    per_run: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]
    divergence: list[dict[str, Any]]
    """Greatest divergence of a run by time: run, at_s after its first observation, divergence."""
    faults: list[dict[str, Any]]
    """Phases ``fault`` of runs on the same scale: run, start_s, end_s."""
    windows: list[dict[str, Any]]
    """Quantiles of inconsistency windows: mode, quantile, window_ms."""
    visibility: list[dict[str, Any]]
    """Reads by time since the write they should see: mode, level, age_ms (upper bound of the bin), reads, fresh."""
    latencies: list[dict[str, Any]]
    """Quantiles of answered operations before the fault: mode, level, kind, quantile, latency_ms."""


class Analysis:
    """One analysis of some runs into a folder. ``say`` gets progress, a line at a time."""

    def __init__(self, spark: SparkSession, out: str, say: Callable[[str], None]) -> None:
        self._spark = spark
        self._storage = Storage(spark)
        self._out = out.rstrip("/")
        self._staging = f"{self._out}/tables/analysing"
        self._say = say
        self._began = time.monotonic()

    def run(self, paths: Sequence[str]) -> Results:
        """Analyse the runs below ``paths``. Raises InputError for what cannot be."""
        sources = find_runs(self._storage, paths)
        records, ingested = ingest(self._spark, self._storage, sources, self._out, self._say)
        self._storage.delete(self._staging)
        try:
            results = self._analyse(records, runs_table(self._spark, sources), ingested)
            for name in KEPT:
                self._storage.delete(f"{self._out}/tables/{name}")
                self._storage.rename(f"{self._staging}/{name}", f"{self._out}/tables/{name}")
            return results
        finally:
            self._storage.delete(self._staging)

    def _keep(self, name: str, table: DataFrame) -> DataFrame:
        self._say(f"{time.monotonic() - self._began:5.1f} s  {name}")
        table.write.parquet(f"{self._staging}/{name}")
        return self._spark.read.schema(table.schema).parquet(f"{self._staging}/{name}")

    def _analyse(self, records: DataFrame, runs: DataFrame, ingested: list[Ingested]) -> Results:
        runs = self._keep("runs", runs)
        spans = self._keep("phases", phases(records))
        side_spans = self._keep("sides", sides(records, runs))
        done = self._keep("operations", operations.operations(records, runs, spans, side_spans))
        judged = self._keep("judged", judgements.judged(judgements.kv_operations(done)))
        states = self._keep("states", observations.states(records))
        segments = self._keep("segments", observations.segments(states))
        episodes = self._keep("episodes", observations.episodes(segments, runs))
        converged = self._keep("convergence", observations.convergence(episodes, segments, spans))
        probes = self._keep("probes", operations.probes(done))
        facts = truth.truth_spans(records)
        look_ups = self._keep("look_ups", truth.look_ups(done, facts))
        detections = self._keep("detections", truth.detections(records, facts))
        mistakes = self._keep("mistakes", truth.mistakes(records, facts, states))
        leader_spans = self._keep("leader_spans", leaders.leader_spans(records))
        sends = with_phase(
            records.where((F.col("record") == "send") & F.col("corrupt_line").isNull()).drop("phase"), spans, F.col("time_ns")
        )
        tables = [
            metrics.of_reads(judgements.reads(judged), done),
            metrics.of_keys(judgements.keys(judged)),
            metrics.of_writes(judgements.writes(judged), done),
            metrics.of_probes(probes),
            metrics.of_look_ups(look_ups),
            metrics.of_operations(done, runs),
            metrics.of_gaps(operations.gaps(done, spans), runs),
            metrics.of_divergence(segments, episodes, converged),
            metrics.of_detections(detections, mistakes, runs),
            metrics.of_leaders(leader_spans, records),
            metrics.of_sends(sends),
        ]
        per_run = self._keep("per_run", metrics.per_run(tables, runs).coalesce(1))
        figures = _rows(per_run)
        summed, pairs = summary(figures), paired(figures)
        self._keep("summary", self._spark.createDataFrame(summed, SUMMARY).coalesce(1))
        self._keep("paired", self._spark.createDataFrame(pairs, PAIRED).coalesce(1))
        self._say(f"{time.monotonic() - self._began:5.1f} s  curves")
        return Results(
            _rows(runs), ingested, figures, summed, pairs,
            _rows(_divergence_curve(segments)), _rows(_fault_spans(segments, spans)),
            _rows(_window_quantiles(judgements.writes(judged), runs)), _rows(_visibility(judgements.reads(judged), done)),
            _rows(_latency_quantiles(done)),
        )  # fmt: skip


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    """A small table. Everything that comes here is a figure of a run or less."""
    return [row.asDict() for row in table.collect()]


POINTS = 300
"""Of a curve over time."""


def _origin(segments: DataFrame) -> DataFrame:
    return segments.groupBy("run").agg(F.min("start_ns").alias("_from"), F.max("end_ns").alias("_until"))


def _divergence_curve(segments: DataFrame) -> DataFrame:
    """Greatest divergence of any key in each of POINTS bins of a run."""
    width = (F.col("_until") - F.col("_from")) / POINTS
    binned = segments.where(F.col("divergence") > 0).join(F.broadcast(_origin(segments)), "run")
    first = F.floor((F.col("start_ns") - F.col("_from")) / width)
    last = F.floor((F.col("end_ns") - 1 - F.col("_from")) / width)
    binned = binned.withColumn("bin", F.explode(F.sequence(first, last)))
    curve = binned.groupBy("run", "bin").agg(F.max("divergence").alias("divergence"), F.first(width).alias("width"))
    return curve.select("run", (F.col("bin") * F.col("width") / 1e9).alias("at_s"), "divergence")


def _fault_spans(segments: DataFrame, spans: DataFrame) -> DataFrame:
    found = spans.where(F.col("phase") == "fault").join(F.broadcast(_origin(segments)), "run")
    start, end = F.col("start_ns") - F.col("_from"), F.col("end_ns") - F.col("_from")
    return found.select("run", (start / 1e9).alias("start_s"), (end / 1e9).alias("end_s"))


_QUANTILES = [index / 100 for index in range(101)]


def _window_quantiles(writes: DataFrame, runs: DataFrame) -> DataFrame:
    known = writes.where(F.col("reads_after") > 0).join(F.broadcast(runs.select("run", "mode")), "run")
    found = known.groupBy("mode").agg(F.percentile("window_ns", F.array(*map(F.lit, _QUANTILES))).alias("q"))
    return found.select("mode", F.posexplode("q").alias("at", "ns")).select(
        "mode", (F.col("at") / 100).alias("quantile"), (F.col("ns") / 1e6).alias("window_ms")
    )


def _visibility(reads: DataFrame, done: DataFrame) -> DataFrame:
    keys = done.where((F.col("kind") == "get") & (F.col("phase") != "final")).select("run", "op", "mode", "level")
    known = reads.where(F.col("age_ns").isNotNull() & (F.col("age_ns") >= 0)).join(keys, ["run", "op"])
    upper = F.pow(F.lit(2.0), F.ceil(F.log2(F.greatest(F.col("age_ns") / 1e6, F.lit(0.0625)))))
    binned = known.withColumn("age_ms", upper)
    return binned.groupBy("mode", "level", "age_ms").agg(
        F.count("*").alias("reads"), F.count(F.when(F.col("fresh"), 1)).alias("fresh")
    )


def _latency_quantiles(done: DataFrame) -> DataFrame:
    calm = done.where((F.col("phase") == "steady") & (F.col("outcome") == "ok") & F.col("kind").isin("get", "put", "route"))
    took = (F.col("end_ns") - F.col("start_ns")) / 1e6
    found = calm.groupBy("mode", "level", "kind").agg(F.percentile(took, F.array(*map(F.lit, _QUANTILES))).alias("q"))
    return found.select("mode", "level", "kind", F.posexplode("q").alias("at", "latency_ms")).select(
        "mode", "level", "kind", (F.col("at") / 100).alias("quantile"), "latency_ms"
    )
