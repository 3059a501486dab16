"""Nodes for tests: one inside the test's own event loop, or the real command in a process of its own."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from replicated_namesrv.process import ServingNode
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.wire.codes import RequestCode
from tests.support.json_outputs import check_output
from tests.support.ports import free_port
from tests.support.waiting import PAUSE_S

DEADLINE_S = 60.0
REPEATED = (503, 504)
"""HTTP statuses of a change that was not done because no node leads, and of one whose result is unknown."""


@dataclass
class HttpAnswer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


async def http(
    port: int,
    path: str,
    method: str = "GET",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> HttpAnswer:
    """A request over a connection of its own, written by hand so that every header is the test's."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = {"Host": f"{host}:{port}", "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        async with asyncio.timeout(DEADLINE_S):  # wait_for of Python 3.11 can lose a cancellation
            raw = await reader.read()
    finally:
        writer.close()
    first, _, rest = raw.partition(b"\r\n")
    head_bytes, _, content = rest.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head_bytes.decode().split("\r\n") if line)
    if fields.get("Transfer-Encoding") == "chunked":
        raise AssertionError("the test client reads no chunks")
    return HttpAnswer(int(first.split()[1]), fields, content)


async def put_kv(port: int, path: str, value: bytes) -> None:
    """Set a key (``NAMESPACE/KEY``). The request is repeated while the status is one of REPEATED, as after a stall of the node.
    A repeated request sets the same value again."""
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await http(port, f"/v1/kv/{path}", "PUT", value)).status in REPEATED:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(PAUSE_S)
    assert answer.status == 200, answer.text


async def status_of(port: int, method: str, path: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> int:
    """Status of an answer. The body is not read, because the body of a watcher's answer does not end. The request has the body
    ``{}``."""
    name = {"server_hostname": "localhost"} if tls is not None else {}
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, **name)  # type: ignore[arg-type]  # by name
    try:
        lines = {"Host": f"127.0.0.1:{port}", "Content-Length": "2", **headers}
        writer.write(f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(f"{n}: {v}\r\n".encode() for n, v in lines.items()))
        writer.write(b"\r\n{}")
        async with asyncio.timeout(DEADLINE_S):
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@asynccontextmanager
async def running_node(data_dir: Path, **flags: str) -> AsyncIterator[tuple[ServingNode, int]]:
    """A started node on ports of the kernel's choice and its admin port; ``flags`` by name in the properties file."""
    defaults = {"bindAddress": "127.0.0.1", "listenPort": "0", "adminListen": "127.0.0.1:0", "dataDir": str(data_dir)}
    node = ServingNode(load_settings(flags={**defaults, **flags}, environment={}))
    await node.start()
    try:
        assert node.admin is not None
        assert node.admin.address is not None
        yield node, node.admin.address[1]
    finally:
        await node.stop()


def independent_flags(*names: str) -> list[dict[str, str]]:
    """Flags for ``running_node`` of independent nodes that know each other."""
    base = free_port(*range(1, 2 * len(names)))
    ports = range(base, base + 2 * len(names), 2)
    listed = ";".join(f"127.0.0.1:{port}" for port in ports)
    return [
        {"nodeId": name, "listenPort": str(port), "adminListen": f"127.0.0.1:{port + 1}", "nameServerAddresses": listed}
        for name, port in zip(names, ports, strict=True)
    ]


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of a node, and with Python's usual buffers for output."""
    foreign = ("NAMESRV_", "ROCKETMQ_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, **more}


def command(*arguments: str) -> list[str]:
    """Command line of ``namesrv``."""
    return [sys.executable, "-m", "replicated_namesrv", *arguments]


def run_command(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``namesrv`` to its end. JSON is checked with its schema."""
    done = subprocess.run(
        command(*arguments),
        env=clean_environment(**(environment or {})),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 3,
        check=False,
    )
    check_output(arguments, done.stdout)
    return done


@dataclass
class RunningCommand:
    """``namesrv`` in a process of its own; lines of its stdout are read as they come."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    arguments: tuple[str, ...] = ()
    """Arguments of ``namesrv``. With ``--json`` each line is checked with its schema."""

    def wait_line(self, part: str) -> str:
        """The first further line of stdout that contains ``part``; fails with everything read if the output ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            check_output(self.arguments, line)
            if part in line:
                return self.lines[-1]
        raise AssertionError(f"no line with {part!r} before the process ended: {self.lines}, code {self.process.wait()}")


@contextmanager
def running_command(
    *arguments: str,
    stderr: Path,
    environment: Mapping[str, str] | None = None,
    files_max: int | None = None,
    program: Sequence[str] = (),
) -> Iterator[RunningCommand]:
    """Start ``namesrv``, or ``program``, with at most ``files_max`` descriptors; it is killed at the end if it still runs."""
    limited = [] if files_max is None else ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files_max)]
    with stderr.open("w") as errors:
        process = subprocess.Popen(
            [*limited, *(program or command()), *arguments],
            env=clean_environment(**(environment or {})),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
        )
    try:
        yield RunningCommand(process, arguments=() if program else arguments)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def ask_cluster_info(port: int) -> int:
    """Response code of a real remoting request."""
    client = RemotingClient()
    try:
        return (await client.request(f"127.0.0.1:{port}", RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))).code
    finally:
        await client.close()
