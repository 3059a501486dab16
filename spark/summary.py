"""Figures over many runs: means with 95 % intervals, and AP compared with CP for runs of the same schedule.

Runs of one scenario resemble each other, so over several scenarios the scenarios are the replicates (clusters), and a resample
draws whole scenarios. Within one scenario the runs are the replicates. The bootstrap takes expanded percentiles (Hesterberg
2015): plain percentiles are too narrow for few replicates. From fewer than REPLICATES_MIN replicates no interval is computed. The
random numbers of the bootstrap are fixed, so the same runs give the same interval. The input is figures of runs, never records.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replicated_namesrv.spark.run_figures import CATALOGUE
from replicated_namesrv.spark.survival import GRID_MS, reached_ms, turnbull

RESAMPLES = 10_000
CONFIDENCE = 0.95
REPLICATES_MIN = 5
"""With fewer replicates, the intervals of a bootstrap contain the true mean too rarely (2: 49 %, 3: 70 %, 4: 79 %). Then the
report shows the values instead."""
PRIMARY = ("divergence_share", "harvest", "failover_yield_in_time", "failover_unavailable_longest", "misrouted")
"""Figures on which the comparison of AP and CP is based. They were chosen before the runs were made. The probabilities of all
other figures are corrected for the number of these figures."""
_EXACT_MAX = 13
"""Up to this number of replicates all patterns of signs are tried. With more, random patterns are."""

Interval = tuple[float | None, float | None]
Reals = NDArray[np.float64]


@lru_cache(maxsize=32)
def _draws(count: int) -> Reals:
    """How often each of ``count`` replicates is drawn, one row for each resample."""
    drawn = np.random.default_rng(1).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return drawn.astype(np.float64)


@lru_cache(maxsize=256)
def tail_share(count: int) -> float:
    """The percentile for an interval, expanded as much as Student's distribution is wider than the normal one."""
    normal = NormalDist()
    z, free = normal.inv_cdf((1 + CONFIDENCE) / 2), count - 1
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    student = z + sum(term / free ** (power + 1) for power, term in enumerate(terms))  # Cornish and Fisher's expansion
    return normal.cdf(-student * math.sqrt(count / free))


def _replicates(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[Reals, Reals]:
    """Sum and number of the values of each replicate. Replicates are the clusters or, if there is only one cluster, the
    values.
    """
    if clusters is None or len(set(clusters)) < 2:
        return np.asarray(values, np.float64), np.ones(len(values))
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for cluster, value in zip(clusters, values, strict=True):
        groups[cluster].append(value)
    found = [groups[cluster] for cluster in sorted(groups, key=str)]
    return np.array([math.fsum(group) for group in found]), np.array([float(len(group)) for group in found])


def interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None, unit: str = "") -> Interval:
    """The 95 % interval of the mean; (None, None) if there is no interval.

    ``clusters``: the scenario of each value. If all values are 0, or all are 1, a share (``unit``) has the interval of the rule
    of three; other equal values have no interval, because a resample cannot differ from them."""
    sums, counts = _replicates(values, clusters)
    count = len(sums)
    if count < REPLICATES_MIN:
        return None, None
    if min(values) == max(values):
        bound = 1 - (1 - CONFIDENCE) ** (1 / count)
        ends = {0.0: (0.0, bound), 1.0: (1 - bound, 1.0)} if unit == "share" else {}
        return ends.get(float(values[0]), (None, None))
    drawn = _draws(count)
    means = (drawn @ sums) / (drawn @ counts)
    tail = tail_share(count)
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)


@lru_cache(maxsize=32)
def _signs(count: int) -> Reals:
    if count <= _EXACT_MAX:
        return np.array(list(product((1.0, -1.0), repeat=count)))
    return np.random.default_rng(1).choice((1.0, -1.0), (RESAMPLES, count))


def sign_test(differences: Sequence[float], clusters: Sequence[Hashable] | None = None) -> float | None:
    """Probability of a mean at least as far from zero if the signs of the replicates were random. None: there are too few
    replicates.
    """
    sums, _ = _replicates(differences, clusters)
    if len(sums) < REPLICATES_MIN:
        return None
    signs = _signs(len(sums))
    extreme = int((np.abs(signs @ sums) >= abs(sums.sum()) * (1 - 1e-9)).sum())
    # The observed pattern counts as one of the random patterns, too.
    return extreme / len(signs) if len(sums) <= _EXACT_MAX else (extreme + 1) / (len(signs) + 1)


