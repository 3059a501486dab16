"""Name servers of CP mode on simulated machines: the shipped ``ReplicatedNode`` with the connections of its brokers.

Only sockets are missing. A connection belongs to one process of a machine. Messages from the broker arrive in order, but may be
late or lost.
"""

import logging
from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from replicated_namesrv.raft.interfaces import Observer, Outcome, ReadOutcome, Work
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.transport import TransportSettings
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.service import CloseReason
from replicated_namesrv.settings_sources import load_settings
from replicated_namesrv.simulation.loop import VirtualLoop
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.world import MS, World

WALL_S = 1_700_000_000.0
_TURNS_MAX = 1_000


class _FaultyRouteMachine:
    """The route state machine of a machine that may run out of memory (``StateMachine``)."""

    def __init__(self, state: RouteStateMachine, machine: Machine) -> None:
        self._state, self._machine = state, machine
        self.snapshot, self.restore, self.digest = state.snapshot, state.restore, state.digest

    def apply(self, command: bytes) -> object:
        if self._machine.take_memory_error():
            raise MemoryError
        return self._state.apply(command)


class SimulatedRaft:
    """``replication.consensus.RaftDriver`` on a simulated machine."""

    node: RaftNode

    def __init__(
        self,
        machine: Machine,
        members: Sequence[str],
        loop: VirtualLoop,
        state: RouteStateMachine,
        config: RaftConfig,
        observer: Observer,
    ) -> None:
        self._machine, self._members, self._loop = machine, members, loop
        self._state, self._config, self._observer = state, config, observer

    async def start(self) -> None:
        life = self._machine.life
        assert life is not None
        state = _FaultyRouteMachine(self._state, self._machine)
        self.node = RaftNode(
            self._machine.name, self._members, "simulated", life, self._machine.disk, state, self._config, self._observer
        )

    async def stop(self) -> None:
        self.node.stop()

    def propose(self, command: bytes, timeout_ms: int | None = None, version: int = 0) -> "Future[Outcome]":
        future: Future[Outcome] = self._loop.create_future()
        self.node.propose(command, _setter(future), timeout_ms, version)
        return future

    def read_index(self) -> "Future[ReadOutcome]":
        future: Future[ReadOutcome] = self._loop.create_future()
        self.node.read_index(_setter(future))
        return future

    def change_member(self, change: MemberChange) -> "Future[Outcome]":
        future: Future[Outcome] = self._loop.create_future()
        self.node.change_member(change, _setter(future))
        return future

    def lease_valid(self) -> bool:
        return self.node.lease_valid()

    def disk_is_short(self, short: bool) -> None:
        self.node.compaction.disk_is_short(short)

    def transfer_leadership(self, peer: str | None = None) -> "Future[bool]":
        future: Future[bool] = self._loop.create_future()
        self.node.transfer_leadership(peer, _setter(future))
        return future

    def tell(self, peer: str, data: bytes) -> None:
        self.node.tell(peer, data)

    def contacts(self) -> dict[str, object]:
        return {}

    def status(self) -> dict[str, object]:
        return self.node.status()


def _setter(future: "Future[Any]") -> Callable[[Any], None]:
    def done(outcome: object) -> None:
        if not future.done():
            future.set_result(outcome)

    return done


class _Observers(Observer):
    """Passes each report to the node, to the invariants, or to both."""

    def __init__(self, node: Observer, invariants: Observer, applied: Callable[[int], None]) -> None:
        self._node, self._invariants, self._applied = node, invariants, applied

    def role_changed(self, role: str, term: int) -> None:
        self._invariants.role_changed(role, term)
        self._node.role_changed(role, term)

    def voted(self, candidate: str, term: int) -> None:
        self._invariants.voted(candidate, term)

    def leader_changed(self, leader: str | None, term: int) -> None:
        self._node.leader_changed(leader, term)

    def applied(self, index: int, term: int, payload: bytes) -> None:
        self._node.applied(index, term, payload)
        self._applied(index)

    def truncated(self, index: int, commit_index: int) -> None:
        self._invariants.truncated(index, commit_index)

    def forgot(self, index: int) -> None:
        self._invariants.forgot(index)

    def restored(self, index: int) -> None:
        self._invariants.restored(index)
        self._node.restored(index)

    def members_changed(self) -> None:
        self._node.members_changed()

    def received(self, peer: str, data: bytes) -> None:
        self._node.received(peer, data)

    def failed(self, error: BaseException) -> None:
        self._node.failed(error)


