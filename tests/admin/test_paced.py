"""How much of an HTTP connection's bytes is parsed in one turn of the event loop, and how long its requests wait."""

import asyncio
from time import perf_counter_ns
from typing import Any

import pytest
from aiohttp import web

from replicated_namesrv.admin.paced import PIECE_BYTES, TLS_PIECE_BYTES, PacedProtocol, PacedTls, counted, in_share
from replicated_namesrv.admin.unread import HttpConnections
from replicated_namesrv.server.turn_shares import ALONE_NS, SHARE_NS, TurnShares
from tests.support.http_listeners import http_listener
from tests.support.waiting import until


class Handler(asyncio.Protocol):
    """Keeps the bytes that it receives."""

    transport: Any

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


class Socket(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.is_closed = True, False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0


def connected() -> tuple[PacedProtocol, Handler, Socket]:
    handler, socket = Handler(), Socket()
    connections = HttpConnections(lambda name: None)
    protocol = PacedProtocol(handler, TurnShares(), "127.0.0.2", connections, socket)
    protocol.connection_made(socket)
    return protocol, handler, socket


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_piece_in_each_turn_and_nothing_is_read_meanwhile() -> None:
    protocol, handler, socket = connected()
    data = bytes(range(256)) * (PIECE_BYTES * 3 // 256) + b"end"
    protocol.data_received(data)
    assert [len(piece) for piece in handler.pieces] == [PIECE_BYTES]
    assert not socket.reads
    await turns()
    assert b"".join(handler.pieces) == data
    assert max(map(len, handler.pieces)) == PIECE_BYTES
    assert socket.reads


async def test_the_handler_cannot_resume_reading_while_bytes_wait() -> None:
    protocol, handler, socket = connected()
    protocol.data_received(bytes(PIECE_BYTES + 1))
    handler.transport.resume_reading()
    assert not socket.reads
    handler.transport.pause_reading()
    await turns()
    assert len(handler.pieces) == 2
    assert not socket.reads, "the handler wants no more"
    handler.transport.resume_reading()
    assert socket.reads


async def test_what_waits_is_dropped_when_the_handler_closes_the_connection() -> None:
    protocol, handler, socket = connected()
    protocol.data_received(bytes(PIECE_BYTES * 5))
    socket.is_closed = True
    await turns()
    assert len(handler.pieces) == 1


async def test_bytes_wait_until_the_share_of_their_address_is_paid() -> None:
    protocol, handler, socket = connected()
    protocol.shares.spend(protocol.share, ALONE_NS)
    protocol.data_received(b"first")
    assert handler.pieces == []
    assert not socket.reads
    await turns()
    assert handler.pieces == [b"first"]
    assert socket.reads


def compute(needed_ns: int) -> None:
    """Keep the loop busy for this time."""
    until_ns = perf_counter_ns() + needed_ns
    while perf_counter_ns() < until_ns:
        pass


REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def test_requests_of_one_host_wait_and_those_of_others_do_not() -> None:
    """Earlier versions did not count the time of handlers, so they handled pipelines of costly requests without a pause."""
    handled = list[str]()

    async def handle(request: web.Request) -> web.Response:
        handled.append(str(request.remote))
        compute(2 * SHARE_NS)
        return web.Response()

    async with http_listener(handle, middlewares=[in_share]) as port:
        ends = [await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{n}", 0)) for n in (1, 2, 2)]
        for (reader, writer), requests in zip(ends, (1, 1, 1), strict=True):
            writer.write(REQUEST * requests)
            await reader.readuntil(b"\r\n\r\n")
        handled.clear()
        for (_, writer), requests in zip(reversed(ends), (10, 10, 1), strict=True):
            writer.write(REQUEST * requests)
        for (reader, writer), requests in zip(ends, (1, 10, 10), strict=True):
            for _ in range(requests):
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            writer.close()
        assert handled.count("127.0.0.2") == 20
        assert handled.index("127.0.0.1") <= 3


async def test_the_time_of_each_step_is_counted_and_the_outcome_is_that_of_the_work() -> None:
    spent, go = list[int](), asyncio.Event()

    async def work(fails: bool) -> str:
        compute(SHARE_NS)
        try:
            await go.wait()
        except asyncio.CancelledError:
            return "cancelled"
        if fails:
            raise KeyError("it")
        return "done"

    async def run(fails: bool = False) -> str:
        return await counted(work(fails), spent.append)

    tasks = [asyncio.ensure_future(run()), asyncio.ensure_future(run(fails=True)), asyncio.ensure_future(run())]
    await turns()
    assert len(spent) == 3
    assert min(spent) >= SHARE_NS
    tasks[2].cancel()
    go.set()
    assert await tasks[0] == "done"
    with pytest.raises(KeyError):
        await tasks[1]
    assert await tasks[2] == "cancelled"
    assert len(spent) == 6


class SlowTls(asyncio.BufferedProtocol):
    """Needs a millisecond for each piece, as asyncio's TLS does for records without data."""

    def __init__(self) -> None:
        self.received = b""
        self._buffer = memoryview(bytearray(1 << 18))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self.received += self._buffer[:count]
        ends_ns = perf_counter_ns() + SHARE_NS
        while perf_counter_ns() < ends_ns:
            pass


async def test_encrypted_bytes_are_processed_within_the_share_of_their_address() -> None:
    """In an earlier version, a read that consisted of changes of the key stopped the event loop for a second."""
    shares, tls, socket = TurnShares(), SlowTls(), Socket()
    shares.enter("127.0.0.3")  # the address is not alone
    protocol = PacedTls(shares, "127.0.0.2", tls)  # type: ignore[arg-type]  # the part of SSLProtocol that is used
    protocol.connection_made(socket)
    data = bytes(range(256)) * (20 * TLS_PIECE_BYTES // 256)
    protocol.data_received(data)
    assert 0 < len(tls.received) <= 3 * TLS_PIECE_BYTES
    assert not socket.reads
    await until(lambda: tls.received == data, "all bytes, in order")
    assert socket.reads
    protocol.connection_lost(None)
