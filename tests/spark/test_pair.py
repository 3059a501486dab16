"""The two runs that are shown in detail: their choice and their cells, from runs written by hand."""

import json
from typing import Any

import pytest

from replicated_namesrv.spark import pair

S = 1_000_000_000


def members(*brokers: str) -> str:
    return json.dumps([{"name": name, "version": "1"} for name in brokers])


RUNS_OF = {"ap1": 1, "cp1": 1, "ap2": 2, "cp2": 2, "cp3": 3}
"""The seed of each run. With seed 1 the AP nodes differ the most, and CP answers everything. With seed 2 both modes have costs.
Seed 3 was run in CP only."""
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


def test_ap_and_cp_go_before_foreign_name_servers() -> None:
    java = {**TOLD[0], "run": "java1", "mode": "java:5.5.0"}
    assert pair.choose([], [java, *TOLD[:2]]) == ["ap1", "cp1"]
    assert pair.choose([], [java, TOLD[0]]) == ["ap1", "java1"]


def test_runs_are_reduced_to_cells() -> None:
    marks = [("settle", 0, 2), ("steady", 2, 5), ("fault", 5, 8), ("heal", 8, 10), ("final", 10, 11)]
    phases = [{"phase": phase, "start_ns": start * S, "end_ns": end * S} for phase, start, end in marks]
    frames = {run["run"]: pair.frame(run, phases) for run in TOLD}
    assert frames["ap2"] == ("ap2", 5 * S, 2 * S, 10 * S, S // 2)
    assert pair.frame(TOLD[0], phases[:1]) is None
    told = [  # run, node, from, until (s), members
        ("ap2", "n1", 0.0, 11.0, members("a", "b")),
        ("ap2", "n2", 0.0, 5.9, members("b", "a")),  # the same, in another order
        ("ap2", "n2", 5.9, 6.1, members("a")),  # too short to be the main answer of a cell
        ("ap2", "n2", 6.1, 8.6, members("b")),
        ("cp2", "n1", 2.0, 5.2, members("a")),  # less than half of the last cell is known
    ]
    found = []
    for run in ("ap2", "cp2"):
        shown = frames[run]
        assert shown is not None
        states = [
            {"key": "brokers", "node": node, "from_ns": int(start * S), "last_asked_ns": int(end * S), "members": said}
            for own, node, start, end, said in told
            if own == run
        ]
        found += pair.standings(states, shown)
    assert all(row["width_s"] == 0.5 for row in found)
    cells = {(row["run"], row["node"], row["at_s"]): row["answer"] for row in found}
    both = cells["ap2", "n1", -3.0]
    assert {at for run, node, at in cells if node == "n1" and run == "ap2"} == {cell / 2 for cell in range(-6, 10)}
    assert {cells["ap2", "n1", at] for at in (-3.0, 0.0, 4.5)} == {both}
    second = {at: answer for (run, node, at), answer in cells.items() if (run, node) == ("ap2", "n2")}
    assert {at for at, answer in second.items() if answer == both} == {c / 2 for c in range(-6, 2)}
    assert {at for at, answer in second.items() if answer != both} == {c / 2 for c in range(2, 7)}
    assert {at for run, _, at in cells if run == "cp2"} == {cell / 2 for cell in range(-6, 0)}

    asked = [(3.0, 0.001, "ok"), (3.0, 0.001, "ok"), (6.0, 2.0, "fail"), (7.0, None, "indeterminate"), (10.5, 0.001, "ok")]
    operations = [
        {"kind": "get", "start_ns": int(at * S), "outcome": outcome, "end_ns": None if took is None else int((at + took) * S)}
        for at, took, outcome in asked
    ]
    shown = frames["ap2"]
    assert shown is not None
    seen = sorted(pair.latencies(operations, shown), key=lambda row: float(row["at_s"]))
    assert [(row["outcome"], row["operations"]) for row in seen] == [("ok", 2), ("fail", 1), ("indeterminate", 1)]
    assert [row["at_s"] for row in seen] == pytest.approx([-2.0, 1.0, 2.0], abs=0.02)
    assert [row["latency_ms"] for row in seen[:2]] == pytest.approx([1.0, 2000.0], rel=0.1)
    assert seen[2]["latency_ms"] is None
