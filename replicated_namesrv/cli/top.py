"""``namesrv top``: the nodes of a deployment and their load, refreshed until Ctrl-C.

Each frame has the state of ``namesrv status``, rates that are computed from two readings of each node's counters, and the changes
of the state since the frame before.
"""

import argparse
import json
import re
import sys
import time
from typing import Any, NamedTuple

from replicated_namesrv.cli.admin import GOOD, UNKNOWN, Admin, add_admin_arguments, admin_addresses, admin_of, ask_all
from replicated_namesrv.cli.client import positive, print_table, seconds
from replicated_namesrv.cli.status import assess, look_at_cluster
from replicated_namesrv.errors import NamesrvError

HELP = "show nodes, rates and changes, refreshed until Ctrl-C"

INTERVAL_S = 2
METRICS_BYTES_MAX = 4 << 20
CLEAR = "\x1b[H\x1b[2J"
LOOK_UPS = 'request="GET_ROUTEINFO_BY_TOPIC"'
FAILED = re.compile(r'outcome="(?!SUCCESS"|TOPIC_NOT_EXIST")')

_EXAMPLES = """\
  namesrv top
  namesrv top --interval 5 --count 1 --json            one frame for a script
"""


class NodeCounters(NamedTuple):
    """The counters of one node."""

    at_s: float
    samples: dict[str, float]

    def total(self, name: str, part: str = "") -> float:
        """Sum of the samples of a metric whose labels contain ``part``."""
        return sum(value for sample, value in self.samples.items() if sample.partition("{")[0] == name and part in sample)

    def failed(self) -> float:
        """Requests that ended with another outcome than SUCCESS and TOPIC_NOT_EXIST."""
        return sum(
            v for sample, v in self.samples.items() if sample.startswith("namesrv_requests_total") and FAILED.search(sample)
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--interval", type=seconds, default=INTERVAL_S, metavar="S", help="seconds between frames (default 2)")
    parser.add_argument("--count", type=positive, metavar="N", help="end after N frames")
    add_admin_arguments(parser, _EXAMPLES, "0 the last frame has a node that answered; 2 no node answered, or usage")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit code."""
    admin = admin_of(arguments)
    addresses, nodes = look_at_cluster(admin, admin_addresses(arguments, admin))
    # Only nodes that answered are read, so that a paused node delays each frame by one time-out, not two.
    before = read(admin, tuple(node["admin"] for node in nodes if node["answers"]))
    shown = 0
    while True:
        try:
            time.sleep(arguments.interval)
            addresses, nodes = look_at_cluster(admin, addresses)
            after = read(admin, tuple(node["admin"] for node in nodes if node["answers"]))
            facts = assess(nodes).facts
        except KeyboardInterrupt:
            return GOOD
        for node in facts["nodes"]:
            node["rates"] = rates(before.get(node["admin"]), after.get(node["admin"]))
        facts["changes"] = changes(before, after)
        before, shown = after, shown + 1
        if arguments.json:
            print(json.dumps(facts), flush=True)
        else:
            _print(facts)
        if shown == arguments.count:
            return GOOD if any(node["answers"] for node in facts["nodes"]) else UNKNOWN


def read(admin: Admin, addresses: tuple[str, ...]) -> dict[str, NodeCounters]:
    """The counters of each node that answers."""
    if not addresses:
        return {}
    answers = ask_all(addresses, lambda address: _read(admin, address))
    return {a: found for a, found in zip(addresses, answers, strict=True) if not isinstance(found, NamesrvError)}


def _read(admin: Admin, address: str) -> NodeCounters:
    with admin.open(address, "/metrics") as response:
        text = response.read(METRICS_BYTES_MAX).decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("namesrv_"))
    return NodeCounters(time.monotonic(), {name: float(value) for name, _, value in lines})


def rates(before: NodeCounters | None, after: NodeCounters | None) -> dict[str, float] | None:
    """Numbers per second between two readings of one node; None if there are not two such readings. Connections and brokers are
    current values."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    seconds = after.at_s - before.at_s

    def per_second(old: float, new: float) -> float:
        return round(max(0.0, new - old) / seconds, 1)

    requests = "namesrv_requests_total"
    return {
        "requests": per_second(before.total(requests), after.total(requests)),
        "lookUps": per_second(before.total(requests, LOOK_UPS), after.total(requests, LOOK_UPS)),
        "failed": per_second(before.failed(), after.failed()),
        "proposals": per_second(before.total("namesrv_raft_proposals_total"), after.total("namesrv_raft_proposals_total")),
        "connections": after.total("namesrv_connections"),
        "brokers": after.total("namesrv_brokers"),
    }


def changes(before: dict[str, NodeCounters], after: dict[str, NodeCounters]) -> dict[str, int]:
    """Number of changes of the state by kind. If nodes have applied different numbers of changes, the largest one counts."""
    found: dict[str, int] = {}
    for address in before.keys() & after.keys():
        for sample, value in after[address].samples.items():
            if sample.startswith("namesrv_changes_total{"):
                kind = sample.partition('kind="')[2].partition('"')[0]
                count = int(value - before[address].samples.get(sample, 0))
                if count > 0:
                    found[kind] = max(found.get(kind, 0), count)
    return dict(sorted(found.items()))


def _print(facts: dict[str, Any]) -> None:
    if sys.stdout.isatty():
        print(CLEAR, end="")
    leader = f", leader {facts['leader']}, term {facts['term']}" if facts["leader"] else ""
    known = f"mode {facts['mode'] or 'mixed'}{leader}, revision {facts['revision']}"
    state = "no node answers" if facts["revision"] is None else known
    print(f"{time.strftime('%H:%M:%S')}  {state}")
    header = ("node", "admin", "ready", "role", "requests/s", "look-ups/s", "failed/s", "proposals/s", "connections", "brokers")
    print_table(header, [_line(node) for node in facts["nodes"]])
    if facts["changes"]:
        print("changes: " + ", ".join(f"{kind} {count}" for kind, count in facts["changes"].items()))
    for problem in facts["problems"]:
        print(f"problem: {problem}")
    print(flush=True)


def _line(node: dict[str, Any]) -> list[object]:
    found = node["rates"] or {}
    values = [f"{found[name]:g}" if name in found else "" for name in ("requests", "lookUps", "failed", "proposals")]
    now = [f"{found[name]:g}" if name in found else "" for name in ("connections", "brokers")]
    ready = "yes" if node.get("ready") else "no"
    return [node.get("nodeId", "?"), node["admin"], ready, node.get("role") or "", *values, *now]
