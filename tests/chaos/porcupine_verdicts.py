"""Compares our linearizability checker with Porcupine (github.com/anishathalye/porcupine), key by key.

    python -m tests.chaos.porcupine_verdicts --seeds 0:5 runs/full/*      # exit 1 if a verdict differs

The histories are those of generated correct runs, of the same runs after each of the corruptions (``corruptions.py``), and the
``history.jsonl`` of the given folders of runs. The program in ``tests/chaos/porcupine`` is built with Go, which fetches Porcupine
through the Go module proxy.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv import provision
from replicated_namesrv.chaos.checks.linear import LIMITS
from replicated_namesrv.chaos.run_report import HISTORY_FILE, history
from replicated_namesrv.verify import check_history, read_history, write_history
from tests.chaos.corruptions import FOUND_BY, corrupted
from tests.chaos.true_runs import TrueRun

SOURCE = Path(__file__).with_name("porcupine")


class Compared(NamedTuple):
    """The verdicts of both checkers."""

    histories: int
    keys: Counter[str]
    """Number of keys by verdict. Keys for which a checker reached its limits count as unknown."""
    differing: list[str]


def generated(folder: Path, seeds: Sequence[int]) -> Iterator[Path]:
    """Write the histories of a correct run of each seed, and of the run after each corruption."""
    for seed in seeds:
        story, rng = TrueRun(random.Random(seed)).script.story, random.Random(seed)
        for name, change in (("true", None), *((one.__name__, one) for one in FOUND_BY)):
            changes = {} if change is None else change(story, rng)
            if changes is not None:
                path = folder / f"{seed}-{name}.jsonl"
                write_history(path, history(corrupted(story, changes)))
                yield path


def built(folder: Path) -> Path:
    """Build the program. Raises ProvisionError without Go, and CalledProcessError."""
    go = provision.find_go()
    if go is None:
        raise provision.ProvisionError("no Go was found to build the program with Porcupine; install Go 1.23 or later")
    program = folder / "histories"
    subprocess.run([str(go), "build", "-o", str(program), "."], cwd=SOURCE, check=True, capture_output=True)
    return program


def compared(program: Path, paths: Sequence[Path]) -> Compared:
    """Judge the histories with both checkers."""
    done = subprocess.run([str(program), *map(str, paths)], check=True, capture_output=True, text=True)
    theirs = {found["file"]: found["keys"] for found in map(json.loads, done.stdout.splitlines())}
    keys: Counter[str] = Counter()
    differing: list[str] = []
    for path in paths:
        ours = {key.key: key.verdict.value for key in check_history(read_history(path), LIMITS).keys}
        for key, verdict in theirs[str(path)].items():
            verdicts = {verdict, ours.get(key, "valid")}
            keys["unknown" if "unknown" in verdicts else verdict] += 1
            if len(verdicts - {"unknown"}) > 1:
                differing.append(f"{path}: {key}: Porcupine {verdict}, ours {ours.get(key)}")
    return Compared(len(paths), keys, differing)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.porcupine_verdicts", description=__doc__)
    parser.add_argument("--seeds", default="0:5", metavar="FROM:TO", help="seeds of the generated runs (default: %(default)s)")
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs")
    given = parser.parse_args(arguments)
    first, _, end = given.seeds.partition(":")
    with tempfile.TemporaryDirectory(prefix="porcupine-") as name:
        folder = Path(name)
        paths = [*generated(folder, range(int(first), int(end))), *(run / HISTORY_FILE for run in given.runs)]
        found = compared(built(folder), paths)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.keys.items()))
    print(f"{found.histories} histories with {found.keys.total()} keys ({told}); {len(found.differing)} verdicts differ")
    print("\n".join(found.differing))
    return 1 if found.differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
