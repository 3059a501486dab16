"""The whole analysis: it turns traces into tables and figures. Stages are functions from tables to tables; this module
connects them.

Tables on which later analyses may build are kept as Parquet under ``tables/``. Each is written to a temporary place and moved
when the whole analysis has succeeded, so a failed analysis leaves the earlier tables unchanged.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from replicated_namesrv.spark import (
    client_operations,
    consistability,
    curves,
    judgements,
    leaders,
    observations,
    pair,
    registration_judgements,
    run_figures,
    truth,
)
from replicated_namesrv.spark.ingest import Ingested, Traces, ingest
from replicated_namesrv.spark.schemas import CONSISTABILITY, HELD, PAIRED, PER_RUN, SUMMARY, T_VISIBILITY, arrow
from replicated_namesrv.spark.session import on_own_connection
from replicated_namesrv.spark.sources import Source, find_runs, runs_table
from replicated_namesrv.spark.stages import Stage, Stages, given
from replicated_namesrv.spark.storage import SparkStorage
from replicated_namesrv.spark.summary import paired, summary, t_visibility
from replicated_namesrv.spark.timeline import phases, sides, with_phase

Rows = list[dict[str, Any]]
"""A small table as rows, by column name."""


@dataclass(frozen=True, slots=True)
class AnalysisTables:
    """Tables of some runs, as ``keep`` returned them. Each field has the name of its table."""

    runs: DataFrame
    phases: DataFrame
    sides: DataFrame
    operations: DataFrame
    judged: DataFrame
    judged_registrations: DataFrame
    states: DataFrame
    segments: DataFrame
    episodes: DataFrame
    convergence: DataFrame
    probes: DataFrame
    gaps: DataFrame
    look_ups: DataFrame
    detections: DataFrame
    mistakes: DataFrame
    leader_spans: DataFrame
    per_run: DataFrame
    held: DataFrame


KEPT = (*(field.name for field in fields(AnalysisTables)), "summary", "paired", "t_visibility", "consistability")
"""Tables under ``tables/`` other than those of trace lines."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures and curves of some runs, as rows."""

    runs: Rows
    per_run: Rows
    held: Rows
    divergence: Rows
    """Greatest divergence of a run by time: run, at_s after its fault began, divergence."""
    faults: Rows
    """Phases ``fault`` of runs on the same scale: run, start_s, end_s."""
    windows: Rows
    """Quantiles of inconsistency windows: mode, about, quantile, window_ms, writes."""
    visibility: Rows
    """Reads by time since a write: run, mode, about, level, age_ms (upper bound of the bin), compared, seen."""
    latencies: Rows
    """Quantiles of answered operations before the fault: mode, level, kind, quantile, latency_ms."""
    pair_standings: Rows
    """Each node's answers over time in two runs (``pair.standings``)."""
    pair_latencies: Rows
    """The operations of these runs over time (``pair.latencies``)."""


class Made(NamedTuple):
    """The results of the stages for some runs."""

    tables: AnalysisTables
    figures: RunFigures


Keep = Callable[[str, DataFrame], DataFrame]
"""Stores a table under a name for later analyses, and returns the stored table. Several threads call it."""


@dataclass(frozen=True, slots=True)
class Results(RunFigures):
    """The content of the report: small tables as rows."""

    ingested: list[Ingested]
    summary: Rows
    paired: Rows
    t_visibility: Rows
    """When 99 % and 99.9 % of reads see a write."""
    consistability: Rows
    """How probable each class of consistency is, by fault and phase."""
    folders: dict[str, str]
    """The folder of each run."""


