"""``namesrv cluster``: starts several name servers on one machine and supervises them until Ctrl-C.

It checks that every port is free, starts the nodes, waits until each is ready and has answered a real remoting request, and
prints the addresses. Then it restarts each node that ends, with a growing back-off. With ``--once`` it stops after the check,
and the exit code is the result.
"""

import argparse
import asyncio
import errno
import json
import os
import signal
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from replicated_namesrv.address_list import advertised_host
from replicated_namesrv.child_process import ProcessError
from replicated_namesrv.cli.admin import add_admin_access, tls_of, token_of
from replicated_namesrv.cli.children import NodeAccess, NodePlan, PlannedNode, described_exit, host_port, leadership
from replicated_namesrv.cli.client import add_credentials_arguments, credentials_of
from replicated_namesrv.cli.command_progress import CommandProgress
from replicated_namesrv.errors import NamesrvError, SettingError
from replicated_namesrv.settings import parse_address

HELP = "run and supervise a cluster of name servers on this machine until Ctrl-C"

EXIT_UNKNOWN = 2
NODES_MAX = 10
"""Maximum number of nodes. The ports of each kind are consecutive, and the three kinds begin ten ports apart. So more nodes would
use ports of the next kind."""
ADMIN_PORT_OFFSET = 10
PEER_PORT_OFFSET = 20
PEER_SECRET = "peer-secret"
"""File in the cluster's folder with the secret that its nodes share."""
DEFAULT_PORT = 9876
"""Port of the first node: RocketMQ's default."""
SERVING_TIMEOUT_S = 60.0
LEADER_POLL_S = 0.5
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_MAX_S = 30.0
STEADY_S = 10.0
"""A node that has served for this long is steady: if it ends later, its restart pauses begin again with the shortest one."""

_EXAMPLES = """\
Node i (from 0) listens on PORT+i for RocketMQ, on PORT+10+i for HTTP and on PORT+20+i for its peers.

examples:
  namesrv cluster                                   three replicated nodes (CP), on 127.0.0.1:9876 to 9878
  namesrv cluster --mode ap                         three independent nodes, like RocketMQ's own
  namesrv cluster --listen 0.0.0.0:9876             reachable from other machines
  namesrv cluster --nodes 5 --listen 127.0.0.1:19876 --data-dir /tmp/five
  namesrv cluster --once --json                     a health check: start, ask each node, stop; exit 0 good, 1 bad, 2 interrupted

To connect a broker, put the printed namesrvAddr line into its broker.conf.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--nodes", type=int, default=3, metavar="N", help=f"1, 3 or 5; with --mode ap 1 to {NODES_MAX} (default 3)"
    )
    parser.add_argument(
        "--mode", choices=("cp", "ap"), default="cp", help="cp: replicated nodes (default); ap: independent nodes"
    )
    parser.add_argument(
        "--listen", default=f"127.0.0.1:{DEFAULT_PORT}", metavar="HOST:PORT", help="first node's RocketMQ address"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder for logs and data, with one subfolder per node")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a setting on every node; repeatable")
    access = parser.add_argument_group("how this command identifies itself, if the settings in --set require it")
    add_credentials_arguments(access)
    add_admin_access(access)
    parser.add_argument("--once", action="store_true", help="start, check that every node serves, print, stop")
    parser.add_argument("--json", action="store_true", help="print one JSON document, then events as JSON lines")


def run(arguments: argparse.Namespace) -> int:
    try:
        host, port = parse_address("--listen", arguments.listen)
        own = Path(arguments.data_dir).expanduser().absolute() if arguments.data_dir else None
        data_dir = own or default_data_dir(arguments.mode, arguments.nodes, port)
        plans = plan_nodes(arguments.nodes, arguments.mode, host, port, data_dir, arguments.set)
        check_ports(plans)
        create_peer_secret(plans, data_dir / PEER_SECRET)
        access = NodeAccess(credentials_of(arguments), token_of(arguments), tls_of(arguments))
        return asyncio.run(Cluster(plans, arguments.mode, data_dir, access, as_json=arguments.json).run(once=arguments.once))
    except NamesrvError as error:
        if arguments.json:
            print(json.dumps({"event": "failed", "error": str(error)}), flush=True)
        raise


def default_data_dir(mode: str, nodes: int, port: int) -> Path:
    """The default folder, below the user's state folder (XDG base directory specification). It depends on the port and, in CP
    mode, on the size, because a replicated cluster with another size or other ports is another cluster."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state_home) if state_home.startswith("/") else Path.home() / ".local" / "state"
    name = "cluster" if mode == "ap" else f"cluster-{mode}-{nodes}"
    return base / "replicated-namesrv" / (name if port == DEFAULT_PORT else f"{name}-{port}")


