"""Connections must not take the descriptors that files and peers need."""

import contextlib
import os
import resource
from pathlib import Path

import pytest

from replicated_namesrv.raft.file_storage import FileStorage
from tests.security.attacked import MODES, attacked
from tests.security.test_one_host import HOSTILE, connection
from tests.support.ports import free_port

FILES = 512


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_idle_connections_do_not_end_a_node_that_writes(tmp_path: Path, mode: str) -> None:
    with attacked(tmp_path, mode, files_max=FILES) as node, contextlib.ExitStack() as held:
        for number in range(FILES + 100):
            with contextlib.suppress(OSError):
                held.enter_context(connection(node.port, f"127.0.0.{2 + number % 20}"))
        for number in range(5):
            body = f"value {number}".encode()
            answer = node.http(f"/v1/kv/n/{number}", "PUT", body)
            assert (answer.status, answer.json["changed"]) == (200, True)
        assert len(os.listdir(f"/proc/{node.command.process.pid}/fd")) < FILES - 50, "room for files and peers"
        assert node.is_running()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_one_host_at_all_ports_leaves_descriptors(tmp_path: Path, mode: str) -> None:
    """In an earlier version, the admin and health ports could use all descriptors, if the process could have fewer than 1,000."""
    health = free_port()
    with attacked(tmp_path, mode, f"healthListen=127.0.0.1:{health}", files_max=FILES) as node, contextlib.ExitStack() as held:
        peers = [node.port + 2] if mode == "cp" else []
        for port in (node.admin_port, health, *peers, node.port):
            for _ in range(FILES - 100):
                with contextlib.suppress(OSError):
                    held.enter_context(connection(port, HOSTILE))
        assert node.http("/v1/kv/n/k", "PUT", b"v").status == 200
        assert len(os.listdir(f"/proc/{node.command.process.pid}/fd")) < FILES


def test_the_log_is_written_without_any_descriptor_left(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path / "raft")
    storage.append("log", b"a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for number in range(20):
            storage.append("log", b"b")
            storage.append("other", b"c")
            storage.sync(["log", "other"], directory=True)
            assert storage.list_names() == ["log", "other"]
            assert storage.read("log") == b"a" + b"b" * (number + 1)
            storage.remove("other")
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        storage.close()
