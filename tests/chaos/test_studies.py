"""Studies: the plan, the order of its runs, the ledger, and ``namesrv study run`` and ``resume`` on real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.chaos import checks as checks_package
from replicated_namesrv.chaos.records import Phase, TraceWriter
from replicated_namesrv.chaos.study_ledger import (
    REPEATS_MAX,
    StudyLedger,
    create,
    discard_interrupted,
    exclusive,
    next_run,
    open_study,
    published_runs,
)
from replicated_namesrv.chaos.study_plan import StudyPlan, available_studies, load_study, study_file
from replicated_namesrv.chaos.study_session import (
    FAILURES_MAX,
    OF_FRESH_READS,
    SessionOptions,
    StudySession,
    broken_promises,
    outlook,
    run_slowdown,
)
from replicated_namesrv.errors import SettingError, StorageError
from tests.support.json_outputs import check_output

HEAD = 'title = "t"\nquestion = "q"\ntimers = "as in production"\n'
TWO_ARMS = """
[[arm]]
name = "a"
mode = "ap"
[[arm]]
name = "c"
mode = "cp"
read_consistency = "lease"
settings = ["fenceAfterMs=900"]
"""
SMALL = HEAD + 'scenarios = ["isolate-leader", "kill-leader"]\nnodes = [3, 5]\nseeds = 4\n' + TWO_ARMS


def planned(folder: Path, text: str) -> StudyPlan:
    path = folder / "small.toml"
    path.write_text(text)
    return load_study(path)


@pytest.mark.parametrize("name", available_studies())
def test_plans_of_the_product_are_good(name: str) -> None:
    plan = load_study(study_file(name))
    assert len({run.key for run in plan.runs}) == len(plan.runs) > 0
    assert plan.timers.strip()


def test_scenarios_sizes_seeds_and_cuts_are_crossed_and_each_block_has_every_arm(tmp_path: Path) -> None:
    plan = planned(tmp_path, SMALL)
    blocks = Counter(run.block for run in plan.runs)
    cells = {(name, nodes, seed, cut) for name, nodes, seed, cut, _ in blocks}
    of_cuts = {("isolate-leader", nodes, seed, cut) for nodes in (3, 5) for seed in range(1, 5) for cut in ("silent", "held")}
    assert cells == of_cuts | {("kill-leader", nodes, seed, None) for nodes in (3, 5) for seed in range(1, 5)}
    assert set(blocks.values()) == {2}
    assert all({run.arm for run in block} == {"a", "c"} for wave in plan.waves for block in wave)


def test_complete_waves_come_first_and_the_order_in_them_is_drawn(tmp_path: Path) -> None:
    plan = planned(tmp_path, SMALL)
    assert [{run.block[2] for block in wave for run in block} for wave in plan.waves] == [{1}, {1}, {2}, {2}, {3}, {3}, {4}, {4}]
    assert plan.runs == planned(tmp_path, SMALL).runs, "the order of a plan is always the same"
    assert {tuple(run.arm for run in block) for wave in plan.waves for block in wave} == {("a", "c"), ("c", "a")}
    assert len({tuple(block[0].block[:2] for block in wave) for wave in plan.waves[::2]}) > 1


def test_levels_of_factors_are_crossed_and_change_the_run(tmp_path: Path) -> None:
    factors = """
