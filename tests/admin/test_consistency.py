"""Choosing how fresh an answer is: over HTTP and on the command line, from a node of either mode."""

import asyncio
import json
from pathlib import Path

import pytest

from replicated_namesrv.process import ServingNode
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.settings_sources import load_settings
from tests.support.nodes import http, run_command, running_node
from tests.support.ports import free_port, free_ports
from tests.support.replicated_processes import replicated_processes
from tests.support.waiting import until

VIEWS = ("/v1/topics", "/v1/brokers", "/v1/kv", "/v1/kv-namespaces", "/v1/digest", "/v1/config")
NAMES = ("readLevel", "revision", "raftTerm", "stalenessMs", "leader")


def replicated() -> dict[str, str]:
    """Flags of a cluster of one node."""
    return {"mode": "cp", "nodeId": "n1", "peers": f"n1=127.0.0.1:{free_port()}", "fenceAfterMs": "20000"}


async def test_views_tell_how_fresh_they_are_to_who_asks(tmp_path: Path) -> None:
    async with running_node(tmp_path, **replicated()) as (_, port):
        assert (await http(port, "/v1/kv/N/k", "PUT", b"v")).status == 200
        for view in VIEWS:
            assert not set(NAMES) & (await http(port, view)).headers.keys()
            for level in ("linearizable", "lease", "stale"):
                by_query = await http(port, f"{view}?readConsistency={level}")
                by_header = await http(port, view, headers={"readConsistency": level})
                for answer in (by_query, by_header):
                    assert (answer.status, answer.headers["leader"]) == (200, "n1")
                    assert int(answer.headers["raftTerm"]) >= 1
                    assert int(answer.headers["revision"]) >= 1
                    assert int(answer.headers["stalenessMs"]) >= 0
                    assert answer.headers["readLevel"] == level
        missing = await http(port, "/v1/routes/None?maxStalenessMs=60000")
        assert (missing.status, missing.headers["readLevel"]) == (404, "linearizable")
        for query, why in (
            ("readConsistency=strong", "readConsistency=strong: give one of linearizable, lease, stale"),
            ("readConsistency=stale&maxStalenessMs=soon", "maxStalenessMs=soon: give milliseconds, 0 or more"),
        ):
            refused = await http(port, f"/v1/topics?{query}")
            assert (refused.status, refused.json["error"]) == (400, why)


async def test_an_independent_node_promises_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (_, port):
        answer = await http(port, "/v1/topics?readConsistency=linearizable")
        assert {name: answer.headers[name] for name in NAMES} == {
            "readLevel": "local",
            "revision": "0",
            "raftTerm": "0",
            "stalenessMs": "-1",
            "leader": "",
        }
        bounded = await http(port, "/v1/topics?maxStalenessMs=5000")
        assert bounded.status == 412
        assert "this node is independent (mode=ap)" in bounded.json["error"]


