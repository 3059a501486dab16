"""This node's state as JSON. Field names are RocketMQ's where RocketMQ has such a field.

A request first passes the service's read barrier, so its answer is as fresh as one over remoting. Exceptions: ``/v1/status`` and
``/v1/members`` answer at once. A request may choose its own consistency with ``readConsistency`` and ``maxStalenessMs``, as query
parameters or headers. The headers of the answer then give the level and the age, under the same names as over remoting.
"""

import asyncio
import os
from asyncio import Future
from collections.abc import Mapping
from time import monotonic
from typing import Any

from aiohttp import web

from replicated_namesrv import __version__
from replicated_namesrv.address_list import WILDCARD_HOSTS, advertised_host, is_numeric
from replicated_namesrv.admin.context import CONTEXT, AdminContext
from replicated_namesrv.admin.health import LAYER_TIMEOUT_S, as_json, readiness
from replicated_namesrv.admin.other_nodes import OTHER_NODES
from replicated_namesrv.admin.paging import ANSWER_BYTES, Page, PageRequest, build_rows, cut, is_number, page_request, sized_rows
from replicated_namesrv.admin.responses import json_error, json_response
from replicated_namesrv.errors import BodyError
from replicated_namesrv.listening import is_loopback
from replicated_namesrv.model import MASTER_ID, BrokerData, TopicRouteData
from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.kv_index import entry_of
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.server.query_handlers import freshness_fields, wanted_consistency
from replicated_namesrv.service import Freshness, ReadLevel
from replicated_namesrv.settings import ROWS, Settings

TOPIC_SORTS = ("brokerNameCount", "readQueueNums", "writeQueueNums", "revision")
BROKER_SORTS = ("brokerId", "topicCount", "registeredSinceMs", "heartbeatAgeMs", "epoch")
NO_VALUE = 1e15
"""Value for sorting that is greater than every real value."""
KV_ENTRIES_PER_TURN = 1_000
"""Number of KV entries that are searched in one turn of the loop: about a millisecond of work."""
ROUTE_COST_MAX = ANSWER_BYTES
"""Maximum size of a route that is shown. A larger one would be encoded in a long turn of the event loop."""
SUSPECTED_SHOWN_MAX = 100
"""Maximum number of suspected brokers in the status. ``/v1/brokers`` shows all of them."""
DIGEST_TOPICS_PER_TURN = 5_000
"""Number of topics that are hashed in one turn of the loop: a few milliseconds, unless one broker group has more topics."""
_SEPARATOR = "|"
CONSISTENCY_FIELDS = ("readConsistency", "maxStalenessMs")


async def fresh_state(context: AdminContext) -> RouteInfoManager:
    """Wait for the read barrier and return the state, to be read before the next await. Raises UnavailableError."""
    await passed(context, None, None)
    return context.service.state


