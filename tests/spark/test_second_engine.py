"""Another engine finds the same: every figure of a 1,000,000-row trace of each mode, its states, episodes and operations."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark.analysis import Analysis
from replicated_namesrv.spark.generate import generate
from tests.spark.second_engine import Figure, SecondEngine
from tests.support.places import assert_same_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = 1_000_000


def test_all_figures_of_a_million_rows_by_a_second_engine(spark: SparkSession, tmp_path: Path) -> None:
    folders = generate(ROWS, 5, 11, tmp_path / "traces", print)
    results = Analysis(spark, str(tmp_path / "out"), print).run([str(tmp_path / "traces")])
    tables = {name: spark.read.parquet(f"{tmp_path}/out/tables/{name}") for name in ("states", "episodes", "operations")}
    engine = SecondEngine(folders)
    try:
        lines = dict(engine.database.execute("SELECT run, count(*) FROM lines GROUP BY run").fetchall())
        assert {entry.run: (entry.records, entry.corrupt, entry.torn) for entry in results.ingested} == {
            run: (count, 0, 0) for run, count in lines.items()
        }
        theirs = engine.figures()
        ours: dict[Figure, tuple[float, int]] = {
            (row["run"], row["level"], row["phase"], row["side"], row["metric"]): (row["value"], row["count"])
            for row in results.per_run
        }
        names, others = ({figure[-1] for figure in figures} for figures in (ours, theirs))
        queries = "the results of _FIGURES in tests/spark/second_engine.py"
        assert_same_names(names, "the results of spark/run_figures.py", others, queries)
        assert_same_names(ours, "the results of spark/run_figures.py", theirs, queries)
        assert len(ours) > 500
        for figure, (value, count) in theirs.items():
            assert ours[figure][0] == pytest.approx(value, rel=1e-12, abs=1e-12), figure
            assert ours[figure][1] == count, figure
        # Full answers are as long as the trace. So only the times of their changes are compared here. Figures compare members.
        spans = [tuple(row) for row in tables["states"].select("run", "key", "node", "from_ns", "until_ns").collect()]
        assert sorted(spans) == engine.rows("states", "run", "key", "node", "from_ns", "until_ns")
        columns = ("run", "key", "start_ns", "end_ns", "certain", "area_s", "divergence_max")
        episodes = sorted(tuple(row) for row in tables["episodes"].select(*columns).collect())
        expected = engine.rows("episodes", *columns)
        assert [row[:5] for row in episodes] == [row[:5] for row in expected]
        for mine, other in zip(episodes, expected, strict=True):
            assert mine[5:] == pytest.approx(other[5:], rel=1e-12)
        of_operation = ("run", "op", "kind", "level", "phase", "side", "start_ns", "end_ns", "outcome", "value")
        operations = [tuple(row) for row in tables["operations"].select(*of_operation).collect()]
        assert sorted(operations) == engine.rows("operations", *of_operation)
    finally:
        engine.close()
    known = {folder.name: json.loads((folder / "truth.json").read_text()) for folder in folders}
    for run, truth in known.items():
        assert theirs[run, "all", "all", "all", "episodes"][0] == truth["episodes"]
        assert theirs[run, "all", "all", "all", "episodes_uncertain"][0] == truth["episodes_uncertain"]
        assert theirs[run, "all", "all", "all", "lost_writes"][0] == truth["lost_writes"]
