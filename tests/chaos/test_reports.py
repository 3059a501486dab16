"""The files and reports of a run, from a trace written by hand."""

import gzip
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.chaos.records import (
    MANIFEST_FILE,
    PACKED_TRACE_FILE,
    TRACE_FILE,
    Complete,
    Invoke,
    TraceError,
    TraceRecord,
    TraceWriter,
    encode,
)
from replicated_namesrv.chaos.run_report import comparison, conclude, results_page
from replicated_namesrv.chaos.scenario import load
from replicated_namesrv.chaos.study_session import broken_promises
from replicated_namesrv.chaos.study_verdicts import judge_again
from replicated_namesrv.chaos.suite import finished
from replicated_namesrv.chaos.timeline_page import COLOURS
from replicated_namesrv.cli.main import main
from tests.chaos.traces import NODES, Script
from tests.support.json_outputs import check_output

NAMING = {"schema": 1, "run": "by hand", "suite": "full", "seed": 1, "cut": "held", "read_consistency": None}


def run_folder(folder: Path, script: Script) -> Path:
    """A folder as a run leaves it."""
    folder.mkdir(parents=True)
    writer = TraceWriter(folder / TRACE_FILE)
    for record in script.story.trace.records:
        writer.write(record)
    writer.close()
    manifest = {**script.story.manifest, **NAMING, "versions": {"commit": None}}
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return folder


def good() -> Script:
    script = Script().busy("c1", 1000, 12500, every=50).fault(3000, 8000).stands(1000, "n1", 1, "aa")
    for node in NODES:
        script.saw(9000, node, [], 1)
    return script


def bad() -> Script:
    return good().op(1000, 1010, "w", "put", "k", "<b>").op(1020, 1030, "probe", "get", "k", None, node="n2")


def test_conclude_writes_verdict_history_and_a_picture_that_needs_nothing_else(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", bad())
    judgement, verdict = conclude(folder)
    assert judgement.verdict == "violated"
    assert json.loads((folder / "verdict.json").read_text()) == verdict
    assert len((folder / "history.jsonl").read_text().splitlines()) == judgement.figures.operations
    page = (folder / "timeline.html").read_text()
    assert not re.findall(r"(?:src|href)=|@import|<script", page)
    assert "isolate (silent) of n1" in page
    assert "&lt;b&gt;" in page, "values are shown as they are and never taken for HTML"
    assert "<b>" not in page


def packed(folder: Path) -> Path:
    """The same run as a study keeps it: with a compressed trace."""
    trace = folder / TRACE_FILE
    (folder / PACKED_TRACE_FILE).write_bytes(gzip.compress(trace.read_bytes()))
    trace.unlink()
    return folder


def test_a_run_with_a_compressed_trace_is_judged_in_the_same_way(tmp_path: Path) -> None:
    plain, small = conclude(run_folder(tmp_path / "1", bad())), conclude(packed(run_folder(tmp_path / "2", bad())))
    assert small == plain


@pytest.mark.parametrize(
    "damage", [lambda content: content[:200], lambda content: b"not gzip", lambda content: content[:99] + b"0" * 99]
)
def test_a_damaged_compressed_trace_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    trace = packed(run_folder(tmp_path / "run", bad())) / PACKED_TRACE_FILE
    trace.write_bytes(damage(trace.read_bytes()))
    with pytest.raises(TraceError, match=f"{re.escape(str(trace))}: cannot be read"):
        conclude(trace.parent)


def test_runs_are_judged_again_with_the_present_checks(tmp_path: Path) -> None:
    """Earlier verdicts are replaced, and nothing else is written."""
    folders = [packed(run_folder(tmp_path / name, script)) for name, script in (("good", good()), ("bad", bad()))]
    for folder in folders:
        (folder / "verdict.json").write_text("{}")
    judge_again(folders, lambda line: None)
    found = [json.loads((folder / "verdict.json").read_text()) for folder in folders]
    assert found == [conclude(folder)[1] for folder in folders]
    assert [broken_promises(verdict) for verdict in found] == [[], ["linearizable KV"]]


@pytest.mark.slow
def test_a_picture_stays_small_however_much_happened(tmp_path: Path) -> None:
    """Marks of one colour at one place are merged. The names of rows stay beside the scrolled picture."""
    script = good().busy("c2", 4000, 5000, every=0.2).op(4500, 4501, "c2", "get", "k", outcome="fail")
    folder = run_folder(tmp_path / "run", script)
    conclude(folder)
    page = (folder / "timeline.html").read_text()
    assert page.count("<rect") < 1_000
    assert re.search(r"c2 route idle .*\nand \d+ more</title>", page)
    assert re.search(f'fill="{COLOURS["fail"]}"><title>4.500 s c2 get k at n1: fail', page)


def test_a_torn_line_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run", good())
    trace = (folder / TRACE_FILE).read_bytes()
    (folder / TRACE_FILE).write_bytes(trace[:-9])
    assert main(["chaos", "check", str(folder)]) == 2
    assert "the last line is torn" in capsys.readouterr().out
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["trace"] == {"records": trace.count(b"\n") - 1, "torn": 1, "corrupt": 0}
    (folder / TRACE_FILE).write_bytes(trace.replace(b"\n", b"\nnot a record\n", 1))
    assert conclude(folder)[1]["trace"]["corrupt"] == 1


def test_an_operation_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="operation 1 ends before it begins"):
        assert Script().op(1010, 1000, "w", "put", "k", "a").story


