"""Speed of the analysis of traces beside DuckDB computing the same figures from the same files in the same run.

    python -m benchmarks.spark [--rows 10000000] [--nodes 5] [--traces DIR] [--json]

Generates the traces, or uses those in DIR. Each engine runs in its own processes; the CPU time and resident memory of all of them
(the JVM, Python and its workers) are polled from /proc. The analysis is measured from the start of its session. The traces are
read once before each engine begins, so that both find them in memory: reading them from a disk may take longer than the analysis.
The analysis writes all tables as Parquet and the report, while DuckDB keeps its tables in memory, so the ratio favours DuckDB.
CPU seconds can be compared on a busy machine, wall time only on an idle one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from replicated_namesrv.spark.generate import generate

TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.2


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


class Usage:
    """CPU time and memory of a process and all its descendants, including those that have ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s: dict[int, float] = {}
        self.peak_mb = 0.0

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    def poll(self) -> None:
        parents: dict[int, list[int]] = defaultdict(list)
        found: dict[int, tuple[float, float]] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(fields[1])].append(int(process.name))
                resident_mb = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
                found[int(process.name)] = ((int(fields[11]) + int(fields[12])) / TICKS, resident_mb)
        total_mb, waiting = 0.0, [(self._pid, "")]
        while waiting:
            pid, above = waiting.pop()
            program = _program(pid)
            waiting += [(child, program) for child in parents[pid]]
            if pid in found:
                self._cpu_s[pid], resident_mb = found[pid]
                # A Java process with a Java parent is about to execute another program. Until then it shares its parent's memory.
                total_mb += 0.0 if program == above == "java" else resident_mb
        self.peak_mb = max(self.peak_mb, total_mb)


def measured(command: Sequence[str], begins: str) -> dict[str, float]:
    """Wall and CPU seconds from the line of standard error that begins with ``begins``, and the peak memory."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    usage = Usage(process.pid)
    began = (time.monotonic(), 0.0)

    def listen() -> None:
        nonlocal began
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(begins):
                began = (time.monotonic(), usage.cpu_s)
            say(f"  {line.rstrip()}")

    listener = threading.Thread(target=listen)
    listener.start()
    while process.poll() is None:
        usage.poll()
        time.sleep(POLL_S)
    listener.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return {"wall_s": time.monotonic() - began[0], "cpu_s": usage.cpu_s - began[1], "peak_mb": usage.peak_mb}


def into_memory(traces: Path) -> None:
    """Read all files below ``traces`` into the page cache, as far as there is room."""
    for path in traces.glob("*/*.jsonl"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def duckdb_alone(traces: Path) -> None:
    """Entry point of the second process."""
    from tests.spark.second_engine import SecondEngine

    say("DuckDB begins")
    engine = SecondEngine(sorted(path for path in traces.iterdir() if path.is_dir()))
    say(f"{len(engine.figures())} figures")
    engine.close()


def main() -> int:
    """Generate, run both, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of the traces; existing ones are reused")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--duckdb", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.duckdb:
        duckdb_alone(arguments.duckdb)
        return 0
    with tempfile.TemporaryDirectory(prefix="namesrv-benchmark-") as folder:
        traces = arguments.traces or Path(folder) / "traces"
        if not traces.is_dir() or not any(traces.iterdir()):
            generate(arguments.rows, arguments.nodes, 1, traces, say)
        known = [json.loads(path.read_text()) for path in traces.glob("*/truth.json")]
        rows = sum(run["observations"] for run in known)
        us = [sys.executable, "-m", "replicated_namesrv", "analyze", str(traces), "--out", f"{folder}/out", "--json"]
        into_memory(traces)
        found = {"analyze": measured(us, "ingesting")}
        into_memory(traces)
        found["duckdb"] = measured([sys.executable, "-m", "benchmarks.spark", "--duckdb", str(traces)], "DuckDB begins")
    for figures in found.values():
        figures["rows_per_cpu_s"] = rows / figures["cpu_s"]
    ratio = found["analyze"]["cpu_s"] / found["duckdb"]["cpu_s"]
    if arguments.json:
        print(json.dumps({"rows": rows, **found, "cpu_ratio": ratio}))
        return 0
    print(f"{rows:,} observations, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':10}{'rows per CPU s':>16}{'CPU s':>10}{'wall s':>10}{'peak MB':>10}")
    for name, figures in found.items():
        print(
            f"{name:10}{figures['rows_per_cpu_s']:>16,.0f}{figures['cpu_s']:>10.1f}{figures['wall_s']:>10.1f}"
            f"{figures['peak_mb']:>10,.0f}"
        )
    print(f"CPU time of analyze is {ratio:.2f} times that of DuckDB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
