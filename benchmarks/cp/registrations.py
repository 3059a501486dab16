"""Brokers and a replicated cluster: the cost of a change, of a period of renewals, and of the return of all brokers at once.

``changed``: one broker at a time registers a change with one node. The answer means that a majority has it on disk.
``renewing``: brokers with 100 topics each register with every node every 30 s without a change. ``mass``: brokers with 10,000
topics each register with every node of a cold cluster. Then a node is restarted with that log. Brokers change until the node
takes a snapshot, and it is restarted again.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cp.clusters import Group, group
from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from tests.interop.lab import wait_for

SCENARIOS = ("changed", "renewing", "mass")
RENEWING_S = 60.0
PERIOD_S = 30.0
MASS_TIMEOUT_MS = 120_000
ENTRIES_OF_A_LEADER = 2
"""Entries that every new leader writes: Raft's no-op, and LEAD. On a busy machine there may be elections, so these entries are
subtracted."""
TARGETS = {
    "changed p50 ms": 4.0,
    "changed p99 ms": 15.0,
    "renewing log entries": 0.0,
    "renewing CPU % of a node": 5.0,
    "mass taken in s": 60.0,
    "mass RSS MB of a node": 1_200.0,
    "mass restart from the log s": 15.0,
    "mass restart from a snapshot s": 15.0,
}
"""Maximum value of each figure."""


class Broker:
    """One broker's registrations."""

    def __init__(self, number: int, topics: int) -> None:
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:10911"
        self._identity = BrokerIdentity("c", f"b{number}", 0, address, address)
        self._table = {
            f"T{topic}": {
                "order": False,
                "perm": 6,
                "readQueueNums": 8,
                "topicFilterType": "SINGLE_TAG",
                "topicName": f"T{topic}",
                "topicSysFlag": 0,
                "writeQueueNums": 8,
            }
            for topic in range(topics)
        }
        self._counter = 0

    def request(self) -> RemotingCommand:
        """The current registration."""
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": 1_700_000_000_000 + self._counter}
        wrapper = {"dataVersion": version, "topicConfigTable": self._table}
        body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}, separators=(",", ":")).encode()
        return register_request(
            self._identity,
            BrokerVersion.V5_3,
            body,
            compressed=False,
            oneway=False,
            enable_acting_master=False,
            heartbeat_timeout_ms=None,
            zone_name=None,
        )

    def change(self) -> RemotingCommand:
        """The registration after a change of one topic."""
        self._counter += 1
        self._table[f"T{self._counter % len(self._table)}"]["readQueueNums"] = 8 + self._counter % 8
        return self.request()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Command-line options of this part of the benchmark."""
    parser.add_argument("--only", type=_scenarios, default=list(SCENARIOS), help=f"some of {','.join(SCENARIOS)} (default all)")
    parser.add_argument("--changes", type=int, default=1_000, help="changes to measure at each node (default 1000)")
    parser.add_argument("--brokers", type=int, default=1_000, help="brokers that renew (default 1000)")
    parser.add_argument("--mass-brokers", type=int, default=300, help="brokers that return at once (default 300)")
    parser.add_argument("--json", metavar="FILE", help="write every figure there as well")


def _scenarios(text: str) -> list[str]:
    """Names separated by commas. Raises ArgumentTypeError for an unknown name."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(SCENARIOS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    return names


async def say(client: RemotingClient, address: str, request: RemotingCommand, timeout_ms: int = 10_000) -> float:
    """Register. Returns the milliseconds until the answer."""
    began = time.perf_counter()
    answer = await client.request(address, request, timeout_ms)
    if answer.code != 0:
        raise SystemExit(f"{address} answered {answer.code}: {answer.remark}")
    return (time.perf_counter() - began) * 1_000


async def changed(nodes: Group, count: int) -> dict[str, float]:
    """Latency of changes through the leader and through a follower. The slower one is the figure."""
    client, found = RemotingClient(), {}
    for role in ("leader", "follower"):
        server, broker = nodes.with_role(role, role), Broker(1 if role == "leader" else 2, 10)
        for _ in range(50):
            await say(client, server.address, broker.change())
        took = sorted([await say(client, server.address, broker.change()) for _ in range(count)])
        found[f"changed p50 ms, {role}"] = statistics.median(took)
        found[f"changed p99 ms, {role}"] = took[int(0.99 * len(took))]
    await client.close()
    for quantile in ("p50", "p99"):
        found[f"changed {quantile} ms"] = max(found[f"changed {quantile} ms, {role}"] for role in ("leader", "follower"))
    return found


