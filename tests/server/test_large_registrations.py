"""Large registrations: received in parts, evaluated in slices between other requests, dropped when their connection ends."""

import contextlib
import gc
import pickle
import socket
import struct
import threading
from asyncio import Future
from collections.abc import Generator, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from replicated_namesrv.compat.independent_node import IndependentNode
from replicated_namesrv.routes.commands import RegisterBroker
from replicated_namesrv.routes.results import Result
from replicated_namesrv.server import registrations
from replicated_namesrv.server.connection import LONG_FRAME_BYTES, ROOM_MAX_BYTES, ROOM_MIN_BYTES
from replicated_namesrv.service import CloseReason, Connection
from replicated_namesrv.settings import Settings
from replicated_namesrv.wire.registration_body import RegisterBrokerBody, decode_register_body
from tests.support.remoting_server import Peer, ServerThread, broker_fields, live_server, request, topic_table
from tests.support.waiting import wait_until

LARGE = topic_table(*[f"Topic-{n:05}" for n in range(9000)])
assert len(LARGE) > registrations.SMALL_BYTES


def with_crc(body: bytes) -> dict[str, str]:
    return broker_fields(bodyCrc32=str(crc32(body) & 0x7FFFFFFF))


def queued_bytes(server: ServerThread) -> int:
    return server.do(lambda: server.server.dispatcher.registrations.queue.queued_bytes)


def gate_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The evaluation of bodies of the length of ``LARGE`` waits for this event."""
    gate = threading.Event()

    def gated(body: bytes, version: int, compressed: bool, limit: int) -> Generator[None, None, RegisterBrokerBody]:
        while len(body) == len(LARGE) and not gate.is_set():
            yield
        return (yield from decode_register_body(body, version, compressed, limit))

    monkeypatch.setattr(registrations, "decode_register_body", gated)
    return gate


@pytest.mark.parametrize("topics", [600, 9000])
@pytest.mark.parametrize("parts", [1, 3, 50])
def test_a_long_frame_may_arrive_in_parts(tmp_path: Path, topics: int, parts: int) -> None:
    body = topic_table(*[f"Topic-{n:05}" for n in range(topics)])
    frame = request(103, with_crc(body), body, opaque=1)
    assert len(frame) > LONG_FRAME_BYTES
    with live_server(tmp_path) as server, Peer(server.port) as peer, Peer(server.port) as other:
        for turn in range(3):
            sent = frame + request(105, {"topic": f"Topic-{topics - 1:05}"}, opaque=2) + request(206, opaque=3)
            size = len(sent) // parts + 1
            for start in range(0, len(sent), size):
                peer.send(sent[start : start + size])
                assert other.call(206).code == 0
            answers = {answer.header.opaque: answer for answer in peer.answers(3)}
            assert [answers[opaque].code for opaque in (1, 2, 3)] == [0, 0, 0], f"turn {turn}"
            assert b'"brokerName":"b"' in answers[2].body
        assert server.metrics.registration_memo_hits > 0
        assert server.do(lambda: server.server.held.total) == 0


def test_announcing_a_long_frame_costs_nothing(tmp_path: Path) -> None:
    announced = struct.pack(">iI", 16_000_000, 20)
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        sent = 0
        for size in (20, 1000, 100_000, 3 * ROOM_MAX_BYTES):
            part = announced + bytes(size) if not sent else bytes(size)
            peer.send(part)
            sent += len(part)
            wait_until(lambda: server.metrics.bytes_in == sent, "the bytes to arrive")  # noqa: B023 - called within this turn of the loop
            assert server.do(lambda: server.server.held.total) <= 4 * sent + ROOM_MIN_BYTES


def test_the_checksum_of_an_unchanged_registration_is_still_compared(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        bodies = [topic_table("T", "U", mapping_stamp=stamp) for stamp in (1, 77, 1_700_000_000_000)]
        for body in bodies * 2:
            assert peer.call(103, with_crc(body), body).code == 0
        hits = server.metrics.registration_memo_hits
        assert hits > 0
        for body, other in zip(bodies, reversed(bodies), strict=True):
            assert peer.call(103, with_crc(body), body).code == 0
            assert peer.call(103, with_crc(other), body).code == (0 if body == other else 1)
        assert server.metrics.registration_memo_hits == hits + 4


def test_memos_have_a_fixed_size_and_end_with_their_registrations(tmp_path: Path) -> None:
    body = topic_table("T", "U")
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        tables = server.do(lambda: server.server.dispatcher.registrations._service.state._tables)
        sizes = []
        for length in (1, 1_500_000):
            fields = with_crc(body) | {"compressed": "x" * length}
            hits = server.metrics.registration_memo_hits
            for _ in range(3):
                assert peer.call(103, fields, body).code == 0
            assert server.metrics.registration_memo_hits > hits
            sizes += [len(pickle.dumps(memo)) for memo in server.do(lambda: list(tables.memos.values()))]
        assert len(sizes) == 2
        assert max(sizes) < 1_000
        names = ("clusterName", "brokerName", "brokerAddr", "brokerId")
        assert peer.call(104, {name: fields[name] for name in names}).code == 0
        wait_until(lambda: not server.do(lambda: tables.live), "the broker to be removed")
        assert not server.do(lambda: tables.memos)
        assert not [each for each in vars(server.server.dispatcher.registrations).values() if isinstance(each, dict) and each]


def test_small_registrations_do_not_wait_for_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_of_large_ones(monkeypatch)
    with live_server(tmp_path) as server, Peer(server.port) as large, Peer(server.port) as small:
        large.send(request(103, broker_fields("a", "10.0.0.1:1"), LARGE, opaque=1))
        wait_until(lambda: queued_bytes(server), "the large one to wait")
        for counter in range(5):
            assert small.call(103, broker_fields(), topic_table("T", "U", counter=counter)).code == 0
        assert queued_bytes(server) == len(LARGE)
        gate.set()
        assert large.answers(1)[0].code == 0
        assert queued_bytes(server) == 0


def test_what_waits_is_dropped_when_its_peer_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(tmp_path) as server:
        monkeypatch.setattr(registrations, "TURN_BUDGET_NS", 0)
        peers = [Peer(server.port) for _ in range(6)]
        for number, peer in enumerate(peers):
            peer.send(request(103, broker_fields("a", f"10.0.0.{number}:1"), LARGE, opaque=1))
        wait_until(lambda: queued_bytes(server) == 6 * len(LARGE), "all to wait")
        peers[0].close()
        peers[3].close()
        peers[5].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peers[5].close()
        wait_until(lambda: queued_bytes(server) == 3 * len(LARGE), "those of three to be dropped")
        wait_until(lambda: server.metrics.connections_open == 3, "their connections to be gone")
        assert server.do(lambda: server.metrics.connections_closed) == {"unacknowledged": 3}, "their registrations had no answer"
        monkeypatch.undo()
        for number in (1, 2, 4):
            assert peers[number].answers(1)[0].code == 0
            peers[number].close()
        assert queued_bytes(server) == 0
        assert server.metrics.pending_requests == 0


def test_a_dropped_registration_stays_unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat after it is read when reading resumes, before the end of the connection."""
    with live_server(tmp_path) as server, Peer(server.port) as peer:
        monkeypatch.setattr(registrations, "TURN_BUDGET_NS", 0)
        peer.send(request(103, broker_fields("a", "10.0.0.1:1"), LARGE, opaque=1))
        wait_until(lambda: queued_bytes(server), "it to wait")
        peer.send(request(904, {"clusterName": "C", "brokerAddr": "10.0.0.1:1"}, flag=2))
        peer.close()
        wait_until(lambda: server.metrics.connections_closed == {"unacknowledged": 1}, "the end")
        assert server.metrics.pending_requests == 0


