"""An HttpListener with a handler of the test's own."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from replicated_namesrv.admin.http_listener import HttpListener, ListenerTls
from replicated_namesrv.admin.unread import HttpConnections
from replicated_namesrv.server.turn_shares import TurnShares


@asynccontextmanager
async def http_listener(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
    connections: HttpConnections | None = None,
    *,
    tls: ListenerTls | None = None,
    most: int = 100,
    keepalive_timeout_s: float = 60,
    middlewares: Sequence[Any] = (),
) -> AsyncIterator[int]:
    """The port of a listener that answers ``GET /`` with ``handle``. ``most``: maximum number of connections, in all and of one
    host."""
    app = web.Application(middlewares=middlewares)
    app.router.add_get("/", handle)
    connections = connections or HttpConnections(lambda name: None)
    serving = HttpListener(app, most, most, keepalive_timeout_s, lambda: None, TurnShares(), connections, tls)
    await serving.start("127.0.0.1", 0, "")
    assert serving.address is not None
    try:
        yield serving.address[1]
    finally:
        await serving.stop()
