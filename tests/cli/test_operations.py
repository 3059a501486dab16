"""status, leader, watch and backup against nodes that run."""

import asyncio
import functools
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.cli import kv_import, watch
from replicated_namesrv.cli.main import main
from replicated_namesrv.cli.status import assess, of_one_cluster
from replicated_namesrv.errors import SettingError
from replicated_namesrv.process import ServingNode
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.routes import quotas
from replicated_namesrv.routes.backup import encode
from replicated_namesrv.routes.commands import PutKVConfig
from replicated_namesrv.routes.state import RouteInfoManager
from tests.support.authority import Authority
from tests.support.events import watching
from tests.support.json_outputs import check_document
from tests.support.nodes import clean_environment, command, http, run_command
from tests.support.operated import Operated, Output, operated, run
from tests.support.ports import free_port
from tests.support.waiting import until


async def put(node: ServingNode, key: str, value: str = "v") -> None:
    outcome = node.service.propose(PutKVConfig("N", key, value), None)
    if isinstance(outcome, asyncio.Future):
        await asyncio.wait_for(outcome, 60)


ATTEMPTS_MAX = 200


def has_revision(node: ServingNode, revision: int) -> bool:
    return node.service.state.revision == revision


async def run_until(code: int, *arguments: str) -> Output:
    """Run a command repeatedly until it ends with ``code``, because on a busy machine a leader may change, or a node may be ready
    late."""
    for _ in range(ATTEMPTS_MAX):
        if (done := await run(*arguments)).code == code:
            return done
    raise AssertionError(f"{arguments} never ended with {code}: {done}")


async def hand_over(cluster: Operated) -> tuple[str, str, dict[str, Any]]:
    """Transfer leadership. Returns (old leader, new leader, output of the command)."""
    for _ in range(ATTEMPTS_MAX):
        leader = (await cluster.elected()).settings.node_id
        other = next(node.settings.node_id for node in cluster.nodes if node.settings.node_id != leader)
        done = await run("leader", "transfer", other, "-a", cluster.admin, "--json")
        if done.code == 0 and done.out:
            return leader, other, json.loads(done.out)
    raise AssertionError(f"no hand-over: {done}")


