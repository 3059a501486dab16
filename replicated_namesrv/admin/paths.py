"""All paths of the admin port with their access rules."""

from aiohttp import web

from replicated_namesrv.access.roles import ADMINS, OPERATORS, READERS, Role
from replicated_namesrv.admin import cluster_view, contents, http_changes, json_views, open_paths, operations, samples, time_line
from replicated_namesrv.admin.access import ACCESS, Handler
from replicated_namesrv.admin.watch import watch

TOPIC = r"{topic:[\s\S]+}"
"""A name in a path. It may have any character, also a line break or a brace."""
KV_ENTRY = r"/v1/kv/{namespace:[^/]*}/{key:[\s\S]*}"
"""Both names may be empty."""
HTTP_ROLES: dict[tuple[str, str], frozenset[Role]] = {}
"""The roles that may send a request, by method and path. Paths without a row are open to everyone."""


def _view(path: str, handler: Handler) -> web.RouteDef:
    async def checked(request: web.Request) -> web.StreamResponse:
        access = request.app[ACCESS]
        access.check(request, READERS, access.check_view)
        return await handler(request)

    HTTP_ROLES["GET", path] = READERS
    return web.get(path, checked)


def _secret_view(path: str, handler: Handler, allowed: frozenset[Role] = READERS) -> web.RouteDef:
    async def checked(request: web.Request) -> web.StreamResponse:
        access = request.app[ACCESS]
        access.check(request, allowed, access.check_secret_view)
        return await handler(request)

    HTTP_ROLES["GET", path] = allowed
    return web.get(path, checked, allow_head=handler not in (watch, operations.backup))


def _change(method: str, path: str, handler: Handler, allowed: frozenset[Role] = OPERATORS) -> web.RouteDef:
    async def checked(request: web.Request) -> web.StreamResponse:
        access = request.app[ACCESS]
        access.check(request, allowed, access.check_change)
        request[time_line.CALLER] = access.caller(request)
        return await handler(request)

    HTTP_ROLES[method, path] = allowed
    return web.route(method, path, checked)


HEALTH_ROUTES = (web.get("/livez", open_paths.livez), web.get("/readyz", open_paths.readyz))
ROUTES: tuple[web.RouteDef, ...] = (
    web.get("/", open_paths.console),
    web.get("/console/{file:.+}", open_paths.console),
    *HEALTH_ROUTES,
    web.get("/metrics", open_paths.metrics),
    web.get("/rocketmq/nsaddr", open_paths.nsaddr),
    web.get("/rocketmq/nsaddr-{unit}", open_paths.unit_nsaddr),
    _view("/v1/status", json_views.status),
    _view("/v1/members", json_views.members),
    _view("/v1/topics", json_views.topics),
    _view("/v1/brokers", json_views.brokers),
    _view("/v1/clusters", json_views.clusters),
    _view("/v1/routes/" + TOPIC, json_views.route),
    _secret_view("/v1/kv", json_views.kv),
    _secret_view("/v1/kv-namespaces", json_views.kv_namespaces),
    _secret_view("/v1/config", json_views.config),
    _secret_view("/v1/settings", json_views.settings),
    _view("/v1/digest", json_views.digest),
    _view("/v1/cluster", cluster_view.cluster),
    _view("/v1/differences", cluster_view.compare),
    _view("/v1/nodes/{node}/{view}", cluster_view.other_view),
    _view("/v1/contents", contents.contents),
    _view("/v1/samples", samples.samples),
    _secret_view("/v1/timeline", time_line.time_line),
    _secret_view("/v1/watch", watch),
    _secret_view("/v1/backup", operations.backup, ADMINS),
    _change("PUT", KV_ENTRY, http_changes.put_kv),
    _change("DELETE", KV_ENTRY, http_changes.delete_kv),
    _change("DELETE", "/v1/topics/" + TOPIC, http_changes.delete_topic),
    _change("POST", r"/v1/brokers/{brokerName:[\s\S]+}/write-permission", http_changes.change_write_permission),
    _change("POST", "/v1/config", http_changes.update_config),
    _change("POST", "/v1/restore", operations.restore, ADMINS),
    _change("POST", "/v1/leader/transfer", operations.transfer_leadership, ADMINS),
    _change("POST", "/v1/members/{node}/{action}", operations.change_member, ADMINS),
    _change("POST", "/v1/drain", operations.drain, ADMINS),
    _change("DELETE", "/v1/drain", operations.resume, ADMINS),
)
