"""All nodes as this node sees them: ``GET /v1/cluster``, ``GET /v1/differences`` and views of another node."""

import asyncio
from time import monotonic, time
from typing import Any, TypeVar

from aiohttp import web

from replicated_namesrv.access.roles import ADMINS, OPERATORS, READERS
from replicated_namesrv.admin.access import ACCESS
from replicated_namesrv.admin.contents import KV_NAMES, ContentComparison, contents_of, differences_steps
from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.diagnosis import NodeView, digests_equal, findings, leader_of
from replicated_namesrv.admin.json_views import status_fields
from replicated_namesrv.admin.other_nodes import OTHER_NODES, NodeAnswerError, OtherNode, OtherNodes
from replicated_namesrv.admin.peer_contacts import SILENT_HEARTBEATS, contact_of, peers_of
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.steps import Steps

T = TypeVar("T")

VIEWS = ("brokers", "samples", "contents", "status", "members")
"""Views for which requests to another node are passed on. They need no more permissions than ``/v1/cluster``, except ``contents``
with ``?kv=true``."""
READY_WAIT_S = 0.3
"""Time limit for the check of this node's readiness. It is short, so that the answer comes soon even without a majority."""
NO_KV = "kvRefused"
COMPARISON = web.AppKey("comparison", ContentComparison)
_STATUS_KEYS = (
    *("nodeId", "mode", "version", "pid", "uptimeSeconds", "ready", "failedLayer", "layers", "drained"),
    *("listen", "advertisedAddress"),
    *("dataDir", "revision", "counts", "connections", "requests", "suspectedBrokers", "brokersExpired", "brokersLost"),
    *("loopLagRecentMaxMs", "diskFreeBytes", "diskWarning", "quotas"),
)
_STANDING_KEYS = (
    *("members", "role", "leader", "term", "commitIndex", "appliedIndex", "lastIndex", "quorum", "mayFail"),
    *("fenced", "noQuorumPolicy", "confirmedMsAgo", "servesStale", "digest"),
)


async def cluster(request: web.Request) -> web.Response:
    """``GET /v1/cluster``: facts about each node, its problems, and the age of these facts. The answer does not wait for a read
    barrier.
    """
    context, others = request.app[CONTEXT], request.app[OTHER_NODES]
    await others.look(request.headers.get("Authorization"))
    own = await status_fields(context, READY_WAIT_S)
    peers = peers_of((own["replication"] or {}).get("raft") or {}, SILENT_HEARTBEATS * context.settings.peer_heartbeat_ms)
    now = monotonic()
    views = [NodeView(context.settings.node_id, "", own)]
    views += [
        NodeView(
            node.shown_name,
            node.address,
            node.status,
            str(node.error) if node.error else None,
            node.error.status if node.error else None,
            *contact_of(peers.get(node.name or "", {}), _ms(node.failing_since_s, now)),
        )
        for node in others.nodes
    ]
    leader, term = leader_of(views)
    rows = [_row(view, 0.0) for view in views[:1]]
    rows += [
        _row(view, _age_ms(node, now)) | {"peer": peers.get(node.name or ""), "failingMs": _ms(node.failing_since_s, now)}
        for view, node in zip(views[1:], others.nodes, strict=True)
    ]
    return json_response(
        {
            "asked": context.settings.node_id,
            "timeMs": int(time() * 1000),
            "mode": context.settings.mode,
            "leader": leader,
            "term": term,
            "digestsEqual": digests_equal(views),
            "nodes": sorted(rows, key=lambda row: str(row["nodeId"])),
            "may": _may(request),
        }
    )


def _row(view: NodeView, age_ms: int | float | None) -> dict[str, Any]:
    status = view.status or {}
    replication = status.get("replication")
    standing = None if replication is None else {key: replication.get(key) for key in _STANDING_KEYS}
    return {
        "nodeId": view.name,
        "address": view.address,
        "answers": view.error is None and view.status is not None,
        "ageMs": age_ms,
        "status": {key: status.get(key) for key in _STATUS_KEYS} if status else None,
        "replication": standing,
        "findings": [finding._asdict() for finding in findings(view)],
    }


def _age_ms(node: OtherNode, now: float) -> int | None:
    return _ms(node.answered_s, now)


def _ms(at_s: float | None, now: float) -> int | None:
    return None if at_s is None else int((now - at_s) * 1000)


