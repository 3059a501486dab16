"""Route queries on a service whose reads have to be confirmed first."""

import socket
import struct
from asyncio import Future, get_running_loop
from pathlib import Path

import pytest

from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.server import confirmed
from replicated_namesrv.server.request import Request
from replicated_namesrv.server.turn_shares import DEBT_MAX_NS
from replicated_namesrv.service import Freshness, ReadLevel
from replicated_namesrv.settings import Settings
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, request, topic_table
from tests.support.waiting import wait_until

FRESH = Freshness(ReadLevel.LINEARIZABLE, 1, "n1", 0)


class ConfirmingNode(IndependentNode):
    """While ``at_once`` is not set, reads wait until the test confirms them."""

    confirms_reads = True

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


def asked_before_a_change(server: ServerThread, peer: Peer, other: Peer) -> ConfirmingNode:
    """The node, with the queries of ``peer`` waiting; T was deleted after they came."""
    node = prepared(server, peer)
    ask_all(server, node, peer)
    other.send(request(216, {"topic": "T"}))
    assert other.answers(1)[0].code == 0
    node.at_once = True
    return node


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


@pytest.mark.parametrize("body_bytes", [0, 3_000, 5_000, 4 << 20])
def test_a_query_that_waits_keeps_its_frame_only_if_it_can_be_prepared(
    body_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's clients send no body, but the node accepts one of up to 16 MiB."""
    kept = list[tuple[int, str | None]]()
    keep = Request.keep_frame_only

    def noted(waiting: Request) -> None:
        keep(waiting)
        kept.append((len(waiting.data), waiting.lasting_topic))

    monkeypatch.setattr(Request, "keep_frame_only", noted)
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, ConfirmingNode)
        peer.call(103, broker_fields(), topic_table("T", "U"))
        node.at_once = False
        query = request(105, {"topic": "T"}, bytes(body_bytes))
        peer.send(query)
        wait_until(lambda: node.barriers, "the barrier")
        assert server.do(lambda: kept[-1]) == ((len(query), "T") if body_bytes < 4_000 else (0, None))
        server.do(lambda: complete(node))
        assert peer.answers(1)[0].code == 0


def test_what_changed_while_waiting_is_answered_as_it_is_then(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer, Peer(server.port) as other:
        node = asked_before_a_change(server, peer, other)
        server.do(lambda: complete(node))
        answers = peer.answers(200)
        assert [answer.code for answer in answers] == [17, 0] * 100


def test_what_is_looked_up_again_waits_for_the_share_of_its_address(tmp_path: Path) -> None:
    """Without this rule, a flood of queries could use twice its share during changes, and all of it in one turn."""
    with (
        live_server(tmp_path, ConfirmingNode) as server,
        Peer(server.port) as other,
        Peer(server.port, source="127.0.0.2") as hostile,
    ):
        node = asked_before_a_change(server, hostile, other)

        def complete_without_share() -> int:
            (connection,) = (each for each in server.server.connections if each.address == "127.0.0.2")
            server.server.shares.spend(connection.share, DEBT_MAX_NS // 10)
            complete(node)
            return connection.pending

        waiting = server.do(complete_without_share)
        assert waiting > 0
        assert server.metrics.pending_requests == waiting, "nothing of it was looked up in that turn"
        assert [answer.code for answer in hostile.answers(200)] == [17, 0] * 100
        assert server.metrics.pending_requests == 0


def test_what_is_looked_up_again_is_done_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection may have thousands of queries in one barrier."""
    monkeypatch.setattr(confirmed, "SHARE_NS", 0)
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer, Peer(server.port) as other:
        node = asked_before_a_change(server, peer, other)

        def complete_in_one_turn() -> int:
            complete(node)
            return server.metrics.pending_requests

        assert server.do(complete_in_one_turn) > 0
        assert [answer.code for answer in peer.answers(200)] == [17, 0] * 100


def test_unconfirmed_queries_close_the_connection(tmp_path: Path) -> None:
    with live_server(tmp_path, ConfirmingNode) as server, Peer(server.port) as peer, Peer(server.port) as unprepared:
        node = prepared(server, peer)
        ask_all(server, node, peer)
        before = len(node.barriers)
        unprepared.send(request(105, {"topic": "None"}))
        wait_until(lambda: len(node.barriers) == before + 1, "the other barrier")
        counted = server.do(server.metrics.request_counts)
        server.do(lambda: complete(node, UnavailableError("no majority")))
        assert peer.is_closed()
        assert unprepared.is_closed()
        assert server.metrics.pending_requests == 0
        counts = server.do(server.metrics.request_counts)
        assert [key for key, count in counted.items() if counts.get(key, 0) < count] == [], "a counter never decreases"


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


class SharingNode(ConfirmingNode):
    """All reads that wait share one barrier."""

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        if not self.at_once and self.barriers:
            return self.barriers[0]
        return super().barrier(level, max_staleness_ms)


@pytest.mark.parametrize("changes", [False, True])
def test_connections_that_share_a_barrier(changes: bool, tmp_path: Path) -> None:
    with (
        live_server(tmp_path, SharingNode) as server,
        Peer(server.port) as first,
        Peer(server.port) as second,
        Peer(server.port) as other,
    ):
        node = prepared(server, first)
        second.send(request(216, {"topic": "None"}))  # determines the protocol of the connection
        assert second.answers(1)[0].code == 0
        for peer in (first, second):
            before = server.metrics.pending_requests
            peer.send(request(105, {"topic": "T"}, opaque=7) + request(105, {"topic": "U"}, opaque=8))
            wait_until(lambda: server.metrics.pending_requests > before, "the queries to wait")  # noqa: B023 - waited for in the loop
        assert len(node.barriers) == 1
        counted = server.do(server.metrics.request_counts)
        observed = sum(server.metrics.latency.counts)
        if changes:
            other.send(request(216, {"topic": "T"}))
            assert other.answers(1)[0].code == 0
        node.at_once = True
        server.do(lambda: complete(node))
        for peer in (first, second):
            answers = peer.answers(2)
            assert {a.header.opaque: a.code for a in answers} == {7: 17 if changes else 0, 8: 0}
        counts = server.do(server.metrics.request_counts)
        assert counts[105, 0] - counted[105, 0] == (2 if changes else 4), "counted when they are answered"
        assert counts.get((105, 17), 0) == (2 if changes else 0)
        assert sum(server.metrics.latency.counts) - observed == 4
        assert server.metrics.pending_requests == 0


def test_a_fence_answers_what_is_confirmed_and_closes_everything(tmp_path: Path) -> None:
    with (
        live_server(tmp_path, ConfirmingNode) as server,
        Peer(server.port) as confirmed,
        Peer(server.port) as unconfirmed,
        Peer(server.port) as idle,
    ):
        node = prepared(server, confirmed)
        for number, peer in enumerate((confirmed, unconfirmed)):
            peer.send(request(105, {"topic": "T"}, opaque=7))
            wait_until(lambda: len(node.barriers) > number, "the query to wait")  # noqa: B023 - waited for in the loop

        def fence() -> None:
            node.barriers[0].set_result(FRESH)
            server.server.fence()

        server.do(fence)
        assert confirmed.answers(1)[0].code == 0
        assert confirmed.is_closed()
        assert unconfirmed.is_closed(), "though nobody ever says what became of its barrier"
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            Peer(server.port)
        server.wait_for(server.server.unfence())
        node.at_once = True
        with Peer(server.port) as again:
            assert again.call(105, {"topic": "T"}).code == 0, "the node closed the broker's connection, so the broker stays"