def plan_nodes(nodes: int, mode: str, host: str, port: int, data_dir: Path, settings: Sequence[str]) -> list[NodePlan]:
    """Names, addresses and folders of all nodes. Raises SettingError."""
    if mode == "cp" and nodes not in (1, 3, 5):
        raise SettingError(_unfit(nodes))
    if not 1 <= nodes <= NODES_MAX:
        raise SettingError(f"--nodes {nodes}: give 1 to {NODES_MAX}")
    if not 1 <= port <= 65535 - PEER_PORT_OFFSET - nodes:
        raise SettingError(f"--listen {host}:{port}: give a port from 1 to {65535 - PEER_PORT_OFFSET - nodes}")
    shared = [f"nameServerAddresses={_address_list(host, port, nodes)}"]
    if mode == "cp":
        peers = ",".join(f"n{i + 1}={host_port(('127.0.0.1', port + PEER_PORT_OFFSET + i))}" for i in range(nodes))
        shared.append(f"peers={peers}")
        if not any(setting.startswith("peerSecretFile=") for setting in settings):
            shared.append(f"peerSecretFile={data_dir / PEER_SECRET}")
    return [
        NodePlan(
            node_id=f"n{i + 1}",
            listen=(host, port + i),
            admin=(host, port + ADMIN_PORT_OFFSET + i),
            data_dir=data_dir / f"n{i + 1}",
            mode=mode,
            settings=(*shared, *settings),
            peer=("127.0.0.1", port + PEER_PORT_OFFSET + i) if mode == "cp" else None,
        )
        for i in range(nodes)
    ]


def create_peer_secret(plans: Iterable[NodePlan], file: Path) -> None:
    """Make the secret file that the plans name, if it is the one of this cluster's folder and does not exist. Raises
    SettingError."""
    if not any(f"peerSecretFile={file}" in plan.settings for plan in plans):
        return
    from replicated_namesrv.replication.peer_settings import create_secret

    try:
        create_secret(file)
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror}; give another folder with --data-dir") from None


def _unfit(nodes: int) -> str:
    if nodes % 2 == 0 and nodes > 0:
        return (
            f"--nodes {nodes}: an even number of nodes tolerates no more failures than {nodes - 1} and needs a larger majority "
            "for every write; give 1, 3 or 5 (or --mode ap, where nodes do not vote)"
        )
    return f"--nodes {nodes}: a CP cluster has 1, 3 or 5 nodes, because each further node makes every write wait for more disks"


def _address_list(host: str, port: int, nodes: int) -> str:
    return ";".join(host_port((advertised_host(host), port + i)) for i in range(nodes))


def check_ports(plans: Iterable[NodePlan]) -> None:
    """Bind every address one time, as a check. Raises ProcessError that names each one in use and what can be done."""
    taken = []
    for plan in plans:
        for purpose, address in (("RocketMQ", plan.listen), ("admin", plan.admin), ("peer", plan.peer)):
            if address is None:
                continue
            host, port = address
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as attempt:
                    attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    attempt.bind((host, port))
            except OSError as cause:
                if cause.errno != errno.EADDRINUSE:
                    raise ProcessError(f"cannot listen on {host_port((host, port))}: {cause.strerror}; check --listen") from None
                taken.append(f"{host_port((host, port))} ({purpose} address of {plan.node_id})")
    if taken:
        raise ProcessError(
            f"in use: {', '.join(taken)}; stop the programs that use them (perhaps another cluster or a RocketMQ name server)"
            " or choose other ports with --listen HOST:PORT"
        )


def described_log(file: Path, last_lines: Sequence[str]) -> str:
    """The last lines of a node that does not serve. On a busy machine, a node can be late with its first line."""
    if not last_lines:
        return (
            f"nothing was written to {file} since the start; if the machine is busy, stop other work, and start the cluster again"
        )
    return f"the end of {file}:" + "".join(f"\n  {line}" for line in last_lines)