def _may(request: web.Request) -> dict[str, str | None]:
    """Why this caller may not change, operate or read secrets at this node; None: it may."""
    access = request.app[ACCESS]
    return {
        "change": access.why_not(request, OPERATORS, access.check_change),
        "operate": access.why_not(request, ADMINS, access.check_change),
        "secrets": access.why_not(request, READERS, access.check_secret_view),
        "backup": access.why_not(request, ADMINS, access.check_secret_view),
    }


PASSED_ON = (400, 412, 413)
"""Statuses that say that a request is wrong."""


async def other_view(request: web.Request) -> web.Response:
    """``GET /v1/nodes/{node}/{view}``: a view of another node, with the query string passed on."""
    view, name = request.match_info["view"], request.match_info["node"]
    node = request.app[OTHER_NODES].named(name)
    if view not in VIEWS or node is None:
        remedy = f"GET /v1/cluster names the nodes; views: {', '.join(VIEWS)}"
        return json_error(404, f"there is no view {view} of a node {name}", remedy)
    if "true" in request.query.getall("kv", ()):  # the other node cannot check it: it sees the address of this node
        access = request.app[ACCESS]
        access.check(request, READERS, access.check_secret_view)
    raw = request.rel_url.raw_query_string
    query = f"?{raw}" if raw else ""
    try:
        return json_response(await request.app[OTHER_NODES].ask(node, f"/v1/{view}{query}", request.headers.get("Authorization")))
    except NodeAnswerError as error:
        if error.status is not None and error.status in PASSED_ON:
            return json_error(error.status, f"{node.shown_name}: {error}", "correct the request")
        return json_error(
            502, f"{node.shown_name} does not answer at {node.address}: {error}", "GET /v1/cluster says what is wrong"
        )


async def compare(request: web.Request) -> web.Response:
    """``GET /v1/differences``: brokers, topics and KV entries in which the nodes that answer differ, and since when."""
    context, others, access = request.app[CONTEXT], request.app[OTHER_NODES], request.app[ACCESS]
    authorization = request.headers.get("Authorization")
    await others.look(authorization)
    refused = access.why_not(request, READERS, access.check_secret_view)
    own = await contents_of(request, context.service.state, with_kv=refused is None)
    by_node = {str(own["nodeId"]): own}
    missing, without_kv = [], [] if refused is None else [{"node": context.settings.node_id, "why": refused}]
    answers = await asyncio.gather(*(_contents_of(others, node, authorization, refused is None) for node in others.nodes))
    for node, answer in zip(others.nodes, answers, strict=True):
        if isinstance(answer, NodeAnswerError):
            missing.append({"node": node.shown_name, "why": str(answer)})
            continue
        by_node[node.shown_name] = answer
        if refused is None and "kv" not in answer:
            why = str(answer.get(NO_KV, "it runs an older version, which does not report its KV config"))
            without_kv.append({"node": node.shown_name, "why": why})
    found = await _in_turns(differences_steps(dict(sorted(by_node.items())), request.app[COMPARISON], int(time() * 1000)))
    return json_response({**found, "notCompared": missing, "kvNotCompared": without_kv})


async def _in_turns(steps: Steps[T]) -> T:
    """Do the steps, each in a turn of the event loop."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await asyncio.sleep(0)


async def _contents_of(
    others: OtherNodes, node: OtherNode, authorization: str | None, with_kv: bool
) -> dict[str, Any] | NodeAnswerError:
    """The contents of another node. They are requested again if its state has changed since the last request. If the node refuses
    to show its KV config to this node, they are without it, and ``NO_KV`` has the reason."""
    try:
        if node.error is not None or node.status is None:
            raise node.error or NodeAnswerError("no answer yet")
        of = (node.status["pid"], node.status["revision"])
        if node.contents is None or node.contents_of != of or (with_kv and "kv" not in node.contents):
            node.contents = await _asked_contents(others, node, authorization, with_kv)
            node.contents_of = of
        return node.contents if with_kv else {name: each for name, each in node.contents.items() if name not in KV_NAMES}
    except NodeAnswerError as error:
        node.contents = None
        return error


async def _asked_contents(others: OtherNodes, node: OtherNode, authorization: str | None, with_kv: bool) -> dict[str, Any]:
    path, refused = "/v1/contents?readConsistency=stale", {}
    if with_kv:
        try:
            return await others.ask(node, f"{path}&kv=true", authorization)
        except NodeAnswerError as error:
            if error.status not in (401, 403):
                raise
            refused = {NO_KV: str(error)}
    return await others.ask(node, path, authorization) | refused
