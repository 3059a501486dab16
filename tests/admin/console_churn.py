"""Measures the memory of an open console and of its node while brokers and topics change all the time.

    .venv/bin/python -m tests.admin.console_churn                                               20,000 changes in two minutes
    .venv/bin/python -m tests.admin.console_churn --seconds 3600 --changes 14400 --rounds 60    an hour, a line per minute

One independent node runs in a process of its own, with 20,000 topics. First the page of the topics is loaded and searched nine
times. A line shows the median times from the start of the navigation to the first rows, and from a text to its row. Then one
broker changes its topics at a steady rate, and with every hundredth change another broker comes or goes. One page shows all
lists in turn, a second page always shows the topics. After each round the garbage of both pages is collected, and a line is
printed: JavaScript heap of the first page, DOM nodes and listeners of both, heap of the second page, resident memory of the node
and of the browser's processes, the processor time that both used since the last line, in % of one core, and for how many seconds
the first page was not live since the last line. A tool that drives a browser makes it keep answers, so the browser's memory is
shown, but decides nothing. At the end the slope of each measure over the second half is printed. Exit 0: memory is steady. 1: it
grew. It needs Chromium and ``./namesrv setup test``.
"""

import argparse
import asyncio
import contextlib
import os
import random
import resource
import statistics
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

MIB = 1 << 20
PAGES = {"cluster": ".summary", "topics": "tbody a", "brokers": "tbody a", "timeline": "ol li", "charts": "canvas"}
CHANGED_TOPICS = 50
FLAP_EVERY = 100
PAINTED = """window.painted = new Promise((found) => new MutationObserver((_, observer) => {
    if (!document.querySelector("tbody a")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => found(performance.now())));
}).observe(document, { childList: true, subtree: true }));"""
"""``painted``: milliseconds from the start of the navigation until rows have been painted."""
NOT_LIVE = """(() => {
    let before = performance.now();
    window.notLiveMs = 0;
    setInterval(() => {
        const now = performance.now();
        if (document.querySelector(".stream")?.textContent !== "live") window.notLiveMs += now - before;
        before = now;
    }, 100);
})()"""
"""``notLiveMs``: how long the page was not live."""
SEARCH = """(text) => new Promise((found) => {
    const box = document.querySelector("input[type=search]"), began = performance.now();
    new MutationObserver((_, observer) => {
        const rows = document.querySelectorAll("tbody tr");
        if (rows.length !== 1 || rows[0].querySelector("a")?.textContent !== text) return;
        observer.disconnect();
        requestAnimationFrame(() => setTimeout(() => found(performance.now() - began)));
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
    box.value = text;
    box.dispatchEvent(new InputEvent("input", { bubbles: true }));
})"""
"""Milliseconds from the input of a topic's name until its row alone has been painted."""
STEADY_FACTOR, STEADY_MORE = 1.3, 4 * MIB
"""Memory is steady if the memory at the end is at most the first number times the memory after the first round, plus the second
number of bytes. The second number includes the samples behind the charts of an hour."""


class Look(NamedTuple):
    """Memory after a round of pages."""

    second: float
    changes: int
    heap_bytes: int
    dom_nodes: int
    listeners: int
    topics_heap_bytes: int
    browser_bytes: int
    node_bytes: int
    cpu_s: float
    not_live_s: float = 0.0

    def line(self, before: "Look | None") -> str:
        """A row of the table."""
        heap, topics_heap, browser, node = (
            one / MIB for one in (self.heap_bytes, self.topics_heap_bytes, self.browser_bytes, self.node_bytes)
        )
        not_live_s = self.not_live_s - (before.not_live_s if before else 0.0)
        cpu = 100 * (self.cpu_s - before.cpu_s) / (self.second - before.second) if before else 0.0
        return (
            f"{self.second:6.0f} {self.changes:8d} {heap:9.2f} {self.dom_nodes:9d} {self.listeners:9d} {topics_heap:10.2f} "
            f"{browser:11.1f} {node:9.1f} {cpu:6.1f} {not_live_s:10.1f}"
        )


HEADER = (
    f"{'second':>6} {'changes':>8} {'page MiB':>9} {'DOM':>9} {'listeners':>9} {'topics MiB':>10} {'browser MiB':>11} "
    f"{'node MiB':>9} {'CPU %':>6} {'not live s':>10}"
)
MEASURES = {
    "heap_bytes": ("heap of the page", MIB, "MiB"),
    "topics_heap_bytes": ("heap of the topics page", MIB, "MiB"),
    "dom_nodes": ("DOM nodes", 1, "nodes"),
    "listeners": ("listeners", 1, "listeners"),
    "browser_bytes": ("memory of the browser", MIB, "MiB"),
    "node_bytes": ("memory of the node", MIB, "MiB"),
}


