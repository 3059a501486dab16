"""Warms up foreign name servers before a run. Otherwise a just-in-time compiler would look like a slow node.

Each node gets the most frequent requests of a run. Afterwards only an empty KV namespace is left.
"""

import asyncio
from collections.abc import Sequence

from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request, unregister_request
from replicated_namesrv.client.queries import (
    cluster_info_request,
    delete_kv_request,
    get_kv_request,
    list_kv_request,
    put_kv_request,
    route_request,
    topics_request,
)
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.client.topics import BrokerTopics, TopicConfig, TopicTable
from replicated_namesrv.model import DataVersion

ROUNDS = 300
"""Number of rounds. The JVM's first compiler, the only one in use, compiles a method after 200 calls
(``Tier3InvocationThreshold``)."""
TIMEOUT_MS = 10_000
NAMESPACE, KEY, TOPIC = "warm-up", "key", "warm-up-topic"


async def warm_up(addresses: Sequence[str], version: BrokerVersion) -> None:
    """Warm up the nodes at these addresses, all at the same time. Raises NamesrvError if a node does not answer."""
    client = RemotingClient()
    try:
        await asyncio.gather(*(_warm_up(client, address, version) for address in addresses))
    finally:
        await client.close()


async def _warm_up(client: RemotingClient, address: str, version: BrokerVersion) -> None:
    for number in range(1, ROUNDS + 1):
        registration = _registration(version, number)
        for request in (
            registration,
            put_kv_request(NAMESPACE, KEY, str(number)),
            get_kv_request(NAMESPACE, KEY),
            list_kv_request(NAMESPACE),
            route_request(TOPIC),
            cluster_info_request(),
            topics_request(),
            unregister_request(_BROKER, version),
        ):
            await client.request(address, request, TIMEOUT_MS)
    await client.request(address, delete_kv_request(NAMESPACE, KEY), TIMEOUT_MS)


_BROKER = BrokerIdentity("warm-up", "warm-up", 0, "127.0.1.1:10900", "127.0.1.1:10901")


def _registration(version: BrokerVersion, number: int) -> RemotingCommand:
    topics = BrokerTopics(TopicTable(()), TopicTable([TopicConfig(TOPIC, number, number), TopicConfig(f"{TOPIC}-2", 1, 1)]))
    body = topics.encode(version, DataVersion(number, 0, number), number, compressed=False)
    return register_request(
        _BROKER,
        version,
        body,
        compressed=False,
        oneway=False,
        enable_acting_master=False,
        heartbeat_timeout_ms=None,
        zone_name=None,
    )