async def passed(context: AdminContext, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness:
    """Wait for the read barrier."""
    freshness = context.service.barrier(level, max_staleness_ms)
    return await asyncio.shield(freshness) if isinstance(freshness, Future) else freshness


async def state_for(request: web.Request) -> tuple[RouteInfoManager, dict[str, str]]:
    """The state, as fresh as ``request`` asks for; read it before the next await. The second value has the headers that describe
    the freshness; it is empty if the request did not ask for a level.

    Raises UnavailableError, StaleReadError, BadConsistencyError.
    """
    context = request.app[CONTEXT]
    given = ((name, request.query.get(name, request.headers.get(name))) for name in CONSISTENCY_FIELDS)
    level, bound = wanted_consistency({name: text for name, text in given if text is not None})
    freshness = await passed(context, level, bound)
    state = context.service.state
    asked = level is not None or bound is not None
    return state, freshness_fields(freshness, state.revision) if asked else {}


def event_id(revision: int, history_id: str) -> str:
    """The id of a change in ``/v1/watch``. ``history_id``: ``WatchedService.history_id``."""
    return f"{revision}@{history_id}" if history_id else str(revision)


def revision_fields(request: web.Request, revision: int) -> dict[str, Any]:
    """The revision of an answer, and the value of ``from`` with which a watcher gets all later changes."""
    return {"revision": revision, "watchFrom": event_id(revision, request.app[CONTEXT].service.history_id)}


def host_for_brokers(settings: Settings) -> str:
    """The host under which brokers and clients reach this node. If the node listens on all addresses, it is the host name in its
    entry of ``peers``: the address of a container changes at a restart, its name does not. An IP address there may belong to a
    network that only the nodes use."""
    listens_at = settings.listen_address[0]
    if listens_at in WILDCARD_HOSTS:
        peers = dict(part.strip().partition("=")[::2] for part in settings.peers.split(","))
        host = peers.get(settings.node_id, "").rpartition(":")[0].strip("[] ")
        if host and not is_numeric(host) and not is_loopback(host):
            return host
    return advertised_host(listens_at)


def advertised_address(context: AdminContext) -> str:
    """host:port under which brokers and clients reach this node's remoting server."""
    port = context.remoting.port
    host = host_for_brokers(context.settings)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def admin_address(context: AdminContext, bound: tuple[str, int] | None) -> str:
    """host:port of the admin port for other machines, which is ``bound``; None: there is none. Empty if only this machine reaches
    it, or if its address is not known."""
    if bound is None:
        return ""
    listens_at = context.settings.listen_address[0]
    wildcard = bound[0] in WILDCARD_HOSTS  # it includes the brokers' address
    host = host_for_brokers(context.settings) if wildcard else advertised_host(bound[0])
    if is_loopback(host) and not is_loopback(listens_at):
        return ""
    return f"[{host}]:{bound[1]}" if ":" in host else f"{host}:{bound[1]}"


async def status(request: web.Request) -> web.Response:
    """``GET /v1/status``: a summary of the node. The answer does not wait for a read barrier, so it also comes while the node
    cannot serve.
    """
    wait = request.query.get("waitMs", str(int(LAYER_TIMEOUT_S * 1000)))
    if not is_number(wait, 1, int(LAYER_TIMEOUT_S * 1000)):
        raise BodyError(f"waitMs={wait[:40]}: give 1 to {LAYER_TIMEOUT_S * 1000:g}, the time that a readiness check may take")
    fields = await status_fields(request.app[CONTEXT], int(wait) / 1000)
    return json_response(fields | {"otherAdminAddresses": request.app[OTHER_NODES].trusted_addresses()})


async def status_fields(context: AdminContext, layer_timeout_s: float) -> dict[str, Any]:
    """The fields of ``/v1/status``. A layer whose check takes longer than ``layer_timeout_s`` has failed."""
    settings, state, metrics = context.settings, context.service.state, context.remoting.metrics
    registrations = state.registrations()
    health = as_json(await readiness(context.layers, layer_timeout_s))
    addresses = settings.name_server_addresses or advertised_address(context)
    return {
        "nodeId": settings.node_id,
        "mode": context.settings.mode,
        "version": __version__,
        "pid": os.getpid(),
        "uptimeSeconds": round(monotonic() - context.started_monotonic_s, 3),
        "access": _access(context),
        "ready": health["ready"],
        "failedLayer": health["failedLayer"],
        "layers": health["layers"],
        "drained": context.node.is_drained,
        "listen": f"{settings.listen_address[0]}:{context.remoting.port}" if context.remoting.is_listening else None,
        "advertisedAddress": advertised_address(context),
        "nameServerAddresses": [address.strip() for address in addresses.split(";") if address.strip()],
        "dataDir": str(settings.data_path),
        "revision": state.revision,
        "counts": {
            "clusters": len({registration.cluster_name for registration in registrations}),
            "brokerNames": len({registration.broker_name for registration in registrations}),
            "brokers": len(registrations),
            "topics": len(state.topic_revisions),
            "kvEntries": sum(map(len, state.kv_table().values())),
        },
        "replication": context.service.replication_status(),
        "connections": metrics.connections_open,
        "requests": sum(metrics.request_counts().values()),
        "suspectedBrokers": _suspected(context),
        "diskFreeBytes": context.service.disk_free_bytes,
        "diskWarning": context.service.disk_warning,
        "quotas": _quotas(context),
        "brokersExpired": context.service.expired_count,
        "brokersLost": context.service.lost_count,
        "loopLagRecentMaxMs": round(context.loop_lag.recent_max_s * 1000, 3),
    }


def _quotas(context: AdminContext) -> list[dict[str, Any]]:
    """The size of each part of the state in bytes, and the limit on it."""
    quotas = context.service.quotas
    used = quotas.used(context.service.state.sizes)
    return [{"name": name, "used": used[name], "limit": limit()} for name, limit in quotas.limits.items() if name in used]


def _access(context: AdminContext) -> dict[str, object]:
    """Facts about the access rules in force. Equal hashes on all nodes mean equal files."""
    access = context.access
    if access is None:
        return {"policy": context.settings.access_policy}
    return {
        "policy": access.policy,
        "file": access.path or None,
        "sha256": access.rules.digest or None,
        "problem": access.problem,
        "auditLog": None if access.audit is None else str(access.audit.path),
    }


def _suspected(context: AdminContext) -> list[dict[str, Any]]:
    """Suspected brokers; those that have been silent longest come first."""
    found = sorted(context.service.suspected_since().items(), key=lambda item: item[1])
    return [
        {"clusterName": cluster, "brokerAddr": address, "suspectedSinceMs": since_ms}
        for (cluster, address), since_ms in found[:SUSPECTED_SHOWN_MAX]
    ]


async def topics(request: web.Request) -> web.Response:
    """``GET /v1/topics``: one row per topic, by name, with the number of broker names that serve it and their total queues."""
    wanted = page_request(request, TOPIC_SORTS)
    state, freshness = await state_for(request)

    def row(topic: str) -> dict[str, Any] | None:
        by_name = state.topic_queues(topic)
        if by_name is None:
            return None
        queues = by_name.values()
        return {
            "topic": topic,
            "brokerNameCount": len(by_name),
            "readQueueNums": sum(queue_data.read_queue_nums for queue_data in queues),
            "writeQueueNums": sum(queue_data.write_queue_nums for queue_data in queues),
            "revision": state.topic_revisions[topic],
        }

    # the rows show this revision or a later one: building them yields to other tasks, which may change the state
    revision = state.revision
    page = await cut(list(state.topic_revisions), wanted, lambda topic: (row(topic) or {wanted.sort: 0})[wanted.sort])
    rows = await build_rows(page.keys, row)
    fields = {"topics": rows, "next": page.next, "total": page.total, **revision_fields(request, revision)}
    return json_response(fields, headers=freshness)


async def brokers(request: web.Request) -> web.Response:
    """``GET /v1/brokers``: registered brokers by cluster, name and id."""
    context = request.app[CONTEXT]
    wanted = page_request(request, BROKER_SORTS)
    state, freshness = await state_for(request)
    suspected = context.service.suspected_since()
    # the registrations are those of this revision: building the rows yields to other tasks, which may change the state
    revision, registrations = state.revision, state.registrations()
    by_key = dict(await build_rows(registrations, lambda registration: (_broker_key(registration), registration)))

    def rank(key: str) -> float:
        value = _broker_row(context, by_key[key], suspected)[wanted.sort]
        return NO_VALUE if value is None else float(value)

    page = await cut(list(by_key), wanted, rank)
    rows, following = await sized_rows(
        page, lambda key: _broker_row(context, by_key[key], suspected), lambda built: sum(map(len, built["filterServers"]))
    )
    fields = {"brokers": rows, "next": following, "total": page.total, **revision_fields(request, revision)}
    return json_response(fields, headers=freshness)


def _broker_key(registration: Registration) -> str:
    parts = (registration.cluster_name, registration.broker_name, f"{registration.broker_id:019d}", registration.broker_addr)
    return _SEPARATOR.join(parts)


def _broker_row(context: AdminContext, registration: Registration, suspected: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    age_ms = context.service.heartbeat_age_ms(registration.cluster_name, registration.broker_addr)
    version = registration.data_version
    return {
        "clusterName": registration.cluster_name,
        "brokerName": registration.broker_name,
        "brokerId": registration.broker_id,
        "brokerAddr": registration.broker_addr,
        "haServerAddr": registration.ha_server_addr,
        "topicCount": context.service.state.topic_count(registration.broker_name),
        "dataVersion": {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp},
        "epoch": registration.epoch,
        "registeredSinceMs": registration.since_ms,
        "heartbeatTimeoutMillis": registration.heartbeat_timeout_ms,
        "heartbeatAgeMs": None if age_ms is None else int(age_ms),
        "suspectedSinceMs": suspected.get((registration.cluster_name, registration.broker_addr)),
        "filterServers": registration.filter_servers,
    }


async def clusters(request: web.Request) -> web.Response:
    """``GET /v1/clusters``: one row per broker cluster."""
    state, freshness = await state_for(request)
    brokers: dict[str, int] = {}
    masters: dict[str, dict[str, bool]] = {}
    for found in state.registrations():
        brokers[found.cluster_name] = brokers.get(found.cluster_name, 0) + 1
        names = masters.setdefault(found.cluster_name, {})
        names[found.broker_name] = names.get(found.broker_name, False) or found.broker_id == MASTER_ID
    rows = [
        {
            "clusterName": name,
            "brokerNames": len(masters[name]),
            "brokers": brokers[name],
            "withoutMaster": sum(not has_master for has_master in masters[name].values()),
        }
        for name in sorted(brokers)
    ]
    return json_response({"clusters": rows, **revision_fields(request, state.revision)}, headers=freshness)


async def route(request: web.Request) -> web.Response:
    """``GET /v1/routes/{topic}``: the answer of ``GET_ROUTEINFO_BY_TOPIC`` (105) as strict JSON."""
    topic = request.match_info["topic"]
    state, freshness = await state_for(request)
    found = state.route(topic)
    if found is None:
        remedy = (
            "see /v1/topics, or create it (mqadmin updateTopic); independent nodes (mode=ap): first compare them (namesrv diff)"
        )
        return json_error(404, f"no broker serves topic '{topic}'", remedy, headers=freshness)
    if _cost(found) > ROUTE_COST_MAX:
        remedy = "use the RocketMQ port (namesrv route), or unregister brokers that are gone"
        return json_error(413, f"the route of topic '{topic}' is too large to be shown", remedy, headers=freshness)
    return json_response({"topic": topic, "revision": state.topic_revisions[topic], **_route_fields(found)}, headers=freshness)


def _cost(found: TopicRouteData) -> int:
    """The size of a route: its brokers and queues, at 30 bytes each, and its filter servers."""
    queues = sum(len(info.curr_id_map) for _, info in found.topic_queue_mapping_by_broker or ())
    servers = sum(30 + len(server) for _, some in found.filter_server_table for server in some)
    return 30 * (queues + sum(len(broker.broker_addrs) for broker in found.broker_datas)) + servers


def _route_fields(found: TopicRouteData) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "orderTopicConf": found.order_topic_conf,
        "brokerDatas": [_broker_data(broker) for broker in found.broker_datas],
        "queueDatas": [
            {
                "brokerName": broker_name,
                "perm": queue_data.perm,
                "readQueueNums": queue_data.read_queue_nums,
                "writeQueueNums": queue_data.write_queue_nums,
                "topicSysFlag": queue_data.topic_sys_flag,
            }
            for broker_name, queue_data in found.queue_datas
        ],
        "filterServerTable": dict(found.filter_server_table),
    }
    if found.topic_queue_mapping_by_broker is not None:
        fields["topicQueueMappingByBroker"] = {
            broker_name: {
                "bname": info.bname,
                "currIdMap": {str(global_id): local_id for global_id, local_id in info.curr_id_map},
                "dirty": info.dirty,
                "epoch": info.epoch,
                "scope": info.scope,
                "topic": info.topic,
                "totalQueues": info.total_queues,
            }
            for broker_name, info in found.topic_queue_mapping_by_broker
        }
    return fields


def _broker_data(broker: BrokerData) -> dict[str, Any]:
    return {
        "cluster": broker.cluster,
        "brokerName": broker.broker_name,
        "brokerAddrs": {str(broker_id): address for broker_id, address in broker.broker_addrs},
        "zoneName": broker.zone_name,
        "enableActingMaster": broker.enable_acting_master,
    }


async def kv(request: web.Request) -> web.Response:
    """``GET /v1/kv``: the KV config by namespace and key; ``?namespace=`` shows one."""
    wanted = page_request(request)
    state, freshness = await state_for(request)
    only = request.query.get("namespace")
    while not state.advance_kv_index(KV_ENTRIES_PER_TURN):  # noqa: ASYNC110 - yields to other tasks, waits for no event
        await asyncio.sleep(0)
    if wanted.search:
        page = await _search_kv(state, only, wanted)
    else:
        index = state.kv_index
        page = Page.of(index.page(wanted.after or "", wanted.limit + 1, only), wanted.limit, index.count(only))
    # in one turn of the loop, so that all values are those of one revision; building the rows yields to other tasks
    revision, values = state.revision, {name: _kv_value(state, name) for name in page.keys}

    def row(name: str) -> dict[str, Any] | None:
        namespace, key = entry_of(name)
        found = values[name]
        return None if found is None else {"namespace": namespace, "key": key, "value": found[0]}

    rows, following = await sized_rows(page, row, lambda built: len(built["value"] or ""))
    fields = {"entries": rows, "next": following, "total": page.total, **revision_fields(request, revision)}
    return json_response(fields, headers=freshness)


def _kv_value(state: RouteInfoManager, name: str) -> tuple[str | None] | None:
    """A tuple of an entry's value, which may be None. None: the entry does not exist."""
    namespace, key = entry_of(name)
    view = state.kv_view(namespace)
    return (view[key],) if view and key in view else None


async def kv_namespaces(request: web.Request) -> web.Response:
    """``GET /v1/kv-namespaces``: one row per namespace of the KV config, by name, with its number of entries."""
    wanted = page_request(request)
    state, freshness = await state_for(request)

    def row(namespace: str) -> dict[str, Any] | None:
        entries = state.kv_view(namespace)
        return None if entries is None else {"namespace": namespace, "entries": len(entries)}

    revision = state.revision
    page = await cut(list(state.kv_table()), wanted)
    rows = await build_rows(page.keys, row)
    fields = {"namespaces": rows, "next": page.next, "total": page.total, **revision_fields(request, revision)}
    return json_response(fields, headers=freshness)


async def _search_kv(state: RouteInfoManager, only: str | None, wanted: PageRequest) -> Page:
    """The page of entries whose names or values contain the search text. The entries are searched in parts."""
    found: list[str] = []
    total, after = 0, ""
    while True:
        while not state.advance_kv_index(KV_ENTRIES_PER_TURN):  # noqa: ASYNC110 - a snapshot may have replaced it
            await asyncio.sleep(0)
        names = state.kv_index.page(after, KV_ENTRIES_PER_TURN, only)
        if not names:
            return Page.of(found, wanted.limit, total)
        after = names[-1]
        matching = await build_rows(names, lambda name: name if _kv_matches(state, name, wanted.search) else None)
        total += len(matching)
        if len(found) <= wanted.limit:
            found += [name for name in matching if name > (wanted.after or "")][: wanted.limit + 1 - len(found)]
        await asyncio.sleep(0)


def _kv_matches(state: RouteInfoManager, name: str, search: str) -> bool:
    namespace, key = entry_of(name)
    value = (state.kv_view(namespace) or {}).get(key)
    return search in _SEPARATOR.join((namespace, key)).lower() or (value is not None and search in value.lower())


async def digest(request: web.Request) -> web.Response:
    """``GET /v1/digest``: digest of the state at its revision; nodes with equal states have equal digests."""
    context = request.app[CONTEXT]
    state, freshness = await state_for(request)
    while not state.advance_digest(DIGEST_TOPICS_PER_TURN):  # noqa: ASYNC110 - registrations continue in between
        await asyncio.sleep(0)
    return json_response(
        {"nodeId": context.settings.node_id, "revision": state.revision, "digest": state.digest().hex()}, headers=freshness
    )


async def config(request: web.Request) -> web.Response:
    """``GET /v1/config``: settings in force, as in ``GET_NAMESRV_CONFIG`` (319)."""
    _, freshness = await state_for(request)
    lines = request.app[CONTEXT].service.config_text().split("\n")
    return json_response(dict(line.split("=", 1) for line in lines if "=" in line), headers=freshness)


async def members(request: web.Request) -> web.Response:
    """``GET /v1/members``: the members of the cluster as this node knows them; only the leader knows the progress of all
    members.
    """
    context = request.app[CONTEXT]
    rows = context.service.members()
    replication = context.service.replication_status() or {}
    facts = {"nodeId": context.settings.node_id, "leader": replication.get("leader"), "term": replication.get("term", 0)}
    return json_response({**facts, "members": rows})


async def settings(request: web.Request) -> web.Response:
    """``GET /v1/settings``: settings in force with default and meaning; ``atRunTime``: whether they can be changed now."""
    _, freshness = await state_for(request)
    lines = request.app[CONTEXT].service.config_text().split("\n")
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    rows = [
        {
            "name": row.name,
            "value": values[row.name],
            "default": row.show(row.default),
            "group": row.group,
            "meaning": row.meaning,
            "atRunTime": row.live,
            "shared": row.replicated,
        }
        for row in ROWS.values()
        if row.name in values
    ]
    return json_response({"settings": rows}, headers=freshness)
