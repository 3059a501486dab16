"""Random runs and those written by hand, analysed together, because the cost of a run is mostly that of any job."""

import os
from collections import defaultdict

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from replicated_namesrv.spark.analysis import AnalysisTables, figures_of_runs
from replicated_namesrv.spark.ingest import Traces
from replicated_namesrv.spark.schemas import CORRUPT, RECORD_COLUMNS, RUNS
from tests.spark.metric_oracles import Run
from tests.spark.random_runs import DEADLINE, INTERVAL, UNIT_NS, own_level, random_run
from tests.spark.told_runs import TOLD, told_run

RUN_COUNT, FIRST = int(os.environ.get("ANALYSIS_RUNS", "600")), int(os.environ.get("ANALYSIS_FIRST", "0"))
"""How many random runs, and the seed of the first."""
UNIT_MS, UNIT_S = UNIT_NS / 1e6, UNIT_NS / 1e9
CLOCK_UNCERTAINTY_NS = 3_000_000
_STORED = StructType([*RECORD_COLUMNS.fields, StructField("mode", StringType()), StructField(CORRUPT, StringType())])
_TIMES = ("time_ns", "asked_ns")

Values = dict[tuple[str, str], dict[tuple[str, str, str], float]]
"""Of a run and a figure: the value by level, phase and side."""


def random_runs() -> dict[str, Run]:
    return {f"run-{n}": Run(random_run(n), own_level(n), INTERVAL) for n in range(FIRST, FIRST + RUN_COUNT)}


def judge(spark: SparkSession, drawn: dict[str, Run]) -> AnalysisTables:
    """All tables of these runs and of those written by hand."""
    told = {name: Run(told_run(name), "local", INTERVAL) for name in TOLD}
    rows, about = [], []
    for run, made in (told | drawn).items():
        mode = "ap" if made.level == "local" else "cp"
        for row in made.rows:
            rows.append({"run": run, "mode": mode, **row, **{name: row[name] * UNIT_NS for name in _TIMES if name in row}})
        about.append(
            {
                "run": run, "mode": mode, "scenario": "s", "suite": "", "seed": 1, "nodes": 3, "read_consistency": made.level,
                "judged_as": mode, "observe_interval_ms": int(INTERVAL * UNIT_MS), "deadline_ms": int(DEADLINE * UNIT_MS),
                "fault_s": 0.0, "clock_uncertainty_ns": CLOCK_UNCERTAINTY_NS if run in told else 0,
            }
        )  # fmt: skip  # items grouped by line
    table = pa.Table.from_pylist(rows, schema=to_arrow_schema(_STORED))
    records = spark.createDataFrame(table).repartition(2 + RUN_COUNT // 1000).cache()
    at_ns = F.when(F.col("answered"), F.col("time_ns")).otherwise(F.col("asked_ns"))
    each = at_ns.alias("from_ns"), at_ns.alias("last_ns"), F.when(F.col("answered"), F.col("members")).alias("members")
    looks = records.where("record = 'observe'").select("run", "mode", "key", "node", *each)
    runs = spark.createDataFrame(about, RUNS)
    traces = Traces(records, records, looks)
    return figures_of_runs(traces, runs, lambda name, table: table.localCheckpoint(), lambda name: None).tables


def figures(tables: AnalysisTables) -> Values:
    """``per_run``, each figure once."""
    values: Values = defaultdict(dict)
    for figure in tables.per_run.collect():
        where = figure["level"], figure["phase"], figure["side"]
        assert where not in values[figure["run"], figure["metric"]], f"{figure} twice"
        values[figure["run"], figure["metric"]][where] = figure["value"]
    return values
