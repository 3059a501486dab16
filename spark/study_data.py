"""The published data of a study, and the numbers that its page shows. Everything on the page is computed from these tables.

``runs.csv`` has a row for each run that is done, with the facts of the ledger. ``figures.csv`` has the figures of these runs.
"""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.errors import SettingError
from replicated_namesrv.files import write_atomically
from replicated_namesrv.spark.study_results import DETECTION, FIGURES, VISIBILITY, StudyFigure, StudyResult, StudyTrace
from replicated_namesrv.spark.summary import REPLICATES_MIN, Interval, interval, sign_test
from replicated_namesrv.spark.survival import reached_ms, turnbull

RUNS_FILE, FIGURES_FILE = "runs.csv", "figures.csv"
RUN_COLUMNS = (
    *("run", "arm", "scenario", "nodes", "seed", "cut", "levels", "attempt", "verdict", "reason", "started", "took_s", "load1"),
    *("slowdown", "stall_s", "jobs", "violated", "operations", "commit", "source_sha256", "manifest_sha256", "trace_sha256"),
    "analysis_sha256",
)
DIGITS = 5


class BlockKey(NamedTuple):
    """The schedule that the runs of a block have in common."""

    scenario: str
    nodes: str
    seed: str
    cut: str
    levels: str


Where = Callable[[BlockKey], bool]
"""Selects blocks."""


def everywhere(block: BlockKey) -> bool:
    """Selects all blocks."""
    return True


class PlanFacts(NamedTuple):
    """What the page says about a plan."""

    name: str
    title: str
    question: str
    timers: str
    arms: tuple[str, ...]
    modes: tuple[str, ...]
    """The mode of each arm: ap, cp, or a foreign name server with its version."""
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
    """Number of scenarios or, if these are too few, of seeds."""
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
    def _by_arm(self) -> dict[str, dict[BlockKey, str]]:
        made: dict[BlockKey, dict[str, str]] = defaultdict(dict)
        for run, row in self.runs.items():
            if run in self.figures:
                made[self.block(run)][row["arm"]] = run
        found: dict[str, dict[BlockKey, str]] = {arm: {} for arm in self.plan.arms}
        for block, own in made.items():
            if own.keys() == set(self.plan.arms):
                for arm, run in own.items():
                    found[arm][block] = run
        return found

    def block(self, run: str) -> BlockKey:
        """The block of a run."""
        return BlockKey(*(self.runs[run][name] for name in BlockKey._fields))

    def runs_of(self, arm: str) -> dict[BlockKey, str]:
        """The runs of an arm that count, by block. Blocks in which another arm has no figures do not count, because means over
        different blocks cannot be compared.
        """
        return self._by_arm[arm]

    @cached_property
    def seeds(self) -> int:
        """Number of seeds with a block that counts."""
        return len({block.seed for block in self.runs_of(self.plan.arms[0])})

    def values(self, arm: str, column: str, where: Where = everywhere) -> dict[BlockKey, float]:
        """A figure of the runs of an arm."""
        return {
            block: float(text)
            for block, run in self.runs_of(arm).items()
            if where(block) and (text := self.figures[run].get(column, ""))
        }

    def estimate(self, arm: str, figure: StudyFigure, where: Where = everywhere) -> Estimate | None:
        """The mean of a figure over the runs of an arm. None: no run has it."""
        return estimate(self.values(arm, figure.column, where), figure.unit)

    def difference(self, arm: str, other: str, figure: StudyFigure, where: Where = everywhere) -> Estimate | None:
        """The mean of ``arm`` minus ``other`` over the blocks in which both have the figure."""
        own, others = (self.values(name, figure.column, where) for name in (arm, other))
        return estimate({block: own[block] - others[block] for block in own if block in others}, "difference")

    def detections(self, arm: str) -> list[tuple[float, bool]]:
        """Times until silent deaths were detected, as multiples of the broker's time-out, for ``survival.Survival``."""
        times = [text for run in self.runs_of(arm).values() for text in self.figures[run].get(DETECTION, "").split()]
        return [(float(text.rstrip("+")), not text.endswith("+")) for text in times]

    def visible_ms(self, arm: str, share: float) -> float | None:
        """The age after which all reads see this share of the KV writes (Turnbull's estimate). None: it is not reached."""
        whole: Counter[tuple[int, int]] = Counter()
        for run in self.runs_of(arm).values():
            for text in self.figures[run].get(VISIBILITY, "").split():
                first, after, writes = map(int, text.split(":"))
                whole[first, after] += writes
        return reached_ms(turnbull(whole), share) if whole else None


