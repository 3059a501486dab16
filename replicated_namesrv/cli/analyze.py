"""``namesrv analyze``: computes the consistency and availability of AP and CP from recorded runs
(``replicated_namesrv.spark``).
"""

import argparse
import json
import sys
from typing import Any

from replicated_namesrv.chaos.run_modes import shown as mode_name
from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.errors import NamesrvError

HELP = "compute from recorded runs how consistent and how available each mode was, with a report"

_EXAMPLES = """\
  namesrv analyze runs/full                       every run of the suite; report in runs/full/analysis
  namesrv analyze runs/latest --out /tmp/a        one run
  namesrv analyze runs/full --master spark://host:7077   on an existing cluster

Needs Java 17 or later, which pip install 'replicated-namesrv[java]' also installs. The folder --out gets report/index.html
(opens offline), every figure as SVG and PNG, every table as CSV and Parquet, and the intermediate tables under tables/, which
docs/tables.md describes. Runs that were ingested before are not ingested again. Only one analysis at a time can write into
a folder; a second one is refused. HDFS and object stores cannot enforce this: give each analysis its own --out there.

Exit 0: analysed. 2: wrong usage, or a run that cannot be analysed; the message names the run and the remedy.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = "examples:\n" + _EXAMPLES
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or a folder that contains such folders")
    parser.add_argument("--out", metavar="DIR", help="folder for tables and report (default: analysis/ inside the first RUN)")
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark master (default: embedded, all cores)")
    parser.add_argument("--memory", default="1600m", metavar="SIZE", help="heap of the embedded JVM (default 1600m)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Analyse; exit code as in the examples."""
    out = arguments.out or f"{arguments.runs[0].rstrip('/')}/analysis"
    try:
        with CommandProgress() as say:
            from replicated_namesrv.spark.job import analyse

            results = analyse(arguments.runs, out, say, arguments.master, arguments.memory)
    except ImportError as error:
        print(f"namesrv analyze: {error.name} is not installed: pip install 'replicated-namesrv[spark]'", file=sys.stderr)
        return 2
    except NamesrvError as error:
        print(f"namesrv analyze: {error}", file=sys.stderr)
        return 2
    for entry in results.ingested:
        if entry.torn or entry.corrupt:
            say(f"{entry.run}: {entry.corrupt} corrupt and {entry.torn} torn lines were left out")
    if arguments.json:
        print(json.dumps({"out": out, "summary": results.summary, "paired": results.paired}))
    else:
        _print_table(results.summary)
        print(f"report: {out}/report/index.html")
    return 0


_SHOWN = (
    "linearizable_keys", "fresh_reads", "anomalous_reads", "lost_writes", "resurrected", "equal_probes", "divergence_area",
    "convergence", "harvest", "ghosts", "failover_yield_in_time",
    "failover_unavailable_longest", "route_latency_median", "misrouted",
)  # fmt: skip  # items grouped by line


def _print_table(summary: list[dict[str, Any]]) -> None:
    rows = {
        (row["metric"], row["mode"]): row
        for row in summary
        if row["scenario"] == row["level"] == row["phase"] == row["side"] == "all"
    }
    modes = sorted({mode for _, mode in rows})
    table = [["", *(mode_name(mode) for mode in modes)]]
    for metric in _SHOWN:
        cells = [_cell(rows.get((metric, mode))) for mode in modes]
        if any(cells):
            table.append([metric, *cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        print("  ".join([f"{name:{widths[0]}}", *aligned]))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    interval = f" [{row['low']:.4g}, {row['high']:.4g}]" if row["low"] is not None else ""
    return f"{row['mean']:.4g}{interval} {row['unit']}, {row['runs']} runs"
