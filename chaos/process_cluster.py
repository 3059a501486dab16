"""The processes of a run: name servers, started as ``namesrv serve`` or as a foreign program, and a Toxiproxy server between
them and all others.

Peers, brokers and clients get one proxy address per link. Readiness and observation use the nodes' real addresses, so that no
fault affects them: the admin port of our own nodes, and remoting for foreign ones, which have no admin port.
"""

import asyncio
import contextlib
import json
import random
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from replicated_namesrv.chaos.effects import Link
from replicated_namesrv.chaos.foreign_servers import ForeignServer
from replicated_namesrv.chaos.links import Links
from replicated_namesrv.chaos.node_disk import lose_unsynced, with_disk
from replicated_namesrv.chaos.node_tls import NodeTls
from replicated_namesrv.chaos.ports import Ports
from replicated_namesrv.chaos.run_access import OPEN, RunAccess
from replicated_namesrv.chaos.toxiproxy_client import ToxiproxyClient, ToxiproxyError
from replicated_namesrv.child_process import SERVE, ChildProcess, ProcessError, UnexpectedExit, serve_command
from replicated_namesrv.client.queries import read_topics, topics_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError

START_TIMEOUT_S, FOREIGN_START_TIMEOUT_S = 60.0, 180.0
STOP_TIMEOUT_S = 10.0
READY_TIMEOUT_MS = 1_000
DIGEST_MISMATCH = "digest mismatch"
STOP_REASONS = {"differs from that of a majority": DIGEST_MISMATCH, "disk rolled back": "disk rolled back"}
"""Reasons why a node stops by itself: from a text in its last lines to the name of the reason."""
STOP_REASON_LINES = 20
_LOOPBACK = "127.0.0.1"


class NotReadyError(ProcessError):
    """A node runs but does not become ready in time. The machine may be too busy."""


class ClusterNode:
    """One name server."""

    def __init__(self, name: str, ports: Sequence[int], data_dir: Path, log_file: Path, always_stores: bool) -> None:
        """``always_stores``: whether the node has files from its first start on (CP). An independent node has no files before the
        first KV entry."""
        self.name = name
        self._always_stores = always_stores
        self.listen, self.admin, self.peer = (f"{_LOOPBACK}:{port}" for port in ports)
        self.data_dir = data_dir
        self.log_file = log_file
        self.process: ChildProcess
        self.tls: NodeTls | None = None
        """The node's TLS files; None: it has none."""

    def wipe(self) -> None:
        """Delete the data directory. The process must be dead. Raises ProcessError if the node stores its data in another
        place, or if the directory cannot be deleted."""
        assert not self.process.running
        if not self.data_dir.exists():
            if not self._always_stores:
                return
            raise ProcessError(
                f"{self.name} keeps no data in {self.data_dir}, so it cannot lose its disk: "
                "the command given with --node-command has to keep all its data in the folder given with --data-dir"
            )
        try:
            shutil.rmtree(self.data_dir)
        except OSError as cause:
            raise ProcessError(f"{self.data_dir} cannot be deleted ({cause.strerror}), so {self.name} kept its disk") from cause

    @property
    def synced_file(self) -> Path:
        """Where a node with a disk of ``node_disk`` records what it has synced."""
        return self.data_dir.with_name(f"{self.name}.synced")

    def lose_unsynced(self) -> None:
        """Cut each file to the length that was synced. The process must be dead. A foreign node keeps its files."""
        assert not self.process.running
        if self.synced_file.exists():
            lose_unsynced(self.data_dir, self.synced_file)

    def stop_reason(self) -> str | None:
        """The reason that a node gives when it stops because its state is wrong; None: its output names no such reason."""
        lines = self.process.last_lines(STOP_REASON_LINES)
        return next((reason for text, reason in STOP_REASONS.items() if any(text in line for line in lines)), None)


