"""Many runs put together: intervals, summaries, pairs, consistability and the uncertainty of clocks."""

import pytest

from replicated_namesrv.spark.consistability import CLASSES, consistability
from replicated_namesrv.spark.summary import interval, paired, summary, t_visibility


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
    values = [1.0, 2.0, 3.0, 10.0]
    low, high = interval(values)
    assert 1.0 <= low < 4.0 < high <= 10.0
    assert interval(values) == (low, high)
    assert interval([5.0]) == (5.0, 5.0)


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
    assert rows["s"]["low"] == 0.4
    assert rows["s"]["high"] == 0.8
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
    same = {"mode": "ap", "about": "x", "level": "local", "age_ms": 1.0, "compared": 10, "seen": 10}
    rows = t_visibility([{**same, "run": run} for run in "ab"], {"a": 1_000_000, "b": 3_000_000, "other": 9_000_000})
    assert {row["clock_uncertainty_ms"] for row in rows} == {6.0}
