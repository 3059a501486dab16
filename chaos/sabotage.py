"""Runs the chaos suite on a product with one defect, and finds out which scenario and which check detect it.

The defects are those of ``sabotage_list``. Each is made in a copy of the package. The nodes of a run are started from the copy;
the harness and the checks are those of this package. A defect is found if it violates a promised check that holds in the same run
without the defect. A node that ends while it starts violates the check "nodes start". If other load of the machine made the check
unknown, or if the nodes did not start in time, the defect is neither found nor missed.

Runs go to ``RUNS/sabotage/NAME-HASH``, where the hash is that of the changed line. Runs in this folder that have a verdict are
judged again by the current checks and not repeated, unless the verdict is unknown.
"""

import difflib
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import replicated_namesrv
from replicated_namesrv.chaos.checks import RunJudgement
from replicated_namesrv.chaos.process_cluster import NotReadyError
from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.run_report import conclude, read_verdict
from replicated_namesrv.chaos.sabotage_list import SABOTAGES
from replicated_namesrv.chaos.sabotage_row import Sabotage
from replicated_namesrv.chaos.scenario import load
from replicated_namesrv.chaos.suite import FULL_SEEDS, execute, full_plans, smoke_plans
from replicated_namesrv.chaos.toxiproxy_client import ToxiproxyError
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.errors import SettingError
from replicated_namesrv.verify import Verdict

PACKAGE = Path(replicated_namesrv.__file__).parent
SUITE, NO_SABOTAGE = "sabotage", "none"
BASELINE_RUNS = 3
"""Maximum number of runs without a defect that are made of one scenario, for comparison with one defect."""
NODES_START = "nodes start"
Say = Callable[[str], None]


class Detection(StrEnum):
    """The result of a suite on one sabotage."""

    CAUGHT = "caught"
    MISSED = "missed"
    UNKNOWN = "unknown"
    """No violated check proves the defect, but the verdict of at least one run is unknown."""


class SabotageRun(NamedTuple):
    """One run of a sabotaged product."""

    scenario: str
    verdict: Verdict
    checks: tuple[str, ...]
    """Promised checks that are violated."""
    suspecting: tuple[str, ...]
    """Promised checks whose findings prove nothing: the machine was busy, or the check does not hold without the defect."""
    holding: tuple[str, ...] = ()
    """Promised checks that hold."""
    folder: str = ""


class SabotageResult(NamedTuple):
    """All runs of a sabotage, in their order."""

    sabotage: Sabotage
    runs: tuple[SabotageRun, ...]

    @property
    def found(self) -> Detection:
        """Whether the sabotage was found, by the checks of any run."""
        if any(run.checks for run in self.runs):
            return Detection.CAUGHT
        return Detection.MISSED if all(run.verdict is Verdict.VALID for run in self.runs) else Detection.UNKNOWN


def sabotaged(text: str, sabotage: Sabotage) -> str:
    """The source with the defect. Raises SettingError if the line to change does not occur exactly once."""
    lines = text.splitlines(keepends=True)
    found = [number for number, line in enumerate(lines) if line.strip() == sabotage.old]
    if len(found) != 1:
        remedy = "make the new line different, or choose a line that occurs once: " if found else ""
        raise SettingError(
            f"sabotage {sabotage.name}: its line occurs {len(found)} times in {sabotage.file}, once is expected; "
            f"{remedy}correct the row in chaos/sabotage_list.py, sabotage_list_alone.py or sabotage_list_answers.py"
        )
    lines[found[0]] = lines[found[0]].replace(sabotage.old, sabotage.new)
    return "".join(lines)


def copy_with(sabotage: Sabotage | None, folder: Path) -> tuple[str, ...]:
    """Copy the package to ``folder`` with the defect. Returns the command that runs a node of the copy."""
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("scenarios"))
    if sabotage is not None:
        path = copy / sabotage.file
        path.write_text(sabotaged(path.read_text(encoding="utf-8"), sabotage), encoding="utf-8")
        # a cached file would be used if the source with the defect has the same time and size
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    return "env", f"PYTHONPATH={folder}", sys.executable, "-P", "-m", PACKAGE.name, "serve"