async def test_a_starting_node_says_that_it_has_not_caught_up(tmp_path: Path) -> None:
    one, *others = free_ports(3)
    peers = f"n1=127.0.0.1:{one},n2=127.0.0.1:{others[0]},n3=127.0.0.1:{others[1]}"
    addresses = {"bindAddress": "127.0.0.1", "listenPort": "0", "adminListen": "127.0.0.1:0"}
    flags = {**addresses, "dataDir": str(tmp_path), "mode": "cp", "nodeId": "n1", "peers": peers}
    node = ServingNode(load_settings(flags=flags, environment={}))
    admin = node.admin
    assert admin is not None
    starting = asyncio.create_task(node.start())
    try:
        address = await until(lambda: admin.address, "the admin port")
        assert address is not None
        for query in ("", "?readConsistency=stale", "?readConsistency=lease"):
            answer = await http(address[1], f"/v1/topics{query}")
            assert (answer.status, answer.json["error"]) == (503, "this node has not caught up with a majority since its start")
            assert "readConsistency=stale" in answer.json["remedy"]
        written = await http(address[1], "/v1/members/n4/add?address=127.0.0.1:1", "POST")
        assert (written.status, written.json["remedy"]) == (503, "ask another node, or this one later")
        assert (await http(address[1], "/readyz")).status == 503
        assert (await http(address[1], "/livez")).status == 200
        assert isinstance(node.service, ReplicatedNode)
        service = node.service
        await until(lambda: service.waits_for, "the reason")
        assert f"[-] service: starting: {service.waits_for}" in (await http(address[1], "/readyz?verbose")).text
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_a_node_that_reads_its_log_refuses_changes(tmp_path: Path) -> None:
    """Reading a long log takes seconds, and the admin port listens already."""
    flags = {"bindAddress": "127.0.0.1", "listenPort": "0", "adminListen": "127.0.0.1:0", "dataDir": str(tmp_path)}
    node = ServingNode(load_settings(None, {**flags, "mode": "cp", "nodeId": "n1", "peers": "n1=127.0.0.1:1"}, {}))
    assert node.admin is not None
    await node.admin.start("127.0.0.1", 0)
    try:
        assert node.admin.address is not None
        for method, path in (
            ("PUT", "/v1/kv/N/k"),
            ("DELETE", "/v1/topics/T"),
            ("POST", "/v1/members/n2/remove"),
            ("POST", "/v1/leader/transfer"),
        ):
            refused = await http(node.admin.address[1], path, method, b"v" if method == "PUT" else b"")
            assert (refused.status, refused.json["outcome"]) == (503, "not done"), (path, refused.text)
            assert "this node is starting" in refused.json["error"]
    finally:
        await node.admin.stop()


async def namesrv(node: ServingNode, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that asks ``node``."""
    done = await asyncio.to_thread(run_command, *arguments, "-n", node.listen_address)
    return done.returncode, done.stdout, done.stderr


async def test_command_line(tmp_path: Path) -> None:
    async with running_node(tmp_path, **replicated()) as (node, port):
        assert (await http(port, "/v1/kv/N/k", "PUT", b"v")).status == 200
        code, out, error = await namesrv(node, "kv", "get", "N", "k", "--read-consistency", "stale")
        assert (code, out) == (0, "v\n")
        assert error.startswith("stale answer, at most ")
        assert ", leader n1" in error
        code, out, _ = await namesrv(node, "topics", "--read-consistency", "linearizable", "--json")
        freshness = json.loads(out)["freshness"]
        assert (code, freshness["readLevel"], freshness["stalenessMs"]) == (0, "linearizable", 0)
        code, out, error = await namesrv(node, "route", "T", "--json", "--max-staleness-ms", "60000")
        assert (code, json.loads(out)["freshness"]["readLevel"]) == (1, "linearizable")


@pytest.mark.parametrize("command", [("kv", "put", "N", "k", "v"), ("topics", "delete", "T"), ("brokers", "wipe-write", "b")])
async def test_writes_have_no_consistency_to_choose(command: tuple[str, ...]) -> None:
    done = await asyncio.to_thread(run_command, *command, "--max-staleness-ms", "5")
    assert done.returncode == 2
    assert "are for reading: leave them out here" in done.stderr


async def test_changes_of_members_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    """The leader refuses a change until the change before it is committed. That takes milliseconds, so nobody needs to repeat
    the request."""
    async with replicated_processes(tmp_path) as cluster:
        leader = await cluster.leader()
        names = ["n4", "n5", "n6"]
        added = [f"/v1/members/{name}/add?address=127.0.0.1:{free_port()}&observer=true" for name in names]
        for paths in (added, [f"/v1/members/{name}/remove" for name in names]):
            answers = await asyncio.gather(*(http(cluster.nodes[leader].plan.admin[1], path, "POST") for path in paths))
            assert [answer.status for answer in answers] == [200, 200, 200], [answer.text for answer in answers]
