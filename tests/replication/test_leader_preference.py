"""``leaderPriority``, by the rows of its table, and on nodes; and the settings of elections."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from replicated_namesrv.errors import SettingError
from replicated_namesrv.process import ServingNode
from replicated_namesrv.raft.leadership import Leadership
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.replication import leader_preference
from replicated_namesrv.replication.leader_preference import (
    LAG_MAX,
    LEASE_MS,
    LOOK_MS,
    PAUSE_MS,
    LeaderPreference,
    check_elections,
    lease_margin,
    preferred_leaders,
)
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.settings_sources import load_settings
from tests.support.operated import operated, run
from tests.support.ports import free_ports
from tests.support.waiting import until

SOUND: dict[str, Any] = {"connected": True, "votes": True, "match_index": 1_000}


def status(**followers: dict[str, Any]) -> dict[str, Any]:
    return {"last_index": 1_000, "followers": followers}


def due(preference: LeaderPreference, term: int | None, now_ms: float) -> bool:
    """Whether the preference is due ``now_ms`` after the node began to lead."""
    preference.is_due(term, 0.0)
    return preference.is_due(term, now_ms)


def test_p1_a_node_that_does_not_lead_transfers_nothing() -> None:
    assert not due(LeaderPreference("n3", ["n1"]), None, 10 * PAUSE_MS)


def test_p2_a_new_leader_waits() -> None:
    preference = LeaderPreference("n3", ["n1"])
    assert not due(preference, 5, PAUSE_MS - 1)
    assert preference.is_due(5, PAUSE_MS)
    assert not preference.is_due(5, PAUSE_MS + LOOK_MS - 1)
    assert preference.is_due(5, PAUSE_MS + LOOK_MS)
    assert not preference.is_due(6, PAUSE_MS + LOOK_MS), "another term begins anew"


def test_p3_the_most_preferred_node_keeps_leadership() -> None:
    assert not due(LeaderPreference("n1", ["n1", "n2"]), 5, PAUSE_MS)
    assert not due(LeaderPreference("n1", []), 5, PAUSE_MS)
    assert due(LeaderPreference("n2", ["n1", "n2"]), 5, PAUSE_MS)
    assert due(LeaderPreference("n3", ["n1", "n2"]), 5, PAUSE_MS)


@pytest.mark.parametrize("problem", [{"connected": False}, {"votes": False}, {"match_index": 999 - LAG_MAX}])
def test_p4_a_node_that_could_not_lead_is_passed_over(problem: dict[str, Any]) -> None:
    preference = LeaderPreference("n3", ["n1", "n2"])
    assert preference.target(status(n1={**SOUND, **problem}, n2=SOUND)) == "n2"
    assert preference.target(status(n1={**SOUND, **problem})) is None


def test_p4_a_drained_node_is_passed_over() -> None:
    preference = LeaderPreference("n3", ["n1", "n2"])
    assert preference.target(status(n1=SOUND, n2=SOUND), {"n1"}) == "n2"
    assert preference.target(status(n1=SOUND), {"n1"}) is None


def test_p5_each_transfer_doubles_the_pause() -> None:
    preference = LeaderPreference("n3", ["n1"])
    assert due(preference, 5, PAUSE_MS)
    assert preference.target(status(n1={**SOUND, "match_index": 1_000 - LAG_MAX})) == "n1"
    assert not preference.is_due(5, PAUSE_MS + LOOK_MS + 2 * PAUSE_MS - 1), "the transfer failed"
    assert preference.is_due(5, PAUSE_MS + LOOK_MS + 2 * PAUSE_MS)
    for _ in range(20):
        preference.target(status(n1=SOUND))
    assert not due(preference, 7, leader_preference.PAUSE_MS_MAX - 1)
    assert due(preference, 7, 2 * leader_preference.PAUSE_MS_MAX)


def test_a_name_that_is_no_node_is_refused() -> None:
    settings = load_settings(None, {"leaderPriority": "n2, n9"}, {})
    with pytest.raises(
        SettingError, match=r"n9 is not a node in peers; give n1, n2, n3\. If n9 was added .* replace peers by join"
    ):
        preferred_leaders(settings, ["n1", "n2", "n3"])


async def test_a_node_that_joins_may_prefer_nodes_that_its_settings_do_not_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``join`` names some members only, and others are added later."""
    (port,) = free_ports(1)
    async with operated(tmp_path, 1) as cluster:
        flags = {"nodeId": "n2", "mode": "cp", "listen": "127.0.0.1:0", "adminListen": "127.0.0.1:0"}
        flags |= {"join": cluster.nodes[0].settings.peers, "peerListen": f"127.0.0.1:{port}", "dataDir": str(tmp_path / "n2")}
        node = ServingNode(load_settings(None, {**flags, "leaderPriority": "n9,n1"}, {}))
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
    (warning,) = [
        record for record in caplog.records if record.getMessage().startswith("leaderPriority names nodes that are not")
    ]
    assert (vars(warning)["nodes"], vars(warning)["members"]) == ("n9", "n1, n2")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"electionTimeoutMs": "200"}, "give 300 or more"),
        ({"peerHeartbeatMs": "61"}, "at least 5 heartbeats"),
        ({"electionTimeoutMs": "1000"}, "set fenceAfterMs to 2100 or more"),
    ],
)
def test_settings_of_elections_that_contradict_each_other(flags: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        check_elections(load_settings(None, flags, {}))


@pytest.mark.parametrize("election_ms", [300, 1_000, 3_000])
def test_the_lease_ends_before_a_node_with_the_shortest_time_out_votes(election_ms: int) -> None:
    """Nodes are restarted one by one, so a leader with a long election time-out has followers with the shortest one."""
    config = RaftConfig(
        election_min_ms=election_ms, election_max_ms=2 * election_ms, heartbeat_ms=50, clock_drift_max=lease_margin(election_ms)
    )
    assert Leadership(config, 0.0)._lease_seconds == pytest.approx(LEASE_MS / 1000)
    shortest = RaftConfig()
    assert shortest.election_min_ms == 300
    assert shortest.election_min_ms * (1 - 2 * shortest.clock_drift_max) >= LEASE_MS


def leads(node: ServingNode) -> bool:
    assert isinstance(node.service, ReplicatedNode)
    return node.service.led_term is not None


async def test_the_preferred_node_leads_as_soon_as_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_preference, "PAUSE_MS", 200.0)
    async with operated(tmp_path, leaderPriority="n2,n3", electionTimeoutMs="500", peerHeartbeatMs="80") as cluster:
        second, third = cluster.named("n2"), cluster.named("n3")
        await until(lambda: leads(second), "n2 to lead")
        assert isinstance(second.service, ReplicatedNode)
        config = second.service.consensus._raft.node.config
        assert (config.election_min_ms, config.election_max_ms, config.heartbeat_ms) == (500, 1_000, 80)
        async with asyncio.timeout(60):
            await second.stop()
        await until(lambda: leads(third), "n3 to lead")
