"""The figures of one run of a study, computed from its trace without Spark. The result is kept in the study's folder.

The result of a run is stored under the checksum of its trace and of the code that computed it, so it is computed once.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from replicated_namesrv.chaos.records import MANIFEST_FILE, TRACE_FILE
from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark import observations, truth
from replicated_namesrv.spark.curves import KV
from replicated_namesrv.spark.judge_job import code_version
from replicated_namesrv.spark.lines import Lines, read, split
from replicated_namesrv.spark.looks import Looks
from replicated_namesrv.spark.one_run import judged_run
from replicated_namesrv.spark.run_figures import ALL, CATALOGUE
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.schemas import LOOKS, arrow
from replicated_namesrv.spark.sources import InputError, read_manifest
from replicated_namesrv.spark.storage import LocalFiles

RESULTS = "results"
PROCESSES_FROM = 12
"""Two processes compute the results if there are at least this many new runs."""
COARSER = (2, 4, 8)
"""Divergence is computed again as if the nodes had been asked only at every second, fourth and eighth time."""

Row = dict[str, Any]


class StudyFigure(NamedTuple):
    """A figure of each run: the name of a metric, its phase, and its title on the page."""

    metric: str
    phase: str
    title: str
    unit: str
    less_is_better: bool

    @property
    def column(self) -> str:
        """Its column in the published table."""
        return self.metric if self.phase == ALL else f"{self.metric} {self.phase}"


def _of(metric: str, phase: str = ALL) -> StudyFigure:
    known = CATALOGUE.get(metric)
    if known is None:
        raise KeyError(f"{metric} is in FIGURES of spark/study_results.py, but not in CATALOGUE of spark/run_figures.py")
    return StudyFigure(metric, phase, known.title, known.unit, known.less_is_better)


PRIMARY_FIGURES = (
    _of("divergence_share"),
    _of("harvest", "fault"),
    _of("failover_yield_in_time", "fault"),
    _of("failover_unavailable_longest"),
    _of("misrouted", "fault"),
)
"""The figures on which the comparison is based, chosen before the runs were made: ``summary.PRIMARY`` with their phases."""
FIGURES = (
    *PRIMARY_FIGURES,
    *(_of(name) for name in ("divergence_area", "divergence_share_possible", "convergence", "not_converged")),
    *(_of(name, "fault") for name in ("ghosts", "equal_probes", "unrouted", "pinned_yield_in_time", "each_yield_in_time")),
    *(_of(name) for name in ("pinned_unavailable_longest", "fresh_reads", "route_fresh_reads", "lost_writes", "resurrected")),
    *(_of(name) for name in ("linearizable_keys", "route_linearizable_keys", "staleness_max", "route_staleness_max")),
    *(_of(name) for name in ("elections", "leaderless", "double_leaders")),
    *(_of(f"{kind}_latency_{name}", "steady") for kind in ("route", "put") for name in ("median", "p99")),
    *(_of(name, "steady") for name in ("harvest", "failover_yield_in_time", "pinned_yield_in_time", "misrouted")),
    *(
        StudyFigure(f"divergence_share_every_{factor}", ALL, f"certain divergence at {factor} times the interval", "share", True)
        for factor in COARSER
    ),
    StudyFigure("queues_doubled", ALL, "queues that several consumers would read", "share", True),
    StudyFigure("queues_orphaned", ALL, "queues that no consumer would read", "share", True),
)
DETECTION = "detection"
"""Column with the times of detection of brokers that died silently, as multiples of their time-out: one for each death and node.
A plus sign: not detected by then."""
VISIBILITY = "visibility"
"""Column with the numbers of KV writes by the cells in which they became visible to all reads (``survival.Spans``):
``first:after:writes``."""


@dataclass(frozen=True, slots=True)
class StudyTrace:
    """A finished run of a study: what the ledger says about it, and where its files are."""

    entry: Row
    folder: Path


class StudyResult(NamedTuple):
    """The published figures of a run by column; a missing figure has no entry. ``code``: version of the analysis."""

    run: str
    figures: dict[str, float]
    detection: str
    visibility: str
    code: str


def results(study: Path, traces: Sequence[StudyTrace], say: Callable[[str], None]) -> list[StudyResult]:
    """The result of each run; new results are computed. Raises InputError for a run that cannot be analysed."""
    places = {trace.entry["run"]: study / RESULTS / f"{trace.entry['run']}={_key(trace)}.json" for trace in traces}
    new = [trace for trace in traces if not places[trace.entry["run"]].exists()]
    if new:
        say(f"computing the figures of {len(new)} run{'s' * (len(new) > 1)}")
        for number, (trace, found) in enumerate(zip(new, _each_computed(new), strict=True), 1):
            for old in (study / RESULTS).glob(f"{trace.entry['run']}=*.json"):
                old.unlink()
            write_atomically(places[trace.entry["run"]], json.dumps(found._asdict()).encode())
            if number % 20 == 0:
                say(f"{number} of {len(new)} runs")
    return [StudyResult(**json.loads(places[trace.entry["run"]].read_bytes())) for trace in traces]


def _each_computed(traces: Sequence[StudyTrace]) -> Iterator[StudyResult]:
    """The result of each run, in this order. A few runs are computed in this process, because starting others would take
    longer."""
    if len(traces) < PROCESSES_FROM:
        yield from map(computed, traces)
        return
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield from pool.map(computed, traces, chunksize=4)


def _key(trace: StudyTrace) -> str:
    about = (trace.entry["trace_sha256"], trace.entry["manifest_sha256"], code_version())
    return sha256(" ".join(about).encode()).hexdigest()[:24]


def computed(trace: StudyTrace) -> StudyResult:
    """The figures of a run. Raises InputError if its files are not those of the ledger."""
    content = _content(trace)
    about, clients = read_manifest(LocalFiles(), str(trace.folder / MANIFEST_FILE))
    lines = read(split(content))
    records = RunRecords(about, clients, lines.events, _looks(lines))
    tables = judged_run(records)
    figures = _figures(tables["per_run"], about["read_consistency"])
    for factor in COARSER:
        share = coarse_divergence(records, factor)
        if share is not None:
            figures[f"divergence_share_every_{factor}"] = share
    figures |= {name: trace.entry["figures"][name] for name in ("queues_doubled", "queues_orphaned")}
    return StudyResult(trace.entry["run"], figures, _detection(records, trace.folder), _visibility(tables, about), code_version())


def _detection(records: RunRecords, folder: Path) -> str:
    """Times of detection. Brokers that closed their connections are left out: a node notices these at once."""
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    timeout_ns = {broker["broker"]: broker["timeout_ms"] * 1_000_000 for broker in manifest.get("brokers", ())}
    spans = [span for span in truth.truth_spans(records) if span.state == truth.SILENT]
    rows = truth.observed_detections(spans, truth.Listings(records, observations.states(records)))
    found = ((row, timeout_ns[row["broker"]]) for row in rows)
    return " ".join(
        f"{row['observed_ns'] / limit_ns:.3f}+" if row["detected_ns"] is None else f"{row['detected_ns'] / limit_ns:.3f}"
        for row, limit_ns in found
    )


def _visibility(tables: dict[str, pa.Table], about: Row) -> str:
    """The cells in which KV writes became visible, at the run's own read level."""
    rows = tables["curve_visibility"].to_pylist()
    own = [row for row in rows if row["about"] == KV and row["level"] == about["read_consistency"]]
    return " ".join(f"{row['first']}:{row['after']}:{row['writes']}" for row in own)


