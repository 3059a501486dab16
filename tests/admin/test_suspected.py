"""Suspected brokers in the status, the list of brokers, the metrics and the watch of a node (mode=cp)."""

import time
from pathlib import Path
from typing import Any

from replicated_namesrv.client.broker_requests import BrokerIdentity
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.model import DataVersion
from replicated_namesrv.process import ServingNode
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.replication.route_machine import Suspect, encode_suspect
from tests.support.events import watching
from tests.support.nodes import http
from tests.support.operated import operated
from tests.support.replicated_traffic import registration

BROKER = BrokerIdentity("c", "a", 0, "10.0.0.1:10911", "10.0.0.1:10912")
KEY = (BROKER.cluster_name, BROKER.broker_addr)


async def record_silence(node: ServingNode) -> None:
    """Record a third of the broker's time-out in the log, as the leader does."""
    service = node.service
    assert isinstance(service, ReplicatedNode)
    held, term = service.state.registration(*KEY), service.led_term
    assert held is not None
    assert term is not None
    data = encode_suspect([Suspect(KEY, held.epoch, 1)], int(time.time() * 1000), term, service._machine.serial)
    outcome = await service.proposer.decide(data)
    assert outcome is not None
    assert outcome.ignored is None


async def shown(port: int) -> tuple[list[Any], Any, str]:
    """The suspected brokers in the status, the broker's time in the list of brokers, and the value of the metric."""
    status, (row,) = (await http(port, "/v1/status")).json, (await http(port, "/v1/brokers")).json["brokers"]
    metrics = (await http(port, "/metrics")).text.splitlines()
    (value,) = (line.split()[-1] for line in metrics if line.startswith("namesrv_brokers_suspected"))
    return status["suspectedBrokers"], row["suspectedSinceMs"], value


async def test_a_silent_broker_is_shown_until_it_makes_contact(tmp_path: Path) -> None:
    client, request = RemotingClient(), registration(BROKER, DataVersion(1, 0, 1), 3_600_000)
    async with operated(tmp_path, 1) as cluster:
        (port,), address = cluster.admin_ports, cluster.nodes[0].listen_address
        assert (await client.request(address, request)).code == 0
        assert await shown(port) == ([], None, "0.0")
        async with watching(port) as stream:
            began_ms = int(time.time() * 1000)
            await record_silence(cluster.nodes[0])
            broker = (await stream.until("broker-suspected")).data
            since_ms = broker["suspectedSinceMs"]
            assert began_ms <= since_ms <= int(time.time() * 1000)
            assert broker == {"clusterName": KEY[0], "brokerAddr": KEY[1], "suspectedSinceMs": since_ms}
            assert await shown(port) == ([broker], since_ms, "1.0")
            assert (await client.request(address, request)).code == 0
            assert (await stream.until("broker-cleared")).data == {**broker, "suspectedSinceMs": None}
            assert await shown(port) == ([], None, "0.0")
        await client.close()
