"""Takes the figures and the small tables of a report into this folder: ``python docs/results/refresh.py OUT/report``.

``summary.csv`` is cut to what the page speaks of: everybody's answers, in the whole run, before and during the fault, judged by
each mode's own read level; of single scenarios a few metrics. Numbers in the page are written by hand from these tables.
"""

import csv
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
COLUMNS = ("mode", "scenario", "phase", "metric", "unit", "level", "runs", "mean", "low", "high")
OWN_LEVEL = {"ap": "local", "cp": "linearizable"}
PHASES = ("all", "steady", "fault")
OF_SCENARIOS = (
    "divergence_area",
    "divergence_share",
    "fresh_reads",
    "harvest",
    "lost_writes",
    "misrouted",
    "route_fresh_reads",
    "unavailable_longest",
    "yield_in_time",
)
DIGITS = 4


def main(report: Path) -> None:
    """Copy and cut."""
    for figure in sorted((report / "figures").glob("*.svg")):
        shutil.copyfile(figure, HERE / "figures" / figure.name)
    shutil.copyfile(report / "tables" / "t_visibility.csv", HERE / "tables" / "t_visibility.csv")
    with (report / "tables" / "summary.csv").open(newline="") as whole, (HERE / "tables" / "summary.csv").open("w") as part:
        rows = list(csv.DictReader(whole))
        judged = {row["metric"] for row in rows if row["level"] in OWN_LEVEL.values()}
        writer = csv.DictWriter(part, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            level = OWN_LEVEL[row["mode"]] if row["metric"] in judged else "all"
            is_told = row["scenario"] == "all" or row["metric"] in OF_SCENARIOS
            if is_told and (row["side"], row["level"]) == ("all", level) and row["phase"] in PHASES:
                numbers = {name: f"{float(row[name]):.{DIGITS}g}" if row[name] else "" for name in ("mean", "low", "high")}
                writer.writerow(row | numbers)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "tables").is_dir():
        sys.exit("give the report folder of 'namesrv analyze', with its folders figures and tables")
    main(Path(sys.argv[1]))
