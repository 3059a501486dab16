"""``namesrv restore --merge``: KV config and shared settings of a backup for nodes that hold data already."""

import asyncio
import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.process import ServingNode
from replicated_namesrv.routes.backup import encode
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager, RouteSettings
from tests.support.nodes import http, run_command, running_command
from tests.support.operated import operated, run
from tests.support.routes import register
from tests.support.waiting import until


def backup_file(path: Path) -> Path:
    """KV config, a changed setting, and a broker that is not there any more."""
    state = RouteInfoManager(RouteSettings(order_message_enable=True))
    state.apply(register("gone", 0, "10.0.0.9:10911", topics=("Old", "Older")), 1)
    for key in ("a/b", "k", "ä"):
        state.apply(PutKVConfig("N", key, f"value of {key}"), 2)
    origin = {"revision": state.revision, "mode": "cp", "clusterId": "c", "nodeId": "n1"}
    path.write_bytes(b"".join(encode(origin, state.snapshot())))
    return path


def kv(node: ServingNode) -> dict[str, dict[str, str | None]]:
    return {name: dict(table) for name, table in node.service.state.kv_table().items()}


def knows(node: ServingNode, brokers: int) -> bool:
    return node.service.state.broker_count == brokers


WHOLE = {"a/b": "value of a/b", "k": "value of k", "ä": "value of ä"}


async def test_brokers_that_registered_stay_and_kv_config_and_settings_are_added(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "a.backup")
    async with operated(tmp_path) as cluster:
        arguments = ("broker", "--brokers", "1", "--topics", "2", "-n", cluster.namesrv)
        with running_command(*arguments, stderr=tmp_path / "broker.err"):
            for node in cluster.nodes:
                await until(partial(knows, node, 1), "the broker")
            refused = await run("restore", str(file), "-a", cluster.admin)
            assert refused.code == 1
            assert "not fresh, it contains 1 brokers" in refused.err
            assert "namesrv restore --merge" in refused.err
            done = await run("restore", "--merge", str(file), "-a", cluster.admin, "--json")
            assert done.code == 0, done
            (told,) = json.loads(done.out)["merged"]
            assert (told["kvEntriesAdded"], told["settingsChanged"]) == (3, {"orderMessageEnable": True})
            assert (told["brokersThere"], told["topicsOnlyInBackup"]) == (1, 2)
            again = await run("restore", "--merge", str(file), "-a", cluster.admin)
            assert again.code == 0, again
            assert "0 KV entries added, 3 were there; shared settings changed: none" in again.out
            for node in cluster.nodes:
                await until(partial(has_setting, node), "the setting")
                assert kv(node) == {"N": WHOLE}
                assert knows(node, 1)
                assert node.service.state.route("Old") is None


def has_setting(node: ServingNode) -> bool:
    return node.service.state.settings.order_message_enable


async def test_keys_with_other_values_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "a.backup")
    async with operated(tmp_path, 1) as cluster:
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/k", "PUT", b"newer")).status == 200
        assert (await http(cluster.admin_ports[0], "/v1/kv/other/k", "PUT", b"stays")).status == 200
        refused = await run("restore", "--merge", str(file), "-a", cluster.admin)
        assert refused.code == 1
        assert "1 keys have other values there than in the backup: N/k" in refused.err
        assert kv(cluster.nodes[0]) == {"N": {"k": "newer"}, "other": {"k": "stays"}}
        assert not has_setting(cluster.nodes[0])
        assert (await http(cluster.admin_ports[0], "/v1/kv/N/k", "DELETE")).status == 200
        assert (await run("restore", "--merge", str(file), "-a", cluster.admin)).code == 0
        assert kv(cluster.nodes[0]) == {"N": WHOLE, "other": {"k": "stays"}}


