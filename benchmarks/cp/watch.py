"""Time from the acknowledgement of a write to the arrival of its event at watchers of every node.

Writer and watchers are one process with one clock. An event may arrive before the writer has its answer; the figure is then
negative. The time from the sending of the write is an upper bound, because it includes the commit.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence

import aiohttp

from benchmarks.cp.clusters import Group, group
from replicated_namesrv.client.queries import put_kv_request
from replicated_namesrv.client.remoting import RemotingClient

TARGET_MS = 50.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this part."""
    parser.add_argument("--writes", type=int, default=2_000, metavar="N", help="changes (default 2000)")
    parser.add_argument("--per-second", type=int, default=200, metavar="N", help="changes a second (default 200)")
    parser.add_argument("--watchers", type=int, default=10, metavar="N", help="watchers of each node (default 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Measure. The exit code is 1 if the target is missed."""
    with group("cluster", "cp") as nodes:
        rows = asyncio.run(measure(nodes, arguments.writes, arguments.per_second, arguments.watchers))
    if arguments.json:
        print(json.dumps({"targetMs": TARGET_MS, "rows": rows}, indent=2))
    else:
        print(f"{'node':<10}{'events':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}   from the sending: {'p50':>7}{'p99':>9}")
        for row in rows:
            figures = "".join(f"{row[key]:>9.2f}" for key in ("p50", "p99", "max"))
            print(f"{row['node']:<10}{row['events']:>8}{figures}   {'':<18}{row['sentP50']:>7.2f}{row['sentP99']:>9.2f}")
    return 0 if all(float(row["p99"]) <= TARGET_MS for row in rows) else 1


async def measure(nodes: Group, writes: int, per_second: int, watchers: int) -> list[dict[str, float | int | str]]:
    """One row per node, named by its role."""
    sent: dict[int, float] = {}
    acknowledged: dict[int, float] = {}
    arrivals: list[list[tuple[int, float]]] = [[] for _ in nodes.servers]
    started = asyncio.Semaphore(0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def watch(url: str, found: list[tuple[int, float]]) -> None:
            count = 0
            async with session.get(url) as response:
                started.release()
                async for line in response.content:
                    if line.startswith(b'data: {"revision"'):
                        found.append((int(json.loads(line[6:])["value"]), time.monotonic()))
                        count += 1
                        if count == writes:
                            return

        urls = [nodes.admin(number) + "/v1/watch" for number in range(len(nodes.servers))]
        tasks = [
            asyncio.create_task(watch(url, found)) for url, found in zip(urls, arrivals, strict=True) for _ in range(watchers)
        ]
        for _ in tasks:
            await started.acquire()
        await write(nodes.servers[0].address, writes, per_second, sent, acknowledged)
        await asyncio.gather(*tasks)
    return [row(role, found, sent, acknowledged) for role, found in zip(nodes.roles(), arrivals, strict=True)]


async def write(address: str, writes: int, per_second: int, sent: dict[int, float], acknowledged: dict[int, float]) -> None:
    """Put entries at a constant rate, whether or not earlier ones are answered."""
    client = RemotingClient()

    async def put(number: int) -> None:
        sent[number] = time.monotonic()
        await client.request(address, put_kv_request("watch", "key", str(number)))
        acknowledged[number] = time.monotonic()

    began, pending = time.monotonic(), []
    for number in range(writes):
        await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
        pending.append(asyncio.create_task(put(number)))
    await asyncio.gather(*pending)
    await client.close()


def row(
    role: str, found: Sequence[tuple[int, float]], sent: dict[int, float], acknowledged: dict[int, float]
) -> dict[str, float | int | str]:
    """Percentiles in milliseconds."""
    after = [(arrived - acknowledged[number]) * 1000 for number, arrived in found]
    whole = [(arrived - sent[number]) * 1000 for number, arrived in found]
    cuts, whole_cuts = statistics.quantiles(after, n=100), statistics.quantiles(whole, n=100)
    figures = {"p50": cuts[49], "p99": cuts[98], "max": max(after), "sentP50": whole_cuts[49], "sentP99": whole_cuts[98]}
    return {"node": role, "events": len(found), **{name: round(value, 3) for name, value in figures.items()}}
