"""AdminServer: the HTTP side of a node. HealthServer: its health on a port of its own.

The address is bound first and released last, so that liveness, readiness and the reason why a node does not serve are
available while it starts, is fenced, or stops. Everything has a limit: connections, the time until a request has arrived, its
size, the rows of a page. Answers are JSON, except health, nsaddr, metrics, watch, backup and the console. An error is
``{"error", "remedy", "outcome"}``; ``outcome`` is "not done" or "unknown".
"""

import asyncio
import logging
import time

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from replicated_namesrv.address_list import checked_list, unit_lists
from replicated_namesrv.admin.access import ACCESS, Access, AccessError, Handler, read_token
from replicated_namesrv.admin.cluster_view import COMPARISON
from replicated_namesrv.admin.contents import ContentComparison
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.exposition import EXPOSITION, Exposition
from replicated_namesrv.admin.http_changes import BodyTooLargeError
from replicated_namesrv.admin.http_listener import HttpListener, ListenerTls
from replicated_namesrv.admin.json_views import advertised_address
from replicated_namesrv.admin.open_paths import IMPORT_MAP_HASH
from replicated_namesrv.admin.operations import BACKUPS, BACKUPS_MAX, RESTORES, RESTORES_MAX
from replicated_namesrv.admin.other_nodes import OTHER_NODES, OtherNodes, TlsToOthers, addresses
from replicated_namesrv.admin.paced import in_share
from replicated_namesrv.admin.paths import HEALTH_ROUTES, ROUTES
from replicated_namesrv.admin.peer_contacts import SILENT_HEARTBEATS, PeerChange, peers_of
from replicated_namesrv.admin.responses import json_error
from replicated_namesrv.admin.samples import SAMPLES, Samples
from replicated_namesrv.admin.time_line import CALLER, TIMELINE, TimeLine
from replicated_namesrv.admin.unread import HttpConnections
from replicated_namesrv.admin.watch import WATCHERS, Watchers
from replicated_namesrv.errors import (
    BodyError,
    LimitError,
    NamesrvError,
    NoPermissionError,
    SettingError,
    StaleReadError,
    StorageError,
    UnavailableError,
)
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.server.connection_limits import Limits, Sources
from replicated_namesrv.server.query_handlers import BadConsistencyError
from replicated_namesrv.server.tls import admin_contexts
from replicated_namesrv.server.turn_shares import TurnShares
from replicated_namesrv.settings import Settings

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
"""Maximum number of open HTTP connections; further ones are closed at once."""
ADDRESS_CONNECTIONS_MAX = 128
"""Maximum number of open HTTP connections from one address, so that other hosts can still connect."""
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' '{IMPORT_MAP_HASH}'",
        *("style-src 'self'", "img-src 'self'", "connect-src 'self'"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
"""Header for the console: its pages load only files of the console. The import map is the only inline script."""
BODY_ERROR_CHARACTERS = 80
KEEPALIVE_TIMEOUT_S = 15.0
"""Time limit for the whole head of a request, also of the first one on a connection."""


def own_hosts(settings: Settings) -> set[str]:
    """The host names and addresses by which the settings name this node or its cluster."""
    lists = (settings.name_server_addresses.split(";"), [part.partition("=")[2] for part in settings.peers.split(",")])
    addresses = [settings.listen, settings.admin_listen, *lists[0], *lists[1]]
    return {address.rpartition(":")[0].strip("[] ") for address in addresses if ":" in address}


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into a JSON answer that names a remedy."""
    try:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            return json_error(415, "compressed bodies are not accepted", "send the body without Content-Encoding")
        return await handler(request)
    except AccessError as denied:
        response = json_error(denied.status, denied.error, denied.remedy)
        if denied.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="replicated-namesrv"'
        return response
    except (BodyError, SettingError, BadConsistencyError) as error:
        return json_error(400, str(error), "correct the request")
    except NoPermissionError as error:
        remedy = "give this identity one of the needed roles in the access file, or use another identity"
        return json_error(403, str(error), remedy)
    except UnavailableError as error:
        stale = ", or with ?readConsistency=stale" if request.method == "GET" else ""
        return json_error(503, str(error), f"ask another node, or this one later{stale}")
    except StaleReadError as error:
        return json_error(412, str(error), "allow more, or ask another node")
    except StorageError as error:
        return json_error(507, str(error), "free disk space or correct the permissions, then repeat")
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
        response = json_error(405, f"{request.path} does not accept {request.method}", f"use {allowed}")
        response.headers["Allow"] = allowed
        return response
    except BodyTooLargeError as error:
        return json_error(413, str(error), "send a smaller request")
    except web.HTTPException:
        raise
    except (ConnectionError, HttpProcessingError, web.RequestPayloadError) as error:  # its body is cut off or malformed
        return json_error(400, f"the body cannot be read: {str(error)[:BODY_ERROR_CHARACTERS]}", "send the whole body")
    except Exception:
        log.exception("unexpected error", extra={"method": request.method, "path": request.path})
        return json_error(500, "an unexpected error; see the node's log", "report it", "unknown")


async def _set_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Set the headers of every answer, and record the answers to changes."""
    access = request.app.get(ACCESS)
    if access is not None:
        access.done(request, response.status)
    if (caller := request.get(CALLER)) is not None:
        request.app[TIMELINE].requested(request.method, request.path, caller, response.status)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY


class AdminServer:
    """The admin port of one node."""

    def __init__(
        self,
        context: AdminContext,
        connections_max: int = CONNECTIONS_MAX,
        keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S,
        address_connections_max: int = ADDRESS_CONNECTIONS_MAX,
    ) -> None:
        """Raises SettingError: the token file cannot be used, or an address list is malformed."""
        settings = context.settings
        checked_list("nameServerAddresses", settings.name_server_addresses)
        unit_lists(settings.unit_name_server_addresses)
        if settings.admin_token_file:
            read_token(settings.admin_token_file)
        watchers = Watchers()
        exposition = Exposition(context, watchers)
        app = _application(context)
        app[ACCESS] = Access(settings.admin_token_file, own_hosts(settings), context.access)
        app[EXPOSITION] = exposition
        app[WATCHERS] = watchers
        self._context = context
        self._line = app[TIMELINE] = TimeLine(
            context.service.history,
            lambda: context.remoting.is_listening,
            lambda: context.service.fenced,
            _wall_ms,
            lambda: peers_of(context.service.contacts(), SILENT_HEARTBEATS * settings.peer_heartbeat_ms),
        )
        self._samples = app[SAMPLES] = Samples(exposition.collector.collect, time.time)
        self._others = app[OTHER_NODES] = OtherNodes()
        self._others.on_change = self._notify_other
        app[COMPARISON] = ContentComparison()
        app[BACKUPS], app[RESTORES] = asyncio.Semaphore(BACKUPS_MAX), asyncio.Semaphore(RESTORES_MAX)

        def notify_leader(leader: str | None, term: int) -> None:
            watchers.notify_leader(leader, term)
            self._line.notify_leader(leader, term)

        def notify_suspected(broker: tuple[str, str], since_ms: int | None) -> None:
            watchers.notify_suspected(broker, since_ms)
            self._line.notify_suspected(broker, since_ms)

        context.service.on_leader(notify_leader)
        context.service.on_suspected(notify_suspected)
        app.on_shutdown.append(watchers.stop)
        if context.access is not None:
            context.access.on_reload.append(watchers.check_callers)
        app.add_routes(ROUTES)

        def count_refused() -> None:
            exposition.collector.admin_connections_refused += 1

        self._contexts = admin_contexts(settings, context.remoting.metrics)
        tls = None
        if self._contexts is not None:
            sources, contexts = Sources(Limits.of(settings)), self._contexts
            tls = ListenerTls(lambda: contexts.context, sources.may_handshake)
        limits = connections_max, address_connections_max, keepalive_timeout_s
        connections = HttpConnections(context.remoting.metrics.hit_limit)
        self._listener = HttpListener(app, *limits, count_refused, context.remoting.shares, connections, tls)

    @property
    def address(self) -> tuple[str, int] | None:
        """Bound address, None while not listening."""
        return self._listener.address

    def note_cause(self, revision: int, origin: ChangeOrigin) -> None:
        """The change with this revision was requested by an identity of the access file."""
        self._line.note_cause(revision, origin)

    def _notify_other(self, node: str, contact_s_ago: float, why: str | None) -> None:
        """Another name server no longer answers, or answers again. No-op in a cluster, where Raft notices this."""
        if not self._context.service.contacts():
            self._line.notify_peer(PeerChange(node, _wall_ms() - int(1000 * contact_s_ago), why))

    def note_request(self, request: str, target: str, host: str) -> None:
        """An operator without an identity sent a request to the RocketMQ port."""
        self._line.requested(request, target, host, None)

    async def start(self, host: str, port: int) -> None:
        """Bind and serve. Raises SettingError naming the address if it cannot be bound."""
        if self._contexts is not None:
            await self._contexts.start()
        await self._listener.start(host, port, "choose another with --admin HOST:PORT (adminListen), or --admin off")
        self._find_others()
        self._line.start()
        self._samples.start()
        kind = "admin HTTP listens" if self._contexts is None else "admin HTTPS listens"
        log.info(kind, extra={"address": "{}:{}".format(*self._listener.address or (host, port))})

    async def stop(self) -> None:
        """Stop listening, wait a moment for requests in progress, close every connection."""
        self._line.stop()
        self._samples.stop()
        await self._listener.stop()
        await self._others.stop()
        if self._contexts is not None:
            await self._contexts.stop()

    def _find_others(self) -> None:
        """Find the admin ports of the other nodes. The difference between a node's admin port and its remoting port is assumed to
        be the same on all nodes."""
        settings, bound = self._context.settings, self._listener.address
        if bound is None:
            return
        tls = None if self._contexts is None else TlsToOthers(settings, self._contexts)

        def find() -> list[tuple[str | None, str]]:
            advertised = advertised_address(self._context)
            return addresses(settings, self._members(), bound[1], int(advertised.rpartition(":")[2]), advertised)

        self._others.begin(find, tls, self._members() is not None or "nameServerAddresses" not in settings.run_time)

    def _members(self) -> list[dict[str, object]] | None:
        """The members of the cluster; None: this node belongs to none, even if ``peers`` is still in its file."""
        try:
            return self._context.service.members()
        except SettingError:
            return None


def _wall_ms() -> int:
    return int(time.time() * 1000)


class HealthServer:
    """``/livez`` and ``/readyz`` on a port of their own (``healthListen``), with limits of its own."""

    def __init__(self, context: AdminContext) -> None:
        app = _application(context)
        app.add_routes(HEALTH_ROUTES)
        limits = CONNECTIONS_MAX, ADDRESS_CONNECTIONS_MAX, KEEPALIVE_TIMEOUT_S
        # A probe may come from the address of a hostile host, so this port shares no limits with the other ports.
        connections = HttpConnections(context.remoting.metrics.hit_limit)
        self._listener = HttpListener(app, *limits, lambda: None, TurnShares(), connections)

    @property
    def address(self) -> tuple[str, int] | None:
        """Bound address, None while not listening."""
        return self._listener.address

    async def start(self, host: str, port: int) -> None:
        """Bind and serve. Raises SettingError naming the address if it cannot be bound."""
        await self._listener.start(host, port, "choose another with healthListen")

    async def stop(self) -> None:
        """Stop listening."""
        await self._listener.stop()


def _application(context: AdminContext) -> web.Application:
    app = web.Application(middlewares=[in_share, errors_as_json])
    app[CONTEXT] = context
    app.on_response_prepare.append(_set_headers)
    return app
