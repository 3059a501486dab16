"""Figures of the report, drawn once each, as SVG and PNG. A caption says what is shown and on how many runs it stands."""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from replicated_namesrv.spark.analysis import Results

COLOURS = {"ap": "#c2410c", "cp": "#1d4ed8"}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "namesrv",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Figure(NamedTuple):
    """One picture."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw(results: Results) -> list[Figure]:
    """All figures for which there are data."""
    found = []
    for name, title, caption, painter in _FIGURES:
        canvas = Canvas(figsize=(7.5, 4.2), layout="constrained")
        with matplotlib.rc_context(_STYLE):
            axes = canvas.add_subplot()
            runs = painter(axes, results)
            if runs:
                found.append(_render(canvas, name, title, f"{caption} {runs} run{'s' * (runs > 1)}."))
    return found


def _render(canvas: Canvas, name: str, title: str, caption: str) -> Figure:
    svg, png = io.StringIO(), io.BytesIO()
    canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    canvas.savefig(png, format="png", dpi=110, metadata={"Software": None})
    text = svg.getvalue()
    return Figure(name, title, caption, text[text.index("<svg") :], png.getvalue())


def _modes(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["mode"] for row in rows})


def _values(results: Results, metric: str, phase: str = "all", side: str = "all") -> list[dict[str, Any]]:
    return [
        row for row in results.per_run
        if row["metric"] == metric and row["level"] == "all" and row["phase"] == phase and row["side"] == side
    ]  # fmt: skip


def _divergence(axes: Axes, results: Results) -> int:
    """Mean over the runs of a mode, which share a time axis; the fault of the first run is shaded."""
    mode_of = {run["run"]: run["mode"] for run in results.runs}
    sums: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    count: dict[str, int] = defaultdict(int)
    for mode in mode_of.values():
        count[mode] += 1
    worst: dict[tuple[str, float], float] = {}
    for row in results.divergence:
        # Runs differ a little in length, so their bins meet on a grid of half seconds.
        moment = row["run"], math.floor(2 * row["at_s"]) / 2
        worst[moment] = max(worst.get(moment, 0.0), row["divergence"])
    for (run, at), divergence in worst.items():
        sums[mode_of[run]][at] += divergence
    if not sums:
        return 0
    for mode, curve in sorted(sums.items()):
        times = [half / 2 for half in range(int(2 * min(curve)), int(2 * max(curve)) + 2)]
        means = [curve.get(at, 0.0) / count[mode] for at in times]
        axes.plot(times, means, color=COLOURS[mode], label=mode.upper(), drawstyle="steps-post")
    if results.faults:
        axes.axvspan(0, results.faults[0]["end_s"], color="#00000014", label="fault")
    axes.set(xlabel="time since the fault began (s)", ylabel="greatest divergence of two nodes", ylim=(0, None))
    axes.legend()
    return len(mode_of)


def _windows(axes: Axes, results: Results) -> int:
    for mode in _modes(results.windows):
        rows = [row for row in results.windows if row["mode"] == mode]
        axes.plot(
            [max(row["window_ms"], 0.1) for row in rows],
            [row["quantile"] for row in rows],
            color=COLOURS[mode],
            label=mode.upper(),
        )
    if not results.windows:
        return 0
    axes.set(
        xscale="log",
        xlabel="inconsistency window of a write (ms; none is drawn at 0.1)",
        ylabel="share of writes",
        ylim=(0, 1.02),
    )
    axes.legend()
    return len(results.runs)


def _visibility(axes: Axes, results: Results) -> int:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in results.visibility:
        groups[row["mode"], row["level"]].append(row)
    for (mode, level), rows in sorted(groups.items()):
        rows.sort(key=lambda row: float(row["age_ms"]))
        shares = [row["seen"] / row["compared"] for row in rows]
        axes.plot([row["age_ms"] for row in rows], shares, color=COLOURS[mode], marker=".", label=f"{mode.upper()} {level}")
    if not groups:
        return 0
    axes.set(
        xscale="log",
        xlabel="time between the write's acknowledgement and the read (ms)",
        ylabel="share of reads that see it",
        ylim=(0, 1.02),
    )
    axes.legend()
    return len(results.runs)


def _convergence(axes: Axes, results: Results) -> int:
    rows = _values(results, "convergence")
    for mode in _modes(rows):
        chosen = [row for row in rows if row["mode"] == mode]
        axes.scatter(
            [row["fault_s"] for row in chosen],
            [row["value"] for row in chosen],
            color=COLOURS[mode],
            label=mode.upper(),
            alpha=0.6,
        )
    if not rows:
        return 0
    axes.set(xlabel="length of the fault (s)", ylabel="convergence after the heal (s)", ylim=(0, None))
    axes.legend()
    return len(rows)


def _harvest_yield(axes: Axes, results: Results) -> int:
    shown = set()
    for mode, colour in COLOURS.items():
        path = []
        for phase in ("steady", "fault", "heal"):
            harvest = {row["run"]: row["value"] for row in _values(results, "harvest", phase) if row["mode"] == mode}
            answered = {row["run"]: row["value"] for row in _values(results, "yield", phase) if row["mode"] == mode}
            both = sorted(harvest.keys() & answered.keys())
            if both:
                shown.update(both)
                path.append(
                    (sum(answered[run] for run in both) / len(both), sum(harvest[run] for run in both) / len(both), phase)
                )
        if path:
            axes.plot([x for x, _, _ in path], [y for _, y, _ in path], color=colour, marker="o", label=mode.upper())
            for x, y, phase in path:
                axes.annotate(phase, (x, y), textcoords="offset points", xytext=(5, 5), color=colour)
    if not shown:
        return 0
    axes.set(xlabel="yield (answered / asked)", ylabel="harvest (right brokers found / right brokers)")
    axes.legend()
    return len(shown)


def _sides(axes: Axes, results: Results) -> int:
    sides = ("majority", "minority")
    rows = [row for side in sides for row in _values(results, "yield_in_time", "fault", side)]
    modes = _modes(rows)
    for position, mode in enumerate(modes):
        means = []
        for side in sides:
            values = [row["value"] for row in rows if row["mode"] == mode and row["side"] == side]
            means.append(sum(values) / len(values) if values else 0.0)
        axes.bar([x + position * 0.35 for x in range(len(sides))], means, 0.33, color=COLOURS[mode], label=mode.upper())
    if not rows:
        return 0
    axes.set_xticks([x + 0.175 for x in range(len(sides))], sides)
    axes.set(ylabel="operations answered in time during the fault", ylim=(0, 1.05))
    axes.legend()
    return len({row["run"] for row in rows})


def _latency(axes: Axes, results: Results) -> int:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in results.latencies:
        groups[row["mode"], row["level"], row["kind"]].append(row)
    styles = {"get": "-", "put": "--", "route": ":"}
    for (mode, level, kind), rows in sorted(groups.items()):
        rows.sort(key=lambda row: float(row["quantile"]))
        axes.plot(
            [row["latency_ms"] for row in rows],
            [row["quantile"] for row in rows],
            styles[kind],
            color=COLOURS[mode],
            label=f"{mode.upper()} {level}, {kind}",
        )
    if not groups:
        return 0
    axes.set(xscale="log", xlabel="latency without a fault (ms)", ylabel="share of operations", ylim=(0, 1.02))
    axes.legend(fontsize=8)
    return len(results.runs)


def _detection(axes: Axes, results: Results) -> int:
    rows = _values(results, "detection_median")
    modes = _modes(rows)
    if not rows:
        return 0
    axes.boxplot(
        [[row["value"] for row in rows if row["mode"] == mode] for mode in modes], tick_labels=[mode.upper() for mode in modes]
    )
    axes.set(ylabel="from a broker's death until a node drops it (s)", ylim=(0, None))
    return len(rows)


_FIGURES: tuple[tuple[str, str, str, Callable[[Axes, Results], int]], ...] = (
    ("divergence", "How far the nodes' answers differ over time",
     "Mean over the runs of the greatest Jaccard distance between two nodes that answer; the fault is shaded.", _divergence),
    ("windows", "How long the old value could still be read", "Distribution over acknowledged writes.", _windows),
    ("visibility", "When a write is seen", "Share of reads that see the last acknowledged write.", _visibility),
    ("convergence", "How long until the nodes agree again", "One point a run.", _convergence),
    ("harvest-yield", "Completeness and availability", "Means over the runs, from before the fault to after it.", _harvest_yield),
    ("sides", "Who is served during a partition", "Operations by the side of the node that took them.", _sides),
    ("latency", "What each read level costs", "Distribution of latencies before any fault.", _latency),
    ("detection", "How fast the dead are noticed", "Median of each run.", _detection),
)  # fmt: skip
