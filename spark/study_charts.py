"""Charts of a study's page, as SVG."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from replicated_namesrv.spark.charts import COLOURS, FOREIGN_COLOURS, STYLE, Figure, render
from replicated_namesrv.spark.study_data import Estimate, StudyData, Where, everywhere
from replicated_namesrv.spark.study_decision import FREQUENCIES, HOUR, ROUND_TRIPS_MS, ModeDecision, described_s
from replicated_namesrv.spark.study_results import COARSER, PRIMARY_FIGURES, StudyFigure
from replicated_namesrv.spark.survival import Survival

_DASHES = ("-", "--", ":", "-.")
_INTERVAL_MS = 250
"""The observer's interval in chaos runs."""
_SHORT_TITLES = {
    "divergence_share": "nodes certainly differ\n(% of the time)",
    "harvest": "serving brokers in answers,\nduring the fault (%)",
    "failover_yield_in_time": "fail-over clients answered\nin time, in the fault (%)",
    "failover_unavailable_longest": "longest time without a\nsuccessful request (s)",
    "misrouted": "messages to a dead broker,\nduring the fault (%)",
}


def _painted(
    name: str, title: str, caption: str, size: tuple[float, float], panels: int, paint: Callable[[list[Axes]], None]
) -> Figure:
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=size, layout="constrained")
        paint(list(canvas.subplots(1, panels, squeeze=False)[0]))
        return render(canvas, name, title, caption)


