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

from replicated_namesrv.spark import (
    consistability,
    curves,
    judgements,
    leaders,
    metrics,
    observations,
    operations,
    registrations,
    truth,
)
from replicated_namesrv.spark.ingest import Ingested, Traces, ingest
from replicated_namesrv.spark.schemas import CONSISTABILITY, PAIRED, SUMMARY, T_VISIBILITY
from replicated_namesrv.spark.sources import Source, find_runs, runs_table
from replicated_namesrv.spark.storage import Storage
from replicated_namesrv.spark.summary import paired, summary, t_visibility
from replicated_namesrv.spark.timeline import phases, sides, with_phase

KEPT = (
    "runs", "phases", "sides", "operations", "judged", "judged_registrations", "states", "segments", "episodes", "convergence",
    "probes", "gaps", "look_ups", "detections", "mistakes", "leader_spans", "per_run", "held", "summary", "paired",
    "t_visibility", "consistability",
)  # fmt: skip
"""Tables under ``tables/`` besides ``observations`` and ``events``, in the order in which they are made."""


Keep = Callable[[str, DataFrame], DataFrame]
"""Names a table that others may start from, and gives it back made."""


@dataclass(frozen=True, slots=True)
class Results:
    """What the report stands on: small tables as rows."""

    runs: list[dict[str, Any]]
    ingested: list[Ingested]
    per_run: list[dict[str, Any]]
    summary: list[dict[str, Any]]
    paired: list[dict[str, Any]]
    t_visibility: list[dict[str, Any]]
    """When 99 % and 99.9 % of reads see a write."""
    consistability: list[dict[str, Any]]
    """How probable each class of consistency is, by fault and phase."""
    divergence: list[dict[str, Any]]
    """Greatest divergence of a run by time: run, at_s after its fault began, divergence."""
    faults: list[dict[str, Any]]
    """Phases ``fault`` of runs on the same scale: run, start_s, end_s."""
    windows: list[dict[str, Any]]
    """Quantiles of inconsistency windows: mode, about, quantile, window_ms, writes."""
    visibility: list[dict[str, Any]]
    """Reads by time since a write: run, mode, about, level, age_ms (upper bound of the bin), compared, seen."""
    latencies: list[dict[str, Any]]
    """Quantiles of answered operations before the fault: mode, level, kind, quantile, latency_ms."""
    folders: dict[str, str]
    """Where each run lies."""


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
        return self.analyse(find_runs(self._storage, paths))

    def analyse(self, sources: Sequence[Source]) -> Results:
        """Analyse runs that were found. Raises InputError for what cannot be."""
        traces, ingested = ingest(self._spark, self._storage, sources, self._out, self._say)
        self._storage.delete(self._staging)
        try:
            results = self._analyse(traces, runs_table(self._spark, sources), sources, ingested)
            for name in KEPT:
                self._storage.delete(f"{self._out}/tables/{name}")
                self._storage.rename(f"{self._staging}/{name}", f"{self._out}/tables/{name}")
            return results
        finally:
            self._storage.discard(self._staging)

    def _keep(self, name: str, table: DataFrame) -> DataFrame:
        self._say(f"{time.monotonic() - self._began:5.1f} s  {name}")
        table.write.parquet(f"{self._staging}/{name}")
        return self._spark.read.schema(table.schema).parquet(f"{self._staging}/{name}")

    def _analyse(self, traces: Traces, runs: DataFrame, sources: Sequence[Source], ingested: list[Ingested]) -> Results:
        made = figures_of_runs(traces, runs, self._keep)
        figures = _rows(made["per_run"])
        ages = _rows(curves.visibility(made["judged"], made["judged_registrations"], made["runs"]))
        about = _rows(made["runs"])
        pairs = paired(figures, {run["mode"]: run["read_consistency"] for run in about})
        summed, seen = summary(figures), t_visibility(ages, {run["run"]: run["clock_uncertainty_ns"] for run in about})
        classes = consistability.consistability(_rows(made["held"]), about)
        self._keep("summary", self._spark.createDataFrame(summed, SUMMARY).coalesce(1))
        self._keep("paired", self._spark.createDataFrame(pairs, PAIRED).coalesce(1))
        self._keep("t_visibility", self._spark.createDataFrame(seen, T_VISIBILITY).coalesce(1))
        self._keep("consistability", self._spark.createDataFrame(classes, CONSISTABILITY).coalesce(1))
        self._say(f"{time.monotonic() - self._began:5.1f} s  curves")
        return Results(
            about, ingested, figures, summed, pairs, seen, classes,
            _rows(curves.divergence(made["segments"], made["phases"])), _rows(curves.faults(made["phases"])),
            _rows(curves.windows(made["judged"], made["judged_registrations"], made["runs"])), ages,
            _rows(curves.latencies(made["operations"])), {source.run: source.folder for source in sources},
        )  # fmt: skip


def figures_of_runs(traces: Traces, runs: DataFrame, keep: Keep) -> dict[str, DataFrame]:
    """All stages in their order, from ingested traces to ``per_run``; the tables that were kept, by name."""
    made: dict[str, DataFrame] = {}
    records = traces.events

    def kept(name: str, table: DataFrame) -> DataFrame:
        made[name] = keep(name, table)
        return made[name]

    runs = kept("runs", runs)
    spans = kept("phases", phases(records))
    side_spans = kept("sides", sides(records, runs))
    done = kept("operations", operations.operations(records, runs, spans, side_spans))
    facts = truth.truth_spans(records)
    judged = kept("judged", judgements.judged(judgements.kv_operations(records, done)))
    history = registrations.registration_operations(records, done, facts)
    routes = kept("judged_registrations", registrations.judged_registrations(history))
    states = kept("states", observations.states(traces.looks))
    segments = kept("segments", observations.segments(states, runs))
    episodes = kept("episodes", observations.episodes(segments))
    converged = kept("convergence", observations.convergence(episodes, segments, spans))
    probes = kept("probes", operations.probes(done))
    gaps = kept("gaps", operations.gaps(done, spans, side_spans))
    look_ups = kept("look_ups", truth.look_ups(done, facts))
    detections = kept("detections", truth.detections(records, facts))
    mistakes = kept("mistakes", truth.mistakes(records, facts, states))
    leader_spans = kept("leader_spans", leaders.leader_spans(records))
    sends = records.where((F.col("record") == "send") & F.col("corrupt_line").isNull()).drop("phase")
    tables = [
        metrics.of_probes(probes),
        metrics.of_look_ups(look_ups),
        metrics.of_operations(done, runs),
        metrics.of_gaps(gaps, runs),
        metrics.of_divergence(segments, episodes, converged),
        metrics.of_detections(detections, mistakes, runs),
        metrics.of_leaders(leader_spans, records),
        metrics.of_sends(with_phase(sends, spans, F.col("time_ns"))),
    ]
    for rows, prefix in ((judged, ""), (routes, metrics.ROUTES)):
        tables += [
            metrics.of_reads(judgements.reads(rows), done, prefix),
            metrics.of_keys(judgements.keys(rows), prefix),
            metrics.of_writes(judgements.writes(rows), done, prefix),
        ]
    kept("per_run", metrics.per_run(tables, runs).coalesce(1))
    kept("held", consistability.held(judged, routes, done).coalesce(1))
    return made


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    """A small table. Everything that comes here is a figure of a run or less."""
    return [row.asDict() for row in table.collect()]
