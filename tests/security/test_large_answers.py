"""Queries whose answers take long to make: other hosts are answered meanwhile."""

import select
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from replicated_namesrv.client.broker_requests import BrokerIdentity, BrokerVersion, register_request
from replicated_namesrv.client.queries import route_request
from replicated_namesrv.client.remoting import RemotingCommand, encode_command
from tests.security.attacked import MODES, AttackedNode, attacked
from tests.security.test_one_host import HOSTILE, LIMIT_S, connection

BROKERS, QUEUES, TOPICS = 8, 16_000, 20_000
EXCHANGES_MIN = 5


def registration(number: int) -> bytes:
    """A registration of two topics, one of them with a static topic mapping of many queues, and of many other topics."""
    name = f"broker-{number}"
    names = ["mapped", "other", *(f"topic-{number}-{other}" for other in range(TOPICS))]
    ids = ",".join(f'"{queue}":{queue}' for queue in range(QUEUES))
    mapping = (
        f'{{"bname":"{name}","currIdMap":{{{ids}}},"dirty":false,"epoch":1,"scope":"s","topic":"mapped","totalQueues":{QUEUES}}}'
    )
    pieces: list[bytes | int] = [
        b'{"counter":1,"timestamp":1}',
        len(names),
        *(f"{topic} 8 8 6 SINGLE_TAG {{}}".encode() for topic in names),
    ]
    pieces += [b"[]", 1, mapping.encode()]
    parts = [struct.pack(">i", piece) if isinstance(piece, int) else struct.pack(">i", len(piece)) + piece for piece in pieces]
    request = register_request(
        BrokerIdentity("C", name, 0, f"192.0.2.{number}:10911", ""),
        BrokerVersion.V4_9,
        zlib.compress(b"".join(parts), 1),
        compressed=True,
        oneway=False,
        enable_acting_master=False,
        heartbeat_timeout_ms=None,
        zone_name=None,
    )
    return encode_command(request._replace(version=BrokerVersion.V5_3.remoting_version, opaque=1))


def answer(peer: socket.socket) -> bytes:
    """One answer, without its length."""
    with peer.makefile("rb") as file:
        (size,) = struct.unpack(">i", file.read(4))
        return file.read(size)


@pytest.fixture(scope="module", params=MODES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    with attacked(tmp_path_factory.mktemp(request.param), request.param) as one, ExitStack() as stack:
        for number in range(BROKERS):  # their connections stay open: otherwise the node removes them
            peer = stack.enter_context(connection(one.port, HOSTILE))
            peer.sendall(registration(number))
            assert b'"code":0' in answer(peer)
        yield one


def exchanges_during(node: AttackedNode, request: RemotingCommand) -> int:
    """The number of queries that the node answered before it answered ``request`` of a hostile host that has no debt yet."""
    query = encode_command(route_request("none")._replace(opaque=1))
    with connection(node.port, f"127.0.0.{request.code - 90}") as hostile, connection(node.port, "127.0.0.1") as other:
        other.sendall(query)
        answer(other)
        hostile.sendall(encode_command(request._replace(opaque=2)))
        count = 0
        while not select.select([hostile], [], [], 0)[0]:
            other.sendall(query)
            answer(other)
            count += 1
        hostile.settimeout(LIMIT_S)
        assert b'"code":0' in answer(hostile)[:200]
        return count


@pytest.mark.slow
def test_a_route_of_many_queues_is_made_in_steps(node: AttackedNode) -> None:
    """In an earlier version, the first query of such a route took a second for each million queues, in one turn of the event
    loop."""
    assert exchanges_during(node, route_request("mapped")) >= EXCHANGES_MIN


@pytest.mark.slow
def test_the_list_of_the_topics_of_a_cluster_is_made_in_steps(node: AttackedNode) -> None:
    assert exchanges_during(node, RemotingCommand(224, {"cluster": "C"})) >= EXCHANGES_MIN
