"""Photographs the console of real nodes: ``.venv/bin/python -m tests.admin.console_pictures [FOLDER]``.

Without FOLDER only docs/console.png is written, the picture in README.md. With FOLDER there are pictures for the questions of an
operator, while a node is killed, paused and cut off, in CP and in AP: ``MODE-FAULT-PAGE.png``. Simulated brokers run, one of them
flaps, and an operator changes the KV config, in AP on one node only. In CP a node is cut off from the other nodes, in AP from the
brokers. It needs Chromium and ``./namesrv setup test``, and takes one to three minutes.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page

from replicated_namesrv.cli.children import NodePlan, PlannedNode
from tests.support.browser import browser_page, shows
from tests.support.nodes import http, run_command, running_command
from tests.support.ports import free_port
from tests.support.relay import Relay
from tests.support.replicated_processes import ReplicatedProcesses

README_PICTURE = Path(__file__).parents[2] / "docs" / "console.png"
SIZE = {"width": 1000, "height": 700}
FAULTS = ("kill", "pause", "partition")
PAGES = {"cluster": "main table", "timeline": "main ol", "topics/topic-0": "main table, main .problem", "charts": "main canvas"}
"""Each page, and an element that the page has when it is complete. The pages show: the leader, disagreement, peers that are down,
why this node is not ready; changes with their callers, flapping brokers; the brokers of a topic; load and latency."""
FLAPS = 3


class IndependentProcesses(ReplicatedProcesses):
    """Name servers in AP, each behind a relay to which brokers connect."""

    async def start(self) -> None:
        base = free_port(*range(1, 2 * len(self.names)))
        listens = {name: ("127.0.0.1", base + number) for number, name in enumerate(self.names)}
        listed = f"nameServerAddresses={';'.join(f'{host}:{port}' for host, port in listens.values())}"
        for name, (host, port) in listens.items():
            plan = NodePlan(name, (host, port), (host, port + len(self.names)), self.folder / name, "ap", (listed,))
            self.nodes[name] = PlannedNode(plan)
            self.relays["brokers", name] = await Relay((host, port)).start()
            await self.start_node(name)
        await self.all_serve()

    def address(self, name: str) -> str:
        return self.relays["brokers", name].address


@asynccontextmanager
async def deployment(mode: str, folder: Path) -> AsyncIterator[ReplicatedProcesses]:
    """Three nodes with four brokers, one that flapped, and a change of an operator."""
    cluster = (ReplicatedProcesses if mode == "cp" else IndependentProcesses)(folder, 3)
    try:
        await cluster.start()
        names = ("-n", ";".join(cluster.addresses))
        for _ in range(FLAPS):
            flap = ("broker", *names, "--name-prefix", "flapping-", "--port", "12911", "--duration-s", "1")
            await asyncio.to_thread(run_command, *flap)
        behaviour = ("--heartbeat", "904", "--period-ms", "5000")
        brokers = ("broker", *names, "--brokers", "2", "--replicas", "2", "--topics", "3", *behaviour)
        with running_command(*brokers, stderr=folder / "brokers.log"):
            yield cluster
    finally:
        await cluster.close()


class Photographer:
    """Takes pictures of one deployment's pages."""

    def __init__(self, mode: str, cluster: ReplicatedProcesses, page: Page, folder: Path | None) -> None:
        self._mode, self._cluster, self._page, self._folder = mode, cluster, page, folder

    async def go(self, node: str, place: str) -> None:
        """Open a page of a node's console."""
        await self._page.goto(f"http://127.0.0.1:{self._cluster.nodes[node].plan.admin[1]}/#/{place}")

    async def take(self, fault: str, node: str, pages: Sequence[str] = tuple(PAGES)) -> None:
        """Pictures of the pages that ``node`` shows during a fault."""
        if self._folder is None:
            return
        for place in pages:
            await self.go(node, place)
            await self._page.locator(PAGES[place]).first.wait_for()
            if place == "timeline":
                await shows(self._page, "requested PUT", ".timeline")
            elif place.startswith("topics/") and self._mode == "ap":
                await self._page.locator(".agreement").wait_for()
            name = f"{self._mode}-{fault}-{place.partition('/')[0]}.png"
            await self._page.screenshot(path=self._folder / name, full_page=True)

    async def whole_course(self) -> None:
        """A kill, a pause and a partition."""
        cluster, page = self._cluster, self._page
        victim = await cluster.leader() if self._mode == "cp" else "n1"
        own, third = cluster.others(victim)
        await self.go(own, "topics")
        await shows(page, "topic-0", "tbody")
        put = await http(cluster.nodes[own].plan.admin[1], "/v1/kv/ORDER_TOPIC_CONFIG/topic-0", "PUT", b"broker-0:4")
        assert put.status == 200
        await self.go(own, "cluster")
        await shows(page, "All 3 nodes answer", ".summary")

        await cluster.kill(victim)
        await shows(page, f"{victim} does not answer", ".findings")
        if self._mode == "cp":
            await shows(page, f"{await cluster.leader(among=[own, third])} leads", ".summary")
            await shows(page, "equal states", ".summary")
            await shows(page, "1 problem", "header")  # the other two nodes are ready
            await page.screenshot(path=README_PICTURE)
        await self.take("kill", own)
        if self._folder is None:
            return
        await cluster.restore()

        cluster.pause(third)
        await self.go(own, "cluster")
        await shows(page, f"{third} does not answer", ".findings")
        if self._mode == "ap":
            await shows(page, f"{third} is not compared")
        await self.take("pause", own)
        cluster.resume(third)
        await self.go(own, "cluster")
        await shows(page, "equal states" if self._mode == "cp" else "All 3 nodes answer")

        cluster.cut(own)
        await (shows(page, "It is fenced") if self._mode == "cp" else shows(page, "missing", "tr:has-text('DefaultCluster')"))
        await self.take("partition", own)
        cluster.heal()


async def photograph(folder: Path | None) -> None:
    """Take all pictures; without a folder, only the picture in README.md."""
    for mode in ("cp", "ap") if folder is not None else ("cp",):
        with tempfile.TemporaryDirectory() as data:
            async with deployment(mode, Path(data)) as cluster, browser_page(viewport=SIZE) as page:
                await Photographer(mode, cluster, page, folder).whole_course()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="folder for the pictures; it is created")
    target = parser.parse_args().folder
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
    asyncio.run(photograph(target))
