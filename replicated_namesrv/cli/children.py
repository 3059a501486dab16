"""Name servers as child processes, and the check that a node serves."""

import asyncio
import contextlib
import json
import signal
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from replicated_namesrv.child_process import ChildProcess, ProcessError, serve_command
from replicated_namesrv.client.credentials import NO_CREDENTIALS, Credentials
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.wire.codes import RequestCode, ResponseCode

PROBE_TIMEOUT_S = 3.0
BODY_BYTES_MAX = 1 << 20
"""Maximum number of bytes read of an answer; an answer is a text about one node."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node of a local cluster: its name, addresses (host, port) and files."""

    node_id: str
    listen: tuple[str, int]
    admin: tuple[str, int]
    data_dir: Path
    mode: str
    settings: tuple[str, ...] = ()
    """Settings as ``NAME=VALUE``."""
    peer: tuple[str, int] | None = None
    """The address that other nodes use; None for an independent node."""

    @property
    def log_file(self) -> Path:
        """The file for the child's output."""
        return self.data_dir / "node.log"

    def command(self) -> list[str]:
        """The command line that runs this node."""
        return serve_command(self.node_id, host_port(self.listen), host_port(self.admin), self.data_dir, self.mode, self.settings)


def host_port(address: tuple[str, int]) -> str:
    """``host:port``, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The credentials for requests to the nodes."""

    credentials: Credentials = NO_CREDENTIALS
    """Credentials for the RocketMQ ports of the nodes."""
    token: bytes | None = None
    """Token for the admin ports of the nodes."""
    tls: ssl.SSLContext | None = None
    """TLS context for the admin ports of the nodes. None: plain HTTP."""


OPENLY = NodeAccess()


class PlannedNode(ChildProcess):
    """The current process of a planned node. A restart creates a new object with the same plan."""

    def __init__(self, plan: NodePlan, access: NodeAccess = OPENLY) -> None:
        super().__init__(f"node {plan.node_id}", plan.command(), plan.log_file)
        self.plan, self.access = plan, access
        self.restarts = 0

    async def wait_serving(self, timeout_s: float) -> None:
        """Return when readiness and a remoting request succeed. Raises ProcessError with the check that failed."""
        deadline = time.monotonic() + timeout_s
        while (missing := await probe(self.plan.listen, self.plan.admin, self.access)) is not None:
            if self.exit_code is not None:
                raise ProcessError(f"{self.name} ended at its start ({described_exit(self.exit_code)})")
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} does not serve after {timeout_s:.0f} s: {missing}")
            await asyncio.sleep(0.05)


def described_exit(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


async def probe(listen: tuple[str, int], admin: tuple[str, int], access: NodeAccess) -> str | None:
    """Check that a node is ready and answers one remoting request. Returns None, or the check that failed."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status, text = await _get(_reachable(admin), "/readyz", access)
        if status != 200:
            return f"/readyz of {host_port(admin)} answers {status}: {text}"
    except (OSError, ValueError, asyncio.IncompleteReadError) as cause:  # includes time-outs, because TimeoutError is an OSError
        return f"admin address {host_port(admin)}: {cause or type(cause).__name__}"
    client = RemotingClient(credentials=access.credentials)
    try:
        request = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await client.request(host_port(_reachable(listen)), request, timeout_ms=int(PROBE_TIMEOUT_S * 1000))
    except NamesrvError as error:
        return f"RocketMQ address {host_port(listen)}: {error}"
    finally:
        await client.close()
    # the command may have no credentials: even a refusal shows that the node serves (accessPolicy=enforce)
    is_served = answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    return None if is_served else f"RocketMQ address {host_port(listen)} answers code {answer.code}: {answer.remark}"


async def leadership(admin: tuple[str, int], access: NodeAccess) -> tuple[int, str] | None:
    """(term, its own name) if the node says that it leads; None: it does not lead, or it does not answer."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, asyncio.IncompleteReadError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status, text = await _get(_reachable(admin), "/v1/status", access)
        standing = json.loads(text)
        if status == 200 and standing["replication"]["role"] == "leader":
            return int(standing["replication"]["term"]), str(standing["nodeId"])
    return None


async def _get(address: tuple[str, int], path: str, access: NodeAccess) -> tuple[int, str]:
    """(status, body) of an HTTP request. Importing an HTTP library would take a quarter of the command's start-up time."""
    reader, writer = await asyncio.open_connection(*address, ssl=access.tls)
    token = b"" if access.token is None else b"Authorization: Bearer " + access.token + b"\r\n"
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host_port(address)}\r\nConnection: close\r\n"
        writer.write(head.encode() + token + b"\r\n")
        answer = await reader.readuntil(b"\r\n\r\n")
        body = b""
        while len(body) < BODY_BYTES_MAX and (part := await reader.read(1 << 16)):
            body += part
        return int(answer.split(b" ", 2)[1]), body.decode(errors="replace").strip()
    finally:
        writer.close()


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Replace a wildcard address by one that this machine can connect to."""
    host, port = address
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
