"""The whole analysis: traces in, tables and figures out. Stages are functions from tables to tables; this says which of which.

Tables that others may start from are kept as Parquet under ``tables/``; each is written aside and takes its place when the whole
analysis has succeeded, so a failed one leaves what was there before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from replicated_namesrv.spark import (
    consistability,
    curves,
    judgements,
    leaders,
    metrics,
    observations,
    operations,
    pair,
    registrations,
    truth,
)
from replicated_namesrv.spark.ingest import Ingested, Traces, ingest
from replicated_namesrv.spark.schemas import CONSISTABILITY, HELD, PAIRED, PER_RUN, SUMMARY, T_VISIBILITY, arrow
from replicated_namesrv.spark.session import on_own_connection
from replicated_namesrv.spark.sources import Source, find_runs, runs_table
from replicated_namesrv.spark.stages import Stage
from replicated_namesrv.spark.stages import run as run_stages
from replicated_namesrv.spark.storage import Storage
from replicated_namesrv.spark.summary import paired, summary, t_visibility
from replicated_namesrv.spark.timeline import phases, sides, with_phase

KEPT = (
    "runs", "phases", "sides", "operations", "judged", "judged_registrations", "states", "segments", "episodes", "convergence",
    "probes", "gaps", "look_ups", "detections", "mistakes", "leader_spans", "per_run", "held", "summary", "paired",
    "t_visibility", "consistability",
)  # fmt: skip
"""Tables under ``tables/`` besides ``observations`` and ``events``."""


Keep = Callable[[str, DataFrame], DataFrame]
"""Names a table that others may start from, and gives it back made. Called by several threads."""


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
    pair_standings: list[dict[str, Any]]
    """What each node of two runs answered over time, as ``pair.standings`` says."""
    pair_latencies: list[dict[str, Any]]
    """Their operations over time, as ``pair.latencies`` says."""
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

    def run(self, paths: Sequence[str], last: Callable[[Results], None] | None = None) -> Results:
        """Analyse the runs below ``paths``, as ``analyse`` does. Raises InputError for what cannot be."""
        return self.analyse(find_runs(self._storage, paths), last)

    def analyse(self, sources: Sequence[Source], last: Callable[[Results], None] | None = None) -> Results:
        """Analyse runs that were found. Raises InputError for what cannot be. ``last`` is called when all tables are made and
        before they take their place: what it raises leaves the tables that were there."""
        traces, ingested = ingest(self._spark, self._storage, sources, self._out, self._say)
        self._storage.delete(self._staging)
        try:
            results = self._analyse(traces, runs_table(self._spark, sources), sources, ingested)
            if last is not None:
                last(results)
            for name in KEPT:
                self._storage.delete(f"{self._out}/tables/{name}")
                self._storage.rename(f"{self._staging}/{name}", f"{self._out}/tables/{name}")
            return results
        finally:
            self._storage.discard(self._staging)

    def _keep(self, name: str, table: DataFrame) -> DataFrame:
        table.write.parquet(f"{self._staging}/{name}")
        return self._spark.read.schema(table.schema).parquet(f"{self._staging}/{name}")

    def _done(self, name: str) -> None:
        self._say(f"{time.monotonic() - self._began:5.1f} s  {name}")

    def _analyse(self, traces: Traces, runs: DataFrame, sources: Sequence[Source], ingested: list[Ingested]) -> Results:
        rows = figures_of_runs(traces, runs, self._keep, self._done).rows
        about, figures, ages = rows["runs"], rows["per_run"], rows["visibility"]
        found: dict[str, tuple[list[dict[str, Any]], StructType]] = {
            "summary": (summary(figures), SUMMARY),
            "paired": (paired(figures, {run["mode"]: run["read_consistency"] for run in about}), PAIRED),
            "t_visibility": (t_visibility(ages, {run["run"]: run["clock_uncertainty_ns"] for run in about}), T_VISIBILITY),
            "consistability": (consistability.consistability(rows["held"], about), CONSISTABILITY),
        }
        kept = {name: Stage(partial(table_of, self._spark, *table), ()) for name, table in found.items()}
        run_stages(kept, {}, self._keep, self._done, partial(cancel_jobs, self._spark))
        return Results(
            about, ingested, figures, **{name: table for name, (table, _) in found.items()},
            **{name: rows[name] for name in (*CURVES, *CLOSE)}, folders={source.run: source.folder for source in sources},
        )  # fmt: skip


def _judged(records: DataFrame, done: DataFrame) -> DataFrame:
    return judgements.judged(judgements.kv_operations(records, done))


def _judged_registrations(records: DataFrame, done: DataFrame, facts: DataFrame) -> DataFrame:
    return registrations.judged_registrations(registrations.registration_operations(records, done, facts))


def _of_sends(records: DataFrame, spans: DataFrame) -> DataFrame:
    sends = records.where((F.col("record") == "send") & F.col("corrupt_line").isNull()).drop("phase")
    return metrics.of_sends(with_phase(sends, spans, F.col("time_ns")))


TABLES = {
    "phases": Stage(phases, ("records",)),
    "states": Stage(observations.states, ("looks",)),
    "sides": Stage(sides, ("records", "runs")),
    "operations": Stage(operations.operations, ("records", "runs", "phases", "sides")),
    "judged": Stage(_judged, ("records", "operations")),
    "judged_registrations": Stage(_judged_registrations, ("records", "operations", "facts")),
    "segments": Stage(observations.segments, ("states", "runs")),
    "episodes": Stage(observations.episodes, ("segments",)),
    "convergence": Stage(observations.convergence, ("episodes", "segments", "phases")),
    "look_ups": Stage(truth.look_ups, ("operations", "facts")),
    "gaps": Stage(operations.gaps, ("operations", "phases", "sides")),
    "probes": Stage(operations.probes, ("operations",)),
    "detections": Stage(truth.detections, ("records", "facts")),
    "mistakes": Stage(truth.mistakes, ("records", "facts", "states")),
    "leader_spans": Stage(leaders.leader_spans, ("records",)),
}
"""Tables made of what was ingested and of each other, by name; of those that are ready the first one goes first."""


def _of_histories(judged: str, prefix: str) -> dict[str, Stage]:
    return {
        f"reads {judged}": Stage(
            lambda rows, done: metrics.of_reads(judgements.reads(rows), done, prefix), (judged, "operations")
        ),
        f"writes {judged}": Stage(
            lambda rows, done: metrics.of_writes(judgements.writes(rows), done, prefix), (judged, "operations")
        ),
        f"keys {judged}": Stage(lambda rows: metrics.of_keys(judgements.keys(rows), prefix), (judged,)),
    }


FIGURES = {
    **_of_histories("judged", ""),
    **_of_histories("judged_registrations", metrics.ROUTES),
    "calls": Stage(metrics.of_operations, ("operations", "runs")),
    "unavailability": Stage(metrics.of_gaps, ("gaps", "runs")),
    "agreement": Stage(metrics.of_divergence, ("segments", "episodes", "convergence")),
    "answers": Stage(metrics.of_look_ups, ("look_ups",)),
    "equal probes": Stage(metrics.of_probes, ("probes",)),
    "failure detector": Stage(metrics.of_detections, ("detections", "mistakes", "runs")),
    "leaders": Stage(metrics.of_leaders, ("leader_spans", "records")),
    "messages": Stage(_of_sends, ("records", "phases")),
}
"""Rows of ``per_run``, in parts."""

CURVES = {
    "divergence": Stage(curves.divergence, ("segments", "phases")),
    "faults": Stage(curves.faults, ("phases",)),
    "windows": Stage(curves.windows, ("judged", "judged_registrations", "runs")),
    "visibility": Stage(curves.visibility, ("judged", "judged_registrations", "runs")),
    "latencies": Stage(curves.latencies, ("operations",)),
}
"""Fields of Results."""

CLOSE = {"pair_standings": (pair.standings, "states"), "pair_latencies": (pair.latencies, "operations")}
"""Fields of Results, about the two runs that ``pair.choose`` chooses by their figures."""


class Made(NamedTuple):
    """Of some runs: tables as ``keep`` gave them back, and figures as rows: ``runs``, ``per_run``, ``held``, CURVES and CLOSE."""

    tables: dict[str, DataFrame]
    rows: dict[str, list[dict[str, Any]]]


def figures_of_runs(traces: Traces, runs: DataFrame, keep: Keep, done: Callable[[str], None]) -> Made:
    """All stages, from ingested traces to ``per_run`` and the curves. ``done`` is told each that is done."""
    spark = runs.sparkSession
    cancel = partial(cancel_jobs, spark)
    records = traces.events
    runs = keep("runs", runs)
    rows: dict[str, list[dict[str, Any]]] = {"runs": _rows(runs)}
    given = {"runs": runs, "records": records, "looks": traces.looks, "facts": truth.truth_spans(records)}
    held = Stage(consistability.held, ("judged", "judged_registrations", "operations"))

    def finish(name: str, table: DataFrame) -> DataFrame | list[dict[str, Any]]:
        return keep(name, table) if name in TABLES else _rows(table)

    made = run_stages({**TABLES, **FIGURES, "held": held, **CURVES}, given, finish, done, cancel)
    rows |= {name: made[name] for name in ("held", *CURVES)}
    rows["per_run"] = metrics.per_run((row for name in FIGURES for row in made[name]), rows["runs"])
    close = pair.spans(made["phases"], runs, pair.choose(rows["per_run"], rows["runs"]))
    last = {
        "per_run": Stage(partial(table_of, spark, rows["per_run"], PER_RUN), ()),
        "held": Stage(partial(table_of, spark, rows["held"], HELD), ()),
        **{name: Stage(partial(make, made[of], close), ()) for name, (make, of) in CLOSE.items()},
    }
    ended = run_stages(last, {}, lambda name, table: (_rows if name in CLOSE else partial(keep, name))(table), done, cancel)
    rows |= {name: ended.pop(name) for name in CLOSE}
    return Made({"runs": runs, **{name: made[name] for name in TABLES}, **ended}, rows)


def table_of(spark: SparkSession, rows: list[dict[str, Any]], schema: StructType) -> DataFrame:
    """A small table, of rows that the driver has."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=arrow(schema))).coalesce(1)


def cancel_jobs(spark: SparkSession) -> None:
    """End all jobs that run."""
    on_own_connection(spark.sparkContext.cancelAllJobs)


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    """A small table. Everything that comes here is a figure of a run or less."""
    return [row.asDict() for row in table.collect()]
