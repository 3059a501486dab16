"""The published data of a study, and the numbers that its page shows. Everything on the page is computed from these tables.

``runs.csv`` has a row for each run that is done, with the facts of the ledger. ``figures.csv`` has the figures of these runs.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.errors import SettingError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark.study_results import DETECTION, FIGURES, StudyFigure, StudyResult, StudyTrace
from replicated_namesrv.spark.summary import REPLICATES_MIN, Interval, interval, sign_test

RUNS_FILE, FIGURES_FILE = "runs.csv", "figures.csv"
RUN_COLUMNS = (
    *("run", "arm", "scenario", "nodes", "seed", "cut", "levels", "attempt", "verdict", "reason", "started", "took_s", "load1"),
    *("slowdown", "stall_s", "jobs", "commit", "source_sha256", "manifest_sha256", "trace_sha256", "analysis_sha256"),
)
COUNTED = ("valid", "violated", "unknown")
"""Verdicts of the runs whose figures count. An unknown verdict means that the machine was too busy to judge the run."""
DIGITS = 5

BlockKey = tuple[str, str, str, str, str]
"""Scenario, nodes, seed, cut variant, levels."""


class PlanFacts(NamedTuple):
    """What the page says about a plan."""

    name: str
    title: str
    question: str
    timers: str
    arms: tuple[str, ...]
    scenarios: tuple[str, ...]
    factors: tuple[tuple[str, tuple[str, ...]], ...]
    keys: frozenset[str]
    """All runs of the plan."""


class Estimate(NamedTuple):
    """A mean with its interval, and the values of the runs or pairs."""

    mean: float
    interval: Interval
    values: tuple[float, ...]
    replicates: int
    """Number of scenarios or, for one scenario, of values."""
    chance: float | None = None
    """p-value of a sign test, if the mean is one of differences. None: too few replicates, or no differences."""


@dataclass(frozen=True)
class StudyData:
    """The runs of a study that are done."""

    plan: PlanFacts
    runs: Mapping[str, Mapping[str, str]]
    """Rows of runs.csv by run."""
    figures: Mapping[str, Mapping[str, str]]
    """Rows of figures.csv by run."""

    @cached_property
    def counted(self) -> list[str]:
        """Runs whose figures count."""
        return [run for run, row in self.runs.items() if row["verdict"] in COUNTED and run in self.figures]

    @cached_property
    def _by_arm(self) -> dict[str, dict[BlockKey, str]]:
        found: dict[str, dict[BlockKey, str]] = {arm: {} for arm in self.plan.arms}
        for run in self.counted:
            found[self.runs[run]["arm"]][self.block(run)] = run
        return found

    def block(self, run: str) -> BlockKey:
        """The block of a run."""
        row = self.runs[run]
        return row["scenario"], row["nodes"], row["seed"], row["cut"], row["levels"]

    def runs_of(self, arm: str) -> dict[BlockKey, str]:
        """The runs of an arm that count, by block."""
        return self._by_arm[arm]

    def values(self, arm: str, column: str, scenario: str | None = None, level: str | None = None) -> dict[BlockKey, float]:
        """A figure of the runs of an arm."""
        return {
            block: float(text)
            for block, run in self.runs_of(arm).items()
            if (scenario is None or block[0] == scenario)
            and (level is None or level in block[4].split(";"))
            and (text := self.figures[run].get(column, ""))
        }

    def estimate(self, arm: str, figure: StudyFigure, scenario: str | None = None, level: str | None = None) -> Estimate | None:
        """The mean of a figure over the runs of an arm. None: no run has it."""
        return estimate(self.values(arm, figure.column, scenario, level), figure.unit)

    def difference(
        self, arm: str, other: str, figure: StudyFigure, scenario: str | None = None, level: str | None = None
    ) -> Estimate | None:
        """The mean of ``arm`` minus ``other`` over the blocks in which both have the figure."""
        own, others = (self.values(name, figure.column, scenario, level) for name in (arm, other))
        return estimate({block: own[block] - others[block] for block in own if block in others}, "difference")

    def detections(self, arm: str) -> list[tuple[float, bool]]:
        """Times until deaths were detected, for ``survival.Survival``."""
        times = [text for run in self.runs_of(arm).values() for text in self.figures[run].get(DETECTION, "").split()]
        return [(float(text.rstrip("+")), not text.endswith("+")) for text in times]


def estimate(values: Mapping[BlockKey, float], unit: str) -> Estimate | None:
    """The mean, and its interval from at least REPLICATES_MIN replicates: scenarios or, within one scenario, runs."""
    if not values:
        return None
    numbers, scenarios = list(values.values()), [block[0] for block in values]
    count = len(set(scenarios))
    replicates = count if count > 1 else len(numbers)
    chance = sign_test(numbers, scenarios) if unit == "difference" else None
    return Estimate(math.fsum(numbers) / len(numbers), interval(numbers, scenarios, unit), tuple(numbers), replicates, chance)


def rows_of(traces: Sequence[StudyTrace], results: Sequence[StudyResult]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of runs.csv and figures.csv."""
    runs, figures = [], []
    for trace, result in zip(traces, results, strict=True):
        entry = {**trace.entry, "levels": ";".join(trace.entry["levels"]), "analysis_sha256": result.code}
        runs.append({name: _text(entry.get(name)) for name in RUN_COLUMNS})
        numbers = {name: f"{value:.{DIGITS}g}" for name, value in result.figures.items()}
        figures.append({"run": result.run, **numbers, DETECTION: result.detection})
    return runs, figures


