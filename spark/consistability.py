"""Consistability (M9, Aiyer et al. 2008): "class c with probability p while fault f lasts".

A read is in a class if it was answered as the class requires. A read without an answer is in no class, so the probability
combines consistency and availability. A second figure counts answered reads only. Each read is judged separately. Classes from
strong to weak:

- ``linearizable``: it can be merged into its write together with all reads that ended before it (M2);
- ``regular``: it returns the last acknowledged write or a concurrent one (Lamport 1986), which is staleness of k = 0;
- ``session``: it breaks no session guarantee of its client (M10);
- ``one version``: it is behind by at most one acknowledged version, k <= 1 (M6);
- ``one second``: the first write that it misses had been acknowledged for at most that long, t <= 1 s (M5);
- ``eventual``: it returns a written value, however old;
- ``answered``: it returns anything at all.

Linearizable implies regular, regular implies both bounds; each class implies the last two.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from replicated_namesrv.spark import judgements
from replicated_namesrv.spark.curves import KV, ROUTES
from replicated_namesrv.spark.run_figures import ALL, over_all
from replicated_namesrv.spark.schemas import HELD
from replicated_namesrv.spark.summary import interval

CLASSES = ("linearizable", "regular", "session", "one version", "one second", "eventual", "answered")
SECOND_NS = 1_000_000_000


def held(judged: DataFrame, routes: DataFrame, operations: DataFrame) -> DataFrame:
    """HELD: counts of reads before ``final`` of judged keys, by read level, phase and side, and over all phases and sides."""
    parts = []
    for rows, kind, about in ((judged, "get", KV), (routes, "route", ROUTES)):
        asked = operations.where((F.col("kind") == kind) & (F.col("phase") != "final"))
        asked = asked.join(judgements.keys(rows).select("run", "key", "level"), ["run", "key", "level"], "left_semi")
        asked = asked.select("run", "op", "level", "phase", "side")
        judgement = judgements.reads(rows).drop("key", "level")
        parts.append(asked.join(judgement, ["run", "op"], "left").withColumn("about", F.lit(about)))
    reads = parts[0].unionByName(parts[1])
    answered, known = F.col("anomalous").isNotNull(), F.col("versions_behind").isNotNull()
    broken = F.greatest("read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads")
    classes = {
        "linearizable": ~F.col("anomalous"), "regular": F.col("fresh"), "session": known & ~broken,
        "one version": F.col("versions_behind") <= 1,
        "one second": known & (F.col("fresh") | (F.col("age_ns") <= SECOND_NS)),
        "eventual": known, "answered": answered,
    }  # fmt: skip  # items grouped by line
    counted = over_all(reads, ["run", "about", "level"], ["phase", "side"]).agg(
        F.count("*").alias("asked"),
        F.count(F.when(answered, 1)).alias("_answered"),
        *[F.count(F.when(answered & condition, 1)).alias(name) for name, condition in classes.items()],
    )
    for name in ("phase", "side"):
        counted = counted.withColumn(name, F.coalesce(F.col(name), F.lit(ALL)))
    pairs = ", ".join(f"'{name}', `{name}`" for name in CLASSES)
    stacked = counted.selectExpr(
        "run", "about", "level", "phase", "side", "asked", "_answered as answered",
        f"stack({len(CLASSES)}, {pairs}) as (class, held)",
    )  # fmt: skip  # items grouped by line
    return stacked.select(*HELD.names)


def consistability(rows: Iterable[dict[str, Any]], runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of CONSISTABILITY from those of HELD: means over runs with intervals, by scenario and over all scenarios."""
    about_run = {run["run"]: run for run in runs}
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        run = about_run[row["run"]]
        for scenario in (run["scenario"], ALL):
            same = (row[name] for name in ("about", "level", "phase", "side", "class"))
            groups[run["mode"], scenario, *same].append(row)
    found = []
    for group, members in sorted(groups.items(), key=lambda item: (*item[0][:-1], CLASSES.index(item[0][-1]))):
        mode, scenario, about, level, phase, side, name = group
        members.sort(key=lambda row: str(row["run"]))
        shares = [row["held"] / row["asked"] for row in members]
        answered = [row for row in members if row["answered"]]
        low, high = interval(shares, [about_run[row["run"]]["scenario"] for row in members], "share")
        found.append(
            {
                "mode": mode, "scenario": scenario, "about": about, "level": level, "phase": phase, "side": side, "class": name,
                "probability": sum(shares) / len(shares), "low": low, "high": high,
                "of_answered": sum(row["held"] / row["answered"] for row in answered) / len(answered) if answered else None,
                "whole_runs": sum(row["held"] == row["answered"] for row in answered) / len(answered) if answered else None,
                "runs": len(members), "asked": sum(row["asked"] for row in members),
                "clock_uncertainty_ms": 2 * max(about_run[row["run"]]["clock_uncertainty_ns"] for row in members) / 1e6,
            }
        )  # fmt: skip  # items grouped by line
    return found