def slopes(looks: list[Look]) -> list[str]:
    """Growth per hour of each measure, as a line of least squares through the second half."""
    half = looks[len(looks) // 2 :]
    if len(half) < 2:
        return []
    hours = [one.second / 3600 for one in half]
    return [
        f"{title}: {statistics.linear_regression(hours, [getattr(one, name) / unit for one in half]).slope:+.2f} {shown} per hour"
        for name, (title, unit, shown) in MEASURES.items()
    ]


def grown(looks: list[Look]) -> list[str]:
    """The measures that are not steady."""
    first, last = looks[0], looks[-1]
    wrong = []
    for name, before, now, more in (
        ("heap of the page", first.heap_bytes, last.heap_bytes, STEADY_MORE),
        ("heap of the topics page", first.topics_heap_bytes, last.topics_heap_bytes, STEADY_MORE),
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


class Sessions(NamedTuple):
    """Connections to the browser's tools."""

    changing: CDPSession
    topics: CDPSession
    browser: CDPSession


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


async def heap_bytes(session: CDPSession) -> int:
    """JavaScript heap of a page, without garbage."""
    await session.send("HeapProfiler.collectGarbage")
    return int((await session.send("Runtime.getHeapUsage"))["usedSize"])


async def look_at(page: Sessions, node: PlannedNode, began: float, changes: int, not_live_s: float) -> Look:
    """The memory now."""
    heap, topics_heap = await heap_bytes(page.changing), await heap_bytes(page.topics)
    counts = [await one.send("Memory.getDOMCounters") for one in (page.changing, page.topics)]
    dom, listeners = sum(one["nodes"] for one in counts), sum(one["jsEventListeners"] for one in counts)
    processes = (await page.browser.send("SystemInfo.getProcessInfo"))["processInfo"]
    pids, node_pid = [int(one["id"]) for one in processes], int(node.pid or 0)
    browser, own = await asyncio.to_thread(resident_bytes, pids), await asyncio.to_thread(resident_bytes, [node_pid])
    cpu_s = sum(float(one["cpuTime"]) for one in processes) + cpu_seconds(node_pid)
    second = time.monotonic() - began
    return Look(second, changes, heap, dom, listeners, topics_heap, browser, own, cpu_s, not_live_s)


def resident_bytes(pids: list[int]) -> int:
    """Memory of processes. A page that they share counts for each of them. A process that has just ended counts nothing."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def respond(page: Page, admin: int, topics: int, loads: int) -> str:
    """The times until the page of the topics is painted and searched."""
    paints, searches = list[float](), list[float]()
    await page.add_init_script(PAINTED)
    for number in range(loads):
        await page.goto("about:blank")
        await page.goto(f"http://127.0.0.1:{admin}/#/topics")
        paints.append(await page.evaluate("window.painted"))
        searches.append(await page.evaluate(SEARCH, f"topic-0-{(number + 1) * topics // (loads + 1):05d}"))
    return (
        f"{topics:,} topics: first rows after {statistics.median(paints) / 1000:.2f} s (at most {max(paints) / 1000:.2f}), "
        f"search {statistics.median(searches):.0f} ms (at most {max(searches):.0f}), {loads} times each; "
        f"load average {os.getloadavg()[0]:.1f}"
    )


async def visit(page: Page, admin: int, seconds: float) -> None:
    """Show all pages in turn."""
    for name, content in PAGES.items():
        await page.goto(f"http://127.0.0.1:{admin}/#/{name}")
        await page.locator(f"main {content}").first.wait_for()
        await shows(page, "live", ".stream")
        until = time.monotonic() + seconds / len(PAGES)
        while time.monotonic() < until:  # noqa: ASYNC110 - each page is open for this time
            await asyncio.sleep(0.1)


async def measure(changes: int, seconds: float, topics: int, rounds: int, loads: int, folder: Path) -> list[Look]:
    """Run, and print a line after each round."""
    port = free_port(1)
    node = PlannedNode(NodePlan("n1", ("127.0.0.1", port), ("127.0.0.1", port + 1), folder, "ap"))
    churn, looks = Churn(f"127.0.0.1:{port}", topics, changes / seconds), list[Look]()
    await node.start()
    try:
        await node.wait_serving(60)
        await churn.start()
        async with browser_page() as page:
            context, browser = page.context, page.context.browser
            assert browser is not None
            still = await browser.new_page()
            await still.goto(f"http://127.0.0.1:{port + 1}/#/topics")
            session = Sessions(
                await context.new_cdp_session(page),
                await still.context.new_cdp_session(still),
                await browser.new_browser_cdp_session(),
            )
            print(await respond(page, port + 1, topics, loads), flush=True)
            await page.evaluate(NOT_LIVE)
            changing = asyncio.create_task(churn.run())
            began = time.monotonic()
            print(HEADER, flush=True)
            try:
                for _ in range(rounds):
                    await visit(page, port + 1, seconds / rounds)
                    if changing.done():
                        changing.result()
                    not_live_s = await page.evaluate("window.notLiveMs") / 1000
                    looks.append(await look_at(session, node, began, churn.changes, not_live_s))
                    print(looks[-1].line(looks[-2] if len(looks) > 1 else None), flush=True)
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
        looks = asyncio.run(measure(given.changes, given.seconds, given.topics, given.rounds, 9, Path(folder)))
    wrong = grown(looks)
    print("over the second half:", *slopes(looks), sep="\n  ")
    print("\n".join(wrong) or "memory is steady")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
