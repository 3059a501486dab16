"""clusterTest: routes of another environment."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from replicated_namesrv.server.cluster_test import LIST_MAX_AGE_S, ClusterTestRoutes
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.settings import Settings
from tests.server.test_confirmed import FRESH, ConfirmingNode
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, request, topic_table
from tests.support.waiting import wait_until


class AddressServer:
    """An address server that answers nothing until the test lets it."""

    def __init__(self) -> None:
        self.asked: list[StreamWriter] = []
        self.port = 0
        self.is_open = asyncio.Event()

    def answer(self, text: str) -> None:
        """Answer all open requests: an address list, or status 500 for an empty text."""
        status = "200 OK" if text else "500 Broken"
        for writer in self.asked:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
            writer.close()
        self.asked.clear()

    async def until_asked(self) -> None:
        async with asyncio.timeout(60):
            await self.is_open.wait()
        self.is_open.clear()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        self.asked.append(writer)
        self.is_open.set()


@contextlib.asynccontextmanager
async def address_server() -> AsyncIterator[AddressServer]:
    found = AddressServer()
    async with await asyncio.start_server(found._accept, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
        found.answer("")


async def test_misses_share_one_read_of_the_address_list() -> None:
    async with address_server() as addresses:
        routes = ClusterTestRoutes(Settings(address_server=f"http://127.0.0.1:{addresses.port}/ns"), Problems())
        misses = [asyncio.ensure_future(routes.route(f"T{number}", 479, True)) for number in range(5)]
        await addresses.until_asked()
        assert len(addresses.asked) == 1
        addresses.answer("")
        assert await asyncio.gather(*misses) == [None] * 5
        assert not addresses.asked, "nobody asked again"
        await routes.close()


async def test_an_old_list_is_used_while_a_new_one_is_read(tmp_path: Path) -> None:
    now_s = 0.0
    with live_server(tmp_path) as far, Peer(far.port) as there:
        there.call(103, broker_fields("far"), topic_table("T", "U"))
        async with address_server() as addresses:
            settings = Settings(address_server=f"http://127.0.0.1:{addresses.port}/ns")
            routes = ClusterTestRoutes(settings, Problems(), lambda: now_s)
            first = asyncio.ensure_future(routes.route("T", 479, True))
            await addresses.until_asked()
            addresses.answer(f"127.0.0.1:{far.port}\n")
            route = await first
            assert route is not None
            now_s = LIST_MAX_AGE_S + 1
            assert await routes.route("T", 479, True) == route
            await addresses.until_asked()
            addresses.answer("")
            assert await routes.route("T", 479, True) == route
            await routes.close()


@pytest.fixture
def near(tmp_path: Path) -> Iterator[tuple[ServerThread, ConfirmingNode, Peer]]:
    """A node with clusterTest whose reads the test confirms, and a client of it. The other environment has the route of T."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = f"127.0.0.1:{far.port}\n"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        writer.close()

    with live_server(tmp_path / "far") as far, Peer(far.port) as there:
        there.call(103, broker_fields("far"), topic_table("T", "U"))
        addresses = far.wait_for(asyncio.start_server(serve, "127.0.0.1", 0))
        flags = {"clusterTest": "true", "addressServer": f"http://127.0.0.1:{addresses.sockets[0].getsockname()[1]}/ns"}
        with live_server(tmp_path / "near", ConfirmingNode, **flags) as server, Peer(server.port) as peer:
            node = server.service
            assert isinstance(node, ConfirmingNode)
            yield server, node, peer
        far.do(addresses.close)


def test_a_miss_is_confirmed_before_the_other_environment_is_asked(near: tuple[ServerThread, ConfirmingNode, Peer]) -> None:
    server, node, peer = near
    node.at_once = False
    peer.send(request(105, {"topic": "T"}))
    wait_until(lambda: node.barriers, "the barrier")
    node.at_once = True
    with Peer(server.port) as other:
        other.call(103, broker_fields("near"), topic_table("T", "U"))
        server.do(lambda: node.barriers.pop().set_result(FRESH))
        assert b'"near"' in peer.answers(1)[0].body


def test_a_topic_that_is_deleted_meanwhile_is_no_prepared_miss(near: tuple[ServerThread, ConfirmingNode, Peer]) -> None:
    server, node, peer = near
    with Peer(server.port) as other:
        other.call(103, broker_fields("near"), topic_table("T", "U"))
        node.at_once = False
        peer.send(request(105, {"topic": "T"}, opaque=5))
        wait_until(lambda: node.barriers, "the barrier")
        node.at_once = True
        assert other.call(216, {"topic": "T"}).code == 0
    server.do(lambda: node.barriers.pop().set_result(FRESH))
    assert peer.answers(1)[0].code == 17
    peer.send(request(105, {"topic": "T"}, opaque=6))
    assert b'"far"' in peer.answers(1)[0].body
