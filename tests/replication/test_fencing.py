"""Three processes, two of them paused: the answers that clients, brokers and operators get from the third one, under either
policy; and the answers of a node that was itself paused."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire.codes import RequestCode
from tests.support.nodes import HttpAnswer, http
from tests.support.remoting_server import broker_fields, request, topic_table
from tests.support.replicated_processes import LIMIT_S, ReplicatedProcesses, eventually, replicated_processes

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
KEY = {"namespace": "N", "key": "k"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[RemotingClient]:
    """One client for all tests."""
    remoting = RemotingClient()
    yield remoting
    await remoting.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ReplicatedProcesses]:
    """Three nodes that answer by lease if they have a lease."""
    async with replicated_processes(tmp_path_factory.mktemp("cluster"), settings=("readConsistency=lease",)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(processes: ReplicatedProcesses) -> AsyncIterator[ReplicatedProcesses]:
    """The cluster of all tests, repaired after each test."""
    yield processes
    await processes.restore()


async def answers_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[bytes]:
    """Ask for a route repeatedly until the other side closes. Returns the answers."""
    answers: list[bytes] = []
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                writer.write(request(105, {"topic": "T"}))
                answers.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
    return answers


async def ask(
    client: RemotingClient, cluster: ReplicatedProcesses, name: str, code: RequestCode, fields: dict[str, str], body: bytes = b""
) -> RemotingCommand:
    return await client.request(cluster.address(name), RemotingCommand(code.value, fields, body), int(LIMIT_S * 1000))


async def done(
    client: RemotingClient, cluster: ReplicatedProcesses, name: str, code: RequestCode, fields: dict[str, str]
) -> None:
    """Repeat a write until it is acknowledged."""

    async def look() -> bool:
        return (await ask(client, cluster, name, code, fields)).code == 0

    await eventually(look, f"{code.name} {fields}")


async def admin(cluster: ReplicatedProcesses, name: str, path: str) -> HttpAnswer:
    return await http(cluster.nodes[name].plan.admin[1], path)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """The bytes that came before the other side closed."""
    async with asyncio.timeout(LIMIT_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_a_node_without_a_majority_serves_nobody_and_returns(client: RemotingClient, cluster: ReplicatedProcesses) -> None:
    alone, *others = cluster.names
    registered = await ask(client, cluster, alone, RequestCode.REGISTER_BROKER, broker_fields(), topic_table("T", "U"))
    assert registered.code == 0, registered.remark
    idle, idle_writer = await asyncio.open_connection(*cluster.nodes[alone].plan.listen)
    busy, busy_writer = await asyncio.open_connection(*cluster.nodes[alone].plan.listen)
    for name in others:
        cluster.pause(name)
    answers = await answers_until_closed(busy, busy_writer)
    assert all(b'"code":0' in answer for answer in answers), "an error code would keep clients here"
    assert await ended(idle) == b""
    for writer in (idle_writer, busy_writer):
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*cluster.nodes[alone].plan.listen)

    assert (await cluster.status(alone))["fenced"]
    assert (await admin(cluster, alone, "/livez")).status == 200
    not_ready = await admin(cluster, alone, "/readyz")
    assert not_ready.status == 503
    assert "this node reaches no leader that has a majority" in not_ready.text
    refused = await admin(cluster, alone, "/v1/routes/T")
    assert (refused.status, "readConsistency=stale" in refused.json["remedy"]) == (503, True)
    change = await http(cluster.nodes[alone].plan.admin[1], "/v1/kv/N/k", "PUT", b"v")
    assert (change.status, change.json["remedy"]) == (503, "ask another node, or this one later")
    stale = await admin(cluster, alone, "/v1/routes/T?readConsistency=stale")
    assert (stale.status, stale.headers["readLevel"]) == (200, "stale")
    assert int(stale.headers["stalenessMs"]) >= 1_500
    assert (await admin(cluster, alone, "/v1/digest?readConsistency=stale&maxStalenessMs=1000")).status == 412
    assert "\nnamesrv_fenced 1.0" in (await admin(cluster, alone, "/metrics")).text

    pid = cluster.nodes[alone].pid
    await cluster.restore()
    assert cluster.nodes[alone].pid == pid, "it returned by itself"
    assert (await ask(client, cluster, alone, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0


async def test_serve_stale_goes_on_with_what_it_knows(client: RemotingClient, tmp_path: Path) -> None:
    async with replicated_processes(tmp_path, settings=("noQuorumPolicy=serve-stale",)) as cluster:
        alone, *others = cluster.names
        await done(client, cluster, alone, RequestCode.PUT_KV_CONFIG, {**KEY, "value": "v"})
        for name in others:
            cluster.pause(name)

        async def is_marked() -> bool:
            return bool((await cluster.status(alone))["servesStale"])

        await eventually(is_marked, "stale answers")
        answer = await ask(client, cluster, alone, RequestCode.GET_KV_CONFIG, KEY)
        assert (answer.code, answer.ext_fields) == (0, {"value": "v"}), "nothing shows that was not asked for"
        told = (
            await ask(client, cluster, alone, RequestCode.GET_KV_CONFIG, {**KEY, "readConsistency": "stale"})
        ).ext_fields or {}
        assert (told["value"], told["readLevel"]) == ("v", "stale")
        assert int(told["stalenessMs"]) >= 1_500
        bounded = await ask(client, cluster, alone, RequestCode.GET_KV_CONFIG, {**KEY, "maxStalenessMs": "1000"})
        assert bounded.code == 1
        assert "maxStalenessMs=1000: the state here is" in (bounded.remark or "")
        sure = await ask(
            client, cluster, alone, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "readConsistency": "linearizable"}
        )
        assert sure.code == 2
        write = await ask(client, cluster, alone, RequestCode.PUT_KV_CONFIG, {**KEY, "value": "w"})
        assert write.code == 2
        assert (await admin(cluster, alone, "/readyz")).status == 200
        metrics = (await admin(cluster, alone, "/metrics")).text
        assert "\nnamesrv_answers_stale 1.0" in metrics
        assert '\nnamesrv_reads_total{level="stale"}' in metrics
        await cluster.restore()
        await done(client, cluster, alone, RequestCode.PUT_KV_CONFIG, {**KEY, "value": "w"})


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_node_that_wakes_says_nothing_old(client: RemotingClient, cluster: ReplicatedProcesses, which: str) -> None:
    leader = await cluster.leader()
    name = leader if which == "leader" else cluster.others(leader)[0]
    other = cluster.others(name)[0]
    await done(client, cluster, other, RequestCode.PUT_KV_CONFIG, {**KEY, "value": "old"})
    asleep = RemotingClient()
    assert ((await ask(asleep, cluster, name, RequestCode.GET_KV_CONFIG, KEY)).ext_fields or {})["value"] == "old"
    cluster.pause(name)
    await done(client, cluster, other, RequestCode.PUT_KV_CONFIG, {**KEY, "value": "new"})
    acknowledged_s = time.monotonic()

    async def is_later() -> bool:
        return time.monotonic() - acknowledged_s > 0.5

    await eventually(is_later, "half a second")
    questions = [
        asyncio.ensure_future(ask(asleep, cluster, name, RequestCode.GET_KV_CONFIG, {**KEY, **level}))
        for level in ({}, {"readConsistency": "linearizable"}, {"readConsistency": "lease"}, {"readConsistency": "stale"})
    ]
    await asyncio.sleep(0)
    old_for_ms = (time.monotonic() - acknowledged_s) * 1000
    cluster.resume(name)
    for answer in await asyncio.gather(*questions, return_exceptions=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, NamesrvError), "closed: whoever asked goes elsewhere"
        elif (told := answer.ext_fields or {})["value"] != "new":
            assert told["readLevel"] == "stale"
            assert int(told["stalenessMs"]) >= int(old_for_ms) - 1, "a state without the new value is as old as that, at least"
    await asleep.close()
