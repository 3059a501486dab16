"""``namesrv trace``: creates synthetic traces with known figures (``spark.generate``) and converts histories of other tools to
traces (``spark.foreign``)."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from replicated_namesrv.errors import NamesrvError

HELP = "make input for the analysis: synthetic traces, or traces from the histories of other tools"

_EXAMPLES = """\
  namesrv trace generate --rows 100000 --out /tmp/traces    one AP and one CP run, 100,000 observations together
  namesrv analyze /tmp/traces                               compare its figures with truth.json beside each trace

  namesrv trace import store/etcd/latest/history.edn --name etcd --out /tmp/traces    a Jepsen test's history
  namesrv analyze /tmp/traces/etcd                          the figures that apply to it

A history is read as EDN if its name ends in .edn, else as JSON with the same fields: type, f, value, process, time (ns). Each
operation may take one line or several, or all may be in one vector. If no operation has a time, the order in the file is used.

Exit 0: written. 2: wrong usage, or a history that cannot be imported; the message names the line and the remedy.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.epilog = "examples:\n" + _EXAMPLES
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    about = "Write one AP and one CP run with known figures."
    generate = commands.add_parser("generate", help="write one AP and one CP run", description=about)
    generate.add_argument("--rows", type=int, required=True, metavar="N", help="observations in both runs together")
    generate.add_argument("--nodes", type=int, default=5, metavar="N", help="3 or 5 (default 5)")
    generate.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the trace (default 1)")
    generate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the runs' folders")
    about = "Convert a history that Jepsen recorded into a run."
    history = commands.add_parser("import", help="convert a history that Jepsen recorded into a run", description=about)
    history.add_argument("history", type=Path, metavar="FILE", help="history.edn, or JSON lines")
    history.add_argument("--name", required=True, metavar="RUN", help="name of the run, and of its folder")
    history.add_argument("--mode", choices=("ap", "cp"), default="cp", help="mode of the run in the analysis (default cp)")
    history.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the run's folder")


def run(arguments: argparse.Namespace) -> int:
    """Generate or import; exit code as in the examples."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if arguments.action == "import":
            _import(arguments, say)
        else:
            from replicated_namesrv.spark.generate import generate

            generate(arguments.rows, arguments.nodes, arguments.seed, arguments.out, say)
    except NamesrvError as error:
        print(f"namesrv trace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"namesrv trace: {error.filename}: {error.strerror}; choose another --out", file=sys.stderr)
        return 2
    return 0


def _import(arguments: argparse.Namespace, say: Callable[[str], None]) -> None:
    from replicated_namesrv.spark.foreign import import_history

    made = import_history(arguments.history, arguments.name, arguments.mode, arguments.out, say)
    if made.torn:
        say(f"{arguments.history}: the last line was cut off and is left out")
    print(
        f"{made.folder}: {made.operations:,} operations, {made.unknown:,} of unknown outcome; next: namesrv analyze {made.folder}"
    )
