"""Code 905: reused connections, recipients that cannot be reached, a bounded queue."""

import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replicated_namesrv.routes.results import NotifyMinBrokerIdChange
from replicated_namesrv.server.problems import Problems
from replicated_namesrv.server.push_sender import Pushes
from replicated_namesrv.server.server_metrics import ServerMetrics
from replicated_namesrv.server.tls import self_signed_files
from replicated_namesrv.settings import Settings
from tests.support.remoting_server import Answer, ServerThread, live_server
from tests.support.waiting import until, wait_until


def pushes_of(server: ServerThread) -> Pushes:
    return server.server._pushes


def change(number: int, *recipients: str) -> NotifyMinBrokerIdChange:
    return NotifyMinBrokerIdChange(recipients, number, "10.0.0.1:1", None, None)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def test_pushes_to_one_broker_come_in_order_over_one_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicated_namesrv.server.push_sender.SEND_TIMEOUT_S", 60)
    with live_server(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        for number in range(20):
            server.do(lambda number=number: pushes_of(server).perform((change(number, address),)))  # type: ignore[misc]  # a default of a lambda
        accepted, _ = broker.accept()
        with accepted, accepted.makefile("rb") as stream:
            for number in range(20):
                prefix = stream.read(4)
                push = Answer(prefix + stream.read(int.from_bytes(prefix)))
                assert (push.header.code, push.header.flag) == (905, 2)
                assert push.header.ext_fields == {"minBrokerId": str(number), "minBrokerAddr": "10.0.0.1:1"}
        assert server.metrics.pushes == {"sent": 20}


def test_a_recipient_that_cannot_be_reached_delays_nobody(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as broker:
        good = f"127.0.0.1:{broker.getsockname()[1]}"
        bad = (f"127.0.0.1:{closed_port()}", "no-port", "name.invalid:1")
        server.do(lambda: pushes_of(server).perform((change(0, *bad, good),)))
        accepted, _ = broker.accept()
        accepted.close()
        wait_until(lambda: server.metrics.pushes == {"sent": 1, "failed": 3}, "all outcomes")


async def test_names_that_no_server_resolves_occupy_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks up a name until the resolver gives up. In an earlier version, pushes to names of an attacker occupied all
    threads, and a node that dials its peers by name could not reach them for minutes."""
    look_up, gives_up, asked = socket.getaddrinfo, threading.Event(), list[str]()

    def unanswered(host: str, *more: object, **options: object) -> object:
        if not host.endswith(".test"):
            return look_up(host, *more, **options)  # type: ignore[arg-type]  # as the caller gives them
        asked.append(host)
        gives_up.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unanswered)
    metrics = ServerMetrics()
    pushes = Pushes(Settings(), metrics, Problems())
    with socket.create_server(("127.0.0.1", 0)) as broker:
        port = broker.getsockname()[1]
        pushes.perform((change(0, *(f"b{number}.test:1" for number in range(20))),))
        await until(lambda: metrics.pushes == {"failed": 20}, "all failures")
        await until(lambda: asked, "a look-up")
        assert len(asked) == 1
        monkeypatch.setattr("replicated_namesrv.server.push_sender.SEND_TIMEOUT_S", 60)
        pushes.perform((change(1, f"127.0.0.1:{port}"),))
        await until(lambda: metrics.pushes == {"failed": 20, "sent": 1}, "a push to an address")
        gives_up.set()
        pushes.perform((change(2, f"localhost:{port}"),))
        await until(lambda: sum(metrics.pushes.values()) == 22, "a push to a name")
        assert metrics.pushes["sent"] == 2
    await pushes.stop()


@contextmanager
def tls_broker(certificate: Path, key: Path, trusted: Path) -> Iterator[tuple[str, queue.Queue[bytes | None]]]:
    """A TLS listener that asks for a client certificate: its address, and the first frame of each connection or None."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(trusted))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    frames: queue.Queue[bytes | None] = queue.Queue()

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(accepted, server_side=True) as connection, connection.makefile("rb") as stream:
                    prefix = stream.read(4)
                    frames.put(prefix + stream.read(int.from_bytes(prefix)) if prefix else None)
            except OSError:
                frames.put(None)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", frames


@pytest.mark.parametrize("trusted", [True, False])
def test_pushes_over_tls(tmp_path: Path, trusted: bool) -> None:
    """Pushes go to a broker that requires TLS and a client certificate. A broker with an unknown certificate gets no push."""
    for name in ("broker", "node", "other"):
        (tmp_path / name).mkdir()
    certificate, key = self_signed_files(tmp_path / "broker")
    own_certificate, own_key = self_signed_files(tmp_path / "node")
    trust = certificate if trusted else self_signed_files(tmp_path / "other")[0]
    flags = {"useTLS": "true", "tls__test__mode__enable": "false", "connectTimeoutMillis": "60000"}
    flags |= {"tls__client__certPath": str(own_certificate), "tls__client__keyPath": str(own_key)}
    flags |= {"tls__client__authServer": "true", "tls__client__trustCertPath": str(trust)}
    with live_server(tmp_path, **flags) as server, tls_broker(certificate, key, own_certificate) as (address, frames):
        server.do(lambda: pushes_of(server).perform((change(3, address),)))
        frame = frames.get(timeout=60)
        outcome = {"sent": 1} if trusted else {"failed": 1}
        wait_until(lambda: server.metrics.pushes == outcome, "the outcome")
        assert (frame is not None) == trusted
        if frame is not None:
            assert Answer(frame).header.code == 905


def test_waiting_pushes_are_bounded(tmp_path: Path) -> None:
    with live_server(tmp_path, serverOnewaySemaphoreValue="5") as server:
        address = f"127.0.0.1:{closed_port()}"
        server.do(lambda: pushes_of(server).perform([change(n, address) for n in range(12)]))
        assert server.metrics.pushes["dropped"] == 7
        wait_until(lambda: server.metrics.pushes.get("failed") == 5, "the others to fail")
        server.do(lambda: pushes_of(server).perform((change(0, address),)))
        wait_until(lambda: server.metrics.pushes["failed"] == 6, "room again")
