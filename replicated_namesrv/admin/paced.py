"""PacedProtocol and ``in_share``: they keep HTTP requests within the share of the event loop's time that each address may use
(``turn_shares.py``).

``PacedProtocol``: a bounded part of what arrives on a connection is parsed in one turn of the event loop. A read of 256 KiB can
consist of chunks of one byte, each of which costs the parser microseconds: eight such reads in one turn took half a second. The
connection of a malformed request is closed in a later turn; until then, the parser gets nothing more.

``PacedTls``: the same below the TLS of a connection. Records that contain no data, such as changes of the key, never reach
``PacedProtocol``, and 10,000 of them fit into a read.

``in_share``: a parsed request waits if the share of its address is used up, and the time of its handler is charged to that share.
"""

import asyncio
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from time import perf_counter_ns
from types import coroutine
from typing import Any, TypeVar, cast

from aiohttp import web

from replicated_namesrv.admin.unread import HttpConnection, HttpConnections
from replicated_namesrv.server.turn_shares import Share, TurnShares

T = TypeVar("T")

PIECE_BYTES = 16 << 10
"""Number of bytes that are parsed in one turn. They can contain 2,700 chunks of one byte, which take 6 ms."""


TLS_PIECE_BYTES = 2_048
"""Number of encrypted bytes that are processed without a look at the time (``server.tls.PIECE_BYTES``)."""


class PacedTls(asyncio.Protocol):
    """Forwards a connection to its TLS: data in pieces, within the share of the connection's address."""

    def __init__(self, shares: TurnShares, host: str, tls: SSLProtocol) -> None:
        self.shares, self._tls = shares, tls
        self.share: Share = shares.enter(host)
        self.spent_above_ns = 0
        """Time in the present call of the TLS that ``PacedProtocol`` has charged to the share."""
        self._transport: asyncio.Transport | None = None
        self._backlog = bytearray()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)  # uvloop's class is not declared as a Transport
        self._tls.connection_made(_Paused(stream, self))  # type: ignore[arg-type]  # it does what a transport does

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backlog.clear()
        self.shares.leave(self.share)
        self._tls.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._tls.eof_received()  # type: ignore[func-returns-value]  # it can return True

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()

    def write(self, data: bytes) -> None:
        """Write what the TLS writes."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self, is_paused: bool) -> None:
        """The TLS wants no more bytes for now, or wants them again."""
        self._is_paused = is_paused
        self._set_reading()

    def data_received(self, data: bytes) -> None:
        is_waiting = bool(self._backlog)
        self._backlog += data
        if not is_waiting:
            self._forward()

    def _forward(self) -> None:
        while self._backlog and self._transport is not None and not self._transport.is_closing():
            if self.share.is_used_up:
                self.shares.wait(self.share, self._forward)
                break
            piece = self._backlog[:TLS_PIECE_BYTES]
            del self._backlog[:TLS_PIECE_BYTES]
            started_ns, self.spent_above_ns = perf_counter_ns(), 0
            self._tls.get_buffer(len(piece))[: len(piece)] = piece
            self._tls.buffer_updated(len(piece))
            self.shares.spend(self.share, perf_counter_ns() - started_ns - self.spent_above_ns)
        self._set_reading()

    def _set_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            _read(self._transport, not self._backlog and not self._is_paused)


class PacedProtocol(asyncio.Protocol):
    """Forwards a connection to ``handler``: data in pieces, within the share of the connection's address."""

    def __init__(
        self,
        handler: asyncio.Protocol,
        shares: TurnShares,
        host: str,
        connections: HttpConnections,
        socket: asyncio.Transport,
        below: PacedTls | None = None,
    ) -> None:
        """``socket``: the transport below TLS, or that of the connection. ``below``: what forwards to the TLS of the
        connection."""
        self._handler, self.shares, self._host, self._below = handler, shares, host, below
        self.share: Share = shares.enter(host)
        self._connections, self._socket = connections, socket
        self._connection: HttpConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._backlog = bytearray()
        """Bytes that the handler has not received yet. The connection is not read until the handler has received them."""
        self._is_paused = False
        """True while the handler wants no more bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)  # uvloop's class is not declared as a Transport
        transports = (stream,) if stream is self._socket else (self._socket, stream)
        self._connection = self._connections.enter(transports, self._host)
        self._handler.connection_made(_Paused(stream, self))  # type: ignore[arg-type]  # it does what a transport does

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backlog.clear()
        self.shares.leave(self.share)
        if self._connection is not None:
            self._connections.leave(self._connection)
            self._connection = None
        self._handler.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.look()
        self._handler.resume_writing()

    def write(self, data: bytes) -> None:
        """Write what the handler writes, and count it until the client has read it."""
        if self._connection is not None and self._transport is not None:
            self._connection.look()
            self._transport.write(data)
            self._connection.wrote(len(data))

    def data_received(self, data: bytes) -> None:
        is_waiting = bool(self._backlog)
        self._backlog += data
        if is_waiting:
            return
        if self.share.is_used_up:
            self._set_reading()
            self.shares.wait(self.share, self._forward)
        else:
            self._forward()

    def pause(self, is_paused: bool) -> None:
        """The handler wants no more bytes for now, or wants them again."""
        self._is_paused = is_paused
        self._set_reading()

    def _forward(self) -> None:
        if self._transport is None or self._transport.is_closing():
            self._backlog.clear()
            return
        piece = bytes(self._backlog[:PIECE_BYTES])
        started_ns = perf_counter_ns()
        self._handler.data_received(piece)
        spent_ns = perf_counter_ns() - started_ns
        self.shares.spend(self.share, spent_ns)
        if self._below is not None:
            self._below.spent_above_ns += spent_ns
        del self._backlog[:PIECE_BYTES]
        self._set_reading()
        if not self._backlog:
            return
        if self.share.is_used_up:
            self.shares.wait(self.share, self._forward)
        else:
            asyncio.get_running_loop().call_soon(self._forward)

    def _set_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            _read(self._transport, not self._backlog and not self._is_paused)


def _read(transport: asyncio.Transport, is_wanted: bool) -> None:
    if is_wanted:
        transport.resume_reading()
    else:
        transport.pause_reading()


class _Paused:
    """The transport that the handler gets. The protocol decides whether it is read, and counts unread answers."""

    def __init__(self, transport: asyncio.Transport, protocol: PacedProtocol | PacedTls) -> None:
        self._transport, self.protocol = transport, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close once. After a second call, other methods of asyncio's TLS transport fail."""
        if not self._transport.is_closing():
            self._transport.close()

    def write(self, data: bytes) -> None:
        self.protocol.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.protocol.write(b"".join(parts))

    def pause_reading(self) -> None:
        self.protocol.pause(True)

    def resume_reading(self) -> None:
        self.protocol.pause(False)


