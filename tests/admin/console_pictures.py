"""Photographs the console of a real cluster: ``.venv/bin/python -m tests.admin.console_pictures [FOLDER]``.

Three nodes and simulated brokers run. The pages that answer an operator's questions are photographed while the leader is killed,
a node is paused and a node is cut off. Without FOLDER only docs/console.png is written, the picture in README.md. It needs
Chromium and ``./namesrv setup test``, and takes about a minute.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page

from tests.support.browser import browser_page, shows
from tests.support.nodes import http, running_command
from tests.support.replicated_processes import ReplicatedProcesses, replicated_processes

README_PICTURE = Path(__file__).parents[2] / "docs" / "console.png"
SIZE = {"width": 1000, "height": 700}


async def go(page: Page, cluster: ReplicatedProcesses, node: str, place: str) -> None:
    await page.goto(f"http://127.0.0.1:{cluster.nodes[node].plan.admin[1]}/#/{place}")


async def photograph(folder: Path | None) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with replicated_processes(Path(data)) as cluster, browser_page(viewport=SIZE) as page:
            addresses = ";".join(cluster.addresses)
            arguments = ("broker", "-n", addresses, "--brokers", "2", "--replicas", "2", "--topics", "3")
            with running_command(*arguments, stderr=Path(data) / "brokers.log"):
                await take(cluster, page, folder)


async def take(cluster: ReplicatedProcesses, page: Page, folder: Path | None) -> None:
    async def save(name: str) -> None:
        if folder is not None:
            await page.screenshot(path=folder / f"{name}.png")

    leader = await cluster.leader()
    follower, third = cluster.others(leader)
    await go(page, cluster, follower, "topics")
    await shows(page, "topic-0", "tbody")
    answer = await http(cluster.nodes[follower].plan.admin[1], "/v1/kv/ORDER_TOPIC_CONFIG/topic-0", "PUT", b"broker-0:4")
    assert answer.status == 200
    await go(page, cluster, follower, "cluster")
    await shows(page, f"{leader} leads", ".summary")
    await cluster.kill(leader)
    await shows(page, f"{leader} does not answer", ".findings")
    await shows(page, f"{await cluster.leader(among=[follower, third])} leads", ".summary")
    await shows(page, "equal states", ".summary")
    await page.screenshot(path=README_PICTURE)
    await save("who-leads-do-the-nodes-agree-is-a-node-down")
    await go(page, cluster, follower, "timeline")
    await shows(page, "leads in term", ".timeline")
    await save("what-changed-and-who-did-it-does-a-broker-flap")
    await go(page, cluster, follower, "topics/topic-0")
    await shows(page, "Every broker name has a master", ".summary")
    await save("which-brokers-serve-this-topic")
    await cluster.start_node(leader)
    await cluster.all_serve()
    cluster.pause(third)
    await go(page, cluster, follower, "cluster")
    await shows(page, f"{third} does not answer", ".findings")
    await save("a-paused-node")
    cluster.resume(third)
    await shows(page, "All 3 nodes answer", ".summary")
    cluster.cut(follower)
    await shows(page, "It is fenced", ".findings")
    await save("why-is-this-node-not-ready")
    cluster.heal()
    await go(page, cluster, follower, "charts")
    await page.locator(".chart canvas").first.wait_for()
    await save("charts")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
    asyncio.run(photograph(target))
