"""Connections: the first bytes, frames cut anywhere, limits, back-pressure, idle close, half-close, shutdown, fence."""

import asyncio
import contextlib
import resource
import socket
import struct
import tracemalloc
from asyncio import Future, get_running_loop
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.errors import SettingError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import Command
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server import connection, dispatch, turn_shares
from replicated_namesrv.server.idle import TICKS_PER_ADVANCE_MAX, TURN_S, IdleWheel
from replicated_namesrv.service import CloseReason, Connection, Freshness, ReadLevel
from replicated_namesrv.settings import INT_MAX, Settings
from replicated_namesrv.wire import bodies
from tests.support.nodes import running_command
from tests.support.remoting_server import Peer, broker_fields, live_server, raw_frame, request, rss_bytes, topic_table
from tests.support.waiting import wait_until

PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes([10, 9, 8, 7, 1, 1, 1, 1]) + struct.pack(">HH", 4711, 9876)


class SlowNode(IndependentNode):
    """A node whose deletions of topics wait until the test completes them, as they do where a majority must agree."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.waiting: list[Future[Result]] = []
        self.lost: list[tuple[int, CloseReason]] = []

    def propose(
        self, command: Command, connection: Connection | None, origin: ChangeOrigin | None = None
    ) -> Result | Future[Result]:
        self.waiting.append(get_running_loop().create_future())
        return self.waiting[-1]

    def connection_lost(self, connection: Connection, reason: CloseReason) -> None:
        self.lost.append((connection.connection_id, reason))
        super().connection_lost(connection, reason)

    def complete(self, position: int) -> None:
        self.waiting.pop(position).set_result(Result())


def delete_topic(opaque: int, flag: int = 0) -> bytes:
    return request(216, {"topic": "T"}, opaque=opaque, flag=flag)


def test_frames_may_be_cut_anywhere(tmp_path: Path) -> None:
    registration = request(103, broker_fields(), topic_table("T", "U"), opaque=1)
    queries = [request(105, {"topic": "T"}, opaque=1000 + n, serialize_type=n % 2) for n in range(4)]
    sent = registration + b"".join(queries) + request(206, opaque=77)
    with live_server(tmp_path) as server, Peer(server.port) as whole:
        whole.send(sent)
        wanted = {answer.header.opaque: (answer.header, answer.body) for answer in whole.answers(6)}
        for cut in range(1, len(sent), 7):
            with Peer(server.port) as peer:
                peer.send(sent[:cut])
                peer.send(sent[cut:])
                got = {answer.header.opaque: (answer.header, answer.body) for answer in peer.answers(6)}
                assert got == wanted, f"cut at {cut}"


def test_every_byte_alone(tmp_path: Path) -> None:
    sent = b"".join(request(105, {"topic": "T"}, opaque=1000 + n) for n in range(3))
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        for n in range(len(sent)):
            peer.send(sent[n : n + 1])
        assert [answer.header.opaque for answer in peer.answers(3)] == [1000, 1001, 1002]


def test_a_long_pipeline_is_answered_completely(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        peer.call(103, broker_fields(), topic_table(*[f"T{n}" for n in range(50)]))
        peer.send(b"".join(request(105, {"topic": f"T{n % 50}"}, opaque=n) for n in range(1, 3001)))
        assert [answer.header.opaque for answer in peer.answers(3000)] == list(range(1, 3001))
        assert server.metrics.fast_path_hits > 2700


def test_proxy_protocol(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watching(IndependentNode):
        def heartbeat(self, cluster_name: str, broker_addr: str, connection: Connection) -> None:
            seen.append(connection.peer)

    heartbeat = request(904, {"clusterName": "C", "brokerAddr": "a:1"}, opaque=5)
    with live_server(tmp_path, Watching, proxyProtocolFrom="10.0.0.0/8,127.0.0.0/8") as server:
        for header in (b"PROXY TCP4 10.9.8.7 1.1.1.1 4711 9876\r\n", PROXY_V2):
            for cut in (1, 11, 12, 13, len(header) - 1, len(header)):
                with Peer(server.port) as peer:
                    peer.send(header[:cut])
                    peer.send(header[cut:] + heartbeat)
                    assert peer.answers(1)[0].code == 0
        assert set(seen) == {"10.9.8.7:4711"}
        with Peer(server.port) as peer:
            peer.send(b"PROXY TCP4 nonsense\r\n")
            assert peer.is_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1) + bytes(20),
        struct.pack(">i", 16_777_213) + bytes(20),
        struct.pack(">iI", 20, 17) + bytes(16),
        raw_frame(b"{}", serialize_type=0)[:4] + b"\x02" + bytes(20),
        raw_frame(b"[" * 100_000),
        raw_frame(b'{"code":206,"extFields":{' + b",".join(b'"k%d":"v"' % n for n in range(1_000_000)) + b"}}"),
        raw_frame(b'{"code":206,"opaque":99999999999}'),
        raw_frame(b"\xff\xfe{}........"),
    ],
    ids=["http", "negative", "too-long", "header-too-long", "type", "deep", "million-keys", "opaque", "not-utf8"],
)
def test_what_is_no_frame_closes_its_connection_only(tmp_path: Path, sent: bytes) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as other, Peer(server.port) as peer:
        other.call(103, broker_fields(), topic_table("T", "U"))
        with contextlib.suppress(ConnectionError):  # closed before all was sent
            peer.send(sent)
        assert peer.is_closed()
        assert other.call(105, {"topic": "T"}).code == 0
        assert server.metrics.limits_hit == {"malformed": 1}
        wait_until(lambda: server.metrics.connections_closed == {"peer": 1}, "the close to be counted")


def test_what_came_before_a_malformed_frame_is_answered(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        peer.send(request(206, opaque=4) + struct.pack(">i", 2) + bytes(8))
        assert peer.answers(1)[0].header.opaque == 4
        assert peer.is_closed()


def test_greatest_frame(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        header = b'{"code":206,"opaque":3,"version":479}'
        peer.send(struct.pack(">iI", 16_777_212, len(header)) + header + bytes(16_777_212 - 4 - len(header)))
        assert peer.answers(1)[0].code == 0
        assert server.do(lambda: server.server.held.total) == 0


@pytest.mark.parametrize("is_reset", [False, True], ids=["end", "reset"])
def test_an_end_before_the_answers_are_acknowledged_has_its_own_reason(tmp_path: Path, is_reset: bool) -> None:
    """The peer reads nothing, so its host cannot acknowledge all answers. Then it ends its side, or closes the socket: the unread
    answers make that a reset."""
    count = 3  # answers of 38 KB each: more than the socket of the peer accepts, less than makes the node stop reading

    def unacknowledged(server: Any) -> int:
        sockets = (each._transport.get_extra_info("socket") for each in server.server.connections)
        return sum(map(connection.unacknowledged_bytes, sockets))

    with live_server(tmp_path) as server, Peer(server.port) as registrar:
        registrar.call(103, broker_fields(), topic_table(*(f"topic-{number}" for number in range(3_000))))
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.connect(("127.0.0.1", server.port))
            for number in range(count):
                peer.sendall(request(206, opaque=number))
            wait_until(lambda: server.metrics.request_counts().get((206, 0)) == count, "the answers")
            assert server.do(lambda: unacknowledged(server)) > 0
            if not is_reset:
                peer.shutdown(socket.SHUT_WR)
                wait_until(lambda: server.metrics.connections_closed, "the end of the connection")
        wait_until(lambda: server.metrics.connections_closed == {"unacknowledged": 1}, "the reason")


def test_an_end_soon_after_a_slow_answer_has_its_own_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(tmp_path, SlowNode) as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, SlowNode)
        peer.send(delete_topic(1))
        wait_until(lambda: node.waiting, "the request")
        monkeypatch.setattr(dispatch, "SLOW_NS", 0)
        server.do(lambda: node.complete(0))
        assert peer.answers(1)[0].code == 0
        peer.close()
        wait_until(lambda: server.metrics.connections_closed == {"unacknowledged": 1}, "the end")


def test_an_end_within_a_request_has_its_own_reason(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        peer.call(206)
        peer.send(request(206)[:-3])
        peer.close()
        wait_until(lambda: server.metrics.connections_closed == {"unacknowledged": 1}, "the end")


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    with live_server(tmp_path, serverChannelMaxIdleTimeSeconds="1") as server, Peer(server.port) as idle:
        with Peer(server.port) as busy:
            while not idle.is_closed(0.1):
                busy.call(206)
            busy.call(206)
        wait_until(lambda: server.metrics.connections_closed == {"idle": 1, "peer": 1}, "both closes to be counted")


class Member:
    last_active_tick = 0
    idle_slot = 0


def test_idle_wheel_closes_after_the_idle_time_and_not_before() -> None:
    wheel = IdleWheel(120, 1000.0)
    silent, active = Member(), Member()
    wheel.add(silent)
    wheel.add(active)
    closed_at: dict[Member, float] = {}
    for step in range(1, 400):
        now_s = 1000.0 + step
        if step <= 150:
            active.last_active_tick = wheel.tick
        for member in wheel.advance(now_s):
            assert isinstance(member, Member)
            closed_at[member] = now_s - 1000
    assert 120 <= closed_at[silent] <= 122
    assert 150 - 1 + 120 <= closed_at[active] <= 150 + 122


def test_idle_wheel_closes_nobody_early_whose_activity_came_in_a_long_turn() -> None:
    """The turn of the event loop began at 0.015 s. The connection was active at 0.095 s, when four due ticks still waited."""
    wheel = IdleWheel(2, 0.0)
    wheel.advance(0.015)
    member = Member()
    wheel.add(member)
    closed_at = next(now_s for now_s in (step / 100 for step in range(2, 400)) if wheel.advance(now_s))
    assert 0.095 + 2 <= closed_at <= 0.015 + 2 + TURN_S + 2 * wheel.tick_s


def test_idle_wheel_does_not_count_time_in_which_the_process_stood_still() -> None:
    wheel = IdleWheel(120, 0.0)
    member = Member()
    wheel.add(member)
    assert wheel.advance(10_000.0) == []
    assert wheel.tick == TICKS_PER_ADVANCE_MAX


def test_idle_wheel_uses_no_memory_for_a_long_idle_time() -> None:
    """An earlier version used memory for each second of the idle time: with Java's largest ``int`` it did not start."""
    wheel = IdleWheel(INT_MAX, 0.0)
    kept = Member()
    wheel.add(kept)
    tracemalloc.start()
    try:
        for second in range(1, 10_000):
            assert wheel.advance(float(second)) == []
            member = Member()
            wheel.add(member)
            wheel.discard(member)
        assert tracemalloc.get_traced_memory()[0] < 10_000, "closed connections leave nothing behind"
    finally:
        tracemalloc.stop()


