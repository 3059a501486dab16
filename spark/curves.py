"""Curves of the report's figures over time, age or quantiles, reduced to a few hundred points. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.survival import cells
from replicated_namesrv.spark.timeline import Timeline
from replicated_namesrv.verify.divergence import DivergenceSegment

BIN_NS = 250_000_000
"""Length of time of one point of a curve."""
BINS_MAX = 4_000

QUANTILES = [*(index / 100 for index in range(100)), 0.995, 0.999, 1.0]

KV, ROUTES = "key-value store", "registrations"
"""Names of the subjects of curves."""

Row = dict[str, Any]


def divergence(segments: Iterable[DivergenceSegment], timeline: Timeline) -> list[Row]:
    """Greatest certain and possible divergence of registrations in each time bin: at_s since the fault began, divergence,
    possible."""
    fault = timeline.span("fault")
    if fault is None:
        return []
    certain: defaultdict[int, float] = defaultdict(float)
    possible: defaultdict[int, float] = defaultdict(float)
    for one in segments:
        if one.possible > 0:
            first, last = (one.start_ns - fault.start_ns) // BIN_NS, (one.end_ns - 1 - fault.start_ns) // BIN_NS
            for place in range(first, min(last, first + BINS_MAX) + 1):
                certain[place] = max(certain[place], one.certain)
                possible[place] = max(possible[place], one.possible)
    return [
        {"at_s": place * (BIN_NS / 1e9), "divergence": certain[place], "possible": possible[place]} for place in sorted(possible)
    ]


def faults(timeline: Timeline) -> list[Row]:
    """The limits of the phases, in seconds from the beginning of the fault: ``steady_s`` (start of ``steady``, negative),
    ``end_s`` (end of ``fault``), ``until_s`` (end of ``heal``).
    """
    fault, steady, heal = (timeline.span(phase) for phase in ("fault", "steady", "heal"))
    if fault is None:
        return []
    return [
        {
            "steady_s": None if steady is None else (steady.start_ns - fault.start_ns) / 1e9,
            "end_s": (fault.end_ns - fault.start_ns) / 1e9,
            "until_s": None if heal is None else (heal.end_ns - fault.start_ns) / 1e9,
        }
    ]


def windows(judged: Iterable[Row], about: str, own_level: str) -> list[Row]:
    """Rows (about, window_ns): the inconsistency window of each write that reads followed, at the run's own read level."""
    return [
        {"about": about, "window_ns": row["window_ns"]}
        for row in judged
        if row["what"] == "write" and row["reads_after"] > 0 and row["level"] == own_level
    ]


def visibility(judged: Iterable[Row], about: str) -> list[Row]:
    """Rows (about, level, first, after, writes): the number of writes, grouped by the time after which every read saw the write.
    ``first`` and ``after`` are the cells that contain this time (``survival.cells``)."""
    counts = Counter(
        (row["level"], *cells(row["window_ns"], row["seen_ns"]))
        for row in judged
        if row["what"] == "write" and row["reads_after"] > 0
    )
    return [
        {"about": about, "level": level, "first": first, "after": after, "writes": writes}
        for (level, first, after), writes in sorted(counts.items())
    ]


def latencies(done: Iterable[ClientOperation]) -> list[Row]:
    """Latencies of answered operations before the fault: level, kind, latency_ns."""
    return [
        {"level": op.level, "kind": op.kind, "latency_ns": op.end_ns - op.start_ns}
        for op in done
        if op.phase == "steady" and op.ok and op.end_ns is not None and op.kind in ("get", "put", "route")
    ]


def quantiles(values: Sequence[int]) -> list[tuple[float, float]]:
    """Each of QUANTILES with its value in milliseconds."""
    found = np.quantile(np.asarray(values, np.float64), QUANTILES) / 1e6
    return [(at, float(value)) for at, value in zip(QUANTILES, found, strict=True) if not math.isnan(value)]
