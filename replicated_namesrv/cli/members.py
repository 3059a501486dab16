"""``namesrv members list``: the members of a CP cluster, their addresses, roles and progress.

The leader knows the progress of all, so its answer is shown if it answers. Otherwise the first other answer is shown.
"""

import argparse
import sys
from typing import Any

from replicated_namesrv.cli.admin import (
    BAD,
    GOOD,
    UNKNOWN,
    AdminRefusedError,
    add_admin_arguments,
    admin_addresses,
    admin_of,
    ask_all,
)
from replicated_namesrv.cli.client import print_json, print_table
from replicated_namesrv.errors import NamesrvError

HELP = "show the members of a cluster: addresses, roles, progress"

_EXAMPLES = """\
  namesrv members list
  namesrv members list -a '10.0.0.1:9886;10.0.0.2:9886;10.0.0.3:9886' --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", choices=("list",))
    add_admin_arguments(parser, _EXAMPLES, "0 shown; 1 refused, for example by an independent node; 2 usage, or no node answered")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    addresses = admin_addresses(arguments, admin)
    answers = ask_all(addresses, lambda address: admin.ask(address, "/v1/members"))
    found = [answer for answer in answers if not isinstance(answer, NamesrvError)]
    if not found:
        print("\n".join(dict.fromkeys(map(str, answers))), file=sys.stderr)
        return BAD if any(isinstance(answer, AdminRefusedError) for answer in answers) else UNKNOWN
    best = max(found, key=lambda answer: (answer["nodeId"] == answer["leader"], answer["leader"] is not None, answer["term"]))
    if arguments.json:
        print_json(best)
    else:
        _print(best)
    return GOOD


def _print(answer: dict[str, Any]) -> None:
    header = ("node", "role", "peer address", "address", "serves", "index", "lag")
    print_table(header, [_line(row) for row in answer["members"]])
    if answer["nodeId"] != answer["leader"]:
        leader = "no leader is known" if answer["leader"] is None else f"the leader {answer['leader']} did not answer"
        print(f"\nas node {answer['nodeId']} knows them: {leader}, so the progress of the others is unknown")


def _line(row: dict[str, Any]) -> list[object]:
    serves = "drained" if row["drained"] else "yes" if row["serves"] else "no"
    unknown = ["?" if row[name] is None else row[name] for name in ("address", "matchIndex", "lag")]
    return [row["nodeId"], row["role"], row["peerAddress"], unknown[0], serves, *unknown[1:]]
