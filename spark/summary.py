"""Figures over many runs: means with bootstrap confidence intervals, and AP compared with CP for runs of the same schedule.

The bootstrap resamples runs (seeds), because only they are independent of one another. Its random numbers are fixed, so the
same runs give the same interval. The input is figures of runs, never records.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replicated_namesrv.spark.run_figures import CATALOGUE

RESAMPLES = 1_000
CONFIDENCE = 0.95


def interval(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """Percentile bootstrap of the mean at 95 %. For a single value the interval is that value."""
    if len(values) < 2:
        return values[0], values[0]
    chooser = random.Random(seed)
    means = sorted(sum(chooser.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES))
    tail = int((1 - CONFIDENCE) / 2 * RESAMPLES)
    return means[tail], means[RESAMPLES - 1 - tail]


def summary(figures: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of SUMMARY from rows of PER_RUN, for each mode, by scenario and over all scenarios (``all``)."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for figure in figures:
        for scenario in (figure["scenario"], "all"):
            group = (figure["mode"], scenario, *(figure[name] for name in ("level", "phase", "side", "metric")))
            groups[group].append(figure)
    rows = []
    for group, members in sorted(groups.items()):
        values = [member["value"] for member in sorted(members, key=lambda member: str(member["run"]))]
        low, high = interval(values)
        mode, scenario, level, phase, side, metric = group
        rows.append(
            {
                "mode": mode, "scenario": scenario, "level": level, "phase": phase, "side": side, "metric": metric,
                "unit": CATALOGUE[metric].unit, "runs": len(values), "mean": sum(values) / len(values), "low": low, "high": high,
                "minimum": min(values), "maximum": max(values), "count": sum(member["count"] for member in members),
                "clock_uncertainty_ms": _uncertainty(members),
            }
        )  # fmt: skip  # items grouped by line
    return rows


def _uncertainty(members: Iterable[dict[str, Any]]) -> float | None:
    """The greatest of the clocks' uncertainties; None if no figure depends on clocks."""
    return max((known for member in members if (known := member["clock_uncertainty_ms"]) is not None), default=None)


def paired(figures: Iterable[dict[str, Any]], own_level: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of PAIRED: AP minus CP for each metric, over the pairs of runs of the same scenario, seed and number of nodes.

    Read levels differ by mode. Figures are therefore compared at each mode's default level (``own_level``), which is called
    ``own``, and over all levels. Several runs of one schedule are averaged first."""
    found: dict[tuple[str, ...], dict[tuple[Any, ...], dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    clocks: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for figure in figures:
        level = "own" if figure["level"] == own_level.get(figure["mode"]) else figure["level"]
        if level not in ("own", "all"):
            continue
        for scenario in (figure["scenario"], "all"):
            key = (scenario, level, figure["phase"], figure["side"], figure["metric"])
            schedule = (figure["scenario"], figure["seed"], figure["nodes"])
            found[key][schedule][figure["mode"]].append(figure["value"])
            clocks[key].append(figure)
    rows = []
    for group, schedules in sorted(found.items()):
        pairs = [
            (_mean(modes["ap"]), _mean(modes["cp"])) for _, modes in sorted(schedules.items()) if modes.keys() >= {"ap", "cp"}
        ]
        if not pairs:
            continue
        differences = [ap - cp for ap, cp in pairs]
        low, high = interval(differences)
        scenario, level, phase, side, metric = group
        rows.append(
            {
                "scenario": scenario, "level": level, "phase": phase, "side": side, "metric": metric,
                "unit": CATALOGUE[metric].unit, "pairs": len(pairs),
                "ap": _mean([ap for ap, _ in pairs]), "cp": _mean([cp for _, cp in pairs]),
                "difference": _mean(differences), "low": low, "high": high, "clock_uncertainty_ms": _uncertainty(clocks[group]),
            }
        )  # fmt: skip  # items grouped by line
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SHARES = (0.99, 0.999)
"""Shares of reads for which t-visibility is computed: the time after a write from which this share of the reads see it."""


def t_visibility(ages: Iterable[dict[str, Any]], clock_uncertainty_ns: Mapping[str, int]) -> list[dict[str, Any]]:
    """Rows of T_VISIBILITY from the curve of every run (``curves.visibility``): the age of a write from which on the given share
    of reads see it or a newer one. The interval resamples runs; ``high_ms`` is null if some runs do not reach the share.
    ``clock_uncertainty_ns`` is by run."""
    groups: dict[tuple[str, str, str], dict[str, dict[float, tuple[int, int]]]] = defaultdict(lambda: defaultdict(dict))
    for row in ages:
        groups[row["mode"], row["about"], row["level"]][row["run"]][row["age_ms"]] = row["compared"], row["seen"]
    rows = []
    for (mode, about, level), runs in sorted(groups.items()):
        curves = [curve for _, curve in sorted(runs.items())]
        chooser = random.Random(1)
        drawn = [_sum_curves(chooser.choices(curves, k=len(curves))) for _ in range(RESAMPLES // 5)]
        whole = _sum_curves(curves)
        for share in SHARES:
            found = sorted((age_at(curve, share) for curve in drawn), key=lambda age: math.inf if age is None else age)
            tail = int((1 - CONFIDENCE) / 2 * len(found))
            rows.append(
                {
                    "mode": mode, "about": about, "level": level, "share": share, "age_ms": age_at(whole, share),
                    "low_ms": found[tail], "high_ms": found[len(found) - 1 - tail], "runs": len(curves),
                    "compared": sum(compared for compared, _ in whole.values()),
                    "clock_uncertainty_ms": 2 * max(clock_uncertainty_ns[run] for run in runs) / 1e6,
                }
            )  # fmt: skip  # items grouped by line
    return rows


def _sum_curves(curves: Iterable[dict[float, tuple[int, int]]]) -> dict[float, tuple[int, int]]:
    total: dict[float, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for curve in curves:
        for age, (compared, seen) in curve.items():
            total[age] = total[age][0] + compared, total[age][1] + seen
    return total


def age_at(curve: dict[float, tuple[int, int]], share: float) -> float | None:
    """The least age from which at least ``share`` of the reads see the write at every age. None: there is no such age."""
    found = None
    for age, (compared, seen) in sorted(curve.items(), reverse=True):
        if seen < share * compared:
            return found
        found = age
    return found
