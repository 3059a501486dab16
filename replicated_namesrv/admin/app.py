"""AdminServer: the HTTP side of a node.

The life of it: the address is bound first of all and let go last, so that liveness, readiness and the reason why a node does
not serve can be asked for while it starts, while it is fenced and while it stops. Everything has a limit: connections, the
time until a request has arrived, its size, the rows of a page. Answers are JSON unless their reader wants something else
(health: text; metrics: Prometheus; nsaddr: text). An error is ``{"error", "remedy", "outcome"}``; ``outcome`` says whether a
change was surely not done or whether that is unknown.
"""

import asyncio
import errno
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from replicated_namesrv.address_list import checked_list, unit_lists
from replicated_namesrv.admin.access import ACCESS, Access, AccessError, Handler, read_token
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.exposition import EXPOSITION, Exposition
from replicated_namesrv.admin.http_changes import BodyTooLargeError
from replicated_namesrv.admin.paths import ROUTES
from replicated_namesrv.admin.responses import json_error
from replicated_namesrv.admin.watch import WATCHERS, Watchers
from replicated_namesrv.errors import (
    BodyError,
    LimitError,
    NamesrvError,
    SettingError,
    StaleReadError,
    StorageError,
    UnavailableError,
)
from replicated_namesrv.server.query_handlers import BadConsistencyError
from replicated_namesrv.settings import Settings

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
"""HTTP connections held at once; one more is closed at once."""
KEEPALIVE_TIMEOUT_S = 15.0
"""A connection that has not sent a whole request head for so long is closed, a new one too."""
CAUSE_CHARACTERS_MAX = 80
STOP_TIMEOUT_S = 2.0


def _shorten_protocol_errors(record: logging.LogRecord) -> bool:
    """A request that is no HTTP is the peer's mistake: one short line and no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        cause = error.message.partition("\n")[0][:CAUSE_CHARACTERS_MAX]
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.__dict__ |= {"peer": str(record.args[0]) if isinstance(record.args, tuple) and record.args else "", "cause": cause}
        record.msg, record.args, record.exc_info = "a request is no HTTP", (), None
    return True


http_log = logging.getLogger(f"{__name__}.http")
http_log.addFilter(_shorten_protocol_errors)


def own_hosts(settings: Settings) -> set[str]:
    """Hosts by which the settings name this node or its cluster."""
    lists = (settings.name_server_addresses.split(";"), [part.partition("=")[2] for part in settings.peers.split(",")])
    addresses = [settings.listen, settings.admin_listen, *lists[0], *lists[1]]
    return {address.rpartition(":")[0].strip("[] ") for address in addresses if ":" in address}


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong gets a JSON answer that tells its reader what to do."""
    try:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return json_error(415, "compressed bodies are not taken", "send the body without Content-Encoding")
        return await handler(request)
    except AccessError as denied:
        response = json_error(denied.status, denied.error, denied.remedy)
        if denied.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="replicated-namesrv"'
        return response
    except (BodyError, SettingError, BadConsistencyError) as error:
        return json_error(400, str(error), "correct the request")
    except UnavailableError as error:
        return json_error(503, str(error), "ask another node, or this one later, or with ?readConsistency=stale")
    except StaleReadError as error:
        return json_error(412, str(error), "allow more, or ask another node")
    except StorageError as error:
        return json_error(507, str(error), "make room or correct the rights, then repeat")
    except LimitError as error:
        return json_error(413, str(error), "docs/limits.md says what the limits are for")
    except NamesrvError as error:
        if error.definite:
            return json_error(500, str(error), "see the log of the node")
        return json_error(504, str(error), "read back whether it was done before you repeat it", "unknown")
    except web.HTTPNotFound:
        return json_error(404, f"there is nothing at {request.path}", "docs/admin-http.md lists the paths")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = json_error(405, f"{request.path} does not take {request.method}", f"use {allowed}")
        response.headers["Allow"] = allowed
        return response
    except BodyTooLargeError as error:
        return json_error(413, str(error), "send less at once")
    except web.HTTPException:
        raise
    except Exception:
        log.exception("unexpected error", extra={"method": request.method, "path": request.path})
        return json_error(500, "an unexpected error, it is in the node's log", "report it", "unknown")


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class AdminServer:
    """The admin HTTP of one node."""

    def __init__(
        self, context: AdminContext, connections_max: int = CONNECTIONS_MAX, keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S
    ) -> None:
        """Raises SettingError: the token file cannot be used, or an address list is none."""
        settings = context.settings
        checked_list("nameServerAddresses", settings.name_server_addresses)
        unit_lists(settings.unit_name_server_addresses)
        if settings.admin_token_file:
            read_token(settings.admin_token_file)
        self._connections_max = connections_max
        watchers = Watchers()
        self._exposition = Exposition(context, watchers)
        self._app = web.Application(middlewares=[errors_as_json])
        self._app[CONTEXT] = context
        self._app[ACCESS] = Access(settings.admin_token_file, own_hosts(settings))
        self._app[EXPOSITION] = self._exposition
        self._app[WATCHERS] = watchers
        context.service.on_leader(watchers.notify_leader)
        context.service.on_suspected(watchers.notify_suspected)
        self._app.on_shutdown.append(watchers.stop)
        self._app.on_response_prepare.append(_set_headers)
        self._app.add_routes(ROUTES)
        self._runner = web.AppRunner(
            self._app,
            access_log=None,
            logger=http_log,
            keepalive_timeout=keepalive_timeout_s,
            shutdown_timeout=STOP_TIMEOUT_S,
            auto_decompress=False,
            lingering_time=0,
        )
        self._server: asyncio.Server | None = None
        self.address: tuple[str, int] | None = None
        """Bound address, None while not listening."""

    async def start(self, host: str, port: int) -> None:
        """Bind and serve. Raises SettingError naming the address if it cannot be bound."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=128, reuse_address=True)
        except OSError as cause:
            reason = "is in use" if cause.errno == errno.EADDRINUSE else f"cannot be bound ({cause.strerror or cause})"
            await self._runner.cleanup()
            raise SettingError(
                f"admin address {host}:{port} {reason}; choose another with --admin HOST:PORT (adminListen), or --admin off"
            ) from cause
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])
        log.info("admin HTTP listens", extra={"address": f"{name[0]}:{name[1]}"})

    async def stop(self) -> None:
        """Stop listening, give requests under way a moment, close every connection."""
        if self._server is not None:
            self._server.close()
            self.address = None
        await self._runner.cleanup()

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._connections_max:
            self._exposition.collector.admin_connections_refused += 1
            return _Refusal()
        return server()
