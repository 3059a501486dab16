"""``namesrv top``: frames of a cluster under load."""

import asyncio
import contextlib
import json
import socket
from pathlib import Path

from replicated_namesrv.cli.top import NodeCounters, changes, rates
from tests.support.nodes import ask_cluster_info, http
from tests.support.operated import operated, run


async def test_frame_shows_nodes_rates_and_changes(tmp_path: Path) -> None:
    async with operated(tmp_path) as cluster:
        ended = asyncio.Event()

        async def load() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                assert await ask_cluster_info(cluster.nodes[0].remoting.port) == 0
                assert (await http(cluster.admin_ports[0], f"/v1/kv/space/{number % 5}", "PUT", b"%d" % number)).status == 200

        loading = asyncio.ensure_future(load())
        try:
            done = await run("top", "-a", cluster.admin, "--interval", "1", "--count", "2", "--json")
            shown = await run("top", "-a", cluster.admin, "--interval", "1", "--count", "1")
        finally:
            ended.set()
            await loading
    assert done.code == shown.code == 0
    first, second = (json.loads(line) for line in done.out.splitlines())
    for frame in (first, second):
        assert frame["nodes"][0]["rates"]["requests"] > 0
        assert frame["nodes"][0]["rates"]["failed"] == 0
        assert frame["changes"]["kv-put"] > 0
    assert "changes: kv-put" in shown.out
    assert "n1" in shown.out


async def test_without_a_node_the_exit_code_says_so(tmp_path: Path) -> None:
    done = await run("top", "-a", "127.0.0.1:1", "--interval", "1", "--count", "1")
    assert done.code == 2
    assert "problem: " in done.out


async def test_the_metrics_of_a_node_that_does_not_answer_are_not_asked_for_again(tmp_path: Path) -> None:
    """Each question to a paused node takes a whole time-out."""
    async with operated(tmp_path, 1, "ap") as nodes:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            addresses = f"{nodes.admin};127.0.0.1:{mute.getsockname()[1]}"
            done = await run("top", "-a", addresses, "--interval", "1", "--count", "1", "--timeout-ms", "200", "--json")
            mute.setblocking(False)
            asked = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    mute.accept()[0].close()
                    asked += 1
    assert [node["answers"] for node in json.loads(done.out)["nodes"]] == [True, False]
    assert asked == 2, "the counters before the first frame, and the status for it"


def test_rates_are_per_second_and_a_restart_is_not_negative() -> None:
    requests = 'namesrv_requests_total{outcome="SUCCESS",request="GET_ROUTEINFO_BY_TOPIC"}'
    failed = 'namesrv_requests_total{outcome="SYSTEM_ERROR",request="REGISTER_BROKER"}'
    before, after = NodeCounters(10.0, {requests: 100.0, failed: 1.0}), NodeCounters(12.0, {requests: 140.0, failed: 2.0})
    found = rates(before, after)
    assert found is not None
    assert (found["requests"], found["lookUps"], found["failed"]) == (20.5, 20.0, 0.5)
    again = rates(after, NodeCounters(14.0, {requests: 3.0}))
    assert again is not None
    assert again["requests"] == 0
    assert rates(None, after) is None
    kind = 'namesrv_changes_total{kind="kv-put"}'
    old, new = (
        {"a": NodeCounters(0, {kind: 1.0}), "b": NodeCounters(0, {})},
        {"a": NodeCounters(1, {kind: 3.0}), "b": NodeCounters(1, {kind: 1.0})},
    )
    assert changes(old, new) == {"kv-put": 2}
