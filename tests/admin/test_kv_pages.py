"""``GET /v1/kv``: pages in order, at a cost that does not grow with the entries."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

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
