"""``python -m tests.chaos.mutations [DEFENCE…] [--seeds N] [--out DIR]``: see the package."""

import argparse
from pathlib import Path

from replicated_namesrv.chaos.suite import execute
from replicated_namesrv.errors import NamesrvError
from tests.chaos.mutations import SEED, Mutation, chosen, plan


def main() -> None:
    """Run the mutations, and print a line for each run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations")
    parser.add_argument("defence", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only-off", action="store_true", help="not the runs as shipped")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    for mutation in chosen(arguments.defence):
        for seed in range(SEED, SEED + arguments.seeds):
            for off in (True,) if arguments.only_off else (True, False):
                state = "off" if off else "as shipped"
                print(f"{mutation.defences}, {state}, seed {seed}: {told(mutation, seed, off, arguments.out)}", flush=True)


def told(mutation: Mutation, seed: int, off: bool, out: Path) -> str:
    """The result of a run. A node that detects the problem stops, and this ends the run."""
    try:
        done = execute(plan(mutation, seed, off=off), out, lambda text: None)
    except NamesrvError as error:
        return f"no verdict: {str(error).splitlines()[0]}"
    broken = [check.name for check in done.judgement.checks if check.verdict == "violated"]
    return f"{done.judgement.verdict} {', '.join(broken)} ({done.folder})"


if __name__ == "__main__":
    main()
