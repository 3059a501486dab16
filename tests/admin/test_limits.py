"""Peers that occupy connections and memory: the admin side bounds both and continues to serve others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from replicated_namesrv.admin.app import AdminServer
from replicated_namesrv.admin.context import AdminContext
from replicated_namesrv.admin.loop_lag import LoopLag
from replicated_namesrv.process import ServingNode
from tests.support.nodes import DEADLINE_S, http, running_node


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    """A node, and the port of a second admin server for it, which accepts three connections and closes idle ones after half a
    second."""
    async with running_node(tmp_path) as (node, _):
        context = AdminContext(node.settings, node.service, node.remoting, (), LoopLag(), monotonic(), node)
        server = AdminServer(context, connections_max=3, keepalive_timeout_s=0.5)
        await server.start("127.0.0.1", 0)
        assert server.address is not None
        try:
            yield node, server.address[1]
        finally:
            await server.stop()


async def test_one_connection_too_many_is_closed_and_counted(tight: tuple[ServingNode, int]) -> None:
    port = tight[1]
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for _, writer in held:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, _ in held:
        await reader.readuntil(b"ok\n")  # these are accepted and stay open
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    held[0][1].write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b"namesrv_admin_connections_refused_total 1.0" in await asyncio.wait_for(held[0][0].read(), DEADLINE_S)
    for _, writer in held:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTT", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_whoever_does_not_finish_a_request_is_closed(tight: tuple[ServingNode, int], sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", tight[1])
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    assert (await http(tight[1], "/livez")).status == 200


async def test_endless_header_is_refused(tight: tuple[ServingNode, int]) -> None:
    answer = await http(tight[1], "/livez", headers={"X-Long": "x" * 100_000})
    assert answer.status == 400
