"""The state of one survivor: a stale backup of a running node, and ``namesrv recover`` on a stopped node's disk."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from replicated_namesrv.cli.new_cluster import make
from replicated_namesrv.errors import StorageError
from replicated_namesrv.process import ServingNode, StartError
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.recovery import recover
from replicated_namesrv.replication import replicated_node
from replicated_namesrv.replication.cluster_restore import RestorableMachine
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.state import RouteInfoManager
from replicated_namesrv.settings_sources import load_settings
from tests.support.nodes import put_kv
from tests.support.operated import operated, run
from tests.support.ports import free_ports
from tests.support.replicated_processes import ReplicatedProcesses, eventually, replicated_processes
from tests.support.waiting import until


@pytest.mark.slow
async def test_the_disk_of_one_survivor_becomes_a_new_cluster(tmp_path: Path) -> None:
    stale, saved = tmp_path / "stale.backup", tmp_path / "survivor.backup"
    async with replicated_processes(tmp_path / "old") as cluster:
        for number in range(20):
            await put_kv(cluster.nodes["n1"].plan.admin[1], f"N/k{number}", f"v{number}".encode())
        set_on = await run("config", "set", "orderMessageEnable=true", "-n", cluster.address("n1"))
        assert set_on.code == 0, set_on
        await cluster.agree()
        admin = f"127.0.0.1:{cluster.nodes['n3'].plan.admin[1]}"
        folder = cluster.nodes["n3"].plan.data_dir
        in_use = await run("recover", str(folder), str(saved))
        assert (in_use.code, saved.exists()) == (1, False)
        assert "stop the node first" in in_use.err

        await cluster.kill("n1", "n2")
        await eventually(lambda: _fenced(cluster, "n3"), "n3 to be fenced")
        refused = await run("backup", str(stale), "-a", admin)
        assert refused.code == 1
        assert "namesrv backup --stale" in refused.err
        done = await run("backup", str(stale), "-a", admin, "--stale", "--json")
        assert done.code == 0, done
        assert json.loads(done.out)["readLevel"] == "stale"
        assert "may lack acknowledged changes" in (await run("backup", "--check", str(stale))).out

        await cluster.kill("n3")
        before = {path.name: path.read_bytes() for path in (folder / "raft").iterdir()}
        looked = await run("recover", str(folder))
        assert looked.code == 0, looked
        assert "20 KV entries" in looked.out
        assert "lost: every change that the other nodes acknowledged after entry" in looked.out
        assert "nothing was saved" in looked.out
        done = await run("recover", str(folder), str(saved), "--json")
        assert done.code == 0, done
        told = json.loads(done.out)
        assert (told["nodeId"], told["votes"], told["kvEntries"], told["damage"]) == ("n3", True, 20, [])
        assert {path.name: path.read_bytes() for path in (folder / "raft").iterdir()} == before, "it writes nothing"
        assert "recovered from one disk" in (await run("backup", "--check", str(saved))).out
        again = await run("recover", str(folder), str(saved))
        assert again.code == 1
        assert "--force" in again.err
    async with operated(tmp_path / "new") as fresh:
        done = await run("restore", str(saved), "-a", fresh.admin, "--json")
        assert done.code == 0, done
        revision = json.loads(done.out)["revision"]
        for node in fresh.nodes:
            state = node.service.state
            await until(partial(_has_revision, node, revision), "the restored state")
            assert dict(state.kv_table()["N"]) == {f"k{number}": f"v{number}" for number in range(20)}
            assert state.settings.order_message_enable


async def test_the_survivor_becomes_the_first_node_of_a_new_cluster(tmp_path: Path) -> None:
    async with operated(tmp_path) as old:
        for number in range(20):
            await put_kv(old.admin_ports[0], f"N/k{number}", b"v")
        set_on = await run("config", "set", "orderMessageEnable=true", "-n", old.namesrv)
        assert set_on.code == 0, set_on
        revision = max(node.service.state.revision for node in old.nodes)
        await until(lambda: _has_revision(old.named("n3"), revision), "the state of the survivor")
    folder = tmp_path / "n3"
    before = {path.name: path.read_bytes() for path in (folder / "raft").iterdir()}
    same = await run("recover", str(folder), "--force-new-cluster", "namesrv")
    assert same.code == 1
    assert "is the id of the old cluster" in same.err
    for unusable in ("", " rescued", "a\nb", "x" * 101):  # an empty clusterId is the default, perhaps that of the old cluster
        refused = await run("recover", str(folder), "--force-new-cluster", unusable)
        assert refused.code == 1, refused
        assert "give 1 to 100 letters" in refused.err
    aside = folder / "raft.before-ap"
    shutil.copytree(folder / "raft", aside)
    refused = await run("recover", str(aside), "--force-new-cluster", "rescued")
    assert refused.code == 1
    assert f"{aside}: --force-new-cluster takes the dataDir of the node" in refused.err
    assert not (folder / "raft.before-new-cluster").exists(), "the log in raft was not the one that was read"
    done = await run("recover", str(folder), "--force-new-cluster", "rescued")
    assert done.code == 0, done
    assert done.out.index("lost: every change") < done.out.index("n3 is the only member of the new cluster rescued")
    assert {path.name: path.read_bytes() for path in (folder / "raft.before-new-cluster").iterdir()} == before
    again = await run("recover", str(folder), "--force-new-cluster", "rescued-2")
    assert again.code == 1
    assert "move it away first" in again.err
    (folder / "new-cluster").mkdir()  # as after an interruption between the last two steps
    repeated = await run("recover", str(folder), "--force-new-cluster", "rescued")
    assert (repeated.code, "n3 is the only member of the new cluster rescued" in repeated.out) == (0, True), repeated
    assert not (folder / "new-cluster").exists()
    assert {path.name: path.read_bytes() for path in (folder / "raft.before-new-cluster").iterdir()} == before
    earlier = await run("recover", str(folder / "raft.before-new-cluster"), "--force-new-cluster", "namesrv")
    assert (earlier.code, "--force-new-cluster takes the dataDir of the node" in earlier.err) == (1, True), earlier
    (folder / "raft").rename(folder / "aside")
    interrupted = await run("recover", str(folder), "--force-new-cluster", "rescued-2")
    assert interrupted.code == 1
    assert "Rename raft.before-new-cluster to raft, and repeat the command" in interrupted.err
    (folder / "aside").rename(folder / "raft")

    (port,) = free_ports(1)
    flags = {"nodeId": "n3", "mode": "cp", "listen": "127.0.0.1:0", "adminListen": "127.0.0.1:0", "dataDir": str(folder)}
    with pytest.raises(StartError, match="belongs to cluster 'rescued'"):
        await ServingNode(load_settings(None, {**flags, "peers": f"n3=127.0.0.1:{port}"}, {})).start()
    node = ServingNode(load_settings(None, {**flags, "peers": f"n3=127.0.0.1:{port}", "clusterId": "rescued"}, {}))
    await node.start()
    try:
        state = node.service.state
        assert dict(state.kv_table()["N"]) == {f"k{number}": "v" for number in range(20)}
        assert state.settings.order_message_enable
        assert node.admin is not None
        assert node.admin.address is not None
        await put_kv(node.admin.address[1], "N/later", b"v")
    finally:
        await node.stop()


async def test_members_that_were_added_and_a_disk_without_a_vote_are_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with operated(tmp_path, 1) as cluster:
        flags = {"nodeId": "n2", "mode": "cp", "listen": "127.0.0.1:0", "adminListen": "127.0.0.1:0"}
        flags |= {"join": cluster.nodes[0].settings.peers, "peerListen": f"127.0.0.1:{port}", "dataDir": str(tmp_path / "n2")}
        node = ServingNode(load_settings(None, flags, {}))
        starting = asyncio.ensure_future(node.start())
        try:
            added = await run("members", "add", "n2", flags["peerListen"], "--observer", "-a", cluster.admin)
            assert added.code == 0, added
            async with asyncio.timeout(20):
                await starting
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await node.stop()
    for name in ("n1", "n2"):
        shown = await run("recover", str(tmp_path / name))
        assert shown.code == 0, shown
        assert f"node {name} of cluster namesrv (n1, n2): last entry" in shown.out
        assert ("had no vote, and may lack much of the state: it was an observer" in shown.out) is (name == "n2")


async def test_a_node_that_was_started_meanwhile_keeps_its_log(tmp_path: Path) -> None:
    async with operated(tmp_path, 1):
        with pytest.raises(StorageError, match=r"nothing was changed: .* stop the node first"):
            await asyncio.to_thread(make, tmp_path / "n1", "n1", "rescued", RouteInfoManager())
        assert (tmp_path / "n1" / "raft" / "identity").exists()
        assert not (tmp_path / "n1" / "raft.before-new-cluster").exists()


def _has_revision(node: ServingNode, revision: int) -> bool:
    return node.service.state.revision == revision


async def _fenced(cluster: ReplicatedProcesses, name: str) -> bool:
    return bool((await cluster.status(name))["fenced"])


@pytest.mark.slow
async def test_a_restarted_node_without_majority_says_how_to_read_its_disk(tmp_path: Path) -> None:
    async with replicated_processes(tmp_path) as cluster:
        await cluster.kill("n1", "n2", "n3")
        await cluster.start_node("n1")
        admin = f"127.0.0.1:{cluster.nodes['n1'].plan.admin[1]}"

        async def refused() -> bool:
            done = await run("backup", str(tmp_path / "b"), "-a", admin, "--stale")
            return done.code == 1 and "namesrv recover" in done.err

        await eventually(refused, "the advice to read the disk")


async def test_the_recovered_state_is_that_of_the_node_that_wrote_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated_node, "RaftConfig", partial(RaftConfig, segment_bytes=4_000))
    async with operated(tmp_path, 1, snapshotEntries="100") as one:
        for number in range(300):
            await put_kv(one.admin_ports[0], f"N/k{number % 7}", str(number).encode())
        digest = one.nodes[0].service.state.digest()
    assert any(path.name.startswith("snapshot-") for path in (tmp_path / "n1" / "raft").iterdir())
    machine = RouteStateMachine()
    found = recover(tmp_path / "n1" / "raft", RestorableMachine(machine))
    assert machine.state.digest() == digest
    assert found.votes


@pytest.mark.parametrize(("content", "code", "text"), [(None, 2, "give the dataDir"), (b"damaged", 1, "namesrv log inspect")])
async def test_a_folder_without_a_state(tmp_path: Path, content: bytes | None, code: int, text: str) -> None:
    if content is not None:
        (tmp_path / "identity").write_bytes(content)
    done = await run("recover", str(tmp_path))
    assert done.code == code, done
    assert text in done.err
    assert "Traceback" not in done.err