def test_slow_drip_is_closed(tmp_path: Path) -> None:
    with live_server(tmp_path, frameTimeoutMillis="300", serverChannelMaxIdleTimeSeconds="3") as server:
        frame = request(206)
        with Peer(server.port) as few, Peer(server.port) as proxy, Peer(server.port) as tls, Peer(server.port) as silent:
            peers = {few: frame, proxy: b"PROXY TCP4 " + b"1" * 90, tls: b"\x16\x03\x01\x02\x00" + bytes(90)}
            for n in range(90):
                for peer, data in list(peers.items()):
                    try:
                        peer.send(data[n : n + 1])
                    except ConnectionError:
                        del peers[peer]
                    else:
                        if peer.is_closed(0.01):
                            del peers[peer]
                if not peers:
                    break
            assert not peers
            silent.call(206)
        assert server.metrics.limits_hit["frameTimeout"] == 3


def test_too_many_connections(tmp_path: Path) -> None:
    with live_server(tmp_path, maxConnections="2") as server, Peer(server.port) as one, Peer(server.port) as two:
        one.call(206)
        two.call(206)
        with Peer(server.port) as three:
            assert three.is_closed()
        assert server.metrics.limits_hit == {"connections": 1}
        one.close()
        wait_until(lambda: server.metrics.connections_open == 1, "one to be gone")
        with Peer(server.port) as four:
            four.call(206)


