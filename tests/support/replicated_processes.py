"""A replicated cluster of real processes whose links to each other can be cut, and requests to its nodes.

Nodes reach each other through relays only, one for each direction. Ports and files survive a process, so a node can be killed
and started again. ``restore`` undoes all faults, so that one cluster can be used by many tests.
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from replicated_namesrv.cli.children import NodePlan, PlannedNode, host_port
from replicated_namesrv.errors import NamesrvError
from tests.support.nodes import http
from tests.support.ports import free_port
from tests.support.relay import Relay

T = TypeVar("T")
LIMIT_S = 60.0
"""How long a test waits for a condition, on a busy machine."""
PAUSE_S = 0.05


async def eventually(look: Callable[[], Awaitable[T]], what: str, limit_s: float = LIMIT_S) -> T:
    """The first true value of ``look``. If there is no answer, or an unexpected one, look again. After ``limit_s`` an
    AssertionError."""
    deadline = asyncio.get_running_loop().time() + limit_s
    last: object = None
    while asyncio.get_running_loop().time() < deadline:
        try:
            found = await look()
            if found:
                return found
            last = found
        except (OSError, NamesrvError, ValueError, LookupError, EOFError) as error:
            last = error
        await asyncio.sleep(PAUSE_S)
    raise AssertionError(f"waited {limit_s} s in vain for {what}; last seen: {last!r}")


class ReplicatedProcesses:
    """The nodes n1, n2, …, their relays, and the faults that tests inject."""

    def __init__(self, folder: Path, count: int, settings: Iterable[str] = ()) -> None:
        self.folder = folder
        self.names = [f"n{number + 1}" for number in range(count)]
        self._settings = tuple(settings)
        self.plan_kind: type[NodePlan] = NodePlan
        """The program that the nodes run."""
        self.nodes: dict[str, PlannedNode] = {}
        self.relays: dict[tuple[str, str], Relay] = {}
        """Relays between nodes, by (dialling node, listening node)."""
        self._ends: dict[str, asyncio.Future[int]] = {}
        self._paused: set[str] = set()
        self.settings_of: Callable[[str], tuple[str, ...]] = lambda name: ()
        """Settings of one node."""
        self.has_secret = True
        """False: any process that reaches a node's port can send messages as its peer."""
        self.secret = "the secret that all nodes share"

    async def start(self) -> None:
        """Start relays and nodes; returns when all serve."""
        first = free_port(*range(1, 3 * len(self.names)))
        base = {name: first + 3 * number for number, name in enumerate(self.names)}
        for origin in self.names:
            for target in self.names:
                if origin != target:
                    self.relays[origin, target] = await Relay(("127.0.0.1", base[target] + 2)).start()
        peers = ",".join(f"{name}=127.0.0.1:{base[name] + 2}" for name in self.names)
        for name in self.names:
            dial = ",".join(f"{peer}={self.relays[name, peer].address}" for peer in self.names if peer != name)
            secret = (f"peerSecretFile={self.secret_file(name)}",) if self.has_secret else ()
            own = (f"peers={peers}", f"peerDial={dial}", *secret, *self._settings, *self.settings_of(name))
            listen, admin = ("127.0.0.1", base[name]), ("127.0.0.1", base[name] + 1)
            plan = self.plan_kind(name, listen, admin, self.folder / name, "cp", own)
            self.nodes[name] = PlannedNode(plan)
            self.write_secret(name, self.secret)
        for name in self.names:
            await self.start_node(name)
        await self.all_serve()

    async def start_node(self, name: str) -> None:
        """Start the process of a node whose process is not running. Does not wait until the node serves."""
        await self.nodes[name].start()
        self._ends[name] = asyncio.ensure_future(self.nodes[name].wait())

    async def close(self) -> None:
        """End everything."""
        for name in list(self._paused):
            self.resume(name)
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await asyncio.gather(*(relay.close() for relay in self.relays.values()))

    # Roles

    def address(self, name: str) -> str:
        """The address of a node for brokers and clients."""
        return host_port(self.nodes[name].plan.listen)

    @property
    def addresses(self) -> list[str]:
        """The whole address list."""
        return [self.address(name) for name in self.names]

    def others(self, *names: str) -> list[str]:
        """All nodes but these."""
        return [name for name in self.names if name not in names]

    def secret_file(self, name: str) -> Path:
        """The file with the secret of the node; each node has a file of its own."""
        return self.folder / f"{name}.secret"

    def write_secret(self, name: str, secret: str) -> None:
        """Write the node's secret, which takes effect when the node starts."""
        self.secret_file(name).parent.mkdir(parents=True, exist_ok=True)
        self.secret_file(name).touch(0o600)
        self.secret_file(name).write_text(secret)

    async def admin(self, name: str, path: str) -> Any:
        """The answer of the node's HTTP side. Raises OSError or ValueError without one."""
        answer = await http(self.nodes[name].plan.admin[1], path)
        if answer.status != 200:
            raise ValueError(f"{path} of {name} answers {answer.status}: {answer.text}")
        return answer.json

    async def status(self, name: str) -> dict[str, Any]:
        """``replication`` of /v1/status. Raises OSError or ValueError while there is none."""
        found: dict[str, Any] | None = (await self.admin(name, "/v1/status"))["replication"]
        if found is None:
            raise ValueError(f"{name} is starting")
        return found

    async def leader(self, among: Sequence[str] | None = None) -> str:
        """Wait for a node that leads and reaches a majority, and return it."""

        async def look() -> str | None:
            for name in among or self.names:
                if name in self._paused or not self.is_running(name):
                    continue
                with contextlib.suppress(OSError, ValueError):
                    status = await self.status(name)
                    if status["role"] == "leader" and not status["fenced"] and (status["confirmedMsAgo"] or 0) < 1_000:
                        return name
            return None

        return str(await eventually(look, f"a leader among {among or self.names}"))

    def is_running(self, name: str) -> bool:
        """Whether the node's process has not ended."""
        return not self._ends[name].done()

    async def ended(self, name: str) -> int:
        """Exit code of the node's process, after it has ended by itself."""
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.shield(self._ends[name])

    # Faults

    async def kill(self, *names: str) -> None:
        """SIGKILL, and wait until they are gone."""
        for name in names:
            self._signal(name, signal.SIGKILL)
        await asyncio.gather(*(self._ends[name] for name in names))

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._signal(name, signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self._paused.discard(name)
        self._signal(name, signal.SIGCONT)

    def cut(self, *names: str) -> None:
        """Stop all traffic between these nodes and the others, in both directions. Clients still reach them."""
        for pair, relay in self.relays.items():
            if (pair[0] in names) != (pair[1] in names):
                relay.hold()

    def heal(self) -> None:
        """Pass all traffic again."""
        for relay in self.relays.values():
            relay.release()

    def fill_disk(self, name: str) -> None:
        """From now on no file of the process may grow: each write fails, as on a full disk."""
        pid = self.nodes[name].pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def lose_disk(self, name: str) -> None:
        """Delete everything that the (stopped) node has written."""
        plan = self.nodes[name].plan
        for path in plan.data_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != plan.log_file:
                path.unlink()

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self.nodes[name].pid
        if pid is not None:
            os.kill(pid, number)

    # Health

    async def restore(self) -> None:
        """Undo every fault; returns when all nodes serve."""
        self.heal()
        for name in list(self._paused):
            self.resume(name)
        for name in self.names:
            if not self.is_running(name):
                await self.start_node(name)
        await self.all_serve()

    async def all_serve(self) -> None:
        """Returns once every node answers requests."""
        await asyncio.gather(*(node.wait_serving(LIMIT_S) for node in self.nodes.values()))

    async def agree(self) -> str:
        """The digest of all nodes' states, when all nodes have the same digest at the same index."""

        async def look() -> str | None:
            found = [await self.status(name) for name in self.names]
            return found[0]["digest"] if len({(one["appliedIndex"], one["digest"]) for one in found}) == 1 else None

        return str(await eventually(look, "equal digests"))


@asynccontextmanager
async def replicated_processes(
    folder: Path, count: int = 3, settings: Iterable[str] = (), *, has_secret: bool = True
) -> AsyncIterator[ReplicatedProcesses]:
    """A cluster of processes that serve, ended with the block."""
    cluster = ReplicatedProcesses(folder, count, settings)
    cluster.has_secret = has_secret
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
