"""``GET /v1/contents``: brokers and topics in a form that can be compared between nodes. ``differences`` compares it.

It has no times or epochs, so nodes that received the same registrations have equal contents.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

from aiohttp import web

from replicated_namesrv.admin.context import CONTEXT
from replicated_namesrv.admin.json_views import state_for
from replicated_namesrv.admin.paging import KEYS_PER_TURN, build_rows
from replicated_namesrv.admin.responses import json_response
from replicated_namesrv.admin.time_line import TIMELINE
from replicated_namesrv.routes.state import RouteInfoManager

TOPICS_MAX = 50_000
"""Maximum number of topics that are compared: the first ones in the order of their names."""
GAP_MAX_MS = 15_000
"""Maximum time between two comparisons from which the beginning of a difference is known. Open pages compare every 5 s."""
ROWS_MAX = 200
"""Maximum number of differing brokers, and of differing topics, in the answer."""


async def contents(request: web.Request) -> web.Response:
    """``GET /v1/contents``: brokers with their data version, topics with a checksum of their queues, and when brokers were
    removed."""
    state, freshness = await state_for(request)
    return json_response(await contents_of(request, state), headers=freshness)


async def contents_of(request: web.Request, state: RouteInfoManager) -> dict[str, Any]:
    """The contents of ``state``. Building them yields to other tasks."""
    context, line = request.app[CONTEXT], request.app[TIMELINE]
    line.catch_up()
    revision = state.revision
    brokers = {
        f"{found.cluster_name}|{found.broker_name}|{found.broker_id}|{found.broker_addr}": [
            f"{found.data_version.counter}/{found.data_version.timestamp}",
            found.since_ms,
        ]
        for found in state.registrations()
    }
    names = list(state.topic_revisions)
    first = islice(await _in_order(names), TOPICS_MAX)

    def checksum(topic: str) -> tuple[str, int] | None:
        queues = state.topic_queues(topic)
        if queues is None:
            return None
        shown = sorted(
            (name, data.perm, data.read_queue_nums, data.write_queue_nums, data.topic_sys_flag) for name, data in queues.items()
        )
        return topic, crc32(repr(shown).encode("utf-8", "surrogatepass"))

    topics = dict(await build_rows(first, checksum))
    return {
        "nodeId": context.settings.node_id,
        "revision": revision,
        "brokers": brokers,
        "topics": topics,
        "topicsLeftOut": max(0, len(names) - TOPICS_MAX),
        "removedMs": {f"{cluster}|{address}": time_ms for (cluster, address), time_ms in line.removed_ms.items()},
    }


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


def differences(by_node: Mapping[str, Mapping[str, Any]], before: ContentComparison, now_ms: int) -> dict[str, Any]:
    """Brokers and topics in which the contents of nodes differ, and since when.

    If a node lacks a broker that it had, the difference began when this node removed the broker. If the node never had the
    broker, the difference began when the other nodes registered it. For other differences, ``before`` has the time at which they
    were first seen. This function updates ``before``.
    """
    nodes = list(by_node)
    brokers = _rows([{key: value[0] for key, value in by_node[node]["brokers"].items()} for node in nodes])
    topics = _rows([by_node[node]["topics"] for node in nodes])
    seen = {f"broker {key}" for key, _ in brokers} | {f"topic {key}" for key, _ in topics}
    found = FirstSeen(now_ms, nodes != before.nodes or now_ms - before.time_ms > GAP_MAX_MS)
    first_seen = {key: before.first_seen.get(key, found) for key in seen}
    before.nodes, before.time_ms, before.first_seen = nodes, now_ms, first_seen

    def since(key: str, known_ms: int | None = None) -> dict[str, int | bool]:
        time_ms, or_earlier = (known_ms, False) if known_ms else first_seen[key]
        return {"sinceMs": time_ms, "orEarlier": or_earlier}

    return {
        "nodes": nodes,
        "brokers": [
            {"broker": key, "values": values, **since(f"broker {key}", _since(key, by_node))}
            for key, values in brokers[:ROWS_MAX]
        ],
        "topics": [{"topic": key, "values": values, **since(f"topic {key}")} for key, values in topics[:ROWS_MAX]],
        "brokersDiffer": len(brokers),
        "topicsDiffer": len(topics),
        "topicsLeftOut": max((part.get("topicsLeftOut", 0) for part in by_node.values()), default=0),
    }


def _rows(parts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """For each key whose values are not the same on all nodes: the key, and its value on each node or None."""
    if all(part == parts[0] for part in parts[1:]):
        return []
    found = []
    for key in sorted(set().union(*parts)):
        values = [part.get(key) for part in parts]
        if any(value != values[0] for value in values[1:]):
            found.append((key, values))
    return found


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
