"""``namesrv trace``: make traces whose figures are known by construction; see ``replicated_namesrv.spark.generate``."""

import argparse
import sys
from pathlib import Path

from replicated_namesrv.errors import NamesrvError

HELP = "make synthetic traces with known figures, to try and to measure the analysis"

_EXAMPLES = """\
  namesrv trace generate --rows 100000 --out /tmp/traces    one AP and one CP run, 100,000 observations together
  namesrv analyze /tmp/traces                               compare its figures with truth.json beside each trace

Exit 0: written. 2: wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = "examples:\n" + _EXAMPLES
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    generate = commands.add_parser("generate", help="write one AP and one CP run")
    generate.add_argument("--rows", type=int, required=True, metavar="N", help="observations in both runs together")
    generate.add_argument("--nodes", type=int, default=5, metavar="N", help="3 or 5 (default 5)")
    generate.add_argument("--seed", type=int, default=1, metavar="N", help="another seed, another trace (default 1)")
    generate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the runs' folders")


def run(arguments: argparse.Namespace) -> int:
    """Generate; exit code as in the examples."""
    from replicated_namesrv.spark.generate import generate

    try:
        generate(
            arguments.rows, arguments.nodes, arguments.seed, arguments.out, lambda line: print(line, file=sys.stderr, flush=True)
        )
    except NamesrvError as error:
        print(f"namesrv trace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"namesrv trace: {error.filename}: {error.strerror}; choose another --out", file=sys.stderr)
        return 2
    return 0
