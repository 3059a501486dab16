"""One node after the other is stopped cleanly and started again, or replaced by a newer version, while clients write, read and
register."""

import dataclasses
from pathlib import Path

import pytest

from replicated_namesrv.cli.children import NodePlan, PlannedNode
from replicated_namesrv.cli.serve import EXIT_START_FAILED
from tests.support.next_version import NAMESPACE
from tests.support.nodes import HttpAnswer, http
from tests.support.replicated_processes import LIMIT_S, ReplicatedProcesses, eventually, replicated_processes
from tests.support.replicated_traffic import traffic

pytestmark = pytest.mark.slow
FAIL_OVER_LIMIT_S = 30.0
"""Time limit as in the fault tests. Half a second is usual, but a busy machine may need much longer."""


async def replace(cluster: ReplicatedProcesses, name: str) -> None:
    """Stop a node with SIGTERM and start it again; returns when it serves."""
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


class NextPlan(NodePlan):
    """The same node with the program of the next version."""

    def command(self) -> list[str]:
        python, _, _, _, *options = super().command()
        return [python, "-m", "tests.support.next_version", *options]


def next_version(plan: NodePlan) -> PlannedNode:
    """A process of the next version, which takes the place of the process of ``plan``. The new process does not run yet."""
    return PlannedNode(NextPlan(*(getattr(plan, field.name) for field in dataclasses.fields(plan))))


async def write_new(cluster: ReplicatedProcesses, name: str, key: str) -> HttpAnswer:
    """Send a write to a node of the next version. The write needs a command of that version."""
    return await http(cluster.nodes[name].plan.admin[1], f"/v1/kv/{NAMESPACE}/{key}", "PUT", b"value")


async def test_rolling_upgrade_to_a_version_with_new_commands(tmp_path: Path) -> None:
    """The new command is not proposed before the last node is upgraded. From then on, a node that returns to the old version
    stops with a clear reason."""
    async with replicated_processes(tmp_path) as cluster, traffic(cluster) as it:
        old = {name: cluster.nodes[name].plan for name in cluster.names}
        leader = await cluster.leader()
        *upgraded_first, last = [*cluster.others(leader), leader]
        for name in upgraded_first:
            cluster.nodes[name].terminate()
            assert await cluster.ended(name) == 0
            cluster.nodes[name] = next_version(old[name])
            await cluster.start_node(name)
            await cluster.nodes[name].wait_serving(LIMIT_S)
            await it.progress()
            refused = await write_new(cluster, name, "early")
            assert refused.status == 503
            assert refused.json["outcome"] == "not done"
            assert "upgrade every member first" in refused.json["error"]
        cluster.nodes[last].terminate()
        assert await cluster.ended(last) == 0
        cluster.nodes[last] = next_version(old[last])
        await cluster.start_node(last)
        await cluster.nodes[last].wait_serving(LIMIT_S)

        async def is_written() -> bool:
            return (await write_new(cluster, last, "late")).status == 200

        await eventually(is_written, "a write that needs every node")
        await it.progress()
        rows = (await cluster.admin(last, f"/v1/kv?namespace={NAMESPACE}"))["entries"]
        assert [row["key"] for row in rows] == ["late"], "what was refused has not happened"

        back = cluster.others(await cluster.leader())[0]
        upgraded = cluster.nodes[back]
        upgraded.terminate()
        assert await cluster.ended(back) == 0
        cluster.nodes[back] = PlannedNode(old[back])
        await cluster.start_node(back)
        assert await cluster.ended(back) == EXIT_START_FAILED
        said = old[back].log_file.read_text()
        assert "a command in the log is not known to this version" in said
        assert "install the version that the other nodes run" in said
        await it.progress()
        cluster.nodes[back] = upgraded
        await cluster.start_node(back)
        await cluster.all_serve()
