"""Three real processes: the leader is killed or paused, and nothing acknowledged is lost."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.cli.children import NodeProcess
from replicated_namesrv.cli.cluster import plan_nodes
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire.codes import RequestCode
from tests.support.nodes import http
from tests.support.ports import free_port

DEADLINE_S = 30.0


async def status(node: NodeProcess) -> dict[str, Any]:
    answer = await http(node.plan.admin[1], "/v1/status")
    found: dict[str, Any] = json.loads(answer.body)["replication"]
    return found


async def eventually(look: Any, what: str) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if (found := await look()) is not None:
                    return found
            except (OSError, NamesrvError, ValueError, IndexError):
                pass
            await asyncio.sleep(0.05)
    raise AssertionError(what)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[list[NodeProcess]]:
    nodes = [NodeProcess(plan) for plan in plan_nodes(3, "cp", "127.0.0.1", free_port(1, 2, 10, 11, 12, 20, 21, 22), folder, ())]
    try:
        for node in nodes:
            await node.start()
        for node in nodes:
            await node.wait_serving(DEADLINE_S)
        yield nodes
    finally:
        for node in nodes:
            if node.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGCONT)
        await asyncio.gather(*(node.stop() for node in nodes))


async def call(client: RemotingClient, node: NodeProcess, code: RequestCode, **fields: str) -> RemotingCommand:
    host, port = node.plan.listen
    return await client.request(f"{host}:{port}", RemotingCommand(code.value, fields), 3_000)


async def leader_of(nodes: list[NodeProcess]) -> NodeProcess | None:
    for node in nodes:
        if (await status(node))["role"] == "leader":
            return node
    return None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_nothing_acknowledged_is_lost_when_the_leader_goes(fault: signal.Signals, tmp_path: Path) -> None:
    client = RemotingClient()
    async with cluster(tmp_path) as nodes:
        leader = await eventually(lambda: leader_of(nodes), "a leader")
        rest = [node for node in nodes if node is not leader]
        acknowledged: dict[str, str] = {}
        assert leader.pid is not None
        for number in range(60):
            if number == 20:
                os.kill(leader.pid, fault)
            fields = {"namespace": "N", "key": f"k{number}", "value": str(number)}
            try:
                answer = await call(client, rest[number % 2], RequestCode.PUT_KV_CONFIG, **fields)
            except NamesrvError:
                continue
            assert answer.code == 0, "a node without a majority closes, it answers no error"
            acknowledged[fields["key"]] = fields["value"]
        assert len(acknowledged) > 40
        if fault is signal.SIGSTOP:
            os.kill(leader.pid, signal.SIGCONT)
        else:
            await leader.wait()
            await leader.start()
        await leader.wait_serving(DEADLINE_S)

        async def equal_digests() -> bool | None:
            return True if len({(await status(node))["digest"] for node in nodes}) == 1 else None

        await eventually(equal_digests, "equal digests")
        for node in nodes:
            for key, value in acknowledged.items():
                answer = await call(client, node, RequestCode.GET_KV_CONFIG, namespace="N", key=key)
                assert (answer.ext_fields or {}).get("value") == value
        await client.close()


@pytest.mark.slow
async def test_a_node_without_a_majority_fences_and_returns(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        alone, *others = nodes
        for node in others:
            assert node.pid is not None
            os.kill(node.pid, signal.SIGSTOP)

        async def refuses() -> bool | None:
            try:
                _, writer = await asyncio.open_connection(*alone.plan.listen)
            except ConnectionRefusedError:
                return True
            writer.close()
            return None

        await eventually(refuses, "a refused connection")
        assert (await status(alone))["fenced"]
        for node in others:
            assert node.pid is not None
            os.kill(node.pid, signal.SIGCONT)
        for node in nodes:
            await node.wait_serving(DEADLINE_S)
