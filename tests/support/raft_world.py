"""A small world for directed Raft tests: virtual time, a network that tests can cut, disks that can lose power.

This is not the simulator: nothing random happens here, unless a test asks for it.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

from replicated_namesrv.raft.interfaces import Observer, Outcome, ReadOutcome, Work
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Message, decode, encode
from replicated_namesrv.raft.raft_node import RaftNode

M = TypeVar("M", bound=Message)


class Inode:
    """Contents of a file, and the part of it that is durable."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = data


class Disk:
    """Storage in memory. A sync of files makes their contents durable, a sync of the directory makes their names durable."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.fail: OSError | None = None
        self.lie = False
        """Report syncs as complete although they were not made."""

    def list_names(self) -> list[str]:
        return sorted(self.files)

    def size(self, name: str) -> int:
        return len(self._data(name))

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        return bytes(self._data(name)[offset : None if size is None else offset + size])

    def _data(self, name: str) -> bytearray:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name].data

    def append(self, name: str, data: bytes) -> None:
        if self.fail:
            raise self.fail
        self.files.setdefault(name, Inode()).data.extend(data)

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def sync(self, names: Sequence[str], directory: bool) -> None:
        if self.fail:
            raise self.fail
        if self.lie:
            return
        for name in names:
            if name in self.files:
                self.files[name].synced = bytes(self.files[name].data)
        if directory:
            self.durable = dict(self.files)

    def close(self) -> None:
        pass

    def lose_power(self) -> None:
        """Drop everything that was not synced."""
        self.files = {name: Inode(inode.synced) for name, inode in self.durable.items()}
        self.durable = dict(self.files)


class Machine:
    """A list of the commands applied."""

    commands_per_chunk = 50
    """Commands in one chunk of a snapshot. With one in each, tests would spend most of their time on steps of snapshots."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, command: bytes) -> object:
        self.commands.append(command)
        return len(self.commands)

    def snapshot(self) -> Iterator[bytes]:
        framed = [len(command).to_bytes(4, "little") + command for command in self.commands]
        count = self.commands_per_chunk
        return iter([b"".join(framed[start : start + count]) for start in range(0, len(framed), count)])

    def restore(self) -> "Machine._Restoration":
        return Machine._Restoration(self)

    def digest(self) -> bytes:
        return blake2b(b"|".join(self.commands), digest_size=16).digest()

    class _Restoration:
        def __init__(self, machine: "Machine") -> None:
            self.machine = machine
            self.data = bytearray()

        def feed(self, chunk: bytes) -> None:
            self.data += chunk

        def finish(self) -> None:
            commands, start = [], 0
            while start < len(self.data):
                end = start + 4 + int.from_bytes(self.data[start : start + 4], "little")
                commands.append(bytes(self.data[start + 4 : end]))
                start = end
            self.machine.commands = commands


