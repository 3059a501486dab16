"""A cluster of replicated nodes with real sockets and files, all in one thread's event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from replicated_namesrv.replication.peer_settings import transport_settings
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.server.server import RemotingServer
from replicated_namesrv.settings_sources import load_settings
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

T = TypeVar("T")
TIMEOUT_S = 30.0


class Member:
    """One node: its service and remoting server."""

    def __init__(self, name: str, folder: Path, peers: str, flags: dict[str, str]) -> None:
        self.name = name
        defaults = {"bindAddress": "127.0.0.1", "listenPort": "0", "dataDir": str(folder / name), "mode": "cp"}
        (folder / name).mkdir(parents=True, exist_ok=True)
        settings = load_settings(None, {**defaults, "nodeId": name, "peers": peers, **flags}, {})
        self.service = ReplicatedNode(settings, transport_settings(settings))
        self.server = RemotingServer(settings, self.service)

    async def start(self) -> None:
        await self.service.start()
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()
        await self.service.stop()

    @property
    def is_leader(self) -> bool:
        return self.service.led_term is not None


class ClusterThread:
    """The running cluster; ``do`` runs something in its loop."""

    def __init__(self, folder: Path, nodes: int, flags: dict[str, str]) -> None:
        self._folder, self._flags = folder, flags
        names = [f"n{number + 1}" for number in range(nodes)]
        self._peers = ",".join(f"{name}=127.0.0.1:{port}" for name, port in zip(names, free_ports(nodes), strict=True))
        self._names = names
        self.members: list[Member] = []
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S), "the cluster did not start"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self._ending = asyncio.Event()
            try:
                self.members = [Member(name, self._folder, self._peers, self._flags) for name in self._names]
                await asyncio.gather(*(member.start() for member in self.members))
            except BaseException as error:
                self._error = error
                return
            finally:
                self._ready.set()
            await self._ending.wait()
            await asyncio.gather(*(member.stop() for member in self.members))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    def do(self, action: Callable[[], T]) -> T:
        """Result of ``action``, run in the cluster's loop."""

        async def run() -> T:
            return action()

        return self.wait_for(run())

    def wait_for(self, action: Coroutine[Any, Any, T]) -> T:
        """Result of a coroutine, run in the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(action, self.loop).result(TIMEOUT_S)

    def leader(self) -> Member:
        """The node that leads."""
        leaders: list[Member] = []

        def found() -> bool:
            leaders[:] = self.do(lambda: [member for member in self.members if member.is_leader])
            return bool(leaders)

        wait_until(found, "a leader")
        return leaders[0]

    def follower(self) -> Member:
        """A node that does not lead."""
        leader = self.leader()
        return next(member for member in self.members if member is not leader)

    def stop(self) -> None:
        """Stop every node and end the loop."""
        self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the cluster's loop did not end"


@contextmanager
def live_cluster(folder: Path, nodes: int = 3, **flags: str) -> Iterator[ClusterThread]:
    """A started cluster; ``flags`` by name in the properties file."""
    cluster = ClusterThread(folder, nodes, flags)
    try:
        yield cluster
    finally:
        cluster.stop()
