"""Concurrent events in the console: requests, typing, dialogs, tokens, changes on the nodes. In a real browser."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Route

from replicated_namesrv import __version__
from replicated_namesrv.admin import watch as watch_module
from replicated_namesrv.routes.commands import PutKVConfig
from tests.admin.test_console import admin_port, console, node_row, one_node
from tests.admin.test_http import QUEUES, propose, registration
from tests.support.browser import LIMIT_MS, answers_come_late, browser_page, give_token, holds, opens_dialog, repeat, shows
from tests.support.nodes import http, running_node
from tests.support.replicated_processes import eventually, replicated_processes

TYPED = "a-name-that-is-typed-fast"
KEY_MS = 35
"""Time between two keys. Searches begin every 100 ms while keys are pressed."""
SLOW_S = 0.6
"""Delay of answers. It is longer than the time between two looks while there are changes, 0.3 s."""
CLUSTER_S, LIST_S = 3.0, 4.5
"""Delays of answers that are longer than the first time limits of the page, 2.5 s and 4 s."""
CHANGE_S = 0.05
LOOKS = 10
TABS = 8
"""More tabs than Chromium opens connections to one node, 6."""
SHOW = "(is) => { window.isCovered = !is; document.dispatchEvent(new Event('visibilitychange')); }"
LONG = "very-long-" * 12
RIGHT_TO_LEFT = "\u05e0\u05d5\u05e9\u05d0"
OVERRIDE = "\u202egnorw"
"""A character that reverses the direction of the text after it, unless that text is isolated."""


async def test_typing_dialogs_and_odd_names(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        propose(node, registration("broker-c", {LONG: QUEUES, RIGHT_TO_LEFT: QUEUES, OVERRIDE: QUEUES}))
        await page.goto(console(port, "topics"))
        await shows(page, LONG, "tbody")
        widths = "[document.documentElement.scrollWidth, innerWidth]"
        wide, window = await page.evaluate(widths)
        assert wide <= window, "a long name makes the page wider than the window"
        for name in (RIGHT_TO_LEFT, OVERRIDE):
            cell = page.locator("tbody a", has_text=name)
            assert await cell.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"
        search = page.get_by_label("Search topics")
        await search.press_sequentially(TYPED, delay=KEY_MS)
        await shows(page, "No topic matches", "tbody")
        await page.wait_for_url(f"**q={TYPED}")
        assert await search.input_value() == TYPED
        await page.go_back()
        await page.go_forward()
        await page.goto(console(port, "topics?q=T1"))
        await holds(page, "document.querySelector('input[type=search]').value === 'T1'")

        await page.goto(console(port, "kv"))
        await page.get_by_role("button", name="Delete").click()
        dialog = page.locator("dialog[open]")
        await dialog.get_by_label("to confirm").fill("key")
        await dialog.locator("button.danger").click()
        await shows(page, "Done, revision", "dialog[open]")
        assert "a value to find" in await page.locator("tbody").inner_text(), "the dialog's row went before the dialog"
        await dialog.get_by_role("button", name="Close").click()
        await shows(page, "There is no entry", "tbody")
        await holds(page, "document.activeElement.getAttribute('aria-label') === 'KV config'")


async def test_answers_that_are_slow_cut_off_or_of_another_page(tmp_path: Path) -> None:
    async with running_node(tmp_path, nodeId="first") as (node, port), browser_page() as page:
        await page.goto(console(port, "topics"))
        await shows(page, "No topic is registered", "tbody")
        asked = await answers_come_late(page, "**/v1/topics?*", SLOW_S)

        def change(number: int) -> None:
            propose(node, registration("broker-a", {f"T-{each}": QUEUES for each in range(number + 1)}))

        changing = asyncio.create_task(repeat(change, CHANGE_S))
        try:
            await shows(page, "T-40", "tbody")  # changes come faster than answers, and the page shows them
            looks = len(asked)
        finally:
            changing.cancel()
        assert looks > 1
        await page.goto(console(port, "brokers"))  # this leaves a page that still waits for an answer
        await shows(page, "broker-a", "tbody")
        await page.get_by_role("link", name="Topics").click()
        await page.get_by_role("link", name="T-1", exact=True).click()
        await shows(page, "Topic T-1", "h1")
        await shows(page, "queues. Every broker name has a master", ".summary")

        await page.route("**/v1/cluster", lambda route: route.fulfill(body='{"nodes": [', content_type="application/json"))
        await shows(page, "this node does not answer for", "header")
        await page.unroute("**/v1/cluster")
        await shows(page, "no problems", "header")


@pytest.mark.slow
@pytest.mark.parametrize(("path", "late_s"), [("**/v1/cluster", CLUSTER_S), ("**/v1/topics?*", LIST_S)])
async def test_answers_that_come_after_the_first_time_limit_are_shown(tmp_path: Path, path: str, late_s: float) -> None:
    async with one_node(tmp_path) as (_, port), browser_page() as page:
        asked = await answers_come_late(page, path, late_s)
        await page.goto(console(port, "topics"))
        await shows(page, "T1", "tbody")
        await shows(page, "live", ".stream")
        assert len(asked) > 1, "the first answer was not late"


async def test_an_open_page_keeps_nothing_of_its_requests(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(console(port, "topics"))
        await shows(page, "live", ".stream")
        session = await page.context.new_cdp_session(page)

        async def listeners() -> int:
            await session.send("HeapProfiler.collectGarbage")
            return int((await session.send("Memory.getDOMCounters"))["jsEventListeners"])

        async def asked_often() -> bool:
            return sum("/v1/topics?" in url for url in asked) > 2 * LOOKS

        before = await listeners()
        changing = asyncio.create_task(repeat(lambda number: propose(node, PutKVConfig("n", "k", str(number))), CHANGE_S))
        try:
            await eventually(asked_often, "the page reads its list again and again")
        finally:
            changing.cancel()
        assert await listeners() < before + LOOKS


async def test_a_forgotten_token_takes_what_it_showed_with_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a token that is long enough\n")
    async with one_node(tmp_path / "data", adminTokenFile=str(token)) as (node, port), browser_page() as page:
        await page.goto(console(port, "kv"))
        await give_token(page, "a token that is long enough", "a value to find", "tbody")
        asked = await answers_come_late(page, "**/v1/kv?*", SLOW_S)
        propose(node, registration("broker-d", {"T1": QUEUES, "T2": QUEUES}))

        async def is_asked() -> bool:
            return bool(asked)

        await eventually(is_asked, "an answer to the old token is under way")
        await page.get_by_role("button", name="Forget the token").click()
        await shows(page, "This node needs its token", "form.token")
        await page.locator("text=a value to find").first.wait_for(state="detached")
        await asyncio.to_thread(token.write_text, "another token that is long enough\n")
        await give_token(page, "another token that is long enough", "a value to find", "tbody")
        await asyncio.to_thread(token.write_text, "a token that came while the page was open\n")
        await shows(page, "wrong token", "form.token")
        await shows(page, "What is shown is", "form.token")
        assert "no problems" not in await page.locator("header").inner_text()
        await give_token(page, "a token that came while the page was open", "no problems", "header")


async def test_tabs_that_are_not_shown_leave_the_connections_to_others(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        assert page.context.browser is not None
        window = await page.context.browser.new_context()
        window.set_default_timeout(LIMIT_MS)
        tabs = [await window.new_page() for _ in range(TABS)]
        for tab in tabs:
            await tab.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.isCovered === true });")
            await tab.goto(console(port, "topics"))
            await shows(tab, "live", ".stream")
            await tab.evaluate(SHOW, False)
        for tab in (tabs[0], tabs[-1]):
            propose(node, registration("broker-c", {f"T{tabs.index(tab)}-new": QUEUES, "T1": QUEUES}))
            await tab.evaluate(SHOW, True)
            await shows(tab, f"T{tabs.index(tab)}-new", "tbody")
            await shows(tab, "live", ".stream")


async def test_answers_and_pages_of_other_versions(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, port), browser_page() as page:
        await page.add_init_script("addEventListener('error', (event) => event.preventDefault())")
        await page.goto(console(port, "topics"))
        await shows(page, "T1", "tbody")
        await page.route("**/v1/topics?*", lambda route: route.fulfill(json={"rows": []}))
        await page.goto(console(port, "topics?q=T"))
        await shows(page, "This page cannot be shown", ".problem")
        await page.get_by_role("link", name="KV config").click()
        await shows(page, "a value to find", "tbody")

        async def newer(route: Route) -> None:
            answer = await route.fetch()
            await route.fulfill(
                response=answer, body=(await answer.text()).replace(f'"version":"{__version__}"', '"version":"9.9.9"')
            )

        await page.route("**/v1/cluster", newer)
        await shows(page, f"This page was loaded from version {__version__}, and the node now runs 9.9.9")
        await page.get_by_role("button", name="Reload").click()
        await shows(page, "a value to find", "tbody")
        assert await page.get_by_role("button", name="Reload").count() == 0


async def test_page_without_a_stream_says_why_and_still_shows_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "ADDRESS_WATCHERS_MAX", 0)
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        await page.goto(console(port, "topics"))
        await shows(page, "Changes are not shown at once: this host has 0 watchers already")
        await shows(page, "T1", "tbody")
        propose(node, registration("broker-c", {"T0": QUEUES, "T1": QUEUES}))
        await shows(page, "T0", "tbody")
        assert await page.get_by_label("Token").count() == 0
        monkeypatch.setattr(watch_module, "ADDRESS_WATCHERS_MAX", 1)
        await shows(page, "live", ".stream")
        assert await page.locator("text=Changes are not shown at once").count() == 0


@pytest.mark.slow
async def test_leadership_is_transferred_and_a_node_drained_from_the_browser(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster, browser_page() as page:

        async def open_transfer() -> str:
            leader = await cluster.leader()
            await page.goto(console(admin_port(cluster, leader)))
            row = page.locator(node_row(cluster.others(leader)[0]))
            return leader if await opens_dialog(row.get_by_role("button", name="Transfer leadership")) else ""

        leader = await eventually(open_transfer, "the dialog of a transfer on the leader's page")
        heir, third = cluster.others(leader)
        await shows(page, f"{leader} stops leading, and {heir} becomes the leader", "dialog[open]")
        await page.locator("dialog[open] button.danger").click()
        await shows(page, "Done", "dialog[open]")
        await page.locator("dialog[open]").get_by_role("button", name="Close").click()
        await shows(page, f"{heir} leads", ".summary")
        await shows(page, f"open the console of {heir}", node_row(third))

        drain = page.locator(node_row(leader)).get_by_role("button", name="Drain")
        await eventually(lambda: opens_dialog(drain), "the dialog of a drain")
        assert await page.locator("dialog[open] button.danger").is_disabled()
        await page.locator("dialog[open]").get_by_label("to confirm").fill(leader)
        await page.locator("dialog[open] button.danger").click()
        await shows(page, "Drained:", "dialog[open]")
        await page.locator("dialog[open]").get_by_role("button", name="Close").click()
        await shows(page, "drained", node_row(leader))
        await shows(page, "It is drained", ".findings")
        status = await http(admin_port(cluster, leader), "/v1/status")
        assert (status.json["drained"], status.json["listen"]) == (True, None)
        serve = page.locator(node_row(leader)).get_by_role("button", name="Serve again")
        await eventually(lambda: opens_dialog(serve), "the dialog of a node that is to serve again")
        await page.locator("dialog[open] button.danger").click()
        await shows(page, "It serves", "dialog[open]")
        await page.locator("dialog[open]").get_by_role("button", name="Close").click()
        await shows(page, "no problems", "header")
