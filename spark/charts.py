"""Figures of the report, each drawn once, as SVG and PNG. The caption explains the figure and gives the number of runs."""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import mean, median
from typing import Any, NamedTuple

import matplotlib
import numpy

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from replicated_namesrv.chaos.run_modes import shown as mode_name
from replicated_namesrv.spark.analysis import Results
from replicated_namesrv.spark.curves import KV, ROUTES
from replicated_namesrv.spark.summary import interval

COLOURS = {"ap": "#c2410c", "cp": "#1d4ed8"}
_MARKERS = {"ap": "o", "cp": "D"}
FOREIGN_COLOURS = ("#15803d", "#7e22ce", "#0e7490", "#a16207")
"""Colours for foreign modes, in the order of the modes. If there are more modes than colours, the colours repeat."""
LINES = {"local": "-", "linearizable": "-", "lease": "--", "stale": ":"}
"""Line styles by read level."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "namesrv",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "legend.frameon": False,
}


class Figure(NamedTuple):
    """One picture."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


class _Drawing(NamedTuple):
    name: str
    title: str
    caption: str
    painter: Callable[[Sequence[Axes], Results], Iterable[str]]
    """Draws the figure and returns the runs that it shows; none if there are no data."""
    panels: int = 1
    compares_clocks: bool = False
    """Whether the figure compares times that different processes measured."""


def draw(results: Results) -> list[Figure]:
    """Draw all figures that have data."""
    found = []
    modes = {run["run"]: run["mode"] for run in results.runs}
    for drawing in _DRAWINGS:
        with matplotlib.rc_context(STYLE):
            canvas = Canvas(figsize=_size(drawing, results), layout="constrained")
            axes = canvas.subplots(1, drawing.panels, squeeze=False, sharey=drawing.name in _SHARED)[0]
            runs = set(drawing.painter(list(axes), results))
            if runs:
                counted = ", ".join(f"{n} {mode_name(mode)}" for mode, n in sorted(Counter(modes[run] for run in runs).items()))
                stands = f"{len(runs)} run{'s' * (len(runs) > 1)} ({counted})"
                caption = f"{drawing.caption}{_clocks(results, runs) * drawing.compares_clocks} Based on {stands}."
                # a caption in the picture itself, which may be shown without its page
                canvas.supxlabel(stands, x=1, ha="right", fontsize=8, color="#666")
                found.append(render(canvas, drawing.name, drawing.title, caption))
    return found


def _clocks(results: Results, runs: Collection[str]) -> str:
    """A sentence about the largest error between the clocks of two processes, which is twice the error of one clock."""
    uncertain_ms = 2e-6 * max((run["clock_uncertainty_ns"] for run in results.runs if run["run"] in runs), default=0)
    return (
        f" Times of two processes are known to \N{PLUS-MINUS SIGN} {uncertain_ms:g} ms."
        if uncertain_ms
        else " All times are of one clock."
    )


_SHARED = ("scenarios", "windows", "visibility", "pair-latency")


def _size(drawing: _Drawing, results: Results) -> tuple[float, float]:
    if drawing.name == "scenarios":
        return 10.5, 1.6 + 0.24 * len({run["scenario"] for run in results.runs})
    if drawing.name == "pair":
        return 10.0, 1.7 + 0.3 * max((run["nodes"] for run in _pair(results)), default=3)
    return (10.0, 4.0) if drawing.panels > 1 else (7.5, 4.2)


def render(canvas: Canvas, name: str, title: str, caption: str) -> Figure:
    """The picture as SVG and PNG. Equal input gives equal bytes."""
    svg, png = io.StringIO(), io.BytesIO()
    canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    canvas.savefig(png, format="png", dpi=110, metadata={"Software": None})
    text = svg.getvalue()
    return Figure(name, title, caption, text[text.index("<svg") :], png.getvalue())


def own_levels(results: Results) -> dict[str, str]:
    """The read level that each mode's runs use unless a request names another."""
    return {run["mode"]: run["read_consistency"] for run in results.runs}


