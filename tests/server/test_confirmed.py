"""Route queries on a service whose reads have to be confirmed first."""

import socket
import struct
from asyncio import Future, get_running_loop
from pathlib import Path

from replicated_namesrv.compat.node import IndependentNode
from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.service import Freshness, ReadLevel
from replicated_namesrv.settings import Settings
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, request, topic_table
from tests.support.waiting import wait_until

FRESH = Freshness(ReadLevel.LINEARIZABLE, 1, "n1", 0)


class ConfirmingNode(IndependentNode):
    """Reads wait until the test confirms them, while ``at_once`` is not set."""

    mode = "cp"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.at_once = True
        self.barriers: list[Future[Freshness]] = []

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        if self.at_once:
            return FRESH
        self.barriers.append(get_running_loop().create_future())
        return self.barriers[-1]


def prepared(server: ServerThread, peer: Peer) -> ConfirmingNode:
    """The node, with T and U registered and their answers prepared, and reads that wait from now on."""
    node = server.service
    assert isinstance(node, ConfirmingNode)
    peer.call(103, broker_fields(), topic_table("T", "U"))
    for topic in ("T", "U"):
        for _ in range(2):
            peer.send(request(105, {"topic": topic}, opaque=5))
            assert peer.answers(1)[0].code == 0
    node.at_once = False
    return node


QUERIES = b"".join(request(105, {"topic": "TU"[n % 2]}, opaque=n % 9 + 1) for n in range(200))


def ask_all(server: ServerThread, node: ConfirmingNode, peer: Peer) -> None:
    """Send the queries and wait until all of them wait."""
    before = server.metrics.bytes_in
    peer.send(QUERIES)
    wait_until(lambda: server.metrics.bytes_in == before + len(QUERIES), "all queries to arrive")
    server.do(lambda: None)  # the read that counted them has come to its end
    assert 1 <= len(node.barriers) <= 5


def complete(node: ConfirmingNode, error: Exception | None = None) -> None:
    for barrier in node.barriers:
        if error is None:
            barrier.set_result(FRESH)
        else:
            barrier.set_exception(error)


def test_one_barrier_for_all_queries_of_a_read(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer:
        node = prepared(server, peer)
        ask_all(server, node, peer)
        assert server.metrics.requests.get((105, 0)) == 2
        server.do(lambda: complete(node))
        answers = peer.answers(200)
        assert [answer.header.opaque for answer in answers] == [n % 9 + 1 for n in range(200)]
        assert server.metrics.pending_requests == 0


def test_answers_that_had_to_wait_are_prepared_too(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, ConfirmingNode)
        peer.call(103, broker_fields(), topic_table("T", "U"))
        node.at_once = False
        for number in range(1, 4):
            for topic, code in (("T", 0), ("None", 17)):
                peer.send(request(105, {"topic": topic}, opaque=number))
                wait_until(lambda: node.barriers, "the barrier")
                server.do(lambda: node.barriers.pop().set_result(FRESH))
                assert peer.answers(1)[0].code == code
        assert (server.metrics.fast_path_hits, server.metrics.fast_path_misses) == (4, 2)


def test_what_changed_while_waiting_is_answered_as_it_is_then(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer, Peer(server.port) as other:
        node = prepared(server, peer)
        ask_all(server, node, peer)
        other.send(request(216, {"topic": "T"}))
        assert other.answers(1)[0].code == 0
        node.at_once = True
        server.do(lambda: complete(node))
        answers = peer.answers(200)
        assert [answer.code for answer in answers] == [17, 0] * 100


def test_unconfirmed_queries_close_the_connection(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer, Peer(server.port) as unprepared:
        node = prepared(server, peer)
        ask_all(server, node, peer)
        before = len(node.barriers)
        unprepared.send(request(105, {"topic": "None"}))
        wait_until(lambda: len(node.barriers) == before + 1, "the other barrier")
        server.do(lambda: complete(node, UnavailableError("no majority")))
        assert peer.is_closed()
        assert unprepared.is_closed()
        assert server.metrics.pending_requests == 0


def test_a_connection_that_is_gone_before_the_barrier_completes(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as other:
        with Peer(server.port) as peer:
            node = prepared(server, peer)
            ask_all(server, node, peer)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        wait_until(lambda: server.metrics.connections_open == 1, "the connection to be gone")
        server.do(lambda: complete(node))
        assert server.metrics.pending_requests == 0
        node.at_once = True
        assert other.call(105, {"topic": "None"}).code == 17
