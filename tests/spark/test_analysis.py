"""The analysis on a real Spark, from files to the report: traces whose figures are known, and input that cannot be right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from replicated_namesrv.spark.analysis import KEPT, Analysis
from replicated_namesrv.spark.generate import generate
from replicated_namesrv.spark.ingest import ingest
from replicated_namesrv.spark.job import analyse
from replicated_namesrv.spark.report import write_report
from replicated_namesrv.spark.sources import InputError, find_runs
from replicated_namesrv.spark.storage import SparkStorage
from tests.spark import dictionary
from tests.support.json_outputs import check_output
from tests.support.places import assert_same_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces")
    generate(20_000, 3, 7, out, print)
    return out


def copy(run: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for name in ("manifest.json", "trace.jsonl"):
        (to / name).write_bytes((run / name).read_bytes())
    return to


def rename(run: Path, name: str) -> None:
    """Another name for a copied run."""
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "run": name}))
    trace = (run / "trace.jsonl").read_text()
    (run / "trace.jsonl").write_text(trace.replace(manifest["run"], name, 1))


def test_figures_of_generated_traces_are_those_they_were_made_with(traces: Path, spark: SparkSession, tmp_path: Path) -> None:
    out, more = tmp_path / "out", tmp_path / "more"
    for rows, nodes, seed in ((10_000, 5, 1), (10_001, 3, 2), (13_579, 5, 3)):
        generate(rows, nodes, seed, more, print)
    results = Analysis(spark, str(out), print).run([str(traces), str(more)])
    whole = {
        (row["run"], row["metric"]): row["value"]
        for row in results.per_run
        if row["level"] == row["phase"] == row["side"] == "all"
    }
    for folder in (*traces.iterdir(), *more.iterdir()):
        known, run = json.loads((folder / "truth.json").read_text()), folder.name
        assert whole[run, "episodes"] == known["episodes"]
        assert whole[run, "episodes_uncertain"] == known["episodes_uncertain"]
        for name, length_ns in (("divergence_area", known["divergent_ns"]), ("divergence_area_possible", known["possible_ns"])):
            assert whole[run, name] == pytest.approx(length_ns / 1e9, abs=1e-9), (
                "two versions share no member, so divergence is 0 or 1"
            )
        judged = [
            row for row in results.per_run if row["run"] == run and row["metric"] == "fresh_reads" and row["level"] == "all"
        ]
        reads = next(row for row in judged if row["phase"] == row["side"] == "all")
        assert round((1 - reads["value"]) * reads["count"]) == known["stale_reads_judged"]
        assert whole[run, "lost_writes"] == known["lost_writes"]
    modes = {row["run"]: row["mode"] for row in results.runs}
    assert len(modes) == 8
    assert all(whole[run, "linearizable_keys"] == (mode == "cp") for run, mode in modes.items())
    tables = ("observations", "events", "looks", *KEPT)
    assert_same_names(dictionary.described(), "docs/tables.md", tables, "the tables of an analysis (KEPT)")
    for name in tables:
        part = next((out / "tables" / name).rglob("*.parquet"))
        assert not dictionary.missing(name, pyarrow.parquet.read_schema(part).names), (
            f"columns of {name} that docs/tables.md lacks"
        )
    storage = SparkStorage(spark)
    said: list[str] = []
    _, again = ingest(spark, storage, find_runs(storage, [str(traces), str(more)]), str(out), said.append)
    assert said == ["8 runs were ingested before"]
    assert again == results.ingested


def test_report_stands_on_its_own(traces: Path, tmp_path: Path) -> None:
    """The analysis runs in its own process, as a user starts it."""
    command = [sys.executable, "-m", "replicated_namesrv", "analyze", str(traces), "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    check_output(("analyze", "--json"), done.stdout)
    assert json.loads(done.stdout)["summary"]
    page = (tmp_path / "report" / "index.html").read_text()
    assert not re.search(r"""src=|<link|@import|url\((?!#)""", page), "nothing is loaded from elsewhere"
    links = set(re.findall(r"""href=['"](?!#|data:)([^'"]+)""", page))
    # These traces were generated, so there is no timeline beside them.
    missing = [link for link in links if not link.endswith("timeline.html") and not (tmp_path / "report" / link).exists()]
    assert links
    assert not missing, "links are relative and lead somewhere"
    assert page.count("<svg") >= 4
    assert (tmp_path / "report" / "tables" / "summary.csv").read_text().startswith("mode,scenario,")
    for csv in (tmp_path / "report" / "tables").glob("*.csv"):
        assert len(csv.read_text().splitlines()) == pyarrow.parquet.read_table(csv.with_suffix(".parquet")).num_rows + 1
    assert (tmp_path / "report" / "figures" / "divergence.png").read_bytes().startswith(b"\x89PNG")


def test_a_foreign_mode_is_a_column_of_its_own(traces: Path, spark: SparkSession, tmp_path: Path) -> None:
    """A generated run of AP and the same as one of a foreign name server, whose observations have no revision."""
    ap = next(run for run in traces.iterdir() if "-ap-" in run.name)
    other = copy(ap, tmp_path / "runs" / "java")
    rename(other, "java")
    manifest = json.loads((other / "manifest.json").read_text())
    changed = {"mode": "java:5.5.0", "read_consistency": None, "judged_as": "ap"}
    (other / "manifest.json").write_text(json.dumps({**manifest, **changed}))
    trace = (other / "trace.jsonl").read_text()
    (other / "trace.jsonl").write_text(re.sub(r'"revision":\d+', '"revision":null', trace))
    out = tmp_path / "out"
    results = Analysis(spark, str(out), print).run([str(ap), str(other)])
    means = {
        mode: {
            row["metric"]: row["mean"]
            for row in results.summary
            if row["mode"] == mode and row["scenario"] == row["level"] == row["phase"] == row["side"] == "all"
        }
        for mode in ("ap", "java:5.5.0")
    }
    assert means["java:5.5.0"] == means["ap"]
    assert means["ap"]["episodes"] > 0
    assert not results.paired, "only AP and CP are compared in pairs"
    write_report(SparkStorage(spark), results, str(out))
    page = (out / "report" / "index.html").read_text()
    assert "AP, CP and java:5.5.0 over all runs" in page
    assert "the name server of Apache RocketMQ 5.5.0" in page


def spoil(run: Path, how: str) -> None:
    trace = run / "trace.jsonl"
    lines = trace.read_text().splitlines(keepends=True)
    match how:
        case "cut short":
            trace.write_text("".join(lines[: len(lines) // 2]))
        case "clock went back":
            lines[200] = re.sub(r'"time_ns":\d+', '"time_ns":5', lines[200])
            trace.write_text("".join(lines))


@pytest.mark.parametrize("how", ["cut short", "clock went back"])
def test_bad_runs_are_refused_by_name(traces: Path, spark: SparkSession, tmp_path: Path, how: str) -> None:
    """Errors that are found only by reading all lines. The others are in test_sources."""
    run = copy(next(traces.iterdir()), tmp_path / "runs" / "one")
    spoil(run, how)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=how) as refused:
        Analysis(spark, str(out), print).run([str(tmp_path / "runs")])
    assert str(run) in str(refused.value), "the message names the file"
    assert not [path for path in out.rglob("*") if path.is_file()], "nothing half-written"


def test_torn_and_corrupt_lines_are_counted(traces: Path, spark: SparkSession, tmp_path: Path) -> None:
    run = copy(next(traces.iterdir()), tmp_path / "runs" / "damaged")
    rename(run, "damaged")
    lines = (run / "trace.jsonl").read_text().splitlines(keepends=True)
    lines[100:100] = ["not JSON\n", '{"record":"unheard of","time_ns":5}\n', '{"record":"observe","time_ns":"soon"}\n']
    (run / "trace.jsonl").write_text("".join(lines) + '{"record":"obs')
    (entry,) = Analysis(spark, str(tmp_path / "out"), print).run([str(run)]).ingested
    assert (entry.corrupt, entry.torn, entry.records) == (3, 1, len(lines) - 3)


def test_without_java_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.spark.java.find_java", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    from replicated_namesrv.spark.java import NoJavaError, java_home

    with pytest.raises(NoJavaError, match="install a Java 17"):
        java_home(tmp_path)
    assert callable(analyse)
