"""The console's actions, sort orders and links between pages, in a real browser against real nodes."""

import json
import re
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]  # it declares no types
from playwright.async_api import Locator, Page, expect

from replicated_namesrv.access.roles import Role
from replicated_namesrv.cli.children import NodePlan, PlannedNode
from replicated_namesrv.routes.commands import PutKVConfig
from tests.access.files import write_access_file
from tests.admin.test_console import PAGES, admin_port, console, node_row, one_node
from tests.admin.test_http import QUEUES, propose, registration
from tests.admin.test_roles_over_http import FILE, TOKENS
from tests.support.browser import LIMIT_MS, browser_page, give_token, opens_dialog, shows
from tests.support.nodes import http
from tests.support.ports import free_port
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes

CHARTS = (
    *("Latency of requests, 99th percentile", "Latency of requests, median", "Commit latency, 99th percentile"),
    *("Fsync latency, 99th percentile", "Elections", "Lag behind the newest commit of any node", "Brokers", "Connections"),
    *("Event loop lag, recent maximum", "CPU", "Memory", "Rejections by limits"),
)
OPEN_DIALOG = "dialog[open]"


async def perform(page: Page, confirm: str = "", value: str | None = None, done: str = "Done") -> None:
    """Fill the open dialog, perform its action and close it. The action cannot be performed without the right text."""
    dialog = page.locator(OPEN_DIALOG)
    button = dialog.locator("button.danger")
    if value is not None:
        await dialog.locator("textarea").fill(value)
    if confirm:
        assert await button.is_disabled()
        await dialog.get_by_label("to confirm").fill(f"{confirm}x")
        assert await button.is_disabled()
        await dialog.get_by_label("to confirm").fill(confirm)
    await button.click()
    result = dialog.locator("form > p[role=status]")
    await result.wait_for()
    assert done in await result.inner_text()
    await dialog.get_by_role("button", name="Close").click()


async def test_topics_kv_config_settings_and_backup_are_changed_from_the_browser(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page(accept_downloads=True) as page:
        await page.goto(console(port, "topics/T1"))
        await page.get_by_role("button", name="Delete topic").click()
        await shows(page, "Removes the route through broker-a, broker-b", OPEN_DIALOG)
        await perform(page, "T1")
        await shows(page, "no broker serves topic 'T1'", ".problem")
        assert await page.locator("main table, main .summary").count() == 0, "the route that was deleted is still shown"
        assert node.service.state.topic_queues("T1") is None

        await page.goto(console(port, "kv"))
        await page.get_by_role("button", name="Change").click()
        await shows(page, "Present value: a value to find", OPEN_DIALOG)
        await perform(page, value="another value")
        await shows(page, "another value", "td .value")
        await page.get_by_role("button", name="Put an entry").click()
        await page.locator(OPEN_DIALOG).locator("textarea").fill("no entry")
        await page.locator(OPEN_DIALOG).locator("button.danger").click()
        await shows(page, "Not done: this is not NAMESPACE/KEY=VALUE. Give for example", OPEN_DIALOG)
        await page.keyboard.press("Escape")

        await page.goto(console(port, "settings?q=orderMessageEnable"))
        await page.get_by_role("button", name="Change").click()
        await shows(page, "Present value: false", OPEN_DIALOG)
        await perform(page, value="true")
        await shows(page, "true", "td .value.changed")

        assert (await http(port, "/v1/brokers/broker-a/write-permission?writable=false", "POST")).status == 200
        await page.goto(console(port, "brokers/broker-a"))
        await page.get_by_role("button", name="Restore write permission").click()
        await shows(page, "Sets the permission of 1 topic on broker-a to read and write", OPEN_DIALOG)
        await perform(page)
        queues = node.service.state.topic_queues("T2")
        assert queues is not None
        assert queues["broker-a"].perm == QUEUES.perm

        await page.goto(console(port))
        await page.get_by_role("button", name="Back up").click()
        async with page.expect_download() as saved:
            await perform(page, done="The browser saves the file")
        backup = await (await saved.value).path()
        assert b"another value" in backup.read_bytes()
        await page.goto(console(port, "timeline?q=127.0.0.1"))
        for text in ("DELETE /v1/topics/T1", "PUT /v1/kv/NAMESPACE/key", "POST /v1/config"):
            await shows(page, f"127.0.0.1 requested {text}", ".timeline")


async def test_names_that_mean_another_url_are_not_requested(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        propose(node, PutKVConfig("..", "drain", "DELETE /v1/kv/../drain is DELETE /v1/drain"))
        propose(node, registration("..", {"..": QUEUES, "T2": QUEUES}))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.method))
        await page.goto(console(port, "kv?q=drain"))
        await page.get_by_role("button", name="Delete").click()
        await page.locator(OPEN_DIALOG).get_by_label("to confirm").fill("drain")
        await page.locator(f"{OPEN_DIALOG} button.danger").click()
        await shows(page, "Not done: a browser cannot request the names", OPEN_DIALOG)
        for place in ("topics/..", "brokers/.."):
            await page.goto(console(port, place))
            await page.locator("main table, main .problem").first.wait_for()
        assert set(asked) == {"GET"}