class Analysis:
    """One analysis of some runs into a folder. ``say`` is called with each line of progress."""

    def __init__(self, spark: SparkSession, out: str, say: Callable[[str], None]) -> None:
        self._spark = spark
        self._storage = SparkStorage(spark)
        self._out = out.rstrip("/")
        self._staging = f"{self._out}/tables/analysing"
        self._say = say
        self._began = time.monotonic()

    def run(self, paths: Sequence[str], last: Callable[[Results], None] | None = None) -> Results:
        """Find the runs below ``paths`` and analyse them. Raises InputError for a run that cannot be analysed."""
        return self.analyse(find_runs(self._storage, paths), last)

    def analyse(self, sources: Sequence[Source], last: Callable[[Results], None] | None = None) -> Results:
        """Analyse these runs. Raises InputError for a run that cannot be analysed.

        ``last`` is called when all tables are computed and not yet in place. If it raises, the earlier tables stay."""
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
        made = figures_of_runs(traces, runs, self._keep, self._done).figures
        clocks = {run["run"]: run["clock_uncertainty_ns"] for run in made.runs}
        results = Results(
            runs=made.runs, per_run=made.per_run, held=made.held, divergence=made.divergence, faults=made.faults,
            windows=made.windows, visibility=made.visibility, latencies=made.latencies, pair_standings=made.pair_standings,
            pair_latencies=made.pair_latencies, ingested=ingested,
            summary=summary(made.per_run),
            paired=paired(made.per_run, {run["mode"]: run["read_consistency"] for run in made.runs}),
            t_visibility=t_visibility(made.visibility, clocks),
            consistability=consistability.consistability(made.held, made.runs),
            folders={source.run: source.folder for source in sources},
        )  # fmt: skip  # items grouped by line
        stages = Stages(self._done, partial(cancel_jobs, self._spark))
        stages.add("summary", self._keep, partial(table_of, self._spark, results.summary, SUMMARY))
        stages.add("paired", self._keep, partial(table_of, self._spark, results.paired, PAIRED))
        stages.add("t_visibility", self._keep, partial(table_of, self._spark, results.t_visibility, T_VISIBILITY))
        stages.add("consistability", self._keep, partial(table_of, self._spark, results.consistability, CONSISTABILITY))
        stages.run()
        return results


def _judged(records: DataFrame, done: DataFrame) -> DataFrame:
    return judgements.judged(judgements.kv_operations(records, done))


def _judged_registrations(records: DataFrame, done: DataFrame, facts: DataFrame) -> DataFrame:
    return registration_judgements.judged_registrations(registration_judgements.registration_operations(records, done, facts))


def _of_sends(records: DataFrame, spans: DataFrame) -> DataFrame:
    sends = records.where((F.col("record") == "send") & F.col("corrupt_line").isNull()).drop("phase")
    return run_figures.of_sends(with_phase(sends, spans, F.col("time_ns")))


