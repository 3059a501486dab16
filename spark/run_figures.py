"""Figures of single runs. Each row of PER_RUN is one figure.

Each figure is computed per phase, per side of the partition (majority, minority), over all of them (``all``), and per read level.
``CATALOGUE`` names every figure with its number in DESIGN.md, its unit, and whether less is better.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

ALL = "all"


class Metric(NamedTuple):
    """The definition of a figure."""

    code: str
    title: str
    unit: str
    less_is_better: bool


_OF_HISTORIES = {
    "linearizable_keys": Metric("M1", "keys whose history is linearizable", "share", False),
    "unknown_keys": Metric("M1", "keys whose check exceeded its limits", "share", True),
    "anomalous_reads": Metric("M2", "reads that no order of the writes explains", "share", True),
    "window_median": Metric("M4", "inconsistency window of a write, median", "ms", True),
    "window_p99": Metric("M4", "inconsistency window of a write, 99th percentile", "ms", True),
    "window_max": Metric("M4", "inconsistency window of a write, longest", "ms", True),
    "fresh_reads": Metric("M5", "reads that see the last acknowledged write or a newer one", "share", False),
    "staleness_max": Metric("M5", "longest time that a read lagged behind an acknowledged write", "ms", True),
    "versions_behind_mean": Metric("M6", "acknowledged versions that a read had missed, mean", "versions", True),
    "versions_behind_max": Metric("M6", "acknowledged versions that a read had missed, most", "versions", True),
    "delta_max": Metric("M7", "largest Delta of a key", "ms", True),
    "conflict_share": Metric("M8", "pairs of writes in conflict (each comes before the other)", "share", True),
    "gamma_median": Metric("M8", "Gamma of conflicting pairs of writes, median", "ms", True),
    "gamma_p99": Metric("M8", "Gamma of conflicting pairs of writes, 99th percentile", "ms", True),
    "gamma_max": Metric("M8", "largest Gamma of a pair of writes", "ms", True),
    "read_your_writes": Metric("M10", "reads that miss what their client had written", "reads", True),
    "monotonic_reads": Metric("M10", "reads of something older than their client had read", "reads", True),
    "monotonic_writes": Metric("M10", "reads that show a writer's writes out of order", "reads", True),
    "writes_follow_reads": Metric("M10", "reads that show an effect without its cause", "reads", True),
    "lost_writes": Metric("M19", "keys whose final reads miss an acknowledged write", "keys", True),
    "resurrected": Metric("M19", "keys whose final reads show what an acknowledged delete had removed", "keys", True),
}
"""Figures of both kinds of history: key-value store and registrations. Delta (M7) and Gamma (M8) are the least shift and the
least widening of operations that make a history atomic (DESIGN.md)."""

ROUTES = "route_"
"""Name prefix of figures of registration histories. In these a key is a topic, a read is a look-up, and a write is a
registration."""

NOT_OF_ROUTES = ("read_your_writes", "writes_follow_reads")
"""Brokers that register do not look up routes, so these guarantees cannot be violated."""


def _of_routes(metric: Metric) -> Metric:
    title = metric.title
    for kv, route in (
        ("keys", "topics"), ("key", "topic"), ("final reads", "final look-ups"), ("reads", "look-ups"), ("read ", "look-up "),
        ("writer", "broker"), ("writes", "registrations"), ("write", "registration"), ("delete ", "unregistration "),
    ):  # fmt: skip  # items grouped by line
        title = title.replace(kv, route)
    unit = {"keys": "topics", "reads": "look-ups"}.get(metric.unit, metric.unit)
    return metric._replace(title=title, unit=unit)


CATALOGUE = {
    **_OF_HISTORIES,
    **{ROUTES + name: _of_routes(metric) for name, metric in _OF_HISTORIES.items() if name not in NOT_OF_ROUTES},
    "equal_probes": Metric("M3", "probes to which all nodes that answered gave the same answer", "share", False),
    "harvest": Metric("M11", "brokers that should be in an answer and were", "share", False),
    "yield": Metric("M12", "operations that were answered", "share", False),
    "yield_in_time": Metric("M12", "operations that were answered within their deadline", "share", False),
    "ghosts": Metric("M13", "brokers in an answer that were dead", "share", True),
    "divergence_area": Metric("M14", "divergence of the nodes' answers, integrated over time", "s", True),
    "divergence_share": Metric("M14", "time in which the nodes' answers differed", "share", True),
    "divergence_max": Metric("M14", "greatest divergence", "Jaccard distance", True),
    "episodes": Metric("M14", "episodes of divergence", "episodes", True),
    "episodes_below_resolution": Metric(
        "M14", "episodes too short for the observer to distinguish from agreement", "episodes", True
    ),
    "convergence": Metric("M15", "from the heal until all nodes agree for good", "s", True),
    "not_converged": Metric("M15", "runs whose nodes still differed at the end", "share", True),
    "detection_median": Metric("M16", "from a broker's death until a node drops it for good, median", "s", True),
    "detection_max": Metric("M16", "from a broker's death until a node drops it for good, longest", "s", True),
    "mistakes": Metric("M16", "drops of brokers that were alive", "drops", True),
    "mistakes_exposed": Metric("M16", "mistaken drops of brokers that no majority could reach", "drops", True),
    "mistake_duration": Metric("M16", "from a mistaken drop until the broker is listed again, mean", "s", True),
    "mistake_recurrence": Metric("M16", "between two mistakes of a node about one broker, mean", "s", False),
    "query_accuracy": Metric(
        "M16", "probability that a live broker is listed, computed from mistaken drops only", "share", False
    ),
    "unavailable_longest": Metric("M17", "longest time without a success, of the worst kind of operation and node", "s", True),
    "unavailable_total": Metric(
        "M17", "time in gaps longer than an operation's deadline, for the worst kind of operation and node", "s", True
    ),
    "leaderless": Metric("M18", "time in which no node considered itself leader", "s", True),
    "double_leaders": Metric(
        "M18", "time in which several nodes considered themselves leader, times the number of extra leaders", "s", True
    ),
    "elections": Metric("M18", "terms that found a leader", "terms", True),
    "put_latency_median": Metric("M20", "latency of answered puts, median", "ms", True),
    "put_latency_p99": Metric("M20", "latency of answered puts, 99th percentile", "ms", True),
    "get_latency_median": Metric("M20", "latency of answered gets, median", "ms", True),
    "get_latency_p99": Metric("M20", "latency of answered gets, 99th percentile", "ms", True),
    "route_latency_median": Metric("M20", "latency of answered look-ups, median", "ms", True),
    "route_latency_p99": Metric("M20", "latency of answered look-ups, 99th percentile", "ms", True),
    "misrouted": Metric("M21", "messages sent to a broker that was dead or closed to writes", "share", True),
    "unrouted": Metric("M21", "messages for which the client knew no broker", "share", True),
}
"""M5's t-visibility and M9's consistability are tables of their own."""

CLOCK_SENSITIVE = ("M4", "M5", "M6", "M7", "M8")
"""Figures that compare times of two nodes. The uncertainty of the clocks is given with each."""

NS_PER_MS = 1e6


def share(condition: Column) -> Column:
    """Share of rows with ``condition``; null counts as false."""
    return F.avg(F.coalesce(condition, F.lit(False)).cast("double"))


def figures(rows: DataFrame, by: list[str], count: Column, **values: Column) -> DataFrame:
    """Aggregate ``rows`` by run and the columns in ``by`` (some of level, phase, side), and over all values of each of these. One
    row per figure.

    The result has the columns of PER_RUN except those that describe the run. Figures without a value are left out."""
    grouped = over_all(rows, ["run"], by)
    table = grouped.agg(count.cast("long").alias("_count"), *[value.cast("double").alias(name) for name, value in values.items()])
    for name in ("level", "phase", "side"):
        table = table.withColumn(name, F.coalesce(F.col(name), F.lit(ALL)) if name in by else F.lit(ALL))
    pairs = ", ".join(f"'{name}', `{name}`" for name in values)
    stacked = table.selectExpr(
        "run", "level", "phase", "side", f"stack({len(values)}, {pairs}) as (metric, value)", "_count as count"
    )
    return stacked.where(F.col("value").isNotNull())


def over_all(rows: DataFrame, always: Sequence[str], by: Sequence[str]) -> GroupedData:
    """``rows`` grouped by ``always`` and each subset of ``by``: a cube without the unused groups, because each group would
    cost a copy of every row."""
    sets = [[*always, *some] for size in range(len(by) + 1) for some in combinations(by, size)]
    return rows.groupingSets(sets, *always, *by)


def of_reads(reads: DataFrame, operations: DataFrame, prefix: str = "") -> DataFrame:
    """M2, M5, M6, M10 of reads before ``final``, and M19 of those in it. ``prefix`` ROUTES: reads are look-ups."""
    kind = "route" if prefix else "get"
    asked = operations.where(F.col("kind") == kind).select("run", "op", "phase", "side")
    judged = reads.join(asked, ["run", "op"])
    during = judged.where(F.col("phase") != "final")
    values = {
        "anomalous_reads": share(F.col("anomalous")),
        "fresh_reads": share(F.col("fresh")),
        "staleness_max": F.max(F.when(F.col("fresh"), 0).otherwise(F.col("age_ns"))) / NS_PER_MS,
        "versions_behind_mean": F.avg("versions_behind"),
        "versions_behind_max": F.max("versions_behind"),
    }
    for guarantee in ("read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads"):
        if not prefix or guarantee not in NOT_OF_ROUTES:
            values[guarantee] = F.count(F.when(F.col(guarantee), 1))
    table = figures(during, ["level", "phase", "side"], F.count("*"), **_named(prefix, values))
    final = judged.where(F.col("phase") == "final")
    lost = F.countDistinct(F.when(F.col("lost"), F.col("key")))
    back = F.countDistinct(F.when(F.col("resurrected"), F.col("key")))
    at_the_end = figures(final, ["level"], F.count("*"), **_named(prefix, {"lost_writes": lost, "resurrected": back}))
    return table.unionByName(at_the_end)


def _named(prefix: str, values: dict[str, Column]) -> dict[str, Column]:
    return {prefix + name: value for name, value in values.items()}


def of_keys(keys: DataFrame, prefix: str = "") -> DataFrame:
    """M1, M7, M8, of each level: a key's history at a level has all writes, and the reads of that level."""
    scores = F.sort_array(F.flatten(F.collect_list("gammas_ns")))
    values = {
        "linearizable_keys": share(F.col("verdict") == "valid"), "unknown_keys": share(F.col("verdict") == "unknown"),
        "delta_max": F.max("delta_ns") / NS_PER_MS,
        "conflict_share": F.when(F.sum("pairs") > 0, F.sum("conflicts") / F.sum("pairs")),
        "gamma_max": F.max("gamma_max_ns") / NS_PER_MS,
        "gamma_median": _quantile(scores, 0.5) / NS_PER_MS, "gamma_p99": _quantile(scores, 0.99) / NS_PER_MS,
    }  # fmt: skip  # items grouped by line
    return figures(keys, ["level"], F.sum("operations"), **_named(prefix, values))