async def test_each_independent_node_gets_a_copy(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "a.backup")
    async with operated(tmp_path, 2, "ap") as nodes:
        done = await run("restore", "--merge", str(file), "-a", nodes.admin)
        assert done.code == 0, done
        assert done.out.count("merged into") == 2
        for node in nodes.nodes:
            assert kv(node) == {"N": WHOLE}
            assert has_setting(node)


async def test_an_independent_node_that_does_not_answer_is_named(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "a.backup")
    async with operated(tmp_path, 1, "ap") as nodes:
        refused = await run("restore", "--merge", str(file), "-a", f"{nodes.admin};127.0.0.1:1")
        assert (refused.code, kv(nodes.nodes[0])) == (2, {})
        assert "each independent node gets its own copy, so all of them must answer; 127.0.0.1:1: no answer" in refused.err


async def test_an_empty_cluster_is_restored_as_a_whole(tmp_path: Path) -> None:
    file = backup_file(tmp_path / "a.backup")
    async with operated(tmp_path, 1) as cluster:
        done = await run("restore", "--merge", str(file), "-a", cluster.admin)
        assert done.code == 0, done
        assert "restored: revision" in done.out
        assert knows(cluster.nodes[0], 1)


async def test_entries_with_any_name_are_merged(tmp_path: Path) -> None:
    state = RouteInfoManager()
    for name in ("", ".", "..", "a/../b", "/", "%2E", "\n", "?", "{}", "\u2028", "é" * 512):
        state.apply(PutKVConfig("N", name, "v"), 1)
        state.apply(PutKVConfig(name, "k", "v"), 1)
    origin = {"revision": state.revision, "mode": "cp", "clusterId": "c", "nodeId": "n1"}
    (tmp_path / "file").write_bytes(b"".join(encode(origin, state.snapshot())))
    async with operated(tmp_path, 1, "ap") as nodes:
        done = await run("restore", "--merge", str(tmp_path / "file"), "-a", nodes.admin)
        assert done.code == 0, done
        assert kv(nodes.nodes[0]) == {name: dict(table) for name, table in state.kv_table().items()}


async def test_a_restore_passes_over_a_node_that_accepts_connections_but_does_not_answer(tmp_path: Path) -> None:
    """Such as a paused node. The time limit for the answer to a restore is ten minutes."""
    file = str(backup_file(tmp_path / "file"))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        done = await run("restore", file, "-a", silent, "--timeout-ms", "200")
        assert (done.code, "no answer within 0.2 s" in done.err) == (2, True)
        async with operated(tmp_path) as cluster:
            await cluster.elected()
            done = await run("restore", file, "-a", f"{silent};{cluster.admin}", "--timeout-ms", "2000")
            assert done.code == 0, done


@pytest.mark.slow
async def test_a_restore_that_another_one_replaces_does_not_add_a_part_of_its_file(tmp_path: Path) -> None:
    """Only a cluster with data gets the KV config alone. Here, the brokers would be missing."""
    file, state = backup_file(tmp_path / "small"), RouteInfoManager()
    for number in range(400):
        state.apply(PutKVConfig("L", f"k{number}", "v" * 100_000), 1)
    large = tmp_path / "large"
    large.write_bytes(
        b"".join(encode({"revision": state.revision, "mode": "cp", "clusterId": "c", "nodeId": "n1"}, state.snapshot()))
    )
    async with operated(tmp_path / "nodes", 3) as cluster:
        one, other = (f"127.0.0.1:{port}" for port in cluster.admin_ports[:2])
        service: Any = cluster.nodes[1].service
        first = asyncio.ensure_future(asyncio.to_thread(run_command, "restore", str(large), "--merge", "-a", one))
        await until(lambda: service._leftovers._machine.incoming is not None, "the large backup arrives at the second node")
        second = await run("restore", str(file), "-a", other)
        replaced = await first
        assert second.code == 0, second
        assert (replaced.returncode, "another one has replaced it" in replaced.stderr) == (1, True), replaced
        await until(lambda: knows(cluster.nodes[0], 1), "the broker of the small backup")
        assert set(kv(cluster.nodes[0])) == {"N"}