def _values(results: Results, metric: str, phase: str = "all", side: str = "all") -> list[dict[str, Any]]:
    """Rows of single runs at the run's own level. Figures without read levels have one row."""
    own = own_levels(results)
    rows = [r for r in results.per_run if r["metric"] == metric and r["phase"] == phase and r["side"] == side]
    levelled = {(row["run"]) for row in rows if row["level"] == own[row["mode"]]}
    return [row for row in rows if row["level"] == (own[row["mode"]] if row["run"] in levelled else "all")]


def _scenario_of(results: Results) -> dict[str, str]:
    return {run["run"]: run["scenario"] for run in results.runs}


def _modes(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["mode"] for row in rows})


def _colours(results: Results) -> dict[str, str]:
    """A colour for each mode; AP and CP come first."""
    others = [mode for mode in _modes(results.runs) if mode not in COLOURS]
    return COLOURS | {mode: FOREIGN_COLOURS[place % len(FOREIGN_COLOURS)] for place, mode in enumerate(others)}


def _marker(mode: str) -> str:
    return _MARKERS.get(mode, "s")


BIN_S = 0.5


def _divergence(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    """Means over the runs of a mode, by time since the fault began. A run without a known divergence counts as zero."""
    (axis,) = axes
    ends = {row["run"]: row for row in results.faults}
    mode_of = {run["run"]: run["mode"] for run in results.runs if run["run"] in ends}
    if not mode_of:
        return []
    scenarios = _scenario_of(results)
    worst: dict[tuple[str, int], float] = defaultdict(float)
    maybe: dict[tuple[str, int], float] = defaultdict(float)
    for row in results.divergence:
        moment = row["run"], math.floor(row["at_s"] / BIN_S)
        worst[moment], maybe[moment] = max(worst[moment], row["divergence"]), max(maybe[moment], row["possible"])
    first = math.floor(max(row["steady_s"] for row in ends.values()) / BIN_S)
    last = math.floor(min(row["until_s"] for row in ends.values()) / BIN_S)
    last = max(last, first + 1)
    for mode in sorted(set(mode_of.values())):
        runs = [run for run, own in mode_of.items() if own == mode]
        values = [[worst.get((run, at), 0.0) for run in runs] for at in range(first, last + 1)]
        times = [at * BIN_S for at in range(first, last + 1)]
        axis.plot(
            times,
            [mean(line) for line in values],
            color=_colours(results)[mode],
            label=f"{mode_name(mode)}, certain",
            drawstyle="steps-post",
        )
        possible = [mean([maybe.get((run, at), 0.0) for run in runs]) for at in range(first, last + 1)]
        label = f"{mode_name(mode)}, possible"
        axis.plot(times, possible, ":", color=_colours(results)[mode], label=label, linewidth=1, drawstyle="steps-post")
        bounds = [interval(line, [scenarios[run] for run in runs]) for line in values]
        low, high = ([math.nan if end is None else end for end in ends] for ends in zip(*bounds, strict=True))
        axis.fill_between(times, low, high, step="post", color=_colours(results)[mode], alpha=0.18, linewidth=0)
    typical = median([row["end_s"] for row in ends.values()])
    axis.axvspan(0, typical, color="#00000014", label=f"fault (median {typical:.1f} s)", linewidth=0)
    axis.set(xlabel="time since the fault began (s)", ylabel="divergence (Jaccard distance)", ylim=(0, None))
    _legend(axis)
    return mode_of


_FROM_WHITE = LinearSegmentedColormap.from_list("white to orange", ["#ffffff", "#fdba74", "#ea580c", "#7c2d12"])


class _Heat(NamedTuple):
    title: str
    metric: str
    phase: str
    convert: Callable[[float], float]


_HEATS = (
    _Heat("nodes differ\n(distance x s)", "divergence_area", "all", lambda value: value),
    _Heat("KV reads that are\nstale (%)", "fresh_reads", "fault", lambda value: 100 * (1 - value)),
    _Heat("brokers missing from\nanswers (%)", "harvest", "fault", lambda value: 100 * (1 - value)),
    _Heat("fail-over clients: not\nanswered in time (%)", "failover_yield_in_time", "fault", lambda value: 100 * (1 - value)),
)


def _scenarios(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    """A heat map for each of four figures. Scenarios are sorted by the divergence of AP's nodes."""
    shown = []
    order: dict[str, float] = {run["scenario"]: 0.0 for run in results.runs}
    for row in _values(results, "divergence_area"):
        if row["mode"] == "ap":
            order[row["scenario"]] = max(order[row["scenario"]], row["value"])
    names = sorted(order, key=lambda name: (-order[name], name))
    modes = _modes(results.runs)
    for axis, heat in zip(axes, _HEATS, strict=True):
        cells: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in _values(results, heat.metric, heat.phase):
            cells[row["scenario"], row["mode"]].append(heat.convert(row["value"]))
            shown.append(row["run"])
        grid = [[mean(cells[name, mode]) if cells[name, mode] else math.nan for mode in modes] for name in names]
        known = [value for line in grid for value in line if not math.isnan(value)]
        top = max([*known, 1e-9])
        axis.imshow(grid, aspect="auto", cmap=_FROM_WHITE, vmin=0, vmax=top)
        for y, line in enumerate(grid):
            for x, value in enumerate(line):
                text = "-" if math.isnan(value) else "0" if value < 0.05 else f"{value:.1f}" if value < 10 else f"{value:.0f}"
                axis.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if value > 0.6 * top else "black")
        axis.set_xticks(range(len(modes)), [mode_name(mode) for mode in modes])
        axis.tick_params(labeltop=True)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_title(heat.title)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return shown


def log_scale(axis: Axes) -> None:
    """Use a logarithmic x axis if the figure has values that such an axis can show."""
    if math.isfinite(axis.dataLim.minposx):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def _legend(axis: Axes, **how: Any) -> None:
    """Add a legend if the figure has labels."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(**how)


def _windows(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    for axis, about in zip(axes, (KV, ROUTES), strict=True):
        for mode in _modes(results.windows):
            rows = [row for row in results.windows if row["mode"] == mode and row["about"] == about]
            if rows:
                xs, ys = [max(row["window_ms"], 0.1) for row in rows], [100 * row["quantile"] for row in rows]
                label = f"{mode_name(mode)} ({rows[0]['writes']:,} writes)"
                axis.plot([*xs, 2e4], [*ys, 100], color=_colours(results)[mode], label=label, drawstyle="steps-post")
        log_scale(axis)
        axis.set(xlabel="how long the old version was still read (ms)", title=f"of the {about}", ylim=(0, 102))
        axis.set_xticks([0.1, 1, 10, 100, 1000, 10000], ["none", "1", "10", "100", "1,000", "10,000"])
        _legend(axis, loc="lower right")
    axes[0].set_ylabel("acknowledged writes (%)")
    return [run["run"] for run in results.runs] if results.windows else []


def _visibility(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    for axis, about in zip(axes, (KV, ROUTES), strict=True):
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in results.visibility:
            if row["about"] == about and (row["mode"] == "cp" or row["level"] == own_levels(results)[row["mode"]]):
                groups[row["mode"], row["level"]].append(row)
        for (mode, level), rows in sorted(groups.items()):
            axis.plot(
                [row["age_ms"] for row in rows], [100 * row["share"] for row in rows], LINES.get(level, "-"),
                color=_colours(results)[mode], label=f"{mode_name(mode)}, {level} reads", drawstyle="steps-post",
            )  # fmt: skip  # items grouped by line
        log_scale(axis)
        axis.axhline(99, color="#0006", linewidth=0.8)
        axis.annotate("99 %", (0.998, 98.7), xycoords=("axes fraction", "data"), ha="right", va="top", fontsize=8)
        axis.set(xlabel="time since the write's acknowledgement (ms)", title=f"of the {about}")
        _legend(axis, loc="lower right")
    axes[0].set(ylabel="writes that all reads see from then on (%)", ylim=(None, 101.5))
    return [run["run"] for run in results.runs] if results.visibility else []


LENGTHS_MIN = 3
"""If a scenario was run with at least this number of fault lengths, means are drawn beside the points."""


def _varied(results: Results) -> dict[str, float]:
    """Planned length of the fault (s) for each run of a scenario that was run with several lengths."""
    lengths: dict[str, set[float]] = defaultdict(set)
    for run in results.runs:
        lengths[run["scenario"]].add(run["fault_s"])
    return {run["run"]: run["fault_s"] for run in results.runs if len(lengths[run["scenario"]]) >= LENGTHS_MIN}


def _lengths(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    """Each run as a point at the true length of its fault, and the means of the runs with the same planned length."""
    length, varied = {row["run"]: row["end_s"] for row in results.faults}, _varied(results)
    scenarios = ", ".join(sorted({run["scenario"] for run in results.runs if run["run"] in varied}))
    shown: list[str] = []
    named = (
        ("convergence", 1.0, "until all nodes agree after the repair (s)"),
        ("staleness_max", 1000.0, "longest lag of a KV read (s)"),
    )
    for axis, (metric, divisor, label) in zip(axes, named, strict=True):
        rows = [row for row in _values(results, metric) if row["run"] in length]
        for mode in _modes(rows):
            chosen = [row for row in rows if row["mode"] == mode]
            axis.scatter(
                [length[row["run"]] for row in chosen], [row["value"] / divisor for row in chosen],
                color=_colours(results)[mode], label=f"{mode_name(mode)}, one run", alpha=0.4,
                marker=_marker(mode), s=24, linewidth=0,
            )  # fmt: skip  # items grouped by line
            groups: dict[float, list[float]] = defaultdict(list)
            for row in chosen:
                if row["run"] in varied:
                    groups[varied[row["run"]]].append(row["value"] / divisor)
            if groups:
                _with_intervals(axis, results, mode, sorted(groups.items()), f"{mode_name(mode)}, mean of {scenarios}")
        shown += [row["run"] for row in rows]
        axis.set(xlabel="length of the fault (s)", ylabel=label)
        axis.set_ylim(bottom=-0.03 * max((row["value"] / divisor for row in rows), default=1) - 1e-3)
        _legend(axis, fontsize=8)
    return shown


def _with_intervals(axis: Axes, results: Results, mode: str, groups: Sequence[tuple[float, list[float]]], label: str) -> None:
    """Means, joined by a line, with their intervals if there are enough runs."""
    centres = [mean(values) for _, values in groups]
    error = [list(whiskers) for whiskers in zip(*(_whiskers(values) for _, values in groups), strict=True)]
    axis.errorbar(
        [at for at, _ in groups], centres, error, color=_colours(results)[mode], marker=_marker(mode), capsize=3, label=label,
        linewidth=1.2,
    )  # fmt: skip  # items grouped by line


def _whiskers(values: Sequence[float], clusters: Sequence[str] | None = None) -> tuple[float, float]:
    """The distances of the interval's ends below and above the mean; NaN, which is not drawn, if there is no interval."""
    centre, (low, high) = mean(values), interval(values, clusters)
    return (math.nan, math.nan) if low is None or high is None else (max(centre - low, 0), max(high - centre, 0))


def _harvest_yield(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    (axis,) = axes
    scenarios = _scenario_of(results)
    shown: set[str] = set()
    for mode, colour in _colours(results).items():
        path = []
        for phase in ("steady", "fault", "heal"):
            harvest = {row["run"]: row["value"] for row in _values(results, "harvest", phase) if row["mode"] == mode}
            answered = {
                row["run"]: row["value"] for row in _values(results, "failover_yield_in_time", phase) if row["mode"] == mode
            }
            both = sorted(harvest.keys() & answered.keys())
            if both:
                shown.update(both)
                xs, ys = ([100 * values[run] for run in both] for values in (answered, harvest))
                path.append((mean(xs), mean(ys), phase))
                clusters = [scenarios[run] for run in both]
                error = [[[end] for end in _whiskers(values, clusters)] for values in (xs, ys)]
                axis.errorbar([path[-1][0]], [path[-1][1]], yerr=error[1], xerr=error[0], color=colour, elinewidth=0.8, alpha=0.6)
        axis.plot(
            [x for x, _, _ in path],
            [y for _, y, _ in path],
            color=colour,
            marker=_marker(mode),
            label=mode_name(mode),
            alpha=0.8,
        )
        for x, y, phase in path:
            below = mode == "ap"
            axis.annotate(phase, (x, y), textcoords="offset points", xytext=(6, -12 if below else 6), color=colour, fontsize=9)
    axis.set(xlabel="yield of fail-over clients: answered in time (%)", ylabel="harvest: right brokers in the answer (%)")
    axis.margins(0.12)
    _legend(axis, loc="lower left")
    return shown


def _sides(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    (axis,) = axes
    scenarios = _scenario_of(results)
    sides = ("whole", "majority", "minority")
    rows = {side: _values(results, "yield_in_time", "fault", side) for side in sides}
    shown = [row["run"] for found in rows.values() for row in found]
    modes = _modes([row for found in rows.values() for row in found])
    for position, mode in enumerate(modes):
        for place, side in enumerate(sides):
            own = [row for row in rows[side] if row["mode"] == mode]
            values = [100 * row["value"] for row in own]
            if values:
                centre, x = mean(values), place + position * 0.38
                below, above = _whiskers(values, [scenarios[row["run"]] for row in own])
                error, high = [[below], [above]], centre + (0 if math.isnan(above) else above)
                label = mode_name(mode) if place == 0 else None
                axis.bar([x], [centre], 0.34, color=_colours(results)[mode], label=label, yerr=error, capsize=3, alpha=0.85)
                axis.annotate(f"{centre:.0f} %\n{len(values)} runs", (x, high + 1.5), ha="center", fontsize=8)
    titles = ("not cut off\nfrom anybody", "side with most\nof the nodes", "cut-off side")
    axis.set_xticks([x + 0.19 for x in range(len(sides))], titles)
    axis.set(ylabel="answered in time during the fault (%)", ylim=(0, 115))
    axis.set_yticks(range(0, 101, 20))
    _legend(axis, loc="upper right", ncols=2, bbox_to_anchor=(1, 1.1))
    return shown


def _latency(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    titles = {"get": "KV get", "put": "KV put", "route": "route look-up"}
    for axis, (kind, title) in zip(axes, titles.items(), strict=True):
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for row in results.latencies:
            if row["kind"] == kind and (row["mode"] == "cp" or row["level"] == own_levels(results)[row["mode"]]):
                groups[row["mode"], row["level"]].append(row)
        for (mode, level), rows in sorted(groups.items()):
            rows.sort(key=lambda row: float(row["quantile"]))
            label = mode_name(mode) if kind == "put" else f"{mode_name(mode)}, {level}"
            axis.plot(
                [row["latency_ms"] for row in rows], [100 * row["quantile"] for row in rows],
                LINES.get(level, "-"), color=_colours(results)[mode], label=label,
            )  # fmt: skip  # items grouped by line
        log_scale(axis)
        axis.set(xlabel="latency (ms)", title=title, ylim=(0, 102))
        _legend(axis, fontsize=8)
    axes[0].set_ylabel("operations answered (%)")
    return [run["run"] for run in results.runs] if results.latencies else []


def _detection(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    """Survival curves of detection, and the mistakes of each run as a point, beside a box plot."""
    for mode in _modes(results.detection):
        rows = [row for row in results.detection if row["mode"] == mode]
        label = f"{mode_name(mode)} ({rows[0]['pairs']:,} deaths seen by a node)"
        times, shares = [row["at_s"] for row in rows], [100 * row["undetected"] for row in rows]
        axes[0].plot(times, shares, color=_colours(results)[mode], label=label, drawstyle="steps-post")
    axes[0].set(xlabel="time since the broker's death (s)", ylabel="nodes that still list the broker (%)", ylim=(0, 102))
    _legend(axes[0], fontsize=8)
    rows = _values(results, "mistakes")
    modes = _modes(rows)
    for place, mode in enumerate(modes, 1):
        own = [row["value"] for row in rows if row["mode"] == mode]
        axes[1].boxplot([own], positions=[place], showfliers=False, manage_ticks=False)
        spread = [place + 0.12 * (2 * (number % 9) / 8 - 1) for number in range(len(own))]
        axes[1].scatter(spread, own, s=10, color=_colours(results)[mode], alpha=0.5, linewidth=0)
    axes[1].set_xticks(range(1, len(modes) + 1), [mode_name(mode) for mode in modes])
    axes[1].set(ylabel="living brokers dropped by mistake in a run", ylim=(0, None))
    return [row["run"] for row in rows]


_STANDINGS = {"unknown": "#e5e7eb", "answers as most nodes do": "#86efac", "answers otherwise": "#b91c1c"}


def _pair(results: Results) -> list[dict[str, Any]]:
    """The two runs that are shown in detail, in the order of their modes."""
    shown = {row["run"] for row in (*results.pair_standings, *results.pair_latencies)}
    return sorted((run for run in results.runs if run["run"] in shown), key=lambda run: str(run["mode"]))


def _shared_out(axes: Sequence[Axes], results: Results) -> list[tuple[Axes, dict[str, Any]]]:
    """The axes, each with the run that it shows. If only one mode was run, the other panel is hidden."""
    pair = _pair(results)
    for axis in axes[len(pair) :]:
        axis.set_visible(False)
    return list(zip(axes, pair, strict=False))


def _faults_shaded(axis: Axes, results: Results, run: dict[str, Any]) -> None:
    for row in results.faults:
        if row["run"] == run["run"]:
            axis.axvspan(0, row["end_s"], color="#00000014", linewidth=0, zorder=0)
            axis.axvline(0, color="#444", linewidth=0.8)
            axis.axvline(row["end_s"], color="#444", linewidth=0.8)
            axis.set_xlim(row["steady_s"], row["until_s"])
    axis.set_title(f"{mode_name(run['mode'])}: {run['scenario']}, {run['nodes']} nodes, seed {run['seed']}")
    axis.set_xlabel("time since the fault began (s)")


def _standings(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    """Nodes by time. "As most nodes do" means: like more than half of the nodes that answer."""
    shown = []
    for axis, run in _shared_out(axes, results):
        rows = [row for row in results.pair_standings if row["run"] == run["run"]]
        if not rows:
            continue
        nodes, width = sorted({row["node"] for row in rows}), rows[0]["width_s"]
        start = min(row["at_s"] for row in rows)
        answers = {(row["node"], round((row["at_s"] - start) / width)): row["answer"] for row in rows}
        last = max(cell for _, cell in answers)
        grid = numpy.zeros((len(nodes), last + 1))
        for cell in range(last + 1):
            given = [answers[node, cell] for node in nodes if (node, cell) in answers]
            for y, node in enumerate(nodes):
                if (node, cell) in answers:
                    grid[y, cell] = 1 if given.count(answers[node, cell]) * 2 > len(given) else 2
        extent = (start, start + (last + 1) * width, len(nodes) - 0.5, -0.5)
        colours = ListedColormap(list(_STANDINGS.values()))
        axis.imshow(grid, cmap=colours, vmin=0, vmax=2, aspect="auto", extent=extent, interpolation="nearest")
        axis.hlines([y + 0.5 for y in range(len(nodes) - 1)], extent[0], extent[1], color="white", linewidth=2)
        _faults_shaded(axis, results, run)
        axis.set_yticks(range(len(nodes)), nodes)
        axis.tick_params(axis="y", length=0)
        shown.append(run["run"])
    handles = [Patch(color=colour, label=name) for name, colour in _STANDINGS.items()]
    axes[0].figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return shown


_OUTCOMES = {
    "ok": ("answered", "#0f766e", "."),
    "fail": ("refused", "#ea580c", "x"),
    "indeterminate": ("unknown", "#b91c1c", "^"),
}


def _pair_latencies(axes: Sequence[Axes], results: Results) -> Iterable[str]:
    shown = []
    for axis, run in _shared_out(axes, results):
        rows = [row for row in results.pair_latencies if row["run"] == run["run"] and row["latency_ms"] is not None]
        for outcome, (name, colour, marker) in _OUTCOMES.items():
            own = [row for row in rows if row["outcome"] == outcome]
            if own:
                counted = f"{name} ({sum(row['operations'] for row in own):,})"
                times, latencies = [row["at_s"] for row in own], [row["latency_ms"] for row in own]
                axis.scatter(
                    times, latencies, s=14, c=colour, marker=marker, alpha=0.6, linewidth=0.9, rasterized=True, label=counted
                )
        if rows:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
            _faults_shaded(axis, results, run)
            axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
            shown.append(run["run"])
    axes[0].set_ylabel("latency, or time until the client gave up (ms)")
    return shown


_DRAWINGS = (
    _Drawing("scenarios", "What each fault does to each mode",
             "Mean over the runs of a scenario, a column for each mode; a dash: nothing was measured. The first table "
             "is of the whole run, the others of the time of the fault; darker is worse, 0 is white. Their 95 % intervals are in "
             "summary.csv.", _scenarios, 4),
    _Drawing("divergence", "How far the nodes' answers differ over time",
             "Greatest difference between any two nodes that answer: 0 all the same, 1 nothing in common; the mean "
             "over the runs and, shaded, its 95 % interval. A node is observed at intervals, and its answer may change between "
             "two observations. Certain: the least difference that the answers permit. Possible: the greatest.", _divergence),
    _Drawing("pair", "One fault, node by node",
             "One run of each mode with the same schedule, chosen because AP's nodes differed much and CP left many requests "
             "unanswered. A cell is the answer that a node certainly gave for most of that time (two observations, or more in a "
             "long run): the answer of more than half of the known nodes, or another one. Unknown: the node did not answer, or "
             "its answer changed between two observations. Lines mark where the fault begins and ends.",
             _standings, 2),
    _Drawing("pair-latency", "One fault, operation by operation",
             "The same runs. Each point is an operation, or several with the same time, latency and outcome (in the legend "
             "all are counted): gets, puts, deletes and look-ups of all clients and levels. Shaded: the fault.",
             _pair_latencies, 2),
    _Drawing("windows", "How long the old version could still be read",
             "For each acknowledged write the time until the last read of an older value (inconsistency window), at the "
             "default level of the mode. Higher and further left is better. Writes of all runs together; the table above has "
             "means over runs with their 95 % intervals.", _windows, 2, True),
    _Drawing("visibility", "When a write is seen (t-visibility)",
             "Share of the acknowledged writes that every later read sees, by the time since their acknowledgement; writes "
             "of all "
             "runs together. A write became visible at an unknown time between two reads (Turnbull's estimate). A curve that "
             "ends below 100 %: the runs ended before the other writes became visible. The table above has 95 % intervals.",
             _visibility, 2, True),
    _Drawing("lengths", "Convergence and staleness against the length of the fault",
             "Each pale point is a run, at the measured length of its fault; runs whose nodes never differed have no "
             "convergence. For scenarios that were run with several lengths, lines show the means by planned length, with "
             "95 % intervals.", _lengths, 2, True),
    _Drawing("harvest-yield", "Completeness and availability",
             "Means over the runs before, during and after the fault, joined in this order; thin lines are 95 % intervals. "
             "The upper right corner is best: all requests are answered, with all living brokers.", _harvest_yield),
    _Drawing("sides", "Who is served during the fault",
             "Operations by the side of the node that was asked; bars are means over runs, whiskers their 95 % "
             "intervals.", _sides),
    _Drawing("latency", "What each read level costs without faults",
             "Distribution of the latencies of answered operations of all runs before any fault; the table of read levels has "
             "95 % intervals over runs. All nodes, clients and brokers "
             "shared one machine, "
             "so the differences between curves count, not the values.", _latency, 3),
    _Drawing("detection", "How well failures are detected",
             "Left: for each death and each node that listed the broker, the share of nodes that still listed it later; nodes "
             "that listed it until the observation ended count until then (Kaplan-Meier). Right: each point is a run, boxes "
             "are quartiles, the line the median.", _detection, 2),
)  # fmt: skip  # items grouped by line
