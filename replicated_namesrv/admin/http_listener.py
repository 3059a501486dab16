"""HttpListener: one HTTP or HTTPS port, with limits on the number of all connections and of connections from one address.

The limits apply before a TLS handshake begins: a connection counts while its handshake is in progress. Handshakes per second are
limited for each address, as on the remoting port.
"""

import asyncio
import errno
import logging
import resource
import ssl
import sys
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from replicated_namesrv.admin.paced import PacedProtocol, PacedTls
from replicated_namesrv.admin.unread import HttpConnections
from replicated_namesrv.errors import SettingError
from replicated_namesrv.listening import stop_listening
from replicated_namesrv.server.turn_shares import TurnShares

STOP_TIMEOUT_S = 2.0
BACKLOG = 1_024
"""Maximum number of connections that wait to be accepted, as at the RocketMQ port by default. If more wait, the kernel drops new
ones, and each client waits at least a second before it tries again."""
LINGERING_S = 1.0
"""Time for which the rest of an unread request body is received and dropped. If the connection were closed at once, it would be
reset before the client has the answer."""
CAUSE_CHARACTERS_MAX = 80
FILES_PER_CONNECTION = 32
"""The descriptor limit of the process, divided by this number, bounds the connections of a port. So if the limit is low, enough
descriptors remain for files and peers."""
HANDSHAKE_TIMEOUT_S = 10
"""A TLS handshake that takes longer is aborted."""


def _shorten_protocol_errors(record: logging.LogRecord) -> bool:
    """Log one short line without a traceback for a request that is not HTTP, because this is a mistake of the client. Log nothing
    if the client has left before ``100 Continue`` could be written."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ConnectionError):
        return False
    if isinstance(error, HttpProcessingError):
        cause = error.message.partition("\n")[0][:CAUSE_CHARACTERS_MAX]
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.__dict__ |= {"peer": str(record.args[0]) if isinstance(record.args, tuple) and record.args else "", "cause": cause}
        record.msg, record.args, record.exc_info = "request rejected: not HTTP", (), None
    return True


http_log = logging.getLogger(__name__)
http_log.addFilter(_shorten_protocol_errors)


class HttpListener:
    """Serves ``app`` at one address. Request bodies are never decompressed. Bodies that no handler reads are drained for at most
    a second."""

    def __init__(
        self,
        app: web.Application,
        connections_max: int,
        address_connections_max: int,
        keepalive_timeout_s: float,
        on_refused: Callable[[], None],
        shares: TurnShares,
        connections: HttpConnections,
        tls: "ListenerTls | None" = None,
    ) -> None:
        self._tls, self._shares, self._connections = tls, shares, connections
        self._handshakes: dict[asyncio.Future[None], str] = {}
        """TLS handshakes in progress, by source address."""
        most = _file_limit() // FILES_PER_CONNECTION
        self._connections_max = min(connections_max, most)
        self._address_connections_max = min(address_connections_max, (most + 1) // 2)
        self._on_refused = on_refused
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=http_log,
            keepalive_timeout=keepalive_timeout_s,
            shutdown_timeout=STOP_TIMEOUT_S,
            auto_decompress=False,
            lingering_time=LINGERING_S,
        )
        self._server: asyncio.Server | None = None
        self._is_stopping = False
        self.address: tuple[str, int] | None = None
        """The bound address; None while the port is closed."""

    async def start(self, host: str, port: int, remedy: str) -> None:
        """Bind and serve. Raises SettingError naming the address and ``remedy`` if it cannot be bound."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Gate(self), host, port, backlog=BACKLOG, reuse_address=True)
        except OSError as cause:
            reason = "is in use" if cause.errno == errno.EADDRINUSE else f"cannot be bound ({cause.strerror or cause})"
            await self._runner.cleanup()
            raise SettingError(f"admin address {host}:{port} {reason}; {remedy}") from cause
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])

    async def stop(self) -> None:
        """Stop listening, wait a moment for requests in progress, close every connection."""
        self._is_stopping = True
        if self._server is not None:
            stop_listening(self._server)
            self._server = self.address = None
            await asyncio.sleep(0)  # releases the port: the sockets are closed in the next turn of the loop
        await self._runner.cleanup()
        self._connections.stop()

    def admit(self, transport: asyncio.Transport) -> None:
        """Serve the new connection, or close it."""
        server = self._runner.server
        if server is None or self._is_stopping:  # the connection was accepted before the listener was closed
            transport.close()
            return
        host = _host_of(transport)
        hosts = [*self._connections.hosts, *self._handshakes.values()]
        if len(hosts) >= self._connections_max or hosts.count(host) >= self._address_connections_max:
            self._refuse(transport)
        elif self._tls is None:
            self._serve(transport, transport)
        elif (context := self._tls.context()) is None or not self._tls.may_handshake(host, time.monotonic()):
            self._refuse(transport)
        else:
            self._shake_hands(transport, context, host)

    def _refuse(self, transport: asyncio.Transport) -> None:
        self._on_refused()
        transport.close()

    def _serve(self, transport: asyncio.Transport, socket: asyncio.Transport, below: PacedTls | None = None) -> None:
        assert self._runner.server is not None
        handler = PacedProtocol(self._runner.server(), self._shares, _host_of(socket), self._connections, socket, below)
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def _shake_hands(self, transport: asyncio.Transport, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS at once, because ``start_tls`` would lose bytes that arrive before it takes effect."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._handshakes[done] = host
        done.add_done_callback(self._handshake_ended)
        serving = _Serving()
        tls = SSLProtocol(loop, serving, context, done, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S)
        paced = PacedTls(self._shares, host, tls)
        serving.serve = partial(self._serve, socket=transport, below=paced)
        transport.set_protocol(paced)
        paced.connection_made(transport)

    def _handshake_ended(self, done: "asyncio.Future[None]") -> None:
        host = self._handshakes.pop(done)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            cause = str(getattr(error, "reason", None) or error)[:CAUSE_CHARACTERS_MAX]
            http_log.warning("TLS handshake failed", extra={"peer": host, "cause": cause})


class _Serving(asyncio.Protocol):
    """Protocol of a connection until its TLS handshake is done."""

    serve: Callable[[asyncio.Transport], None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.serve(transport)  # type: ignore[arg-type]  # asyncio's TLS transport is not declared as a Transport


class ListenerTls(NamedTuple):
    """The TLS of a port: the current context, and the limit on handshakes."""

    context: Callable[[], ssl.SSLContext | None]
    """Returns the TLS context for the next connection."""
    may_handshake: Callable[[str, float], bool]
    """Whether an address may begin a TLS handshake at a given time."""


class _Gate(asyncio.Protocol):
    """Protocol of a connection until its address is known."""

    def __init__(self, owner: HttpListener) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.admit(transport)  # type: ignore[arg-type]  # uvloop's class is not declared as a Transport


def _host_of(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""


def _file_limit() -> int:
    """Hard limit on descriptors of the process. The soft limit is raised as far as maxConnections needs when the node starts."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
