"""One run of each mode with the same scenario, seed and size in detail: each node's answers over time, and the latency of each
operation.

Averages over runs hide the course of a fault. The chosen pair shows most of what either mode costs: it has the greatest
product of how far AP's nodes differed and how much CP did not answer in time. The result is reduced to cells of time, at most
BINS_MAX, so its size does not depend on the length of the run.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark.run_figures import REGISTRATIONS
from replicated_namesrv.verify.divergence import RESOLUTION_LOOKS

BINS_MAX = 400
"""Cells along the time of a run."""
LATENCY_CELLS = 25
"""Cells for each factor of ten in latency."""
_MEMBERS = "array<struct<name:string,version:string>>"


def choose(per_run: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> list[str]:
    """The names of at most one run of each mode with one schedule. ``per_run`` and ``runs`` are rows of these tables."""
    paid: dict[str, float] = {}
    for row in per_run:
        if row["phase"] == row["side"] == "all":
            if row["metric"] == "divergence_area" and row["mode"] == "ap":
                paid[row["run"]] = row["value"]
            elif row["metric"] == "yield_in_time" and row["mode"] == "cp":
                paid[row["run"]] = max(1 - row["value"], paid.get(row["run"], 0.0))  # at the level with the fewest answers
    schedules: dict[tuple[str, int, int], dict[str, str]] = {}
    for run in sorted(runs, key=lambda run: (paid.get(run["run"], 0.0), str(run["run"]))):
        # the last one has the highest cost
        schedules.setdefault((run["scenario"], run["seed"], run["nodes"]), {})[run["mode"]] = run["run"]

    def worth(names: dict[str, str]) -> tuple[int, float, float]:
        ap, cp = (paid.get(names.get(mode, ""), 0.0) for mode in ("ap", "cp"))
        return len(names), ap * cp, ap

    best = max((schedules[schedule] for schedule in sorted(schedules)), key=worth, default={})
    return sorted(best.values())


def spans(phases: DataFrame, runs: DataFrame, names: Sequence[str]) -> DataFrame:
    """One row for each run in ``names``: run, at_ns (begin of the fault, or else of the run), from_ns, until_ns, width_ns of a
    cell.

    A cell is at least as wide as the resolution of the observation."""
    of_run = phases.where(F.col("run").isin(list(names)) & (F.col("phase") != "settle")).groupBy("run").agg(
        F.min("start_ns").alias("from_ns"),
        F.max(F.when(F.col("phase") != "final", F.col("end_ns"))).alias("until_ns"),
        F.min(F.when(F.col("phase") == "fault", F.col("start_ns"))).alias("_fault"),
    )  # fmt: skip  # items grouped by line
    cells = F.ceil((F.col("until_ns") - F.col("from_ns")) / BINS_MAX)
    width = F.greatest(cells, RESOLUTION_LOOKS * F.col("observe_interval_ms") * 1_000_000)
    timed = of_run.where(F.col("until_ns") > F.col("from_ns")).join(F.broadcast(runs.select("run", "observe_interval_ms")), "run")
    return timed.select("run", F.coalesce("_fault", "from_ns").alias("at_ns"), "from_ns", "until_ns", width.alias("width_ns"))


def standings(states: DataFrame, close: DataFrame) -> DataFrame:
    """Each node's main answer in each cell of time of the runs ``close`` (``spans``): run, node, at_s since the begin of the
    fault, width_s, answer.

    Equal brokers have the same number as answer. There is no row if the node answered for less than half of the cell."""
    own = states.where(F.col("key") == REGISTRATIONS).withColumnsRenamed({"from_ns": "_first", "until_ns": "_last"})
    own = own.join(F.broadcast(close), "run")
    begin, end = F.greatest("_first", "from_ns"), F.least("_last", "until_ns")
    own = own.withColumn("_first", begin).withColumn("_last", end).where(F.col("_last") > F.col("_first"))
    cell = [F.floor((F.col(name) - F.col("from_ns") - less) / F.col("width_ns")) for name, less in (("_first", 0), ("_last", 1))]
    cut = own.withColumn("cell", F.explode(F.sequence(*cell)))
    left = F.col("from_ns") + F.col("cell") * F.col("width_ns")
    lasted = F.least(F.col("_last"), left + F.col("width_ns")) - F.greatest(F.col("_first"), left)
    answer = F.xxhash64(F.array_sort(F.from_json("members", _MEMBERS)))
    cut = cut.withColumn("_ns", lasted).withColumn("answer", answer).withColumn("at_ns", left - F.col("at_ns"))
    alike = cut.groupBy("run", "node", "at_ns", "width_ns", "answer").agg(F.sum("_ns").alias("_ns"))
    most = alike.groupBy("run", "node", "at_ns", "width_ns").agg(
        F.max_by("answer", F.struct("_ns", "answer")).alias("answer"), F.sum("_ns").alias("_ns")
    )
    return most.where(F.col("_ns") * 2 >= F.col("width_ns")).select(
        "run", "node", (F.col("at_ns") / 1e9).alias("at_s"), (F.col("width_ns") / 1e9).alias("width_s"), "answer"
    )


def latencies(operations: DataFrame, close: DataFrame) -> DataFrame:
    """Operations in cells of time and latency: run, at_s since the begin of the fault, latency_ms, outcome, operations.

    Both numbers are the middle of a cell. A null latency means that the operation never ended."""
    own = operations.where(F.col("kind").isin("get", "put", "delete", "route")).join(F.broadcast(close), "run")
    own = own.where((F.col("start_ns") >= F.col("from_ns")) & (F.col("start_ns") < F.col("until_ns")))
    step = F.greatest(F.lit(1), F.floor((F.col("until_ns") - F.col("from_ns")) / BINS_MAX))
    at = (F.floor((F.col("start_ns") - F.col("at_ns")) / step) + 0.5) * step / 1e9
    took = F.when(F.col("end_ns").isNotNull(), F.greatest(F.col("end_ns") - F.col("start_ns"), F.lit(1))) / 1e6
    cell = F.pow(10.0, (F.floor(F.log10(took) * LATENCY_CELLS) + 0.5) / LATENCY_CELLS)
    return own.groupBy("run", at.alias("at_s"), cell.alias("latency_ms"), "outcome").agg(F.count("*").alias("operations"))
