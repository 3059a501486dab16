"""Route queries a second with and without an observer on the same machine.

A node uses one core. An observer beside it is a second process that answers from the same state. A cluster of three voters has
one observer. One follower answers the load alone, then the follower and the observer share it, round after round. The number of
connections is the same in both cases. The nodes, the load generator and other load share the cores of the machine. So the CPU
time for each query is measured, too: it says how many queries a free core answers.
"""

import argparse
import contextlib
import json
import resource
import statistics
import threading
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cp.clusters import group
from benchmarks.cp.observers import add
from benchmarks.name_server import LoadGenerator, Server, build_load_generator
from tests.interop.lab import wait_for

CONNECTIONS = 64
NAME = "o1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Command-line options of this part of the benchmark."""
    parser.add_argument("--seconds", type=float, default=5, help="length of one measurement (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there as well")


def together(generator: LoadGenerator, servers: list[Server], seconds: float, cpu_us: dict[str, list[float]]) -> float:
    """Route queries a second that the servers answer at the same time. ``cpu_us`` gets the CPU microseconds of each query."""
    flags = ["-connections", str(CONNECTIONS // len(servers)), "-topics", "1000", "-seconds", str(seconds)]
    rates: list[float] = []
    requests: list[int] = []
    before = _children_s()

    def measure(server: Server) -> None:
        measured = generator.run("route", server, *flags)
        if measured["errors"]:
            raise SystemExit(f"{server.name}: {measured['errors']} of {measured['requests']} answers were wrong")
        rates.append(measured["requests"] / measured["seconds"])
        requests.append(measured["requests"])
        cpu_us.setdefault(server.name, []).append(measured["cpu_us"])

    threads = [threading.Thread(target=measure, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(rates) < len(servers):
        raise SystemExit("a load generator failed; its reason is above")
    cpu_us.setdefault("load generator", []).append((_children_s() - before) * 1e6 / sum(requests))
    return sum(rates)


def _children_s() -> float:
    """CPU time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    generator = build_load_generator()
    found: dict[str, list[float]] = {"voter": [], "voter and observer": []}
    cpu_us: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(group("look-ups", "cp", joining=[NAME]))
        add(nodes, [NAME])
        wait_for(partial(nodes.role_is_taken, "leader"), "a leader")
        stack.enter_context(generator.staying("seed", nodes.servers[0], "-brokers", "8", "-topics", "1000"))
        voter, observer = nodes.with_role("follower", "voter"), nodes.with_role("observer", "observer")
        for turn in range(arguments.rounds + 1):
            for name, servers in (("voter", [voter]), ("voter and observer", [voter, observer])):
                rate = together(generator, servers, arguments.seconds, cpu_us if turn else {})
                if turn:  # the first round warms up
                    found[name].append(rate)
    pairs = zip(found["voter and observer"], found["voter"], strict=True)
    rows: dict[str, Any] = {name: round(statistics.median(rates)) for name, rates in found.items()}
    rows["ratio"] = round(statistics.median(more / less for more, less in pairs), 2)
    both = f"a voter and an observer {rows['voter and observer']:,}"
    print(f"  route queries/s: a voter {rows['voter']:,}, {both}: {rows['ratio']} times")
    rows["cpu_us"] = {name: round(statistics.median(spent), 1) for name, spent in cpu_us.items()}
    print("  CPU µs a query: " + ", ".join(f"{name} {spent}" for name, spent in rows["cpu_us"].items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**rows, "rounds": found}, indent=1) + "\n")
    return 0
