"""Nodes in processes of their own, started from a file as in production, and the requests of their attackers."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from replicated_namesrv.client.queries import config_request, read_config, update_config_request
from replicated_namesrv.client.remoting import RemotingClient, RemotingCommand
from tests.support.nodes import DEADLINE_S, HttpAnswer, RunningCommand, http, running_command
from tests.support.ports import free_port

MODES = ("ap", "cp")


@dataclass
class AttackedNode:
    """A running node; ``file`` is what -c names."""

    command: RunningCommand
    folder: Path
    file: Path
    port: int

    @property
    def admin_port(self) -> int:
        """The admin port."""
        return self.port + 10

    @property
    def log(self) -> str:
        """The log of the process over all its starts."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.command.process.poll() is None

    def stop(self) -> None:
        """Send SIGTERM, and check that the process ends cleanly."""
        self.command.process.send_signal(signal.SIGTERM)
        assert self.command.process.wait(DEADLINE_S) == 0

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """A request over a connection of its own."""

        async def ask() -> RemotingCommand:
            client = RemotingClient()
            try:
                return await client.request(f"127.0.0.1:{self.port}", request)
            finally:
                await client.close()

        return asyncio.run(ask())

    def change(self, text: str) -> RemotingCommand:
        """Code 318 with this properties text."""
        return self.ask(update_config_request(text))

    def config(self) -> Mapping[str, str]:
        """Code 319."""
        return read_config(self.ask(config_request()))

    def http(self, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None) -> HttpAnswer:
        """A request to the admin port."""
        return asyncio.run(http(self.admin_port, path, method, body, headers))


def write_file(folder: Path, mode: str, *lines: str) -> tuple[Path, int]:
    """A properties file with listenPort, as users of the Java name server write it, and the value of listenPort. The admin port
    is listenPort + 10."""
    port = free_port(2, 10)
    peers = [f"peers=n1=127.0.0.1:{port + 2}"] if mode == "cp" else []
    own = [f"mode={mode}", f"listenPort={port}", "bindAddress=127.0.0.1", f"dataDir={folder / 'data'}", *peers, *lines]
    file = folder / "given.properties"
    file.write_text("".join(f"{line}\n" for line in own))
    return file, port


@contextmanager
def started(folder: Path, file: Path, port: int, files_max: int | None = None) -> Iterator[AttackedNode]:
    """Start a node with this file; it is ended with the block."""
    with launched(folder, file, port, files_max) as node:
        node.command.wait_line("boot success")
        yield node


@contextmanager
def launched(
    folder: Path, file: Path, port: int, files_max: int | None = None, election_ms: int | None = None
) -> Iterator[AttackedNode]:
    """Start a node, and do not wait until it serves: a node of a cluster needs the others for that."""
    log = folder / f"log-{len(list(folder.glob('log-*')))}"
    slowed = [sys.executable, "-m", "tests.support.node_without_defence", "--election-ms", str(election_ms)]
    arguments, program = (["serve"], []) if election_ms is None else ([], slowed)
    with running_command(*arguments, "-c", str(file), stderr=log, files_max=files_max, program=program) as command:
        yield AttackedNode(command, folder, file, port)


@contextmanager
def attacked(folder: Path, mode: str, *lines: str, files_max: int | None = None) -> Iterator[AttackedNode]:
    """A started node with these further lines in its file."""
    with started(folder, *write_file(folder, mode, *lines), files_max) as node:
        yield node


def write_cluster_files(folders: Sequence[Path], data_folders: Sequence[Path], mode: str, *lines: str) -> list[tuple[Path, int]]:
    """A properties file for each node, and the value of listenPort in it. In CP the nodes are a cluster."""
    first = free_port(*(20 * number + offset for number in range(len(folders)) for offset in (0, 2, 10)))
    ports = [first + 20 * number for number in range(len(folders))]
    peers = ",".join(f"n{number + 1}=127.0.0.1:{port + 2}" for number, port in enumerate(ports))
    files = []
    for number, (folder, data, port) in enumerate(zip(folders, data_folders, ports, strict=True)):
        folder.mkdir(exist_ok=True)
        own = [f"mode={mode}", f"nodeId=n{number + 1}", f"listenPort={port}", "bindAddress=127.0.0.1", f"dataDir={data}", *lines]
        file = folder / "given.properties"
        file.write_text("".join(f"{line}\n" for line in (*own, *([f"peers={peers}"] if mode == "cp" else []))))
        files.append((file, port))
    return files


@contextmanager
def started_cluster(files: Sequence[tuple[Path, int]], election_ms: int | None = None) -> Iterator[list[AttackedNode]]:
    """Start a node with each file, and wait until all serve. ``election_ms``: another election time-out than in production."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(launched(file.parent, file, port, election_ms=election_ms)) for file, port in files]
        for node in nodes:
            node.command.wait_line("boot success")
        yield nodes
