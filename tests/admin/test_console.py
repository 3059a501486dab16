"""The console in a real browser, against real nodes."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it declares no types
from playwright.async_api import Page, Route, expect

from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.commands import BrokerRemoval, PutKVConfig, UnregisterBrokers
from tests.access.files import token_line, write_access_file
from tests.admin.test_http import QUEUES, propose, registration
from tests.support.browser import LIMIT_MS, browser_page, give_token, seconds_until, shows
from tests.support.nodes import http, independent_flags, running_node
from tests.support.ports import free_port
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes

PAGES = ("cluster", "topics", "topics/T1", "brokers", "brokers/broker-a", "clusters", "kv", "settings", "timeline", "charts")
HOUR_MS = 3_600_000
MARKUP = '<img src=x onerror="alert(1)">&amp;'
MARKUP_TOKEN = "the token of an identity with an odd name"
TOPICS = 20_000
ROW_HEIGHT_MAX = 300
"""Maximum height of a table row in pixels, in a window 390 pixels wide. In a higher row, a column is so narrow that each line has
one word."""
BROKEN_WORDS = """[...document.querySelectorAll("td, th")].flatMap((cell) => {
    const found = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
        for (const { 0: word, index } of node.data.matchAll(/[^\\s-]+/g)) {
            if (word.length > 30) continue;
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            if (new Set([...range.getClientRects()].map((part) => Math.round(part.top))).size > 1) found.push(word);
        }
    }
    return found;
})"""
"""The words in tables that have at most 30 characters and are broken over two lines. A browser may break a word
after a hyphen."""
PAINT_LIMIT_S, SEARCH_LIMIT_S = 10.0, 5.0
"""These limits are generous, because other tests run at the same time. docs/performance.md does not quote them."""


def console(port: int, page: str = "cluster") -> str:
    return f"http://127.0.0.1:{port}/#/{page}"


def admin_port(cluster: ReplicatedProcesses, name: str) -> int:
    return cluster.nodes[name].plan.admin[1]


def node_row(name: str) -> str:
    """Selects the row of a node in the table with the actions."""
    return f"section.nodes tbody tr:has(bdi:text-is('{name}'))"


async def shows_leader(page: Page, leader: str) -> None:
    await shows(page, f"{leader} leads", ".summary")


@asynccontextmanager
async def one_node(folder: Path, **flags: str) -> AsyncIterator[tuple[ServingNode, int]]:
    """An independent node with two brokers and some KV config."""
    async with running_node(folder, nodeId="first", **flags) as (node, port):
        propose(node, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
        propose(node, registration("broker-b", {"T1": QUEUES, "T2": QUEUES}, broker_id=1))
        propose(node, PutKVConfig("NAMESPACE", "key", "a value to find"))
        yield node, port


@pytest.mark.slow
async def test_follower_shows_a_leader_kill_a_pause_and_a_partition(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster, browser_page() as page:

        async def shown_leader() -> str | None:
            """The leader, when the page of another node names it. On a busy machine leadership may change before the page is
            there."""
            leader = await cluster.leader()
            await page.goto(console(admin_port(cluster, cluster.others(leader)[0])))
            await page.locator(".summary").first.wait_for()
            return leader if f"{leader} leads" in await page.locator(".summary").first.inner_text() else None

        leader = await eventually(shown_leader, "a leader that the page of another node names")
        assert leader is not None
        follower, third = cluster.others(leader)
        await shows(page, "All 3 nodes answer", ".summary")
        await page.set_viewport_size({"width": 390, "height": 844})
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"with three nodes, whose table is wider than the window, the page has {wide} pixels"

        await cluster.kill(leader)
        took_s = await seconds_until(lambda: page.locator(".findings", has_text=f"{leader} does not answer").wait_for())
        print(f"a follower's page showed the leader's kill after {took_s:.2f} s")
        successor = await cluster.leader(among=[follower, third])
        await shows_leader(page, successor)
        await shows(page, "old.", ".findings")  # the age of the data of the node that is gone
        await shows(page, "not known", node_row(leader))  # its log index: the new leader has had no answer from it
        await page.goto(console(admin_port(cluster, follower), "timeline"))
        both = f"{', '.join(sorted((follower, third)))}"
        await shows(page, f"{both} lost contact with node {leader}: its connection ended. Last contact at", ".timeline")
        await shows(page, f"Requests that {leader} received, and what it saw of the other nodes, are not shown", "main")

        await cluster.start_node(leader)
        await shows(page, f"contact with node {leader} again, after", ".timeline")
        await shows(page, f"{leader} listens for brokers and clients", ".timeline")
        await page.goto(console(admin_port(cluster, follower)))
        await shows(page, "All 3 nodes answer", ".summary")

        cluster.pause(third)
        await shows(page, f"{third} does not answer", ".findings")
        await shows(page, "Check that its process runs", ".findings .remedy")
        await page.locator("table.facts td .bad", has_text=" s ago").wait_for()
        assert await page.locator(".findings", has_text="so it runs").count() == 0
        await page.goto(console(admin_port(cluster, follower), f"timeline?q={third}"))
        await shows(page, f"lost contact with node {third}: nothing arrives over its open connection", ".timeline")
        cluster.resume(third)
        await shows(page, f"{third} stalled for", ".timeline")
        await shows(page, f"contact with node {third} again, after", ".timeline")
        await page.goto(console(admin_port(cluster, follower)))
        await shows(page, "All 3 nodes answer", ".summary")

        cluster.cut(follower)
        await shows(page, "It is fenced", ".findings")
        await shows(page, "restore the network", ".findings .remedy")
        await shows(page, "It is fenced", ".findings li:first-child")
        contact = page.locator("table.facts tr", has_text="Last contact over Raft").locator("td")
        for at, name in enumerate(cluster.names):  # connections stay open, and nothing arrives over them
            if name == follower:
                assert await contact.nth(at).inner_text() == "this node"
            else:
                await shows(page, f"{name}: Nothing has arrived from it over Raft for", ".findings")
                await contact.nth(at).locator(".bad", has_text=" s ago").wait_for()
        successor = await cluster.leader(among=cluster.others(follower))
        await page.goto(console(admin_port(cluster, successor)))
        await shows(page, "Nothing arrives from it over Raft.", f"{node_row(follower)} .why")
        assert (await http(admin_port(cluster, successor), "/v1/kv/NAMESPACE/key", "PUT", b"while it is cut off")).status == 200
        await page.goto(console(admin_port(cluster, successor), "charts"))
        lag = page.locator("figcaption", has_text="Lag behind the newest commit of any node")
        await expect(lag).to_have_text(re.compile(rf"{follower} [1-9]"), timeout=LIMIT_MS)
        await page.goto(console(admin_port(cluster, follower), "topics"))
        await shows(page, "This node is fenced. Its state, which is shown here, was last confirmed")
        await page.goto(console(admin_port(cluster, follower), "timeline"))
        await shows(page, "this node fenced itself", ".timeline")
        cluster.heal()
        await shows(page, "this node serves again", ".timeline")
        await page.goto(console(admin_port(cluster, follower)))
        await shows(page, "No node has a problem", "main")
        await shows(page, "no problems", "header")
        await expect(page.locator("table.facts td .bad")).to_have_count(0, timeout=LIMIT_MS)


@pytest.mark.slow
async def test_accessibility_checker_finds_nothing_on_the_page_of_a_cluster(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster, browser_page(bypass_csp=True) as page:
        leader = await cluster.leader()
        for name in (leader, cluster.others(leader)[0]):
            await page.goto(console(admin_port(cluster, name)))
            await shows(page, "All 3 nodes answer", ".summary")
            await page.locator(node_row(leader)).wait_for()
            found = await Axe().run(page)
            assert not found.response["violations"], found.generate_report()


@pytest.mark.slow
async def test_page_continues_after_its_node_restarts(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster, browser_page() as page:
        leader = await cluster.leader()
        own = cluster.others(leader)[0]
        await page.goto(console(admin_port(cluster, own), "kv"))
        await shows(page, "live", ".stream")
        await cluster.kill(own)
        await shows(page, "this node does not answer for", "header")
        await cluster.start_node(own)
        await shows(page, "live", ".stream")
        await cluster.all_serve()
        await page.get_by_role("button", name="Put an entry").click()
        await page.get_by_label("NAMESPACE/KEY=VALUE").fill("SPACE/after=the restart")
        await page.locator("dialog[open] button.danger").click()
        await page.locator("dialog[open]").get_by_role("button", name="Close").click()
        await shows(page, "the restart", "td .value")


async def test_divergent_independent_nodes_are_compared(tmp_path: Path) -> None:
    one, two = independent_flags("one", "two")
    async with (
        running_node(tmp_path / "one", **one) as (first, port),
        running_node(tmp_path / "two", **two) as (second, second_port),
        browser_page() as page,
    ):
        for node in (first, second):
            propose(node, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
        await page.goto(console(port))
        await shows(page, "have the same brokers, topics and KV config")
        await shows(page, "one, two have the same brokers, topics and KV config", ".summary")
        propose(first, registration("broker-b", {"T1": QUEUES, "T9": QUEUES}))
        propose(first, PutKVConfig("SPACE", "lacking", "v"))
        propose(first, PutKVConfig("SPACE", "other", "v"))
        propose(second, PutKVConfig("SPACE", "other", "w"))
        await shows(page, "1 broker differs, 2 topics differ, 2 KV entries differ")
        await shows(page, "The nodes differ: 1 broker, 2 topics, 2 KV entries", ".summary")
        await shows(page, "missing", "tr:has-text('SPACE / lacking') td.bad")
        for letter in "AB":
            await shows(page, f"value {letter}", "tr:has-text('SPACE / other')")
        since = await page.locator("tr", has_text="SPACE / lacking").locator("td").last.inner_text()
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", since), since
        await shows(page, "queues A", "tr:has-text('T1')")
        await shows(page, "queues B", "tr:has-text('T1')")
        await page.get_by_role("link", name="SPACE / other").click()
        await shows(page, "other", "tbody")
        await page.goto(console(second_port, "topics/T9"))
        await shows(page, "no broker serves topic 'T9'", ".problem")
        await shows(page, "one has a route of this topic, two has none", ".agreement")
        await page.goto(console(second_port, "topics/T2"))
        await shows(page, "one, two have the same route", ".agreement")
        await page.goto(console(port))
        row = page.locator("tr", has_text="broker-b")
        await row.wait_for()
        assert "missing" in await row.inner_text()
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", await row.inner_text())
        propose(second, registration("broker-b", {"T1": QUEUES, "T9": QUEUES}))
        propose(second, PutKVConfig("SPACE", "lacking", "v"))
        propose(second, PutKVConfig("SPACE", "other", "v"))
        await shows(page, "have the same brokers, topics and KV config")


async def test_console_asks_for_the_token_and_uses_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a token that is long enough\n")
    async with one_node(tmp_path / "data", adminTokenFile=str(token)) as (_, port), browser_page(bypass_csp=True) as page:
        await page.goto(console(port))
        await shows(page, "This node needs its token", "form.token")
        found = await Axe().run(page)
        assert not found.response["violations"], found.generate_report()
        await give_token(page, "a token that is long but wrong")
        await shows(page, "wrong token", "form.token")
        await give_token(page, "a token that is long enough", "ready", "table.facts")


async def test_actions_preview_and_ask_for_confirmation(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        await page.goto(console(port, "brokers/broker-a"))
        await page.get_by_role("button", name="Wipe write permission").click()
        dialog = page.locator("dialog[open]")
        await shows(page, "Producers stop using broker-a for 2 topics", "dialog[open]")
        assert await dialog.locator("button.danger").is_disabled()
        await dialog.get_by_label("to confirm").fill("broker-a")
        await dialog.locator("button.danger").click()
        await shows(page, "Done, revision", "dialog[open]")
        queues = node.service.state.topic_queues("T1")
        assert queues is not None
        assert queues["broker-a"].perm == QUEUES.perm & ~2
        await page.goto(console(port, "topics/T1"))
        await shows(page, "A broker name has no write permission", ".summary")
        await page.goto(console(port, "timeline"))
        await shows(page, "write permission of broker-a was wiped", ".timeline")
        await shows(page, "127.0.0.1 requested POST", ".timeline")
        await page.goto(console(port))
        button = page.get_by_role("button", name="Transfer leadership")
        assert await button.get_attribute("aria-disabled") == "true"
        await shows(page, "Independent nodes have no leader", ".why")


async def test_flapping_broker_is_named_on_the_first_page(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        command = registration("broker-c", {"T3": QUEUES, "T4": QUEUES})
        for _ in range(3):
            propose(node, command)
            propose(node, UnregisterBrokers((BrokerRemoval(command.cluster_name, command.broker_addr, "broker-c", 0, None),)))
        await page.goto(console(port))
        await page.get_by_role("link", name="1 broker flaps").click()
        await shows(page, "removed 3 times")
        await page.locator(".timeline a", has_text="broker-c").first.click()
        await shows(page, "It flaps", ".summary")
        propose(node, command)
        removals = page.locator("tbody tr td:last-child")
        await expect(removals).to_have_text("3", timeout=LIMIT_MS)
        await page.goto(console(port, "brokers/broker-a"))
        await shows(page, "It does not flap", ".summary")
        await expect(removals).to_have_text("0", timeout=LIMIT_MS)
        await page.route("**/v1/timeline?*", lambda route: route.fulfill(status=403, json={"error": "wrong token"}))
        await page.reload()
        await shows(page, "Whether it flaps is not known: wrong token.", ".summary")


async def test_contacts_of_brokers_are_read_again_without_a_change(tmp_path: Path) -> None:
    async with running_node(tmp_path, nodeId="first") as (node, port), browser_page() as page:
        given = registration("broker-a", {"T1": QUEUES, "T2": QUEUES})
        propose(node, replace(given, heartbeat_timeout_ms=HOUR_MS))  # the broker is not suspected, which would be a change
        await page.goto(console(port, "brokers"))
        await shows(page, "broker-a", "tbody")
        await shows(page, "live", ".stream")
        looks: list[str] = []
        page.on("request", lambda request: looks.append(request.url) if "/v1/brokers?" in request.url else None)

        async def looked_often() -> bool:
            return len(looks) > 2

        await eventually(looked_often, "the list is read again and again")


async def test_pages_of_a_node_that_stops_answering_say_how_old_they_are(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, port), browser_page() as page:
        await page.goto(console(port))
        await shows(page, "ready", "table.facts .good")
        await page.route("**/v1/**", lambda route: route.abort())
        await shows(page, "What is shown below is", "main .age")
        await shows(page, "was ready", "table.facts .warn")
        assert await page.locator("main .good").count() == 0
        assert "now" not in await page.locator("table.facts tr", has_text="Age of this data").inner_text()
        await page.unroute("**/v1/**")
        await shows(page, "ready", "table.facts .good")
        assert await page.locator("main .age").count() == 0
        for place, selector in (("brokers", "main .age"), ("brokers/broker-a", "main li .bad")):
            await page.goto(console(port, place))
            await shows(page, "not with this node", "tbody")
            if place == "brokers/broker-a":
                await shows(page, "no contact with this node", "main li")
            await page.route("**/v1/**", lambda route: route.abort())
            await shows(page, " old", selector)
            await page.unroute("**/v1/**")


async def test_only_warnings_have_the_colour_of_a_warning(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, port), browser_page() as page:

        async def with_findings(route: Route) -> None:
            answer = await route.fetch()
            body = await answer.json()
            body["nodes"][0]["findings"] = [{"level": level, "problem": level, "remedy": ""} for level in levels]
            await route.fulfill(response=answer, json=body)

        await page.route("**/v1/cluster", with_findings)
        levels = ["warn"]
        await page.goto(console(port))
        await shows(page, "1 warning", "header .badge.warn")
        levels = ["warn", "bad", "warn"]
        await shows(page, "1 problem, 2 warnings", "header .badge.bad")


async def test_a_time_has_the_date_of_the_browser(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, port), browser_page(timezone_id="Pacific/Kiritimati") as page:  # 14 h before UTC
        await page.goto(console(port))
        shown = await page.evaluate("import('/console/api.js').then((api) => api.moment(Date.UTC(2026, 0, 31, 23, 0, 5)))")
        assert shown == "2026-02-01 13:00:05"


@pytest.mark.slow
async def test_an_unknown_page_says_so(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port), browser_page() as page:
        await page.goto(console(port, "nonsense/x"))
        await shows(page, "There is no page at this address.", "main")
        await expect(page).to_have_title(re.compile("^No such page · "), timeout=LIMIT_MS)


@pytest.mark.slow
async def test_many_topics_are_painted_searched_and_paged(tmp_path: Path) -> None:
    async with running_node(tmp_path, nodeId="first") as (node, port), browser_page() as page:
        propose(node, registration("broker-a", {f"topic-{i:05d}": QUEUES for i in range(TOPICS)}))
        await page.goto(console(port, "topics"))
        paint_s = await seconds_until(lambda: shows(page, "100 of 20,000", ".pager"))
        search = page.get_by_label("Search topics")
        await search.fill("19999")
        search_s = await seconds_until(lambda: shows(page, "1 of 1,", ".pager"))
        print(f"{TOPICS} topics: first rows after {paint_s:.2f} s, search {search_s:.3f} s")
        assert paint_s < PAINT_LIMIT_S
        assert search_s < SEARCH_LIMIT_S
        assert "q=19999" in page.url
        await search.fill("")
        await shows(page, "100 of 20,000", ".pager")
        await page.goto(console(port, "topics?after=topic-19949&page=200"))
        await shows(page, "topic-19999", "tbody")
        await page.get_by_role("button", name="Read queues").click()
        await shows(page, "100 of 20,000", ".pager")
        assert "sort=-readQueueNums" in page.url


async def test_markup_in_names_stays_text(tmp_path: Path) -> None:
    name = MARKUP.replace('"', '\\"')
    identity = f'[identities."{name}"]\nroles = ["admin"]\ntokens = ["{token_line(MARKUP_TOKEN)}"]\n'
    flags = {"accessPolicy": "enforce", "accessFile": str(write_access_file(tmp_path, identity)), "nodeId": MARKUP}
    async with running_node(tmp_path / "data", productEnvName=MARKUP, **flags) as (node, port), browser_page() as page:
        given = registration(MARKUP, {MARKUP: QUEUES, f"{MARKUP}2": QUEUES}, cluster=MARKUP)
        propose(node, replace(given, zone_name=MARKUP, broker_addr=f"{MARKUP}:1"))
        path = f"/v1/kv/{quote(MARKUP, safe='')}/{quote(MARKUP, safe='')}"
        assert (await http(port, path, "PUT", MARKUP.encode(), {"Authorization": f"Bearer {MARKUP_TOKEN}"})).status == 200
        await page.goto(console(port))
        await give_token(page, MARKUP_TOKEN)
        for place, selector, count in (
            ("cluster", "header .title", 1),
            ("topics", "tbody", 2),
            (f"topics/{quote(MARKUP, safe='')}", "main", 6),  # topic, broker name, cluster, master, zone, and the title
            (f"topics/{quote(MARKUP + '3', safe='')}", ".problem", 1),
            ("brokers", "tbody", 3),
            (f"brokers/{quote(MARKUP, safe='')}", "tbody", 2),
            ("clusters", "tbody", 1),
            ("kv", "tbody", 3),
            ("settings?q=productEnvName", "tbody", 1),
            ("timeline", "ol", 7),
        ):
            await page.goto(console(port, place))
            await shows(page, MARKUP, selector)

            async def is_complete() -> bool:
                text = await page.locator(selector).first.inner_text()  # noqa: B023 - awaited at once
                return text.count(MARKUP) >= count  # noqa: B023 - awaited at once

            await eventually(is_complete, f"{count} names at {place}")
            assert await page.locator("img").count() == 0
        await shows(page, f"{MARKUP} at 127.0.0.1 requested PUT", "ol")


def marked(value: Any) -> Any:
    """``value``, an answer in JSON, with markup in front of each text that does not decide what the page shows."""
    if isinstance(value, dict):
        return {key: each if key in ("mode", "kind", "level", "next") else marked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [marked(each) for each in value]
    return f"{MARKUP}{value}" if isinstance(value, str) else value


@pytest.mark.parametrize("mode", ["cp", "ap"])
async def test_markup_in_any_field_of_an_answer_stays_text(tmp_path: Path, mode: str) -> None:
    own = f"127.0.0.1:{free_port()}"
    flags = {"mode": "cp", "peers": f"first={own}", "peerListen": own} if mode == "cp" else {"nameServerAddresses": "127.0.0.1:1"}
    async with running_node(tmp_path, nodeId="first", **flags) as (node, port), browser_page() as page:

        async def mark(route: Route) -> None:
            answer = await route.fetch()
            await route.fulfill(response=answer, json=marked(await answer.json()))

        await page.route(lambda url: "/v1/" in url and not url.endswith("/v1/watch"), mark)
        if mode == "ap":
            propose(node, registration("broker-a", {"T1": QUEUES, "T2": QUEUES}))
            propose(node, PutKVConfig("NAMESPACE", "key", "value"))
        for place in PAGES:
            await page.goto(console(port, place))
            await page.locator("main h1").wait_for()
            await shows(page, MARKUP, "header .title")
            await page.locator("main table, main ol, main figure, main .problem").first.wait_for()
            assert await page.locator("img").count() == 0, place


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessibility_checker_finds_nothing(tmp_path: Path, scheme: str) -> None:
    options = {"color_scheme": scheme, "viewport": {"width": 390, "height": 844}, "reduced_motion": "reduce", "bypass_csp": True}
    async with one_node(tmp_path) as (_, port), browser_page(**options) as page:
        for name in PAGES:
            await page.goto(console(port, name))
            await page.locator("main h1").wait_for()
            await page.locator("main table, main ol, main figure, main input").first.wait_for()
            found = await Axe().run(page)
            assert not found.response["violations"], f"{name}: {found.generate_report()}"
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} is wider than the window"
            tallest = await page.evaluate("Math.max(0, ...[...document.querySelectorAll('tr')].map((row) => row.clientHeight))")
            assert tallest <= ROW_HEIGHT_MAX, f"{name} has a row of {tallest} pixels"
            assert await page.evaluate(BROKEN_WORDS) == [], f"{name} breaks words in a table"


async def test_focus_survives_a_refresh_and_the_keyboard_reaches_everything(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        await page.goto(console(port, "topics"))
        await shows(page, "T1", "tbody")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        link = page.get_by_role("link", name="T2", exact=True)
        await link.focus()
        propose(node, registration("broker-c", {"T0": QUEUES, "T1": QUEUES}))
        await shows(page, "T0", "tbody")
        assert await page.evaluate("document.activeElement.textContent") == "T2"
        await page.keyboard.press("Enter")
        await shows(page, "Topic T2", "h1")
        await page.get_by_role("button", name="Delete topic").focus()
        await page.keyboard.press("Enter")
        assert await page.locator("dialog[open]").count() == 1
        await page.keyboard.press("Escape")
        assert await page.locator("dialog[open]").count() == 0
        assert await page.evaluate("document.activeElement.textContent") == "Delete topic"