class SimulatedConnection:
    """``service.Connection`` between a broker and one process of a machine. ``ended`` is called when it is closed."""

    def __init__(self, server: "NameServer", peer: str, ended: Callable[[], None]) -> None:
        self.server, self.peer, self._ended = server, peer, ended
        server.last_connection += 1
        self.connection_id = server.last_connection
        self.is_open = False
        self.has_lost_bytes = False
        """True if a request or an answer was lost. In TCP, the end of the connection then arrives after the request, or while the
        answer is not acknowledged."""

    def open(self) -> None:
        """Accept the connection; called in the server's turn."""
        self.is_open = True
        self.server.connections[self.connection_id] = self
        self.server.node.connection_opened(self)

    def close(self, reason: CloseReason) -> None:
        """Close the connection. ``connection_lost`` follows in a later turn, as with a socket."""
        if self.is_open:
            self.is_open = False
            self.server.loop.call_soon(self._lost, reason)
            self._ended()

    def charge(self, work_ns: int) -> None:
        """No-op: in the simulator, addresses have no shares of time."""

    def _lost(self, reason: CloseReason) -> None:
        del self.server.connections[self.connection_id]
        self.server.node.connection_lost(self, reason)


class NameServer:
    """One process: a ``simulation.machine.Process`` around a ``ReplicatedNode``."""

    def __init__(self, cluster: "RouteCluster", machine: Machine) -> None:
        assert machine.life is not None
        self.machine, self.life = machine, machine.life
        self.connections: dict[int, SimulatedConnection] = {}
        self.last_connection = 0
        self.serving = False
        """Whether connections are accepted."""
        world = machine.world
        self.loop = VirtualLoop(  # type: ignore[abstract]  # the methods for IO are missing
            machine.local_now, lambda error: cluster.failed(self, error)
        )
        rng = world.random(f"{machine.name}/{machine.boots}/service")
        settings = load_settings(None, {**cluster.flags, "nodeId": machine.name}, {})
        peers = dict.fromkeys(cluster.names, ("127.0.0.1", 1))
        transport = TransportSettings(machine.name, "simulated", peers, ("127.0.0.1", 1), None)

        def raft(state: RouteStateMachine, config: RaftConfig, observer: Observer) -> SimulatedRaft:
            used = replace(
                cluster.config,
                command_version=config.command_version,
                lease_reads=config.lease_reads,
                proposal_timeout_ms=config.proposal_timeout_ms,
                read_timeout_ms=config.read_timeout_ms,
            )
            observers = _Observers(observer, machine.observer, lambda index: cluster.applied(self, index, state))
            self.raft = SimulatedRaft(machine, cluster.names, self.loop, state, used, observers)
            return self.raft

        skew_s = cluster.clock_skew_s.get(machine.name, 0.0)
        with self.loop.running():
            self.node = ReplicatedNode(
                settings,
                transport,
                raft,
                machine.local_now,
                lambda: WALL_S + skew_s + machine.local_now(),
                Random(rng.random()),
                cluster.defences,
            )
            self.node.on_serving(self._serve)
            self._starting = self.loop.create_task(self.node.start())
            self._starting.add_done_callback(self._started)
            self.loop.run()
            if self._starting.done():
                self._starting.result()

    @property
    def is_alive(self) -> bool:
        """Whether this process still runs."""
        return not self.life.over

    def _started(self, task: "Future[None]") -> None:
        if task.exception() is None:
            self.serving = True

    def _serve(self, serving: bool) -> None:
        self.serving = serving
        if not serving:
            for connection in list(self.connections.values()):
                connection.close(CloseReason.OURS)

    # Process

    def on_connected(self, peer: str) -> None:
        with self.loop.running():
            self.raft.node.on_connected(peer)

    def on_disconnected(self, peer: str) -> None:
        with self.loop.running():
            self.raft.node.on_disconnected(peer)

    def on_message(self, peer: str, message: Message) -> Work:
        """Returns TICK always, because a message may also leave callbacks for the loop."""
        with self.loop.running():
            self.raft.node.on_message(peer, message)
        return Work.TICK

    def on_synced(self, token: int) -> None:
        with self.loop.running():
            self.raft.node.on_synced(token)

    def on_sync_failed(self, token: int, error: BaseException) -> None:
        with self.loop.running():
            self.raft.node.on_sync_failed(token, error)

    def tick(self) -> None:
        """Run the loop and the core until both are idle."""
        with self.loop.running():
            for _ in range(_TURNS_MAX):
                self.raft.node.tick()
                if not self.loop.run():
                    return
        raise RuntimeError("the process does not come to rest")

    def tick_reads(self) -> None:
        self.tick()

    def next_wakeup(self) -> float:
        return min(self.raft.node.next_wakeup(), self.loop.next_time())

    next_read_wakeup = next_wakeup

    def stop(self) -> None:
        self.raft.node.stop()


