"""Views of large contents: pages end early, and no answer is larger than a page."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from replicated_namesrv.admin import contents, json_views, paging
from replicated_namesrv.admin.paging import ANSWER_BYTES
from replicated_namesrv.model import TopicQueueMappingInfo
from replicated_namesrv.routes import kv_index
from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.commands import PutKVConfig
from tests.support.nodes import http, running_node
from tests.support.routes import register

ROW_BYTES = 1 << 20
MORE_DIGITS = "000000001" + "9" * 5_000


async def pages(port: int, path: str, rows: str) -> list[list[Any]]:
    """All pages of a view. Each of them has to be bounded."""
    found, after = [], ""
    while True:
        answer = await http(port, f"{path}&after={quote(after, safe='')}")
        assert len(answer.body) < ANSWER_BYTES + 2 * ROW_BYTES
        found.append(answer.json[rows])
        after = answer.json["next"]
        if after is None:
            return found


async def test_a_page_of_large_values_ends_early(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        for number in range(9):
            node.service.state.apply(PutKVConfig("n", f"key-{number}", "v" * ROW_BYTES), 0)
        found = await pages(port, "/v1/kv?limit=1000", "entries")
        assert [len(page) for page in found] == [4, 4, 1]
        assert [row["key"] for page in found for row in page] == [f"key-{number}" for number in range(9)]


@pytest.mark.parametrize("sort", ["", "&sort=-brokerId"])
async def test_a_page_of_brokers_with_many_filter_servers_ends_early(tmp_path: Path, sort: str) -> None:
    servers = tuple(str(number).zfill(1_000) for number in range(1_000))
    async with running_node(tmp_path) as (node, port):
        for number in range(7):
            command = register("b", number, f"b:{number}", filters=servers)
            node.service.state.apply(command, 0)
        found = await pages(port, f"/v1/brokers?limit=1000{sort}", "brokers")
        assert [len(page) for page in found] == [5, 2]
        assert [row["brokerId"] for page in found for row in page] == sorted(range(7), reverse=bool(sort))


async def test_a_route_of_very_many_queues_is_not_shown(tmp_path: Path) -> None:
    queues = tuple((number, number) for number in range(16_000))
    async with running_node(tmp_path) as (node, port):
        for number in range(9):
            mapping = TopicQueueMappingInfo(f"b{number}", queues, False, 1, "s", "T", 16_000)
            command = register(f"b{number}", 0, f"b:{number}", topics=["T", "U"], mappings={"T": mapping})
            node.service.state.apply(command, 0)
        refused = await http(port, "/v1/routes/T")
        assert (refused.status, "use the RocketMQ port" in refused.json["remedy"]) == (413, True)
        assert (await http(port, "/v1/routes/U")).status == 200


@pytest.mark.parametrize("path", ["/v1/timeline?limit=", "/v1/status?waitMs=", "/v1/topics?limit="])
async def test_numbers_with_many_digits_are_refused(tmp_path: Path, path: str) -> None:
    """An earlier version compared only the first nine digits. For the rest it answered with code 500."""
    async with running_node(tmp_path) as (_, port):
        assert (await http(port, path + MORE_DIGITS)).status == 400
        assert (await http(port, "/v1/drain?withinSeconds=0000000019999", "POST")).status == 400
        assert (await http(port, path + "000000001")).status == 200


async def test_other_tasks_run_while_brokers_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "SLICE_S", 0.0)
    turns, seen = 0, set[int]()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def key_of(registration: Registration) -> str:
        seen.add(turns)
        return broker_key(registration)

    broker_key = json_views._broker_key
    monkeypatch.setattr(json_views, "_broker_key", key_of)
    async with running_node(tmp_path) as (node, port):
        for number in range(300):
            node.service.state.apply(register("b", number, f"b:{number}"), 0)
        counting = asyncio.create_task(count())
        assert (await http(port, "/v1/brokers?limit=1")).json["total"] == 300
        counting.cancel()
    assert len(seen) == 300


async def test_contents_do_not_visit_all_kv_entries_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "KV_MAX", 2)
    async with running_node(tmp_path) as (node, port):
        for number in (3, 1, 2):
            node.service.state.apply(PutKVConfig("n", f"key-{number}", "v"), 0)
        first = (await http(port, "/v1/contents?kv=true")).json
        assert (list(first["kv"]), first["kvLeftOut"]) == (["n|key-1", "n|key-2"], 1)

        def name_of(namespace: str, key: str) -> str:
            raise AssertionError("visited")

        for module in (contents, kv_index):
            monkeypatch.setattr(module, "name_of", name_of, raising=False)
        assert (await http(port, "/v1/contents?kv=true")).json["kv"] == first["kv"]
