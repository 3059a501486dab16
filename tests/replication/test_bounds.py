"""Nodes of both modes refuse, or reduce, requests before a proposal, and bound the amount that is in progress."""

import asyncio
import json
from asyncio import Future
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.errors import LimitError, OutcomeUnknownError
from replicated_namesrv.model import QueueData
from replicated_namesrv.replication import consensus
from replicated_namesrv.replication.broker_calls import REGISTRATION_S
from replicated_namesrv.replication.consensus import HEAVY_BYTES
from replicated_namesrv.routes import quotas
from replicated_namesrv.routes.commands import ChangeWritePerm, PutKVConfig, RegisterBroker
from replicated_namesrv.simulation.route_cluster import NameServer, SimulatedConnection
from replicated_namesrv.simulation.world import MS
from tests.replication.virtual import Cluster, Said, registration, virtual_cluster
from tests.support.remoting_server import Peer, broker_fields, live_server, topic_table
from tests.support.replicated_cluster import live_cluster
from tests.support.waiting import wait_until


@contextmanager
def independent(folder: Path) -> Iterator[int]:
    with live_server(folder) as server:
        yield server.port


@contextmanager
def replicated(folder: Path) -> Iterator[int]:
    with live_cluster(folder) as cluster:
        yield cluster.leader().server.port


both_modes = pytest.mark.parametrize("serving", [independent, replicated])


def with_mappings(body: bytes, *names: str) -> bytes:
    """A mapping of T for each of ``names``, stored under topics of their own."""
    fields = json.loads(body)
    fields["topicConfigSerializeWrapper"]["topicQueueMappingInfoMap"] = {
        topic: {
            "bname": name,
            "currIdMap": {"0": 0},
            "dirty": False,
            "epoch": 1,
            "scope": "__global__",
            "topic": topic,
            "totalQueues": 1,
        }
        for topic, name in zip("TU", names, strict=False)
    }
    return json.dumps(fields).encode()