class ReceivedNode(IndependentNode):
    """Records the revisions at which registrations were received, and those at which they were applied."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.revisions: list[tuple[int | None, int]] = []

    def register(
        self, registration: RegisterBroker, connection: Connection, received: int | None = None
    ) -> Result | Future[Result]:
        self.revisions.append((received, self.state.revision))
        return super().register(registration, connection, received)


def test_a_registration_that_waited_was_received_when_it_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the broker has unregistered in the meantime, the registration is older than that."""
    with live_server(tmp_path, ReceivedNode) as server, Peer(server.port) as large, Peer(server.port) as other:
        node = server.service
        assert isinstance(node, ReceivedNode)
        gate = gate_of_large_ones(monkeypatch)
        large.send(request(103, broker_fields("a", "10.0.0.1:1"), LARGE, opaque=1))
        wait_until(lambda: queued_bytes(server), "it to wait")
        assert other.call(103, broker_fields("b", "10.0.0.2:1"), topic_table("T", "U")).code == 0
        gate.set()
        assert large.answers(1)[0].code == 0
        (_, first), (received, applied) = node.revisions
        assert received == first < applied


def test_what_waits_is_dropped_when_the_server_closes_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server(tmp_path) as server, Peer(server.port) as closed, Peer(server.port) as other:
        monkeypatch.setattr(registrations, "TURN_BUDGET_NS", 0)
        closed.send(request(103, broker_fields("a", "10.0.0.1:1"), LARGE, opaque=1))
        wait_until(lambda: queued_bytes(server), "it to wait")
        queue = server.server.dispatcher.registrations.queue
        server.do(lambda: next(iter(queue._jobs)).close(CloseReason.OURS))
        wait_until(lambda: queued_bytes(server) == 0, "it to be dropped")
        monkeypatch.undo()
        assert other.call(103, broker_fields("b", "10.0.0.2:1"), LARGE).code == 0, "later ones are served"


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_refused_body_is_freed_with_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body is freed at once, and not by the next garbage collection of reference cycles, which may come much later."""
    alive: list[int] = []

    class Body(bytes):
        def __del__(self) -> None:
            alive.remove(id(self))

    def hostile(body: bytes, version: int, compressed: bool, limit: int) -> Generator[None, None, RegisterBrokerBody]:
        held = Body(body)
        alive.append(id(held))
        return (yield from decode_register_body(held, version, compressed, limit))

    monkeypatch.setattr(registrations, "decode_register_body", hostile)
    with live_server(tmp_path) as server, Peer(server.port) as peer, no_collections():
        refused = peer.call(103, broker_fields(), b'{"a":' + LARGE)
        assert refused.code == 1
        assert "Failed to decode" in (refused.header.remark or "")
        wait_until(lambda: server.do(lambda: not alive), "the body to be freed", 60)


class RefusingNode(IndependentNode):
    """A node that raises unexpected exceptions."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.register = None  # type: ignore[assignment,method-assign]  # must not be called again


def test_an_unexpected_error_is_answered_and_the_next_one_is_served(tmp_path: Path) -> None:
    with live_server(tmp_path, RefusingNode) as server, Peer(server.port) as peer:
        for _ in range(2):
            assert peer.call(103, broker_fields(), LARGE).code == 1
        assert server.metrics.unexpected_errors == {"TypeError": 2}
        assert queued_bytes(server) == 0