def test_held_bytes_are_bounded_and_the_oldest_holder_goes(tmp_path: Path) -> None:
    part = struct.pack(">iI", 16_000_000, 100) + bytes(12_000_000)
    with live_server(tmp_path, maxHeldBytes="33554432") as server:
        with Peer(server.port) as first, Peer(server.port) as second, Peer(server.port) as third, Peer(server.port) as other:
            for number, peer in enumerate((first, second, third), 1):
                if number == 3:
                    other.call(206)
                peer.send(part)
                if number < 3:
                    wait_until(lambda: server.do(lambda: server.server.held.total) >= number * 12_000_000, "the bytes to arrive")  # noqa: B023 - called within this turn of the loop
            assert first.is_closed()
            assert not second.is_closed(0.05)
            other.call(206)
        assert server.metrics.limits_hit == {"heldBytes": 1}
        wait_until(lambda: server.do(lambda: server.server.held.total) == 0, "nothing to be held")


def test_a_peer_that_does_not_read_is_read_no_further(tmp_path: Path) -> None:
    """The server does not treat it as a peer that never completes its frame, because the server itself has stopped reading."""
    with live_server(tmp_path) as server, Peer(server.port) as peer, Peer(server.port) as other:
        peer.call(103, broker_fields(), topic_table(*[f"T{n}" for n in range(300)]))
        one = request(206, opaque=9)
        peer.send(one)
        answer_bytes = len(peer.answers(1)[0].data)
        peer.send(one[:10])
        batch = one[10:] + one * 19 + one[:10]

        def held() -> int:
            return server.do(lambda: server.server.held.total)

        def taken(answered: int) -> bool:
            return server.metrics.answered == answered or held() > len(batch)

        asked, answered = 0, server.metrics.answered
        while held() <= server.server.limits.high_water_bytes:
            peer.send(batch)
            asked += 20
            wait_until(partial(taken, answered + asked), "the batch to be answered or the answers to be stuck")
            assert asked * answer_bytes < 100_000_000
        answered = server.metrics.answered
        peer.send(batch)
        for _ in range(5):
            other.call(206)
        assert server.metrics.answered == answered + 5, "nothing more was taken from the peer that does not read"
        assert held() < server.server.limits.high_water_bytes + 25 * answer_bytes
        server.do(lambda: server.server.tick(server.server.now_s() + server.server.limits.frame_timeout_s + 1))
        peer.send(one[10:])
        assert len(peer.answers(asked + 21)) == asked + 21
        assert server.metrics.limits_hit == {}
        wait_until(lambda: held() == 0, "nothing to be held")


