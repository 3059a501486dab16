"""One hostile host next to real clients: no node changes its role, none restarts, and every client is answered.

The attacks are those of ``python -m benchmarks.hostile_host``, which measures how long the clients wait.
"""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.hostile_host import ATTACKS, hostile_host, limits_hit, ports_of, registration, standing
from replicated_namesrv.client.queries import put_kv_request, route_request
from replicated_namesrv.client.remoting import RemotingClient
from tests.security.attacked import MODES, AttackedNode, started_cluster, write_cluster_files
from tests.support.nodes import http

ROUNDS = 15
ELECTION_MS = 3_000
"""Election time-out, longer than in production, because the machine of a test may delay a process by more than 300 ms without an
attack."""
LIMITS = ("maxConnections=1000", "maxConnectionsPerAddress=100", "fenceAfterMs=20000")
TIMEOUT_MS = 60_000


async def ask_all(nodes: list[AttackedNode], rounds: int) -> None:
    """Requests of a broker and of a client to each node. Each has to be answered, without an error."""
    client = RemotingClient()
    try:
        for number in range(rounds):
            for node in nodes:
                for request in (
                    registration("real", "127.0.0.1:10911", 10, 1),
                    route_request("topic-0000001"),
                    put_kv_request("real", f"key-{number}", "v"),
                ):
                    answer = await client.request(f"127.0.0.1:{node.port}", request, TIMEOUT_MS)
                    assert answer.code == 0, (number, request.code, answer)
    finally:
        await client.close()


async def causes(nodes: list[AttackedNode]) -> list[list[str]]:
    """For each node: the counters that tell why a leader changed, if they are not zero."""
    texts = [(await http(node.admin_port, "/metrics")).text for node in nodes]
    pattern = r"^namesrv_raft_(?:elections|leader_changes|disk_stalls)\S* (?!0\.0$).*$"
    return [re.findall(pattern, text, flags=re.MULTILINE) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_one_hostile_host_changes_no_role_and_no_client_is_refused(tmp_path: Path, mode: str) -> None:
    folders = [tmp_path / f"n{number + 1}" for number in range(3)]
    files = write_cluster_files(folders, [folder / "data" for folder in folders], mode, *LIMITS)

    async def run(nodes: list[AttackedNode]) -> Counter[str]:
        before = await standing(nodes)
        with hostile_host(list(ATTACKS), ports_of(nodes)):
            await ask_all(nodes, ROUNDS)
        assert await standing(nodes) == before, await causes(nodes)
        return sum([await limits_hit(node.admin_port) for node in nodes], Counter[str]())

    with started_cluster(files, ELECTION_MS) as nodes:
        hit = asyncio.run(run(nodes))
        assert all(node.is_running() for node in nodes)
        assert hit["connectionsPerAddress"] > 0
        assert hit["admin"] > 0
        assert hit["connections"] == 0, "other hosts could connect"
