"""Every path of the admin HTTP, and who may use it."""

from aiohttp import web

from replicated_namesrv.admin import changes, open_paths, operations, views
from replicated_namesrv.admin.access import ACCESS, Handler
from replicated_namesrv.admin.watch import watch


def _view(path: str, handler: Handler) -> web.RouteDef:
    async def checked(request: web.Request) -> web.StreamResponse:
        request.app[ACCESS].check_view(request)
        return await handler(request)

    return web.get(path, checked, allow_head=handler not in (watch, operations.backup))


def _change(method: str, path: str, handler: Handler) -> web.RouteDef:
    async def checked(request: web.Request) -> web.StreamResponse:
        request.app[ACCESS].check_change(request)
        return await handler(request)

    return web.route(method, path, checked)


ROUTES: tuple[web.RouteDef, ...] = (
    web.get("/", open_paths.console),
    web.get("/console/{file}", open_paths.console),
    web.get("/livez", open_paths.livez),
    web.get("/readyz", open_paths.readyz),
    web.get("/metrics", open_paths.metrics),
    web.get("/rocketmq/nsaddr", open_paths.nsaddr),
    web.get("/rocketmq/nsaddr-{unit}", open_paths.unit_nsaddr),
    _view("/v1/status", views.status),
    _view("/v1/topics", views.topics),
    _view("/v1/brokers", views.brokers),
    _view("/v1/routes/{topic:.+}", views.route),
    _view("/v1/kv", views.kv),
    _view("/v1/config", views.config),
    _view("/v1/digest", views.digest),
    _view("/v1/watch", watch),
    _view("/v1/backup", operations.backup),
    _change("PUT", "/v1/kv/{namespace}/{key:.+}", changes.put_kv),
    _change("DELETE", "/v1/kv/{namespace}/{key:.+}", changes.delete_kv),
    _change("DELETE", "/v1/topics/{topic:.+}", changes.delete_topic),
    _change("POST", "/v1/config", changes.update_config),
    _change("POST", "/v1/restore", operations.restore),
    _change("POST", "/v1/leader/transfer", operations.transfer_leadership),
)