@both_modes
def test_a_broker_announces_its_own_static_topic_mappings_only(serving: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as port, Peer(port) as peer:
        body = with_mappings(topic_table("T", "U"), broker_fields()["brokerName"], "nobody")
        for _ in range(3):  # the last is recognised without being decoded
            assert peer.call(103, broker_fields(), body).code == 0
        own = json.loads(peer.call(105, {"topic": "T"}).body)
        assert list(own["topicQueueMappingByBroker"]) == [broker_fields()["brokerName"]]
        assert "topicQueueMappingByBroker" not in json.loads(peer.call(105, {"topic": "U"}).body)


@both_modes
def test_an_emptied_namespace_stays_known_and_namespaces_are_bounded(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "KV_NAMESPACES_MAX", 1)
    with serving(tmp_path) as port, Peer(port) as peer:
        assert peer.call(100, {"namespace": "n", "key": "k", "value": "v"}).code == 0
        assert peer.call(102, {"namespace": "n", "key": "k"}).code == 0
        assert peer.call(219, {"namespace": "n"}).body == b'{"table":{}}'
        refused = peer.call(100, {"namespace": "m", "key": "k", "value": "v"})
        assert (refused.code, refused.header.remark) == (
            1,
            "there would be 2 KV namespaces, at most 1 are allowed; use one of those that exist",
        )
        assert peer.call(219, {"namespace": "m"}).code == 22
        assert peer.call(100, {"namespace": "n", "key": "k", "value": "v"}).code == 0


@both_modes
def test_a_registration_beyond_a_bound_is_refused_and_leaves_nothing(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MEMBERS_MAX", 1)
    with serving(tmp_path) as port, Peer(port) as peer:
        assert peer.call(103, broker_fields(), topic_table("T", "U")).code == 0
        refused = peer.call(103, {**broker_fields(), "brokerId": "1", "brokerAddr": "10.0.0.9:1"}, topic_table("T", "U"))
        assert refused.code == 1
        assert "would have 2 brokers, at most 1 are allowed" in (refused.header.remark or "")
        assert b"10.0.0.9:1" not in peer.call(106).body


def test_one_command_on_a_large_group_is_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "HEAVY_TOPICS", 1)
    with virtual_cluster() as cluster:
        wire = cluster.wire(cluster.leader())
        cluster.register(wire, registration())
        node: Any = cluster.node(cluster.leader())
        under_way, most, plain = 0, 0, node.consensus.propose

        def propose(command: bytes, version: int, timeout_ms: int | None = None) -> Any:
            nonlocal under_way, most
            proposed = plain(command, version, timeout_ms)
            under_way += 1
            most = max(most, under_way)

            def ended(outcome: object) -> None:
                nonlocal under_way
                under_way -= 1

            proposed.add_done_callback(ended)
            return proposed

        node.consensus.propose = propose
        said = [
            cluster.say(wire, lambda server, c, command=command: server.node.propose(command, c))  # type: ignore[misc]  # a default in a lambda
            for command in [ChangeWritePerm("a", writable=number % 2 == 0) for number in range(8)]
        ]
        cluster.until(lambda: all(each.ended for each in said), "answers")
        assert [each.result.count for each in said] == [2] * 8
        assert most == 1
        assert not node.proposer._heavy.locked()
        cluster.until(lambda: len({each.state.digest() for each in cluster.nodes}) == 1, "all nodes have applied the same")


def register(command: RegisterBroker, server: NameServer, connection: SimulatedConnection) -> object:
    try:
        return server.node.register(command, connection)
    except LimitError as error:
        return str(error)


def test_registrations_that_wait_count_against_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six registrations of one broker name at once, each with as many topics as are allowed, are proposed one by one."""
    monkeypatch.setattr(quotas, "TOPICS_MAX", 60)
    monkeypatch.setattr(consensus, "HEAVY_BYTES", 100)
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        said = []
        for number in range(6):
            topics = {f"t{number}-{topic}": QueueData(6, 8, 0, 8) for topic in range(60)}
            command = replace(registration(number), topics=topics)
            said.append(cluster.say(cluster.wire(name), partial(register, command)))
        cluster.until(lambda: all(each.ended for each in said), "the answers")
        cluster.run(1)
        for node in cluster.nodes:
            assert node.state.topic_count("a") == 60
        quotas_of_node = cluster.node(name).quotas
        refused = [each.result for each in said if isinstance(each.result, str)]
        assert len(refused) == 5
        assert all("brokerName a would have 120 topics, at most 60 are allowed" in told for told in refused)
        assert quotas_of_node.refused == {"topicsOfName": 5}
        assert (quotas_of_node._pending.bytes, quotas_of_node._pending.objects) == ({}, {})


def register_names(cluster: Cluster, node: str, letter: str) -> list[Said]:
    """Twenty new broker names at once, each over its own connection."""
    commands = [
        replace(registration(timeout_ms=120_000, address=f"{letter}:{number}"), broker_name=f"{letter}{number}")
        for number in range(20)
    ]
    return [cluster.say(cluster.wire(node), partial(register, command)) for command in commands]


def test_a_fence_keeps_the_room_of_proposals_that_raft_still_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower is cut off from the leader while it proposes as many names as are allowed. Raft proposes them again later."""
    monkeypatch.setattr(quotas, "BROKER_NAMES_MAX", 20)
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        node: Any = cluster.node(name)
        first = register_names(cluster, name, "p")
        while len(node.proposer._waiting) < 20:
            cluster.world.run_until(cluster.world.now_ns + MS // 20)
        mend = cluster.isolate(name)
        cluster.until(lambda: node.fenced, "the fence")
        cluster.until(lambda: all(each.ended for each in first), "the answers of the fence", 1)
        assert len(node.state._tables.groups) < 20
        mend()
        cluster.until(lambda: not node.fenced and cluster.servers.servers[name].serving, "the node serves again")
        second = register_names(cluster, name, "q")
        cluster.until(lambda: all(each.ended for each in second), "the answers")
        cluster.run(6)
        assert [each.result for each in second] == [
            "there would be 21 broker names, at most 20 are allowed; unregister those that are gone"
        ] * 20
        assert {len(each.state._tables.groups) for each in cluster.nodes} == {20}
        assert (node.quotas._pending.bytes, node.quotas._pending.objects) == ({}, {})


def test_room_is_held_no_longer_than_the_time_limit_of_a_proposal() -> None:
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        node: Any = cluster.node(name)
        cluster.isolate(name)
        said = register_names(cluster, name, "p")
        said.append(cluster.say(cluster.wire(name), lambda server, c: server.node.propose(PutKVConfig("n", "k", "v"), c)))
        cluster.until(lambda: all(each.ended for each in said), "the answers of the fence")
        assert node.quotas._pending.bytes
        cluster.until(lambda: not node.quotas._pending.bytes, "the time limit", REGISTRATION_S + 1)
        assert not node.quotas._pending.objects


def test_a_node_that_has_stopped_holds_no_room(tmp_path: Path) -> None:
    with live_cluster(tmp_path, fenceAfterMs="20000") as cluster:
        kept = cluster.leader()
        node: Any = kept.service
        for member in cluster.members:
            if member is not kept:
                cluster.wait_for(member.stop())

        async def write() -> None:
            await node.propose(PutKVConfig("n", "k", "v" * (HEAVY_BYTES + 1)), None)

        written = asyncio.run_coroutine_threadsafe(write(), cluster.loop)
        wait_until(lambda: bool(node.proposer._waiting), "the proposal")
        cluster.do(lambda: node.proposer.give_up("no majority"))
        with pytest.raises(OutcomeUnknownError, match="no majority"):
            written.result(30)
        assert node.quotas._pending.bytes
        assert node.proposer._heavy.locked()
    assert (node.quotas._pending.bytes, node.quotas._pending.objects) == ({}, {})
    assert not node.proposer._heavy.locked()


LONG_TOPICS = [f"{number:03}" + "x" * 320 for number in range(100)]


@pytest.fixture
def short_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log takes commands of up to 20,000 bytes."""
    monkeypatch.setattr(quotas, "COMMAND_BYTES_MAX", 20_000)


@pytest.mark.usefixtures("short_commands")
def test_a_broker_stays_registered_whose_change_the_log_cannot_take() -> None:
    with virtual_cluster() as cluster:
        name = cluster.followers()[0]
        wire = cluster.wire(name)
        assert cluster.register(wire, registration(timeout_ms=3_000)).code == 0
        long = replace(registration(2, timeout_ms=3_000), topics=dict.fromkeys(LONG_TOPICS, QueueData(6, 8, 0, 8)))
        node: Any = cluster.node(name)
        for number in range(1, 6):
            refused = cluster.ask(wire, lambda server, c: outcome_of(server.node.register(long, c)))
            assert str(refused).startswith("commandBytes is 20000: in the log this request would have 32")
            assert node.quotas.refused == {"commandBytes": number}
            cluster.run(1)
        assert cluster.is_shown()
        assert (node.quotas._pending.bytes, node.quotas._pending.objects) == ({}, {})


@pytest.mark.usefixtures("short_commands")
def test_a_broker_is_told_that_the_log_cannot_take_its_registration(tmp_path: Path) -> None:
    with replicated(tmp_path) as port, Peer(port) as peer:
        refused = peer.call(103, broker_fields(), topic_table(*LONG_TOPICS))
        assert refused.code == 1
        assert "register fewer or shorter topics, or spread the topics over more broker names" in (refused.header.remark or "")
        assert peer.call(103, broker_fields(), topic_table(*LONG_TOPICS[:50])).code == 0


def outcome_of(asked: Any) -> Future[Any]:
    """The LimitError of a request instead of its result."""

    async def wait() -> object:
        try:
            return await asked
        except LimitError as error:
            return error

    return asyncio.ensure_future(wait())
