"""Comparisons of modes: the measures that are the same for every mode, the table, the figure, and the page."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest

from replicated_namesrv.chaos.checks.seen_removals import removals
from replicated_namesrv.chaos.comparison_page import ROWS, figure, write_comparison
from replicated_namesrv.chaos.records import FaultRecord, Member, Observe, Truth
from replicated_namesrv.chaos.run_report import comparison, conclude
from replicated_namesrv.cli.main import main
from tests.chaos.test_reports import bad, run_folder
from tests.chaos.traces import MS, Script


def look(at_ms: int, node: str, *brokers: str) -> Observe:
    """One answer of a node."""
    members = [Member(broker, "1") for broker in brokers]
    return Observe(at_ms * MS, (at_ms - 5) * MS, node, "brokers", True, members, None, "change")


def truth(at_ms: int, broker: str, state: str, life: int = 1) -> Truth:
    return Truth(at_ms * MS, broker, life, state, True, "1", ["t"], 1_000)


def story_of(records: Sequence[Observe | Truth | FaultRecord]) -> Script:
    script = Script("java:5.5.0")
    script.records += records
    return script


def test_a_removal_after_a_death_counts_from_the_death() -> None:
    script = story_of(
        [
            *(truth(100, broker, "serving") for broker in ("g1/0", "g2/0", "g3/0")),
            *(look(1_500, node, "g1/0", "g2/0", "g3/0") for node in ("n1", "n2")),
            truth(2_000, "g1/0", "silent"),
            truth(2_000, "g2/0", "dead"),
            truth(2_000, "g3/0", "stopped"),
            *(look(2_250, node, "g1/0") for node in ("n1", "n2")),
            look(3_500, "n1"),
            look(4_000, "n2"),
        ]
    )
    found = removals(script.story)
    assert found.silent_s == (1.5, 2.0)
    assert found.live == 0, "one that stopped cleanly, or closed its connections, was not alive"


@pytest.mark.parametrize(("fault", "live"), [("isolate", 1), ("pause", 1), ("kill", 0)])
def test_a_killed_node_forgets_and_does_not_remove(fault: str, live: int) -> None:
    script = story_of(
        [
            truth(100, "g1/0", "serving"),
            look(3_000, "n1", "g1/0"),
            FaultRecord(3_100 * MS, 1, "start", 3_100 * MS, fault, None, ["n1"], [], [["n2", "n3"], ["n1"]], []),
            FaultRecord(4_000 * MS, 1, "end", 4_000 * MS, fault, None, ["n1"], [], [["n1", "n2", "n3"]], []),
            look(4_100, "n1"),
        ]
    )
    assert removals(script.story).live == live


def test_the_table_has_a_column_for_each_mode(tmp_path: Path) -> None:
    verdict = conclude(run_folder(tmp_path / "1", bad()))[1]
    other = {**verdict, "figures": {**verdict["figures"], "live_removed": 7, "silent_removed_s": None}}
    lines = comparison("x, seed 1", {"java:5.5.0": other, "ap": verdict, "cp": verdict}).splitlines()
    assert lines[0].split() == ["x,", "seed", "1", "java:5.5.0", "AP", "CP"]
    cells = {line[:42].strip(): line[42:].split() for line in lines}
    assert cells["removals of live brokers, cut off or not"] == ["7", "0", "0"]
    assert cells["silent death until removed, mean"][0] == "never"
    assert cells["verdict"] == ["violated"] * 3
    assert lines[-3].startswith("java:5.5.0 does not hold: linearizable KV")


@pytest.mark.parametrize(("diverged_s", "shown"), [(0.0, "-"), (2.5, "never")])
def test_nodes_that_never_differed_need_not_become_equal(diverged_s: float, shown: str, tmp_path: Path) -> None:
    verdict = conclude(run_folder(tmp_path / "1", bad()))[1]
    differed = {**verdict, "figures": {**verdict["figures"], "convergence_s": None, "diverged_s": diverged_s}}
    cells = {line[:42].strip(): line[42:].split() for line in comparison("x", {"cp": differed}).splitlines()}
    assert cells["all equal after the last fault"] == [shown]


def test_the_figure_shows_each_mode_and_each_difference() -> None:
    same, differs = story_of([truth(100, "g1/0", "serving")]), story_of([truth(100, "g1/0", "serving")])
    for at_ms in range(1_500, 6_000, 250):
        for script, second in ((same, ["g1/0"]), (differs, [])):
            script.records += [look(at_ms, "n1", "g1/0"), look(at_ms + 1, "n2", *second)]
    picture = figure({"java:5.5.0": differs.story, "ap": same.story})
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("java:5.5.0", "AP")] == ["java:5.5.0", "AP"]
    assert all(texts.count(name) == 2 for name, _ in ROWS.values())
    marks = [element.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert marks.count(ROWS["differ"][1]) == 1, "only where nodes differ"


def test_the_page_stands_next_to_the_runs_and_leads_to_them(tmp_path: Path) -> None:
    folders = {mode: run_folder(tmp_path / f"20260101T000000-1-x-{mode}-3", bad()) for mode in ("ap", "cp")}
    for folder in folders.values():
        conclude(folder)
    page = write_comparison("x, seed 1", folders)
    assert page.parent == tmp_path
    assert page.with_suffix(".svg").read_text().startswith("<svg")
    text = page.read_text()
    assert "20260101T000000-1-x-cp-3/timeline.html" in text
    assert "<svg" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("compare no-fault --modes ap,ap", "--modes ap,ap: ap is given twice"),
        ("compare no-fault --modes ap,", "--mode : no such mode"),
        ("compare no-fault --modes java:5", "--mode java:5: '5' is not a version"),
        ("suite smoke --modes go:1.0.0", "--mode go:1.0.0: no such mode"),
        ("suite smoke --modes java:5.5.0 --node-command x", "--node-command: java:5.5.0 has a mode with its own command"),
        ("run no-fault --mode java:5.5.0 --node-command x", "--node-command: java:5.5.0 has its own command"),
        ("run no-fault --mode java:5.5.0 --read-consistency stale", "java:5.5.0 nodes have no read levels"),
    ],
)
def test_a_wrong_mode_is_named_before_anything_starts(
    arguments: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["chaos", *arguments.split()]) == 2
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