[[factor]]
name = "time-out"
[[factor.level]]
name = "3 s"
[[factor.level]]
name = "6 s"
workload = {broker_timeout_ms = 6000}
promises = {gap_s = 9}
round_trip_ms = 50
[[factor]]
name = "fault"
[[factor.level]]
name = "short"
fault_s = 3
[[factor.level]]
name = "long"
fault_s = 14
settings = ["fenceAfterMs=700"]
"""
    plan = planned(tmp_path, SMALL.replace("seeds = 4", "seeds = 1") + factors)
    made = {run.key: plan.run_plan(run) for run in plan.runs}
    assert len(made) == (2 + 1) * 2 * 4 * 2
    run = made["1-isolate-leader-3-silent-6s-long-c"]
    assert (run.mode, run.read_consistency, run.variant, run.duration_s) == ("cp", "lease", "silent", 14)
    assert (run.scenario.workload.broker_timeout_ms, run.scenario.promises.gap_s, run.scenario.round_trip_ms) == (6000, 9, 50)
    assert run.scenario.settings == ("fenceAfterMs=700", "fenceAfterMs=900")
    assert made["1-kill-leader-5-3s-short-a"].timed().fault[0].for_s == pytest.approx(5 * 3 / 7)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 4", "seeds = 0", "seeds = 0: 1 to 1000"),
        ("seeds = 4", 'seeds = "4"', "a whole number is expected"),
        ("nodes = [3, 5]", "nodes = [4]", "some of 1, 3 and 5"),
        ("nodes = [3, 5]", "nodes = [true]", "an array of whole numbers"),
        ('"kill-leader"', '"kill-leadr"', "did you mean kill-leader"),
        ('"kill-leader"', '"../kill-leader"', "a file beside the plan"),
        ('"kill-leader"', '"isolate-leader"', "different names"),
        ('mode = "ap"', 'mode = "xp"', "no such mode"),
        ('"lease"', '"leas"', "read_consistency"),
        ('name = "a"', 'name = "c"', "arm: different names"),
        ("fenceAfterMs=900", "fenceAfterM=900", "fenceAfterM"),
        ('timers = "as in production"', "", "timers is missing"),
        ('[[arm]]\nname = "a"', '[[arm]]\nnam = "a"', "arm 1: nam is unknown; did you mean name"),
        ("[[arm]]\nname", "[options.timing]\nsteady = 3\n[[arm]]\nname", "timing.steady is unknown"),
        ("[[arm]]\nname", "[options.workload]\nbroker_timeout_ms = 500\n[[arm]]\nname", "register_period_ms"),
    ],
)
def test_bad_plans_are_refused_with_the_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(SettingError, match=r"small\.toml") as refused:
        planned(tmp_path, SMALL.replace(old, new, 1))
    assert message in str(refused.value)


def test_outlook_counts_what_is_left(tmp_path: Path) -> None:
    plan = planned(tmp_path, SMALL)
    whole = outlook(plan, plan.runs, 1, keep_traces=False)
    rest = outlook(plan, plan.runs[10:], 2, keep_traces=True)
    assert (whole["runs"], whole["left"], rest["left"]) == (48, 48, 38)
    assert whole["hours"] == pytest.approx(sum(map(plan.expected_s, plan.runs)) / 3600, abs=0.01)
    assert sum(wave["runs"] for wave in rest["waves"]) == 38
    assert rest["hours"] < whole["hours"] / 2
    assert rest["disk_mb"] > whole["disk_mb"]


def entry(run: str, verdict: str) -> dict[str, Any]:
    return {"run": run, "verdict": verdict, "folder": f"attempts/{run}"}


def test_each_run_is_made_once_and_failed_ones_are_repeated_in_their_block_at_most_twice(tmp_path: Path) -> None:
    plan = planned(tmp_path, SMALL)
    unlucky = plan.runs[2].key
    attempts: dict[str, list[dict[str, Any]]] = {}
    order = []
    while (run := next_run(plan, attempts, set(), set())) is not None:
        order.append(run.key)
        attempts.setdefault(run.key, []).append(
            entry(run.key, "failed" if run.key == unlucky else ("unknown", "violated")[len(order) % 2])
        )
    keys = [run.key for run in plan.runs]
    assert order == [*keys[:4], *[unlucky] * REPEATS_MAX, *keys[4:]]
    half = {key: attempts[key] for key in keys[:24]}
    assert next_run(plan, half, {keys[24]}, {keys[25], keys[26]}) == plan.runs[27]


def test_ledger_keeps_whole_lines_and_drops_a_torn_one(tmp_path: Path) -> None:
    ledger = StudyLedger(tmp_path)
    ledger.append(entry("a", "failed"))
    ledger.append(entry("a", "unknown"))
    ledger.append(entry("b", "failed"))
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"run": "c", "verd')
    again = StudyLedger(tmp_path)
    assert list(again.results()) == ["a"]
    again.append(entry("c", "valid"))
    assert [one["run"] for one in StudyLedger(tmp_path).entries] == ["a", "a", "b", "c"]
    (tmp_path / "ledger.jsonl").write_bytes(b"{]\n")
    with pytest.raises(StorageError, match=r"ledger\.jsonl:1"):
        StudyLedger(tmp_path)


def test_interrupted_attempts_are_removed_and_others_are_kept(tmp_path: Path) -> None:
    for name in ("a", "b", "b.2"):
        (tmp_path / "attempts" / name / "x").mkdir(parents=True)
    assert discard_interrupted(tmp_path, [entry("b", "unknown")]) == 2
    assert [path.name for path in (tmp_path / "attempts").iterdir()] == ["b"]


def test_a_folder_belongs_to_one_plan_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace('"kill-leader"', '"mine.toml"'))
    (tmp_path / "mine.toml").write_text('title = "mine"\n')
    folder = tmp_path / "study"
    plan = create(folder, path)
    assert "1-mine-3-a" in {run.key for run in plan.runs}
    (tmp_path / "mine.toml").unlink()
    again = open_study(folder)
    assert (again.name, again.runs) == ("small", plan.runs), "the folder has its own copies"
    assert create(folder, path).runs == plan.runs
    path.write_text("# a comment\n" + path.read_text().replace('title = "', 'title = "Reworded. '))
    assert create(folder, path).runs == plan.runs, "texts and comments do not make another plan"
    path.write_text(SMALL)
    with pytest.raises(SettingError, match="another plan"):
        create(folder, path)
    with pytest.raises(SettingError, match="not empty"):
        create(tmp_path, path)
    with exclusive(folder), pytest.raises(SettingError, match="another process"), exclusive(folder):
        pass
    with pytest.raises(SettingError, match=r"no plan\.toml"):
        open_study(tmp_path)


def test_published_runs_are_left_out(tmp_path: Path) -> None:
    plan = planned(tmp_path, SMALL)
    with pytest.raises(SettingError, match="--published"):
        published_runs(tmp_path, plan)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "runs.csv").write_text(f"run,arm\n{plan.runs[0].key},a\n")
    assert published_runs(tmp_path, plan) == {plan.runs[0].key}


def test_without_time_no_run_is_started(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    folder = tmp_path / "study"
    lines: list[str] = []
    end = StudySession(folder, create(folder, path), SessionOptions(hours=0.001), lines.append).run()
    assert (end.made, end.left, end.complete, end.counts) == (0, 48, False, {})
    assert not (folder / "ledger.jsonl").exists()


def test_the_slowdown_of_a_run_is_that_of_its_judged_phases(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    phases = [("settle", None), ("steady", 9.0), ("fault", 1.5), ("heal", 2.5), ("final", 1.1), ("end", None)]
    for at, (phase, slowdown) in enumerate(phases):
        writer.write(Phase(at, phase, slowdown))
    writer.close()
    assert run_slowdown(tmp_path / "trace.jsonl") == 2.5


QUICK = (
    HEAD
    + """scenarios = ["quick.toml"]