def test_requests_that_take_long_let_others_have_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_shares, "SHARE_NS", 0)
    monkeypatch.setattr(turn_shares, "ALONE_NS", 0)
    with live_server(tmp_path) as server, Peer(server.port) as peer, Peer(server.port) as other:
        peer.call(206)
        other.call(206)
        answer_request, asked = server.server.dispatcher.request, []

        def recorded(by: connection.RemotingConnection, *frame: Any) -> bytes | None:
            asked.append(by.connection_id)
            return answer_request(by, *frame)

        monkeypatch.setattr(server.server.dispatcher, "request", recorded)

        def send_both() -> None:
            peer.send(b"".join(request(206, opaque=n) for n in range(400)))
            other.send(request(206))

        server.do(send_both)
        assert [answer.header.opaque for answer in peer.answers(400)] == list(range(400))
        assert other.answers(1)
        assert asked.count(asked[-1]) == 400, "the other connection did not wait for all of the first one's requests"


def test_unanswered_requests_of_one_connection_are_bounded(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode, maxPendingPerConnection="5") as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, SlowNode)
        peer.send(b"".join(delete_topic(n) for n in range(12)))
        wait_until(lambda: len(node.waiting) == 5, "five to wait")
        answered = []
        for _ in range(12):
            server.do(lambda: node.complete(len(node.waiting) - 1))
            answered.append(peer.answers(1)[0].header.opaque)
            assert len(node.waiting) <= 5
        assert sorted(answered) == list(range(12))
        assert answered != sorted(answered), "answers come when they are there, in whatever order"
        assert server.metrics.pending_requests == 0