async def test_who_may_not_change_anything_is_told_why(tmp_path: Path) -> None:
    flags = {"accessPolicy": "enforce", "accessFile": str(write_access_file(tmp_path, FILE))}
    async with one_node(tmp_path / "data", **flags) as (_, port), browser_page() as page:
        await page.goto(console(port))
        await give_token(page, TOKENS[Role.READ])
        for place, label, role in (
            ("cluster", "Drain", "admin"),
            ("cluster", "Back up", "admin"),
            ("topics/T1", "Delete topic", "admin or operator"),
            ("brokers/broker-a", "Wipe write permission", "admin or operator"),
            ("brokers/broker-a", "Restore write permission", "admin or operator"),
            ("kv", "Put an entry", "admin or operator"),
            ("kv", "Change", "admin or operator"),
            ("kv", "Delete", "admin or operator"),
            ("settings?q=orderMessageEnable", "Change", "admin or operator"),
        ):
            await page.goto(console(port, place))
            button = page.get_by_role("button", name=label)
            await expect(button).to_have_attribute("aria-disabled", "true", timeout=LIMIT_MS)
            why = re.compile(f"^no permission: it needs the role {role}, and read has read; give this identity one of the needed")
            await expect(button).to_have_accessible_description(why)
            await button.click(force=True)
            assert await page.locator(OPEN_DIALOG).count() == 0


@pytest.mark.slow
async def test_every_page_needs_no_other_host_and_leads_to_the_route_of_a_topic(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, port), browser_page(reduced_motion="reduce") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for name in PAGES:
            await page.goto(console(port, name))
            await page.locator("main table, main ol, main canvas").first.wait_for()
            assert await page.evaluate("document.getAnimations().length") == 0
            find = page.get_by_label("Route of a topic")
            await find.fill(" T2 ")
            await find.press("Enter")
            await shows(page, "Topic T2", "h1")
            await shows(page, "2 broker names serve this topic", ".summary")
        await find.fill("2")
        await find.press("Enter")
        await shows(page, "no broker serves topic '2'", ".problem")
        await page.get_by_role("link", name="Topics whose names contain this text").click()
        await page.get_by_role("link", name="T2", exact=True).wait_for()
        assert len(asked) > len(PAGES)
        assert {url[: len(f"http://127.0.0.1:{port}/")] for url in asked} == {f"http://127.0.0.1:{port}/"}
        load = """async () => {
            const image = new Image();
            image.src = document.querySelector("link[rel=icon]").href;
            await image.decode();
            return image.naturalWidth;
        }"""
        assert await page.evaluate(load) > 0  # fails if the page's own content security policy refuses it


