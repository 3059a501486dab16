"""The whole analysis: it turns traces into tables and figures.

Each run is judged by itself (``one_run``), and its result is kept. Figures over many runs are computed from these results in the
driver. Tables on which later analyses may build are kept as Parquet under ``tables/``. Each is written to a temporary place and
moved when the whole analysis has succeeded, so a failed analysis leaves the earlier tables unchanged.
"""

import io
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from replicated_namesrv.spark import consistability, curves, pair
from replicated_namesrv.spark.ingest import Ingested, ingest, local_folder
from replicated_namesrv.spark.judge_job import StoredRun, judge_runs
from replicated_namesrv.spark.one_run import TABLES
from replicated_namesrv.spark.schemas import CONSISTABILITY, PAIRED, SUMMARY, T_VISIBILITY, arrow
from replicated_namesrv.spark.sources import Source, find_runs
from replicated_namesrv.spark.storage import SparkStorage
from replicated_namesrv.spark.summary import paired, summary, t_visibility, visibility
from replicated_namesrv.spark.survival import Survival

Rows = list[dict[str, Any]]
"""A small table: one mapping from column names to values for each row."""

OVER_RUNS = {"summary": SUMMARY, "paired": PAIRED, "t_visibility": T_VISIBILITY, "consistability": CONSISTABILITY}
KEPT = (*TABLES, *OVER_RUNS)
"""Tables under ``tables/``, without those that contain trace lines."""
ROW_GROUP = 200_000
"""Number of rows that are written at once."""


@dataclass(frozen=True, slots=True)
class Results:
    """The content of the report: small tables as rows."""

    runs: Rows
    per_run: Rows
    held: Rows
    divergence: Rows
    """Greatest divergence of a run by time: run, at_s after its fault began, divergence (certain), possible."""
    faults: Rows
    """The phase ``fault`` of each run on the time scale of ``divergence``: run, steady_s, end_s, until_s."""
    windows: Rows
    """Quantiles of inconsistency windows: mode, about, quantile, window_ms, writes."""
    visibility: Rows
    """Share of the writes that every read sees when the write has this age: mode, about, level, age_ms, share."""
    latencies: Rows
    """Quantiles of the latencies of answered operations before the fault: mode, level, kind, quantile, latency_ms."""
    detection: Rows
    """Share of deaths that a node has not noticed after a time: mode, at_s, undetected, pairs."""
    pair_standings: Rows
    """The answers of each node over time in two runs (``pair.standings``)."""
    pair_latencies: Rows
    """The operations of the same two runs over time (``pair.latencies``)."""
    ingested: list[Ingested]
    summary: Rows
    paired: Rows
    t_visibility: Rows
    """The age at which 99 % and 99.9 % of the writes are seen by every read."""
    consistability: Rows
    """Probability of each class of consistency, by fault and phase."""
    folders: dict[str, str]
    """The folder of each run."""


class Analysis:
    """One analysis of some runs into a folder. ``say`` is called with lines of progress."""

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

        ``last`` is called after all tables were computed and before they replace the earlier tables. If ``last`` raises an error,
        the earlier tables stay."""
        traces, ingested = ingest(self._spark, self._storage, sources, self._out, self._say)
        self._storage.delete(self._staging)
        try:
            stored = judge_runs(self._spark, self._storage, traces, sources, ingested, self._out, self._say)
            results = _over_runs(_Runs(stored), ingested, {source.run: source.folder for source in sources})
            self._done("figures")
            self._write_all(stored.values(), results)
            self._done("tables")
            if last is not None:
                last(results)
            for name in KEPT:
                self._storage.delete(f"{self._out}/tables/{name}")
                self._storage.rename(f"{self._staging}/{name}", f"{self._out}/tables/{name}")
            return results
        finally:
            self._storage.discard(self._staging)

    def _done(self, name: str) -> None:
        self._say(f"{time.monotonic() - self._began:5.1f} s  {name}")

    def _write_all(self, stored: Iterable[StoredRun], results: Results) -> None:
        runs = list(stored)
        for name, schema in TABLES.items():
            self._write(name, arrow(schema), (run.table(name) for run in runs))
        for name, schema in OVER_RUNS.items():
            declared = arrow(schema)
            self._write(name, declared, [pa.Table.from_pylist(getattr(results, name), schema=declared)])

    def _write(self, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        """Write a table as one file."""
        path = f"{self._staging}/{name}/part-0.parquet"
        here = local_folder(self._storage, self._staging)
        memory = io.BytesIO()
        if here is not None:
            os.makedirs(f"{here}/{name}")
        with pq.ParquetWriter(memory if here is None else f"{here}/{name}/part-0.parquet", schema, compression="zstd") as file:
            for group in _groups(tables):
                file.write_table(group)
        if here is None:
            self._storage.write_bytes(path, memory.getvalue())


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in groups of at least ROW_GROUP, because otherwise each of many small runs would become a small part of the
    file.
    """
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(part.num_rows for part in waiting) >= ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


