"""``namesrv leader``: who leads a cluster, and handing over.

A hand-over is asked of the leader, which first lets the successor catch up, then has it elected: clients notice nothing but, at
worst, the time of one election. Before a node is stopped for maintenance this saves the wait for an election.
"""

import argparse
import sys
import time
from typing import Any

from replicated_namesrv.cli.admin import BAD, GOOD, UNKNOWN, Admin, add_admin_arguments, admin_addresses, admin_of
from replicated_namesrv.cli.client import print_json
from replicated_namesrv.cli.status import look_at
from replicated_namesrv.errors import NamesrvError

HELP = "show the leader of a cluster, or hand its office over to another node"

LOOK_PAUSE_S = 0.05

_EXAMPLES = """\
  namesrv leader                       its name
  namesrv leader transfer              to the node that is furthest
  namesrv leader transfer n2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("action", nargs="?", choices=("show", "transfer"), default="show")
    parser.add_argument("to", nargs="?", metavar="NODE", help="node that shall lead (default: the one that is furthest)")
    codes = "0 done; 1 refused, or nobody leads; 2 usage, no node answered, or it is not known whether it was done"
    add_admin_arguments(parser, _EXAMPLES, codes)
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    if arguments.action == "show" and arguments.to is not None:
        arguments.usage_error("'leader show' takes no NODE; did you mean 'leader transfer'?")
    admin = admin_of(arguments)
    addresses = admin_addresses(arguments, admin)
    nodes = look_at(admin, addresses)
    if not any(node["answers"] for node in nodes):
        print("; ".join(f"{node['admin']}: {node['problem']}" for node in nodes), file=sys.stderr)
        return BAD if all(node["refused"] for node in nodes) else UNKNOWN
    leader = leader_among(nodes)
    if leader is None:
        independent = any(node.get("mode") == "ap" for node in nodes)
        reason = "independent nodes (mode=ap) have no leader" if independent else "no node that answered leads"
        print(f"{reason}; 'namesrv status' tells more", file=sys.stderr)
        return BAD
    if arguments.action == "show":
        if arguments.json:
            print_json({"leader": leader["nodeId"], "term": leader["term"], "admin": leader["admin"]})
        else:
            print(f"{leader['nodeId']}, term {leader['term']}")
        return GOOD
    return _transfer(admin, addresses, leader, arguments)


def leader_among(nodes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The one that leads in the newest term."""
    leaders = [node for node in nodes if node["answers"] and node["role"] == "leader"]
    return max(leaders, key=lambda node: int(node["term"]), default=None)


def _transfer(admin: Admin, addresses: tuple[str, ...], leader: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.to == leader["nodeId"]:
        print(f"{arguments.to} leads already, in term {leader['term']}", file=sys.stderr)
        return GOOD
    path = "/v1/leader/transfer" + (f"?to={arguments.to}" if arguments.to else "")
    try:
        admin.ask(leader["admin"], path, "POST")
    except NamesrvError as error:
        print(str(error), file=sys.stderr)
        return BAD if error.definite else UNKNOWN
    successor = _successor(admin, addresses, leader["term"])
    if successor is None:
        print(f"{leader['nodeId']} has stepped down, and no successor has shown yet; see 'namesrv status'", file=sys.stderr)
        return UNKNOWN
    if arguments.json:
        print_json({"from": leader["nodeId"], "leader": successor["nodeId"], "term": successor["term"]})
    else:
        print(f"{leader['nodeId']} handed over to {successor['nodeId']}, term {successor['term']}")
    return GOOD if arguments.to in (None, successor["nodeId"]) else BAD


def _successor(admin: Admin, addresses: tuple[str, ...], term: int) -> dict[str, Any] | None:
    """The leader of a later term, once it shows."""
    deadline = time.monotonic() + admin.timeout_s
    while time.monotonic() < deadline:
        found = leader_among(look_at(admin, addresses))
        if found is not None and found["term"] > term:
            return found
        time.sleep(LOOK_PAUSE_S)
    return None