async def test_rows_are_sorted_and_return_to_the_order_of_names(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (node, port), browser_page() as page:
        propose(node, registration("broker-c", {"T0": QUEUES, "T2": QUEUES}, cluster="B"))

        async def first(text: str) -> None:
            await shows(page, text, "tbody tr:first-child")

        await page.goto(console(port, "topics"))
        await first("T0")
        await page.get_by_role("button", name="Broker names").click()
        await first("T2")
        await page.get_by_role("button", name="Topic", exact=True).click()
        await first("T0")
        await page.goto(console(port, "clusters"))
        await first("B")
        await page.get_by_role("button", name="Brokers", exact=True).click()
        await first("C")
        await page.get_by_role("button", name="Cluster", exact=True).click()
        await first("B")
        await page.get_by_role("button", name="Cluster ▲").click()
        await first("C")
        await page.get_by_label("Search broker clusters").fill("b")
        await shows(page, "B", "tbody tr:only-child")
        propose(node, PutKVConfig("NAMESPACE", "first", "b value that sorts last"))
        await page.goto(console(port, "kv"))
        await first("first")
        await page.get_by_role("button", name="Value", exact=True).click()
        await first("a value to find")
        await page.get_by_role("button", name="Value ▲").click()
        await first("b value that sorts last")
        await page.goto(console(port, "settings?sort=-Setting"))
        await first("zoneAwareAddresses")
        await page.reload()
        await first("zoneAwareAddresses")
        propose(node, registration("a-broker-b", {"T2": QUEUES}))  # thousands of such brokers do not hide broker-b
        async with page.expect_response(lambda answer: "/v1/brokers?" in answer.url) as answered:
            await page.goto(console(port, "brokers/broker-b"))
        assert (await (await answered.value).json())["total"] == 1
        await shows(page, "It has no master", ".summary")


@pytest.mark.slow
async def test_open_dialogs_and_problems_are_accessible(tmp_path: Path) -> None:
    options = {"viewport": {"width": 390, "height": 844}, "bypass_csp": True}
    flags = {"nameServerAddresses": "127.0.0.1:1"}
    async with one_node(tmp_path, **flags) as (node, port), browser_page(**options) as page:
        propose(node, PutKVConfig("NAMESPACE", "key", "a value that is longer than the dialog " * 100))
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            await page.emulate_media(color_scheme=scheme)
            await page.goto(console(port))
            await page.locator(".findings .remedy").first.wait_for()
            found = await Axe().run(page)
            assert not found.response["violations"], found.generate_report()
            for place, label in (("brokers/broker-a", "Wipe write permission"), ("kv", "Change")):
                await page.goto(console(port, place))
                await page.get_by_role("button", name=label).click()
                await page.locator(OPEN_DIALOG).wait_for()
                assert await page.evaluate("document.activeElement.matches('input, textarea')")
                found = await Axe().run(page)
                assert not found.response["violations"], found.generate_report()
                assert await page.evaluate("document.documentElement.scrollWidth") <= 390
                await page.keyboard.press("Escape")


async def joining(cluster: ReplicatedProcesses, name: str) -> PlannedNode:
    """A node that looks for the members. ``cluster.close`` stops it."""
    base = free_port(1, 2)
    join = ",".join(f"{one}=127.0.0.1:{cluster.nodes[one].plan.listen[1] + 2}" for one in cluster.names)
    cluster.write_secret(name, cluster.secret)
    own = (f"join={join}", f"peerListen=127.0.0.1:{base + 2}", f"peerSecretFile={cluster.secret_file(name)}")
    plan = NodePlan(name, ("127.0.0.1", base), ("127.0.0.1", base + 1), cluster.folder / name, "cp", own)
    cluster.nodes[name] = PlannedNode(plan)
    await cluster.start_node(name)
    return cluster.nodes[name]


@pytest.mark.slow
async def test_members_are_added_moved_promoted_and_removed_and_all_nodes_are_on_one_page(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster, browser_page() as page:
        added = await joining(cluster, "n4")
        row = node_row("n4")
        add = page.get_by_role("button", name="Add an observer")

        async def open_leader() -> str | None:
            await page.goto(console(admin_port(cluster, leader := await cluster.leader())))
            await add.wait_for()
            return leader if await add.get_attribute("aria-disabled") == "false" else None

        async def press_on_leader(button: Locator) -> bool:
            """Open a dialog on the leader's page. A leader that has changed in the meantime disables the button."""
            return await open_leader() is not None and await opens_dialog(button)

        async def open_follower() -> bool:
            leader = await cluster.leader()
            await page.goto(console(admin_port(cluster, cluster.others(leader)[0])))
            await add.wait_for()
            return await page.locator(".why", has_text=f"Only the leader can: open the console of {leader}.").count() > 0

        assert await eventually(open_follower, "a follower's page, where members cannot be changed")
        await eventually(lambda: press_on_leader(add), "the leader's page, where they can")
        await page.locator(OPEN_DIALOG).locator("textarea").fill("n4")
        await page.locator(OPEN_DIALOG).locator("button.danger").click()
        await shows(page, "Not done: this is not NAME=HOST:PORT", OPEN_DIALOG)
        await page.keyboard.press("Escape")
        await eventually(lambda: press_on_leader(add), "the leader's page again")
        await perform(page, value=f"n4=127.0.0.1:{added.plan.listen[1] + 2}")
        await shows(page, "observer", row)
        await shows(page, "All 4 nodes answer", ".summary")

        await page.goto(console(added.plan.admin[1]))  # it knows the other nodes from the log, not from its settings
        await shows(page, "All 4 nodes answer", ".summary")
        await shows(page, " leads", ".summary")

        await cluster.all_serve()  # these requests give latencies; the next one gives a commit and a sync
        assert (await http(admin_port(cluster, await cluster.leader()), "/v1/kv/SPACE/key", "PUT", b"value")).status == 200
        await page.goto(console(added.plan.admin[1], "charts"))
        for title in CHARTS:
            label = page.locator(f"figure:has-text('{title}') [role=img]")
            await label.wait_for()
            for name in (*cluster.names, "n4"):
                assert f"{name} " in (await label.get_attribute("aria-label") or "")
        for name in (*cluster.names, "n4"):
            memory = page.get_by_role("img", name=re.compile(rf"^Memory: .*\b{name} [0-9.]+ MiB"))
            await memory.wait_for()

        await eventually(open_leader, "the leader's page")
        await cluster.kill("n4")
        moved = await joining(cluster, "n4")  # with its disk, at other ports
        await shows(page, "n4 does not answer", ".findings")
        move = page.get_by_role("button", name="Move a member")
        await eventually(lambda: press_on_leader(move), "the leader's page, where members can be moved")
        await shows(page, "Start it there with the same disk", OPEN_DIALOG)
        address = f"127.0.0.1:{moved.plan.listen[1] + 2}"
        await perform(page, value=f"n4={address}")
        await shows(page, address, row)
        await shows(page, "All 4 nodes answer", ".summary")

        promote = page.locator(row).get_by_role("button", name="Promote")
        await eventually(lambda: press_on_leader(promote), "the leader's page, where members can be promoted")
        await shows(page, "A majority then needs 3 voters", OPEN_DIALOG)
        await perform(page)
        await shows(page, "voter", row)
        remove = page.locator(row).get_by_role("button", name="Remove")
        await eventually(lambda: press_on_leader(remove), "the leader's page, where members can be removed")
        await shows(page, "3 voters remain, of which 1 may fail", OPEN_DIALOG)
        await perform(page, "n4")
        await page.locator(row).wait_for(state="detached")
        await shows(page, "All 3 nodes answer", ".summary")
        members = await cluster.admin(await cluster.leader(), "/v1/members")
        assert sorted(one["nodeId"] for one in members["members"]) == cluster.names, json.dumps(members)

        await page.goto(console(moved.plan.admin[1]))  # it knows that it was removed, and nothing of the cluster since then
        await shows(page, "n4 was removed from the cluster", ".summary")
        await shows(page, "It was removed from the cluster and does not serve", ".findings")
        await shows(page, "members add", ".findings .remedy")
        assert await page.locator("main", has_text="No node leads").count() == 0
        await shows(page, "n4 was removed from the cluster.", ".why")
