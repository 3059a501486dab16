"""Code 905: reused connections, recipients that cannot be reached, a bounded queue."""

import socket
from pathlib import Path

from replicated_namesrv.routes.results import NotifyMinBrokerIdChange
from replicated_namesrv.server.pushes import Pushes
from tests.support.remoting_server import Answer, ServerThread, live_server
from tests.support.waiting import wait_until


def pushes_of(server: ServerThread) -> Pushes:
    return server.server._pushes


def change(number: int, *recipients: str) -> NotifyMinBrokerIdChange:
    return NotifyMinBrokerIdChange(recipients, number, "10.0.0.1:1", None, None)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def test_pushes_to_one_broker_come_in_order_over_one_connection(tmp_path: Path) -> None:
    with live_server(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as broker:
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        for number in range(20):
            server.do(lambda number=number: pushes_of(server).perform((change(number, address),)))  # type: ignore[misc]
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


def test_waiting_pushes_are_bounded(tmp_path: Path) -> None:
    with live_server(tmp_path, serverOnewaySemaphoreValue="5") as server:
        address = f"127.0.0.1:{closed_port()}"
        server.do(lambda: pushes_of(server).perform([change(n, address) for n in range(12)]))
        assert server.metrics.pushes["dropped"] == 7
        wait_until(lambda: server.metrics.pushes.get("failed") == 5, "the others to fail")
        server.do(lambda: pushes_of(server).perform((change(0, address),)))
        wait_until(lambda: server.metrics.pushes["failed"] == 6, "room again")
