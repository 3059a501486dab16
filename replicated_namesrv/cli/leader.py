"""``namesrv leader``: shows the leader of a cluster and transfers leadership.

The leader executes a transfer: it lets the successor catch up and then has it elected. Clients wait at most for one election.
A transfer before maintenance saves the time in which the cluster would wait for an election.
"""

import argparse
import sys
import time
from typing import Any
from urllib.parse import quote

from replicated_namesrv.cli.admin import BAD, GOOD, UNKNOWN, Admin, add_admin_arguments, admin_addresses, admin_of
from replicated_namesrv.cli.client import print_json
from replicated_namesrv.cli.status import look_at, look_at_cluster, of_one_cluster
from replicated_namesrv.errors import NamesrvError

HELP = "show the leader of a cluster, or transfer leadership to another node"

LOOK_PAUSE_S = 0.05

_EXAMPLES = """\
  namesrv leader                       its name
  namesrv leader transfer              to the node with the longest log
  namesrv leader transfer n2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", nargs="?", choices=("show", "transfer"), default="show")
    parser.add_argument("to", nargs="?", metavar="NODE", help="new leader (default: the node with the longest log)")
    codes = "0 done; 1 refused, or no leader; 2 usage, no node answered, or outcome unknown"
    add_admin_arguments(parser, _EXAMPLES, codes)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    if arguments.action == "show" and arguments.to is not None:
        arguments.usage_error("'leader show' takes no NODE; did you mean 'leader transfer'?")
    admin = admin_of(arguments)
    given = admin_addresses(arguments, admin)
    nodes = of_one_cluster(look_at_cluster(admin, given)[1], given)
    addresses = tuple(node["admin"] for node in nodes)
    if not any(node["answers"] for node in nodes):
        print("; ".join(f"{node['admin']}: {node['problem']}" for node in nodes), file=sys.stderr)
        return BAD if all(node["refused"] for node in nodes) else UNKNOWN
    leader = leader_among(nodes)
    if leader is None:
        independent = any(node.get("mode") == "ap" for node in nodes)
        reason = "independent nodes (mode=ap) have no leader" if independent else "no node that answered leads"
        print(f"{reason}; see 'namesrv status'", file=sys.stderr)
        return BAD
    if arguments.action == "show":
        if arguments.json:
            print_json({"leader": leader["nodeId"], "term": leader["term"], "admin": leader["admin"]})
        else:
            print(f"{leader['nodeId']}, term {leader['term']}")
        return GOOD
    return _transfer(admin, addresses, leader, arguments)


def leader_among(nodes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The leader of the newest term."""
    leaders = [node for node in nodes if node["answers"] and node["role"] == "leader"]
    return max(leaders, key=lambda node: int(node["term"]), default=None)


def _transfer(admin: Admin, addresses: tuple[str, ...], leader: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.to == leader["nodeId"]:
        print(f"{arguments.to} is already the leader, in term {leader['term']}", file=sys.stderr)
        return GOOD
    path = "/v1/leader/transfer" + (f"?to={quote(arguments.to)}" if arguments.to else "")
    try:
        admin.ask(leader["admin"], path, "POST")
    except NamesrvError as error:
        print(str(error), file=sys.stderr)
        return BAD if error.definite else UNKNOWN
    successor = _successor(admin, addresses, leader["term"])
    if successor is None:
        print(f"{leader['nodeId']} has stepped down, and there is no successor yet; see 'namesrv status'", file=sys.stderr)
        return UNKNOWN
    if arguments.json:
        print_json({"from": leader["nodeId"], "leader": successor["nodeId"], "term": successor["term"]})
    else:
        print(f"{leader['nodeId']} transferred leadership to {successor['nodeId']}, term {successor['term']}")
    return GOOD if arguments.to in (None, successor["nodeId"]) else BAD


def _successor(admin: Admin, addresses: tuple[str, ...], term: int) -> dict[str, Any] | None:
    """Wait for a leader of a later term, and return it. None: there is none within the time limit."""
    deadline = time.monotonic() + admin.timeout_s
    while time.monotonic() < deadline:
        found = leader_among(look_at(admin, addresses))
        if found is not None and found["term"] > term:
            return found
        time.sleep(LOOK_PAUSE_S)
    return None
