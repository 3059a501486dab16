"""``snapshotEntries``: when a node writes a snapshot and drops the log before it."""

from pathlib import Path

import pytest

from replicated_namesrv.errors import SettingError
from replicated_namesrv.replication.replicated_node import ReplicatedNode, raft_config
from replicated_namesrv.settings_sources import load_settings
from tests.support.nodes import http, running_node
from tests.support.ports import free_port
from tests.support.waiting import until


def test_a_tenth_of_the_entries_is_kept() -> None:
    config = raft_config(load_settings(None, {"snapshotEntries": "1000"}, {}), 1_000)
    assert (config.compact_entries, config.compact_margin_entries) == (1_000, 100)
    config = raft_config(load_settings(None, {}, {}), 1_000)
    assert (config.compact_entries, config.compact_margin_entries) == (50_000, 5_000)


def test_few_entries_are_refused() -> None:
    with pytest.raises(SettingError, match=r"snapshotEntries.*100"):
        load_settings(None, {"snapshotEntries": "99"}, {})


async def test_a_node_starts_from_a_snapshot(tmp_path: Path) -> None:
    flags = {"mode": "cp", "nodeId": "n1", "peers": f"n1=127.0.0.1:{free_port()}", "snapshotEntries": "100"}
    async with running_node(tmp_path, **flags) as (node, port):
        for number in range(150):
            assert (await http(port, f"/v1/kv/N/{number}", "PUT", b"v")).status == 200

        assert isinstance(node.service, ReplicatedNode)
        raft = node.service.consensus._raft
        await until(lambda: raft.status()["snapshots_taken"], "a snapshot")
    async with running_node(tmp_path, **flags) as (_, port):
        found = (await http(port, "/v1/kv?namespace=N&limit=1000")).json
        assert len(found["entries"]) == 150
