"""Random runs and those written by hand, judged."""

import os
from collections import defaultdict
from typing import Any

import pyarrow as pa

from replicated_namesrv.spark.lines import EVENTS, OBSERVATIONS
from replicated_namesrv.spark.looks import Looks
from replicated_namesrv.spark.one_run import judged_run
from replicated_namesrv.spark.run_records import RunRecords
from tests.spark.metric_oracles import CLIENTS, Run
from tests.spark.random_runs import DEADLINE, INTERVAL, UNIT_NS, own_level, random_run
from tests.spark.told_runs import TOLD, told_run

RUN_COUNT, FIRST = int(os.environ.get("ANALYSIS_RUNS", "600")), int(os.environ.get("ANALYSIS_FIRST", "0"))
"""How many random runs, and the seed of the first."""
UNIT_MS, UNIT_S = UNIT_NS / 1e6, UNIT_NS / 1e9
CLOCK_UNCERTAINTY_NS = 3_000_000
_TIMES = ("time_ns", "asked_ns")

Tables = dict[str, list[dict[str, Any]]]
"""Rows of all runs by the name of their table."""
Values = dict[tuple[str, str], dict[tuple[str, str, str], float]]
"""For each run and figure: the value by level, phase and side."""


def random_runs() -> dict[str, Run]:
    return {f"run-{n}": Run(random_run(n), own_level(n), INTERVAL) for n in range(FIRST, FIRST + RUN_COUNT)}


def judge(drawn: dict[str, Run]) -> Tables:
    """All tables of these runs and of those written by hand."""
    told = {name: Run(told_run(name), "local", INTERVAL) for name in TOLD}
    found: Tables = defaultdict(list)
    for run, made in (told | drawn).items():
        mode = "ap" if made.level == "local" else "cp"
        rows = [{**row, **{name: row[name] * UNIT_NS for name in _TIMES if name in row}} for row in made.rows]
        events = [row for row in rows if row["record"] != "observe"]
        looks = Looks()
        looks.add(pa.Table.from_pylist([row for row in rows if row["record"] == "observe"], schema=OBSERVATIONS))
        about = {
            "run": run, "mode": mode, "scenario": "s", "suite": "", "seed": 1, "nodes": 3, "read_consistency": made.level,
            "judged_as": mode, "observe_interval_ms": int(INTERVAL * UNIT_MS), "deadline_ms": int(DEADLINE * UNIT_MS),
            "fault_s": 0.0, "clock_uncertainty_ns": CLOCK_UNCERTAINTY_NS if run in told else 0,
        }  # fmt: skip  # items grouped by line
        tables = judged_run(RunRecords(about, CLIENTS, pa.Table.from_pylist(events, schema=EVENTS), looks.table()))
        for name, table in tables.items():
            found[name] += table.to_pylist()
    return found


def figures(tables: Tables) -> Values:
    """``per_run``, each figure once."""
    values: Values = defaultdict(dict)
    for figure in tables["per_run"]:
        where = figure["level"], figure["phase"], figure["side"]
        assert where not in values[figure["run"], figure["metric"]], f"{figure} twice"
        values[figure["run"], figure["metric"]][where] = figure["value"]
    return values
