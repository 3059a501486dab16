"""A host that requests large answers over many connections, and reads none of them."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from replicated_namesrv.admin.unread import UNREAD_BYTES_MAX
from tests.security.attacked import MODES, attacked
from tests.security.test_http_floods import peak_kib
from tests.security.test_one_host import HOSTILE
from tests.support.nodes import DEADLINE_S
from tests.support.waiting import wait_until

VALUE_BYTES, VALUES, CONNECTIONS = 1 << 20, 12, 100
PATHS = ("/v1/backup", "/v1/topics?limit=1000", *["/v1/kv?limit=1000"] * 8)
GROWTH_KIB_MAX = (UNREAD_BYTES_MAX >> 10) + (100 << 10)
"""The unread answers, those that are being made, and the connections. Without limits, the answers use more than 600 MiB."""


def request(port: int, path: str) -> socket.socket:
    """A connection with a request whose answer is not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(DEADLINE_S)
    peer.bind((HOSTILE, 0))
    peer.connect(("127.0.0.1", port))
    peer.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return peer


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_unread_answers_cost_bounded_memory(tmp_path: Path, mode: str) -> None:
    """In an earlier version, each connection kept its whole answer in memory, without a time limit."""
    with attacked(tmp_path, mode) as node, ExitStack() as stack:
        for number in range(VALUES):
            assert node.http(f"/v1/kv/n/{number}", "PUT", b"v" * VALUE_BYTES).status == 200
        before = peak_kib(node)
        for number in range(CONNECTIONS):
            stack.enter_context(request(node.admin_port, PATHS[number % len(PATHS)]))
        wait_until(lambda: 'limits_hit_total{limit="unreadAnswers"}' in node.http("/metrics").text, "the limit", DEADLINE_S)
        assert peak_kib(node) - before < GROWTH_KIB_MAX
        assert node.http("/readyz").status == 200
        assert "Traceback" not in node.log
