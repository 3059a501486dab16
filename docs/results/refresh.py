"""Copies the figures and small tables of a report into this folder, and fills the page's numbers from these tables."""

import csv
import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean
from textwrap import TextWrapper

from replicated_namesrv.spark.summary import REPLICATES_MIN, interval

HERE = Path(__file__).parent
TEMPLATE, PAGE = HERE / "README.template.md", HERE / "README.md"
COLUMNS = ("mode", "scenario", "phase", "metric", "unit", "level", "runs", "mean", "low", "high")
RUNS = ("mode", "scenario", "seed", "nodes", "fault_s")
LENGTHS = ("mode", "fault_s", "metric", "runs", "mean", "low", "high")
OWN_LEVEL = {"ap": "local", "cp": "linearizable"}
PHASES = ("all", "steady", "fault")
OF_SCENARIOS = (
    "divergence_area",
    "divergence_share",
    "failover_unavailable_longest",
    "failover_yield_in_time",
    "fresh_reads",
    "harvest",
    "lost_writes",
    "misrouted",
    "route_fresh_reads",
    "unavailable_longest",
    "yield_in_time",
)
BY_LENGTH = {
    "convergence": "until all nodes agree after the heal (s)",
    "staleness_max": "longest lag of a KV read (s)",
    "unavailable_longest": "longest time without a success (s)",
}
ABOUT = {"KV": "key-value store", "routes": "registrations"}
DIGITS = 4
WIDTH = 130
_KEPT = "\0"
"""Stands for a space within a number, at which no line ends."""

Row = dict[str, str]


class PageError(Exception):
    """A number that the page asks for and the tables do not have."""


def take(report: Path, lengths: Path | None) -> None:
    """Copy and cut."""
    for figure in sorted((report / "figures").glob("*.svg")):
        if lengths is None or figure.name != "lengths.svg":
            shutil.copyfile(figure, HERE / "figures" / figure.name)
    shutil.copyfile(report / "tables" / "t_visibility.csv", HERE / "tables" / "t_visibility.csv")
    rows = read(report / "tables" / "summary.csv")
    judged = {row["metric"] for row in rows if row["level"] in OWN_LEVEL.values()}
    kept = []
    for row in rows:
        level = OWN_LEVEL[row["mode"]] if row["metric"] in judged else "all"
        is_told = row["scenario"] == "all" or row["metric"] in OF_SCENARIOS
        if is_told and (row["side"], row["level"]) == ("all", level) and row["phase"] in PHASES:
            kept.append(row | {name: f"{float(row[name]):.{DIGITS}g}" if row[name] else "" for name in ("mean", "low", "high")})
    write("summary", COLUMNS, kept)
    write("runs", RUNS, sorted(read(report / "tables" / "runs.csv"), key=lambda row: [row[name] for name in RUNS]))
    if lengths is not None:
        shutil.copyfile(lengths / "figures" / "lengths.svg", HERE / "figures" / "lengths.svg")
        write("lengths", LENGTHS, by_length(read(lengths / "tables" / "per_run.csv")))


def by_length(per_run: list[Row]) -> list[Row]:
    """Means over the runs whose faults were meant to last as long, with their intervals if there are enough runs."""
    groups: dict[tuple[str, float, str], list[float]] = {}
    judged = {row["metric"] for row in per_run if row["level"] in OWN_LEVEL.values()}
    for row in per_run:
        is_own = row["level"] == (OWN_LEVEL[row["mode"]] if row["metric"] in judged else "all")
        if row["metric"] in BY_LENGTH and row["phase"] == row["side"] == "all" and is_own:
            groups.setdefault((row["mode"], float(row["fault_s"]), row["metric"]), []).append(float(row["value"]))
    rows = []
    for (mode, length, metric), values in sorted(groups.items()):
        texts = ["" if number is None else f"{number:.{DIGITS}g}" for number in (mean(values), *interval(values))]
        rows.append(dict(zip(LENGTHS, (mode, f"{length:g}", metric, str(len(values)), *texts), strict=True)))
    return rows


