"""One hostile host, 127.0.0.2: other hosts still find resources at the node."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicated_namesrv.admin.app import ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX
from replicated_namesrv.raft.transport import UNAUTHENTICATED_MAX
from tests.security.attacked import MODES, AttackedNode, attacked
from tests.support.authority import Authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

HOSTILE = "127.0.0.2"
CONNECTIONS, PER_ADDRESS = 60, 20
LIMIT_S = 60


@pytest.fixture(scope="module", params=MODES)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    limits = (f"maxConnections={CONNECTIONS}", f"maxConnectionsPerAddress={PER_ADDRESS}")
    health = f"healthListen=127.0.0.1:{free_port()}"
    with attacked(
        tmp_path_factory.mktemp(request.param), request.param, *limits, health, "proxyProtocolFrom=127.0.0.3/32"
    ) as one:
        yield one


@contextlib.contextmanager
def connections(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections of the hostile host; each sends the same bytes."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(connection(port, HOSTILE)))
            with contextlib.suppress(OSError):
                opened[-1].sendall(sent)
        yield opened


def connection(port: int, host: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), LIMIT_S, (host, 0))


def closed(sockets: list[socket.socket]) -> int:
    """The number of sockets that the node has closed without an answer so far."""
    count = 0
    for each in sockets:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            try:
                count += not each.recv(1)
            except ConnectionError:
                count += 1
    return count


def wait_for_closed(sockets: list[socket.socket], wanted: int, what: str) -> None:
    """Wait until the node has closed exactly ``wanted`` of the sockets."""
    counts: list[int] = []

    def is_reached() -> bool:
        counts.append(closed(sockets))
        return counts[-1] == wanted

    try:
        wait_until(is_reached, what)
    except AssertionError as error:
        error.add_note(f"{len(sockets)} connections, to be closed {wanted}, closed {counts[:5]} … {counts[-5:]}")
        raise


def test_idle_connections_of_one_host_leave_room(node: AttackedNode) -> None:
    with connections(node.port, CONNECTIONS + PER_ADDRESS) as held:
        wait_for_closed(held, CONNECTIONS, "all but those that one address may have")
        assert node.config()["maxConnections"] == str(CONNECTIONS)


def test_slow_requests_to_the_admin_port_leave_room_and_health_is_apart(node: AttackedNode) -> None:
    with connections(node.admin_port, CONNECTIONS_MAX, b"GET /livez HTTP/1.1\r\nHost: ") as held:
        wait_for_closed(held, CONNECTIONS_MAX - ADDRESS_CONNECTIONS_MAX, "all but those of one address")
        assert node.http("/livez").status == 200
        health = int(node.config()["healthListen"].rpartition(":")[2])
        with connection(health, HOSTILE) as probe:
            probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert probe.recv(1000).startswith(b"HTTP/1.1 200")
        with connection(health, HOSTILE) as probe:
            probe.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert probe.recv(1000).startswith(b"HTTP/1.1 404")


@pytest.mark.slow
def test_silent_peers_of_one_host_do_not_keep_a_node_out(tmp_path: Path) -> None:
    """In an earlier version, 400 sockets delayed the restart of a node by 28 s."""
    with (
        attacked(tmp_path, "cp") as node,
        connections(node.port + 2, UNAUTHENTICATED_MAX + 20),
        connection(node.port + 2, "127.0.0.1") as peer,
    ):
        assert peer.recv(4), "the greeting that a hello answers"


@pytest.mark.slow
def test_tls_handshakes_with_the_peer_port_are_limited(tmp_path: Path) -> None:
    """In an earlier version, each silent connection kept a descriptor until its handshake timed out, however many there were."""
    files = Authority(tmp_path).files("n1")
    paths = (f"peerTlsKeyPath={files.key}", f"peerTlsCertPath={files.certificate}", f"peerTlsTrustCertPath={files.authority}")
    count = 3 * UNAUTHENTICATED_MAX

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{one.command.process.pid}/fd"))

    with attacked(tmp_path, "cp", *paths) as one:
        before = descriptors()
        with connections(one.port + 2, count) as held:
            wait_until(lambda: closed(held) >= count - UNAUTHENTICATED_MAX, "all but those that may be silent")
            assert closed(held) < count, "closed because they are too many, not because the time is over"
            assert descriptors() - before <= UNAUTHENTICATED_MAX + 10
            assert one.http("/v1/kv/n/k", "PUT", b"v").status == 200


def test_proxy_headers_of_strangers_are_not_believed(node: AttackedNode) -> None:
    for host in (HOSTILE, "127.0.0.3"):
        with connection(node.port, host) as peer:
            forged = "203.0.113.9" if host == HOSTILE else "198.51.100.7"
            peer.sendall(f"PROXY TCP4 {forged} 192.0.2.1 4711 9876\r\n".encode() + bytes(100))
            assert not peer.recv(1)
    wait_until(lambda: "speak remoting" in node.log, "a line on the first")
    assert "203.0.113.9" not in node.log
