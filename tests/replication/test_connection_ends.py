"""A broker that closes its connection immediately after a request stays registered, with three name server processes."""

import asyncio
from pathlib import Path

import pytest

from tests.support.nodes import http
from tests.support.remoting_server import Peer, broker_fields, request, topic_table
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes

TABLE = topic_table("T", "U")
ATTEMPTS_MAX, REMOVAL_S = 20, 5.0


async def is_listed(cluster: ReplicatedProcesses, node: str, address: str) -> bool:
    """Whether the node lists the broker."""
    return address in (await http(cluster.nodes[node].plan.admin[1], "/v1/brokers")).text


async def is_removed_after_a_clean_close(cluster: ReplicatedProcesses, node: str, number: int) -> bool:
    """Register another broker, and close its connection when it has its answer. False: it is not removed within a few seconds,
    because the node has stalled."""
    address = f"10.0.1.{number}:10911"
    with Peer(cluster.nodes[node].plan.listen[1]) as peer:
        fields = broker_fields(f"clean-{number}", address)
        assert (await asyncio.to_thread(peer.call, 103, fields, TABLE)).code == 0

    async def is_removed() -> bool:
        return not await is_listed(cluster, node, address)

    try:
        return await eventually(is_removed, "the removal", REMOVAL_S)
    except AssertionError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("code", [103, 322])
async def test_an_end_right_after_a_request_is_no_clean_close(tmp_path: Path, code: int) -> None:
    """After an interruption, the network delivers a late request and the end of the connection together. The answer needs a read
    index, so it comes after the end."""
    fields, address = broker_fields("late", "10.0.0.9:10911"), "10.0.0.9:10911"
    async with replicated_processes(tmp_path, settings=("connectionLossGraceMs=300",)) as cluster:
        node = cluster.others(await cluster.leader())[0]
        with Peer(cluster.nodes[node].plan.listen[1]) as peer:
            assert (await asyncio.to_thread(peer.call, 103, fields, TABLE)).code == 0
            peer.send(request(code, fields, TABLE if code == 103 else b"", opaque=77))
        for number in range(ATTEMPTS_MAX):
            if await is_removed_after_a_clean_close(cluster, node, number):
                break
        else:
            pytest.fail("no broker was removed after a clean close")
        assert await is_listed(cluster, node, address)