def _look(arms: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and line style of each arm."""
    dashes, others = cycle(_DASHES), cycle(FOREIGN_COLOURS)
    return {
        arm: (COLOURS["cp"], next(dashes))
        if arm.startswith("cp")
        else (COLOURS["ap"], "-")
        if arm == "ap"
        else (next(others), "-")
        for arm in arms
    }


def forest(data: StudyData, arm: str, other: str) -> Figure:
    """Paired differences of the primary figures: a row for each scenario, and one for all."""
    rows = [*data.plan.scenarios, None]

    def paint(axes: list[Axes]) -> None:
        for axis, figure in zip(axes, PRIMARY_FIGURES, strict=True):
            factor = 100.0 if figure.unit == "share" else 1.0
            for place, scenario in enumerate(rows):
                _row(axis, place, data.difference(arm, other, figure, _of(scenario)), factor, scenario is None)
            axis.axvline(0, color="#444", linewidth=0.8, zorder=0)
            axis.set_title(_SHORT_TITLES[figure.metric])
            good = "less" if figure.less_is_better else "more"
            axis.set_xlabel(f"{good} is better", fontsize=8)
            axis.set_yticks(range(len(rows)), ["all scenarios" if name is None else name for name in rows])
            axis.set_ylim(len(rows) - 0.5, -0.5)
            axis.axhline(len(rows) - 1.5, color="#ccc", linewidth=0.8)
            axis.tick_params(axis="y", length=0, labelleft=axis is axes[0])

    return _painted(
        f"forest-{arm}-{other}", f"{arm} minus {other}, paired",
        "Each pale point is a pair of runs with one schedule. A diamond is their mean. The bar is its 95 % interval. It exists "
        "if there are five replicates: seeds or, in the last row, scenarios.",
        (12.5, 1.6 + 0.36 * len(rows)), len(PRIMARY_FIGURES), paint,
    )  # fmt: skip  # items grouped by line


def _of(scenario: str | None) -> Where:
    """Selects the blocks of a scenario. None: all blocks."""
    return everywhere if scenario is None else lambda block: block.scenario == scenario


def _row(axis: Axes, place: int, found: Estimate | None, factor: float, is_whole: bool) -> None:
    if found is None:
        axis.annotate("no pair", (0, place), fontsize=7, color="#666", va="center", ha="center")
        return
    if not is_whole:
        spread = [place + 0.22 * (2 * (number % 5) / 4 - 1) for number in range(len(found.values))]
        axis.scatter([value * factor for value in found.values], spread, s=9, color="#6b7280", alpha=0.55, linewidth=0)
    low, high = found.interval
    if low is not None and high is not None:
        axis.plot([low * factor, high * factor], [place, place], color="#111", linewidth=1.6)
    axis.plot([found.mean * factor], [place], marker="D", color="#1d4ed8" if is_whole else "#111", markersize=5)


def detection(data: StudyData) -> Figure | None:
    """Survival curves of detection."""
    found = {arm: data.detections(arm) for arm in data.plan.arms}
    if not any(found.values()):
        return None

    def paint(axes: list[Axes]) -> None:
        (axis,) = axes
        for arm, (colour, dash) in _look(data.plan.arms).items():
            times = found[arm]
            if times:
                steps = [(0.0, 1.0), *Survival(times).steps]
                label = f"{arm} ({len(times)} pairs of a death and a node)"
                xs, ys = zip(*steps, strict=True)
                axis.plot(xs, [100 * y for y in ys], dash, color=colour, label=label, drawstyle="steps-post")
        axis.set(
            xlabel="time since the broker's death, in units of its time-out",
            ylabel="nodes that still list the broker (%)",
            ylim=(0, 102),
            xlim=(0, None),
        )
        axis.legend(fontsize=8)

    return _painted(
        "detection",
        "How soon nodes notice a dead broker whose connections stay open",
        "Kaplan-Meier estimates.",
        (7.5, 4.0),
        1,
        paint,
    )


GAPS = (
    ("failover_unavailable_longest", "fail-over clients"),
    ("pinned_unavailable_longest", "pinned clients (they know one node)"),
)


def gaps(data: StudyData) -> Figure:
    """The longest time without a successful request in each run, by kind of client."""

    def paint(axes: list[Axes]) -> None:
        looks = _look(data.plan.arms)
        for axis, (column, title) in zip(axes, GAPS, strict=True):
            for place, arm in enumerate(data.plan.arms):
                values = data.values(arm, column)
                spread = [place + 0.3 * (2 * (number % 9) / 8 - 1) for number in range(len(values))]
                axis.scatter(spread, list(values.values()), s=12, color=looks[arm][0], alpha=0.5, linewidth=0)
                if values:
                    mean = sum(values.values()) / len(values)
                    axis.plot([place - 0.35, place + 0.35], [mean, mean], color="#111", linewidth=1.4)
            axis.set_xticks(range(len(data.plan.arms)), data.plan.arms, rotation=20, ha="right", fontsize=8)
            axis.set_title(title)
            axis.set_ylim(0, None)
        axes[0].set_ylabel("longest time without\na successful request in a run (s)")

    return _painted(
        "gaps", "Longest time without a successful request", "A point is a run, a line the mean.", (9.5, 4.0), 2, paint
    )


def resolution(data: StudyData) -> Figure:
    """Certain divergence against the interval of the observer."""
    columns = ("divergence_share", *(f"divergence_share_every_{factor}" for factor in COARSER))
    intervals = [_INTERVAL_MS, *(_INTERVAL_MS * factor for factor in COARSER)]

    def paint(axes: list[Axes]) -> None:
        (axis,) = axes
        for arm, (colour, dash) in _look(data.plan.arms).items():
            means = []
            for column in columns:
                found = data.estimate(arm, StudyFigure(column, "all", "", "share", True))
                means.append(math.nan if found is None else 100 * found.mean)
            axis.plot(intervals, means, dash, color=colour, marker="o", markersize=4, label=arm)
        axis.set_xscale("log")
        axis.set_xticks(intervals, [f"{interval / 1000:g}" for interval in intervals])
        axis.minorticks_off()
        axis.set(
            xlabel="time between two questions to a node (s)", ylabel="nodes certainly differ (% of the time)", ylim=(0, None)
        )
        axis.legend(fontsize=8)

    return _painted("resolution", "Divergence by resolution", "Means over runs.", (6.5, 3.6), 1, paint)


def decision_chart(decision: ModeDecision) -> Figure:
    """The cost of a missing broker above which CP is cheaper, against the share of time with a fault."""
    shares = [HOUR * 10 ** (step / 10) for step in range(-10, 40) if HOUR * 10 ** (step / 10) <= 1]
    colours = ("#15803d", "#0e7490", "#7e22ce", "#be123c")

    def paint(axes: list[Axes]) -> None:
        (axis,) = axes
        top = 1e7
        for colour, round_trip in zip(colours, ROUND_TRIPS_MS, strict=True):
            bounds = [decision.threshold_s(share, round_trip) for share in shares]
            axis.plot(shares, [min(one[0], top) for one in bounds], color=colour, label=f"round trip {round_trip} ms")
            if decision.resamples:
                low, high = ([min(one[place] or 0.0, top) for one in bounds] for place in (1, 2))
                axis.fill_between(shares, low, high, color=colour, alpha=0.13, linewidth=0)
        axis.set(xscale="log", yscale="log", ylim=(0.01, top), xlim=(shares[0], 1))
        axis.set_xticks([share for _, share in FREQUENCIES], [name for name, _ in FREQUENCIES])
        costs = (0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 864_000)
        axis.set_yticks(costs, [described_s(cost) for cost in costs])
        axis.minorticks_off()
        axis.set(xlabel="time with a fault", ylabel="cost of one missing broker in an answer,\nas waiting time of a client")
        axis.annotate("choose CP", (0.97, 0.95), xycoords="axes fraction", ha="right", va="top", weight="bold")
        axis.annotate("choose AP", (0.03, 0.05), xycoords="axes fraction", weight="bold")
        axis.legend(fontsize=8, loc="upper center")

    return _painted("decision", "When CP is the better choice", "Bands are 95 % intervals.", (8.0, 4.6), 1, paint)
