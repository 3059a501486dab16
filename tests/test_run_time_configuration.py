"""Code 318 and ``POST /v1/config`` on nodes of both modes: what is acknowledged survives, and no answer is false."""

import asyncio
import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.client.queries import update_config_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.config_writer import ConfigWriter
from replicated_namesrv.errors import PartlyDoneError, StorageError, UnavailableError
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings import ROWS, Settings, load_settings
from tests.support.nodes import running_node
from tests.support.replicated_cluster import ClusterThread, Member, live_cluster
from tests.support.waiting import wait_until

COUNT = 40


def changes(settings: Settings) -> dict[str, str]:
    """Distinct keys that a remoting client may change here alone, each with a value that it has not."""
    rows = [row for row in ROWS.values() if not row.replicated and not row.secret and row.name not in settings.black_list]
    numbers = {row.name: str(int(row.default) + 1 + place) for place, row in enumerate(rows) if row.kind is int}
    switches = {"serverNettyWorkerGroupEnable": "false", "useEpollNativeSelector": "true"}
    found = numbers | switches | {"productEnvName": "unit", "socksProxyConfig": "none"}
    assert len(found) >= COUNT
    return dict(list(found.items())[:COUNT])


async def send_all(server: RemotingServer, values: dict[str, str]) -> list[int]:
    """Response codes of as many 318s, sent at once over as many connections."""

    async def send(key: str, value: str) -> int:
        client = RemotingClient()
        try:
            return (await client.request(f"127.0.0.1:{server.port}", update_config_request(f"{key}={value}\n"))).code
        finally:
            await client.close()

    return await asyncio.gather(*(send(key, value) for key, value in values.items()))


def assert_kept(path: Path, values: dict[str, str]) -> None:
    """A node that is started with this file has all the values."""
    settings = load_settings(str(path), {}, {})
    assert {key: ROWS[key].show(settings.get(ROWS[key])) for key in values} == values


async def test_changes_at_once_all_survive_a_restart_of_an_independent_node(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, _):
        values = changes(node.settings)
        codes = await send_all(node.remoting, values)
        assert codes == [0] * COUNT
    assert_kept(tmp_path / "namesrv.properties", values)


def test_changes_at_once_all_survive_a_restart_of_a_replicated_node(tmp_path: Path) -> None:
    with live_cluster(tmp_path, nodes=1) as cluster:
        member = cluster.members[0]
        values = changes(member.service._settings)
        codes = cluster.wait_for(send_all(member.server, values))
        assert codes == [0] * COUNT
    assert_kept(tmp_path / "n1" / "namesrv.properties", values)


@pytest.mark.parametrize(
    "given", ["listenPort=0", "listen=127.0.0.1:0", "listen=127.0.0.1:0\nadminListen=off\nconnectTimeoutMillis=5", "my.own=x"]
)
async def test_a_node_starts_again_with_the_file_that_it_wrote(tmp_path: Path, given: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"{given}\ndataDir={tmp_path}\n")
    before = load_settings(str(path), {}, {})
    await ConfigWriter(before, before.update).submit({"connectTimeoutMillis": "1234", LIVE: "7", "my.own": "y"})
    after = load_settings(str(path), {}, {})
    assert after.text() == before.text()
    assert (after.connect_timeout_millis, after.wait_seconds_for_service) == (1234, 7)


SHARED, LIVE, LATER = "orderMessageEnable", "waitSecondsForService", "serverSocketBacklog"
MIXED = {SHARED: "true", LIVE: "7", LATER: "99", "noSuchKey": "1"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterThread]:
    with live_cluster(tmp_path) as started:
        yield started


async def change(member: Member, values: dict[str, str]) -> Any:
    outcome = member.service.update_config(values)
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


def in_force(cluster: ClusterThread, member: Member) -> tuple[bool, str, str]:
    """The shared key and the local ones, as code 319 shows them; the shared one as answers use it."""

    def look() -> tuple[bool, str, str]:
        shown = dict(line.split("=", 1) for line in member.service.config_text().splitlines())
        shared = member.service.state.settings.order_message_enable
        assert shown[SHARED] == str(shared).lower()
        return shared, shown[LIVE], shown[LATER]

    return cluster.do(look)


BEFORE, LOCAL_ONLY, AFTER = (False, "45", "1024"), (False, "7", "99"), (True, "7", "99")


def test_a_change_of_shared_and_local_keys_is_done_whole(cluster: ClusterThread) -> None:
    member = cluster.follower()
    assert cluster.wait_for(change(member, MIXED)).changed
    assert in_force(cluster, member) == AFTER


def test_if_the_file_cannot_be_written_no_shared_key_changes(cluster: ClusterThread, tmp_path: Path) -> None:
    member = cluster.follower()
    (tmp_path / member.name / "namesrv.properties.new").mkdir()
    with pytest.raises(StorageError, match="the old content is unchanged"):
        cluster.wait_for(change(member, MIXED))
    assert in_force(cluster, member) == BEFORE


def stop_all_but(cluster: ClusterThread, kept: Member) -> None:
    for member in cluster.members:
        if member is not kept:
            cluster.wait_for(member.stop())


def test_without_a_majority_no_local_key_changes(tmp_path: Path) -> None:
    with live_cluster(tmp_path, fenceAfterMs="700") as cluster:
        leader = cluster.leader()
        stop_all_but(cluster, leader)
        with pytest.raises(UnavailableError):
            cluster.wait_for(change(leader, MIXED))
        assert in_force(cluster, leader) == BEFORE


def test_a_shared_key_that_is_refused_after_the_local_ones_is_named(cluster: ClusterThread) -> None:
    member = cluster.follower()
    raft = member.service.consensus._raft.node

    def let_no_more_in() -> None:
        raft.proposals.config = dataclasses.replace(raft.config, pending_proposals_bytes_max=1)

    cluster.do(let_no_more_in)
    with pytest.raises(PartlyDoneError) as caught:
        cluster.wait_for(change(member, MIXED))
    text = str(caught.value)
    assert f"{LIVE} in force on this node; {LATER} written for the next start of this node; {SHARED} not changed: " in text
    assert "noSuchKey" not in text
    assert in_force(cluster, member) == LOCAL_ONLY


def test_a_shared_key_whose_outcome_is_unknown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The majority is gone when the file has been written, and the fence comes while the proposal waits."""
    with live_cluster(tmp_path, fenceAfterMs="20000") as cluster:
        lose_the_majority_while_writing(cluster, monkeypatch)


def lose_the_majority_while_writing(cluster: ClusterThread, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = cluster.leader()
    is_writing, go_on, replace = threading.Event(), threading.Event(), os.replace

    def slow_disk(source: Any, target: Any) -> None:
        if str(target).endswith("namesrv.properties"):
            is_writing.set()
            go_on.wait()
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow_disk)
    answer = asyncio.run_coroutine_threadsafe(change(leader, MIXED), cluster.loop)
    is_writing.wait()
    stop_all_but(cluster, leader)
    go_on.set()
    wait_until(lambda: cluster.do(lambda: bool(leader.service.proposer._waiting)), "the proposal")
    cluster.do(leader.service.reads._fence)
    with pytest.raises(PartlyDoneError) as caught:
        answer.result(30)
    assert f"{LIVE} in force on this node" in str(caught.value)
    assert f"{SHARED} changed or not, which is not known" in str(caught.value)
    assert in_force(cluster, leader) == LOCAL_ONLY, "so far"