def estimate(values: Mapping[BlockKey, float], unit: str) -> Estimate | None:
    """The mean, and its interval from at least REPLICATES_MIN replicates.

    The replicates are the scenarios, because runs of one scenario resemble each other. If there are fewer than REPLICATES_MIN
    scenarios, the replicates are the seeds: runs with the same seed have parts of their schedule in common. The interval is then
    one for these scenarios only."""
    if not values:
        return None
    numbers, scenarios = list(values.values()), [block.scenario for block in values]
    clusters = scenarios if len(set(scenarios)) >= REPLICATES_MIN else [block.seed for block in values]
    replicates = len(set(clusters))
    mean = math.fsum(numbers) / len(numbers)
    if replicates < REPLICATES_MIN:
        return Estimate(mean, (None, None), tuple(numbers), replicates)
    chance = sign_test(numbers, clusters) if unit == "difference" else None
    return Estimate(mean, interval(numbers, clusters, unit), tuple(numbers), replicates, chance)


def rows_of(traces: Sequence[StudyTrace], results: Sequence[StudyResult]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of runs.csv and figures.csv."""
    runs, figures = [], []
    for trace, result in zip(traces, results, strict=True):
        runs.append(_run_row({**trace.entry, "analysis_sha256": result.code}))
        numbers = {name: f"{value:.{DIGITS}g}" for name, value in result.figures.items()}
        figures.append({"run": result.run, **numbers, DETECTION: result.detection, VISIBILITY: result.visibility})
    return runs, figures


def rows_without_result(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows of runs.csv for runs that failed."""
    return [_run_row(entry) for entry in entries]


def _run_row(entry: Mapping[str, Any]) -> dict[str, str]:
    lists = {name: ";".join(entry.get(name) or ()) for name in ("levels", "violated")}
    row = {**entry, **lists, "operations": entry.get("figures", {}).get("operations")}
    return {name: _text(row.get(name)) for name in RUN_COLUMNS}


def _text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def write_data(folder: Path, runs: Iterable[Mapping[str, str]], figures: Iterable[Mapping[str, str]]) -> None:
    """Add rows to the tables in ``folder``. A row replaces an earlier row of the same run."""
    columns = {RUNS_FILE: RUN_COLUMNS, FIGURES_FILE: ("run", *(figure.column for figure in FIGURES), DETECTION, VISIBILITY)}
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


def described(found: Estimate | None, unit: str, *, signed: bool = False, show_values: bool = True) -> str:
    """A mean as text, with its interval, or with the values themselves if there are too few replicates for an interval.

    ``signed``: it is a difference, so a share has percentage points. ``show_values`` False: a chart shows the values."""
    if found is None:
        return "-"
    names = {"share": " points" if signed else " %", "s": " s", "ms": " ms"}
    factor, name = 100.0 if unit == "share" else 1.0, names.get(unit, "")
    shown = [number(value * factor, signed=signed) for value in (found.mean, *sorted(found.values))]
    text = shown[0] + name
    if len(found.values) > 1 and min(found.values) == max(found.values):
        return f"{text} in all {len(found.values)}"
    low, high = found.interval
    if low is not None and high is not None:
        return f"{text} [{number(low * factor, signed=signed)}, {number(high * factor, signed=signed)}]"
    if not show_values:
        return text
    if len(found.values) <= VALUES_MAX:
        return f"{text} ({', '.join(shown[1:])})"
    return f"{text} ({shown[1]} to {shown[-1]} in {len(found.values)})"


VALUES_MAX = 6
"""If there is no interval, at most this many values are shown; if there are more, their range is."""


def number(value: float, *, signed: bool = False) -> str:
    """A number as text: two significant digits below 10, whole numbers from 10 on, decimals between 90 and 100. Absolute values
    below 0.005 are 0."""
    sign = "+" if signed and value > 0 else ""
    if abs(value) < 0.005:
        return "0"
    if 90 < abs(value) < 100:
        digits = 1 if abs(value) < 99.9 else 2
        return sign + f"{min(max(value, -99.99), 99.99):.{digits}f}".removesuffix(".0")
    return sign + (f"{value:,.0f}" if abs(value) >= 10 else f"{float(f'{value:.2g}'):g}")
