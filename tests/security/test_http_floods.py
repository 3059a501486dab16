"""Requests to the admin port that cost more than they look."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.security.attacked import MODES, AttackedNode, attacked
from tests.security.test_one_host import HOSTILE, connection

BOMB = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (number, b"y" * 8_000) for number in range(2_000))
CONNECTIONS, ROUNDS = 12, 3
GROWTH_KIB_MAX = 120 << 10


def peak_kib(node: AttackedNode) -> int:
    status = Path(f"/proc/{node.command.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def send_bombs(port: int) -> None:
    """Send the bombs over one connection after the other."""
    for _ in range(ROUNDS):
        with connection(port, HOSTILE) as peer, contextlib.suppress(OSError):
            peer.sendall(BOMB)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_headers_without_end_cost_no_memory(tmp_path: Path, mode: str) -> None:
    """In an earlier version, a node grew by 320 MB, although it refused more than 128 headers."""
    with attacked(tmp_path, mode) as node:
        assert node.http("/livez").status == 200
        before = peak_kib(node)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for sent in [pool.submit(send_bombs, node.admin_port) for _ in range(CONNECTIONS)]:
                sent.result()
        assert node.http("/livez").status == 200
        assert peak_kib(node) - before < GROWTH_KIB_MAX