def _quantile(values: Column, at: float) -> Column:
    """Quantile of a sorted array, interpolated linearly like ``percentile``; null for an empty array."""
    place = (F.size(values) - 1) * at
    low, high = (F.get(values, rounded(place).cast("int")) for rounded in (F.floor, F.ceil))
    return low + (place - F.floor(place)) * (high - low)


def of_writes(writes: DataFrame, operations: DataFrame, prefix: str = "") -> DataFrame:
    """M4, of acknowledged writes that were read afterwards. The phase is that in which the write began."""
    kinds = ("register", "unregister") if prefix else ("put", "delete")
    known = operations.where(F.col("kind").isin(*kinds)).select("run", "op", "phase", "side")
    seen = writes.where(F.col("reads_after") > 0).join(known, ["run", "op"])
    values = {
        "window_median": F.percentile("window_ns", 0.5) / NS_PER_MS, "window_p99": F.percentile("window_ns", 0.99) / NS_PER_MS,
        "window_max": F.max("window_ns") / NS_PER_MS,
    }  # fmt: skip  # items grouped by line
    return figures(seen, ["level", "phase", "side"], F.count("*"), **_named(prefix, values))


def of_probes(probes: DataFrame) -> DataFrame:
    """M3."""
    return figures(probes.where(F.col("phase") != "final"), ["level", "phase"], F.count("*"), equal_probes=share(F.col("equal")))


