"""CPU of the leader with and without observers.

Two clusters of three voters run at the same time, one of them with observers. Both leaders get the same number of requests a
second: route queries, and as many renewals as 1,000 brokers send. The clusters get this load in turn, round after round, so other
load of the machine affects both alike. A leader without load is measured, too.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cp.clusters import Group, group
from benchmarks.cp.registrations import Broker, say
from benchmarks.name_server import LoadGenerator, Server, build_load_generator
from replicated_namesrv.client.remoting import RemotingClient
from tests.interop.lab import wait_for

TARGET = 1.05
"""Maximum ratio of the leader's CPU time with observers to that without, under load."""
RENEWALS_A_SECOND = 33
"""Renewals of 1,000 brokers with a period of 30 s."""
TOPICS_OF_A_BROKER = 100
ANSWERED_MIN = 0.95
"""Minimum share of the route queries that must be answered. With fewer, the two leaders did not have the same load."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Command-line options of this part of the benchmark."""
    parser.add_argument("--observers", type=int, default=10, metavar="N", help="observers of the second cluster (default 10)")
    parser.add_argument("--rate", type=int, default=2_000, help="route queries a second at the leader (default 2000)")
    parser.add_argument("--seconds", type=float, default=10, help="length of one measurement (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there as well")


def add(nodes: Group, names: list[str]) -> None:
    """Make the joining nodes observers, one after the other. Returns when all of them serve."""
    for name in names:
        plan = nodes.plan(name)
        assert plan.peer is not None
        query = urllib.parse.urlencode({"address": f"{plan.peer[0]}:{plan.peer[1]}", "observer": "true"})

        def is_added(name: str = name, query: str = query) -> bool:
            leader = nodes.roles().index("leader")
            url = f"{nodes.admin(leader)}/v1/members/{name}/add?{query}"
            with contextlib.suppress(OSError), urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20):
                return True
            return nodes.is_ready(nodes.number(name))

        wait_for(is_added, f"{name} is an observer", 60)
        wait_for(partial(nodes.is_ready, nodes.number(name)), f"{name} serves", 60)


@contextlib.contextmanager
def renewals(leader: Server) -> Iterator[None]:
    """Brokers renew at the leader, in a thread, until the block ends."""
    began, ends = threading.Event(), threading.Event()

    async def live(number: int) -> None:
        client, request = RemotingClient(), Broker(number, TOPICS_OF_A_BROKER).request()
        for _ in range(2):  # the second registration of a broker changes nothing
            await say(client, leader.address, request)
        began.set()
        while not ends.is_set():
            await say(client, leader.address, request)
            await asyncio.sleep(1)
        await client.close()

    async def all_live() -> None:
        await asyncio.gather(*(live(number) for number in range(RENEWALS_A_SECOND)))

    thread = threading.Thread(target=asyncio.run, args=(all_live(),), daemon=True)
    thread.start()
    try:
        if not began.wait(60):
            raise SystemExit(f"{leader.name}: no broker could register within 60 s")
        yield
    finally:
        ends.set()
        thread.join()


def loaded(generator: LoadGenerator, leader: Server, rate: int, seconds: float) -> float:
    """CPU of the leader under load, in percent of a core."""
    flags = ["-connections", "16", "-topics", "1000", "-rate", str(rate), "-seconds", str(seconds)]
    with renewals(leader):
        before, began = leader.cpu_s(), time.monotonic()
        measured = generator.run("route", leader, *flags)
        spent = 100 * (leader.cpu_s() - before) / (time.monotonic() - began)
    if measured["errors"]:
        raise SystemExit(f"{leader.name}: {measured['errors']} of {measured['requests']} answers were wrong")
    wanted = rate * measured["seconds"]
    if measured["requests"] < ANSWERED_MIN * wanted:
        raise SystemExit(
            f"{leader.name}: only {measured['requests']} of {wanted:.0f} route queries were answered in time; give a "
            "lower --rate, or measure without other load"
        )
    return spent


def idle(leader: Server, seconds: float) -> float:
    """CPU of the leader without load, in percent of a core."""
    before, began = leader.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return 100 * (leader.cpu_s() - before) / (time.monotonic() - began)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Returns 1 if the target was missed."""
    generator = build_load_generator()
    names = [f"o{number + 1}" for number in range(arguments.observers)]
    figures: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        clusters = {
            "without": stack.enter_context(group("without", "cp")),
            "with": stack.enter_context(group("with", "cp", joining=names)),
        }
        add(clusters["with"], names)
        for each in clusters.values():
            wait_for(partial(each.role_is_taken, "leader"), "a leader")
            stack.enter_context(generator.staying("seed", each.servers[0], "-brokers", "8", "-topics", "1000"))
        for _ in range(arguments.rounds):
            for name, cluster in clusters.items():
                leader = cluster.with_role("leader", f"leader {name} observers")
                figures.setdefault(f"loaded {name}", []).append(loaded(generator, leader, arguments.rate, arguments.seconds))
                figures.setdefault(f"idle {name}", []).append(idle(leader, arguments.seconds / 2))
                if cluster.with_role("leader", "").pid != leader.pid:
                    raise SystemExit(f"{leader.name} lost leadership: repeat the measurement on a machine with less load")
    rows: dict[str, Any] = {name: round(statistics.median(values), 2) for name, values in figures.items()}
    for load in ("idle", "loaded"):
        pairs = zip(figures[f"{load} with"], figures[f"{load} without"], strict=True)
        rows[f"{load} ratio"] = round(statistics.median(more / less for more, less in pairs), 3)
        print(
            f"  {load:<8} CPU of the leader: {rows[f'{load} without']:.2f} % of a core, with {len(names)} observers "
            f"{rows[f'{load} with']:.2f} %: {rows[f'{load} ratio'] - 1:+.1%}"
            + (f" (at most {TARGET - 1:+.0%})" if load == "loaded" else ""),
            flush=True,
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**rows, "rounds": figures}, indent=1) + "\n")
    return int(rows["loaded ratio"] > TARGET)
