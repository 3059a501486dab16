"""A node that has not caught up with a majority, on real sockets and files."""

import asyncio
import logging
from pathlib import Path

import pytest

from replicated_namesrv.errors import UnavailableError
from replicated_namesrv.raft.interfaces import ReadOutcome
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.consensus import CATCH_UP_PAUSE_S, RaftConsensus, raft_on_sockets
from replicated_namesrv.replication.route_machine import RouteStateMachine
from tests.support.ports import free_ports
from tests.support.replicated_cluster import Member
from tests.support.waiting import until


async def test_a_removed_node_asks_seldom_and_logs_the_reason_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other nodes refuse the requests of a removed node at once."""
    addresses = {name: ("127.0.0.1", port) for name, port in zip(("n1", "n2"), free_ports(2), strict=True)}
    transport, machine = TransportSettings("n1", "c", addresses, addresses["n1"]), RouteStateMachine()
    loop = asyncio.get_running_loop()
    consensus = RaftConsensus(
        "n1", list(addresses), raft_on_sockets(transport, tmp_path, machine), machine, RaftConfig(), lambda: loop.time() * 1000
    )
    await consensus.start()
    raft, asked_at = consensus._raft, list[float]()
    raft.node.identity.removed_at = 5
    ask = raft.read_index

    def read_index() -> "asyncio.Future[ReadOutcome]":
        asked_at.append(loop.time())
        return ask()

    raft.read_index = read_index  # type: ignore[method-assign]  # counted
    catching_up = asyncio.create_task(consensus.catch_up())
    try:
        await until(lambda: len(asked_at) >= 3, "three questions")
    finally:
        catching_up.cancel()
        await asyncio.gather(catching_up, return_exceptions=True)
        await consensus.stop()
    assert asked_at[2] - asked_at[0] >= 1.9 * CATCH_UP_PAUSE_S
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "was removed from the cluster by entry 5" in errors[0]


@pytest.mark.parametrize("policy", ["fence", "serve-stale"])
def test_a_removed_node_answers_no_query_of_a_data_version(tmp_path: Path, policy: str) -> None:
    """With ``serve-stale``, an earlier version answered it. Then the broker did not know that this node is no longer a member."""
    service = Member("n1", tmp_path, "n1=127.0.0.1:1", {"noQuorumPolicy": policy}).service
    service.reads.set_removed("removed by entry 5")
    with pytest.raises(UnavailableError, match="removed by entry 5"):
        service.query_data_version("c", "10.0.0.1:10911", None, None)  # type: ignore[arg-type]  # the connection is not used