class Cluster:
    """Starts, checks and watches the nodes."""

    def __init__(self, plans: Sequence[NodePlan], mode: str, data_dir: Path, access: NodeAccess, *, as_json: bool) -> None:
        self.nodes = [PlannedNode(plan, access) for plan in plans]
        self._access = access
        self._mode = mode
        self._data_dir = data_dir
        self._as_json = as_json
        self._stopping = asyncio.Event()
        self._progress = CommandProgress(lambda seconds, line: f"namesrv cluster: {line}")

    async def run(self, *, once: bool) -> int:
        """Run until stopped. Returns 0, or 2 if ``once`` was stopped before the check ended. Raises ProcessError if a node did
        not start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopping.set)
        try:
            if not await self._unless_stopped(self._start_all()):
                self._event("stopped", "stopped before all nodes served")
                return EXIT_UNKNOWN if once else 0
            self._print_cluster()
            if not once:
                await self._unless_stopped(self._watch())
            return 0
        finally:
            await self._stop_all()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await ``work`` unless the command is stopped first. Returns whether the work was completed."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        await task
        return True

    async def _start_all(self) -> None:
        self._progress(f"starting {len(self.nodes)} nodes, data in {self._data_dir}")
        for node in self.nodes:
            await node.start()
        failed: BaseException | None = None
        try:
            with self._progress:
                async with asyncio.TaskGroup() as starting:
                    for node in self.nodes:
                        starting.create_task(self._wait_first(node))
        except* ProcessError as errors:
            failed = errors.exceptions[0]
        if failed is not None:
            raise failed

    async def _wait_first(self, node: PlannedNode) -> None:
        began = time.monotonic()
        try:
            await node.wait_serving(SERVING_TIMEOUT_S)
        except ProcessError as error:
            raise ProcessError(f"{error}; {described_log(node.plan.log_file, node.last_lines())}") from None
        self._progress(f"{node.plan.node_id} serves on {host_port(node.plan.listen)} ({time.monotonic() - began:.1f} s)")

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as keepers:
            for node in self.nodes:
                keepers.create_task(self._keep(node))
            if self._mode == "cp":
                keepers.create_task(self._report_leaders())

    async def _report_leaders(self) -> None:
        """Print each new leader that the status of the nodes shows."""
        newest = 0
        while True:
            known = await asyncio.gather(*(leadership(node.plan.admin, self._access) for node in self.nodes))
            term, leader = max((one for one in known if one is not None), default=(0, ""))
            if term > newest:
                newest = term
                self._event("leader", f"{leader} leads in term {term}", node=leader, term=term)
            await asyncio.sleep(LEADER_POLL_S)

    async def _keep(self, node: PlannedNode) -> None:
        """Report the end of a node's process and restart it, until the command stops."""
        pause_s = RESTART_PAUSE_S
        while True:
            served_from = time.monotonic()
            exit_code = await node.wait()
            if time.monotonic() - served_from > STEADY_S:
                pause_s = RESTART_PAUSE_S
            name, reason, log = node.plan.node_id, described_exit(exit_code), str(node.plan.log_file)
            sentence = f"{name} ended ({reason}), see {log}; starting it again in {pause_s:g} s"
            self._event("node-ended", sentence, node=name, exit=reason, restartInSeconds=pause_s, log=log)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RESTART_PAUSE_MAX_S)
            try:
                await node.start()
                node.restarts += 1
                await node.wait_serving(SERVING_TIMEOUT_S)
                sentence = f"{name} serves again (pid {node.pid})"
                self._event("node-serves", sentence, node=name, pid=node.pid, restarts=node.restarts)
            except ProcessError as error:
                self._event("node-failed", f"{error}; see {log}", node=name, error=str(error), log=log)
                await node.stop()

    async def _stop_all(self) -> None:
        self._progress("stopping")
        stopped = await asyncio.gather(*(node.stop() for node in self.nodes))
        for node, by_itself in zip(self.nodes, stopped, strict=True):
            if not by_itself:
                self._progress(f"{node.plan.node_id} did not stop in time and was killed")

    def _print_cluster(self) -> None:
        addresses = ";".join(host_port((advertised_host(node.plan.listen[0]), node.plan.listen[1])) for node in self.nodes)
        if self._as_json:
            rows = [
                {
                    "nodeId": node.plan.node_id,
                    "listen": host_port(node.plan.listen),
                    "admin": host_port(node.plan.admin),
                    "pid": node.pid,
                    "dataDir": str(node.plan.data_dir),
                    "log": str(node.plan.log_file),
                }
                for node in self.nodes
            ]
            print(json.dumps({"mode": self._mode, "namesrvAddr": addresses, "nodes": rows}), flush=True)
            return
        lines = [f"{'node':<5} {'RocketMQ':<22} {'admin':<29} {'pid':<8} log"]
        for node in self.nodes:
            admin = f"{'http' if self._access.tls is None else 'https'}://{host_port(node.plan.admin)}"
            lines.append(
                f"{node.plan.node_id:<5} {host_port(node.plan.listen):<22} {admin:<29} {node.pid or '':<8} {node.plan.log_file}"
            )
        admin = ";".join(host_port((advertised_host(node.plan.admin[0]), node.plan.admin[1])) for node in self.nodes)
        lines += ["", f"namesrvAddr={addresses}", "", "In other terminals, so that commands find all nodes:"]
        print("\n".join([*lines, f"export NAMESRV_ADDR='{addresses}' NAMESRV_ADMIN='{admin}'", ""]), flush=True)

    def _event(self, event: str, sentence: str, **facts: object) -> None:
        if self._as_json:
            print(json.dumps({"event": event, **facts}), flush=True)
        self._progress(sentence)
