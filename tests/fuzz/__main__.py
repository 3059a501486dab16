"""python -m tests.fuzz [--inputs N | --inputs-per-target N] [--seed N] [--target NAME]: fuzz the parsers.

Exit code 1: a defect was found; its input and the command that repeats it are printed.
"""

import argparse
import math
import secrets
import sys
import time

from tests.fuzz.connections import stop_nodes
from tests.fuzz.engine import FuzzError, fuzz
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="in all; targets with costly inputs get fewer")
    parser.add_argument("--inputs-per-target", type=int)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--target", choices=TARGETS, action="append")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    shares = sum(1 / TARGETS[name].cost for name in names)
    counts = {name: given.inputs_per_target or math.ceil(given.inputs / shares / TARGETS[name].cost) for name in names}
    print(f"seed {given.seed}, {sum(counts.values())} inputs for {len(names)} targets", flush=True)
    failed = False
    for name in names:
        began = time.monotonic()
        try:
            kept = fuzz(name, TARGETS[name], given.seed, counts[name])
            seconds = time.monotonic() - began
            print(f"{name:<16} {counts[name] / seconds:>8.0f} inputs/s, {kept} reached new lines", flush=True)
        except FuzzError as error:
            print(error, flush=True)
            failed = True
    stop_nodes()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
