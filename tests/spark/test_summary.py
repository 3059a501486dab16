"""Many runs put together: intervals, summaries, pairs, consistability and the uncertainty of clocks."""

import random
from statistics import mean

import pytest

from replicated_namesrv.spark.consistability import CLASSES, consistability
from replicated_namesrv.spark.run_figures import CATALOGUE
from replicated_namesrv.spark.summary import PRIMARY, holm, interval, paired, sign_test, summary, t_visibility
from tests.support.places import assert_listed


def figure(run: str, mode: str, seed: int, value: float) -> dict[str, object]:
    same = {
        "scenario": "s",
        "nodes": 3,
        "fault_s": 1.0,
        "level": "all",
        "phase": "all",
        "side": "all",
        "metric": "harvest",
        "count": 1,
        "clock_uncertainty_ms": None,
    }
    return {"run": run, "mode": mode, "seed": seed, "value": value, **same}


def test_interval_holds_the_mean_and_repeats() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    low, high = interval(values)
    assert low is not None
    assert high is not None
    assert 1.0 <= low < 4.0 < high <= 10.0
    assert interval(values) == (low, high)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_than_five_replicates_have_no_interval(count: int) -> None:
    assert interval([float(value) for value in range(count)]) == (None, None)
    scenarios = [f"s{number % count}" for number in range(20)]
    if count > 1:
        assert interval([float(value) for value in range(20)], scenarios) == (None, None), "scenarios are the replicates"


def test_scenarios_are_the_clusters() -> None:
    """Equal runs of a scenario contain no more information than one of them."""
    scenarios = [f"s{number}" for number in range(8)]
    values = [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 1.0, 3.0]
    assert interval(values * 10, scenarios * 10) == pytest.approx(interval(values, scenarios))
    low, high = interval(values * 10)
    wide = interval(values * 10, scenarios * 10)
    assert low is not None
    assert high is not None
    assert wide[0] is not None
    assert wide[1] is not None
    assert wide[1] - wide[0] > 2 * (high - low)


def test_none_and_all_of_a_share_have_the_bound_of_the_rule_of_three() -> None:
    low, high = interval([0.0] * 60, unit="share")
    assert low == 0
    assert high == pytest.approx(3 / 60, rel=0.05)
    low, high = interval([1.0] * 60, unit="share")
    assert high == 1
    assert low == pytest.approx(1 - 3 / 60, rel=0.05)
    assert interval([0.0] * 60, unit="s") == (None, None), "nothing bounds how long the next one may take"


