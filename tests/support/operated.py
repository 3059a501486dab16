"""Nodes to operate on: assembled as in production, all in the test's own event loop. Commands run in another thread."""

import asyncio
import contextlib
import io
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from replicated_namesrv.cli.main import run_command
from replicated_namesrv.process import ServingNode
from replicated_namesrv.settings_sources import load_settings
from tests.support.json_outputs import check_output
from tests.support.ports import free_ports
from tests.support.waiting import until

DEADLINE_S = 60.0


class Output(NamedTuple):
    """The output and exit code of a command."""

    code: int
    out: str
    err: str


class Operated:
    """Nodes and their addresses."""

    def __init__(self, nodes: list[ServingNode]) -> None:
        self.nodes = nodes

    @property
    def admin_ports(self) -> list[int]:
        """The admin ports of all nodes, in their order."""
        return [node.admin.address[1] for node in self.nodes if node.admin is not None and node.admin.address is not None]

    @property
    def admin(self) -> str:
        """List for ``--admin``."""
        return ";".join(f"127.0.0.1:{port}" for port in self.admin_ports)

    @property
    def namesrv(self) -> str:
        """List for ``-n``."""
        return ";".join(node.listen_address for node in self.nodes)

    def named(self, name: str) -> ServingNode:
        """The node with this id."""
        return next(node for node in self.nodes if node.settings.node_id == name)

    def status(self, node: ServingNode) -> dict[str, Any]:
        """The replication status of a node."""
        found = node.service.replication_status()
        assert found is not None
        return found

    async def elected(self) -> ServingNode:
        """Wait for a node that leads, and return it."""
        found = await until(
            lambda: [node for node in self.nodes if self.status(node)["role"] == "leader"], "a leader", timeout_s=DEADLINE_S
        )
        return found[0]


async def run(*arguments: str) -> Output:
    """``namesrv COMMAND …`` in a thread of this process, so that the nodes in this loop can answer it. JSON is
    checked with its schema."""

    def work() -> Output:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run_command(arguments[0], arguments[1:])
            except SystemExit as end:
                code = int(end.code or 0)
        check_output(arguments, out.getvalue())
        return Output(code, out.getvalue(), err.getvalue())

    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.to_thread(work)


@asynccontextmanager
async def operated(
    folder: Path, count: int = 3, mode: str = "cp", zones: Sequence[str] = (), **flags: str
) -> AsyncIterator[Operated]:
    """Started nodes n1, n2, …; ``flags`` by name in the properties file. ``zones``: the zone of each node; empty: none."""
    names = [f"n{number + 1}" for number in range(count)]
    peers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in zip(names, free_ports(count), strict=True))
    nodes = []
    for name, zone in itertools.zip_longest(names, zones, fillvalue=""):
        (folder / name).mkdir(parents=True, exist_ok=True)
        own = {"nodeId": name, "mode": mode, "listen": "127.0.0.1:0", "adminListen": "127.0.0.1:0", "dataDir": str(folder / name)}
        own |= {"zone": zone} if zone else {}
        nodes.append(ServingNode(load_settings(None, {**own, **({"peers": peers} if mode == "cp" else {}), **flags}, {})))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(node.start() for node in nodes))
        yield Operated(nodes)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
