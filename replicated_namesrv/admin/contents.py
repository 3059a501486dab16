"""``GET /v1/contents``: brokers, topics and KV config in a form that can be compared between nodes (``differences_steps``).

The compared values contain no epochs or times of this node, so nodes that received the same registrations have equal values.
The times of registrations, removals and KV changes are separate. The KV config is included on request only (``?kv=true``),
because it may hold secrets: names of keys, and checksums from which a short value can be guessed.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge, nsmallest
from itertools import chain, islice
from typing import Any, NamedTuple
from zlib import crc32

from aiohttp import web

from replicated_namesrv.access.roles import READERS
from replicated_namesrv.admin.access import ACCESS
from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.json_views import KV_ENTRIES_PER_TURN, state_for
from replicated_namesrv.admin.paging import KEYS_PER_TURN, build_rows
from replicated_namesrv.admin.responses import json_response
from replicated_namesrv.admin.time_line import TIMELINE, TimeLine
from replicated_namesrv.routes.broker_group import Registration
from replicated_namesrv.routes.kv_index import entry_of
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.steps import Steps

TOPICS_MAX = 50_000
"""Maximum number of topics that are compared: the first ones in the order of their names."""
KV_MAX = 50_000
"""Maximum number of KV entries that are compared: the first ones in the order of their names."""
KV_NAMES = ("kv", "kvLeftOut", "kvChangedMs", "kvSinceMs")
"""The names of the parts about the KV config."""
GAP_MAX_MS = 15_000
"""If more time passes between two comparisons, a new difference may be older than the second. Open pages compare every 5 s."""
ROWS_MAX = 200
"""Maximum number of differing brokers, of differing topics, and of differing KV entries in the answer."""


async def contents(request: web.Request) -> web.Response:
    """``GET /v1/contents``: brokers with their data version, topics with a checksum of their queues, and when brokers were
    removed. With ``?kv=true`` also the KV entries with a checksum of their values, and when they were changed."""
    with_kv = request.query.get("kv") == "true"
    if with_kv:
        access = request.app[ACCESS]
        access.check(request, READERS, access.check_secret_view)
    state, freshness = await state_for(request)
    return json_response(await contents_of(request, state, with_kv), headers=freshness)


async def contents_of(request: web.Request, state: RouteInfoManager, with_kv: bool) -> dict[str, Any]:
    """The contents of ``state``. Building them yields to other tasks."""
    context, line = request.app[CONTEXT], request.app[TIMELINE]
    line.catch_up()
    revision = state.revision

    def version(found: Registration) -> tuple[str, list[object]]:
        key = f"{found.cluster_name}|{found.broker_name}|{found.broker_id}|{found.broker_addr}"
        return key, [f"{found.data_version.counter}/{found.data_version.timestamp}", found.since_ms]

    registrations = state.registrations()
    names = list(state.topic_revisions)  # like the registrations, in the turn of this revision
    first = islice(await _in_order(names), TOPICS_MAX)

    def checksum(topic: str) -> tuple[str, int] | None:
        queues = state.topic_queues(topic)
        if queues is None:
            return None
        shown = sorted(
            (name, data.perm, data.read_queue_nums, data.write_queue_nums, data.topic_sys_flag) for name, data in queues.items()
        )
        return topic, crc32(repr(shown).encode("utf-8", "surrogatepass"))

    brokers = dict(await build_rows(registrations, version))
    topics = dict(await build_rows(first, checksum))
    return {
        "nodeId": context.settings.node_id,
        "revision": revision,
        "brokers": brokers,
        "topics": topics,
        "topicsLeftOut": max(0, len(names) - TOPICS_MAX),
        "removedMs": {f"{cluster}|{address}": time_ms for (cluster, address), time_ms in line.removed_ms.items()},
        **(await _kv_of(state, line) if with_kv else {}),
    }


async def _kv_of(state: RouteInfoManager, line: TimeLine) -> dict[str, Any]:
    """The KV entries by ``kv_index.name_of``."""
    while not state.advance_kv_index(KV_ENTRIES_PER_TURN):  # noqa: ASYNC110 - yields to other tasks, waits for no event
        await asyncio.sleep(0)
    names, count = state.kv_index.page("", KV_MAX), state.kv_index.count()

    def checksum(name: str) -> tuple[str, int] | None:
        value = state.kv_get(*entry_of(name))
        return None if value is None else (name, crc32(value.encode("utf-8", "surrogatepass")))

    entries = dict(await build_rows(names, checksum))
    left_out = max(0, count - KV_MAX)
    return {"kv": entries, "kvLeftOut": left_out, "kvChangedMs": line.kv_changed_ms, "kvSinceMs": line.kv_since_ms}


async def _in_order(names: Sequence[str]) -> Iterator[str]:
    """The names in order. They are sorted in parts, because sorting 300,000 names at once takes some 0.2 s."""
    parts = []
    for start in range(0, len(names), KEYS_PER_TURN):
        parts.append(sorted(names[start : start + KEYS_PER_TURN]))
        await asyncio.sleep(0)
    return merge(*parts)


class FirstSeen(NamedTuple):
    """When a difference was first seen."""

    time_ms: int
    or_earlier: bool
    """Whether the difference may be older: the previous comparison was too long ago, or compared other nodes."""


@dataclass
class ContentComparison:
    """The comparison before the present one."""

    nodes: Sequence[str] = ()
    time_ms: int = 0
    first_seen: dict[str, FirstSeen] = field(default_factory=dict)
    """When each difference was first seen."""


def differences_steps(by_node: Mapping[str, Mapping[str, Any]], before: ContentComparison, now_ms: int) -> Steps[dict[str, Any]]:
    """Brokers, topics and KV entries in which the contents of nodes differ, and since when. The last step updates ``before``.

    difference in                     began
    a broker that one node removed    when this node removed it
    a broker that one node never had  when the other nodes registered it
    a KV entry, seen for the first    when the entry was last changed on any node, if all nodes know the changes since then
      time or after a pause
    other                             when it was first seen, which ``before`` knows
    """
    nodes, earlier = list(by_node), before.first_seen
    versions = []
    for node in nodes:
        versions.append({key: value[0] for key, value in by_node[node]["brokers"].items()})
        yield
    topics_of = [by_node[node]["topics"] for node in nodes]
    with_kv = [node for node in nodes if "kv" in by_node[node]]
    kv_of = [by_node[node]["kv"] for node in with_kv]
    brokers = yield from _differing(versions)
    topics = yield from _differing(topics_of)
    kv = yield from _differing(kv_of)
    is_new = nodes != before.nodes or now_ms - before.time_ms > GAP_MAX_MS
    found = FirstSeen(now_ms, is_new)
    first_seen: dict[str, FirstSeen] = {}
    for kind, keys in (("broker", brokers), ("topic", topics)):
        for part in _parts(keys):
            names = [f"{kind} {key}" for key in part]
            first_seen.update(zip(names, [earlier.get(name, found) for name in names], strict=True))
            yield
    for part in _parts(kv, KEYS_PER_TURN // 5):
        for key in part:
            changed = _kv_changed(key, [by_node[node] for node in with_kv])
            kept = earlier.get(f"kv {key}")
            first_seen[f"kv {key}"] = kept if kept and not (is_new and changed) else changed or found
        yield

    def since(key: str, known_ms: int | None = None) -> dict[str, int | bool]:
        time_ms, or_earlier = (known_ms, False) if known_ms else first_seen[key]
        return {"sinceMs": time_ms, "orEarlier": or_earlier}

    def kv_row(key: str, values: list[Any]) -> dict[str, Any]:
        namespace, name = entry_of(key)
        return {"namespace": namespace, "key": name, "values": values, **since(f"kv {key}")}

    broker_rows = yield from _first_rows(brokers, versions)
    topic_rows = yield from _first_rows(topics, topics_of)
    kv_rows = yield from _first_rows(kv, kv_of)
    before.nodes, before.time_ms, before.first_seen = nodes, now_ms, first_seen
    return {
        "nodes": nodes,
        "brokers": [
            {"broker": key, "values": values, **since(f"broker {key}", _since(key, by_node))} for key, values in broker_rows
        ],
        "topics": [{"topic": key, "values": values, **since(f"topic {key}")} for key, values in topic_rows],
        "kv": [kv_row(key, values) for key, values in kv_rows],
        "kvNodes": with_kv,
        "brokersDiffer": len(brokers),
        "topicsDiffer": len(topics),
        "kvDiffer": len(kv),
        "topicsLeftOut": max((part.get("topicsLeftOut", 0) for part in by_node.values()), default=0),
        "kvLeftOut": max((part.get("kvLeftOut", 0) for part in by_node.values()), default=0),
    }


def _kv_changed(key: str, parts: Sequence[Mapping[str, Any]]) -> FirstSeen | None:
    """The last change of a KV entry on any node; None if a node does not know all changes since then."""
    last_ms = max((part["kvChangedMs"].get(key, 0) for part in parts), default=0)
    return FirstSeen(last_ms, False) if last_ms >= max(part["kvSinceMs"] for part in parts) else None


def _parts(keys: Iterable[str], size: int | None = None) -> Iterator[list[str]]:
    """The keys in parts of this size. None: KEYS_PER_TURN."""
    rest = iter(keys)
    while part := list(islice(rest, size or KEYS_PER_TURN)):
        yield part


def _differing(tables: Sequence[Mapping[str, Any]]) -> Steps[list[str]]:
    """The keys whose values are not the same in all tables, in no order."""
    found = list[str]()
    for table in tables[1:]:
        if table != tables[0]:
            break
        yield
    else:  # the usual case, which takes a few milliseconds for each table
        return found
    for number, table in enumerate(tables):
        earlier, others = tables[:number], tables[number + 1 :]
        for part in _parts(table):
            if earlier:  # keys that the first table does not have
                found += [key for key in part if not any(key in other for other in earlier)]
            else:
                found += [key for key in part if any(other.get(key) != table[key] for other in others)]
            yield
    return found


def _first_rows(keys: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> Steps[list[tuple[str, list[Any]]]]:
    """The first keys in order, at most ROWS_MAX, each with its value in each table or None."""
    first = list[str]()
    for part in _parts(keys):
        first = nsmallest(ROWS_MAX, chain(first, part))
        yield
    return [(key, [table.get(key) for table in tables]) for key in first]


def _since(key: str, by_node: Mapping[str, Mapping[str, Any]]) -> int | None:
    cluster, _, rest = key.partition("|")
    address = rest.rpartition("|")[2]
    times = [part["removedMs"].get(f"{cluster}|{address}") for part in by_node.values() if key not in part["brokers"]]
    removed = [time_ms for time_ms in times if time_ms]
    if removed:
        return int(max(removed))
    if not times:
        return None  # all nodes have the broker, with different contents
    return int(max(part["brokers"][key][1] for part in by_node.values() if key in part["brokers"]))