def of_look_ups(look_ups: DataFrame) -> DataFrame:
    """M11, M13."""
    return figures(
        look_ups, ["level", "phase", "side"], F.count("*"),
        harvest=F.avg(F.when(F.col("must") > 0, F.col("found") / F.col("must"))),
        ghosts=F.avg(F.when(F.col("answered") > 0, F.col("ghosts") / F.col("answered"))),
    )  # fmt: skip  # items grouped by line


ASKED = ("put", "get", "delete", "route")
"""Operation kinds that clients request; what brokers send on their own is left out."""


def of_operations(operations: DataFrame, runs: DataFrame) -> DataFrame:
    """M12, and M20 of each kind."""
    asked = operations.where(F.col("kind").isin(*ASKED) & (F.col("phase") != "final"))
    asked = asked.join(F.broadcast(runs.select("run", "deadline_ms")), "run")
    ok, took_ns = F.col("outcome") == "ok", F.col("end_ns") - F.col("start_ns")
    in_time = share(ok & (took_ns <= F.col("deadline_ms") * 1_000_000))
    values = {"yield": share(ok), "yield_in_time": F.when(F.max("deadline_ms") > 0, in_time)}  # imported runs have no deadline
    for kind in ("put", "get", "route"):
        latency = F.when(ok & (F.col("kind") == kind), took_ns)
        values[f"{kind}_latency_median"] = F.percentile(latency, 0.5) / NS_PER_MS
        values[f"{kind}_latency_p99"] = F.percentile(latency, 0.99) / NS_PER_MS
    return figures(asked, ["level", "phase", "side"], F.count("*"), **values)