class RouteCluster:
    """The name servers of a world."""

    def __init__(self, world: World, names: Sequence[str], config: RaftConfig, flags: dict[str, str]) -> None:
        """``flags``: settings of all nodes, by name in the properties file."""
        self.world, self.names, self.config = world, list(names), config
        peers = ",".join(f"{name}=127.0.0.1:{number + 1}" for number, name in enumerate(names))
        self.flags = {"mode": "cp", "peers": peers, "dataDir": str(Path("simulated")), **flags}
        self.defences = LivenessDefences()
        """Settings of nodes that are started from now on."""
        self.servers: dict[str, NameServer] = {}
        self.clock_skew_s: dict[str, float] = {}
        self.on_failure: Callable[[str], None] = lambda text: None
        self.on_applied: Callable[[NameServer, int, RouteStateMachine], None] = lambda server, index, state: None
        self._graveyard: list[NameServer] = []
        """Processes that have ended. They are kept so that the garbage collector does not run their tasks."""

    def start_process(self, machine: Machine) -> tuple[NameServer, RaftNode]:
        """Boot ``machine``."""
        before = self.servers.get(machine.name)
        if before is not None:
            self._graveyard.append(before)
        server = self.servers[machine.name] = NameServer(self, machine)
        return server, server.raft.node

    def failed(self, server: NameServer, error: BaseException | str) -> None:
        """A process raised an exception that was not caught."""
        if server.is_alive:
            self.on_failure(f"{server.machine.name}: {error!r}")

    def applied(self, server: NameServer, index: int, state: RouteStateMachine) -> None:
        """An entry was applied."""
        self.on_applied(server, index, state)


