"""Operations on a whole node or cluster: backup, and handing over the leader's office."""

import asyncio
import time

from aiohttp import web

from replicated_namesrv import __version__
from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.responses import json_response
from replicated_namesrv.admin.views import fresh_state
from replicated_namesrv.routes import backup as backups

WRITE_TIMEOUT_S = 60.0
"""Whoever fetches a backup and takes nothing for so long is closed: a backup holds on to the state as it was."""


async def backup(request: web.Request) -> web.StreamResponse:
    """``GET /v1/backup``: the whole state as of one revision, while changes go on."""
    context = request.app[CONTEXT]
    state = await fresh_state(context)
    settings = context.settings
    origin = {
        "revision": state.revision,
        "mode": context.service.mode,
        "clusterId": settings.cluster_id,
        "nodeId": settings.node_id,
        "timeMs": int(time.time() * 1000),
        "softwareVersion": __version__,
    }
    parts = backups.encode(origin, state.snapshot())
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    await response.prepare(request)
    for part in parts:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await response.write(part)
        await asyncio.sleep(0)
    return response


async def transfer_leadership(request: web.Request) -> web.Response:
    """``POST /v1/leader/transfer?to=NODE``: the leader hands over, without NODE to the follower that is furthest."""
    service = request.app[CONTEXT].service
    await service.transfer_leadership(request.query.get("to") or None)
    return json_response({"changed": True, "replication": service.replication_status()})
