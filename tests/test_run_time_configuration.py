"""Code 318 and ``POST /v1/config`` on nodes of both modes: acknowledged changes survive, and no answer is false."""

import asyncio
import dataclasses
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicated_namesrv.client.queries import update_config_request
from replicated_namesrv.client.remoting import RemotingClient
from replicated_namesrv.config_writer import ConfigWriter
from replicated_namesrv.errors import PartlyDoneError, StorageError, UnavailableError
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings import RUN_TIME_FILE, Settings
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.properties import load_properties, store_properties
from tests.support.nodes import running_node
from tests.support.replicated_cluster import ClusterThread, Member, live_cluster
from tests.support.waiting import wait_until

COUNT = 40
PATIENCE_MS = 60_000
"""Each change is synced to the disk before the next one, and the disk may be busy."""


CHANGES = {f"my.own.{number}": f"value = {number} \\ : ! #" for number in range(COUNT)}
"""Keys in the -c file that are not settings. There may be any number of them, and 318 accepts them."""


def knows_them(settings: Settings) -> None:
    settings.extra |= dict.fromkeys(CHANGES, "")


async def send_all(server: RemotingServer) -> list[int]:
    """Send one 318 for each change, all at once, each over its own connection. Returns the response codes."""

    async def send(text: str) -> int:
        client = RemotingClient(connect_timeout_ms=PATIENCE_MS)
        try:
            return (await client.request(f"127.0.0.1:{server.port}", update_config_request(text), PATIENCE_MS)).code
        finally:
            await client.close()

    return await asyncio.gather(*(send(store_properties({key: value}).decode()) for key, value in CHANGES.items()))


async def test_changes_at_once_all_survive_a_restart_of_an_independent_node(tmp_path: Path) -> None:
    async with running_node(tmp_path) as (node, _):
        knows_them(node.settings)
        codes = await send_all(node.remoting)
        assert codes == [0] * COUNT
    assert load_properties((tmp_path / RUN_TIME_FILE).read_bytes()) == CHANGES


def test_changes_at_once_all_survive_a_restart_of_a_replicated_node(tmp_path: Path) -> None:
    with live_cluster(tmp_path, nodes=1) as cluster:
        member = cluster.members[0]
        knows_them(member.service._settings)
        codes = cluster.wait_for(send_all(member.server))
        assert codes == [0] * COUNT
    assert load_properties((tmp_path / "n1" / RUN_TIME_FILE).read_bytes()) == CHANGES


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=2, max_size=2))
def test_a_node_starts_again_with_what_it_wrote(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        given_file = Path(folder) / "broker.conf"
        given_file.write_text(f"listenPort=0\ndataDir={folder}\nmy.own=x\nwaitSecondsForService=60\n")
        before = load_settings(str(given_file), {}, {})
        for text in texts:
            asyncio.run(submit(before, {"my.own": text, LIVE: "7"}))
        after = load_settings(str(given_file), {}, {})
        assert after.text() == before.text()
        assert (after.extra["my.own"], after.wait_seconds_for_service) == (texts[-1], 7)


async def submit(settings: Settings, values: dict[str, str]) -> None:
    await ConfigWriter(settings, settings.change).submit(values)


SHARED, LIVE, OTHER = "orderMessageEnable", "waitSecondsForService", "shutdownWaitTimeSeconds"
MIXED = {SHARED: "true", LIVE: "7", OTHER: "9", "noSuchKey": "1"}


async def test_changes_that_were_removed_from_the_file_do_not_return(tmp_path: Path) -> None:
    """The operator removes runtime.properties and sends SIGHUP. In an earlier version, the next change wrote the removed changes
    again, and a removed change that was requested again was acknowledged without a write."""
    file = tmp_path / RUN_TIME_FILE
    async with running_node(tmp_path) as (node, _):

        async def ask(values: dict[str, str]) -> None:
            outcome = node.service.update_config(values)
            assert isinstance(outcome, asyncio.Future)
            await outcome

        def remove_the_file() -> None:
            file.unlink()
            node.take(load_settings(None, {"dataDir": str(tmp_path)}, {}))

        await ask({SHARED: "true", LIVE: "7", OTHER: "9"})
        remove_the_file()
        assert (node.settings.wait_seconds_for_service, node.settings.shutdown_wait_time_seconds) == (45, 30)
        await ask({OTHER: "9"})
        in_force = {SHARED: "true", OTHER: "9"}  # SIGHUP does not change shared settings
        assert load_properties(file.read_bytes()) == in_force
        remove_the_file()
        await ask({OTHER: "9"})
        assert load_properties(file.read_bytes()) == in_force


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterThread]:
    with live_cluster(tmp_path) as started:
        yield started


async def change(member: Member, values: dict[str, str]) -> Any:
    outcome = member.service.update_config(values)
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


def in_force(cluster: ClusterThread, member: Member) -> tuple[bool, str, str]:
    """The values of the shared key and of two local keys, as code 319 shows them. The shared value is also the one that answers
    use."""

    def look() -> tuple[bool, str, str]:
        shown = dict(line.split("=", 1) for line in member.service.config_text().splitlines())
        shared = member.service.state.settings.order_message_enable
        assert shown[SHARED] == str(shared).lower()
        return shared, shown[LIVE], shown[OTHER]

    return cluster.do(look)


BEFORE, LOCAL_ONLY, AFTER = (False, "45", "30"), (False, "7", "9"), (True, "7", "9")


def test_a_change_of_shared_and_local_keys_is_done_whole(cluster: ClusterThread) -> None:
    member = cluster.follower()
    assert cluster.wait_for(change(member, MIXED)).changed
    assert in_force(cluster, member) == AFTER


def test_if_the_file_cannot_be_written_no_shared_key_changes(cluster: ClusterThread, tmp_path: Path) -> None:
    member = cluster.follower()
    (tmp_path / member.name / "runtime.properties.new").mkdir()
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
    assert f"{LIVE}, {OTHER} in force on this node; {SHARED} not changed: " in text
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
        if str(target).endswith(RUN_TIME_FILE):
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
    assert f"{LIVE}, {OTHER} in force on this node" in str(caught.value)
    assert f"{SHARED} may or may not have changed" in str(caught.value)
    assert in_force(cluster, leader) == LOCAL_ONLY, "so far"
