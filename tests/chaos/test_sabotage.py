"""The sabotages apply to the source, and one of them is found on real processes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.chaos.sabotage import (
    PACKAGE,
    SABOTAGES,
    Sabotage,
    SabotageOutcome,
    copy_with,
    outcome_of,
    plans,
    sabotaged,
    told,
)
from replicated_namesrv.chaos.scenario import available
from replicated_namesrv.chaos.suite import execute
from replicated_namesrv.errors import SettingError


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_each_applies_to_one_line_of_the_source(sabotage: Sabotage) -> None:
    source = (PACKAGE / sabotage.file).read_text(encoding="utf-8")
    changed = sabotaged(source, sabotage)
    compile(changed, sabotage.file, "exec")
    assert sum(a != b for a, b in zip(source.splitlines(), changed.splitlines(), strict=True)) == 1
    assert sabotage.expected in available()


def test_there_are_enough_of_both_modes_and_none_twice() -> None:
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 30
    assert min(sum(one.mode == mode for one in SABOTAGES) for mode in ("ap", "cp")) >= 10


def test_a_line_that_is_not_there_is_told() -> None:
    with pytest.raises(SettingError, match="never-fences: its line occurs 0 times"):
        sabotaged("nothing\n", SABOTAGES[0])


def test_nodes_run_from_the_copy(tmp_path: Path) -> None:
    command = copy_with(SABOTAGES[0], tmp_path)
    told = "import replicated_namesrv.replication.read_barrier as it; print(it.__file__)"
    done = subprocess.run([*command[:4], "-c", told], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == tmp_path / "replicated_namesrv" / "replication" / "read_barrier.py"
    assert sys.executable in command


def test_what_is_told_of_a_sabotage() -> None:
    missed, found = SabotageOutcome("a", "valid", [], []), SabotageOutcome("b", "violated", ["fence"], ["no ghosts"])
    assert told([missed]) == "nothing (a valid)"
    assert told([missed, found]) == "b: fence, no ghosts?"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_smoke_suite_finds_a_node_that_never_fences(tmp_path: Path) -> None:
    sabotage = next(one for one in SABOTAGES if one.name == "never-fences")
    (plan, *_) = plans(sabotage, "smoke")
    command = copy_with(sabotage, tmp_path / "copy")
    done = execute(replace(plan, node_command=command), tmp_path / "runs", print)
    outcome = outcome_of(done)
    assert "fence" in [*outcome.found, *outcome.suspected], f"see {done.folder}"
