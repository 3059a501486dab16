"""Operators see a disk whose syncs do not end."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.raft_config import RaftConfig
from tests.support.nodes import http, running_node
from tests.support.ports import free_ports


async def unsynced_seconds(port: int) -> float:
    lines = (await http(port, "/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("namesrv_unsynced_seconds ")).split()[1])


async def test_a_hung_disk_is_shown_with_its_age_until_it_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node: no other can become leader, and a change is refused."""
    monkeypatch.setattr("replicated_namesrv.replication.replicated_node.RaftConfig", partial(RaftConfig, sync_stall_ms=200))
    release, sync = threading.Event(), FileStorage.sync

    def hang(storage: FileStorage, names: Sequence[str], directory: bool) -> None:
        if threading.current_thread().name.startswith("raft-log-sync"):
            release.wait()
        sync(storage, names, directory)

    flags = {"mode": "cp", "nodeId": "n1", "clusterId": "test", "peers": f"n1=127.0.0.1:{free_ports(1)[0]}"}
    async with running_node(tmp_path, **flags) as (_, port):
        assert (await http(port, "/readyz?verbose")).text == "[+] disk: ok\n[+] service: ok\n[+] remoting: ok\n"
        monkeypatch.setattr(FileStorage, "sync", hang)
        try:
            change = asyncio.ensure_future(http(port, "/v1/kv/space/key", "PUT", b"value"))
            answer = await http(port, "/readyz?format=json")
            while answer.status == 200:
                answer = await http(port, "/readyz?format=json")
            assert (answer.status, answer.json["failedLayer"]) == (503, "disk")
            assert "has not finished a sync that was requested" in answer.json["layers"][0]["problem"]
            assert await unsynced_seconds(port) >= 0.2
            refused = await http(port, "/v1/kv/space/other", "PUT", b"value")
            assert (refused.status, refused.json["outcome"]) == (503, "not done")
        finally:
            release.set()
        await change
        while (await http(port, "/readyz")).status != 200 or await unsynced_seconds(port) > 0:
            pass
