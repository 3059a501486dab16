"""Runs and suites of runs, each in a folder of its own under ``runs/``."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicated_namesrv.chaos.checks import Judgement
from replicated_namesrv.chaos.report import conclude, read_verdict
from replicated_namesrv.chaos.run import RunPlan, run
from replicated_namesrv.chaos.scenario import available, load

FULL_SEEDS = {3: (1, 2, 3), 5: (1,)}
"""Seeds of ``full`` by cluster size; odd ones hold what they cut, even ones drop it."""
SMOKE_SEED = 1
MODES = ("ap", "cp")


@dataclass(frozen=True, slots=True)
class Done:
    """A finished run."""

    folder: Path
    judgement: Judgement
    verdict: dict[str, Any]


def execute(plan: RunPlan, runs: Path, say: Callable[[str], None]) -> Done:
    """Run and judge. Raises NamesrvError or ProvisionError where no run could be made; its folder stays for inspection."""
    folder = _new_folder(runs, plan)
    asyncio.run(run(plan, folder, say))
    judgement, verdict = conclude(folder)
    if judgement.verdict == "valid":
        shutil.rmtree(folder / "data", ignore_errors=True)
    return Done(folder, judgement, verdict)


def _new_folder(runs: Path, plan: RunPlan) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%S")
    for attempt in range(100):
        folder = runs / plan.suite / f"{stamp}{f'.{attempt}' if attempt else ''}-{plan.name}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            _point_latest(runs, folder)
            return folder
    raise AssertionError("a hundred runs of one second")


def _point_latest(runs: Path, folder: Path) -> None:
    aside = runs / f".latest.{os.getpid()}"
    with contextlib.suppress(OSError):
        aside.symlink_to(folder.relative_to(runs))
        os.replace(aside, runs / "latest")


def smoke_plans() -> list[RunPlan]:
    """Six scenarios in both modes, a seed each."""
    chosen = [scenario for scenario in map(load, available()) if scenario.smoke]
    return [RunPlan(scenario, mode, 3, SMOKE_SEED + number, "smoke") for number, scenario in enumerate(chosen) for mode in MODES]


def full_plans(sizes: Sequence[int]) -> list[RunPlan]:
    """All scenarios in both modes."""
    return [
        RunPlan(load(name), mode, nodes, seed, "full")
        for nodes in sizes
        for name in available()
        for seed in FULL_SEEDS[nodes]
        for mode in MODES
    ]


def soak_plans(first_seed: int) -> Iterator[RunPlan]:
    """Random compositions for ever, a new seed each."""
    scenario = load("random")
    while True:
        for mode in MODES:
            yield RunPlan(scenario, mode, 3, first_seed, "soak")
        first_seed += 1


def finished(runs: Path, suite: str) -> dict[str, Path]:
    """Runs of a suite that have a verdict, newest by name (seed, scenario, mode, nodes)."""
    return {
        folder.name.partition("-")[2]: folder for folder in sorted((runs / suite).glob("*")) if read_verdict(folder) is not None
    }