@web.middleware
async def in_share(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """Handle a request within the share of its address."""
    transport = request.transport
    if not isinstance(transport, _Paused):  # the connection has ended, so its share is unknown
        return await handler(request)
    shares, share = transport.protocol.shares, transport.protocol.share
    if share.is_used_up:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shares.wait(share, partial(_wake, turn))
        await turn
        if request.transport is None or request.transport.is_closing():
            # the client has left: nobody reads this answer, and a change for which nobody waits is not made
            return web.Response(status=503)
    work = handler(request)
    assert isinstance(work, Coroutine)
    return await counted(work, partial(shares.spend, share))


def _wake(turn: "asyncio.Future[None]") -> bool:
    """Let a waiting request continue. False: it no longer waits."""
    if turn.done():
        return False
    turn.set_result(None)
    return True


@coroutine
def counted(work: Coroutine[Any, Any, T], spend: Callable[[int], None]) -> Generator[Any, Any, T]:
    """Await ``work``, and pass the time of each of its steps to ``spend``."""
    step, value = work.send, None
    while True:
        started_ns = perf_counter_ns()
        try:
            awaited = step(value)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # the result of work
        finally:
            spend(perf_counter_ns() - started_ns)
        try:
            step, value = work.send, (yield awaited)
        except BaseException as error:  # the work handles every exception, also a cancellation
            step, value = work.throw, error