def read(path: Path) -> list[Row]:
    """Rows of a table."""
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write(name: str, columns: tuple[str, ...], rows: list[Row]) -> None:
    """A table of this folder."""
    with (HERE / "tables" / f"{name}.csv").open("w") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class Numbers:
    """The tables of this folder, asked in the words of the template."""

    def __init__(self) -> None:
        rows = read(HERE / "tables" / "summary.csv")
        self._rows = {(row["mode"], row["metric"], row["phase"], row["scenario"]): row for row in rows}
        self._visible = read(HERE / "tables" / "t_visibility.csv")
        self._runs = read(HERE / "tables" / "runs.csv")
        lengths = HERE / "tables" / "lengths.csv"
        self._lengths = read(lengths) if lengths.exists() else []

    def answer(self, question: str) -> str:
        """Text for what stands between the braces. Raises PageError."""
        match question.split():
            case ["runs"]:
                return str(len(self._runs))
            case ["runs", mode]:
                return str(sum(row["mode"] == mode for row in self._runs))
            case ["scenarios"]:
                return str(len({row["scenario"] for row in self._runs}))
            case ["seeds"]:
                seeds = sorted({int(row["seed"]) for row in self._runs})
                return f"seed{'s' * (len(seeds) > 1)} {_enumerated(list(map(str, seeds)))}"
            case ["nodes"]:
                return _enumerated(sorted({row["nodes"] for row in self._runs}))
            case ["lengths"]:
                return self._table_of_lengths()
            case ["visible", mode, about, percent]:
                return self._age(mode, ABOUT[about], float(percent) / 100)
            case ["range", mode, metric, *words]:
                names = [name for word, name in pairwise(words) if word == "in"]
                rows = [self._row(mode, metric, words, name) for name in names]
                centres = [_centre(row, words)[0] for row in rows]
                unit = _unit(rows[0], words)
                low, high = _number(min(centres)), _number(max(centres))
                return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
            case [mode, metric, *words]:
                name = words[words.index("in") + 1] if "in" in words else "all"
                return _text(self._row(mode, metric, words, name), words)
        raise PageError(f"{{{{{question}}}}}: unknown words")

    def _row(self, mode: str, metric: str, words: list[str], scenario: str) -> Row:
        phase = next((word for word in words if word in PHASES), "all")
        found = self._rows.get((mode, metric, phase, scenario))
        if found is None:
            raise PageError(f"{mode} {metric} {phase} {scenario}: not in summary.csv")
        return found

    def _age(self, mode: str, about: str, share: float) -> str:
        for row in self._visible:
            if (row["mode"], row["about"], row["level"]) == (mode, about, OWN_LEVEL[mode]) and float(row["share"]) == share:
                return f"{_number(float(row['age_ms']) / 1000)} s" if row["age_ms"] else "longer than was looked"
        raise PageError(f"{mode} {about} {share}: not in t_visibility.csv")

    def _table_of_lengths(self) -> str:
        if not self._lengths:
            return "(No report of such runs was taken in.)"
        cells = {(row["mode"], row["fault_s"], row["metric"]): row for row in self._lengths}
        lines = ["| fault (s) | " + " | ".join(f"{title}, {mode.upper()}" for title in BY_LENGTH.values() for mode in OWN_LEVEL)]
        lines = [f"{lines[0]} | runs of a mode |", "|" + "---:|" * (2 + len(BY_LENGTH) * len(OWN_LEVEL))]
        for length in sorted({row["fault_s"] for row in self._lengths}, key=float):
            rows = [cells.get((mode, length, metric)) for metric in BY_LENGTH for mode in OWN_LEVEL]
            texts = [_length_cell(row) if row else "-" for row in rows]
            runs = " / ".join(sorted({row["runs"] for row in rows if row}))
            lines.append(f"| {length} | " + " | ".join(texts) + f" | {runs} |")
        return "\n".join(lines)


def _length_cell(row: Row) -> str:
    divisor = 1000 if row["metric"] == "staleness_max" else 1
    centre, low, high = (_number(float(row[name] or "nan") / divisor) for name in ("mean", "low", "high"))
    return f"{centre} [{low}, {high}]" if row["low"] and int(row["runs"]) >= REPLICATES_MIN else centre


def _enumerated(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def _centre(row: Row, words: list[str]) -> tuple[float, float, float]:
    """Mean and interval, NaN without one; shares in percent."""
    centre, low, high = (float(row[name] or "nan") for name in ("mean", "low", "high"))
    if "missing" in words:
        centre, low, high = 1 - centre, 1 - high, 1 - low
    factor = 100 if row["unit"] == "share" else 0.001 if "s" in words else 1
    return centre * factor, low * factor, high * factor


def _unit(row: Row, words: list[str]) -> str:
    unit = "%" if row["unit"] == "share" else "s" if "s" in words else row["unit"]
    return f" {unit}" if unit in ("%", "s", "ms") else ""


def _text(row: Row, words: list[str]) -> str:
    centre, low, high = map(_number, _centre(row, words))
    has_interval = "plain" not in words and row["low"] != "" and row["scenario"] == "all"
    return f"{centre}{_unit(row, words)}" + (f" [{low}, {high}]" if has_interval else "")


def _number(value: float) -> str:
    """Two digits, three near 100 %, without a misleading zero."""
    if abs(value) < 0.005:
        return "0"
    if 90 < value < 100:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:,.0f}" if abs(value) >= 10 else f"{float(f'{value:.2g}'):g}"


def page() -> str:
    """The page, with the numbers of the tables. Raises PageError."""
    numbers = Numbers()
    filled = re.sub(r"\{\{(.+?)\}\}", lambda found: numbers.answer(found[1]), TEMPLATE.read_text("utf-8"), flags=re.DOTALL)
    return "\n\n".join(map(_wrapped, filled.split("\n\n")))


def _wrapped(block: str) -> str:
    """Text anew in lines; tables, headings, pictures and commands as they are."""
    if block.startswith(("#", "|", "!", "    ")):
        return block
    items = re.split(r"\n(?=- )", block.rstrip("\n"))
    wrap = TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False)
    texts = []
    for item in items:
        wrap.subsequent_indent = "  " if item.startswith("- ") else ""
        joined = re.sub(r"(?<=\d) (?=%|m?s\b|\[)|(?<=%|s) (?=\[\d)|(?<=\d,) (?=[\d.]+\])", _KEPT, " ".join(item.split()))
        texts.append(wrap.fill(joined).replace(_KEPT, " "))
    return "\n".join(texts) + block[len(block.rstrip("\n")) :]


def main(arguments: list[str]) -> str | None:
    """The error, or None."""
    reports = [Path(argument) for argument in arguments]
    if len(reports) > 2:
        return "give one report, or two: the second of faults of several lengths"
    for report in reports:
        if not all(
            (report / name).exists() for name in ("figures", "tables/summary.csv", "tables/runs.csv", "tables/per_run.csv")
        ):
            return f"{report}: is not a report; give the folder report/ of 'namesrv analyze'"
    if reports:
        take(reports[0], reports[1] if len(reports) > 1 else None)
    try:
        PAGE.write_text(page(), "utf-8")
    except PageError as cause:
        return f"{TEMPLATE}: {cause}; change the sentence that speaks of it"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
