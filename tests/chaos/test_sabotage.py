"""The sabotages apply to the source, their results are counted correctly, and one of them is found on real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from replicated_namesrv.chaos.run_report import conclude
from replicated_namesrv.chaos.sabotage import (
    PACKAGE,
    Detection,
    SabotageResult,
    SabotageRun,
    SabotageSummary,
    Saboteur,
    compared,
    copy_with,
    folder_of,
    plans,
    sabotaged,
    table,
    targeted_plans,
)
from replicated_namesrv.chaos.sabotage_list import SABOTAGES
from replicated_namesrv.chaos.sabotage_row import Sabotage
from replicated_namesrv.chaos.scenario import available
from replicated_namesrv.cli.main import main
from replicated_namesrv.errors import SettingError
from replicated_namesrv.verify import Verdict
from tests.chaos.test_reports import bad, good, run_folder
from tests.support.places import assert_listed

MISSED = SabotageRun("a", Verdict.VALID, (), (), ("fence", "no ghosts"))
SUSPECTED = SabotageRun("b", Verdict.UNKNOWN, (), ("no ghosts",), ("fence",))
CAUGHT = SabotageRun("c", Verdict.VIOLATED, ("fence",), ("no ghosts",))
RESULTS = [SabotageResult(SABOTAGES[0], runs) for runs in ((MISSED,), (MISSED, SUSPECTED), (SUSPECTED, CAUGHT))]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_each_applies_to_one_line_of_the_source(sabotage: Sabotage) -> None:
    source = (PACKAGE / sabotage.file).read_text(encoding="utf-8")
    changed = sabotaged(source, sabotage)
    compile(changed, sabotage.file, "exec")
    assert sum(a != b for a, b in zip(source.splitlines(), changed.splitlines(), strict=True)) == 1
    assert sabotage.likely
    assert_listed(sabotage.likely, f"the likely scenarios of {sabotage.name}", available(), "chaos/scenarios")


def test_there_are_enough_of_both_modes_and_none_twice() -> None:
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 30
    assert min(sum(one.mode == mode for one in SABOTAGES) for mode in ("ap", "cp")) >= 10


def test_replicated_code_is_sabotaged_in_cp_and_independent_code_in_ap() -> None:
    folders = {("cp" if one.file.startswith(("raft/", "replication/")) else "ap", one.mode) for one in SABOTAGES}
    assert ("cp", "ap") not in folders
    assert all(one.mode == "ap" for one in SABOTAGES if one.file.startswith("compat/"))


@pytest.mark.parametrize(
    ("count", "remedy"), [(0, "expected; correct the row"), (2, "choose a line that occurs once: correct the row")]
)
def test_a_line_that_does_not_occur_once_is_reported(count: int, remedy: str) -> None:
    with pytest.raises(SettingError, match=rf"never-fences: its line occurs {count} times .* {remedy}"):
        sabotaged("nothing\n" + count * f"{SABOTAGES[0].old}\n", SABOTAGES[0])


def test_nodes_run_from_the_copy(tmp_path: Path) -> None:
    command = copy_with(SABOTAGES[0], tmp_path)
    shown = "import replicated_namesrv.replication.read_barrier as it; print(it.__file__)"
    done = subprocess.run([*command[:4], "-c", shown], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "replicated_namesrv" / "replication" / "read_barrier.py"
    assert sys.executable in command


def test_likely_scenarios_come_first_and_the_mode_is_that_of_the_sabotage() -> None:
    sabotage = SABOTAGES[0]._replace(likely=("slow-links", "isolate-leader"))
    smoke, full = plans(sabotage, full=False), plans(sabotage, full=True)
    assert smoke[0].scenario.name == "isolate-leader"
    assert len(smoke) == sum(plan.suite == "smoke" for plan in full) == 9
    assert {plan.mode for plan in full} == {"cp"}
    assert [plan.scenario.name for plan in full[:7]] == ["isolate-leader"] + 3 * ["slow-links"] + 3 * ["isolate-leader"]


def test_a_targeted_call_runs_each_likely_scenario_once() -> None:
    sabotage = SABOTAGES[0]._replace(likely=("slow-links", "isolate-leader"))
    slow, isolate = targeted_plans(sabotage)
    assert (slow.scenario.name, slow.seed, slow.mode) == ("slow-links", 1, "cp")
    assert isolate == plans(sabotage, full=False)[0], "the run of the smoke suite, which an earlier call may have made"


def test_runs_of_a_changed_sabotage_are_made_again() -> None:
    one = SABOTAGES[0]
    assert folder_of(one) == folder_of(one._replace(breaks="other words", likely=()))
    assert len({folder_of(each) for each in (one, one._replace(new="other"), SABOTAGES[1], None)}) == 4


def test_a_sabotage_is_caught_missed_or_unknown() -> None:
    assert [result.found for result in RESULTS] == [Detection.MISSED, Detection.UNKNOWN, Detection.CAUGHT]
    assert SabotageSummary.of(RESULTS) == SabotageSummary(caught=1, missed=1, unknown=1)


def test_a_check_counts_if_it_holds_without_the_sabotage() -> None:
    assert compared(CAUGHT, [SUSPECTED]) == CAUGHT
    for baseline in ([], [MISSED, CAUGHT], [SUSPECTED._replace(holding=())]):
        doubted = compared(CAUGHT, baseline)
        assert (doubted.verdict, doubted.checks, doubted.suspecting) == (Verdict.UNKNOWN, (), ("fence", "no ghosts"))


@pytest.mark.parametrize(
    ("counts", "share", "verdict"),
    [
        ((9, 1, 0), 90, Verdict.VALID),
        ((8, 2, 0), 90, Verdict.VIOLATED),
        ((8, 1, 1), 90, Verdict.UNKNOWN),
        ((7, 2, 1), 90, Verdict.VIOLATED),
        ((10, 0, 0), 100, Verdict.VALID),
    ],
)
def test_the_share_decides(counts: tuple[int, int, int], share: float, verdict: Verdict) -> None:
    assert SabotageSummary(*counts).verdict(share) is verdict


def test_the_table_names_scenario_and_checks() -> None:
    told = [row.split(" | ")[-1] for row in table(RESULTS).splitlines()[2:]]
    assert told == ["nothing |", "b: no ghosts? |", "c: fence, no ghosts? |"]


def test_the_list_is_printed_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["chaos", "sabotage", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(SABOTAGES)
    assert main(["chaos", "sabotage", "--list", "--json", "--only", "never-fences"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == "replication/read_barrier.py"
    assert list(tmp_path.iterdir()) == []


def test_runs_with_a_verdict_are_judged_again_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without the sabotage are not repeated either."""
    sabotage, said = SABOTAGES[0], list[str]()
    (plan,) = targeted_plans(sabotage)
    right = good().op(1000, 1010, "w", "put", "k", "a").at_the_end("get", "k", "a")
    for suite, script in ((folder_of(sabotage), bad()), (folder_of(None), right)):
        conclude(run_folder(tmp_path / suite / f"20260101T000000-{plan.name}", script))
    monkeypatch.setattr("replicated_namesrv.chaos.sabotage.execute", None)  # a new run would fail
    result = Saboteur(tmp_path, said.append).tried(sabotage, [plan])
    assert result.found is Detection.CAUGHT
    assert "linearizable KV" in result.runs[0].checks
    assert [line.endswith("(earlier run)") for line in said] == [True]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_never_fences_is_found_and_the_runs_are_kept(tmp_path: Path) -> None:
    sabotage = next(one for one in SABOTAGES if one.name == "never-fences")
    first, said = targeted_plans(sabotage), list[str]()
    (run,) = Saboteur(tmp_path, said.append).tried(sabotage, first).runs
    assert "fence" in [*run.checks, *run.suspecting], f"see {run.folder}"
    if run.checks:  # else the machine is busy, and the run would be repeated
        (again,) = Saboteur(tmp_path, said.append).tried(sabotage, first).runs
        assert again == run
        assert any("earlier run" in line for line in said)
