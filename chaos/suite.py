"""Single runs and suites of runs, each run in its own folder under ``runs/``."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicated_namesrv import provision
from replicated_namesrv.chaos.checks import RunJudgement
from replicated_namesrv.chaos.records import TRACE_FILE
from replicated_namesrv.chaos.run import RunPlan, check_fits, run
from replicated_namesrv.chaos.run_modes import OWN, promises_of
from replicated_namesrv.chaos.run_report import conclude, read_verdict
from replicated_namesrv.chaos.scenario import available, load
from replicated_namesrv.chaos.toxiproxy_client import ToxiproxyError
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.errors import SettingError

FULL_SEEDS = {3: (1, 2, 3), 5: (1,)}
"""Seeds of ``full`` by cluster size. For odd seeds cut links hold bytes, for even seeds they drop bytes."""
SMOKE_SEED = 1
MODES = OWN


@dataclass(frozen=True, slots=True)
class Done:
    """A finished run."""

    folder: Path
    judgement: RunJudgement
    verdict: dict[str, Any]


def execute(plan: RunPlan, runs: Path, say: Callable[[str], None]) -> Done:
    """Run and judge. If a run failed midway, its recorded part is judged.

    Raises NamesrvError or ProvisionError if no run could be made, KeyboardInterrupt if the run was interrupted (SIGINT, SIGTERM,
    SIGHUP). The folder stays unless it is empty. ``runs/latest`` links to the run that began last.
    """
    check_fits(plan)
    folder = _new_folder(runs, plan)
    try:
        toxiproxy = provision.toxiproxy_server(say)
        asyncio.run(run(plan, folder, toxiproxy, lambda: _point_latest(runs, folder), say))
    except (asyncio.CancelledError, KeyboardInterrupt):
        if (folder / TRACE_FILE).exists():
            say(f"interrupted; {folder} keeps what was recorded")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            say("interrupted before anything was recorded")
        raise KeyboardInterrupt from None
    except (ProcessError, ToxiproxyError) as error:
        if not (folder / TRACE_FILE).exists():
            raise
        say(str(error))
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # fails unless the folder is empty
    judgement, verdict = conclude(folder)
    if judgement.verdict == "valid":
        shutil.rmtree(folder / "data", ignore_errors=True)
    return Done(folder, judgement, verdict)


def _new_folder(runs: Path, plan: RunPlan) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%S")
    for attempt in range(100):
        folder = runs / plan.suite / f"{stamp}{f'.{attempt}' if attempt else ''}-{plan.name}"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise SettingError(f"--out {runs}: {folder.parent} is not a folder; name another") from None
            continue
        except OSError as cause:
            raise SettingError(f"--out {runs}: {folder} cannot be made ({cause.strerror}); name another folder") from cause
        return folder
    raise AssertionError("a hundred runs of one second")


def _point_latest(runs: Path, folder: Path) -> None:
    aside = runs / f".latest.{os.getpid()}"
    with contextlib.suppress(OSError):
        aside.symlink_to(folder.relative_to(runs))
        os.replace(aside, runs / "latest")


def smoke_plans(modes: Sequence[str] = MODES) -> list[RunPlan]:
    """Nine scenarios, one seed each: three in CP only, the others in all modes. Those with an operator come last, so that
    the other scenarios keep their seeds."""
    chosen = sorted((one for one in map(load, available()) if one.smoke), key=lambda one: one.has_operator)
    return [
        RunPlan(scenario, mode, 3, SMOKE_SEED + number, "smoke")
        for number, scenario in enumerate(chosen)
        for mode in modes
        if promises_of(mode) in scenario.smoke_modes
    ]


def full_plans(sizes: Sequence[int], modes: Sequence[str] = MODES) -> list[RunPlan]:
    """All scenarios in all modes."""
    return [
        RunPlan(load(name), mode, nodes, seed, "full")
        for nodes in sizes
        for name in available()
        for seed in FULL_SEEDS[nodes]
        for mode in modes
    ]


def soak_plans(first_seed: int, modes: Sequence[str] = MODES) -> Iterator[RunPlan]:
    """An endless sequence of random compositions, each with a new seed."""
    scenario = load("random")
    while True:
        for mode in modes:
            yield RunPlan(scenario, mode, 3, first_seed, "soak")
        first_seed += 1


def finished(runs: Path, suite: str) -> dict[str, Path]:
    """For each name (seed, scenario, mode, nodes), the newest complete run of a suite that has a verdict."""
    verdicts = {folder: read_verdict(folder) for folder in sorted((runs / suite).glob("*"))}
    return {
        folder.name.partition("-")[2]: folder
        for folder, verdict in verdicts.items()
        if verdict is not None and verdict.get("complete", True)
    }
