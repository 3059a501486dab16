"""RunOperator: the operator of a run, who adds, removes, replaces and drains nodes, and keeps the address list of brokers and
clients up to date.

A CP cluster has members. There, the operator executes ``namesrv members …``, and brokers and clients use the list that
``/rocketmq/nsaddr`` of the leader returns. Independent nodes and foreign name servers have no members. There, the operator starts
or stops a node, and edits the list.

Each command is an operation in the trace. The commands use the admin ports, which no fault affects.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from replicated_namesrv.chaos.process_cluster import ProcessCluster
from replicated_namesrv.chaos.recorder import FAIL, INDETERMINATE, OK, Ended, Recorder
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.child_process import ChildProcess

NAME = "operator"
WITHIN_S = 60
"""How long ``namesrv members`` waits for the end of a change."""
DRAIN_S = 2
DRAINED_S = 0.5
"""How long a drained node runs before it is stopped. In this time the node must answer no request."""
LIST_POLL_S = 0.25
_OUTCOMES = {0: OK, 1: FAIL}


class RunOperator:
    """The operator of one run. It executes one command at a time."""

    def __init__(
        self, cluster: ProcessCluster, recorder: Recorder, folder: Path, use_nodes: Callable[[Sequence[str]], None]
    ) -> None:
        """``use_nodes`` gives brokers and clients a new list."""
        self._cluster, self._recorder, self._use_nodes = cluster, recorder, use_nodes
        self._folder = folder.absolute()
        self._list: tuple[str, ...] = cluster.founders
        self._commands = 0

    async def add(self, name: str, *, observer: bool) -> bool:
        """Start a node and make it a voter or an observer. Returns whether the node is a member then."""
        node = self._cluster.nodes[name]
        await node.process.start()
        if self._cluster.has_members:
            return await self._members("add", name, node.peer, *(["--observer"] if observer else []))
        await self._cluster.wait_ready(name)
        self._set_list((*self._list, name))
        return True

    async def remove(self, name: str) -> bool:
        """Take a node out of the cluster. If the cluster has no members, the caller stops the node. Returns whether it is no
        longer a member."""
        if self._cluster.has_members:
            return await self._members("remove", name)
        self._set_list(self._without(name))
        return True

    async def replace(self, old: str, new: str) -> bool:
        """Start a node and let it take the place of ``old``."""
        if not self._cluster.has_members:
            return await self.add(new, observer=False) and await self.remove(old)
        node = self._cluster.nodes[new]
        await node.process.start()
        return await self._members("replace", old, new, node.peer)

    async def drain(self, name: str) -> None:
        """Drain a node, as before a restart: its brokers and clients use the other nodes."""
        if not self._cluster.has_members:
            self._set_list(self._without(name))
        if self._cluster.is_foreign:
            return
        op, timeout = self._recorder.invoke(NAME, "drain", name), aiohttp.ClientTimeout(total=DRAIN_S + 10)
        url = f"http://{self._cluster.nodes[name].admin}/v1/drain?withinSeconds={DRAIN_S}"
        try:
            async with self._cluster.session.post(url, timeout=timeout) as answer:
                text = await answer.text()
                ended = Ended(OK) if answer.status == 200 else Ended(FAIL, error=text[:300])
        except (aiohttp.ClientError, TimeoutError) as error:
            ended = Ended(INDETERMINATE, error=str(error) or type(error).__name__)
        self._recorder.complete(op, ended)
        await asyncio.sleep(DRAINED_S)

    async def restart(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Restart a drained node by ``work``."""
        op = self._recorder.invoke(NAME, "restart", name)
        await work()
        await self._cluster.wait_ready(name)
        self._recorder.complete(op, Ended(OK, name))
        if not self._cluster.has_members:
            self._set_list((*self._list, name))

    async def follow_list(self) -> None:
        """Give brokers and clients each new list of the nodes, until cancelled. While no node leads, they keep the old
        one. Only for a cluster with members."""
        while True:
            leader = await self._cluster.leader()
            found = await self._addresses_of(leader) if leader is not None else ()
            if found and set(found) != set(self._list):
                self._set_list(found)
            await asyncio.sleep(LIST_POLL_S)

    async def _addresses_of(self, leader: str) -> tuple[str, ...]:
        """The nodes in the address list of the leader."""
        op = self._recorder.invoke(NAME, "address-list", leader, node=leader)
        found = tuple(await self._cluster.server_list(leader))
        self._recorder.complete(op, Ended(OK if found else INDETERMINATE, leader, " ".join(found)))
        return found

    async def look(self, nodes: Sequence[str]) -> None:
        """Record the members that each of these nodes knows, with their roles."""
        for name in nodes if self._cluster.has_members else ():
            op = self._recorder.invoke(NAME, "member-list", name, node=name)
            answer = await self._cluster.get_json(name, "/v1/members")
            rows = [] if answer is None else sorted(answer["members"], key=lambda row: str(row["nodeId"]))
            known = None if answer is None else " ".join(row["nodeId"] for row in rows)
            roles = [Member(row["nodeId"], row["role"]) for row in rows]
            self._recorder.complete(op, Ended(INDETERMINATE if known is None else OK, name, known, roles))

    async def _members(self, action: str, *operands: str) -> bool:
        """Run ``namesrv members``. Returns whether the command succeeded."""
        op = self._recorder.invoke(NAME, "members", f"{action} {operands[0]}", value=" ".join((action, *operands)))
        admin = ";".join(node.admin for node in self._cluster.nodes.values() if node.process.running)
        command = [sys.executable, "-m", "replicated_namesrv", "members", action, *operands, "--admin", admin]
        token_file = self._cluster.access.token_file
        command += ["--within", str(WITHIN_S), *([] if token_file is None else ["--token-file", str(token_file)])]
        self._commands += 1
        log = self._folder / "logs" / f"operator-{self._commands}.log"
        child = ChildProcess(NAME, command, log)
        await child.start()
        try:
            status = await child.wait()
        finally:
            if child.running:
                await child.kill()
        why = None if status == 0 else " | ".join(child.last_lines(1))
        self._recorder.complete(op, Ended(_OUTCOMES.get(status, INDETERMINATE), error=why))
        return status == 0

    def _without(self, name: str) -> tuple[str, ...]:
        return tuple(node for node in self._list if node != name)

    def _set_list(self, nodes: tuple[str, ...]) -> None:
        self._list = nodes
        self._use_nodes(nodes)