def _content(trace: StudyTrace) -> bytes:
    """The lines of the trace."""
    packed, plain = trace.folder / f"{TRACE_FILE}.gz", trace.folder / TRACE_FILE
    try:
        content = gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
    except (OSError, EOFError) as cause:
        raise InputError(f"{packed}: cannot be read ({cause}); restore it, or remove the run from the ledger") from cause
    if sha256(content).hexdigest() != trace.entry["trace_sha256"]:
        raise InputError(f"{packed}: is not the trace that the ledger names; restore it, or remove the run from the ledger")
    return content


def _looks(lines: Lines) -> pa.Table:
    looks = Looks()
    looks.add(lines.observations)
    return looks.table()


def _figures(per_run: pa.Table, own: str) -> dict[str, float]:
    """FIGURES at the run's ``own`` read level. Figures without read levels have the level ``all``."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in per_run.to_pylist():
        if row["side"] == ALL and row["level"] in (own, ALL):
            found.setdefault((row["metric"], row["phase"]), {})[row["level"]] = row["value"]
    values = {figure.column: found.get((figure.metric, figure.phase), {}) for figure in FIGURES}
    return {column: by_level.get(own, by_level.get(ALL, 0.0)) for column, by_level in values.items() if by_level}


def coarse_divergence(records: RunRecords, factor: int) -> float | None:
    """The share of time with certain divergence, as if the observer had made only one of ``factor`` looks."""
    interval_ns = factor * records.about["observe_interval_ms"] * 1_000_000
    thinned = replace(records, looks=pa.Table.from_pylist(list(_thinned(records.looks.to_pylist(), interval_ns)), arrow(LOOKS)))
    segments = observations.segments(thinned, observations.states(thinned))
    observed_ns = sum(one.end_ns - one.start_ns for one in segments)
    return sum(one.end_ns - one.start_ns for one in segments if one.certain > 0) / observed_ns if observed_ns else None


def _thinned(looks: Iterable[Row], interval_ns: int) -> Iterator[Row]:
    """The looks that remain if each node and key is looked at only once per ``interval_ns``. A time within a series of
    equal answers has the answer of this series. A time between two series has the first answer of the next one."""
    series: dict[tuple[str, str], list[Row]] = {}
    for row in looks:
        series.setdefault((row["key"], row["node"]), []).append(row)
    for rows in series.values():
        rows.sort(key=lambda row: int(row["from_ns"]))
        at_ns = rows[0]["from_ns"]
        for row in rows:
            while at_ns <= row["last_ns"]:
                is_inside = at_ns >= row["from_ns"]
                asked_ns, from_ns = (at_ns, at_ns) if is_inside else (row["asked_ns"], row["from_ns"])
                yield {**row, "asked_ns": asked_ns, "from_ns": from_ns, "last_asked_ns": asked_ns, "last_ns": from_ns}
                at_ns = max(at_ns, from_ns) + interval_ns
