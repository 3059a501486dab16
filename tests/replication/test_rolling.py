"""Node after node is stopped in order and started again, as for a new version, while clients write, read and register."""

from pathlib import Path

import pytest

from tests.support.replicated_processes import ReplicatedProcesses, replicated_processes
from tests.support.replicated_traffic import traffic

pytestmark = pytest.mark.slow
FAIL_OVER_LIMIT_S = 30.0
"""As in the fault tests: what a busy machine may make of half a second."""


async def replace(cluster: ReplicatedProcesses, name: str) -> None:
    """Stop a node with SIGTERM and start it again; returns once it serves."""
    cluster.nodes[name].terminate()
    assert await cluster.ended(name) == 0, f"{name} did not stop in order"
    await cluster.start_node(name)
    await cluster.nodes[name].wait_serving(FAIL_OVER_LIMIT_S * 2)


async def test_rolling_restart_under_load(tmp_path: Path) -> None:
    """``traffic`` checks at its end that every acknowledged write is on every node and that no look-up failed on the whole
    list."""
    async with replicated_processes(tmp_path) as cluster:
        async with traffic(cluster) as it:
            for _ in cluster.names:
                await it.progress()
                leader = await cluster.leader()
                term = (await cluster.status(leader))["term"]
                await replace(cluster, leader)
                successor = await cluster.leader()
                assert (await cluster.status(successor))["term"] > term
                await it.progress()
            for name in cluster.others(await cluster.leader()):
                await replace(cluster, name)
            await it.progress()
            assert len(it.written) >= 30
        assert it.longest_gap_s < FAIL_OVER_LIMIT_S
