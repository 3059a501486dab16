"""Route queries of a replicated cluster compared with those of an independent node in the same run.

All cases are measured in turn, round after round. The figure is requests per CPU second of the node that was asked, relative
to the independent node in the same round. This ratio is comparable between machines and is least affected by other load. The
CPU time of the cluster's other nodes is reported separately.
"""

import argparse
import contextlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cp.clusters import Group, group
from benchmarks.name_server import LoadGenerator, Server, build_load_generator

COLUMNS = (("cpu_us", 8, 2), ("others_cpu_us", 8, 2), ("rate", 11, 0), ("p50_us", 8, 0), ("p99_us", 8, 0))
"""For each figure: its name, the width of its column, the number of digits after the point."""
TARGETS = {"linearizable, leader": 0.70, "linearizable, follower": 0.50, "stale, follower": 0.95}


class Case(NamedTuple):
    """The node to ask."""

    name: str
    group: Group
    role: str

    def server(self) -> Server:
        """The node that has the role now."""
        return self.group.with_role(self.role, self.name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Command-line options of this part of the benchmark."""
    parser.add_argument("--seconds", type=float, default=4, help="length of one run (default 4)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--connections", default="128", help="connections, several numbers separated by commas (default 128)")
    parser.add_argument("--in-flight", type=int, default=1, help="requests in flight on each connection (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there as well")


@contextlib.contextmanager
def cases(generator: LoadGenerator) -> Iterator[list[Case]]:
    """All nodes, with 1,000 topics on 8 brokers everywhere."""
    with contextlib.ExitStack() as stack:
        independent = stack.enter_context(group("ap", "ap"))
        cluster = stack.enter_context(group("cp", "cp"))
        lease = stack.enter_context(group("lease", "cp", "readConsistency=lease"))
        stale = stack.enter_context(group("stale", "cp", "readConsistency=stale"))
        for each in (independent, cluster, lease, stale):
            stack.enter_context(generator.staying("seed", each.servers[0], "-brokers", "8", "-topics", "1000"))
        yield [
            Case("independent", independent, "independent"),
            Case("linearizable, leader", cluster, "leader"),
            Case("linearizable, follower", cluster, "follower"),
            Case("lease, leader", lease, "leader"),
            Case("stale, follower", stale, "follower"),
        ]


def measure(generator: LoadGenerator, case: Case, flags: list[str]) -> dict[str, Any]:
    """One run: the generator's figures, and CPU microseconds per request of the node asked and of all others. It is repeated
    if the node lost its role."""
    while True:
        server = case.server()
        before = sum(case.group.cpu_s())
        measured = generator.run("route", server, *flags)
        if case.server().pid != server.pid:
            continue
        if measured["errors"]:
            raise SystemExit(f"{case.name}: {measured['errors']} of {measured['requests']} answers were wrong")
        spent = (sum(case.group.cpu_s()) - before) * 1e6 / measured["requests"]
        return {**measured, "others_cpu_us": spent - measured["cpu_us"], "rate": measured["requests"] / measured["seconds"]}


def report(connections: str, results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Print and return one row per case: medians over the rounds."""
    base = results["independent"]
    rows = []
    title = f"route query, {connections} connections"
    print(f"{title:<40}  CPU us  others  per second  p50 us  p99 us  share of AP per CPU second")
    for name, runs in results.items():
        share = statistics.median(one["cpu_us"] / run["cpu_us"] for one, run in zip(base, runs, strict=True))
        row: dict[str, Any] = {key: round(statistics.median(run[key] for run in runs), 2) for key, _, _ in COLUMNS}
        rows.append({"case": name, "connections": connections, **row, "share": round(share, 3), "target": TARGETS.get(name)})
        figures = "".join(f"{row[key]:>{width}.{digits}f}" for key, width, digits in COLUMNS)
        target = f" (at least {TARGETS[name]:.0%})" if name in TARGETS else ""
        print(f"  {name:<38}{figures}  {share:>6.1%}{target}", flush=True)
    return rows


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Returns 1 if a target was missed at 128 connections."""
    generator = build_load_generator()
    rows = []
    with cases(generator) as all_cases:
        for connections in arguments.connections.split(","):
            flags = ["-connections", connections, "-in-flight", str(arguments.in_flight), "-topics", "1000"]
            flags += ["-seconds", str(arguments.seconds)]
            results: dict[str, list[dict[str, Any]]] = {case.name: [] for case in all_cases}
            for turn in range(arguments.rounds + 1):
                for case in all_cases:
                    measured = measure(generator, case, flags)
                    if turn:  # the first round is not counted: it warms the processes up
                        results[case.name].append(measured)
            rows += report(connections, results)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["connections"] == "128" and row["target"] and row["share"] < row["target"] for row in rows))
