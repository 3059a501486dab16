"""``namesrv adopt``: what its report says about KV namespaces. Two AP nodes stand for RocketMQ's name servers, which
tests/interop/test_adopt.py starts."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from replicated_namesrv.cli import adopt
from replicated_namesrv.compat.kv_file import read_kv_file
from tests.support.nodes import http
from tests.support.operated import operated, run


async def put(port: int, key: str, value: str) -> None:
    assert (await http(port, f"/v1/kv/{key}", "PUT", value.encode())).status == 200


async def test_namespaces_that_rocketmqs_servers_do_not_list_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopt, "is_ours", lambda config: False)
    async with operated(tmp_path, 2, "ap") as nodes:
        for port in nodes.admin_ports:
            await put(port, "ORDER_TOPIC_CONFIG/orders", "broker-0:4")
            await put(port, "Other/key", "value")
        common = ("adopt", "-n", nodes.namesrv)
        remark = "RocketMQ's name servers do not list their KV namespaces "
        done = await run(*common, "--save", str(tmp_path / "start"))
        assert done.code == 0, done
        assert "equal in everything that was compared: " in done.out
        assert f"KV namespaces compared: ORDER_TOPIC_CONFIG. {remark}" in done.out
        assert "name others with --namespace\n" in done.out
        assert "saved 1 KV entries of the namespaces ORDER_TOPIC_CONFIG, and" in done.out
        assert f"entries of other namespaces were not saved: {remark}" in done.out
        named = await run(*common, "--save", str(tmp_path / "named"), "--namespace", "Other", "--json")
        report = json.loads(named.out)
        assert report["equal"], named
        assert report["namespaces"] == ["ORDER_TOPIC_CONFIG", "Other"]
        assert set(report["namespacesUnknown"]) == set(nodes.namesrv.split(";"))
        assert "Other" not in read_kv_file(tmp_path / "start" / "kvConfig.json")
        assert read_kv_file(tmp_path / "named" / "kvConfig.json")["Other"] == {"key": "value"}


async def test_a_swapped_server_with_an_old_kv_file_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's server reads its kvConfig.json of the time before the adoption."""
    swapped: list[str] = []

    def is_ours(config: Mapping[str, str]) -> bool:
        return config["nodeId"] != "n1" or not swapped

    async with operated(tmp_path, 2, "ap") as nodes:
        loop, port = asyncio.get_running_loop(), nodes.admin_ports[0]

        async def swap(option: str, address: str, words: list[str], within_s: float) -> None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(put(port, "ORDER_TOPIC_CONFIG/gone", "old"), loop))
            swapped.append(address)

        clock = iter((0.0, 0.0))  # one look after the swap, then the time is up
        monkeypatch.setattr(adopt, "is_ours", is_ours)
        monkeypatch.setattr(adopt, "run_script", swap)
        monkeypatch.setattr(adopt, "time", SimpleNamespace(monotonic=lambda: next(clock, 1e9)))
        first, second = nodes.namesrv.split(";")
        command = ("adopt", "-n", nodes.namesrv, "-a", nodes.admin, "--to", "rocketmq", "--swap", "swap", "--only", first)
        done = await run(*command)
        assert (done.code, swapped) == (1, [first]), done
        assert "still waiting for equal answers: 1 keys differ" in done.err
        assert "The new server has other KV entries, probably those of an old kvConfig.json" in done.err
        assert f"'namesrv kv export FILE -n {second}'" in done.err
