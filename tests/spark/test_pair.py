"""The two runs that are shown in detail: their choice and their cells, from runs written by hand."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark import pair
from replicated_namesrv.spark.schemas import OPERATIONS, PHASES, RUNS, STATES

S = 1_000_000_000


def members(*brokers: str) -> str:
    return json.dumps([{"name": name, "version": "1"} for name in brokers])


RUNS_OF = {"ap1": 1, "cp1": 1, "ap2": 2, "cp2": 2, "cp3": 3}
"""Seeds. Of the first AP differs the most and CP answers all; of the second both pay; of the third only CP was run."""
TOLD = [
    {
        "run": run,
        "mode": run[:2],
        "scenario": "cut",
        "seed": seed,
        "nodes": 3,
        "observe_interval_ms": 250,
        "clock_uncertainty_ns": 0,
    }
    for run, seed in RUNS_OF.items()
]


def figure(run: str, value: float) -> dict[str, Any]:
    metric = "divergence_area" if run.startswith("ap") else "yield_in_time"
    return {"run": run, "mode": run[:2], "phase": "all", "side": "all", "level": "all", "metric": metric, "value": value}


def test_the_pair_is_the_one_in_which_both_pay() -> None:
    paid = [figure(run, value) for run, value in (("ap1", 9.0), ("ap2", 2.0), ("cp1", 1.0), ("cp2", 0.8), ("cp3", 0.1))]
    assert pair.choose(paid, TOLD) == ["ap2", "cp2"]
    assert pair.choose(paid, [run for run in TOLD if run["run"] != "cp2"]) == ["ap1", "cp1"], "two runs rather than one"
    assert pair.choose([], TOLD) == ["ap1", "cp1"]
    assert pair.choose(paid, TOLD[-1:]) == ["cp3"]
    assert pair.choose([], []) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runs_are_reduced_to_cells(spark: SparkSession) -> None:
    marks = [("settle", 0, 2), ("steady", 2, 5), ("fault", 5, 8), ("heal", 8, 10), ("final", 10, 11)]
    phases = [
        {"run": run, "phase": phase, "start_ns": start * S, "end_ns": end * S} for run in RUNS_OF for phase, start, end in marks
    ]
    chosen = pair.spans(spark.createDataFrame(phases, PHASES), spark.createDataFrame(TOLD, RUNS), ["ap2", "cp2"]).cache()
    assert sorted(map(tuple, chosen.collect())) == [(run, 5 * S, 2 * S, 10 * S, S // 2) for run in ("ap2", "cp2")]

    told = [  # run, node, from, until (s), members
        ("ap2", "n1", 0.0, 11.0, members("a", "b")),
        ("ap2", "n2", 0.0, 5.9, members("b", "a")),  # the same, in another order
        ("ap2", "n2", 5.9, 6.1, members("a")),  # is never the most of a cell
        ("ap2", "n2", 6.1, 8.6, members("b")),
        ("cp2", "n1", 2.0, 5.2, members("a")),  # then there is no answer, and of its last cell less than a half is known
        ("cp1", "n1", 0.0, 11.0, members("a")),
    ]
    states = [{"run": run, "key": "brokers", "node": node, "from_ns": int(start * S), "until_ns": int(end * S), "members": said}
              for run, node, start, end, said in told]  # fmt: skip  # items grouped by line
    found = pair.standings(spark.createDataFrame(states, STATES), chosen).collect()
    assert all(row.width_s == 0.5 for row in found)
    cells = {(row.run, row.node, row.at_s): row.answer for row in found}
    both = cells["ap2", "n1", -3.0]
    assert {at for run, node, at in cells if node == "n1" and run == "ap2"} == {cell / 2 for cell in range(-6, 10)}
    assert {cells["ap2", "n1", at] for at in (-3.0, 0.0, 4.5)} == {both}
    assert {at for (run, node, at), answer in cells.items() if node == "n2" and answer == both} == {c / 2 for c in range(-6, 2)}
    assert {at for (run, node, at), answer in cells.items() if node == "n2" and answer != both} == {c / 2 for c in range(2, 7)}
    assert {at for run, _, at in cells if run == "cp2"} == {cell / 2 for cell in range(-6, 0)}

    asked = [("ap2", 3.0, 0.001, "ok"), ("ap2", 3.0, 0.001, "ok"), ("ap2", 6.0, 2.0, "fail"), ("ap2", 7.0, None, "indeterminate"),
             ("ap2", 10.5, 0.001, "ok"), ("cp1", 3.0, 0.001, "ok")]  # fmt: skip  # items grouped by line
    operations = [
        {
            "run": run,
            "kind": "get",
            "start_ns": int(at * S),
            "outcome": outcome,
            "end_ns": None if took is None else int((at + took) * S),
        }
        for run, at, took, outcome in asked
    ]
    seen = sorted(pair.latencies(spark.createDataFrame(operations, OPERATIONS), chosen).collect(), key=lambda row: row.at_s)
    assert [(row.run, row.outcome, row.operations) for row in seen] == [
        ("ap2", "ok", 2), ("ap2", "fail", 1), ("ap2", "indeterminate", 1),
    ]  # fmt: skip  # items grouped by line
    assert [row.at_s for row in seen] == pytest.approx([-2.0, 1.0, 2.0], abs=0.02)
    assert [row.latency_ms for row in seen[:2]] == pytest.approx([1.0, 2000.0], rel=0.1)
    assert seen[2].latency_ms is None