def figures_of_runs(traces: Traces, runs: DataFrame, keep: Keep, done: Callable[[str], None]) -> Made:
    """All stages, from ingested traces to ``per_run`` and the curves. ``done`` is called with the name of each completed
    stage.
    """
    stages = Stages(done, partial(cancel_jobs, runs.sparkSession))
    about = keep("runs", runs)
    run, records, looks, facts = given(about), given(traces.events), given(traces.looks), given(truth.truth_spans(traces.events))

    phase = stages.add("phases", keep, phases, records)
    state = stages.add("states", keep, observations.states, looks)
    side = stages.add("sides", keep, sides, records, run)
    operation = stages.add("operations", keep, client_operations.operations, records, run, phase, side)
    judged = stages.add("judged", keep, _judged, records, operation)
    judged_registrations = stages.add("judged_registrations", keep, _judged_registrations, records, operation, facts)
    segments = stages.add("segments", keep, observations.segments, state, run)
    episodes = stages.add("episodes", keep, observations.episodes, segments)
    convergence = stages.add("convergence", keep, observations.convergence, segments, phase)
    look_ups = stages.add("look_ups", keep, truth.look_ups, operation, facts)
    gaps = stages.add("gaps", keep, client_operations.gaps, operation, phase, side)
    probes = stages.add("probes", keep, client_operations.probes, operation)
    detections = stages.add("detections", keep, truth.detections, records, facts)
    mistakes = stages.add("mistakes", keep, truth.mistakes, records, facts, state)
    leader_spans = stages.add("leader_spans", keep, leaders.leader_spans, records)

    figures = [
        *_of_histories(stages, "judged", "", judged, operation),
        *_of_histories(stages, "judged_registrations", run_figures.ROUTES, judged_registrations, operation),
        stages.add("calls", _rows_of, run_figures.of_operations, operation, run),
        stages.add("unavailability", _rows_of, run_figures.of_gaps, gaps, run),
        stages.add("agreement", _rows_of, run_figures.of_divergence, segments, episodes, convergence),
        stages.add("answers", _rows_of, run_figures.of_look_ups, look_ups),
        stages.add("equal probes", _rows_of, run_figures.of_probes, probes),
        stages.add("failure detector", _rows_of, run_figures.of_detections, detections, mistakes, run),
        stages.add("leaders", _rows_of, run_figures.of_leaders, leader_spans, records),
        stages.add("messages", _rows_of, _of_sends, records, phase),
    ]
    held = stages.add("held", _rows_of, consistability.held, judged, judged_registrations, operation)
    divergence = stages.add("divergence", _rows_of, curves.divergence, segments, phase)
    faults = stages.add("faults", _rows_of, curves.faults, phase)
    windows = stages.add("windows", _rows_of, curves.windows, judged, judged_registrations, run)
    visibility = stages.add("visibility", _rows_of, curves.visibility, judged, judged_registrations, run)
    latencies = stages.add("latencies", _rows_of, curves.latencies, operation)
    stages.run()

    run_rows = _rows_of("runs", about)
    per_run_rows = run_figures.per_run((row for figure in figures for row in figure.value), run_rows)
    close = given(pair.spans(phase.value, about, pair.choose(per_run_rows, run_rows)))
    last = Stages(done, partial(cancel_jobs, runs.sparkSession))
    per_run_table = last.add("per_run", keep, partial(table_of, runs.sparkSession, per_run_rows, PER_RUN))
    held_table = last.add("held", keep, partial(table_of, runs.sparkSession, held.value, HELD))
    pair_standings = last.add("pair_standings", _rows_of, pair.standings, state, close)
    pair_latencies = last.add("pair_latencies", _rows_of, pair.latencies, operation, close)
    last.run()

    tables = AnalysisTables(
        runs=about, phases=phase.value, sides=side.value, operations=operation.value, judged=judged.value,
        judged_registrations=judged_registrations.value, states=state.value, segments=segments.value, episodes=episodes.value,
        convergence=convergence.value, probes=probes.value, gaps=gaps.value, look_ups=look_ups.value,
        detections=detections.value, mistakes=mistakes.value, leader_spans=leader_spans.value, per_run=per_run_table.value,
        held=held_table.value,
    )  # fmt: skip  # items grouped by line
    return Made(
        tables,
        RunFigures(
            runs=run_rows, per_run=per_run_rows, held=held.value, divergence=divergence.value, faults=faults.value,
            windows=windows.value, visibility=visibility.value, latencies=latencies.value, pair_standings=pair_standings.value,
            pair_latencies=pair_latencies.value,
        ),
    )  # fmt: skip  # items grouped by line


def _of_histories(
    stages: Stages, name: str, prefix: str, judged: Stage[DataFrame], operation: Stage[DataFrame]
) -> list[Stage[Rows]]:
    """Figures of reads, writes and keys of the histories in the table ``name``."""

    def of_reads(rows: DataFrame, done: DataFrame) -> DataFrame:
        return run_figures.of_reads(judgements.reads(rows), done, prefix)

    def of_writes(rows: DataFrame, done: DataFrame) -> DataFrame:
        return run_figures.of_writes(judgements.writes(rows), done, prefix)

    def of_keys(rows: DataFrame) -> DataFrame:
        return run_figures.of_keys(judgements.keys(rows), prefix)

    return [
        stages.add(f"reads {name}", _rows_of, of_reads, judged, operation),
        stages.add(f"writes {name}", _rows_of, of_writes, judged, operation),
        stages.add(f"keys {name}", _rows_of, of_keys, judged),
    ]


def table_of(spark: SparkSession, rows: Rows, schema: StructType) -> DataFrame:
    """A small table from rows of the driver."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=arrow(schema))).coalesce(1)


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running jobs."""
    on_own_connection(spark.sparkContext.cancelAllJobs)


def _rows_of(_: str, table: DataFrame) -> Rows:
    """A small table as rows. Only figures of whole runs, or less, are collected here."""
    return [row.asDict() for row in table.collect()]