class Wire:
    """One broker's messages to and from one machine, over one connection at a time."""

    def __init__(self, cluster: RouteCluster, machine: Machine, peer: str, rng: Random) -> None:
        self._cluster, self.machine, self._peer, self._rng = cluster, machine, peer, rng
        self._world = cluster.world
        self.connection: SimulatedConnection | None = None
        self.is_cut = False
        """While True, no message arrives in either direction."""
        self.dialled_ns = 0
        """Time at which its connection was last opened."""
        self._arrives_ns = 0
        self._waiting: list[Callable[[bool], None]] | None = None
        """Calls that wait until ``connection`` is accepted; their argument: whether it is. None: none is being opened."""

    def call(self, ask: Callable[[NameServer, SimulatedConnection], object], done: Callable[[object], None]) -> None:
        """Call ``ask`` at the machine. ``done`` gets its result, or None if it failed or no connection was established.

        If the request or the answer is lost, ``done`` is never called."""
        if self.is_cut:
            self._lose(self.connection)
            return
        if self._waiting is not None and not self._is_alive():
            self._opened(False)  # the machine's process ended before it accepted the connection
        if self._waiting is None and not self._is_up():
            self._waiting = []
            self._dial()
        if self._waiting is not None:
            self._waiting.append(lambda accepted: self.call(ask, done) if accepted else done(None))
            return
        connection = self.connection
        assert connection is not None

        def arrive(_: object) -> None:
            if self.is_cut:
                self._lose(connection)
            elif connection.is_open:
                self._answer(ask(connection.server, connection), connection, done)

        self._deliver(connection, arrive)

    @property
    def is_open(self) -> bool:
        """Whether the server has accepted the connection, and its process still runs."""
        return self._is_up()

    def _is_up(self) -> bool:
        return self._is_alive() and self.connection is not None and self.connection.is_open

    def _is_alive(self) -> bool:
        return self.connection is None or self.connection.server.is_alive

    def _deliver(self, connection: SimulatedConnection, arrive: Callable[[object], None]) -> None:
        """Deliver in order over this connection."""
        self._arrives_ns = max(self._arrives_ns + 1, self._world.now_ns + self._delay_ns())

        def hand_over() -> None:
            if connection.server.is_alive:
                self.machine.enqueue(lambda process: self._within(connection.server, arrive))

        self._world.after(self._arrives_ns - self._world.now_ns, hand_over)

    @staticmethod
    def _within(server: NameServer, arrive: Callable[[object], None]) -> None:
        with server.loop.running():
            arrive(None)

    def _answer(self, outcome: object, connection: SimulatedConnection, done: Callable[[object], None]) -> None:
        if not isinstance(outcome, Future):
            self._reply(connection, outcome, done)
            return

        def completed(future: "Future[Any]") -> None:
            if future.cancelled():
                return
            if future.exception() is not None:
                connection.close(CloseReason.OURS)
                self._reply(connection, None, done)
            else:
                self._reply(connection, future.result(), done)

        outcome.add_done_callback(completed)

    def _reply(self, connection: SimulatedConnection, result: object, done: Callable[[object], None]) -> None:
        if self.is_cut:
            self._lose(connection)
        else:
            self._world.after(self._delay_ns(), done, result)

    @staticmethod
    def _lose(connection: SimulatedConnection | None) -> None:
        """A message over this connection is lost."""
        if connection is not None:
            connection.has_lost_bytes = True

    def _dial(self) -> None:
        server, waiting = self._cluster.servers.get(self.machine.name), self._waiting

        def opened(accepted: bool) -> None:
            if self._waiting is waiting:  # otherwise the broker has given up this connection
                self._opened(accepted)

        if server is None or not server.is_alive or not server.serving:
            self.connection = None
            self._world.after(self._delay_ns(), opened, False)
            return
        connection = SimulatedConnection(server, self._peer, lambda: None)
        self.connection, self.dialled_ns = connection, self._world.now_ns

        def accept(_: object) -> None:
            if server.serving:
                connection.open()
            self._world.after(self._delay_ns(), opened, server.serving)

        self._deliver(connection, accept)

    def _opened(self, accepted: bool) -> None:
        waiting, self._waiting = self._waiting, None
        for proceed in waiting or ():
            proceed(accepted)

    def hold_back(self, duration_ns: int) -> None:
        """Delay the following messages over this connection by this time, in order."""
        self._arrives_ns = max(self._arrives_ns, self._world.now_ns) + duration_ns

    def hang_up(self) -> None:
        """Close the connection from the broker's side. The server notices unless the wire is cut."""
        connection, self.connection = self.connection, None
        self._opened(False)
        if connection is not None and not self.is_cut:
            self._deliver(
                connection,
                lambda _: connection.close(CloseReason.UNACKNOWLEDGED if connection.has_lost_bytes else CloseReason.PEER),
            )

    def forget(self) -> None:
        """Drop the connection on the broker's side only. The server still considers it open."""
        self.connection = None
        self._opened(False)

    def _delay_ns(self) -> int:
        return int((0.1 + 2.9 * self._rng.random()) * MS)


@contextmanager
def silenced() -> Iterator[None]:
    """Disable log lines: the simulator has its own account of events."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
