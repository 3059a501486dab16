"""Two ways to look at a node's registrations and KV entries: at its admin port, or by remoting as any client can.

Remoting works with every name server. A look then consists of several requests, so it can mix two states; the next look corrects
this. A look never uses ``QUERY_DATA_VERSION`` (322), because RocketMQ 5 takes this request as a renewal by the broker.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import route_members
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.client.queries import (
    cluster_info_request,
    list_kv_request,
    read_cluster_info,
    read_kv_table,
    read_route,
    route_request,
)
from replicated_namesrv.client.remoting import RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import ClusterInfo

TIMEOUT_S = 1.0
PAGE_ROWS = 1_000
VALUE_CHARACTERS = 200
NO_TOPIC = "0"
"""Version of a broker if no topic that was looked up shows one."""


class NodeTable(NamedTuple):
    """A node's answer."""

    members: list[Member]
    revision: int | None
    """The revision of the answer. None: the node does not report it."""


class NodeLooks(Protocol):
    """A way to look at nodes."""

    name: str
    """The name of this way in the manifest."""

    async def look(self, node: str, key: str) -> NodeTable | None:
        """The table ``key``, brokers or kv, of a node. None: no answer in time."""


class AdminLooks:
    """``/v1/brokers`` and ``/v1/kv``. The version of a broker is the time of its data version, which is the same on every
    node."""

    name = "admin"

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster

    async def look(self, node: str, key: str) -> NodeTable | None:
        answer = await self._cluster.get_json(node, f"/v1/{key}?limit={PAGE_ROWS}", TIMEOUT_S)
        if answer is None:
            return None
        return NodeTable(broker_members(answer) if key == "brokers" else kv_members(answer), answer["revision"])


class RemotingLooks:
    """GET_BROKER_CLUSTER_INFO (106) with the route of every topic (105), and GET_KVLIST_BY_NAMESPACE (219). The version of a
    broker is the highest number of queues in its topics, which identifies its registration."""

    name = "remoting"

    def __init__(self, cluster: ProcessCluster, topics: Sequence[str], namespace: str) -> None:
        self._cluster, self._topics, self._namespace = cluster, list(topics), namespace

    async def look(self, node: str, key: str) -> NodeTable | None:
        requests = [list_kv_request(self._namespace)]
        if key == "brokers":
            requests = [cluster_info_request(), *(route_request(topic) for topic in self._topics)]
        answers = await asyncio.gather(*(self._cluster.ask(node, request, TIMEOUT_S) for request in requests))
        whole = [answer for answer in answers if answer is not None]
        if len(whole) < len(requests):
            return None
        try:
            return NodeTable(self._kv(whole[0]) if key == "kv" else self._brokers(*whole), None)
        except NamesrvError:  # the node refused to answer
            return None

    @staticmethod
    def _kv(answer: RemotingCommand) -> list[Member]:
        return sorted(Member(key, value) for key, value in (read_kv_table(answer) or {}).items())

    @staticmethod
    def _brokers(info: RemotingCommand, *routes: RemotingCommand) -> list[Member]:
        shown = [member for route in routes for member in route_members(read_route(route))]
        return registered(read_cluster_info(info), shown)


def registered(info: ClusterInfo, shown: Sequence[Member]) -> list[Member]:
    """The brokers of ``info`` by name. ``shown``: the brokers of all routes, with the queues of one topic each."""
    newest: dict[str, int] = {}
    for member in shown:
        newest[member.name] = max(newest.get(member.name, 0), int(member.version))
    names = [f"{group.broker_name}/{broker_id}" for group in info.broker_addr_table for broker_id, _ in group.broker_addrs]
    return sorted(Member(name, str(newest.get(name, NO_TOPIC))) for name in names)


def broker_members(answer: dict[str, Any]) -> list[Member]:
    """Registrations of ``/v1/brokers`` by name, with the time of the data version."""
    rows = answer["brokers"]
    return sorted(Member(f"{row['brokerName']}/{row['brokerId']}", str(row["dataVersion"]["timestamp"])) for row in rows)


def kv_members(answer: dict[str, Any]) -> list[Member]:
    """Entries of ``/v1/kv`` by key. Long values, which no client of the workload writes, are cut."""
    return sorted(Member(entry["key"], _short(entry["value"])) for entry in answer["entries"])


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]} … ({len(value)} characters)"