def test_overload(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode, defaultThreadPoolQueueCapacity="3") as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, SlowNode)
        peer.send(b"".join(delete_topic(n) for n in range(3)) + delete_topic(50, flag=2) + delete_topic(51))
        refused = peer.answers(1)[0]
        assert (refused.header.opaque, refused.code) == (51, 2)
        assert refused.header.remark == "[OVERLOAD]system busy, start flow control for a while"
        assert peer.call(105, {"topic": "T"}).code == 17, "route queries have a queue of their own"
        for _ in range(3):
            server.do(lambda: node.complete(0))
        assert {answer.code for answer in peer.answers(3)} == {0}
        assert server.metrics.limits_hit == {"defaultThreadPoolQueueCapacity": 2}


class UnconfirmedNode(IndependentNode):
    """A node whose reads wait until the test confirms them, as they do where a majority must confirm them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.reads: list[Future[Freshness]] = []

    def barrier(self, level: ReadLevel | None, max_staleness_ms: int | None) -> Freshness | Future[Freshness]:
        self.reads.append(get_running_loop().create_future())
        return self.reads[-1]

    def confirm(self) -> None:
        freshness = super().barrier(None, None)
        assert isinstance(freshness, Freshness)
        for read in self.reads:
            read.set_result(freshness)


def test_answers_that_nobody_can_get_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a host had sent pipelines of 206 and reset its connections, a node made the lists for seconds."""
    made = list[int]()
    encode = bodies.encode_topic_list

    def encoded(*arguments: Any) -> bytes:
        made.append(1)
        return encode(*arguments)

    monkeypatch.setattr(bodies, "encode_topic_list", encoded)
    with live_server(tmp_path, UnconfirmedNode) as server, Peer(server.port) as other:
        node = server.service
        assert isinstance(node, UnconfirmedNode)
        with Peer(server.port) as gone:
            gone.send(request(206) * 10)
            wait_until(lambda: len(node.reads) == 10, "the requests")
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.send(request(206))
        wait_until(lambda: len(node.reads) == 11 and len(server.server.connections) == 1, "the other request and the end")
        server.do(node.confirm)
        assert other.answers(1)[0].code == 0
        assert len(made) == 1
        assert server.metrics.pending_requests == 0


def test_half_closed_connection_gets_its_answers(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode) as server, Peer(server.port) as peer:
        node = server.service
        assert isinstance(node, SlowNode)
        peer.send(delete_topic(1) + request(206, opaque=2))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.answers(1)[0].header.opaque == 2
        wait_until(lambda: node.waiting, "the request")
        server.do(lambda: node.complete(0))
        assert peer.answers(1)[0].header.opaque == 1
        assert peer.is_closed()
        wait_until(lambda: [reason for _, reason in node.lost] == [CloseReason.UNACKNOWLEDGED], "exactly one report")


def test_reset_while_a_request_waits(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode) as server:
        node = server.service
        assert isinstance(node, SlowNode)
        with Peer(server.port) as peer:
            peer.send(delete_topic(1))
            wait_until(lambda: node.waiting, "the request")
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: len(node.lost) == 1, "the loss to be reported")
        server.do(lambda: node.complete(0))
        assert server.metrics.pending_requests == 0
        assert len(node.lost) == 1


def test_stop_answers_what_is_in_flight(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode) as server, Peer(server.port) as peer, Peer(server.port) as idle:
        node = server.service
        assert isinstance(node, SlowNode)
        idle.call(206)
        peer.send(delete_topic(1))
        wait_until(lambda: node.waiting, "the request")
        server.do(lambda: server.loop.call_later(0.05, node.complete, 0))
        server.wait_for(server.server.stop())
        assert peer.answers(1)[0].code == 0
        assert peer.is_closed()
        assert idle.is_closed()
        assert {reason for _, reason in node.lost} == {CloseReason.OURS}
        with pytest.raises(ConnectionRefusedError):
            Peer(server.port)


