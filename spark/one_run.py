"""Judges one run: from its records to all its tables and figures. Pure.

A run is judged in one process: most runs are small, and planning a query for each table cost more than the work itself. A chaos
run takes 0.2 CPU seconds.
"""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from replicated_namesrv.spark import (
    client_operations,
    consistability,
    curves,
    judgements,
    leaders,
    observations,
    registration_judgements,
    run_figures,
    schemas,
    truth,
)
from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.run_records import RunRecords

Row = dict[str, Any]

TABLES = {
    "runs": schemas.RUNS, "phases": schemas.PHASES, "sides": schemas.SIDES, "operations": schemas.OPERATIONS,
    "judged": schemas.JUDGED, "judged_registrations": schemas.JUDGED, "states": schemas.STATES, "segments": schemas.SEGMENTS,
    "episodes": schemas.EPISODES, "convergence": schemas.CONVERGENCE, "probes": schemas.PROBES, "gaps": schemas.GAPS,
    "look_ups": schemas.LOOK_UPS, "detections": schemas.DETECTIONS, "mistakes": schemas.MISTAKES,
    "leader_spans": schemas.LEADER_SPANS, "per_run": schemas.PER_RUN, "held": schemas.HELD,
}  # fmt: skip  # items grouped by line
"""Tables of a run that later analyses use."""
CURVES = {
    "curve_divergence": schemas.CURVE_DIVERGENCE, "curve_faults": schemas.CURVE_FAULTS, "curve_windows": schemas.CURVE_WINDOWS,
    "curve_visibility": schemas.CURVE_VISIBILITY, "curve_latencies": schemas.CURVE_LATENCIES,
}  # fmt: skip  # items grouped by line
"""Tables of a run from which the curves of the report are computed."""


def judged_run(records: RunRecords) -> dict[str, pa.Table]:
    """The tables of a run, by name: TABLES and CURVES."""
    rows = _rows(records)
    return {
        name: pa.Table.from_pylist([{"run": records.run, **row} for row in rows[name]], schema=schemas.arrow(schema))
        for name, schema in (TABLES | CURVES).items()
    }


def _rows(records: RunRecords) -> dict[str, Iterable[Row]]:
    timeline, about = records.timeline, records.about
    everything = client_operations.operations(records)
    done = [op for op in everything if op.phase is not None]
    spans = truth.truth_spans(records)
    judged = judgements.judged(everything)
    routes = registration_judgements.judged_registrations(records, registration_judgements.topic_histories(everything, spans))
    states = observations.states(records)
    segments = observations.segments(records, states)
    found: dict[str, list[Row]] = {
        "episodes": observations.episodes(segments), "convergence": observations.convergence(records, segments),
        "probes": client_operations.probes(records, done), "gaps": client_operations.gaps(timeline, done),
        "look_ups": truth.look_ups(records, done, spans),
    }  # fmt: skip  # items grouped by line
    drops, listings = records.of("expiry", "node", "broker"), truth.Listings(records, states)
    found["detections"] = truth.detections(drops, spans, listings)
    found["mistakes"] = truth.mistakes(drops, spans, listings)
    found["leader_spans"] = leaders.leader_spans(records.of("status", "node", "answered", "role"))
    by_number = {op.op: op for op in done}
    sends = ((timeline.phase_at(row["time_ns"]), row) for row in records.of("send", "broker", "reachable"))
    figures = [
        *run_figures.of_histories(judged, by_number),
        *run_figures.of_histories(routes, by_number, run_figures.ROUTES),
        *run_figures.of_operations(done, about["deadline_ms"]),
        *run_figures.of_gaps(found["gaps"], about["deadline_ms"]),
        *run_figures.of_divergence(segments, found["episodes"], found["convergence"]),
        *run_figures.of_look_ups(found["look_ups"]),
        *run_figures.of_probes(found["probes"]),
        *run_figures.of_detections(found["detections"], found["mistakes"]),
        *run_figures.of_leaders(found["leader_spans"], records.of("election", "term")),
        *run_figures.of_sends(sends),
    ]
    own_level = about["read_consistency"]
    observed = [{"key": truth.REGISTRATIONS, **row} for row in (segment._asdict() for segment in segments)]
    return {
        **found, "runs": [about], "phases": [span._asdict() for span in timeline.phases],
        "sides": [span._asdict() for span in timeline.sides], "operations": (_operation(op, about["mode"]) for op in done),
        "judged": judged, "judged_registrations": routes, "states": states, "segments": observed,
        "episodes": [{"key": truth.REGISTRATIONS, **row} for row in found["episodes"]],
        "convergence": [{"key": truth.REGISTRATIONS, **row} for row in found["convergence"]],
        "per_run": run_figures.per_run(figures, about), "held": consistability.held(judged, routes, done),
        "curve_divergence": curves.divergence(segments, timeline), "curve_faults": curves.faults(timeline),
        "curve_windows": [
            *curves.windows(judged, curves.KV, own_level), *curves.windows(routes, curves.ROUTES, own_level),
        ],
        "curve_visibility": [*curves.visibility(judged, curves.KV), *curves.visibility(routes, curves.ROUTES)],
        "curve_latencies": curves.latencies(done),
    }  # fmt: skip  # items grouped by line


def _operation(op: ClientOperation, mode: str) -> Row:
    row = op._asdict()
    del row["topics"]
    return {"mode": mode, **row}
