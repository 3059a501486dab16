"""Clients that do not read their answers: they are disconnected, and the memory for their answers is bounded."""

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from replicated_namesrv.admin.http_listener import ListenerTls
from replicated_namesrv.admin.operations import BACKUPS_MAX
from replicated_namesrv.admin.unread import COPIES, SMALL_BYTES, HttpConnections
from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.commands import PutKVConfig
from tests.support.authority import Authority
from tests.support.http_listeners import http_listener
from tests.support.nodes import http, running_node
from tests.support.operated import operated
from tests.support.waiting import until

ANSWER_BYTES = 16 << 20
"""More than the buffers of both sockets."""
BYTES_MAX = 2 * COPIES * ANSWER_BYTES + SMALL_BYTES
NODE_VALUES = 8
"""Number of values of 1 MiB in the node, which are more than the buffers of both sockets, too."""
LATE_S = 2.0


class Unsent(asyncio.Transport):
    """A transport with a number of unsent bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.is_aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.count

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_client_that_reads_something_in_time_stays() -> None:
    now, hits = [0.0], list[str]()
    connections = HttpConnections(hits.append, LATE_S, now_s=lambda: now[0])
    transport = Unsent()
    connection = connections.enter((transport,), "127.0.0.1")
    transport.count = 10
    connection.look()
    for left in (9, 8, 7):
        now[0] += LATE_S * 0.9
        transport.count = left
        connection.look()
    transport.count = 20  # another answer, while the client reads nothing
    connection.look()
    now[0] += LATE_S * 0.9
    connection.look()
    assert not hits
    now[0] += LATE_S * 0.1
    connection.look()
    assert (hits, transport.is_aborted) == (["unreadAnswers"], True)
    connections.leave(connection)
    assert connections.hosts == []


async def test_an_answer_counts_until_its_last_byte_is_read() -> None:
    """The transport frees nothing before."""
    connections = HttpConnections(lambda name: None)
    socket_side, tls_side = Unsent(), Unsent()
    connection = connections.enter((socket_side, tls_side), "127.0.0.1")
    large = 5 << 20
    for written, unsent, encrypting, kept in (
        (SMALL_BYTES, SMALL_BYTES, 0, 0),
        (1, SMALL_BYTES + 1, 0, SMALL_BYTES + 1),
        (0, 0, 0, 0),
        (large, large, 0, large),
        (0, 1, 0, large),
        (large, large + 1, 0, 2 * large),
        (0, large - 3, 2, large),
        (0, 0, 1, large),
        (0, 0, 0, 0),
    ):
        socket_side.count, tls_side.count = unsent, encrypting
        connection.wrote(written) if written else connection.look()
        assert connections.held.total == COPIES * kept
    connections.leave(connection)
    assert connections.held.total == 0


async def large(request: web.Request) -> web.Response:
    return web.Response(body=bytes(ANSWER_BYTES))


async def ask(port: int, path: str = "/", tls: ssl.SSLContext | None = None) -> tuple[socket.socket, Callable[[], None]]:
    """Send a request whose answer is not read. Returns the socket, and a function that closes it."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, ("127.0.0.1", port))
    name: dict[str, Any] = {} if tls is None else {"server_hostname": "n1"}
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=peer, ssl=tls, **name)
    transport.pause_reading()
    transport.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return peer, transport.abort


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path, is_encrypted: bool) -> None:
    """Earlier versions waited for such clients without a limit."""
    server = client = None
    if is_encrypted:
        authority = Authority(tmp_path)
        files = authority.files("n1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        server = ListenerTls(lambda: context, lambda host, now_s: True)
        client = ssl.create_default_context(cafile=authority.path)
    hits = list[str]()
    connections = HttpConnections(hits.append, 0.5)
    async with http_listener(large, connections, tls=server) as port:
        _, close = await ask(port, tls=client)
        await until(lambda: hits == ["unreadAnswers"], "the limit")
        await until(lambda: not connections.hosts, "the end of the connection")
        close()


async def test_a_handler_that_ends_its_own_connection_disturbs_no_other(tmp_path: Path) -> None:
    """``/v1/watch`` closes the connection of a slow watcher, and aiohttp closes it again. After a second call, asyncio's TLS
    transport had no protocol, and every look at the connections failed."""
    authority = Authority(tmp_path)
    files = authority.files("n1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    ended: list[web.Request] = []

    async def end(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            async with asyncio.timeout(0.1):
                while True:
                    await response.write(bytes(ANSWER_BYTES))
        except TimeoutError:
            pass
        request.transport.close()
        ended.append(request)
        return response

    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: failed.append(about))
    connections = HttpConnections(lambda name: None)
    async with http_listener(end, connections, tls=ListenerTls(lambda: context, lambda host, now_s: True)) as port:
        _, close = await ask(port, tls=ssl.create_default_context(cafile=authority.path))
        await until(lambda: bool(ended) and ended[0].task is None, "the end of the answer")
        connections._look_at_all()
        close()
        await until(lambda: not connections.hosts, "the end of the connection")
    assert not failed


async def test_the_sum_of_unread_answers_is_bounded() -> None:
    hits = list[str]()
    connections = HttpConnections(hits.append, bytes_max=BYTES_MAX)
    async with http_listener(large, connections) as port:
        closing = []
        for _ in range(4):
            closing.append((await ask(port))[1])
            await until(lambda: connections.held.total > 0, "an unread answer")
        await until(lambda: bool(hits), "the limit")
        assert set(hits) == {"unreadAnswers"}
        assert connections.held.total <= BYTES_MAX
        for close in closing:
            close()


async def test_a_connection_counts_until_its_socket_is_closed() -> None:
    """aiohttp forgets a connection before that: when the time for a next request is over, although an answer is unread."""
    connections = HttpConnections(lambda name: None)
    async with http_listener(large, connections, most=1, keepalive_timeout_s=0.5) as port:
        forgotten = connections.enter((Unsent(),), "127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        connections.leave(forgotten)
        _, close = await ask(port)
        await until(lambda: connections.hosts, "the connection")
        close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[ServingNode, int]]:
    """A node whose backup is larger than the buffers of both sockets."""
    async with running_node(tmp_path) as started:
        for number in range(NODE_VALUES):
            outcome = started[0].service.propose(PutKVConfig("n", f"k{number}", "v" * (1 << 20)), None)
            assert not isinstance(outcome, asyncio.Future) or (await outcome).code == 0
        yield started


def has_unread(node: ServingNode, count: int) -> bool:
    return unread(node) == count


def unread(node: ServingNode) -> int:
    """Number of connections with large unread answers."""
    assert node.admin is not None
    return len(node.admin._listener._connections.held._bytes)


async def test_a_client_that_resets_its_connection_leaves_no_traceback(
    node: tuple[ServingNode, int], caplog: pytest.LogCaptureFixture
) -> None:
    """In an earlier version, each of them added a traceback to the log."""
    started, port = node
    for path in ("/v1/backup", "/v1/kv"):
        peer, close = await ask(port, path)
        await until(lambda: unread(started) == 1, "an unread answer")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        close()
        await until(lambda: unread(started) == 0, "the end of the connection")
    assert (await http(port, "/livez")).status == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info] == []


async def test_backups_at_the_same_time_are_limited(node: tuple[ServingNode, int]) -> None:
    """Each one keeps the state of its beginning in memory."""
    started, port = node
    closing = []
    for number in range(1, BACKUPS_MAX + 1):
        closing.append((await ask(port, "/v1/backup"))[1])
        await until(partial(has_unread, started, number), "a backup that is not read")
    refused = await http(port, "/v1/backup")
    assert (refused.status, refused.json["error"]) == (429, f"this node sends {BACKUPS_MAX} backups at present")
    closing.pop()()
    await until(lambda: unread(started) < BACKUPS_MAX, "the end of a backup")
    for close in closing:
        close()


async def test_one_restore_at_a_time(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        port = cluster.admin_ports[0]
        _, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(b"POST /v1/restore HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nRMQ")
        answers = []

        async def is_refused() -> bool:
            answers.append(await http(port, "/v1/restore", "POST", b"none"))
            return answers[-1].status == 429

        while not await is_refused():
            assert answers[-1].status == 400, answers[-1].text
        assert answers[-1].json["error"] == "this node receives another backup at present"
        first.close()
        while await is_refused():
            pass
        assert answers[-1].status == 400