class Host:
    """One node with its clock, disk and connections; its Environment."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.rng = self.jitter = Random(f"{world.seed}/{name}")
        self.disk = Disk()
        self.sync_delay = 0.001
        self.node: RaftNode | None = None
        self.machine = Machine()
        self.life = 0
        self.joins = False
        """Whether the node is started to join a cluster."""
        self.lag_s = 0.0
        """How much its clock is behind, because the machine was reset with its memory."""
        self.sent = self.syncs = 0

    def now(self) -> float:
        return self.world.time - self.lag_s

    def send(self, peer: str, message: Message) -> None:
        self.sent += 1
        self.world.transmit(self, peer, message)

    def request_sync(self, token: int, names: Sequence[str], directory: bool) -> None:
        life, names = self.life, list(names)
        self.syncs += 1

        def complete() -> None:
            if self.node is None or life != self.life:
                return
            try:
                self.disk.sync(names, directory)
            except OSError as error:
                self.node.on_sync_failed(token, error)
                return
            self.node.on_synced(token)
            self.wake()

        self.world.later(self.sync_delay, complete)

    def start(self, machine: Machine | None = None, opening_s: float = 0.0) -> RaftNode:
        """``opening_s``: time that passes after the disk was read, before the node can connect."""
        self.life += 1
        self.machine = machine or Machine()
        node = RaftNode(
            self.name, self.world.configured(self), "test", self, self.disk, self.machine, self.world.config, self.world.observer,
            self.joins,
        )  # fmt: skip  # items grouped by line
        self.world.run(opening_s)
        self.node = node
        for peer in self.world.hosts.values():
            if peer is not self and peer.node is not None:
                self.world.connect(self.name, peer.name)
                self.world.connect(peer.name, self.name)
        self.wake()
        return node

    def crash(self, power: bool = True) -> None:
        self.node = None
        self.life += 1
        if power:
            self.disk.lose_power()
        for peer in self.world.hosts:
            self.world.disconnect(self.name, peer)
            self.world.disconnect(peer, self.name)

    def wake(self) -> None:
        if self.node is not None:
            self.node.tick()

    def receive(self, node: RaftNode, source: str, message: Message) -> None:
        """A message arrives after everything that was due. If it leaves no work for ``tick``, as the node reports, then ``tick``
        must have no effect, and must not be due earlier than before, unless long work is in progress, or a read that ended asks
        for more."""
        node.tick()
        wakes_at = node.next_wakeup()
        is_due = wakes_at <= self.now()
        work = node.on_message(source, message)
        if work is Work.READS:
            node.tick_reads()
            is_due |= node.next_wakeup() <= self.now()
            wakes_at = min(wakes_at, node.next_read_wakeup())
        is_late = node.next_wakeup() < wakes_at
        before = self._observed(node)
        node.tick()
        after = self._observed(node)
        assert work is Work.TICK or is_due or after == before, f"{message} left more work than {work!r}: {before} {after}"
        assert work is Work.TICK or is_due or not is_late, f"{message} left {work!r}, and a tick before the one of the timer"

    def _observed(self, node: RaftNode) -> tuple[object, ...]:
        return (
            self.sent, self.syncs, len(self.machine.commands), node.role, node.term, node.commit_index, node.applied_index,
            node.log.last_index, node.leader_id, node.counters.copy(),
        )  # fmt: skip  # items grouped by line


class World:
    """Hosts that are connected by a network of fixed delay."""

    def __init__(self, size: int = 3, config: RaftConfig | None = None, seed: int = 1) -> None:
        self.seed, self.time = seed, 0.0
        self.config = config or RaftConfig()
        self.observer = Observer()
        self.names = [f"n{i}" for i in range(1, size + 1)]
        self.hosts = {name: Host(self, name) for name in self.names}
        self.links: set[tuple[str, str]] = set()
        self.cut: set[tuple[str, str]] = set()
        self.delay = 0.002
        self.drop: Callable[[str, str, Message], bool] = lambda source, target, message: False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def configured(self, host: Host) -> dict[str, tuple[str, int]]:
        """The members in the configuration of ``host``, with their addresses."""
        names = [*self.names, host.name] if host.joins else self.names
        return {name: (f"host-{name}", 9_000) for name in names}

    def new_host(self, name: str) -> Host:
        """A host whose node joins the cluster when it is started."""
        host = self.hosts[name] = Host(self, name)
        host.joins = True
        return host

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.time + delay, self._count, action))

    def transmit(self, source: Host, target: str, message: Message) -> None:
        link = source.name, target
        if link not in self.links or link in self.cut or self.drop(source.name, target, message):
            return
        self.later(self.delay, lambda: self._deliver(source.name, target, decode(encode(message))))

    def _deliver(self, source: str, target: str, message: Message) -> None:
        host = self.hosts[target]
        node = host.node
        if node is not None and (source, target) in self.links and (source, target) not in self.cut:
            host.receive(node, source, message)

    def connect(self, source: str, target: str) -> None:
        node = self.hosts[source].node
        if (source, target) not in self.links and node is not None and source != target:
            self.links.add((source, target))
            node.on_connected(target)

    def disconnect(self, source: str, target: str) -> None:
        if (source, target) in self.links:
            self.links.remove((source, target))
            node = self.hosts[source].node
            if node is not None:
                node.on_disconnected(target)

    def isolate(self, name: str) -> None:
        self.cut |= {(name, n) for n in self.hosts} | {(n, name) for n in self.hosts}

    def heal(self) -> None:
        self.cut.clear()

    def start_all(self) -> None:
        for host in self.hosts.values():
            host.start()

    @property
    def nodes(self) -> list[RaftNode]:
        return [h.node for h in self.hosts.values() if h.node is not None]

    @property
    def leader(self) -> RaftNode | None:
        leaders = [n for n in self.nodes if n.role == "leader" and not n.stopped]
        return max(leaders, key=lambda n: n.term, default=None)

    def keep(self, kind: type[M], source: str | None = None, target: str | None = None) -> list[M]:
        """The messages of this kind from ``source`` to ``target`` (None: any) that are sent from now on. The messages still
        arrive."""
        kept: list[M] = []

        def keep(sender: str, receiver: str, message: Message) -> bool:
            if isinstance(message, kind) and source in (None, sender) and target in (None, receiver):
                kept.append(message)
            return False

        self.drop = keep
        return kept

    def run_until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Let time pass until ``condition`` is true; AssertionError if it is not true within ``seconds`` of virtual time."""
        end = self.time + seconds
        while not condition():
            assert self.time < end, f"not reached within {seconds} virtual seconds"
            self.step()

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end:
            self.step()

    def step(self) -> None:
        """The next event: a delivery, a completed sync or a node's wake-up."""
        wakeups = [(max(h.node.next_wakeup() + h.lag_s, self.time), h) for h in self.hosts.values() if h.node is not None]
        wake_at = min((t for t, _ in wakeups), default=float("inf"))
        if self._events and self._events[0][0] <= wake_at:
            self.time, _, action = heapq.heappop(self._events)
            action()
            return
        self.time = max(self.time + 1e-5, wake_at)
        for at, host in wakeups:
            if at <= self.time:
                host.wake()

    def elect(self) -> RaftNode:
        self.run_until(lambda: self.leader is not None and self.leader.commit_index >= self.leader.last_index)
        assert self.leader is not None
        return self.leader

    def propose(self, name: str, command: bytes, timeout_ms: int | None = None) -> list[Outcome]:
        """Ask node ``name``; the outcome appears in the list."""
        outcomes: list[Outcome] = []
        node = self.hosts[name].node
        assert node is not None
        node.propose(command, outcomes.append, timeout_ms)
        return outcomes

    def read(self, name: str) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        node = self.hosts[name].node
        assert node is not None
        node.read_index(outcomes.append)
        return outcomes