def folder_of(sabotage: Sabotage | None) -> str:
    """The suite name of the runs of a sabotage, which is also their folder. The name changes with the defect."""
    if sabotage is None:
        return f"{SUITE}/{NO_SABOTAGE}"
    content = "\0".join((sabotage.mode, sabotage.file, sabotage.old, sabotage.new))
    return f"{SUITE}/{sabotage.name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def targeted_plans(sabotage: Sabotage) -> list[RunPlan]:
    """One run of each scenario that is likely to find the sabotage, with the seed of the smoke suite if that suite has the
    scenario.
    """
    smoke = {plan.scenario.name: plan for plan in smoke_plans((sabotage.mode,))}
    seed = FULL_SEEDS[3][0]
    return [smoke[name] if name in smoke else RunPlan(load(name), sabotage.mode, 3, seed, "full") for name in sabotage.likely]


def plans(sabotage: Sabotage, *, full: bool) -> list[RunPlan]:
    """The runs in the mode of the sabotage. Those that are likely to find it come first.

    Among equally likely runs, the smoke suite precedes the full suite."""
    suites = [smoke_plans((sabotage.mode,)), full_plans((3,), (sabotage.mode,)) if full else []]
    found: list[RunPlan] = []
    for suite in suites:
        likely = sabotage.likely
        found += sorted(suite, key=lambda plan: (*likely, plan.scenario.name).index(plan.scenario.name))
    if full:  # likely scenarios of the full suite go before unlikely ones of the smoke suite
        found.sort(key=lambda plan: plan.scenario.name not in sabotage.likely)
    return found


def judged(judgement: RunJudgement, scenario: str, folder: Path) -> SabotageRun:
    """The promised checks of a run, by verdict."""
    promised = [check for check in judgement.checks if judgement.promised(check)]
    checks = tuple(check.name for check in promised if check.verdict is Verdict.VIOLATED)
    suspecting = tuple(check.name for check in promised if check.verdict is Verdict.UNKNOWN and len(check.findings) > 1)
    holding = (NODES_START, *(check.name for check in promised if check.verdict is Verdict.VALID))
    return SabotageRun(scenario, judgement.verdict, checks, suspecting, holding, str(folder))


class Saboteur:
    """Tries sabotages, and makes the runs without a defect that are compared with them."""

    def __init__(self, runs: Path, say: Say) -> None:
        """``runs``: where the runs of this and earlier calls are."""
        self._runs, self._say = runs, say
        self._baselines: dict[str, list[SabotageRun]] = {}

    def tried(self, sabotage: Sabotage, planned: Sequence[RunPlan]) -> SabotageResult:
        """The planned runs, until one of them has found the sabotage. Raises SettingError if the sabotage does not fit the
        source.
        """
        with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
            command = copy_with(sabotage, Path(folder))
            return SabotageResult(sabotage, tuple(self._each(sabotage, planned, command)))

    def _each(self, sabotage: Sabotage, planned: Sequence[RunPlan], command: Sequence[str]) -> Iterator[SabotageRun]:
        suite = folder_of(sabotage)
        for plan in planned:
            earlier = [run for run in self._earlier(plan, suite) if run.verdict is not Verdict.UNKNOWN]
            run = earlier[0] if earlier else self._run(plan, suite, command)
            if run.checks:
                run = compared(run, self._baseline(plan, run.checks))
            self._say(f"  {plan.name}: {described_run(run)}{' (earlier run)' if earlier else ''}")
            yield run
            if run.checks:
                return

    def _baseline(self, plan: RunPlan, checks: Sequence[str]) -> list[SabotageRun]:
        """The same run without a defect, repeated while one of ``checks`` is unknown."""
        suite = folder_of(None)
        runs = self._baselines.setdefault(plan.name, list(self._earlier(plan, suite)))
        for _ in range(BASELINE_RUNS):
            known = {check for run in runs for check in (*run.checks, *run.holding)}
            if known.issuperset(checks):
                break
            runs.append(self._run(plan, suite, plan.node_command))
            self._say(f"  {plan.name}, without a sabotage: {described_run(runs[-1])}")
        return runs

    def _earlier(self, plan: RunPlan, suite: str) -> Iterator[SabotageRun]:
        """The complete runs of earlier calls, judged by the current checks."""
        for folder in sorted((self._runs / suite).glob(f"*-{plan.name}")):
            verdict = read_verdict(folder)
            if verdict is not None and verdict.get("complete", True):
                yield judged(conclude(folder)[0], plan.scenario.name, folder)

    def _run(self, plan: RunPlan, suite: str, command: Sequence[str]) -> SabotageRun:
        try:
            done = execute(replace(plan, suite=suite, node_command=command), self._runs, lambda line: None)
        except (ProcessError, ToxiproxyError) as error:  # no trace was recorded
            self._say(f"  {error}")
            crashed = not isinstance(error, ToxiproxyError | NotReadyError)
            return SabotageRun(
                plan.scenario.name,
                Verdict.VIOLATED if crashed else Verdict.UNKNOWN,
                (NODES_START,) if crashed else (),
                () if crashed else (NODES_START,),
            )
        return judged(done.judgement, plan.scenario.name, done.folder)