def of_gaps(gaps: DataFrame, runs: DataFrame) -> DataFrame:
    """M17, of the worst kind and node."""
    known = gaps.where(F.col("kind").isin(*ASKED)).join(F.broadcast(runs.select("run", "deadline_ms")), "run")
    over = F.when(F.col("gap_ns") > F.col("deadline_ms") * 1_000_000, F.col("gap_ns")).otherwise(0)
    over = F.when(F.col("deadline_ms") > 0, over)
    # Sums are for one kind, node and level. The worst of them counts.
    grouped = over_all(known, ["run", "level", "kind", "entity"], ["phase", "side"])
    summed = grouped.agg(F.max("gap_ns").alias("longest"), F.sum(over).alias("total"), F.count("*").alias("n"))
    for name in ("phase", "side"):
        summed = summed.withColumn(name, F.coalesce(name, F.lit(ALL)))
    every = summed.unionByName(summed.withColumn("level", F.lit(ALL)))
    worst = every.groupBy("run", "level", "phase", "side").agg(
        F.max("longest").alias("longest"), F.max("total").alias("total"), F.sum("n").alias("count")
    )
    return worst.selectExpr(
        "run", "level", "phase", "side",
        "stack(2, 'unavailable_longest', longest / 1e9, 'unavailable_total', total / 1e9) as (metric, value)", "count",
    ).where(F.col("value").isNotNull())  # fmt: skip  # items grouped by line


REGISTRATIONS = "brokers"
"""Key of observations of registrations. KV entries are observed too but not compared: an AP node has only the entries that were
put on that node."""


