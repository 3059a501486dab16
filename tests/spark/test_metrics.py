"""Every figure of the catalogue on many small random runs, judged together, against its definition in plain Python."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from replicated_namesrv.spark import curves
from replicated_namesrv.spark.consistability import CLASSES
from replicated_namesrv.spark.run_figures import CATALOGUE, NOT_OF_ROUTES, ROUTES
from tests.spark import metric_oracles as oracle
from tests.spark.judged_runs import RUN_COUNT, UNIT_MS, UNIT_S, Tables, Values
from tests.spark.metric_oracles import JUDGED, Run, is_linearizable
from tests.spark.oracles import broken_guarantees, delta, gammas, missed
from tests.spark.random_runs import DEADLINE, UNIT_NS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

REPEAT = "./namesrv test tests/spark/test_metrics.py"

Entries = list[tuple[str, str, str, Any]]
"""Level, phase, side, and the measured value of one item."""


class Figure(NamedTuple):
    """A figure by its definition."""

    by: str
    """Dimensions of the figure: l, p, s for level, phase, side."""
    entries: Callable[[Run], Entries]
    together: Callable[[list[Any]], float | None]
    """None: the figure has no value."""


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def at(share: float) -> Callable[[list[Any]], float | None]:
    """A quantile, interpolated linearly between the two nearest values."""

    def quantile(values: list[Any]) -> float | None:
        place = (len(values) - 1) * share
        low, ordered = int(place), sorted(values)
        return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) if values else None

    return quantile


def greatest(values: list[Any]) -> float | None:
    return max(values, default=None)


def known(together: Callable[[list[Any]], float | None], times: float = 1.0) -> Callable[[list[Any]], float | None]:
    """``together`` of the values that are not None, multiplied by ``times``."""

    def of_known(values: list[Any]) -> float | None:
        found = together([value for value in values if value is not None])
        return None if found is None else found * times

    return of_known


def ms(together: Callable[[list[Any]], float | None]) -> Callable[[list[Any]], float | None]:
    return known(together, UNIT_MS)


def seconds(together: Callable[[list[Any]], float | None]) -> Callable[[list[Any]], float | None]:
    return known(together, UNIT_S)


def in_seconds(together: Callable[[list[Any]], float | None]) -> Callable[[list[Any]], float | None]:
    return lambda values: None if (found := together(values)) is None else found * UNIT_S


def alone(values: Sequence[Any]) -> Entries:
    return [("all", "all", "all", value) for value in values]


def of_histories(kind: str) -> dict[str, Figure]:
    """M1, M2, M4 to M8, M10 and M19 of the key-value store or of registrations."""

    @cache
    def bad(run: Run, key: str, level: str) -> set[int]:
        return oracle.anomalous(run, kind, key, level)

    @cache
    def legal(run: Run, key: str, level: str) -> bool:
        return is_linearizable(run, kind, key, level)

    def reads(measure: Callable[..., Any], together: Callable[[list[Any]], Any]) -> Callable[[Run], Entries]:
        return lambda run: list(oracle.reads_of(run, kind, measure, together))

    def keys(measure: Callable[[Run, str, str], Any]) -> Callable[[Run], Entries]:
        return lambda run: [(level, "all", "all", measure(run, key, level)) for key, level in run.keys(kind)]

    def final(is_so: Callable[..., bool]) -> Callable[[Run], Entries]:
        return lambda run: [(level, "all", "all", key if so else None) for level, key, so in oracle.final_keys(run, kind, is_so)]

    def anomalies(run: Run) -> Entries:
        ids: dict[int, tuple[str, str]] = {o.op: (o.key, o.level) for o in run.ops}
        return reads(lambda read, _: read.op in bad(run, *ids[read.op]), any)(run)

    @cache
    def scores(run: Run) -> Entries:
        return [
            (level, "all", "all", gammas(events, legal(run, key, level)))
            for key, level in run.keys(kind)
            for events in run.histories(kind, key, level)
        ]

    def positive(run: Run) -> Entries:
        return [(level, "all", "all", score) for level, _, _, found in scores(run) for score in [*found[1], *found[2]]]

    def worst_delta(run: Run, key: str, level: str) -> int | None:
        found = [delta(events, legal(run, key, level)) for events in run.histories(kind, key, level)]
        return None if None in found else max(value for value in found if value is not None)

    def share(values: list[Any]) -> float | None:
        pairs = sum(count for count, _, _ in values)
        return sum(len(found) for _, found, _ in values) / pairs if pairs else None

    def worst_gamma(values: list[Any]) -> float:
        return UNIT_MS * max((score for _, pairs, alone_ in values for score in [*pairs, *alone_]), default=0)

    def sum_known(found: list[Any]) -> Any:
        return None if None in found else sum(found)

    windows = cache(lambda run: list(oracle.windows(run, kind)))
    return {
        "linearizable_keys": Figure("l", keys(legal), mean),
        "unknown_keys": Figure("l", keys(lambda run, key, level: 0.0), mean),
        "anomalous_reads": Figure("lps", anomalies, mean),
        "window_median": Figure("lps", windows, ms(at(0.5))),
        "window_p99": Figure("lps", windows, ms(at(0.99))),
        "window_max": Figure("lps", windows, ms(greatest)),
        "fresh_reads": Figure("lps", reads(lambda read, events: oracle.behind(read, events) == 0, all), mean),
        "staleness_max": Figure("lps", reads(oracle.lag, oracle.worst_lag), ms(greatest)),
        "versions_behind_mean": Figure("lps", reads(oracle.behind, sum_known), known(mean)),
        "versions_behind_max": Figure("lps", reads(oracle.behind, sum_known), known(greatest)),
        "delta_max": Figure("l", keys(worst_delta), ms(greatest)),
        "conflict_share": Figure("l", scores, share),
        "gamma_median": Figure("l", positive, ms(at(0.5))),
        "gamma_p99": Figure("l", positive, ms(at(0.99))),
        "gamma_max": Figure("l", scores, worst_gamma),
        **{
            name: Figure("lps", reads(lambda r, e, n=place: broken_guarantees(r, e)[n], any), sum)
            for place, name in enumerate(("read_your_writes", "monotonic_reads", "monotonic_writes", "writes_follow_reads"))
        },
        "lost_writes": Figure("l", final(lambda read, events: bool(missed(read, events))), _distinct),
        "resurrected": Figure("l", final(oracle.is_resurrected), _distinct),
    }


def _distinct(values: list[Any]) -> float:
    return len({value for value in values if value is not None})


def asked(measure: Callable[[Any], Any], *kinds: str) -> Callable[[Run], Entries]:
    def entries(run: Run) -> Entries:
        ops = [op for op in run.ops if op.kind in (kinds or oracle.ASKED) and op.phase in JUDGED]
        return [(op.level, op.phase, op.side, measure(op)) for op in ops if not kinds or op.outcome == "ok"]

    return entries


def of_clients(access: str, measure: Callable[[Any], Any]) -> Callable[[Run], Entries]:
    def entries(run: Run) -> Entries:
        ops = [op for op in run.ops if op.kind in oracle.ASKED and op.phase in JUDGED and op.access == access]
        return [(op.level, op.phase, op.side, measure(op)) for op in ops]

    return entries


def gaps(access: str, measure: Callable[[int], int]) -> Callable[[Run], Entries]:
    def entries(run: Run) -> Entries:
        found = [gap for gap in oracle.gaps(run) if gap[0][1] in (*oracle.ASKED, "all") and gap[0][2] == access]
        return [(who[0], phase, side, (who, measure(gap))) for who, phase, side, gap in found]

    return entries


def worst_sum(values: list[Any]) -> float | None:
    sums: dict[Any, int] = defaultdict(int)
    for who, gap in values:
        sums[who] += gap
    return max(sums.values()) * UNIT_S if sums else None


def divergence(measure: Callable[[Run], Any]) -> Callable[[Run], Entries]:
    return lambda run: alone([measure(run)] if run.divergence else [])


BOUNDS = ((0, ""), (1, "_possible"))


def area(bound: int) -> Callable[[Run], float]:
    return lambda run: sum(value[bound] for value in run.divergence.values())


def time_apart(bound: int) -> Callable[[Run], float | None]:
    return lambda run: mean([value[bound] > 0 for value in run.divergence.values()])


def certain(run: Run) -> list[tuple[int, int]]:
    return run.stretches(lambda at: run.divergence[at][0] > 0)


def uncertain(run: Run) -> int:
    """Episodes without a moment at which the divergence is certain."""
    episodes = run.stretches(lambda at: run.divergence[at][1] > 0)
    return sum(all(run.divergence[at][0] == 0 for at in range(*span)) for span in episodes)


def converged(run: Run) -> list[tuple[int | None, int | None]]:
    """M15, if nodes had certainly differed since the fault began: the times from the repair to the end of the last certain
    difference, and to the first later moment without a possible difference. None: not as many nodes as had differed were seen to
    agree."""
    begin = run.marks.get("fault", run.marks.get("heal"))
    apart = [moment for moment, (low, _, _) in run.divergence.items() if begin is not None and low > 0 and moment >= begin]
    if not apart or run.repaired is None:
        return []
    end, nodes = max(apart) + 1, run.divergence[max(apart)][2]
    after = {moment: high for moment, (_, high, count) in run.divergence.items() if moment >= end and count >= nodes}
    agreed = min((moment for moment, high in after.items() if high == 0), default=None)
    return [
        (
            max(0, end - run.repaired) if after or end <= run.repaired else None,
            None if agreed is None else max(0, agreed - run.repaired),
        )
    ]


def sent(measure: Callable[[dict[str, Any]], Any]) -> Callable[[Run], Entries]:
    def entries(run: Run) -> Entries:
        phases = [(run.phase_of(row["time_ns"]), measure(row)) for row in run.of("send")]
        return [("all", phase, "all", value) for phase, value in phases if phase in JUDGED]

    return entries


def led(measure: Callable[[int], int]) -> Callable[[Run], Entries]:
    return lambda run: alone([measure(count) for count in oracle.leaders(run)])


def wrong(place: int) -> Callable[[Run], Entries]:
    return lambda run: alone([found[place] for found in oracle.mistakes(run)])


def harvest(run: Run) -> Entries:
    return [(o.level, o.phase, o.side, len(must & o.names.keys()) / len(must)) for o, must, _ in oracle.look_ups(run) if must]


def ghosts(run: Run) -> Entries:
    return [(o.level, o.phase, o.side, len(o.names.keys() - may) / len(o.names)) for o, _, may in oracle.look_ups(run) if o.names]


ACCESS = ("failover", "pinned", "each", "probe")
"""Kinds of clients of random runs."""

FIGURES = {
    **of_histories("get"),
    **{ROUTES + name: figure for name, figure in of_histories("route").items() if name not in NOT_OF_ROUTES},
    "equal_probes": Figure("lp", lambda run: list(oracle.probes(run)), mean),
    "harvest": Figure("lps", harvest, mean),
    "ghosts": Figure("lps", ghosts, mean),
    "yield": Figure("lps", asked(lambda op: op.outcome == "ok"), mean),
    "yield_in_time": Figure("lps", asked(lambda op: op.outcome == "ok" and op.end - op.start <= DEADLINE), mean),
    **{f"{who}_yield": Figure("lps", of_clients(who, lambda op: op.outcome == "ok"), mean) for who in ACCESS},
    **{
        f"{who}_yield_in_time": Figure(
            "lps", of_clients(who, lambda op: op.outcome == "ok" and op.end - op.start <= DEADLINE), mean
        )
        for who in ACCESS
    },
    **{
        f"{kind}_latency_{name}": Figure("lps", asked(lambda op: op.end - op.start, kind), ms(at(share)))
        for kind in ("put", "get", "route")
        for name, share in (("median", 0.5), ("p99", 0.99))
    },
    **{
        f"{who}_unavailable_longest": Figure(
            "lps", gaps(who, lambda gap: gap), lambda v: seconds(greatest)([gap for _, gap in v])
        )
        for who in ("failover", "pinned")
    },
    **{
        f"{who}_unavailable_total": Figure("lps", gaps(who, lambda gap: gap if gap > DEADLINE else 0), worst_sum)
        for who in ("failover", "pinned")
    },
    **{f"divergence_area{name}": Figure("", divergence(area(place)), seconds(sum)) for place, name in BOUNDS},
    **{f"divergence_share{name}": Figure("", divergence(time_apart(place)), sum) for place, name in BOUNDS},
    "divergence_max": Figure("", divergence(lambda run: max(value for value, _, _ in run.divergence.values())), sum),
    "episodes": Figure("", divergence(lambda run: len(certain(run))), sum),
    "episodes_uncertain": Figure("", divergence(uncertain), sum),
    "convergence": Figure("", lambda run: alone([after for after, _ in converged(run)]), seconds(greatest)),
    "agreement": Figure("", lambda run: alone([agreed for _, agreed in converged(run)]), seconds(greatest)),
    "not_converged": Figure("", lambda run: alone([after is None for after, _ in converged(run)]), mean),
    "detection_median": Figure("", lambda run: alone(oracle.detections(run)), in_seconds(oracle.survived(0.5))),
    "detection_p90": Figure("", lambda run: alone(oracle.detections(run)), in_seconds(oracle.survived(0.9))),
    "undetected": Figure("", lambda run: alone([not seen for _, seen in oracle.detections(run)]), mean),
    "mistakes": Figure("", lambda run: alone([len(list(oracle.mistakes(run)))]), sum),
    "mistakes_exposed": Figure("", lambda run: alone([sum(found[0] for found in oracle.mistakes(run))]), sum),
    "mistake_duration": Figure("", wrong(1), seconds(mean)),
    "mistake_recurrence": Figure("", wrong(2), seconds(mean)),
    "leaderless": Figure("", led(lambda count: count == 0), seconds(sum)),
    "double_leaders": Figure("", led(lambda count: max(count - 1, 0)), seconds(sum)),
    "elections": Figure("", lambda run: alone([row["term"] for row in run.of("election")]), _distinct),
    "misrouted": Figure("p", sent(lambda row: None if row["broker"] is None else not row["reachable"]), known(mean)),
    "unrouted": Figure("p", sent(lambda row: row["broker"] is None), mean),
}


def test_every_figure_has_a_definition() -> None:
    wrong = [f"{name}: in CATALOGUE of spark/run_figures.py, not in FIGURES of this file" for name in CATALOGUE.keys() - FIGURES]
    wrong += [f"{name}: in FIGURES of this file, not in CATALOGUE of spark/run_figures.py" for name in FIGURES.keys() - CATALOGUE]
    page = (Path(__file__).parents[2] / "spark" / "DESIGN.md").read_text("utf-8")
    explained = set(re.findall(r"M\d+", "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| M"))))
    wrong += [
        f"{name} is {metric.code}, which has no row in spark/DESIGN.md"
        for name, metric in CATALOGUE.items()
        if metric.code not in explained
    ]
    assert not wrong, "\n".join(wrong)


def expected(figure: Figure, run: Run) -> dict[tuple[str, ...], float]:
    """The values of a figure over all levels, phases and sides, and for each of them."""
    measured = figure.entries(run)
    places = {place for place, letter in enumerate("lps") if letter in figure.by}
    choices = [sorted({"all", *(e[place] for e in measured)}) if place in places else ["all"] for place in range(3)]
    found = {}
    for group in product(*choices):
        chosen = [e[3] for e in measured if all(want in ("all", has) for want, has in zip(group, e[:3], strict=True))]
        value = figure.together(chosen) if chosen else None
        if value is not None:
            found[group] = value
    return found


def again(run: str) -> str:
    return f"{run}; repeat: ANALYSIS_RUNS=1 ANALYSIS_FIRST={run.removeprefix('run-')} {REPEAT}"


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_are_what_they_mean(name: str, found: Values, drawn: dict[str, Run]) -> None:
    compared = 0
    modes: set[str] = set()
    for run, made in drawn.items():
        values = {group: pytest.approx(value, abs=1e-9) for group, value in expected(FIGURES[name], made).items()}
        computed = found.get((run, name), {})
        assert computed or not values, (
            f"{name} is in FIGURES of this file, but spark/run_figures.py computes no value: compute it in the function "
            f"whose docstring names {CATALOGUE[name].code if name in CATALOGUE else 'its definition'}; {again(run)}"
        )
        assert computed == values, again(run)
        compared += len(values)
        modes |= {made.level} if values else set()
    assert RUN_COUNT < 100 or (compared > RUN_COUNT // 50 and "linearizable" in modes)


def test_visibility_is_what_it_means(tables: Tables, drawn: dict[str, Run]) -> None:
    """M5: the times between which each write became visible."""
    values: dict[str, list[Any]] = defaultdict(list)
    for name, kind in (("judged", "get"), ("judged_registrations", "route")):
        for row in tables[name]:
            if row["what"] == "write" and row["reads_after"]:
                ends = (row["window_ns"] / UNIT_NS, None if row["seen_ns"] is None else row["seen_ns"] / UNIT_NS)
                values[row["run"]].append((kind, row["level"], row["op"], *ends))
    for run, made in drawn.items():
        wanted = [(kind, *found) for kind in ("get", "route") for found in oracle.visible(made, kind)]
        assert sorted(values[run], key=str) == sorted(wanted, key=str), again(run)


def test_consistability_is_what_it_means(tables: Tables, drawn: dict[str, Run]) -> None:
    """M9: how many reads were asked, answered, and answered as each class requires."""
    values: dict[str, dict[Any, Any]] = defaultdict(dict)
    for row in tables["held"]:
        where = row["about"], row["level"], row["phase"], row["side"], row["class"]
        assert where not in values[row["run"]]
        values[row["run"]][where] = row["asked"], row["answered"], row["held"]
    for run, made in drawn.items():
        wanted: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
        for about, kind in ((curves.KV, "get"), (curves.ROUTES, "route")):
            for level, phase, side, held in oracle.classes(made, kind, round(1 / UNIT_S)):
                for name, one, other in product(CLASSES, {phase, "all"}, {side, "all"}):
                    counts = wanted[about, level, one, other, name]
                    counts[:] = counts[0] + 1, counts[1] + held["answered"], counts[2] + held[name]
        assert values[run] == {where: tuple(counts) for where, counts in wanted.items()}, again(run)


def test_gaps_are_told_by_kind_and_node(tables: Tables, drawn: dict[str, Run]) -> None:
    """M17."""
    values: dict[str, list[Any]] = defaultdict(list)
    for row in tables["gaps"]:
        who = row["level"], row["kind"], row["access"], row["entity"]
        values[row["run"]].append((who, row["phase"], row["side"], row["gap_ns"] // UNIT_NS))
    for run, made in drawn.items():
        assert sorted(values[run]) == sorted(oracle.gaps(made)), again(run)


def test_classes_of_consistency_imply_the_weaker_ones(tables: Tables) -> None:
    counts: dict[Any, dict[str, int]] = defaultdict(dict)
    for row in tables["held"]:
        counts[row["run"], row["about"], row["level"], row["phase"], row["side"]][row["class"]] = row["held"]
    for held in counts.values():
        for stronger, weaker in (
            *pairwise(["linearizable", "regular", "one version", "eventual", "answered"]),
            ("regular", "one second"),
            ("one second", "eventual"),
            ("session", "eventual"),
        ):
            assert held[stronger] <= held[weaker]
