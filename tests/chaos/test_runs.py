"""Real runs: the smoke suite in both modes, and a proof that its checkers detect violations."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.scenario import load
from replicated_namesrv.chaos.suite import execute, smoke_plans
from replicated_namesrv.verify import Verdict, check_history, read_history
from tests.chaos.mutations import SEED, Mutation, chosen, plan
from tests.support.nodes import run_command
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SAFETY = {
    *("linearizable KV", "linearizable registration", "acknowledged KV writes at the end", "no resurrection"),
    *("acknowledged registrations at the end", "session guarantees", "revisions never go back", "one state for one revision"),
}


ENFORCED = "isolate-leader"
"""The scenario whose nodes enforce roles in CP mode."""


def patient(plan: RunPlan) -> RunPlan:
    """The same run with time limits so long that not even a busy machine exceeds them."""
    promises = dataclasses.replace(plan.scenario.promises, converge_s=120.0, gap_s=120.0, ghost_margin_s=60.0)
    timing = dataclasses.replace(plan.scenario.timing, heal_s=120.0, final_s=120.0)
    return dataclasses.replace(plan, scenario=dataclasses.replace(plan.scenario, promises=promises, timing=timing))


@pytest.mark.parametrize("plan", smoke_plans(), ids=lambda plan: plan.name)
def test_smoke(plan: RunPlan, tmp_path: Path) -> None:
    """The promises of each mode are kept. AP breaks those of CP."""
    enforces = plan.mode == "cp" and plan.scenario.name == ENFORCED
    done = execute(dataclasses.replace(patient(plan), enforces_access=enforces), tmp_path, print)
    if enforces:
        logs = [path.read_text() for path in done.folder.glob("logs/n?.log")]
        assert len(logs) == 3
        assert all("policy=enforce" in log and "access refused" not in log for log in logs)
    found = {check.name: check.verdict for check in done.judgement.checks}
    broken = [check for check in done.judgement.checks if check.verdict is Verdict.VIOLATED and done.judgement.promised(check)]
    assert not broken, f"{broken}\nsee {done.folder}"
    if plan.mode == "cp":
        assert {name for name, verdict in found.items() if verdict is Verdict.VALID} >= SAFETY
    else:
        assert Verdict.VIOLATED in {found[name] for name in SAFETY}
    assert (done.folder / "timeline.html").stat().st_size > 10_000
    assert (tmp_path / "latest").resolve() == done.folder
    assert check_history(read_history(done.folder / "history.jsonl")).verdict is found_by_history(found)


def found_by_history(found: dict[str, Verdict]) -> Verdict:
    """The verdict that the exported history must have. It contains the operations that the two linearizability checks judged."""
    both = {found["linearizable KV"], found["linearizable registration"]}
    return Verdict.VIOLATED if Verdict.VIOLATED in both else Verdict.VALID


@pytest.mark.parametrize(
    ("line", "documents"),
    [
        ("run no-fault --mode ap --duration-s 2 --json", 1),
        ("compare no-fault --modes ap --duration-s 2 --json", 1),
        ("suite soak --modes ap --hours 0.001 --json", 2),
    ],
)
def test_json_of_commands_that_make_runs(line: str, documents: int, tmp_path: Path) -> None:
    """``run_command`` checks each document with its schema. A soak of 3.6 s is one run."""
    done = run_command("chaos", *line.split(), "--out", str(tmp_path))
    assert done.returncode in (0, 2), done.stderr  # 2: the machine was too busy
    assert len(done.stdout.splitlines()) == documents, done.stdout
    assert list(tmp_path.glob("*/*/verdict.json"))


def test_stale_reads_are_caught(tmp_path: Path) -> None:
    plan = RunPlan(load("isolate-leader-peers"), "cp", 3, seed=2, read_consistency="stale", duration_s=3.0)
    done = execute(plan, tmp_path, print)
    assert done.judgement.verdict is Verdict.VIOLATED, f"nothing was found, see {done.folder}"


@pytest.mark.parametrize("mutation", chosen(("read_term_commit", "read_index")), ids=lambda mutation: mutation.defences)
def test_cp_without_a_defence_is_caught_where_cp_as_shipped_passes(mutation: Mutation, tmp_path: Path) -> None:
    """On a busy machine too little may happen in a run to show the defect. Then the next seed is tried."""
    seeds = iter(range(SEED, SEED + 6))
    broken: set[str] = set()
    while not broken:
        seed = next(seeds)
        off = execute(plan(mutation, seed, off=True), tmp_path, print)
        broken = SAFETY & {check.name for check in off.judgement.checks if check.verdict is Verdict.VIOLATED}
    shipped = execute(plan(mutation, seed, off=False), tmp_path, print)
    found = {check.name: check.verdict for check in shipped.judgement.checks}
    assert Verdict.VIOLATED not in found.values(), f"see {shipped.folder}"
    assert {found[name] for name in broken} == {Verdict.VALID}, f"see {shipped.folder}"


def test_a_leader_that_does_not_ask_its_majority_is_caught(tmp_path: Path) -> None:
    """Two defences are off. Either of them prevents an isolated leader from answering for long: the leader asks a majority before
    it answers, and it steps down when no majority answers."""
    without = (sys.executable, "-m", "tests.support.node_without_defence", "--off", "read_index,check_quorum")
    alone = RunPlan(load("isolate-leader-peers"), "cp", 3, seed=2, duration_s=3.0, node_command=without)
    done = execute(alone, tmp_path, print)
    assert done.judgement.verdict is Verdict.VIOLATED, f"nothing was found, see {done.folder}"


def test_a_node_that_does_not_start_is_told_and_unknown(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicated_namesrv", "chaos", "run", "no-fault", "--out", str(tmp_path)]
    done = subprocess.run([*command, "--node-command", "false"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    told = re.search(r"namesrv chaos run: n\d ended \(exit status 1\), see (\S+):", done.stderr)
    assert told is not None, done.stderr
    assert Path(told[1]).is_file(), "the folder stays for its logs"
    assert not (tmp_path / "latest").is_symlink(), "`latest` must only point to runs that began"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("victim", "number", "status", "finding"),
    [
        ("serve --node-id n2", signal.SIGSEGV, 1, "n2 ended by itself, crash: SIGSEGV"),
        ("toxiproxy", signal.SIGKILL, 2, "the trace ends before the run did"),
    ],
)
def test_a_crash_of_a_node_is_a_finding_and_other_deaths_prove_nothing(
    victim: str, number: signal.Signals, status: int, finding: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "replicated_namesrv", "chaos", "run", "no-fault", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as harness:
        assert harness.stderr is not None
        assert any("phase steady" in line for line in harness.stderr)
        (found,) = (pid for pid, line in children_of(harness.pid).items() if victim in line)
        os.kill(found, number)
        told, _ = harness.communicate()
    assert harness.returncode == status, told
    assert finding in told
    assert not processes_of(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_a_run_that_is_broken_off(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replicated_namesrv", "chaos", "run", "isolate-leader", "--out", str(tmp_path)]
    command = ["env", "--default-signal=INT", *command]  # background jobs of a shell ignore SIGINT
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as harness:
        assert harness.stderr is not None
        assert any("phase settle" in line for line in harness.stderr)
        assert len(processes_of(tmp_path)) >= 4, "three nodes and the harness name the folder"
        os.kill(harness.pid, number)
        harness.stderr.read()
    wait_until(lambda: not processes_of(tmp_path), "the end of every process of the run", 60)
    checked = subprocess.run(
        [sys.executable, "-m", "replicated_namesrv", "chaos", "check", str(tmp_path / "latest")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 2, checked.stdout + checked.stderr
    assert "the trace ends before the run did" in checked.stdout


def children_of(parent: int) -> dict[int, str]:
    """Command lines of the children of a process (Linux)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder (Linux)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in command:
                found.append(command)
    return found