def of_divergence(segments: DataFrame, episodes: DataFrame, convergence: DataFrame) -> DataFrame:
    """M14 and M15 of registrations, without differences below the resolution."""
    segments, episodes, convergence = (table.where(F.col("key") == REGISTRATIONS) for table in (segments, episodes, convergence))
    observed = segments.groupBy("run").agg(
        (F.sum(F.col("end_ns") - F.col("start_ns")) / 1e9).alias("observed_s"), F.count("*").alias("n")
    )
    real = F.col("resolved")
    found = episodes.groupBy("run").agg(
        F.sum(F.when(real, F.col("area_s")).otherwise(0.0)).alias("area"),
        F.sum(F.when(real, (F.col("end_ns") - F.col("start_ns")) / 1e9).otherwise(0.0)).alias("apart"),
        F.max(F.when(real, F.col("divergence_max"))).alias("most"),
        F.count(F.when(real, 1)).alias("many"), F.count(F.when(~real, 1)).alias("short"),
    )  # fmt: skip  # items grouped by line
    joined = observed.join(found, "run", "left").na.fill(0)
    table = figures(
        joined, [], F.sum("n"),
        divergence_area=F.sum("area"), divergence_share=F.sum("apart") / F.sum("observed_s"), divergence_max=F.max("most"),
        episodes=F.sum("many"), episodes_below_resolution=F.sum("short"),
    )  # fmt: skip  # items grouped by line
    waited = figures(
        convergence, [], F.count("*"),
        convergence=F.max("converged_ns") / 1e9, not_converged=share(F.col("converged_ns").isNull()),
    )  # fmt: skip  # items grouped by line
    return table.unionByName(waited)


def of_detections(detections: DataFrame, mistakes: DataFrame, runs: DataFrame) -> DataFrame:
    """M16. A run without mistakes counts as 0 mistakes."""
    seconds = F.col("detected_ns") / 1e9
    table = figures(detections, [], F.count("*"), detection_median=F.percentile(seconds, 0.5), detection_max=F.max(seconds))
    wrong = runs.select("run").join(mistakes, "run", "left")
    lasted, apart = F.avg("mistake_ns") / 1e9, F.avg("recurrence_ns") / 1e9
    lasted_then = F.avg(F.when(F.col("recurrence_ns").isNotNull(), F.col("mistake_ns"))) / 1e9
    counted = figures(
        wrong, [], F.count("at_ns"),
        mistakes=F.count("at_ns"), mistakes_exposed=F.count(F.when(F.col("exposed"), 1)), mistake_duration=lasted,
        mistake_recurrence=apart, query_accuracy=F.when(apart > 0, (apart - lasted_then) / apart),
    )  # fmt: skip  # items grouped by line
    return table.unionByName(counted)


def of_leaders(leader_spans: DataFrame, records: DataFrame) -> DataFrame:
    """M18."""
    seconds = (F.col("end_ns") - F.col("start_ns")) / 1e9
    table = figures(
        leader_spans, [], F.count("*"),
        leaderless=F.sum(F.when(F.col("leaders") == 0, seconds).otherwise(0.0)),
        double_leaders=F.sum(F.when(F.col("leaders") > 1, seconds * (F.col("leaders") - 1)).otherwise(0.0)),
    )  # fmt: skip  # items grouped by line
    terms = records.where((F.col("record") == "election") & F.col("corrupt_line").isNull())
    return table.unionByName(figures(terms, [], F.count("*"), elections=F.countDistinct("term")))


def of_sends(sends: DataFrame) -> DataFrame:
    """M21; ``sends`` with their phase."""
    sent = F.col("broker").isNotNull()
    return figures(
        sends.where(F.col("phase") != "final"), ["phase"], F.count("*"),
        misrouted=F.avg(F.when(sent, (~F.col("reachable")).cast("double"))), unrouted=share(~sent),
    )  # fmt: skip  # items grouped by line


def per_run(rows: Iterable[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of PER_RUN: the rows of all figures, completed with the columns of their run."""
    same = ("mode", "scenario", "seed", "nodes", "fault_s")
    about = {run["run"]: {name: run[name] for name in same} for run in runs}
    # Each of the two clocks may be off by this much.
    uncertain_ms = {run["run"]: 2 * run["clock_uncertainty_ns"] / NS_PER_MS for run in runs}
    sensitive = {name for name, metric in CATALOGUE.items() if metric.code in CLOCK_SENSITIVE}
    return [
        {**row, **about[row["run"]], "clock_uncertainty_ms": uncertain_ms[row["run"]] if row["metric"] in sensitive else None}
        for row in rows
    ]