async def renewing(nodes: Group, brokers: int) -> dict[str, float]:
    """CPU of the nodes and growth of the log while all brokers renew."""
    addresses = [server.address for server in nodes.servers]
    clients = [RemotingClient() for _ in range(brokers)]
    requests = [Broker(number, 100).request() for number in range(brokers)]

    async def everywhere(number: int) -> None:
        await asyncio.gather(*(say(clients[number], address, requests[number]) for address in addresses))

    for _ in range(2):  # twice, because the second registration of a broker changes nothing and so is a renewal
        for first in range(0, brokers, 20):  # not one by one: a broker may not be silent for a third of its time-out
            await asyncio.gather(*(everywhere(number) for number in range(first, min(first + 20, brokers))))

    async def live(number: int, until: float) -> None:
        await asyncio.sleep(random.Random(number).random() * PERIOD_S)
        while time.monotonic() < until:
            await everywhere(number)
            await asyncio.sleep(PERIOD_S)

    living = asyncio.gather(*(live(number, time.monotonic() + 2 * PERIOD_S + RENEWING_S) for number in range(brokers)))
    # The brokers also renew for one period before and after the measurement. Otherwise entries about their silence would be
    # counted.
    await asyncio.sleep(PERIOD_S)
    (index, term), cpu_s, began = log_state(nodes), nodes.cpu_s(), time.monotonic()
    await asyncio.sleep(RENEWING_S)
    elapsed = time.monotonic() - began
    spent = [after - before for before, after in zip(cpu_s, nodes.cpu_s(), strict=True)]
    last_index, last_term = log_state(nodes)
    living.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await living
    found = {
        "renewing log entries": float(last_index - index - ENTRIES_OF_A_LEADER * (last_term - term)),
        "renewing changes of leader": float(last_term - term),
        "renewing CPU % of a node": 100 * max(spent) / elapsed,
        "renewing CPU % of the least busy node": 100 * min(spent) / elapsed,
    }
    for client in clients:
        await client.close()
    return found


async def mass(nodes: Group, brokers: int) -> dict[str, float]:
    """All brokers register everywhere at once with an empty cluster. Then a node restarts twice."""
    saying = [Broker(number, 10_000) for number in range(brokers)]
    requests = [broker.request() for broker in saying]
    clients = [RemotingClient() for _ in range(brokers)]
    began = time.monotonic()

    repeated = await asyncio.gather(
        *(insist(clients[number], server.address, requests[number]) for number in range(brokers) for server in nodes.servers)
    )
    found = {
        "mass taken in s": time.monotonic() - began,
        "mass registrations repeated": float(sum(repeated)),
        "mass log entries": float(log_state(nodes)[0]),
        "mass CPU s of all nodes": sum(nodes.cpu_s()),
    }
    rss_mb = [server.rss_mb() for server in nodes.servers]
    number = nodes.roles().index("follower")
    found |= await restarted(nodes, number, "the log")
    for client in clients:
        await client.abort()
    await change_until_snapshot(nodes, number, saying)
    rss_mb += [server.rss_mb() for server in nodes.servers]
    found |= await restarted(nodes, number, "a snapshot")
    rss_mb += [server.rss_mb() for server in nodes.servers]
    return found | {"mass RSS MB of a node": max(rss_mb)}


async def insist(client: RemotingClient, address: str, request: RemotingCommand) -> int:
    """Register until it is answered, as brokers do. Returns the number of repetitions."""
    for repeated in itertools.count():
        try:
            await say(client, address, request, MASS_TIMEOUT_MS)
            return repeated
        except NamesrvError:
            await asyncio.sleep(1)
    raise AssertionError("a count has no end")


async def restarted(nodes: Group, number: int, source: str) -> dict[str, float]:
    """Restart a node. Reports the time until it serves, its CPU time, and what it had to read."""
    raft = nodes.status(number)["replication"]["raft"]
    restart_s = await asyncio.to_thread(nodes.restart, number)
    return {
        f"mass restart from {source} s": restart_s,
        f"mass restart from {source}, CPU s": nodes.cpu_s()[number],
        f"mass restart from {source}, snapshot MB": raft["snapshot_bytes"] / 1_000_000,
        f"mass restart from {source}, entries after it": float(raft["last_index"] - raft["snapshot_index"]),
    }


async def change_until_snapshot(nodes: Group, number: int, brokers: list[Broker]) -> None:
    """Let brokers change one after the other until the node has taken a snapshot since its start."""
    client = RemotingClient()
    address = nodes.with_role("leader", "leader").address
    for broker in itertools.cycle(brokers):
        raft = nodes.status(number)["replication"]["raft"]
        if raft["snapshots_taken"] and not raft["snapshot_running"]:
            break
        await insist(client, address, broker.change())
    await client.close()


def log_state(nodes: Group) -> tuple[int, int]:
    """Number of log entries, and the term."""
    found = [nodes.status(number)["replication"] for number in range(len(nodes.servers))]
    return max(int(each["lastIndex"]) for each in found), max(int(each["term"]) for each in found)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. Returns 1 if a target was missed."""
    measures: dict[str, Callable[[Group], Any]] = {
        "changed": partial(changed, count=arguments.changes),
        "renewing": partial(renewing, brokers=arguments.brokers),
        "mass": partial(mass, brokers=arguments.mass_brokers),
    }
    figures: dict[str, float] = {}
    for name in arguments.only:
        with group("cp", "cp") as nodes:
            wait_for(lambda nodes=nodes: nodes.roles().count("leader") == 1, "a leader")  # type: ignore[misc]  # a default of a lambda
            found = asyncio.run(measures[name](nodes))
        for figure, value in found.items():
            target = f" (at most {TARGETS[figure]:g})" if figure in TARGETS else ""
            print(f"  {figure:<42}{value:>10.2f}{target}", flush=True)
        figures |= found
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(value > TARGETS.get(figure, value) for figure, value in figures.items()))
