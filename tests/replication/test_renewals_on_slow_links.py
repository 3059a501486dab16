"""Renewals of brokers whose nodes are far from each other."""

import pytest

from replicated_namesrv.replication.liveness.leader_messages import Message, NodeReport
from tests.replication.virtual import registration, virtual_cluster


@pytest.mark.parametrize("one_way_ms", [110, 140])
def test_a_renewal_is_answered_before_its_node_repeats_its_whole_list(one_way_ms: int) -> None:
    """One renewal per second. The node waits for 500 ms, or for twice the last answer. An empty report takes one round trip. A
    renewal takes two, if the leader does not wait for heartbeats before it requests a read index."""
    whole_lists = 0
    with virtual_cluster(3, electionTimeoutMs="1500", fenceAfterMs="6000") as cluster:
        for link in cluster.network.links:
            cluster.network.late_ms[link] = one_way_ms
        cluster.run(10)
        name = cluster.followers()[0]
        wire, command = cluster.wire(name), registration(timeout_ms=120_000)
        cluster.register(wire, command)
        cluster.run(5)
        client = cluster.node(name).liveness.client
        send = client._send

        def counted(peer: str, message: Message) -> None:
            nonlocal whole_lists
            whole_lists += isinstance(message, NodeReport) and message.is_full
            send(peer, message)

        client._send = counted
        for _ in range(30):
            assert cluster.register(wire, command).code == 0
            cluster.run(1.0137)
    assert whole_lists <= 3