@pytest.mark.parametrize(("count", "each"), [(5, 1), (10, 1), (40, 4)])
def test_intervals_hold_the_mean_as_often_as_they_say(count: int, each: int) -> None:
    """By simulation: 95 % +- 2, for single runs and for scenarios of several runs that resemble each other."""
    chooser, held, drawn = random.Random(count), 0, 1_000
    for _ in range(drawn):
        effects = [chooser.gauss(0, 1) for _ in range(count)]
        values = [effect + chooser.gauss(0, 0.5) * (each > 1) for effect in effects for _ in range(each)]
        low, high = interval(values, [place // each for place in range(len(values))])
        held += low is not None and high is not None and low <= 0 <= high
    assert 0.93 - 0.015 <= held / drawn <= 0.97 + 0.015, "the last term is two errors of the simulation"


def test_intervals_of_values_that_are_often_zero_hold_the_mean_less_often() -> None:
    """The page of a study says so: six scenarios, in half of which nothing differs."""
    chooser, drawn = random.Random(6), 500
    held = {"skewed": 0, "even": 0}
    for name, middle in (("skewed", 0.5), ("even", 0.25)):
        for _ in range(drawn):
            values = [chooser.expovariate(1) if name == "skewed" else chooser.random() for _ in range(6)]
            low, high = interval([value * (chooser.random() < 0.5) for value in values])
            held[name] += low is not None and high is not None and low <= middle <= high
    assert 0.80 < held["skewed"] / drawn < 0.88
    assert 0.86 < held["even"] / drawn < 0.93


def test_a_sign_test_counts_patterns_of_signs() -> None:
    assert sign_test([1.0] * 4) is None
    assert sign_test([1.0] * 5) == 2 / 32
    assert sign_test([1.0, -1.0] * 5) == 1
    assert sign_test([1.0] * 20, [f"s{number // 4}" for number in range(20)]) == 2 / 32, "of the scenarios, not of the runs"
    found = sign_test([1.0] * 30)
    assert found is not None
    assert found < 0.001


def test_more_figures_make_chance_more_probable() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_five_figures_are_primary_and_the_others_are_corrected() -> None:
    assert len(set(PRIMARY)) == 5
    assert_listed(PRIMARY, "PRIMARY of spark/summary.py", CATALOGUE, "CATALOGUE of spark/run_figures.py")
    figures = []
    for metric, sizes in (("harvest", (1, 2, 3, 4, 5, 6)), ("ghosts", (1, 2, 3, 4, 5, 6)), ("unrouted", (1, -2, 3, -4, 5, -6))):
        for seed, size in enumerate(sizes):
            figures += [{**figure(f"{mode}{seed}", mode, seed, side), "metric": metric}
                        for mode, side in (("ap", size / 10), ("cp", 0.0))]  # fmt: skip  # items grouped by line
    rows = {row["metric"]: row for row in paired(figures, {}) if row["scenario"] == "all"}
    assert rows["harvest"]["is_primary"]
    assert rows["harvest"]["chance_adjusted"] == rows["harvest"]["chance"] == 2 / 64
    assert not rows["ghosts"]["is_primary"]
    assert rows["ghosts"]["chance_adjusted"] == 4 / 64, "two figures are compared"
    assert rows["unrouted"]["chance"] > 0.5
    one = next(row for row in summary(figures) if (row["mode"], row["metric"]) == ("ap", "harvest"))
    assert one["points"] is None
    few = summary(figures[:4])[0]
    assert (few["low"], few["high"], few["points"]) == (None, None, "0.1 0.2")
    assert few["mean"] == pytest.approx(mean([0.1, 0.2]))


def test_summary_and_pairs() -> None:
    figures = [figure("a1", "ap", 1, 0.5), figure("a2", "ap", 2, 0.7), figure("c1", "cp", 1, 1.0), figure("c3", "cp", 3, 0.0)]
    rows = {(row["mode"], row["scenario"]): row for row in summary(figures)}
    assert rows["ap", "all"]["mean"] == 0.6
    assert rows["ap", "s"]["runs"] == 2
    (one, two) = paired(figures, {})
    assert one["pairs"] == two["pairs"] == 1, "only seed 1 was run in both modes"
    assert (one["ap"], one["cp"], one["difference"]) == (0.5, 1.0, -0.5)


def test_consistability_is_a_mean_over_runs_by_fault() -> None:
    """The share of all reads, the share of answered reads, and the number of runs in which every answer was in the class."""
    runs = [
        {"run": run, "mode": "cp", "scenario": scenario, "clock_uncertainty_ns": 500_000}
        for run, scenario in (("a", "s"), ("b", "s"), ("c", "other"))
    ]
    same = {"about": "x", "level": "lease", "phase": "fault", "side": "all", "class": "regular"}
    held = [
        {**same, "run": "a", "asked": 10, "answered": 8, "held": 8},
        {**same, "run": "b", "asked": 10, "answered": 5, "held": 4},
        {**same, "run": "c", "asked": 4, "answered": 0, "held": 0},
    ]
    rows = {row["scenario"]: row for row in consistability(held, runs)}
    assert rows["s"]["probability"] == pytest.approx(0.6)
    assert rows["s"]["low"] is rows["s"]["high"] is None, "two runs are too few"
    assert rows["s"]["of_answered"] == pytest.approx(0.9)
    assert rows["s"]["whole_runs"] == 0.5
    assert (rows["s"]["runs"], rows["s"]["asked"], rows["s"]["clock_uncertainty_ms"]) == (2, 20, 1.0)
    assert rows["other"]["of_answered"] is None, "nothing was answered"
    assert rows["all"]["probability"] == pytest.approx(0.4)
    assert rows["all"]["class"] in CLASSES


def test_the_uncertainty_of_clocks_stands_in_summaries() -> None:
    figures = [
        {**figure("a1", "ap", 1, 0.5), "metric": "fresh_reads", "clock_uncertainty_ms": 2.0},
        {**figure("c1", "cp", 1, 0.5), "metric": "fresh_reads", "clock_uncertainty_ms": 6.0},
    ]
    assert {row["mode"]: row["clock_uncertainty_ms"] for row in summary(figures)} == {"ap": 2.0, "cp": 6.0}
    assert {row["clock_uncertainty_ms"] for row in paired(figures, {})} == {6.0}
    same = {"about": "x", "level": "local", "first": 0, "after": 1, "writes": 10}
    runs = [
        {"run": run, "mode": "ap", "scenario": "s", "clock_uncertainty_ns": uncertain}
        for run, uncertain in (("a", 1_000_000), ("b", 3_000_000), ("other", 9_000_000))
    ]
    rows = t_visibility([{**same, "run": run} for run in "ab"], runs)
    assert {row["clock_uncertainty_ms"] for row in rows} == {6.0}
