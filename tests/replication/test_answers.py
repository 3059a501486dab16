"""Answers to clients of a cluster: the bytes of an independent node, unless the request asks for more. Settings are the
cluster's.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from replicated_namesrv.service import ReadLevel
from tests.support.remoting_server import Answer, Peer, broker_fields, live_server, request, topic_table
from tests.support.replicated_cluster import ClusterThread, Member, live_cluster
from tests.support.waiting import wait_until

T = TypeVar("T")
READS: tuple[tuple[int, dict[str, str]], ...] = (
    (101, {"namespace": "N", "key": "k"}),
    (101, {"namespace": "N", "key": "none"}),
    (105, {"topic": "T"}),
    (105, {"topic": "None"}),
    (105, {}),
    (106, {}),
    (206, {}),
    (219, {"namespace": "N"}),
    (219, {"namespace": "None"}),
    (224, {"cluster": "C"}),
    (304, {}),
    (311, {}),
    (901, {"clusterName": "C", "brokerName": "b"}),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterThread]:
    with live_cluster(tmp_path_factory.mktemp("cluster"), fenceAfterMs="20000") as started:
        yield started


def fill(peer: Peer) -> None:
    """One broker, two topics, one entry of the KV config."""
    assert peer.call(103, broker_fields(), topic_table("T", "U")).code == 0
    assert peer.call(100, {"namespace": "N", "key": "k", "value": "v"}).code == 0


def ask(peer: Peer, code: int, fields: dict[str, str], serialize_type: int = 0) -> Answer:
    peer.send(request(code, fields, opaque=5, serialize_type=serialize_type))
    return peer.answers(1)[0]


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_unmodified_requests_get_the_bytes_of_an_independent_node(
    cluster: ClusterThread, serialize_type: int, tmp_path: Path
) -> None:
    with live_server(tmp_path) as independent, Peer(independent.port) as here, Peer(cluster.leader().server.port) as there:
        fill(here)
        fill(there)
        for member in cluster.members:
            with Peer(member.server.port) as peer:
                for code, fields in READS:
                    for _ in range(3):  # the third comes from a prepared answer
                        expected = ask(here, code, fields, serialize_type).data
                        assert ask(peer, code, fields, serialize_type).data == expected, (member.name, code, fields)


@pytest.mark.parametrize("serialize_type", [0, 1])
@pytest.mark.parametrize("through", ["leader", "follower"])
def test_who_asks_is_told(cluster: ClusterThread, through: str, serialize_type: int) -> None:
    member = cluster.leader() if through == "leader" else cluster.follower()
    with Peer(member.server.port) as peer:
        fill(peer)
        for level in ("linearizable", "lease", "stale"):
            for code, fields in READS:
                plain = ask(peer, code, fields, serialize_type)
                asked = {**fields, "readConsistency": level}
                told, standing = steadily(cluster, member, lambda asked=asked, code=code: ask(peer, code, asked, serialize_type))  # type: ignore[misc]  # a default in a lambda
                assert (told.code, told.body, told.header.remark) == (plain.code, plain.body, plain.header.remark)
                check(dict((told.header.ext_fields or {}).items() - (plain.header.ext_fields or {}).items()), level, standing)
        bounded = ask(peer, 105, {"topic": "T", "maxStalenessMs": "0"}, serialize_type)
        assert (bounded.header.ext_fields or {})["readLevel"] == "linearizable", "what is not stale has no age to bound"
        unknown = ask(peer, 105, {"topic": "T", "readConsistency": "strong"}, serialize_type)
        assert (unknown.code, unknown.header.ext_fields or None) == (1, None)
        assert unknown.header.remark == "readConsistency=strong: give one of linearizable, lease, stale"


Standing = tuple[int, int, str | None]


def steadily(cluster: ClusterThread, member: Member, action: Callable[[], T]) -> tuple[T, Standing]:
    """The result of ``action`` while revision, term and leader of the node were constant, because a busy machine may hold
    elections.
    """

    def look() -> Standing:
        return member.service.state.revision, member.service.consensus.term, member.service.consensus.leader

    while True:
        before, result = cluster.do(look), action()
        if before[2] is not None and cluster.do(look) == before:
            return result, before


def check(told: dict[str, str], level: str, standing: Standing) -> None:
    """Check the freshness fields of an answer."""
    got = told.pop("readLevel")
    assert got == level or (level == "lease" and got == "linearizable"), "a lease that does not hold, or not here"
    age_ms = int(told.pop("stalenessMs"))
    assert age_ms >= 0 if level == "stale" else age_ms == 0
    assert told == {"revision": str(standing[0]), "raftTerm": str(standing[1]), "leader": standing[2]}


def test_a_stale_answer_beyond_its_bound_is_refused(cluster: ClusterThread) -> None:
    member = cluster.follower()
    with Peer(member.server.port) as peer:

        def refused() -> Answer | None:
            answer = ask(peer, 206, {"readConsistency": "stale", "maxStalenessMs": "0"})
            return answer if answer.code == 1 else None

        answer = wait_until(refused, "an answer that is a millisecond old")
        assert answer is not None
        remark = answer.header.remark or ""
        assert remark.startswith("maxStalenessMs=0: the state here is ")


def test_data_versions_are_linearizable_whatever_is_asked_for(cluster: ClusterThread) -> None:
    """A request with code 322 is a renewal, not a read, so it has no read level. No answer is older than a registration that any
    node acknowledged before."""
    fields = {"clusterName": "C", "brokerName": "versioned", "brokerAddr": "127.0.0.1:7", "brokerId": "0"}
    with Peer(cluster.leader().server.port) as writer, Peer(cluster.follower().server.port) as reader:
        for counter in range(1, 31):
            registered = topic_table("T", "U", counter=counter)
            assert writer.call(103, broker_fields("versioned", "127.0.0.1:7"), registered).code == 0
            plain = ask(reader, 322, fields)
            assert json.loads(plain.body)["counter"] == counter
            assert (plain.header.ext_fields or {}).keys() == {"changed"}
            for asked in ({"readConsistency": "stale"}, {"readConsistency": "lease", "maxStalenessMs": "0"}):
                assert ask(reader, 322, fields | asked).data == plain.data


def test_reads_are_counted_by_level(cluster: ClusterThread) -> None:
    member = cluster.follower()
    with Peer(member.server.port) as peer:
        fill(peer)
        ask(peer, 105, {"topic": "T"})
        before = cluster.do(member.server.metrics.read_counts)
        for _ in range(5):
            ask(peer, 105, {"topic": "T"})
        for level in ReadLevel.STALE, ReadLevel.LINEARIZABLE:
            ask(peer, 106, {"readConsistency": level})
        counts = cluster.do(member.server.metrics.read_counts)
        assert counts["linearizable"] - before.get("linearizable", 0) == 6
        assert counts["stale"] - before.get("stale", 0) == 1


def settings_of(member: Member) -> dict[str, str]:
    with Peer(member.server.port) as peer:
        lines = ask(peer, 319, {}).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def shared(member: Member) -> tuple[str, str]:
    found = settings_of(member)
    return found["orderMessageEnable"], found["enableTopicList"]


def test_settings_that_answers_depend_on_are_the_clusters(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"fenceAfterMs": "20000"}
    with live_cluster(tmp_path, **flags) as cluster:
        follower = cluster.follower()
        with Peer(follower.server.port) as peer:
            body = b"orderMessageEnable=true\nenableTopicList=false\nwaitSecondsForService=7\nnoSuchSetting=1\n"
            assert peer.call(318, body=body).code == 0
            for member in cluster.members:
                assert shared(member) == ("true", "false"), "as soon as it is acknowledged, on every node"
            waits = {member.name: settings_of(member)["waitSecondsForService"] for member in cluster.members}
            assert waits == {member.name: "7" if member is follower else "45" for member in cluster.members}
            for body in (b"orderMessageEnable=false\npeers=n1=h:1\n", b"readConsistency=stale", b"kvConfigPath=x"):
                refused = peer.call(318, body=body)
                assert (refused.code, refused.header.remark) == (16, "Can not update config in black list.")
        assert shared(cluster.leader()) == ("true", "false")
        with Peer(cluster.leader().server.port) as peer:
            assert peer.call(224, {"cluster": "C"}).header.remark == "disable"
        for member in cluster.members:
            cluster.do(partial(take_snapshot, member))
        wait_until(lambda: all(cluster.do(partial(snapshots, member)) for member in cluster.members), "snapshots")
    with live_cluster(tmp_path, **flags, orderMessageEnable="false", enableTopicList="true") as cluster:
        for member in cluster.members:
            assert shared(member) == ("true", "false"), "the log goes over what a file or a flag says"


def take_snapshot(member: Member) -> None:
    node = member.service.consensus._raft.node
    node.core.force_compaction()
    node.tick()


def snapshots(member: Member) -> int:
    return int(member.service.consensus._raft.node.taking.taken)


def test_only_the_leader_pushes(cluster: ClusterThread) -> None:
    with Peer(cluster.follower().server.port) as peer:
        assert peer.call(318, body=b"notifyMinBrokerIdChanged=true").code == 0
        names = (f"pushed{number}" for number in count())

        def change_least_id() -> None:
            name = next(names)
            for broker_id in (1, 0):
                fields = broker_fields(name, f"127.0.0.1:{broker_id + 1}", broker_id, enableActingMaster="true")
                assert peer.call(103, fields, topic_table("P", "Q")).code == 0

        while True:  # repeat after an election: it may lose the push, and another node may send the next one
            leader, term = cluster.leader(), cluster.leader().service.consensus.term
            before = {member.name: pushes_of(cluster, member) for member in cluster.members}
            change_least_id()
            if (cluster.leader(), leader.service.consensus.term) == (leader, term):
                break
        wait_until(lambda: pushes_of(cluster, leader) > before[leader.name], "a push, which nobody takes")
        for member in cluster.members:
            assert member is leader or pushes_of(cluster, member) == before[member.name]


def pushes_of(cluster: ClusterThread, member: Member) -> int:
    return cluster.do(lambda: sum(member.server.metrics.pushes.values()))