def test_graceful_stop_sends_new_clients_away(tmp_path: Path) -> None:
    with (
        live_server(tmp_path, SlowNode, enableShutdownGracefully="true", shutdownWaitTimeSeconds="20") as server,
        Peer(server.port) as new,
        Peer(server.port) as old,
    ):
        new.call(105, {"topic": "T"}, version=477)
        new.call(105, {"topic": "T"}, version=477)
        old.call(206, version=409)
        stopped = server.do(lambda: server.loop.create_task(server.server.stop()))
        wait_until(lambda: not server.server.is_listening, "the port to close")
        away = new.call(105, {"topic": "T"}, version=477)
        assert (away.code, away.header.remark) == (1500, "please go away")
        assert old.call(105, {"topic": "T"}, version=475).code == 17
        new.close()
        old.close()
        wait_until(stopped.done, "the stop, which waits for nobody any more", 10)
        node = server.service
        assert isinstance(node, SlowNode)
        assert {reason for _, reason in node.lost} == {CloseReason.UNACKNOWLEDGED}, "the node has asked for these ends"


def test_fence_and_unfence(tmp_path: Path) -> None:
    with live_server(tmp_path, SlowNode) as server, Peer(server.port) as idle, Peer(server.port) as waiting:
        node = server.service
        assert isinstance(node, SlowNode)
        idle.call(206)
        waiting.send(delete_topic(1))
        wait_until(lambda: node.waiting, "the request")
        server.do(server.server.fence)
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            Peer(server.port)
        server.do(lambda: node.complete(0))
        assert waiting.answers(1)[0].code == 0
        assert waiting.is_closed()
        server.wait_for(server.server.unfence())
        with Peer(server.port) as peer:
            assert peer.call(206).code == 0
        assert {reason for _, reason in node.lost} <= {CloseReason.OURS, CloseReason.PEER}


def test_port_in_use(tmp_path: Path) -> None:
    with live_server(tmp_path) as server:
        taken = str(server.port)
        with pytest.raises(SettingError, match=f"listenPort={taken}.*in use"), live_server(tmp_path, listenPort=taken):
            pass


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    wanted = r"bindAddress=192\.0\.2\.1.*not an address"
    with pytest.raises(SettingError, match=wanted), live_server(tmp_path, bindAddress="192.0.2.1"):
        pass


def test_an_empty_address(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"bindAddress=.*no address of this machine"), live_server(tmp_path, bindAddress=""):
        pass


@pytest.mark.slow
def test_thousands_of_silent_connections(tmp_path: Path) -> None:
    """The test opens as many connections as the system permits, up to 10,000. Half of them are silent, half send the beginning of
    a frame."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    arguments = ("serve", "--listen", "127.0.0.1:0", "--admin", "off", "--data-dir", str(tmp_path / "data"))
    try:
        with running_command(*arguments, stderr=tmp_path / "stderr") as command, contextlib.ExitStack() as closing:
            port = int(command.wait_line("boot success").rpartition(":")[2])
            before = rss_bytes(command.process.pid)
            count = min(10_000, hard - 1000)
            for number in range(count):
                connection = closing.enter_context(socket.create_connection(("127.0.0.1", port), 20))
                if number % 2:
                    connection.sendall(struct.pack(">iI", 5_000_000, 100) + bytes(10))
            with Peer(port) as peer:
                assert peer.call(206).code == 0
            assert rss_bytes(command.process.pid) - before < count * 20_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_unfence_ends_a_drain_that_still_runs(tmp_path: Path) -> None:
    """``namesrv drain --undo``: the last pass must not close the listener afterwards."""
    with live_server(tmp_path) as server, Peer(server.port) as client:
        assert client.call(105, {"topic": "T"}).code == 17
        drain = asyncio.run_coroutine_threadsafe(server.server.drain(2.0), server.loop)
        assert client.is_closed()
        server.wait_for(server.server.unfence())
        drain.result(10)
        with Peer(server.port) as again:
            assert again.call(105, {"topic": "T"}).code == 17