async def test_status_of_a_healthy_cluster(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        await put(cluster.nodes[0], "k")
        done = await run_until(0, "status", "-a", cluster.admin, "--json")
        told = json.loads(done.out)
        assert (told["mode"], told["quorum"], told["mayFail"], told["digestsEqual"]) == ("cp", 2, 1, True)
        assert (told["revision"], told["problems"]) == (1, [])
        assert {node["role"] for node in told["nodes"]} == {"leader", "follower"}
        assert {node["lag"] for node in told["nodes"]} == {0}
        text = await run_until(0, "status", "-a", cluster.admin)
        assert "leader n" in text.out
        assert "one more may fail" in text.out
        assert "digests equal" in text.out


async def test_status_names_what_is_wrong(tmp_path: Path) -> None:
    nobody = free_port()
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        stopped = next(node for node in cluster.nodes if node is not leader)
        addresses = cluster.admin
        await stopped.stop()
        done = await run("status", "-a", addresses, "--json")
        assert done.code == 1
        told = json.loads(done.out)
        assert told["mayFail"] == 0
        (silent,) = [node["admin"] for node in told["nodes"] if not node["answers"]]
        name = stopped.settings.node_id
        (problem,) = [problem for problem in told["problems"] if name in problem or silent in problem]
        assert problem.startswith(f"{name} at {silent}: no answer (Connection refused); ")
        asked = ";".join(node["admin"] for node in told["nodes"] if node["answers"])
        told = json.loads((await run("status", "-a", asked, "--json")).out)
        assert [problem for problem in told["problems"] if name in problem] == [f"{name}: was not asked or did not answer"]
    done = await run("status", "-a", f"127.0.0.1:{nobody}")
    assert done.code == 2
    assert "no answer (Connection refused)" in done.out


async def test_status_says_that_a_node_was_removed(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        leader = await cluster.elected()
        removed = next(node for node in cluster.nodes if node is not leader)
        await run_until(0, "members", "remove", removed.settings.node_id, "-a", cluster.admin)
        await until(lambda: removed.service.fenced, "the end of service at the removed node")
        told = json.loads((await run_until(1, "status", "-a", cluster.admin, "--json")).out)
        (problem,) = [problem for problem in told["problems"] if problem.startswith(f"{removed.settings.node_id}: ")]
        assert "it was removed from the cluster" in problem
        alone = f"127.0.0.1:{removed.admin.address[1]}" if removed.admin and removed.admin.address else ""
        shown = await run("members", "list", "-a", alone, "--json")  # it knows no other admin address any more
        assert (shown.code, json.loads(shown.out)["nodeId"]) == (0, removed.settings.node_id)


async def test_a_node_that_does_not_answer_in_time_is_named_with_the_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        options = ("-a", f"127.0.0.1:{mute.getsockname()[1]}", "--timeout-ms", "200")
        asked = await run("status", *options)
        assert asked.code == 2
        assert "no answer within 0.2 s; check that the node is neither paused nor overloaded" in asked.out
        changed = await run("drain", "--undo", *options)
        assert changed.code == 2
        assert "no answer within 0.2 s; whether the change was applied is unknown; run 'namesrv status'" in changed.err


async def test_a_port_with_another_protocol_is_named_with_the_option_to_correct(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = authority.files("localhost")
    tls = {"adminTlsCertPath": str(files.certificate), "adminTlsKeyPath": str(files.key)}
    other_server = await asyncio.start_server(answer_404, "127.0.0.1", 0)
    async with (
        other_server,
        operated(tmp_path / "plain", 1, "ap") as plain,
        operated(tmp_path / "secure", 1, "ap", **tls) as secure,
    ):
        http_port, https_port = plain.admin_ports[0], secure.admin_ports[0]
        other_port = other_server.sockets[0].getsockname()[1]
        give_ca = "give --ca FILE if the nodes have adminTlsCertPath"
        table = (
            (f"localhost:{https_port}", (), give_ca),
            (plain.namesrv, (), f"check that --admin names an admin port (adminListen); {give_ca}"),
            (f"127.0.0.1:{other_port}", (), "HTTP status 404; check that --admin names the admin port of a node (adminListen)"),
            (f"127.0.0.1:{http_port}", ("--ca", str(authority.path)), "leave out --ca if the nodes have no adminTlsCertPath"),
            (f"localhost:{https_port}", ("--ca", str(stranger.path)), "give with --ca the authority that signed it"),
            (f"127.0.0.1:{https_port}", ("--ca", str(authority.path)), "with --admin a host name or address that it contains"),
        )
        peers = await asyncio.start_server(speak_raft, "127.0.0.1", 0)
        async with peers:
            done = await run("status", "-a", f"127.0.0.1:{peers.sockets[0].getsockname()[1]}")
            assert (done.code, "(the answer is not HTTP)" in done.out) == (2, True), done
        for address, options, remedy in table:
            for command in (("status",), ("members", "list"), ("drain", "--undo"), ("leader", "transfer")):
                done = await run(*command, "-a", address, *options)
                assert done.code != 0, (command, done)
                assert remedy in done.out + done.err, (command, address, options, done)
        assert (await run("status", "-a", f"localhost:{https_port}", "--ca", str(authority.path))).code == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("/none", "was not changed: /none: No such file or directory"),
        ("sleep 600", "did not end within 1 s, and was stopped: sleep 600; whether the server was replaced is unknown"),
    ],
)
async def test_a_script_of_adopt_that_fails_is_named(tmp_path: Path, script: str, reason: str) -> None:
    async with operated(tmp_path, 2, "ap") as nodes:
        words = (
            "adopt",
            "-n",
            nodes.namesrv,
            "-a",
            nodes.admin,
            "--timeout-ms",
            "5000",
            "--to",
            "rocketmq",
            "--swap",
            script,
            "--within",
            "1",
        )
        done = await asyncio.to_thread(run_command, *words)
        assert (done.returncode, reason in done.stderr) == (1, True), done


async def speak_raft(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that greets a peer."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\x15\x00\x00\x00RAFT\x1b[2J\n")
    writer.close()


async def answer_404(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An HTTP server of another program."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnot found")
    writer.close()


async def test_export_needs_only_the_admin_port_of_the_server_that_is_exported(tmp_path: Path) -> None:
    port = free_port(10)
    places = {"listen": f"127.0.0.1:{port}", "adminListen": f"127.0.0.1:{port + 10}"}
    async with operated(tmp_path, 1, "ap", **places):
        servers, ports = f"127.0.0.1:{port}", f"127.0.0.1:1;127.0.0.1:{port + 10}"
        done = await run("kv", "export", str(tmp_path / "kv.json"), "-n", servers, "-a", ports)
        assert done.code == 0, done


async def test_watch_ends_at_once_if_every_node_needs_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-for-a-test\n")
    token.chmod(0o600)
    async with operated(tmp_path, 2, "ap", adminTokenFile=str(token)) as nodes:
        refused = await run("watch", "-a", nodes.admin)
        assert (refused.code, refused.out) == (1, "")
        assert "give the node's token with --token-file" in refused.err


async def test_commands_present_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    node, tools, client = (authority.files(name, days=20) for name in ("localhost", "tools", "client"))
    access = tmp_path / "access.toml"
    access.write_text('[identities.tools]\nroles = ["admin"]\ncertificates = ["CN=tools"]\n')
    access.chmod(0o600)
    settings = {
        "adminTlsKeyPath": str(node.key),
        "adminTlsCertPath": str(node.certificate),
        "adminTlsTrustCertPath": str(authority.path),
        "accessPolicy": "enforce",
        "accessFile": str(access),
    }
    async with operated(tmp_path, 1, "ap", **settings) as nodes:
        options = ("-a", f"localhost:{nodes.admin_ports[0]}", "--ca", str(authority.path))
        own = ("--cert", str(tools.certificate), "--key", str(tools.key))
        done = await run("status", *options, *own)
        assert done.code == 0, done
        assert (await run("backup", str(tmp_path / "backup"), *options, *own)).code == 0
        other = await run("status", *options, "--cert", str(client.certificate), "--key", str(client.key))
        assert (other.code, "no permission" in other.out) == (2, True)
        assert "a certificate with --cert" in (await run("status", *options)).out
        for name, file in (("CA", authority.path), ("CERT", tools.certificate), ("KEY", tools.key)):
            monkeypatch.setenv(f"NAMESRV_ADMIN_{name}", str(file))
        assert (await run("status", *options[:2])).code == 0


async def test_status_of_independent_nodes(tmp_path: Path) -> None:
    async with operated(tmp_path, 2, "ap") as nodes:
        done = await run("status", "-a", nodes.admin)
        assert done.code == 0
        assert "independent nodes" in done.out
        assert (await run("leader", "-a", nodes.admin)).code == 1
        refused = await http(nodes.admin_ports[0], "/v1/leader/transfer", "POST")
        assert refused.status == 400
        assert "independent node" in refused.json["error"]


async def test_an_independent_node_ignores_the_peers_in_its_file(tmp_path: Path) -> None:
    """The peers stay in the file after a change of the mode. In an earlier version, the console and the commands then found no
    other node."""
    peers = "n1=127.0.0.1:1,n2=127.0.0.1:2"
    async with operated(tmp_path, 1, "ap", peers=peers, nameServerAddresses="10.0.0.9:9876") as nodes:
        status = (await http(nodes.admin_ports[0], "/v1/status")).json
        distance = nodes.admin_ports[0] - int(status["listen"].rpartition(":")[2])
        assert status["otherAdminAddresses"] == [f"10.0.0.9:{9876 + distance}"]


def row(name: str, digest: str, applied: int = 7, version: str = "1", **more: object) -> dict[str, object]:
    """The row of one node of the cluster that ``a`` leads."""
    return {
        "admin": name,
        "answers": True,
        "nodeId": name,
        "mode": "cp",
        "version": version,
        "clusterId": "one",
        "ready": True,
        "revision": 3,
        "role": "leader" if name == "a" else "follower",
        "leader": "a",
        "term": 2,
        "commitIndex": 7,
        "appliedIndex": applied,
        "members": ["a", "b", "c"],
        "quorum": 2,
        "digest": digest,
        "problem": None,
        **more,
    }


def test_only_voters_count_for_a_majority() -> None:
    names = ["a", "b", "c", "o1", "o2", "l"]
    roles = {"o1": "observer", "o2": "observer", "l": "learner"}
    rows = [row(name, "11", members=names) | ({"role": roles[name]} if name in roles else {}) for name in names]
    facts = assess(rows).facts
    assert (facts["quorum"], facts["serving"], facts["mayFail"]) == (2, 3, 1)
    without = assess([each for each in rows if each["nodeId"] not in ("b", "c")]).facts
    assert (without["quorum"], without["serving"], without["mayFail"]) == (2, 1, 0)
    assert assess([row(name, "11", quorum=None) for name in "abc"]).facts["quorum"] == 2, "version 0.1.0"


def test_different_states_are_an_alarm() -> None:
    facts = assess([row("a", "11"), row("b", "22"), row("c", "11")]).facts
    assert facts["digestsEqual"] is False
    assert facts["problems"] == ["states differ at entry 7: a 11, b 22, c 11"]
    assert assess([row("a", "11"), row("b", "22", applied=5), row("c", "11")]).facts["digestsEqual"] is None
    assert assess([row("a", "11"), row("b", "11"), row("c", "11")]).facts["digestsEqual"] is True
    upgrade = assess([row("a", "11"), row("b", "22", version="2"), row("c", "11")]).facts
    assert (upgrade["digestsEqual"], upgrade["problems"]) == (None, [])


def test_nodes_of_two_clusters_are_a_problem() -> None:
    """As after 'namesrv recover --force-new-cluster', when the nodes of the old cluster return."""
    other = row("c", "22", role="leader", leader="c", members=["c"], quorum=1, clusterId="two")
    facts = assess([row("a", "11"), row("b", "11"), other]).facts
    (problem,) = [each for each in facts["problems"] if "clusters" in each]
    assert "different clusters (one: a, b; two: c)" in problem
    check_document("status", facts)
    facts = assess([row("a", "11"), row("b", "11"), other | {"clusterId": "one", "appliedIndex": 5}]).facts
    (problem,) = facts["problems"]
    assert "a and c lead in the same term, so they are two clusters" in problem
    assert of_one_cluster([row("a", "11"), row("b", "11"), other], ("b",)) == [row("a", "11"), row("b", "11")]
    with pytest.raises(SettingError, match="different clusters"):
        of_one_cluster([row("a", "11"), row("b", "11"), other], ("a", "c"))


def test_a_node_without_a_majority_knows_no_leader_and_proves_no_equality() -> None:
    alone = {
        "admin": "a",
        "answers": True,
        "nodeId": "a",
        "mode": "cp",
        "version": "1",
        "clusterId": "one",
        "ready": False,
        "revision": 3,
        "role": "follower",
        "leader": "b",
        "term": 2,
        "commitIndex": 7,
        "appliedIndex": 7,
        "members": ["a", "b", "c"],
        "quorum": 2,
        "digest": "11",
        "problem": "fenced: it reaches no leader that has a majority",
    }
    facts = assess([alone]).facts
    assert (facts["leader"], facts["digestsEqual"], facts["mayFail"], facts["serving"]) == (None, None, 0, 0)
    assert "no node leads" in facts["problems"]


def test_an_only_voter_leads_although_it_is_drained() -> None:
    alone = row("a", "11", ready=False, members=["a"], quorum=1, problem="not ready: remoting: drained")
    facts = assess([alone]).facts
    assert (facts["leader"], facts["serving"], facts["problems"]) == ("a", 0, ["a: not ready: remoting: drained"])
    two = assess([alone | {"members": ["a", "b"], "quorum": 2}]).facts
    assert two["leader"] is None, "it may have lost its majority"


def test_a_node_that_reads_its_disk_has_no_term_yet() -> None:
    unknown = dict.fromkeys(("role", "leader", "term", "commitIndex", "appliedIndex", "members", "quorum", "digest"))
    starting = row("c", "", ready=False, problem="not ready: service") | unknown
    facts = assess([row("a", "11"), row("b", "11"), starting]).facts
    assert (facts["leader"], facts["serving"], facts["digestsEqual"]) == ("a", 2, True)
    check_document("status", facts)
    alone = assess([starting]).facts
    assert (alone["leader"], alone["serving"], alone["problems"]) == (None, 0, ["c: not ready: service", "no node leads"])
    check_document("status", alone)


async def test_the_leader_is_shown_and_hands_over(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        shown = json.loads((await run_until(0, "leader", "-a", cluster.admin, "--json")).out)
        assert shown["leader"] in ("n1", "n2", "n3")
        leader, other, told = await hand_over(cluster)
        assert (told["from"], told["leader"]) == (leader, other)
        for _ in range(ATTEMPTS_MAX):
            leads = (await cluster.elected()).settings.node_id
            again = await run("leader", "transfer", leads, "-a", cluster.admin)
            if "is already the leader" in again.err:
                break
        assert again.code == 0
        refused = await run("leader", "transfer", "nobody", "-a", cluster.admin)
        assert refused.code == 1
        assert "is not another node of this cluster" in refused.err
        answers = [await http(port, "/v1/leader/transfer?to=nobody", "POST") for port in cluster.admin_ports]
        assert {answer.status for answer in answers} == {400}
        assert any("is not the leader" in answer.json["error"] for answer in answers)


async def test_the_only_node_cannot_transfer_leadership(tmp_path: Path) -> None:
    async with operated(tmp_path, 1) as cluster:
        refused = await run("leader", "transfer", "-a", cluster.admin)
        assert refused.code == 1, refused
        assert "n1 is the only node of this cluster; add another one first" in refused.err


async def test_a_watcher_goes_on_at_another_node_and_is_told_the_same(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        for number in range(6):
            await put(cluster.nodes[number % 3], f"k{number}")
        streams = []
        for node, port in zip(cluster.nodes, cluster.admin_ports, strict=True):
            await until(functools.partial(has_revision, node, 6), "six changes everywhere")
            async with watching(port, "?from=0") as stream:
                hello = await stream.next()
                assert (hello.data["oldest"], hello.data["nodeId"]) == (0, node.settings.node_id)
                streams.append([await stream.next() for _ in range(6)])
        assert streams[0] == streams[1] == streams[2]
        assert [event.id for event in streams[0]] == ["1", "2", "3", "4", "5", "6"]
        async with watching(cluster.admin_ports[1], last_event_id=streams[0][3].id) as stream:
            await stream.next()
            assert [await stream.next() for _ in range(2)] == streams[0][4:]


async def test_a_watcher_is_told_of_a_new_leader(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster, watching(cluster.admin_ports[0]) as stream:
        assert "leader" in (await stream.next()).data
        _, successor, _ = await hand_over(cluster)
        while (event := await stream.until("leader")).data["leader"] != successor:
            pass
        assert event.id is None


async def test_a_restarted_node_says_what_it_still_has(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        for number in range(3):
            await put(cluster.nodes[0], f"k{number}")
        node = cluster.nodes[2]
        peers = node.settings.peers
        await node.stop()
        again = ServingNode(node.settings)
        await again.start()
        try:
            assert again.settings.peers == peers
            assert again.admin is not None
            assert again.admin.address is not None
            async with watching(again.admin.address[1], "?from=0") as stream:
                assert (await stream.next()).data["oldest"] == 0, "its log reaches back to the beginning"
                assert [(await stream.next()).data["key"] for _ in range(3)] == ["k0", "k1", "k2"]
        finally:
            await again.stop()


async def test_the_watch_command_outlives_its_node(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        await put(cluster.nodes[0], "k0")
        command = asyncio.create_task(run("watch", "-a", cluster.admin, "--from", "0", "--count", "3", "--json"))
        first, ports = cluster.nodes[0], cluster.admin_ports
        await until(lambda: first.service.history.listeners, "the watcher")
        await put(cluster.nodes[1], "k1")
        await first.stop()
        await until(lambda: any(node.service.history.listeners for node in cluster.nodes[1:]), "the watcher at another node")
        await put(cluster.nodes[1], "k2")
        done = await command
        events = [json.loads(line) for line in done.out.splitlines()]
        changes = [event for event in events if event["event"] == "kv-put"]
        assert (done.code, [change["key"] for change in changes]) == (0, ["k0", "k1", "k2"])
        assert [change["id"] for change in changes] == ["1", "2", "3"]
        assert re.fullmatch(
            rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}}  127\.0\.0\.1:{ports[0]}: the stream ended; trying the next node\n",
            done.err,
        )
        greeters = [event["node"] for event in events if event["event"] == "hello"]
        assert greeters == [f"127.0.0.1:{port}" for port in ports[:2]]


async def test_the_watch_command_prints_words_and_refuses_what_is_gone(tmp_path: Path) -> None:
    async with operated(tmp_path, 1, "ap", watchHistoryBytes="1000") as nodes:
        (node,) = nodes.nodes
        for number in range(20):
            await put(node, f"k{number}")
        oldest, history_id = node.service.history.oldest, node.service.history_id
        done = await run("watch", "-a", nodes.admin, "--from", f"1@{history_id}")
        assert done.code == 1
        assert f"only those after {oldest}@{history_id}" in done.err
        done = await run("watch", "-a", nodes.admin, "--from", f"{oldest}@{history_id}", "--count", str(20 - oldest))
        assert done.code == 0
        assert done.out.splitlines()[-1].endswith("kv-put  namespace=N key=k19 value=v")
        assert (await run("watch", "-a", nodes.admin, "--from", "x")).code == 2


async def test_a_backup_is_whole_or_nothing(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        for number in range(30):
            await put(cluster.nodes[0], f"k{number}", "x" * 1000)
        file = tmp_path / "a.backup"
        done = await run("backup", str(file), "-a", cluster.admin, "--json")
        assert done.code == 0, done
        told = json.loads(done.out)
        assert (told["revision"], told["mode"], told["bytes"]) == (30, "cp", file.stat().st_size)
        assert [name for name in os.listdir(tmp_path) if "backup" in name] == ["a.backup"]
        again = await run("backup", str(file), "-a", cluster.admin)
        assert again.code == 1
        assert "--force" in again.err
        assert (await run("backup", "--check", str(file))).code == 0
        whole = file.read_bytes()
        for position in (0, 20, len(whole) // 2, len(whole) - 3):
            file.write_bytes(whole[:position] + bytes((whole[position] ^ 1,)) + whole[position + 1 :])
            assert (await run("backup", "--check", str(file))).code == 1
            file.write_bytes(whole[:position])
            assert (await run("backup", "--check", str(file))).code == 1
        file.write_bytes(whole + b"\n")
        assert (await run("backup", "--check", str(file))).code == 1
        refused = await run("backup", str(tmp_path / "no" / "b"), "-a", cluster.admin)
        assert refused.code == 1
        assert "No such file or directory" in refused.err


async def test_a_backup_on_stdout_is_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "b"
    async with operated(tmp_path, 1, "ap") as nodes:
        await put(nodes.nodes[0], "k", "x" * 1000)
        program = await asyncio.create_subprocess_exec(
            *command("backup", "-", "-a", nodes.admin),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(),
        )
        data, errors = await program.communicate()
        assert program.returncode == 0, errors
        assert b"saved revision 1" in errors
        file.write_bytes(data)
        assert (await run("backup", "--check", str(file))).code == 0


def test_a_dead_node_is_reported_once_while_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "GIVE_UP_S", 1.0)
    assert main(["watch", "-a", f"127.0.0.1:{free_port()}", "--timeout-ms", "100"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "the reason, and that it gave up"
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ", line) for line in lines)


@pytest.mark.parametrize(
    ("address", "more", "problem"),
    [
        ("ftp://127.0.0.1:1", (), "give host:port"),
        ("https://127.0.0.1:1", (), "give --ca FILE"),
        ("http://127.0.0.1:1", ("--ca", "system"), "give https://"),
    ],
)
async def test_a_url_is_an_address_if_its_scheme_is_what_will_be_used(address: str, more: tuple[str, ...], problem: str) -> None:
    done = await run("status", "-a", address, *more)
    assert done.code == 1
    assert problem in done.err
    assert "no answer" in (await run("status", "-a", f"http://127.0.0.1:{free_port()}/")).out


async def test_a_backup_tries_every_node_before_it_gives_up(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with operated(tmp_path, 1, "ap") as nodes:
        done = await run("backup", str(tmp_path / "b"), "-a", f"{nobody};{nodes.admin}")
        assert done.code == 0, done
    done = await run("backup", str(tmp_path / "c"), "-a", nobody)
    assert done.code == 2
    assert not (tmp_path / "c").exists()


async def test_a_backup_is_restored_into_a_fresh_cluster_only(tmp_path: Path) -> None:
    file = tmp_path / "a.backup"
    async with operated(tmp_path / "old") as cluster:
        for number in range(40):
            await put(cluster.nodes[0], f"k{number}", str(number) * 3000)
        done = await run("backup", str(file), "-a", cluster.admin)
        assert done.code == 0, done
        refused = await run("restore", str(file), "-a", cluster.admin)
        assert refused.code == 1
        assert "not fresh, it contains 40 KV entries" in refused.err
        old = dict(cluster.nodes[0].service.state.kv_table()["N"])
    async with operated(tmp_path / "new") as cluster:
        damaged = tmp_path / "damaged"
        damaged.write_bytes(file.read_bytes()[:-1])
        refused = await run("restore", str(damaged), "-a", cluster.admin)
        assert refused.code == 1
        assert "damaged" in refused.err
        leader = await cluster.elected()
        follower = next(port for node, port in zip(cluster.nodes, cluster.admin_ports, strict=True) if node is not leader)
        done = await run("restore", str(file), "-a", f"127.0.0.1:{follower}", "--json")
        assert done.code == 0, done
        revision = json.loads(done.out)["revision"]
        for node in cluster.nodes:
            await until(functools.partial(has_revision, node, revision), "the restored state")
            assert node.service.state.kv_table()["N"] == old
        told = json.loads((await run_until(0, "status", "-a", cluster.admin, "--json")).out)
        assert told["revision"] == revision
        assert len({node.service.state.digest() for node in cluster.nodes}) == 1
        answer = await http(follower, "/v1/watch?from=40")
        assert (answer.status, answer.json["oldest"]) == (410, revision - 1)
        body = b"x" * 2_000_000
        answer = await http(follower, "/v1/restore", "POST", body)
        assert answer.status in (400, 409)


async def test_an_edited_backup_is_refused_before_anything_is_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RouteInfoManager()
    state.apply(PutKVConfig("N", "unmistakable", "v"), 1)
    state.apply(PutKVConfig("N", "k", "v"), 2)
    lines = b"".join(state.snapshot()).replace(b'["k","v"]', b'["k",["v"]]')
    origin = {"revision": 2, "mode": "cp", "clusterId": "c", "nodeId": "n1"}
    file = tmp_path / "edited"
    file.write_bytes(b"".join(encode(origin, iter([lines]))))
    assert (await run("backup", "--check", str(file))).code == 0, "its checksum is right"
    async with operated(tmp_path / "new") as cluster:
        await cluster.elected()
        refused = await run("restore", str(file), "-a", cluster.admin)
        assert refused.code == 1, refused
        assert "line 4: value is ['v']: expected a text" in refused.err
        large = tmp_path / "large"
        large.write_bytes(b"".join(encode(origin, state.snapshot())))
        with monkeypatch.context() as patch:
            patch.setattr(quotas, "KV_NAMESPACES_MAX", 0)
            refused = await run("restore", str(large), "-a", cluster.admin)
        assert refused.code == 1, refused
        assert "1 KV namespaces, at most 0 are allowed" in refused.err
        for node in cluster.nodes:
            assert isinstance(node.service, ReplicatedNode)
            raft = node.service.consensus._raft.node
            for index in range(raft.first_index, raft.last_index + 1):
                assert b"unmistakable" not in (raft.entry_at(index) or b"")
                assert b"R[" not in (raft.entry_at(index) or b"")
        await put(cluster.nodes[0], "k")
    refused = await run("kv", "import", str(file))
    assert refused.code == 1
    assert "line 4" in refused.err


async def test_kv_config_is_imported_from_either_kind_of_file(tmp_path: Path) -> None:
    file, backup = tmp_path / "kvConfig.json", tmp_path / "a.backup"
    file.write_text(json.dumps({"configTable": {"ORDER_TOPIC_CONFIG": {"t": "a:4;b:4"}, "N": {"k": "ä", "gone": None}}}))
    wanted = {"ORDER_TOPIC_CONFIG": {"t": "a:4;b:4"}, "N": {"k": "ä"}}
    async with operated(tmp_path / "cp") as cluster:
        done = await run("kv", "import", str(file), "-n", cluster.namesrv, "--json")
        assert done.code == 0, done
        assert [(row["entries"], row["problem"]) for row in json.loads(done.out)] == [(2, None)] * 3
        assert {name: dict(table) for name, table in cluster.nodes[1].service.state.kv_table().items()} == wanted
        assert (await run("backup", str(backup), "-a", cluster.admin)).code == 0
    async with operated(tmp_path / "ap", 2, "ap") as nodes:
        done = await run("kv", "import", str(backup), "-n", nodes.namesrv)
        assert done.code == 0, done
        for node in nodes.nodes:
            assert {name: dict(table) for name, table in node.service.state.kv_table().items()} == wanted
        refused = await run("restore", str(backup), "-a", nodes.admin)
        assert refused.code == 1
        assert "namesrv restore --merge" in refused.err
    file.write_text("[]")
    assert (await run("kv", "import", str(file))).code == 1
    assert (await run("kv", "import", str(tmp_path / "missing"))).code == 1
    backup.write_bytes(backup.read_bytes()[:-5])
    assert "cut off" in (await run("kv", "import", str(backup))).err


async def test_an_import_does_not_wait_for_a_silent_server_at_each_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused node accepts connections. The whole time-out at each of some thousand entries would be hours."""
    monkeypatch.setattr(kv_import, "SILENT_S", 0.3)
    file, keys = tmp_path / "kvConfig.json", [f"k{number}" for number in range(200)]
    file.write_text(json.dumps({"configTable": {"N": dict.fromkeys(keys, "v")}}))
    async with operated(tmp_path, 1, "ap") as nodes:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            silent = f"127.0.0.1:{mute.getsockname()[1]}"
            done = await run("kv", "import", str(file), "-n", f"{silent};{nodes.namesrv}", "--timeout-ms", "200", "--json")
        rows = {row["nameServer"]: row for row in json.loads(done.out)}
        assert (done.code, rows[nodes.namesrv]["entries"], rows[silent]["entries"]) == (1, 200, 0)
        assert re.fullmatch(r"N/k0: unknown: .*; it got no further entries after N/k\d; .*", rows[silent]["problem"])


@pytest.mark.parametrize("command", ["status", "leader", "watch", "backup", "restore"])
async def test_every_operation_explains_itself(command: str) -> None:
    done = await run(command, "--help")
    assert done.code == 0
    for part in ("examples:", "exit codes:", "--json", "--admin"):
        assert part in done.out


async def test_changes_need_the_token_from_elsewhere_and_it_comes_from_a_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of enough length\n")
    async with operated(tmp_path, adminTokenFile=str(token)) as cluster:
        await cluster.elected()
        wrong = tmp_path / "wrong"
        wrong.write_text("another secret of some length\n")
        done = await run("leader", "transfer", "-a", cluster.admin, "--token-file", str(wrong))
        assert done.code == 1
        assert "wrong token" in done.err
        await run_until(0, "leader", "transfer", "-a", cluster.admin, "--token-file", str(token))
        done = await run("status", "-a", cluster.admin, "--token-file", str(tmp_path / "missing"))
        assert done.code == 1
        assert "No such file" in done.err