def rows_without_result(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows of runs.csv for runs that failed."""
    found = ({**entry, "levels": ";".join(entry["levels"])} for entry in entries)
    return [{name: _text(entry.get(name)) for name in RUN_COLUMNS} for entry in found]


def _text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def write_data(folder: Path, runs: Iterable[Mapping[str, str]], figures: Iterable[Mapping[str, str]]) -> None:
    """Add rows to the tables in ``folder``. A row replaces an earlier row of the same run."""
    columns = {RUNS_FILE: RUN_COLUMNS, FIGURES_FILE: ("run", *(figure.column for figure in FIGURES), DETECTION)}
    for name, rows in ((RUNS_FILE, runs), (FIGURES_FILE, figures)):
        merged = _read(folder / name) | {row["run"]: row for row in rows}
        lines = _Lines()
        writer = csv.DictWriter(lines, columns[name], restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged[run] for run in sorted(merged))
        write_atomically(folder / name, "".join(lines).encode())


class _Lines(list[str]):
    """Collects the lines of a csv writer."""

    def write(self, text: str) -> None:
        self.append(text)


def read_data(folder: Path, plan: PlanFacts) -> StudyData:
    """The data of a study. Raises SettingError."""
    if not (folder / RUNS_FILE).exists():
        raise SettingError(f"{folder}: contains no {RUNS_FILE}; publish a study first, by its folder")
    return StudyData(plan, *(_read(folder / name) for name in (RUNS_FILE, FIGURES_FILE)))


def _read(path: Path) -> dict[str, Mapping[str, str]]:
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        return {row["run"]: row for row in csv.DictReader(lines)}


def described(found: Estimate | None, unit: str, *, signed: bool = False) -> str:
    """A mean as text, with its interval, or with its values if there are too few for an interval."""
    if found is None:
        return "-"
    factor, digits_unit = (100.0, " %") if unit == "share" else (1.0, f" {unit}" if unit in ("s", "ms") else "")
    low, high = found.interval
    if len(found.values) > 1 and min(found.values) == max(found.values):
        return f"{number(found.mean * factor, signed=signed)}{digits_unit} in all {len(found.values)}"
    text = f"{number(found.mean * factor, signed=signed)}{digits_unit}"
    if low is not None and high is not None:
        return f"{text} [{number(low * factor, signed=signed)}, {number(high * factor, signed=signed)}]"
    if found.replicates < REPLICATES_MIN and len(found.values) < REPLICATES_MIN:
        return f"{text} ({', '.join(number(value * factor, signed=signed) for value in sorted(found.values))})"
    return text


def number(value: float, *, signed: bool = False) -> str:
    """A number as text: two significant digits, three between 90 and 100. Values below 0.005 are 0."""
    sign = "+" if signed and value > 0 else ""
    if abs(value) < 0.005:
        return "0"
    if 90 < abs(value) < 100:
        return sign + f"{value:.1f}".removesuffix(".0")
    return sign + (f"{value:,.0f}" if abs(value) >= 10 else f"{float(f'{value:.2g}'):g}")


def batches(data: StudyData) -> Iterator[tuple[str, int, int]]:
    """For each arm: runs of the plan that are done, and those that count."""
    done: dict[str, int] = defaultdict(int)
    for row in data.runs.values():
        done[row["arm"]] += 1
    for arm in data.plan.arms:
        yield arm, done[arm], len(data.runs_of(arm))
