"""``GET /v1/kv``: pages in order, at a cost that does not grow with the entries."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

from replicated_namesrv.admin import paging
from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.commands import PutKVConfig
from tests.support.nodes import http, running_node
from tests.support.work import Work, work_of


def fill(node: ServingNode, namespace: str, count: int) -> None:
    for number in range(count):
        node.service.state.apply(PutKVConfig(namespace, f"key-{number * 7919 % count:06}", f"v{number}"), 0)


async def all_pages(port: int, query: str) -> list[tuple[str, str, str]]:
    found, after = [], ""
    while True:
        answer = (await http(port, f"/v1/kv?{query}&after={quote(after, safe='')}")).json
        found += [(row["namespace"], row["key"], row["value"]) for row in answer["entries"]]
        if answer["next"] is None:
            assert answer["total"] == len(found)
            return found
        after = answer["next"]


@pytest.mark.parametrize("search", ["", "3", "b|", "nothing"])
@pytest.mark.parametrize("namespace", [None, "a", "a|b", "never"])
async def test_pages_miss_and_repeat_nothing(tmp_path: Path, namespace: str | None, search: str) -> None:
    async with running_node(tmp_path) as (node, port):
        for name, count in (("b", 30), ("a|b", 7), ("a", 2_500), ("a%7Cb", 3)):
            fill(node, name, count)
        node.service.state.apply(PutKVConfig("a", "b|key-000001", "another entry than that of a|b"), 0)
        only = "" if namespace is None else f"&namespace={quote(namespace, safe='')}"
        limit = 200 if not search else 31
        found = await all_pages(port, f"limit={limit}&q={quote(search, safe='')}{only}")
        wanted = [
            (name, key, value)
            for name, table in node.service.state.kv_table().items()
            for key, value in table.items()
            if namespace in (None, name) and (search in f"{name}|{key}".lower() or search in (value or "").lower())
        ]
        assert sorted(found) == sorted(wanted), "all, each once"
        if namespace == "a":
            assert found == sorted(found)


async def test_a_namespace_with_an_empty_name_is_on_one_page(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, port):
        for name in ("", "a"):
            fill(node, name, 1)
        first = (await http(port, "/v1/kv-namespaces?limit=1")).json
        assert ([row["namespace"] for row in first["namespaces"]], first["next"]) == ([""], "")
        second = (await http(port, "/v1/kv-namespaces?limit=1&after=")).json
        assert ([row["namespace"] for row in second["namespaces"]], second["next"]) == (["a"], None)


async def test_all_values_of_a_page_are_those_of_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value changes in each turn of the loop, and each row is built in another turn."""
    monkeypatch.setattr(paging, "SLICE_S", 0.0)
    async with running_node(tmp_path) as (node, port):
        state, is_done = node.service.state, False
        names = [f"key-{number}" for number in range(20)]

        async def change_all() -> None:
            while not is_done:
                for name in names:
                    state.apply(PutKVConfig("a", name, str(state.revision // len(names))), 0)
                await asyncio.sleep(0)

        for name in names:
            state.apply(PutKVConfig("a", name, "0"), 0)
        changing = asyncio.create_task(change_all())
        try:
            for _ in range(5):
                answer = (await http(port, "/v1/kv")).json
                assert len({row["value"] for row in answer["entries"]}) == 1, answer
                assert int(answer["entries"][0]["value"]) == answer["revision"] // len(names) - 1
        finally:
            is_done = True
            await changing


def work_of_a_page(folder: Path, count: int) -> Work:
    """The work of a page from the middle, after one entry was changed. The sorted index was built before the
    change."""
    with asyncio.Runner() as runner:
        context = running_node(folder)
        node, port = runner.run(context.__aenter__())
        fill(node, "ORDER_TOPIC_CONFIG", count)
        path = f"/v1/kv?limit=20&after=ORDER_TOPIC_CONFIG|key-{count // 2:06}"
        assert runner.run(http(port, path)).json["total"] == count
        node.service.state.apply(PutKVConfig("ORDER_TOPIC_CONFIG", "changed", "since"), 0)
        work = work_of(lambda: runner.run(http(port, path)))
        runner.run(context.__aexit__(None, None, None))
        return work


def test_a_page_costs_the_same_however_many_entries_there_are(tmp_path: Path) -> None:
    few, many = work_of_a_page(tmp_path / "few", 1_000), work_of_a_page(tmp_path / "many", 30_000)
    assert many.lines < 1.5 * few.lines
    assert many.bytes < 1.5 * few.bytes + 50_000
