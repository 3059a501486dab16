"""The peer secret of three real nodes is replaced as docs/security.md says, while a client reads and writes."""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from replicated_namesrv.cli.children import PlannedNode
from replicated_namesrv.client.nameservers import NameServers
from replicated_namesrv.client.queries import get_kv_request, put_kv_request, read_kv
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire.codes import ResponseCode
from tests.support.nodes import command
from tests.support.replicated_processes import LIMIT_S, ReplicatedProcesses, eventually

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
OLD, NEW = "k3J9sPq-Zr7TxWv0", "0123456789abcdef"
STEPS = {
    "the new secret in `peerSecretAcceptFile`": (OLD, NEW),
    "the new one in `peerSecretFile`, and the old one in `peerSecretAcceptFile`": (NEW, OLD),
    "without `peerSecretAcceptFile`": (NEW, None),
}
"""The steps of the page in their order, each with (secret of peerSecretFile, secret of peerSecretAcceptFile)."""
TIMEOUT_MS = 20_000
"""Time-out of one attempt of the client at one node. On a busy machine an election takes seconds."""
PAUSE_S = 0.05
"""Pause between two values of the client, and between two looks at all nodes."""


def steps_of_the_page() -> list[str]:
    """The numbered steps in the row of peerSecretFile."""
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith("| `peerSecretFile` | three [rolling restarts]"))
    return re.findall(r"\d\. .+?(?=[;.] )", row)


class Client:
    """Writes a value and reads it back in a loop. A request that a node does not answer goes to the next node of the list."""

    def __init__(self, cluster: ReplicatedProcesses) -> None:
        self._servers = NameServers(cluster.addresses, RemotingClient(), rng=random.Random(1), timeout_ms=TIMEOUT_MS)
        self.done = 0
        """Values that were written and read."""
        self.failed: list[str] = []

    async def work(self) -> None:
        """Run until it is cancelled."""
        number = 0
        while True:
            number += 1
            written = await self._ask(put_kv_request("rotation", "k", str(number)))
            if written is not None and written.code == ResponseCode.SUCCESS:
                found = await self._ask(get_kv_request("rotation", "k"))
                if found is not None and (value := read_kv(found)) != str(number):
                    self.failed.append(f"read {value} after {number} was written")
                self.done += 1
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, request: RemotingCommand) -> RemotingCommand | None:
        try:
            server, answer = await self._servers.query(request)
        except NamesrvError as error:
            self.failed.append(f"{type(error).__name__}: {error}")
            return None
        if answer.code != ResponseCode.SUCCESS:
            self.failed.append(f"{server} answers code {answer.code}: {answer.remark}")
        return answer

    async def close(self) -> None:
        await self._servers.client.close()


class Watch:
    """Looks at the connections of all nodes that are not restarted at the moment."""

    def __init__(self, cluster: ReplicatedProcesses) -> None:
        self._cluster = cluster
        self.restarted: str | None = None
        self.looks = 0
        self.alone: list[str] = []

    async def work(self) -> None:
        """Run until it is cancelled."""
        while True:
            for name in self._cluster.others():
                before = self.restarted
                if name != before:
                    peers = await connected(self._cluster, name)
                    if self.restarted in (before, None):  # otherwise a node's restart has begun meanwhile, perhaps of this one
                        self.looks += 1
                        self.alone += [] if peers else [f"{name} had no peer while {before or 'no node'} was restarted"]
            await asyncio.sleep(PAUSE_S)


async def connected(cluster: ReplicatedProcesses, name: str) -> list[str]:
    """The peers to which a node has a connection."""
    peers = (await cluster.status(name))["raft"]["transport"]["peers"]
    return [peer for peer, state in peers.items() if state["connected"]]


async def all_connected(cluster: ReplicatedProcesses) -> bool:
    return all([len(await connected(cluster, name)) == len(cluster.names) - 1 for name in cluster.names])


async def status_reports_no_problem(cluster: ReplicatedProcesses) -> bool:
    """The exit code of `namesrv status`, by which docs/operations.md#restart decides when the next node is restarted."""
    admins = ";".join(f"127.0.0.1:{node.plan.admin[1]}" for node in cluster.nodes.values())
    process = await asyncio.create_subprocess_exec(
        *command("status", "-a", admins), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0


def give(cluster: ReplicatedProcesses, name: str, secret: str, accepted: str | None) -> None:
    """Write the secret files of a stopped node, and its settings."""
    cluster.write_secret(name, secret)
    plan = cluster.nodes[name].plan
    settings = [setting for setting in plan.settings if not setting.startswith("peerSecretAcceptFile=")]
    if accepted is not None:
        cluster.write_secret(f"{name}-accept", accepted)
        settings.append(f"peerSecretAcceptFile={cluster.secret_file(f'{name}-accept')}")
    cluster.nodes[name] = PlannedNode(replace(plan, settings=tuple(settings)))


@contextlib.asynccontextmanager
async def running(*works: "Client | Watch") -> AsyncIterator[None]:
    """Client and watch work until the end of the block. An error of either is one of the block."""
    tasks = [asyncio.ensure_future(work.work()) for work in works]
    try:
        yield
        assert not [task for task in tasks if task.done() and task.exception()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.timeout(1200)
async def test_the_peer_secret_is_replaced_without_downtime(tmp_path: Path) -> None:
    assert steps_of_the_page() == [f"{number}. {step}" for number, step in enumerate(STEPS, 1)]
    cluster = ReplicatedProcesses(tmp_path, 3)
    cluster.secret = OLD
    try:
        await cluster.start()
        await eventually(lambda: all_connected(cluster), "all connections")
        client, watch = Client(cluster), Watch(cluster)
        async with running(client, watch):
            for secret, accepted in STEPS.values():
                for name in cluster.names:
                    before, watch.restarted = client.done, name
                    await cluster.nodes[name].stop()
                    give(cluster, name, secret, accepted)
                    await cluster.start_node(name)
                    await cluster.nodes[name].wait_serving(
                        3 * LIMIT_S
                    )  # a process that starts needs 20 s at a load average of 15
                    await eventually(lambda: all_connected(cluster), f"all connections after the restart of {name}")
                    watch.restarted = None
                    await eventually(lambda: status_reports_no_problem(cluster), "namesrv status without a problem")
                    assert client.done > before
        await client.close()
        assert not client.failed
        assert not watch.alone
        assert watch.looks > 9, "the watch has looked at the nodes"

        left_behind = "n3"
        await cluster.nodes[left_behind].stop()
        give(cluster, left_behind, OLD, None)
        await cluster.start_node(left_behind)
        for name in cluster.others(left_behind):
            refusal = f"{left_behind} does not know the shared secret"
            await eventually(lambda: is_in_log(cluster, name, refusal), f"the refusal by {name}")  # noqa: B023 - awaited at once
            assert left_behind not in await connected(cluster, name)
        assert not await connected(cluster, left_behind)
    finally:
        await cluster.close()


async def is_in_log(cluster: ReplicatedProcesses, name: str, text: str) -> bool:
    return text in cluster.nodes[name].plan.log_file.read_text()
