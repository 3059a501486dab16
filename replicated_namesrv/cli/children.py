"""Name servers as child processes that cannot outlive this one, and how to tell that one of them really serves.

Every child runs in a process group of its own, so that Ctrl-C in a terminal reaches only the parent, which then stops the
children in order. Against a parent that is killed without a chance to act, the kernel ends each child.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.orphans import die_with
from replicated_namesrv.wire.codes import RequestCode

PROBE_TIMEOUT_S = 3.0
STOP_TIMEOUT_S = 15.0
"""How long a child may take to stop before it is killed."""
LOG_LINE_CHARACTERS = 300


class ChildError(NamesrvError):
    """A child process did not start or does not serve; the text says which and where its log is."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node of a local cluster: its name, addresses (host, port) and files."""

    node_id: str
    listen: tuple[str, int]
    admin: tuple[str, int]
    data_dir: Path
    arguments: tuple[str, ...] = ()
    """Further arguments of ``namesrv serve``."""
    peer: tuple[str, int] | None = None
    """Where it listens for other nodes, None for an independent one."""

    @property
    def log_file(self) -> Path:
        """Where the child's output goes."""
        return self.data_dir / "node.log"

    def command(self) -> list[str]:
        """The command line that runs this node."""
        return [
            *(sys.executable, "-m", "replicated_namesrv", "serve", "--node-id", self.node_id),
            *("--listen", host_port(self.listen), "--admin", host_port(self.admin), "--data-dir", str(self.data_dir)),
            *self.arguments,
        ]


def host_port(address: tuple[str, int]) -> str:
    """``host:port``, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NodeProcess:
    """A node's present process; restarting makes a new one under the same plan."""

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the latest process, None before the first."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Run the process; its output is appended to the log file. Raises ChildError."""
        try:
            self.plan.data_dir.mkdir(parents=True, exist_ok=True)
            with self.plan.log_file.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.plan.command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                    preexec_fn=die_with(os.getpid()),
                )
        except OSError as cause:
            raise ChildError(f"cannot start node {self.plan.node_id}: {cause}; check --data-dir") from cause

    async def wait(self) -> int:
        """Exit code of the process once it has ended; negative: the signal that ended it."""
        assert self._process is not None
        return await self._process.wait()

    async def wait_serving(self, timeout_s: float) -> None:
        """Return once readiness and a remoting request succeed. Raises ChildError, with what was still missing."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while (missing := await probe(self.plan.listen, self.plan.admin)) is not None:
            if self._process.returncode is not None:
                raise ChildError(f"node {self.plan.node_id} ended at its start ({described_exit(self._process.returncode)})")
            if time.monotonic() > deadline:
                raise ChildError(f"node {self.plan.node_id} does not serve after {timeout_s:.0f} s: {missing}")
            await asyncio.sleep(0.05)

    def terminate(self) -> None:
        """Ask the process to stop; nothing happens if it already has."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the process, by force after ``timeout_s``; whether it stopped by itself."""
        if self._process is None:
            return True
        self.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s)
            return True
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            return False

    def last_log_lines(self, count: int = 3) -> list[str]:
        """The end of the log, for the reader of an error; long lines are cut."""
        try:
            with self.plan.log_file.open("rb") as log:
                log.seek(max(0, self.plan.log_file.stat().st_size - 8192))
                lines = log.read().decode(errors="replace").splitlines()[-count:]
                return [line if len(line) <= LOG_LINE_CHARACTERS else line[:LOG_LINE_CHARACTERS] + " …" for line in lines]
        except OSError:
            return []


def described_exit(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


async def probe(listen: tuple[str, int], admin: tuple[str, int]) -> str | None:
    """Ask a node whether it is ready and have it answer one remoting request. None: it serves; else what is missing."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status, text = await _get(_reachable(admin), "/readyz")
        if status != 200:
            return f"/readyz of {host_port(admin)} answers {status}: {text}"
    except (OSError, ValueError, asyncio.IncompleteReadError) as cause:  # a time-out is an OSError too
        return f"admin address {host_port(admin)}: {cause or type(cause).__name__}"
    client = RemotingClient()
    try:
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await client.request(host_port(_reachable(listen)), request, timeout_ms=int(PROBE_TIMEOUT_S * 1000))
    except NamesrvError as error:
        return f"RocketMQ address {host_port(listen)}: {error}"
    finally:
        await client.close()
    return None if answer.code == 0 else f"RocketMQ address {host_port(listen)} answers code {answer.code}: {answer.remark}"


async def _get(address: tuple[str, int], path: str) -> tuple[int, str]:
    """(status, body) of an HTTP request; an HTTP library would cost the command a quarter of its start-up time."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host_port(address)}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(4096)
        return int(head.split(b" ", 2)[1]), body.decode(errors="replace").strip()
    finally:
        writer.close()


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Where a wildcard address is reached from this machine."""
    host, port = address
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