class _Runs:
    """Tables of all runs."""

    def __init__(self, stored: dict[str, StoredRun]) -> None:
        self._stored = stored

    def all(self, name: str) -> pa.Table:
        """A table of all runs."""
        return pa.concat_tables([run.table(name) for run in self._stored.values()])

    def rows(self, name: str) -> Rows:
        """The rows of ``all``."""
        found: Rows = self.all(name).to_pylist()
        return found

    def of(self, run: str, name: str) -> Rows:
        """The rows of one run."""
        found: Rows = self._stored[run].table(name).to_pylist()
        return found


def _over_runs(found: _Runs, ingested: list[Ingested], folders: dict[str, str]) -> Results:
    runs, per_run, held = (found.rows(name) for name in ("runs", "per_run", "held"))
    seen = found.rows("curve_visibility")
    mode_of = {run["run"]: run["mode"] for run in runs}
    chosen = pair.choose(per_run, runs)
    frames = [pair.frame(run, found.of(run["run"], "phases")) for run in runs if run["run"] in chosen]
    return Results(
        runs=runs, per_run=per_run, held=held, divergence=found.rows("curve_divergence"), faults=found.rows("curve_faults"),
        windows=_windows(found.all("curve_windows"), mode_of), visibility=visibility(seen, runs),
        latencies=_latencies(found.all("curve_latencies"), mode_of), detection=_detection(found.rows("detections"), mode_of),
        pair_standings=[row for one in frames if one for row in pair.standings(found.of(one.run, "states"), one)],
        pair_latencies=[row for one in frames if one for row in pair.latencies(found.of(one.run, "operations"), one)],
        ingested=ingested, summary=summary(per_run),
        paired=paired(per_run, {run["mode"]: run["read_consistency"] for run in runs}), t_visibility=t_visibility(seen, runs),
        consistability=consistability.consistability(held, runs), folders=folders,
    )  # fmt: skip  # items grouped by line


def _grouped(table: pa.Table, mode_of: dict[str, str], value: str, *by: str) -> dict[tuple[str, ...], list[int]]:
    """The values of a column, grouped by the mode of their run and by some columns."""
    groups: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for run, one, *place in zip(*(table[name].to_pylist() for name in ("run", value, *by)), strict=True):
        groups[mode_of[run], *place].append(one)
    return dict(sorted(groups.items()))


def _windows(table: pa.Table, mode_of: dict[str, str]) -> Rows:
    return [
        {"mode": mode, "about": about, "quantile": quantile, "window_ms": window_ms, "writes": len(values)}
        for (mode, about), values in _grouped(table, mode_of, "window_ns", "about").items()
        for quantile, window_ms in curves.quantiles(values)
    ]


def _latencies(table: pa.Table, mode_of: dict[str, str]) -> Rows:
    return [
        {
            "mode": mode, "level": level, "kind": kind, "quantile": quantile, "latency_ms": latency_ms, "operations": len(values),
        }
        for (mode, level, kind), values in _grouped(table, mode_of, "latency_ns", "level", "kind").items()
        for quantile, latency_ms in curves.quantiles(values)
    ]  # fmt: skip  # items grouped by line


def _detection(detections: Rows, mode_of: dict[str, str]) -> Rows:
    """Kaplan-Meier curves over all pairs of a death and a node."""
    times: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row in detections:
        seen = row["detected_ns"] is not None
        times[mode_of[row["run"]]].append(((row["detected_ns"] if seen else row["observed_ns"]) / 1e9, seen))
    return [
        {"mode": mode, "at_s": at_s, "undetected": share, "pairs": len(own)}
        for mode, own in sorted(times.items())
        for at_s, share in [(0.0, 1.0), *Survival(own).steps]
    ]
