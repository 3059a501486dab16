"""Measures the memory of an open console and of its node while brokers and topics change all the time.

    .venv/bin/python -m tests.admin.console_churn                                    20,000 changes in two minutes
    .venv/bin/python -m tests.admin.console_churn --seconds 3600 --changes 600000    an hour

One independent node runs in a process of its own, with 20,000 topics. One broker changes its topics at a steady rate; with every
hundredth change another broker comes or goes. The page shows all lists in turn. After each round of pages the garbage is
collected, and a line is printed. Exit 0: memory is steady. 1: it grew. It needs Chromium and ``./namesrv setup test``.
"""

import argparse
import asyncio
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import CDPSession, Page

from replicated_namesrv.cli.children import NodePlan, PlannedNode
from replicated_namesrv.client.broker import BrokerAgent, BrokerOptions
from replicated_namesrv.client.broker_requests import BrokerIdentity
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from tests.support.browser import browser_page, shows
from tests.support.ports import free_port

PAGES = {"cluster": ".summary", "topics": "tbody a", "brokers": "tbody a", "timeline": "ol li", "charts": "canvas"}
CHANGED_TOPICS = 50
FLAP_EVERY = 100
STEADY_FACTOR, STEADY_MORE = 1.3, 4 << 20
"""Memory is steady if the memory at the end is at most the first number times the memory after the first round, plus the second
number of bytes. The second number includes the samples behind the charts of an hour."""


class Look(NamedTuple):
    """Memory after a round of pages."""

    second: float
    changes: int
    heap_bytes: int
    dom_nodes: int
    listeners: int
    node_bytes: int

    def line(self) -> str:
        """A row of the table."""
        heap, node = self.heap_bytes / (1 << 20), self.node_bytes / (1 << 20)
        return f"{self.second:6.0f} {self.changes:8d} {heap:9.2f} {self.dom_nodes:9d} {self.listeners:9d} {node:9.1f}"


HEADER = f"{'second':>6} {'changes':>8} {'page MiB':>9} {'DOM':>9} {'listeners':>9} {'node MiB':>9}"


def grown(looks: list[Look]) -> list[str]:
    """The measures that are not steady."""
    first, last = looks[0], looks[-1]
    wrong = []
    for name, before, now, more in (
        ("heap of the page", first.heap_bytes, last.heap_bytes, STEADY_MORE),
        ("memory of the node", first.node_bytes, last.node_bytes, 2 * STEADY_MORE),
        ("DOM nodes", first.dom_nodes, last.dom_nodes, 500),
        ("listeners", first.listeners, last.listeners, 100),
    ):
        if now > STEADY_FACTOR * before + more:
            wrong.append(f"{name}: {before} after the first round, {now} at the end")
    return wrong


def agent(index: int, topics: int, address: str) -> BrokerAgent:
    """A simulated broker that registers with the node."""
    table = TopicTable([TopicConfig(f"topic-{index}-{number:05d}", 4, 4) for number in range(topics)])
    return BrokerAgent(
        BrokerIdentity("Churn", f"broker-{index}", 0, f"127.0.0.1:{20_000 + index}", f"127.0.0.1:{21_000 + index}"),
        BrokerTopics(TopicTable([]), table),
        [address],
        options=BrokerOptions(register_period_ms=30_000),
        rng=random.Random(index),
        now_ms=lambda: time.time_ns() // 1_000_000,
    )


class Churn:
    """Changes at a steady rate, until it is cancelled."""

    def __init__(self, address: str, topics: int, per_second: float) -> None:
        self.changes = 0
        self._per_second = per_second
        self._large, self._small, self._other = agent(0, topics, address), agent(1, 8, address), agent(2, 8, address)

    async def start(self) -> None:
        """Register the brokers that stay."""
        await self._large.start()
        await self._small.start()

    async def run(self) -> None:
        """Change."""
        began = time.monotonic()
        while True:
            name = f"changed-{self.changes % CHANGED_TOPICS}"
            queues = 4 + self.changes // CHANGED_TOPICS % 8
            await self._small.change_topics([TopicConfig(name, queues, queues)])
            self.changes += 1
            if self.changes % FLAP_EVERY == 0:
                await (self._other.stop() if self._other.running else self._other.start())
            await asyncio.sleep(max(0.0, began + self.changes / self._per_second - time.monotonic()))

    async def stop(self) -> None:
        """End all brokers."""
        await asyncio.gather(*(one.kill() for one in (self._large, self._small, self._other)))


async def look_at(session: CDPSession, node: PlannedNode, began: float, changes: int) -> Look:
    """The memory now, without garbage."""
    await session.send("HeapProfiler.collectGarbage")
    heap = (await session.send("Runtime.getHeapUsage"))["usedSize"]
    dom = await session.send("Memory.getDOMCounters")
    node_bytes = await asyncio.to_thread(resident_bytes, node)
    return Look(time.monotonic() - began, changes, int(heap), dom["nodes"], dom["jsEventListeners"], node_bytes)


def resident_bytes(node: PlannedNode) -> int:
    """Memory of the node's process."""
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def visit(page: Page, admin: int, seconds: float) -> None:
    """Show all pages in turn."""
    for name, content in PAGES.items():
        await page.goto(f"http://127.0.0.1:{admin}/#/{name}")
        await page.locator(f"main {content}").first.wait_for()
        await shows(page, "live", ".stream")
        until = time.monotonic() + seconds / len(PAGES)
        while time.monotonic() < until:  # noqa: ASYNC110 - each page is open for this time
            await asyncio.sleep(0.1)


async def measure(changes: int, seconds: float, topics: int, rounds: int, folder: Path) -> list[Look]:
    """Run, and print a line after each round."""
    port = free_port(1)
    node = PlannedNode(NodePlan("n1", ("127.0.0.1", port), ("127.0.0.1", port + 1), folder, "ap"))
    churn, looks = Churn(f"127.0.0.1:{port}", topics, changes / seconds), list[Look]()
    await node.start()
    try:
        await node.wait_serving(60)
        await churn.start()
        async with browser_page() as page:
            session = await page.context.new_cdp_session(page)
            changing = asyncio.create_task(churn.run())
            began = time.monotonic()
            print(HEADER, flush=True)
            try:
                for _ in range(rounds):
                    await visit(page, port + 1, seconds / rounds)
                    if changing.done():
                        changing.result()
                    looks.append(await look_at(session, node, began, churn.changes))
                    print(looks[-1].line(), flush=True)
            finally:
                changing.cancel()
                await asyncio.gather(changing, return_exceptions=True)
    finally:
        await churn.stop()
        await node.stop()
    return looks


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20_000, metavar="N", help="changes of brokers (default 20000)")
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="in this time (default 120)")
    parser.add_argument("--topics", type=int, default=20_000, metavar="N", help="topics that stay (default 20000)")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="rounds of pages (default 8)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks = asyncio.run(measure(given.changes, given.seconds, given.topics, given.rounds, Path(folder)))
    wrong = grown(looks)
    print("\n".join(wrong) or "memory is steady")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
