"""Name servers under measurement as processes of this machine: one independent node, or a cluster of three."""

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.name_server import Server
from replicated_namesrv.child_process import start_process
from replicated_namesrv.cli.children import NodePlan, host_port
from replicated_namesrv.cli.cluster import PEER_SECRET, create_peer_secret, plan_nodes
from tests.interop.lab import wait_for
from tests.support.ports import free_port, free_ports

PORTS = (1, 2, 10, 11, 12, 20, 21, 22)
"""Offsets, from its first port, of the other ports that a local cluster of three nodes uses."""


class Group:
    """The processes of one mode: one independent node, or a Raft group of three."""

    def __init__(self, name: str, plans: Sequence[NodePlan], processes: Sequence["subprocess.Popen[bytes]"]) -> None:
        self.name = name
        self._plans = plans
        self.processes = list(processes)
        self.servers = [Server(name, host_port(p.listen), child.pid) for p, child in zip(plans, processes, strict=True)]

    def number(self, name: str) -> int:
        """Position of a node."""
        return [plan.node_id for plan in self._plans].index(name)

    def plan(self, name: str) -> NodePlan:
        """The command, addresses and files of a node."""
        return self._plans[self.number(name)]

    def admin(self, number: int) -> str:
        """Address of one node's admin port."""
        return f"http://{host_port(self._plans[number].admin)}"

    def status(self, number: int) -> dict[str, Any]:
        """``/v1/status`` of one node."""
        with urllib.request.urlopen(f"{self.admin(number)}/v1/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def is_ready(self, number: int) -> bool:
        """Whether one node serves."""
        return bool(self.status(number)["ready"])

    def restart(self, number: int) -> float:
        """Restart a node. Returns the seconds from the start until it serves."""
        plan = self._plans[number]
        self.processes[number].terminate()
        self.processes[number].wait()
        began = time.monotonic()
        self.processes[number] = start_process(plan.command(), plan.log_file)
        self.servers[number].pid = self.processes[number].pid
        wait_for(partial(self.is_ready, number), f"{self.name} {number} serves again", 120)
        return time.monotonic() - began

    def roles(self) -> list[str]:
        """Role of each node."""
        return [(self.status(number)["replication"] or {}).get("role", "independent") for number in range(len(self._plans))]

    def role_is_taken(self, role: str) -> bool:
        """Whether a node has the role."""
        return role in self.roles()

    def with_role(self, role: str, name: str) -> Server:
        """The first node with a role, named as in the report."""
        found = self.servers[self.roles().index(role)]
        return Server(name, found.address, found.pid)

    def cpu_s(self) -> list[float]:
        """CPU time of every node so far."""
        return [server.cpu_s() for server in self.servers]


def joining_plan(name: str, founders: Sequence[NodePlan], folder: Path) -> NodePlan:
    """A node that joins the founders' cluster."""
    listen, admin, peer = (("127.0.0.1", port) for port in free_ports(3))
    others = ",".join(f"{plan.node_id}={host_port(plan.peer)}" for plan in founders if plan.peer is not None)
    settings = (f"join={others}", f"peerListen={host_port(peer)}", f"peerSecretFile={folder / PEER_SECRET}")
    return NodePlan(name, listen, admin, folder / name, "cp", settings, peer)


@contextlib.contextmanager
def group(name: str, mode: str, *settings: str, joining: Sequence[str] = ()) -> Iterator[Group]:
    """Nodes of ``mode`` that serve: one (ap) or three (cp). They are stopped when the block ends. ``settings``: NAME=VALUE.
    ``joining``: names of further nodes, which wait until they are added."""
    with tempfile.TemporaryDirectory(prefix=f"benchmark-{name}-") as folder:
        plans = plan_nodes(1 if mode == "ap" else 3, mode, "127.0.0.1", free_port(*PORTS), Path(folder), settings)
        create_peer_secret(plans, Path(folder) / PEER_SECRET)
        founders = len(plans)
        plans += [joining_plan(node, plans[:founders], Path(folder)) for node in joining]
        processes = []
        try:
            for plan in plans:
                processes.append(start_process(plan.command(), plan.log_file))
            nodes = Group(name, plans, processes)
            processes = nodes.processes
            for number in range(founders):
                wait_for(partial(nodes.is_ready, number), f"{name} {number} serves")
            yield nodes
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
