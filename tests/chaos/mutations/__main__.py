"""``python -m tests.chaos.mutations [DEFENCE…] [--seeds N] [--out DIR]``: see the package."""

import argparse
from pathlib import Path

from replicated_namesrv.chaos.suite import execute
from tests.chaos.mutations import SEED, chosen, plan


def main() -> None:
    """Run them; a line for each run."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutations")
    parser.add_argument("defence", nargs="*")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    for mutation in chosen(arguments.defence):
        for seed in range(SEED, SEED + arguments.seeds):
            for off in (True, False):
                done = execute(plan(mutation, seed, off=off), arguments.out, lambda text: None)
                broken = [check.name for check in done.judgement.checks if check.verdict == "violated"]
                state = "off" if off else "as shipped"
                verdict = done.judgement.verdict
                print(f"{mutation.defences}, {state}, seed {seed}: {verdict} {', '.join(broken)} ({done.folder})", flush=True)


if __name__ == "__main__":
    main()