def holm(probabilities: Sequence[float]) -> list[float]:
    """The probabilities, adjusted for their number (Holm 1979)."""
    adjusted, highest = [0.0] * len(probabilities), 0.0
    for rank, place in enumerate(sorted(range(len(probabilities)), key=probabilities.__getitem__)):
        highest = max(highest, min(1.0, probabilities[place] * (len(probabilities) - rank)))
        adjusted[place] = highest
    return adjusted


def _is_shown(phase: str, side: str) -> bool:
    """Whether the report shows rows of this phase and side. Only such rows get intervals."""
    return side == "all" and phase in ("all", "steady", "fault")


def summary(figures: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of SUMMARY from rows of PER_RUN, for each mode, by scenario and over all scenarios (``all``)."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for figure in sorted(figures, key=lambda figure: str(figure["run"])):
        for scenario in (figure["scenario"], "all"):
            group = (figure["mode"], scenario, *(figure[name] for name in ("level", "phase", "side", "metric")))
            groups[group].append(figure)
    rows = []
    for group, members in sorted(groups.items()):
        values = [member["value"] for member in members]
        mode, scenario, level, phase, side, metric = group
        unit = CATALOGUE[metric].unit
        low, high = interval(values, _scenarios(members), unit) if _is_shown(phase, side) else (None, None)
        rows.append(
            {
                "mode": mode, "scenario": scenario, "level": level, "phase": phase, "side": side, "metric": metric,
                "unit": unit, "runs": len(values), "mean": math.fsum(values) / len(values), "low": low, "high": high,
                "minimum": min(values), "maximum": max(values), "count": sum(member["count"] for member in members),
                "clock_uncertainty_ms": _uncertainty(members),
                "points": " ".join(f"{value:.4g}" for value in values) if len(values) < REPLICATES_MIN else None,
            }
        )  # fmt: skip  # items grouped by line
    return rows


def _scenarios(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [row["scenario"] for row in rows]


def _uncertainty(members: Iterable[dict[str, Any]]) -> float | None:
    """The greatest of the clocks' uncertainties; None if no figure depends on clocks."""
    return max((known for member in members if (known := member["clock_uncertainty_ms"]) is not None), default=None)


Schedule = tuple[str, int, int]
"""Scenario, seed, number of nodes."""


def paired(figures: Iterable[dict[str, Any]], own_level: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of PAIRED: AP minus CP for each metric, over the pairs of runs of the same scenario, seed and number of nodes.

    Read levels differ by mode. Figures are therefore compared at each mode's default level (``own_level``), which is called
    ``own``, and over all levels. Several runs of one schedule are averaged first."""
    found: dict[tuple[str, ...], dict[Schedule, dict[str, list[float]]]] = defaultdict(
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
        both = [(schedule, modes) for schedule, modes in sorted(schedules.items()) if modes.keys() >= {"ap", "cp"}]
        if not both:
            continue
        pairs = [(_mean(modes["ap"]), _mean(modes["cp"])) for _, modes in both]
        differences, clusters = [ap - cp for ap, cp in pairs], [schedule[0] for schedule, _ in both]
        scenario, level, phase, side, metric = group
        is_shown = _is_shown(phase, side)
        low, high = interval(differences, clusters) if is_shown else (None, None)
        chance = sign_test(differences, clusters) if is_shown else None
        rows.append(
            {
                "scenario": scenario, "level": level, "phase": phase, "side": side, "metric": metric,
                "unit": CATALOGUE[metric].unit, "pairs": len(pairs),
                "ap": _mean([ap for ap, _ in pairs]), "cp": _mean([cp for _, cp in pairs]),
                "difference": _mean(differences), "low": low, "high": high, "clock_uncertainty_ms": _uncertainty(clocks[group]),
                "is_primary": metric in PRIMARY, "chance": chance, "chance_adjusted": chance if metric in PRIMARY else None,
            }
        )  # fmt: skip  # items grouped by line
    _adjust(rows)
    return rows


def _adjust(rows: Iterable[dict[str, Any]]) -> None:
    """Adjust the probabilities of the figures that are not primary for the number of figures that are compared together."""
    families: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["chance"] is not None and not row["is_primary"]:
            families[tuple(row[name] for name in ("scenario", "level", "phase", "side"))].append(row)
    for family in families.values():
        for row, adjusted in zip(family, holm([row["chance"] for row in family]), strict=True):
            row["chance_adjusted"] = adjusted


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


SHARES = (0.99, 0.999)
"""Shares of the writes for which t-visibility is computed. t-visibility is the least age of a write after which all reads see
this share of the writes."""
_DRAWN_AGES = 100


def t_visibility(counts: Iterable[dict[str, Any]], runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of T_VISIBILITY from those of CURVE_VISIBILITY: the least age after which all reads see the given share of writes.

    The time at which a write became visible for good is not known exactly: it is between two reads, or after the last read
    (``survival.turnbull``). Resamples for the interval draw whole scenarios or, if there is only one scenario, runs. ``high_ms``
    is null if the resample at the upper end of the interval does not reach the share."""
    about_run = {run["run"]: run for run in runs}
    rows = []
    for (mode, about, level), of_run in sorted(_spans_of(counts, about_run).items()):
        whole: Counter[tuple[int, int]] = Counter()
        for spans in of_run.values():
            whole.update(spans)
        estimate = turnbull(whole)
        replicates = _replicates_of({run: about_run[run]["scenario"] for run in of_run})
        drawn = None
        if len(replicates) >= REPLICATES_MIN:
            numbers = np.array([[sum(of_run[run][span] for run in group) for span in whole] for group in replicates], np.float64)
            drawn = turnbull(whole, _draws(len(replicates))[:_DRAWN_AGES] @ numbers)
        for share in SHARES:
            low_ms, high_ms = _age_interval(drawn, share, len(replicates))
            rows.append(
                {
                    "mode": mode, "about": about, "level": level, "share": share, "age_ms": reached_ms(estimate, share),
                    "low_ms": low_ms, "high_ms": high_ms, "runs": len(of_run), "writes": whole.total(),
                    "clock_uncertainty_ms": 2 * max(about_run[run]["clock_uncertainty_ns"] for run in of_run) / 1e6,
                }
            )  # fmt: skip  # items grouped by line
    return rows


Curve = tuple[str, str, str]
"""Mode, subject and read level."""


def _spans_of(
    counts: Iterable[dict[str, Any]], about_run: Mapping[str, dict[str, Any]]
) -> dict[Curve, dict[str, Counter[tuple[int, int]]]]:
    """The number of writes of each run by the cells in which they became visible."""
    groups: dict[Curve, dict[str, Counter[tuple[int, int]]]] = defaultdict(lambda: defaultdict(Counter))
    for row in counts:
        groups[about_run[row["run"]]["mode"], row["about"], row["level"]][row["run"]][row["first"], row["after"]] += row["writes"]
    return groups


def _replicates_of(scenarios: Mapping[str, str]) -> list[list[str]]:
    """The runs grouped by scenario; if there is only one scenario, each run is a group."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run, scenario in sorted(scenarios.items()):
        groups[scenario if len(set(scenarios.values())) > 1 else run].append(run)
    return list(groups.values())


def _age_interval(drawn: Reals | None, share: float, count: int) -> Interval:
    if drawn is None:
        return None, None
    ages = [reached_ms(shares, share) for shares in drawn]
    ordered = sorted(math.inf if age is None else age for age in ages)
    place = int(tail_share(count) * len(ordered))
    low, high = ordered[place], ordered[-1 - place]
    return None if low == math.inf else low, None if high == math.inf else high


def visibility(counts: Iterable[dict[str, Any]], runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The estimated distribution behind ``t_visibility``: mode, about, level, age_ms, share of writes that all later reads
    see."""
    about_run = {run["run"]: run for run in runs}
    rows = []
    for (mode, about, level), of_run in sorted(_spans_of(counts, about_run).items()):
        whole: Counter[tuple[int, int]] = Counter()
        for spans in of_run.values():
            whole.update(spans)
        shares = np.cumsum(turnbull(whole))
        for end_ms, share in zip(GRID_MS[1:], shares, strict=False):
            rows.append({"mode": mode, "about": about, "level": level, "age_ms": float(end_ms), "share": float(share)})
    return rows
