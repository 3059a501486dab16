"""Registrations in batches, over sockets: a broker of RocketMQ 5.3.4 to 5.5.0 with ``enableSplitRegistration``."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.remoting_server import Peer, broker_fields, live_server, topic_table
from tests.support.replicated_cluster import live_cluster
from tests.support.waiting import wait_until

TOPICS = [f"T{number}" for number in range(6)]


@contextmanager
def independent(folder: Path) -> Iterator[list[int]]:
    with live_server(folder) as server:
        yield [server.port]


@contextmanager
def replicated(folder: Path) -> Iterator[list[int]]:
    with live_cluster(folder, lateCopyMs="200", fenceAfterMs="20000") as cluster:
        members = cluster.members
        wait_until(lambda: all(member.service.state.compares_content for member in members), "all nodes apply newer commands")
        yield [member.server.port for member in members]


both_modes = pytest.mark.parametrize("serving", [independent, replicated])


class SplitBroker:
    """Registers with every name server, two topics at a time, under one data version."""

    def __init__(self, ports: list[int]) -> None:
        self.peers = [Peer(port) for port in ports]

    def register(self, queues: int, counter: int, perm: int = 6) -> None:
        for start in range(0, len(TOPICS), 2):
            body = topic_table(*TOPICS[start : start + 2], counter=counter).replace(b'ueueNums":8', b'ueueNums":%d' % queues)
            body = body.replace(b'"perm":6', b'"perm":%d' % perm)
            for peer in self.peers:
                assert peer.call(103, broker_fields(), body).code == 0

    def shown(self) -> set[tuple[int, int]]:
        """Queues and permissions of all topics at all name servers."""
        routes = [json.loads(peer.call(105, {"topic": topic}).body) for peer in self.peers for topic in TOPICS]
        return {(data["writeQueueNums"], data["perm"]) for route in routes for data in route["queueDatas"]}

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()


@both_modes
def test_every_batch_is_stored(serving: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as ports:
        broker = SplitBroker(ports)
        broker.register(8, counter=1)
        for queues, counter, perm in ((4, 2, 6), (4, 3, 4), (4, 4, 6), (2, 4, 6)):
            broker.register(queues, counter, perm)
            assert broker.shown() == {(queues, perm)}, "one round is enough"
        for _ in range(3):  # recognised without being decoded
            broker.register(2, 4)
        assert broker.shown() == {(2, 6)}
        broker.close()


@both_modes
def test_a_wiped_permission_outlasts_the_rounds_of_one_version(serving: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as ports:
        broker = SplitBroker(ports)
        broker.register(8, counter=1)
        for peer in broker.peers:
            assert peer.call(205, {"brokerName": "b"}).code == 0
        for _ in range(3):
            broker.register(8, counter=1)
        assert broker.shown() == {(8, 4)}
        broker.register(8, counter=2)
        assert broker.shown() == {(8, 6)}
        broker.close()


def test_a_broker_restored_from_a_backup_registers_its_older_version(tmp_path: Path) -> None:
    """A registration that had no effect is not remembered as one that changes nothing."""
    with replicated(tmp_path) as ports:
        broker = SplitBroker(ports[:1])
        broker.register(8, counter=2)

        def is_taken() -> bool:
            broker.register(4, counter=1)
            return broker.shown() == {(4, 6)}

        assert not is_taken()
        wait_until(is_taken, "the older version is stored")
        broker.close()
