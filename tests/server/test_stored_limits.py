"""Requests beyond a limit are refused with a clear answer, in both modes, over remoting and HTTP, and are counted."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.backup import bytes_max
from replicated_namesrv.routes.quotas import SETTING_CHARACTERS_MAX, VALUE_BYTES_MAX
from tests.support.nodes import http
from tests.support.operated import operated, run
from tests.support.remoting_server import broker_fields, topic_table
from tests.support.waiting import until

LONG = "x" * 1_025
SMALL = {"maxStateBytes": "400000", "maxKvBytes": "200000", "maxKvNamespaceBytes": "100000", "maxBrokerBytes": "66000"}
MODES = pytest.mark.parametrize("mode", ["ap", "cp"])


async def metric(port: int, name: str, label: str) -> float:
    found = re.search(rf'^namesrv_{name}{{limit="{label}"}} (\S+)$', (await http(port, "/metrics")).text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def command(code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return RemotingCommand(code, fields, body)


def untouched(node: ServingNode) -> Any:
    state = node.service.state
    return state.revision, state.sizes.total, node.service.quotas._pending


@MODES
async def test_every_text_that_is_too_long_is_refused(tmp_path: Path, mode: str) -> None:
    async with operated(tmp_path, 1, mode) as nodes:
        node, port = nodes.nodes[0], nodes.admin_ports[0]
        client, before = RemotingClient(), untouched(nodes.nodes[0])
        broker = broker_fields(bodyCrc32="0")
        filtered = topic_table("T", "U").replace(b'"filterServerList":[]', b'"filterServerList":["%s"]' % LONG.encode())
        cases = {
            "haServerAddr": command(103, topic_table("T", "U"), **{**broker, "haServerAddr": LONG}),
            "zoneName": command(103, topic_table("T", "U"), **{**broker, "__ZONE_NAME": LONG}),
            "brokerName": command(103, topic_table("T", "U"), **{**broker, "brokerName": LONG}),
            "brokerAddr": command(103, topic_table("T", "U"), **{**broker, "brokerAddr": LONG}),
            "clusterName": command(103, topic_table("T", "U"), **{**broker, "clusterName": LONG}),
            "topic": command(103, topic_table("T", LONG), **broker),
            "filterServerList": command(103, filtered, **broker),
            "namespace": command(100, namespace=LONG, key="k", value="v"),
            "key": command(100, namespace="n", key=LONG, value="v"),
            "value": command(100, namespace="n", key="k", value="x" * (VALUE_BYTES_MAX + 1)),
        }
        for field, request in cases.items():
            answer = await client.request(node.listen_address, request)
            assert (answer.code, (answer.remark or "")[: len(field) + 5]) == (1, f"{field} has "), field
            assert "at most" in (answer.remark or "")
            assert await metric(port, "limits_hit_total", field) == 1, field
        setting = json.dumps({"nameServerAddresses": "x" * (SETTING_CHARACTERS_MAX + 1)}).encode()
        refused = await http(port, "/v1/config", "POST", setting)
        assert refused.status == 413
        assert "setting 'nameServerAddresses' has 65537 characters" in refused.json["error"]
        assert await metric(port, "limits_hit_total", "setting") == 1
        assert untouched(node) == before
        unregistered = await client.request(node.listen_address, command(104, b"", **{**broker, "brokerName": LONG}))
        assert unregistered.code == 1
        await client.close()


@MODES
async def test_bytes_are_refused_when_there_is_no_room_and_taken_again_when_there_is(tmp_path: Path, mode: str) -> None:
    async with operated(tmp_path, 1, mode, **SMALL) as nodes:
        node, port = nodes.nodes[0], nodes.admin_ports[0]
        client = RemotingClient()

        async def put(namespace: str, key: str, size: int) -> RemotingCommand:
            return await client.request(node.listen_address, command(100, namespace=namespace, key=key, value="v" * size))

        async def register(name: str, *topics: str) -> RemotingCommand:
            fields = broker_fields(name, f"{name}:1", bodyCrc32="0")
            return await client.request(node.listen_address, command(103, topic_table(*topics), **fields))

        for number in range(9):
            assert (await put("n", f"k{number}", 10_000)).code == 0
        refused = await put("n", "k9", 10_000)
        assert refused.code == 1
        assert "maxKvNamespaceBytes is 100000" in (refused.remark or "")
        assert "of namespace 'n'" in (refused.remark or "")
        assert (await put("n", "k8", 9_000)).code == 0, "less is no more"
        assert (await put("m", "k", 95_000)).code == 0
        refused = await put("o", "k", 20_000)
        assert "maxKvBytes is 200000" in (refused.remark or "")
        answer = await http(port, "/v1/kv/o/k", "PUT", b"v" * 20_000)
        assert answer.status == 413
        assert answer.json["outcome"] == "not done"
        assert "maxKvBytes is 200000" in answer.json["error"]
        assert await metric(port, "limits_hit_total", "maxKvBytes") == 2
        assert await metric(port, "bounded_bytes_limit", "maxKvBytes") == 200_000
        assert await metric(port, "bounded_bytes", "maxKvBytes") == node.service.state.sizes.kv > 180_000
        assert (await client.request(node.listen_address, command(102, namespace="n", key="k0"))).code == 0
        assert (await put("n", "k9", 10_000)).code == 0

        too_many = [f"topic-{number}-{'x' * 100}" for number in range(400)]
        refused = await register("big", *too_many)
        assert refused.code == 1
        assert "maxBrokerBytes is 66000" in (refused.remark or "")
        assert node.service.state.registrations() == []
        registered = 0
        while (full := await register(f"b{registered}", *too_many[:300])).code == 0:
            registered += 1
        assert registered > 2
        assert "maxStateBytes is 400000" in (full.remark or "")
        assert node.service.state.sizes.total <= 400_000
        assert (await register("b0", *too_many[:300])).code == 0, "who is registered stays so"
        assert node.service.quotas._pending.bytes == {}
        await client.close()


@MODES
async def test_a_broker_whose_registration_finds_no_room_is_alive_and_stays_as_it_was(tmp_path: Path, mode: str) -> None:
    async with operated(tmp_path, 1, mode, **SMALL) as nodes:
        node, client = nodes.nodes[0], RemotingClient()
        service = node.service

        async def register(body: bytes) -> int:
            return (await client.request(node.listen_address, command(103, body, **broker_fields(bodyCrc32="0")))).code

        assert await register(topic_table("T", "U")) == 0
        (held,) = service.state.registrations()

        def age_ms() -> float:
            age = service.heartbeat_age_ms(held.cluster_name, held.broker_addr)
            assert age is not None
            return age

        await until(lambda: age_ms() > 20, "some time to pass")
        sent_s = time.monotonic()
        too_many = [f"topic-{number}-{'x' * 100}" for number in range(400)]
        assert await register(topic_table("T", "U", *too_many, counter=2)) == 1
        assert age_ms() <= (time.monotonic() - sent_s) * 1000 + 1
        assert service.state.registrations() == [held]
        await client.close()


@MODES
async def test_puts_that_come_together_share_what_is_left(tmp_path: Path, mode: str) -> None:
    """None of the puts is applied yet when the others are checked."""
    async with operated(tmp_path, 1, mode, **SMALL) as nodes:
        node = nodes.nodes[0]
        clients = [RemotingClient() for _ in range(4)]
        answers = []
        requests = [
            clients[number % 4].request(node.listen_address, command(100, namespace="n", key=f"k{number}", value="v" * 5_000))
            for number in range(40)
        ]
        for answer in await asyncio.gather(*requests):
            answers.append(answer.code)
        assert sorted(set(answers)) == [0, 1]
        assert answers.count(0) == 100_000 // 5_066
        assert node.service.state.sizes.namespaces["n"] <= 100_000
        assert node.service.quotas._pending.bytes == {}
        for client in clients:
            await client.close()


async def test_a_node_starts_with_more_than_its_limits_and_takes_less(tmp_path: Path) -> None:
    async with operated(tmp_path, 1, "cp") as nodes:
        for number in range(5):
            assert (await http(nodes.admin_ports[0], f"/v1/kv/n/k{number}", "PUT", b"v" * 50_000)).status == 200
    async with operated(tmp_path, 1, "cp", **SMALL) as nodes:
        port, state = nodes.admin_ports[0], nodes.nodes[0].service.state
        assert len(state.kv_table()["n"]) == 5
        assert (await http(port, "/v1/kv/n/k0", "PUT", b"v" * 50_001)).status == 413
        assert (await http(port, "/v1/kv/n/k0", "PUT", b"w" * 50_000)).status == 200
        for number in range(5):
            assert (await http(port, f"/v1/kv/n/k{number}", "DELETE")).status == 200
        assert (await http(port, "/v1/kv/n/k0", "PUT", b"v" * 50_001)).status == 200


async def test_what_the_limits_let_in_can_be_restored(tmp_path: Path) -> None:
    """Control characters make a backup six times as long as the state. Limits of a node that restores are its own."""
    async with operated(tmp_path / "old", 1, "cp", **SMALL) as nodes:
        port, number, status = nodes.admin_ports[0], 0, 200
        while status == 200:
            number += 1
            status = (await http(port, f"/v1/kv/n{number % 3}/k{number}", "PUT", b"\x01" * 15_000)).status
        assert (status, number > 12) == (413, True)
        content = nodes.nodes[0].service.state.kv_table()
        stored = nodes.nodes[0].service.state.sizes.total
        assert (await run("backup", str(tmp_path / "backup"), "-a", nodes.admin)).code == 0
    file = (tmp_path / "backup").read_bytes()
    assert len(file) > 5 * stored > 5 * 180_000
    lines = file.splitlines(keepends=True)
    async with operated(tmp_path / "new", 1, "cp", **SMALL) as nodes:
        node, port = nodes.nodes[0], nodes.admin_ports[0]
        longest = bytes_max(int(SMALL["maxStateBytes"]))
        padded = [json.dumps({**json.loads(lines[0]), "comment": "x" * 30_000}).encode() + b"\n"]
        padded += [lines[1], *([b'["clusters",[]]' + b" " * 60_000 + b"\n"] * (longest // 60_000 + 1))]
        refused = await http(port, "/v1/restore", "POST", b"".join(padded))
        assert refused.status == 400
        assert f"more than {longest} bytes, the most for maxStateBytes=400000; raise maxStateBytes" in refused.json["error"]
        kv = [b'["namespace","x"]\n', *(b'["kv","x",[["%d","%s"]]]\n' % (i, b"x" * 50_000) for i in range(9))]
        refused = await http(port, "/v1/restore", "POST", b"".join([*lines[:2], *kv, b"not read\n" * 10_000]))
        assert refused.status == 413
        assert "maxStateBytes is 400000" in refused.json["error"]
        restored = await http(port, "/v1/restore", "POST", file)
        assert restored.status == 200, restored.text
        assert node.service.state.kv_table() == content