class ProcessCluster:
    """Nodes, Toxiproxy and links. Use as ``async with``: at the end everything that was started is stopped."""

    def __init__(
        self,
        folder: Path,
        count: int,
        mode: str,
        settings: Sequence[str],
        outside: Iterable[Link],
        rng: random.Random,
        toxiproxy: Path | None,
        node_command: Sequence[str] = SERVE,
        foreign: ForeignServer | None = None,
        access: RunAccess = OPEN,
        spares: int = 0,
        broker_ports: int = 0,
        sync_ms: int | None = None,
        has_tls: bool = False,
    ) -> None:
        """``count``: the founders. ``spares``: further nodes, which ``start`` does not start, and which join the cluster when an
        operator adds them. ``broker_ports``: the number of brokers that listen. ``sync_ms``: the time that the disks of
        ``node_disk`` add to each sync; None: the nodes have no such disks. ``has_tls``: whether our nodes have TLS files.
        ``outside``: links of brokers and clients; ``toxiproxy``: the server. Without it every link is direct, and only processes
        can fail. ``foreign``: the name server that the nodes run instead of ``node_command``. Raises ProcessError if there are
        not enough ports.
        """
        folder = folder.absolute()  # an absolute path, because a node command may change its working directory
        self._folder = folder
        self._node_command, self._foreign, self._sync_ms = node_command, foreign, sync_ms
        names = [f"n{number + 1}" for number in range(count + spares)]
        self.founders = tuple(names[:count])
        peers = [Link(a, b) for a in names for b in names if a != b]
        # AP nodes do not communicate, so links between them exist in plans and records only.
        self._unused = peers if mode == "ap" else []
        links = [*outside, *(peers if mode == "cp" else [])] if toxiproxy is not None else []
        self._ports = Ports(3 * len(names) + 1 + len(links) + broker_ports, rng)
        self.port_numbers = tuple(self._ports.numbers)
        """Ports of all nodes, brokers, proxies, and Toxiproxy itself."""
        ports = list(self.port_numbers)
        self.broker_addresses = [f"{_LOOPBACK}:{ports.pop()}" for _ in range(broker_ports)]
        """Addresses at which brokers listen for notifications of nodes. No proxy is in between."""
        self._toxiproxy_port = ports.pop()
        self._addresses = {link: f"{_LOOPBACK}:{ports.pop()}" for link in links}
        self.client = ToxiproxyClient(_LOOPBACK, self._toxiproxy_port)
        self.nodes = {
            name: ClusterNode(
                name, ports[3 * i : 3 * i + 3], folder / "data" / name, folder / "logs" / f"{name}.log", mode == "cp"
            )
            for i, name in enumerate(names)
        }
        for node in self.nodes.values() if has_tls and foreign is None else ():
            node.tls = NodeTls(folder / "tls" / node.name)
        self.links = Links(self.client, self.nodes)
        self._mode, self._settings = mode, (*settings, *access.settings)
        self.access = access
        self._toxiproxy_server = toxiproxy
        self._toxiproxy: ChildProcess | None = None
        self.toxiproxy_version: str
        """The version that the running Toxiproxy server reports."""
        self.session: aiohttp.ClientSession
        self._remoting: RemotingClient

    async def __aenter__(self) -> "ProcessCluster":
        self._remoting = RemotingClient(credentials=self.access.clients)
        headers = {"Authorization": f"Bearer {self.access.token}"} if self.access.token else {}
        self.session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=2), trust_env=False)
        return self

    async def __aexit__(self, *exception: object) -> None:
        children = [node.process for node in self.nodes.values() if hasattr(node, "process")]
        try:
            await asyncio.gather(*(child.stop(STOP_TIMEOUT_S) for child in children))
        finally:  # clean up even if the start was cancelled
            if self._toxiproxy is not None:
                await self._toxiproxy.kill()
            await self._remoting.abort()
            await self.session.close()
            self._ports.release()

    def address(self, link: Link) -> str:
        """The address at which ``link.source`` dials ``link.target``."""
        if self._toxiproxy_server is None:
            target = self.nodes[link.target]
            return target.peer if link.source in self.nodes else target.listen
        return self._addresses[link]

    async def start(self) -> None:
        """Start everything except the spares. Returns when every founder serves. Raises ProcessError, ToxiproxyError."""
        if self._toxiproxy_server is not None:
            await self._start_toxiproxy()
            await self._create_proxies()
        for node in self.nodes.values():
            node.process = self._child(node)
        await self._start_founders()
        if self.has_members and len(self.founders) < len(self.nodes):
            # A cluster whose members change runs with ``join`` on all nodes. A founder can use it only after the first change.
            await self._write_members()
            await asyncio.gather(*(self.nodes[name].process.stop(STOP_TIMEOUT_S) for name in self.founders))
            for node in self.nodes.values():
                node.process = ChildProcess(node.name, self._command(node, joins=True), node.log_file)
            await self._start_founders()

    async def _write_members(self) -> None:
        """Make the first change of the members: a move to the same address. Returns when each node has applied it. Raises
        NotReadyError."""
        node, deadline = self.nodes[self.founders[0]], time.monotonic() + START_TIMEOUT_S
        missing = "no leader"
        while time.monotonic() < deadline:
            leader = await self.leader()
            if leader is not None:
                url = f"http://{self.nodes[leader].admin}/v1/members/{node.name}/move?address={node.peer}"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with self.session.post(url) as answer:
                        missing = await answer.text()
                        if answer.status == 200:
                            break
            await asyncio.sleep(0.1)
        else:
            raise NotReadyError(f"the members were not written to the log within {START_TIMEOUT_S:.0f} s: {missing}")
        status = await self.status(leader)
        index = 0 if status is None else status["replication"]["appliedIndex"]
        for name in self.founders:
            while (await self.status(name) or {"replication": {"appliedIndex": -1}})["replication"]["appliedIndex"] < index:
                if time.monotonic() > deadline:
                    log = self.nodes[name].log_file
                    raise NotReadyError(f"{name} did not apply the members within {START_TIMEOUT_S:.0f} s, see {log}")
                await asyncio.sleep(0.05)

    async def _start_founders(self) -> None:
        for name in self.founders:
            await self.nodes[name].process.start()
        await asyncio.gather(*(self.wait_ready(name) for name in self.founders))

    @property
    def is_foreign(self) -> bool:
        """Whether the nodes are those of another product."""
        return self._foreign is not None

    @property
    def has_members(self) -> bool:
        """Whether the nodes are one cluster whose members can change."""
        return self._mode == "cp" and self._foreign is None

    async def _start_toxiproxy(self) -> None:
        command = [str(self._toxiproxy_server), "-host", _LOOPBACK, "-port", str(self._toxiproxy_port)]
        self._toxiproxy = ChildProcess("toxiproxy", command, self._folder / "logs" / "toxiproxy.log", {"LOG_LEVEL": "error"})
        await self._toxiproxy.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self._toxiproxy.check()
            try:
                self.toxiproxy_version = await asyncio.to_thread(self.client.version)
                return
            except ToxiproxyError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.05)

    async def _create_proxies(self) -> None:
        routes = {}
        for link, listen in self._addresses.items():
            target = self.nodes[link.target]
            routes[link] = (listen, target.peer if link.source in self.nodes else target.listen)
        await self.links.create(routes, self._unused)

    def _child(self, node: ClusterNode) -> ChildProcess:
        if self._foreign is None:
            return ChildProcess(node.name, self._command(node), node.log_file)
        launch = self._foreign.launch(node.listen, node.data_dir, self._folder / "homes" / node.name)
        return ChildProcess(node.name, launch.command, node.log_file, launch.environment)

    def _command(self, node: ClusterNode, *, joins: bool = False) -> list[str]:
        settings = ["logFormat=human"]
        if self._mode == "cp":
            known = self.nodes.values() if joins else [self.nodes[name] for name in self.founders]
            others = [other for other in known if other is not node]
            peers = ",".join(f"{other.name}={other.peer}" for other in (others if joins else known))
            dial = ",".join(f"{other.name}={self.address(Link(node.name, other.name))}" for other in others)
            settings += [f"join={peers}", f"peerListen={node.peer}"] if joins else [f"peers={peers}"]
            settings += [f"peerDial={dial}"]
        settings += [*self._settings, *(node.tls.settings if node.tls is not None else ())]
        command = self._node_command
        if self._sync_ms is not None:
            command = with_disk(command, node.synced_file, self._sync_ms)
        return serve_command(node.name, node.listen, node.admin, node.data_dir, self._mode, settings, command)

    async def wait_ready(self, name: str) -> None:
        """Return when the node reports that it is ready. Raises ProcessError, and NotReadyError if the node runs but is not ready
        in time.
        """
        timeout_s = START_TIMEOUT_S if self._foreign is None else FOREIGN_START_TIMEOUT_S
        node, deadline = self.nodes[name], time.monotonic() + timeout_s
        missing: str | None = "not asked yet"
        while time.monotonic() < deadline:
            node.process.check()
            missing = await (self._missing_at_admin(node) if self._foreign is None else self._missing_at_remoting(node))
            if missing is None:
                return
            await asyncio.sleep(0.05)
        raise NotReadyError(f"{name} is not ready after {timeout_s:.0f} s ({missing}), see {node.log_file}")

    async def _missing_at_admin(self, node: ClusterNode) -> str | None:
        """Why the node is not ready. None: it is ready."""
        try:
            async with self.session.get(f"http://{node.admin}/readyz") as answer:
                return None if answer.status == 200 else (await answer.text()).strip()
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or type(error).__name__

    async def _missing_at_remoting(self, node: ClusterNode) -> str | None:
        """Why the node does not answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206). None: it does answer."""
        try:
            read_topics(await self._remoting.request(node.listen, topics_request(), READY_TIMEOUT_MS))
        except NamesrvError as error:
            return str(error)
        return None

    def ended(self) -> list[tuple[ClusterNode, UnexpectedExit]]:
        """Nodes that have ended although this run did not end them."""
        return [(node, ended) for node in self.nodes.values() if (ended := node.process.ended) is not None]

    @property
    def toxiproxy_runs(self) -> bool:
        """Whether Toxiproxy runs. Without it no link works as planned."""
        return self._toxiproxy is not None and self._toxiproxy.running

    def check_toxiproxy(self) -> None:
        """Raise ProcessError if Toxiproxy has ended."""
        if self._toxiproxy is not None:
            self._toxiproxy.check()

    async def leader(self) -> str | None:
        """The leader, as the nodes report it: the one with the highest term. None in AP, or if there is no leader."""
        found: list[tuple[int, str]] = []
        for name in self.nodes:
            status = await self.status(name)
            standing = status.get("replication") if status is not None else None
            if standing is not None and standing["role"] == "leader":
                found.append((standing["term"], name))
        return max(found)[1] if found else None

    async def hand_over(self, name: str) -> None:
        """Ask a node to transfer leadership. Later records show whether the node did so. Foreign nodes have no leader."""
        if self._foreign is not None:
            return
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.post(f"http://{self.nodes[name].admin}/v1/leader/transfer"):
                pass

    async def server_list(self, name: str) -> list[str]:
        """The nodes whose addresses ``/rocketmq/nsaddr`` of a node lists; empty without an answer."""
        names = {node.listen: node.name for node in self.nodes.values()}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.get(f"http://{self.nodes[name].admin}/rocketmq/nsaddr") as answer:
                listed = (await answer.text()).strip().split(";") if answer.status == 200 else []
                return [names[address] for address in listed if address in names]
        return []

    async def status(self, name: str) -> dict[str, Any] | None:
        """``/v1/status`` of a node, None without an answer. For a foreign node, the result only shows that it answers."""
        if self._foreign is not None:
            answer = await self.ask(name, topics_request(), 1.0)
            return None if answer is None else {"ready": True, "revision": None}
        return await self.get_json(name, "/v1/status")

    async def ask(self, name: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand | None:
        """The node's answer by remoting, without Toxiproxy in between; None if there is none in time."""
        node = self.nodes[name]
        if node.process.state != "running":
            return None
        try:
            return await self._remoting.request(node.listen, request, int(timeout_s * 1000))
        except NamesrvError:
            return None

    async def get_json(self, name: str, path: str, timeout_s: float = 1.0) -> dict[str, Any] | None:
        """The JSON answer of the admin port, if its status is 200; otherwise None."""
        text = await self.get_text(name, path, timeout_s)
        try:
            answer: dict[str, Any] | None = None if text is None else json.loads(text)
        except ValueError:
            return None
        return answer

    async def get_text(self, name: str, path: str, timeout_s: float = 1.0) -> str | None:
        """The answer of the admin port, if its status is 200; otherwise None."""
        if self.nodes[name].process.state != "running":
            return None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self.session.get(f"http://{self.nodes[name].admin}{path}", timeout=timeout) as answer:
                return await answer.text() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