def compared(run: SabotageRun, baseline: Sequence[SabotageRun]) -> SabotageRun:
    """``run`` with only those violated checks that hold without the defect. Other violated checks prove nothing."""
    broken = {check for one in baseline for check in one.checks}
    holding = {check for one in baseline for check in one.holding} - broken
    found = tuple(check for check in run.checks if check in holding)
    if found:
        return run._replace(checks=found)
    return run._replace(verdict=Verdict.UNKNOWN, checks=(), suspecting=(*run.checks, *run.suspecting))


def described_run(run: SabotageRun) -> str:
    """The verdict of a run with the checks that decided it."""
    checks = [*run.checks, *(f"{check}?" for check in run.suspecting)]
    return f"{run.verdict.value}: {', '.join(checks)}" if checks else run.verdict.value


def table(results: Sequence[SabotageResult]) -> str:
    """The results as a Markdown table. A check with a question mark is one of ``SabotageRun.suspecting``."""
    rows = ["| sabotage | what it breaks | mode | found by |", "|---|---|---|---|"]
    for sabotage, runs in results:
        telling = [run for run in runs if run.checks] or [run for run in runs if run.suspecting]
        checks = [*telling[-1].checks, *(f"{check}?" for check in telling[-1].suspecting)] if telling else []
        told = f"{telling[-1].scenario}: {', '.join(checks)}" if telling else "nothing"
        rows.append(f"| {sabotage.name} | {sabotage.breaks} | {sabotage.mode.upper()} | {told} |")
    return "\n".join(rows)


def as_json(result: SabotageResult) -> dict[str, object]:
    """A result for scripts."""
    return {**result.sabotage._asdict(), "found": result.found.value, "runs": [run._asdict() for run in result.runs]}


class SabotageSummary(NamedTuple):
    """Numbers of sabotages."""

    caught: int
    missed: int
    unknown: int

    @classmethod
    def of(cls, results: Sequence[SabotageResult]) -> "SabotageSummary":
        """Count ``results``."""
        found = [result.found for result in results]
        return cls(found.count(Detection.CAUGHT), found.count(Detection.MISSED), found.count(Detection.UNKNOWN))

    def verdict(self, share: float) -> Verdict:
        """VALID if at least ``share`` percent were caught; UNKNOWN if this depends on unknown results."""
        needed = share / 100 * sum(self)
        if self.caught >= needed:
            return Verdict.VALID
        return Verdict.UNKNOWN if self.caught + self.unknown >= needed else Verdict.VIOLATED


def chosen(names: Sequence[str] | None) -> list[Sabotage]:
    """The sabotages with these names; None: all. Raises SettingError."""
    known = {sabotage.name: sabotage for sabotage in SABOTAGES}
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SettingError(f"no sabotage '{name}': {hint}'namesrv chaos sabotage --list' names them")
    return [sabotage for sabotage in SABOTAGES if names is None or sabotage.name in names]