nodes = [1]
seeds = 3
[[arm]]
name = "ap"
mode = "ap"
"""
)
QUICK_SCENARIO = """title = "As short as possible"
[timing]
steady_s = 0.5
fault_s = 1
[workload]
pair = false
mortal = "none"
early_deaths = false
churn = false
mqadmin = false
[promises]
operations_min = 1
operations_during_min = 1
"""


def study(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    # background jobs of a shell ignore SIGINT
    command = ["env", "--default-signal=INT", sys.executable, "-m", "replicated_namesrv", "study", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_run_with_an_unknown_verdict_counts_and_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text(QUICK_SCENARIO.replace("operations_during_min = 1", "operations_during_min = 100000"))
    path = tmp_path / "idle.toml"
    path.write_text(QUICK.replace("seeds = 3", "seeds = 1"))
    lines: list[str] = []
    end = StudySession(tmp_path / "study", create(tmp_path / "study", path), SessionOptions(keep_traces=True), lines.append).run()
    assert (end.made, end.left, end.counts, end.violated) == (1, 0, {"unknown": 1}, ())
    (entry,) = StudyLedger(tmp_path / "study").entries
    assert "enough to judge: unknown" in entry["reason"]
    assert len(list((tmp_path / "study").glob("attempts/*/*/*/trace.jsonl"))) == 1


def test_stale_reads_do_not_break_the_promises_of_fresh_ones() -> None:
    checks = [{"check": name, "promised": True, "verdict": "violated"} for name in (*OF_FRESH_READS, "no ghosts")]
    assert broken_promises({"read_consistency": "stale", "checks": checks}) == ["no ghosts"]
    assert broken_promises({"read_consistency": "lease", "checks": checks}) == [*OF_FRESH_READS, "no ghosts"]
    assert broken_promises({"read_consistency": "stale", "checks": [{**checks[-1], "promised": False}]}) == []


def test_the_names_of_the_checks_of_fresh_reads_exist() -> None:
    source = "".join(path.read_text() for path in Path(str(checks_package.__file__)).parent.glob("*.py"))
    unknown = [name for name in OF_FRESH_READS if f'"{name}"' not in source]
    assert not unknown, f"OF_FRESH_READS has names that no check in chaos/checks has: {', '.join(unknown)}"


@pytest.mark.slow
def test_a_study_stops_if_every_attempt_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOXIPROXY_SERVER", "/bin/false")
    (tmp_path / "quick.toml").write_text(QUICK_SCENARIO)
    path = tmp_path / "failing.toml"
    path.write_text(QUICK)
    session = StudySession(tmp_path / "study", create(tmp_path / "study", path), SessionOptions(), lambda _: None)
    with pytest.raises(SettingError, match=f"{FAILURES_MAX} attempts in a row failed, the last with exit status 2: .*/bin/false"):
        session.run()
    assert [one["verdict"] for one in StudyLedger(tmp_path / "study").entries] == ["failed"] * FAILURES_MAX
    assert FAILURES_MAX > 1 + REPEATS_MAX


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_stopped_study_continues_where_it_was(tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "quick.toml").write_text(QUICK_SCENARIO)
    (tmp_path / "plan-of-mine.toml").write_text(QUICK)
    folder = tmp_path / "study"
    first = study("run", "plan-of-mine.toml", "--out", "study", cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not StudyLedger(folder).entries or len(list((folder / "attempts").iterdir())) < 2:  # the second run is in progress
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.send_signal(number)
    _, err = first.communicate(timeout=60)
    assert first.returncode == code, err
    before = StudyLedger(folder).entries
    assert [one["run"] for one in before] == ["1-quick-1-ap"], "the second run has ended before the signal, or the first was lost"
    out, err = study("resume", "study", "--json", cwd=tmp_path).communicate(timeout=120)
    check_output(("study", "resume", "--json"), out)
    end = json.loads(out)
    assert (end["made"], end["left"], end["verdicts"]) == (2, 0, {"valid": 3}), err
    entries = StudyLedger(folder).entries
    assert entries[:1] == before
    assert {one["run"] for one in entries} == {run.key for run in open_study(folder).runs}
    for one in entries:
        (made,) = (folder / one["folder"]).glob("plan-of-mine/*")
        assert {path.name for path in made.iterdir()} == {"manifest.json", "verdict.json", "trace.jsonl.gz"}
    if number is signal.SIGKILL:
        assert "interrupted attempts, removed: 1" in err
