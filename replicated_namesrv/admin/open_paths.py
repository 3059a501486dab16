"""Paths without access control: health, metrics, address lists and the console's files."""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePath

from aiohttp import web

from replicated_namesrv.address_list import checked_list, unit_lists
from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.exposition import EXPOSITION
from replicated_namesrv.admin.health import as_json, as_text, readiness
from replicated_namesrv.admin.json_views import advertised_address
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.service import NodeAddress

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}


def _console_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _console_files(entry, f"{prefix}{entry.name}/")
        elif PurePath(entry.name).suffix in _KINDS:
            yield prefix + entry.name, entry


CONSOLE_FILES = dict(_console_files(files("replicated_namesrv.admin").joinpath("console")))
"""The files of the console, by path. No other file is served."""
_IMPORT_MAP = re.search(rb'<script type="importmap">(.*?)</script>', CONSOLE_FILES["index.html"].read_bytes(), re.DOTALL)
IMPORT_MAP_HASH = "sha256-" + base64.b64encode(hashlib.sha256(_IMPORT_MAP[1] if _IMPORT_MAP else b"").digest()).decode()
"""Hash of the page's import map. It permits this script in the Content-Security-Policy."""


async def livez(request: web.Request) -> web.Response:
    """``GET /livez``: the event loop runs."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """``GET /readyz``: 200 if this node would serve a broker or client, else 503 with the first layer that fails.

    ``?verbose``: one line per layer. ``?format=json`` or ``Accept: application/json``: the same as JSON.
    """
    found = await readiness(request.app[CONTEXT].layers)
    status = 200 if all(health.problem is None for health in found) else 503
    if request.query.get("format") == "json" or "application/json" in request.headers.get("Accept", ""):
        return json_response(as_json(found), status)
    return web.Response(text=as_text(found, verbose="verbose" in request.query), status=status)


async def metrics(request: web.Request) -> web.Response:
    """``GET /metrics``: Prometheus or OpenMetrics text."""
    body, content_type = request.app[EXPOSITION].render(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def nsaddr(request: web.Request) -> web.Response:
    """``GET /rocketmq/nsaddr``: the address list that brokers and clients fetch (``DefaultTopAddressing``)."""
    context = request.app[CONTEXT]
    configured = checked_list("nameServerAddresses", context.settings.name_server_addresses)
    knows = not context.service.fenced
    zone = context.settings.zone if context.settings.zone_aware_addresses else ""
    addresses = listed(configured, advertised_address(context), context.service.node_addresses(), knows, zone)
    return web.Response(text=";".join(addresses) + "\n")


def listed(configured: str, own: str, nodes: Sequence[NodeAddress], knows: bool, zone: str = "") -> list[str]:
    """The addresses of the nodes that serve brokers and clients. ``knows`` False: this node reaches no majority. ``zone``: list
    only the nodes of this zone; empty: all nodes.

    The first row that matches decides. An address in the list that belongs to no known node always stays.

        configured  knows  result                                        reason
        no          no     all known nodes                               the others may serve
        no          yes    the nodes of the zone that serve              less delay and traffic between zones
        no          yes    the nodes that serve                          no zone, or none of its nodes serves
        yes         no     as configured                                 the others may serve
        yes         yes    without the nodes that are known not to       other name servers can be in the list
                           serve

    If nothing is left, the whole list is the result: clients keep an old list if the new one is empty.
    """
    near = [node.address for node in nodes if node.address and node.serves and node.zone == zone]
    if zone and knows and not configured and near:
        return near
    known = {node.address: node.serves or not knows for node in nodes if node.address}
    whole = configured.split(";") if configured else list(known) or [own]
    return [address for address in whole if known.get(address, True)] or whole


async def unit_nsaddr(request: web.Request) -> web.Response:
    """``GET /rocketmq/nsaddr-UNIT``: the list of one unit; 404 if unitNameServerAddresses does not name the unit."""
    unit = request.match_info["unit"]
    addresses = unit_lists(request.app[CONTEXT].settings.unit_name_server_addresses).get(unit)
    if addresses is None:
        return json_error(404, f"no address list for unit '{unit}'", "add UNIT=HOST:PORT;HOST:PORT to unitNameServerAddresses")
    return web.Response(text=addresses + "\n")


async def console(request: web.Request) -> web.Response:
    """``GET /`` and ``GET /console/FILE``."""
    name = request.match_info.get("file", "index.html")
    if name not in CONSOLE_FILES:
        raise web.HTTPNotFound
    kind = _KINDS[PurePath(name).suffix]
    return web.Response(body=CONSOLE_FILES[name].read_bytes(), content_type=kind, charset="utf-8")
