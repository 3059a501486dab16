"""HttpListener: one HTTP port, with limits on the connections in all and from one address."""

import asyncio
import errno
import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from replicated_namesrv.errors import SettingError

STOP_TIMEOUT_S = 2.0
LINGERING_S = 1.0
"""How long a body that no handler reads is dropped as it comes: closing at once would reset the connection before the answer."""
CAUSE_CHARACTERS_MAX = 80


def _shorten_protocol_errors(record: logging.LogRecord) -> bool:
    """A request that is no HTTP is the peer's mistake: one short line and no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        cause = error.message.partition("\n")[0][:CAUSE_CHARACTERS_MAX]
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.__dict__ |= {"peer": str(record.args[0]) if isinstance(record.args, tuple) and record.args else "", "cause": cause}
        record.msg, record.args, record.exc_info = "a request is no HTTP", (), None
    return True


http_log = logging.getLogger(__name__)
http_log.addFilter(_shorten_protocol_errors)


class HttpListener:
    """Serves ``app`` at one address. Bodies are never inflated, and those that no handler reads are dropped for a second."""

    def __init__(
        self,
        app: web.Application,
        connections_max: int,
        address_connections_max: int,
        keepalive_timeout_s: float,
        on_refused: Callable[[], None],
    ) -> None:
        self._connections_max, self._address_connections_max = connections_max, address_connections_max
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
        self.address: tuple[str, int] | None = None
        """Bound address, None while not listening."""

    async def start(self, host: str, port: int, remedy: str) -> None:
        """Bind and serve. Raises SettingError naming the address and ``remedy`` if it cannot be bound."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Gate(self), host, port, backlog=128, reuse_address=True)
        except OSError as cause:
            reason = "is in use" if cause.errno == errno.EADDRINUSE else f"cannot be bound ({cause.strerror or cause})"
            await self._runner.cleanup()
            raise SettingError(f"admin address {host}:{port} {reason}; {remedy}") from cause
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])

    async def stop(self) -> None:
        """Stop listening, give requests under way a moment, close every connection."""
        if self._server is not None:
            self._server.close()
            self.address = None
        await self._runner.cleanup()

    def admit(self, transport: asyncio.Transport) -> None:
        """Serve the new connection, or close it."""
        server = self._runner.server
        assert server is not None
        host = _host_of(transport)
        held = [each.transport for each in server.connections]
        same = sum(1 for each in held if each is not None and _host_of(each) == host)
        if len(held) >= self._connections_max or same >= self._address_connections_max:
            self._on_refused()
            transport.close()
            return
        handler = server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


class _Gate(asyncio.Protocol):
    """Protocol of a connection until its address is known."""

    def __init__(self, owner: HttpListener) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.admit(transport)  # type: ignore[arg-type]  # uvloop's is registered nowhere as a Transport


def _host_of(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
