"""One run of each mode with the same scenario, seed and size in detail: each node's answers over time, and the latency of each
operation. Pure.

Averages over runs do not show how a fault develops. The chosen pair shows the cost of both modes most clearly. It has the
greatest product of the divergence of AP's nodes and the share of operations that CP did not answer in time. The result is reduced
to at most BINS_MAX cells of time, so its size does not depend on the length of the run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from replicated_namesrv.spark.client_operations import ASKED
from replicated_namesrv.spark.truth import REGISTRATIONS

BINS_MAX = 400
"""Maximum number of cells into which the time of a run is divided."""
LATENCY_CELLS = 25
"""Number of cells for each factor of ten in latency."""
LOOKS_OF_CELL = 2
"""Minimum width of a cell, as a number of looks at a node."""

Row = dict[str, Any]


def choose(per_run: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> list[str]:
    """The names of at most two runs of different modes with one schedule. ``per_run`` and ``runs`` are the rows of the tables
    with these names.

    AP and CP go before foreign name servers."""
    paid: dict[str, float] = {}
    for row in per_run:
        if row["phase"] == row["side"] == "all":
            if row["metric"] == "divergence_area" and row["mode"] == "ap":
                paid[row["run"]] = row["value"]
            elif row["metric"] == "yield_in_time" and row["mode"] == "cp":
                paid[row["run"]] = max(1 - row["value"], paid.get(row["run"], 0.0))  # the level with the fewest answers counts
    schedules: dict[tuple[str, int, int], dict[str, str]] = {}
    for run in sorted(runs, key=lambda run: (paid.get(run["run"], 0.0), str(run["run"]))):
        # in ascending order of cost: of several runs of one mode, the most costly is kept
        schedules.setdefault((run["scenario"], run["seed"], run["nodes"]), {})[run["mode"]] = run["run"]

    def worth(names: dict[str, str]) -> tuple[int, float, float]:
        ap, cp = (paid.get(names.get(mode, ""), 0.0) for mode in ("ap", "cp"))
        return min(len(names), 2), ap * cp, ap

    best = max((schedules[schedule] for schedule in sorted(schedules)), key=worth, default={})
    return sorted(best[mode] for mode in sorted(best)[:2])


class Frame(NamedTuple):
    """The part of a run that is shown."""

    run: str
    at_ns: int
    """Time at which the fault began. Without a fault, the time at which the run began."""
    from_ns: int
    until_ns: int
    width_ns: int
    """Width of one cell in time."""


def frame(run: Row, phases: Iterable[Row]) -> Frame | None:
    """The frame of a run, from its row of RUNS and its rows of PHASES. None: the run has no judged phase before ``final``."""
    spans = {row["phase"]: row for row in phases if row["phase"] != "settle"}
    shown = [row for phase, row in spans.items() if phase != "final"]
    if not shown:
        return None
    from_ns, until_ns = min(row["start_ns"] for row in spans.values()), max(row["end_ns"] for row in shown)
    fault_ns = spans["fault"]["start_ns"] if "fault" in spans else from_ns
    cell_ns = math.ceil((until_ns - from_ns) / BINS_MAX)
    width_ns = max(cell_ns, LOOKS_OF_CELL * run["observe_interval_ms"] * 1_000_000, 1)
    return Frame(run["run"], fault_ns, from_ns, until_ns, width_ns) if until_ns > from_ns else None


def standings(states: Iterable[Row], shown: Frame) -> list[Row]:
    """Each node's main answer in each cell of time: run, node, at_s since the fault began, width_s, answer.

    Equal answers have the same number. Only time for which the answer is certain counts: from the first arrival of this answer
    until the question of the last look that got it. There is no row if answers are certain for less than half of the cell."""
    numbers: dict[str, int] = {}
    cells: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for row in states:
        if row["key"] != REGISTRATIONS:
            continue
        brokers = sorted(orjson.dumps(member, option=orjson.OPT_SORT_KEYS) for member in orjson.loads(row["members"]))
        answer = numbers.setdefault(b",".join(brokers).decode(), len(numbers))
        begin, end = max(row["from_ns"], shown.from_ns), min(row["last_asked_ns"], shown.until_ns)
        while begin < end:
            cell = (begin - shown.from_ns) // shown.width_ns
            stop = min(end, shown.from_ns + (cell + 1) * shown.width_ns)
            cells[row["node"], cell][answer] += stop - begin
            begin = stop
    return [
        {
            "run": shown.run, "node": node, "at_s": (shown.from_ns + cell * shown.width_ns - shown.at_ns) / 1e9,
            "width_s": shown.width_ns / 1e9, "answer": max(lasted, key=lambda answer: (lasted[answer], answer)),
        }
        for (node, cell), lasted in sorted(cells.items())
        if 2 * lasted.total() >= shown.width_ns
    ]  # fmt: skip  # items grouped by line


def latencies(operations: Iterable[Row], shown: Frame) -> list[Row]:
    """Operations in cells of time and latency: run, at_s since the fault began, latency_ms, outcome, operations.

    ``at_s`` and ``latency_ms`` are the middle of the cell. A null latency means that the operation never ended."""
    step = max(1, (shown.until_ns - shown.from_ns) // BINS_MAX)
    counts: Counter[tuple[float, float | None, str]] = Counter()
    for row in operations:
        if row["kind"] in ASKED and shown.from_ns <= row["start_ns"] < shown.until_ns:
            at_s = ((row["start_ns"] - shown.at_ns) // step + 0.5) * step / 1e9
            counts[at_s, _cell_ms(row["start_ns"], row["end_ns"]), row["outcome"]] += 1
    return [
        {"run": shown.run, "at_s": at_s, "latency_ms": latency_ms, "outcome": outcome, "operations": operations}
        for (at_s, latency_ms, outcome), operations in counts.items()
    ]


def _cell_ms(start_ns: int, end_ns: int | None) -> float | None:
    if end_ns is None:
        return None
    took_ms = max(end_ns - start_ns, 1) / 1e6
    return float(10 ** ((math.floor(math.log10(took_ms) * LATENCY_CELLS) + 0.5) / LATENCY_CELLS))