def _end(op: int, at_ns: int) -> Complete:
    return Complete(at_ns, op, "ok", "n1", None, None, None)


@pytest.mark.parametrize(
    ("record", "what"),
    [
        (_end(77_777, 10**9), "operation 77777 ends and never began"),
        (_end(1, 2 * 10**9), "operation 1 begins or ends twice"),
        (Invoke(10**9, 1, "c1", "get", "k", None, None, None, None, None), "operation 1 begins or ends twice"),
    ],
)
def test_operations_that_nobody_can_have_recorded_are_refused(
    tmp_path: Path, record: TraceRecord, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No conclusion is possible: if a put is missing, its value looks like one that was never written."""
    folder = run_folder(tmp_path / "run", good())
    trace = (folder / TRACE_FILE).read_bytes().splitlines(keepends=True)
    (folder / TRACE_FILE).write_bytes(b"".join([*trace[:-1], encode(record), trace[-1]]))
    assert main(["chaos", "check", str(folder)]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(("script", "status"), [(bad(), 1), (Script(), 2)])
def test_check_exits_by_the_verdict(tmp_path: Path, script: Script, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path / "run", script)
    assert main(["chaos", "check", str(folder)]) == status
    assert "judged as cp" in capsys.readouterr().out
    assert main(["chaos", "check", str(folder), "--json", "--judge-as", "ap"]) in (0, 2)
    printed = capsys.readouterr().out
    check_output(("chaos", "check", "--json"), printed)
    assert json.loads(printed)["judged_as"] == "ap"


def test_a_broken_off_run_that_was_judged_is_no_finished_one(tmp_path: Path) -> None:
    """A suite repeats such a run."""
    names = {}
    for stamp, cut in (("1", 0), ("2", 1)):
        folder = run_folder(tmp_path / "full" / f"{stamp}-7-x{cut}-cp-3", good())
        trace = (folder / TRACE_FILE).read_bytes().splitlines(keepends=True)
        (folder / TRACE_FILE).write_bytes(b"".join(trace[: len(trace) - cut]))
        conclude(folder)
        names[cut] = folder
    assert finished(tmp_path, "full") == {"7-x0-cp-3": names[0]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"schema": 2}, "schema version 2, but this release reads only version 1"),
        ({"scenario": {}}, "manifest or trace has wrong content"),
        ({"nodes": 3}, "manifest or trace has wrong content"),
        ({"clients": [{}]}, "manifest or trace has wrong content"),
    ],
)
def test_a_manifest_changed_by_hand_is_told(
    tmp_path: Path, change: dict[str, Any], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run", good())
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps({**manifest, **change}))
    assert main(["chaos", "check", str(folder)]) == 2
    told = capsys.readouterr().err
    assert expected in told
    assert "Traceback" not in told


def test_history_prints_one_operation_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "history", str(run_folder(tmp_path / "run", bad()))]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {tuple(line) for line in lines} == {("client", "op", "key", "value", "start_ns", "end_ns", "outcome")}
    assert [line["start_ns"] for line in lines] == sorted(line["start_ns"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "isolat-leader"], "did you mean isolate-leader"),
        (["run", "none.toml"], "none.toml: cannot be read"),
        (["run", "no-fault", "--duration-s", "0"], "--duration-s 0: give 0.5 to 3600"),
        (["check", "nowhere"], "nowhere/manifest.json: cannot be read"),
        (["results", "nowhere"], "nowhere: No such file or directory; give the folder of a suite"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", *arguments]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_list_shows_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "list"]) == 0
    text = capsys.readouterr().out
    assert main(["chaos", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(text.splitlines()) == len(rows) >= 20
    assert all(row["name"] in text for row in rows)


def test_summary_of_a_job_has_a_line_and_a_time_line_for_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, script in (("1-good", good()), ("2-bad", bad())):
        conclude(run_folder(tmp_path / "suite" / name, script))
    assert main(["chaos", "results", "--summary", str(tmp_path / "suite")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## 2 runs: 0 valid, 1 violated, 1 unknown\n")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "verdict" not in line]
    assert [("**violated**" in row, "linearizable KV: violated" in row) for row in rows] == [(False, False), (True, True)]
    diagrams = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    assert len(diagrams) == 2
    for diagram in diagrams:
        assert "section n1" in diagram
        for start, end in re.findall(r":(?:\w+, )?(\d+), (\d+)$", diagram, re.MULTILINE):
            assert int(start) < int(end)


def test_summary_of_a_job_names_runs_that_could_not_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For example, a node did not start. ``namesrv chaos suite`` counts such a run as unknown."""
    (tmp_path / "suite" / "20260101T000000-2-isolate-leader-cp-3" / "logs").mkdir(parents=True)
    unmade = "| 2-isolate-leader-cp-3 | | **unknown** | not made: see the job's log | | | |"
    assert main(["chaos", "results", "--summary", str(tmp_path / "suite")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## 1 runs: 0 valid, 0 violated, 1 unknown\n")
    assert unmade in text
    conclude(run_folder(tmp_path / "suite" / "1-bad", bad()))
    assert main(["chaos", "results", "--summary", str(tmp_path / "suite")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("## 2 runs: 0 valid, 1 violated, 1 unknown\n")
    assert unmade in text


def test_comparison_sets_the_modes_side_by_side(tmp_path: Path) -> None:
    verdicts: list[dict[str, Any]] = [conclude(run_folder(tmp_path / str(n), bad()), "ap")[1] for n in range(2)]
    text = comparison("x", {"ap": verdicts[0], "cp": verdicts[1]})
    assert "AP" in text.splitlines()[0]
    assert re.search(r"KV reads, stale +1 +1\n", text)
    assert "CP does not hold: linearizable KV" in text


def test_results_page_has_a_row_for_each_scenario_and_size(tmp_path: Path) -> None:
    verdict = conclude(run_folder(tmp_path / "1", bad()))[1]
    other = {**verdict, "mode": "ap", "seed": 2, "figures": {**verdict["figures"], "stale_kv_reads": 5, "convergence_s": None}}
    page = results_page([verdict, other])
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert rows[2].startswith("| by hand | 3 | 1 2 | violated |")
    assert "| 5 / 1 |" in rows[2]
    assert "| - / " in rows[2]
    assert "- CP: 1 runs, judged by the promises of CP: 0 valid, 1 violated, 0 unknown." in page
    assert "- by hand, cp, 3 nodes, seed 1: linearizable KV: violated" in page


def test_runs_with_a_verdict_are_not_run_again(tmp_path: Path) -> None:
    done = run_folder(tmp_path / "full" / "20260101T000000-1-no-fault-cp-3", bad())
    run_folder(tmp_path / "full" / "20260101T000001-1-no-fault-ap-3", bad())
    conclude(done)
    os.makedirs(tmp_path / "full" / "other")
    assert finished(tmp_path, "full") == {"1-no-fault-cp-3": done}


def test_the_worked_example_of_the_docs_is_a_scenario(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "line-fails.toml"
    path.write_text(example)
    assert load(str(path)).nodes == 5
    assert tomllib.loads(example)["timing"]["fault_s"] == 30
