"""Scripts of name servers and brokers: ``ReplicatedNode`` as it ships on simulated machines, with the connections of its brokers.

A broker is a name in lower case, like ``a``. It registers as cluster ``c``, address ``a:1``, broker name ``a``, id 0. It has one
connection to each node, made when it is first used; ``wire=2`` names another one. The output shows only what an operator or a
broker could observe, so it does not depend on the rules inside.
"""

from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import NewType

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.raft.interfaces import Observer
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.results import Result
from replicated_namesrv.service import DataVersionAnswer, Freshness, ReadLevel
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Link
from replicated_namesrv.simulation.process_views import MachineView, Process, RaftView
from replicated_namesrv.simulation.route_cluster import NameServer, RouteCluster, SimulatedConnection, Wire
from replicated_namesrv.simulation.world import MS
from tests.golden.stage import MESSAGES, Account, Stage
from tests.golden.transcript import ScriptError, command

CLUSTER = "c"
TIMEOUT_MS, PERIOD_MS = 4_000, 1_000
REQUEST_TIMEOUT_MS = 3_000
"""A broker closes a connection if an answer takes longer than this, as RocketMQ's brokers do."""
Broker = NewType("Broker", str)
Ask = Callable[[NameServer, SimulatedConnection], object]


class Watched(Invariants):
    """The simulator's invariants, which also notify the stage when a machine had a turn."""

    def __init__(self, stage: "RouteStage") -> None:
        super().__init__(stage.world)
        self._stage = stage

    def observer(self, machine: MachineView) -> Observer:
        return Account(self._stage, self._stage.machines[machine.name], super().observer(machine))

    def check(self, machine: MachineView) -> None:
        super().check(machine)
        self._stage.turn_ended(self._stage.machines[machine.name])


class Seen:
    """The state of one process that was written last."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.serving = False
        self.leader: str | None = None
        self.counts = (0, 0)
        self.connections: dict[int, str] = {}
        self.registered: dict[str, str] = {}


class RouteStage(Stage):
    """The commands of ``routes/*.txt``."""

    def __init__(self) -> None:
        super().__init__()
        self._cluster: RouteCluster | None = None
        self._seen: dict[str, Seen] = {}
        self._wires: dict[tuple[str, str, str], Wire] = {}
        self._living: dict[str, tuple[int, int, int]] = {}
        """Brokers that renew by themselves: (version, period, time-out)."""
        self._repeated: dict[str, int] = {}

    def make_invariants(self) -> Invariants:
        return Watched(self)

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        assert self._cluster is not None
        server, raft = self._cluster.start_process(machine)
        self._seen[machine.name] = Seen(server)
        return server, raft

    def convert(self, kind: object, word: str) -> object:
        if kind is Broker:
            if not (word.isalpha() and word.islower()):
                raise ValueError(f"{word!r} is not a broker name like a")
            return Broker(word)
        return super().convert(kind, word)

    def tell_message(self, name: str, arrow: str, link: Link, message: Message, fate: str = "") -> None:
        """Messages are processed only if the level asks for them, because there are many."""
        if self.level >= MESSAGES:
            super().tell_message(name, arrow, link, message, fate)

    def arrive(self, target: Machine, link: Link, message: Message) -> None:
        """As in the shipped driver, ``deliver`` and ``repeat`` hand over a message in a callback of the loop. So timers that are
        due are called before the effects of the message."""
        server = self._server(target)

        def receive() -> None:
            server.raft.node.on_message(link[0], message)
            server.raft.node.tick_reads()

        def schedule(process: Process) -> None:
            server.loop.call_soon(receive)

        target.enqueue(schedule)

    def _say(self, name: Machine | str, text: str) -> None:
        self.changed()
        self.tell(name, text)

    def take_output(self) -> list[str]:
        lines = super().take_output()
        lines += [f"({count} repeated answers to {broker} left out)" for broker, count in sorted(self._repeated.items())]
        self._repeated.clear()
        return lines

    # Events of nodes

    def applied(self, server: NameServer, index: int) -> None:
        """An entry was applied: write which registrations began, changed and ended."""
        seen = self._seen.get(server.machine.name)
        if seen is None or seen.server is not server:
            return
        held = {r.broker_addr: f"version {r.data_version.counter}" for r in server.node.state.registrations()}
        for address, text in held.items():
            if seen.registered.get(address) != text:
                self._say(server.machine, f"applies entry {index}: {address} is registered, {text}")
        for address in seen.registered:
            if address not in held:
                self._say(server.machine, f"applies entry {index}: {address} is no longer registered")
        seen.registered = held

    def turn_ended(self, machine: Machine) -> None:
        """Write all other changes."""
        seen = self._seen.get(machine.name)
        if seen is None:
            return
        server, node = seen.server, seen.server.node
        if server.serving != seen.serving:
            seen.serving = server.serving
            self._say(machine, "serves" if server.serving else "does not serve")
        raft = server.raft.node
        if raft.leader_id != seen.leader:
            seen.leader = raft.leader_id
            self._say(machine, f"leader {raft.leader_id or 'unknown'}, term {raft.term}")
        counts = node.expired_count, node.lost_count
        if counts != seen.counts:
            self._say(machine, f"counts expired {counts[0]}, gone {counts[1]}")
            seen.counts = counts
        present = {number: connection.peer for number, connection in server.connections.items()}
        for number in sorted(present.keys() - seen.connections.keys()):
            self._say(machine, f"connection of {present[number]} opened")
        for number in sorted(seen.connections.keys() - present.keys()):
            self._say(machine, f"connection of {seen.connections[number]} closed")
        seen.connections = present

    # Cluster

    @command
    def nodes(self, count: int, **settings: str) -> None:
        """Make machines n1 …, with settings of the name server by their names in the properties file. None runs yet."""
        self.build(count)
        cluster = self._cluster = RouteCluster(self.world, self.names, RaftConfig(lease_reads=True), settings)
        cluster.on_failure = lambda text: self.invariants.violated("exception", text)
        cluster.on_applied = lambda server, index, state: self.applied(server, index)

    def _server(self, node: Machine) -> NameServer:
        seen = self._seen.get(node.name)
        if seen is None or not node.is_up():
            raise ScriptError(f"{node.name} is down")
        return seen.server

    @command
    def until_serving(self) -> None:
        """Let time pass until every node that runs serves, and one of them leads."""
        running = [machine for machine in self.machines.values() if machine.is_up()]
        self.reach(
            lambda: all(self._server(m).serving for m in running) and any(m.raft and m.raft.role == "leader" for m in running)
        )

    @command
    def until_leader(self, *nodes: Machine) -> None:
        """Let time pass until one of the nodes leads, and all of them know a leader."""
        self.reach(lambda: any(m.raft and m.raft.role == "leader" for m in nodes) and all(self._leader_of(m) for m in nodes))

    def _leader_of(self, node: Machine) -> str | None:
        return self._server(node).raft.node.leader_id

    @command
    def transfer(self, node: Machine, target: Machine) -> None:
        """Hand leadership over."""
        server = self._server(node)
        node.enqueue(lambda process: server.raft.node.transfer_leadership(target.name, lambda handed_over: None))
        self.reach(lambda: target.raft is not None and target.raft.role == "leader")

    @command
    def show(self, *nodes: Machine) -> None:
        """Role, registrations (age of the last contact known here, suspected or not) and connections of the named nodes; without
        names, of all nodes."""
        for machine in nodes or self.machines.values():
            if not machine.is_up():
                self.tell(machine, "down")
                continue
            server = self._server(machine)
            node, brokers = server.node, []
            for held in node.state.registrations():
                age_ms = node.heartbeat_age_ms(held.cluster_name, held.broker_addr)
                age = "no contact known" if age_ms is None else f"last contact {age_ms / 1000:.1f} s ago"
                age += ", suspected" if (held.cluster_name, held.broker_addr) in node.suspected_since() else ""
                brokers.append(f"{held.broker_addr} version {held.data_version.counter} ({age})")
            role = "leader" if node.led_term is not None else "follower"
            serving = "serves" if server.serving else "does not serve"
            connections = ",".join(sorted(connection.peer for connection in server.connections.values()))
            self.tell(machine, f"{role}, {serving}, connections [{connections}], brokers [{'; '.join(brokers)}]")

    @command
    def read(self, node: Machine, level: str = "default", *, max_staleness: int = -1) -> None:
        """A query waits for the node's read barrier: ``linearizable``, ``lease``, ``stale`` or the ``default`` of the settings,
        ``max_staleness`` in ms."""
        server, named = self._server(node), None if level == "default" else ReadLevel(level)
        what = f"read {level}" + ("" if max_staleness < 0 else f" max_staleness={max_staleness}")

        def done(future: "Future[Freshness]") -> None:
            error = future.exception()
            self._say(node, f"{what}: {freshness_text(future.result()) if error is None else error}")

        def ask(process: Process) -> None:
            with server.loop.running():
                try:
                    found = server.node.barrier(named, None if max_staleness < 0 else max_staleness)
                except NamesrvError as error:
                    self._say(node, f"{what}: {error}")
                    return
            if isinstance(found, Freshness):
                self._say(node, f"{what}: {freshness_text(found)}")
            else:
                found.add_done_callback(done)

        node.enqueue(ask)
        self.run(0.2)

    # Brokers

    @command
    def register(self, node: Machine, broker: Broker, version: int, *, timeout: int = TIMEOUT_MS, wire: str = "1") -> None:
        """REGISTER_BROKER (103) to one node. ``version``: counter of the data version. ``timeout``: heartbeat time-out in ms."""
        registration = registration_of(broker, version, timeout)
        self._ask(node, broker, wire, f"register version {version}", lambda server, c: server.node.register(registration, c))

    @command
    def heartbeat(self, node: Machine, broker: Broker, *, wire: str = "1") -> None:
        """BROKER_HEARTBEAT (904), which has no answer."""
        self._wire(node, broker, wire).call(lambda server, c: server.node.heartbeat(CLUSTER, f"{broker}:1", c), lambda _: None)

    @command
    def query(self, node: Machine, broker: Broker, version: int, *, wire: str = "1") -> None:
        """QUERY_DATA_VERSION (322), which brokers use as a heartbeat: is this data version the one that is registered?"""
        asked = version_of(version)
        self._ask(
            node, broker, wire, f"query version {version}",
            lambda server, c: server.node.query_data_version(CLUSTER, f"{broker}:1", asked, c),
        )  # fmt: skip  # items grouped by line

    @command
    def unregister(self, node: Machine, broker: Broker, *, wire: str = "1") -> None:
        """UNREGISTER_BROKER (104)."""
        removal = UnregisterBrokers((BrokerRemoval(CLUSTER, f"{broker}:1", broker, 0, None),))
        self._ask(node, broker, wire, "unregister", lambda server, c: server.node.propose(removal, c))

    @command
    def live(self, broker: Broker, version: int, *, period: int = PERIOD_MS, timeout: int = TIMEOUT_MS, nodes: str = "*") -> None:
        """The broker registers with all nodes (or ``nodes=n1,n2``) now and once every period. An answer is written if it differs
        from the last one of the same node."""
        targets = self.names if nodes == "*" else nodes.split(",")
        if unknown := set(targets) - set(self.names):
            raise ScriptError(f"no node {', '.join(sorted(unknown))}")
        self._living[broker] = life = (version, period, timeout)
        registration = registration_of(broker, version, timeout)
        told: dict[str, str] = {}
        answered_ns: dict[str, int] = {}

        def say() -> None:
            if self._living.get(broker) is not life:
                return
            for name in targets:
                wire = self._wire(self.machines[name], broker, "1")
                wire.call(lambda server, c: server.node.register(registration, c), partial(done, name))
                self.world.after(REQUEST_TIMEOUT_MS * MS, give_up, name, self.world.now_ns)
            self.world.after(period * MS, say)

        def done(name: str, result: object) -> None:
            answered_ns[name] = self.world.now_ns
            tell_new(name, f"{name} answers register version {version}: {answer_text(result)}")

        def give_up(name: str, asked_ns: int) -> None:
            if self._living.get(broker) is life and answered_ns.get(name, -1) < asked_ns:
                tell_new(name, f"has no answer of {name} for {REQUEST_TIMEOUT_MS} ms and closes its connection")
                self._wire(self.machines[name], broker, "1").hang_up()

        def tell_new(name: str, text: str) -> None:
            if told.get(name) == text:
                self._repeated[broker] = self._repeated.get(broker, 0) + 1
            else:
                told[name] = text
                self._say(broker, text)

        say()

    @command
    def silence(self, *brokers: Broker) -> None:
        """The brokers stop sending; their connections stay open."""
        for broker in brokers:
            if self._living.pop(broker, None) is None:
                raise ScriptError(f"{broker} does not live; begin with the command live")

    @command
    def crash_broker(self, broker: Broker) -> None:
        """The broker's process ends without unregistering, and its connections are closed."""
        self._living.pop(broker, None)
        for (_, name, _), wire in self._wires.items():
            if name == broker:
                wire.hang_up()

    @command
    def close(self, node: Machine, broker: Broker, *, wire: str = "1") -> None:
        """The broker closes its connection to one node."""
        self._wire(node, broker, wire).hang_up()

    @command
    def cut_broker(self, node: Machine, broker: Broker, *, wire: str = "1") -> None:
        """No byte passes between broker and node any more, and neither sees the connection end."""
        self._wire(node, broker, wire).is_cut = True

    @command
    def mend_broker(self, node: Machine, broker: Broker, *, wire: str = "1") -> None:
        """Undo ``cut-broker``."""
        self._wire(node, broker, wire).is_cut = False

    @command
    def until_gone(self, broker: Broker) -> None:
        """Let time pass until no node that runs shows the broker."""
        self.reach(lambda: not self._shown(broker))

    @command
    def until_shown(self, broker: Broker) -> None:
        """Let time pass until every node that runs shows the broker."""
        self.reach(lambda: self._shown(broker) == sum(machine.is_up() for machine in self.machines.values()))

    def _shown(self, broker: str) -> int:
        running = [machine for machine in self.machines.values() if machine.is_up()]
        return sum(self._server(m).node.state.registration(CLUSTER, f"{broker}:1") is not None for m in running)

    def _wire(self, node: Machine, broker: str, name: str) -> Wire:
        assert self._cluster is not None
        key = (node.name, broker, name)
        if key not in self._wires:
            peer = broker if name == "1" else f"{broker}/{name}"
            self._wires[key] = Wire(self._cluster, node, peer, self.world.random("wire"))
        return self._wires[key]

    def _ask(self, node: Machine, broker: str, name: str, what: str, ask: Ask) -> None:
        def done(result: object) -> None:
            self._say(broker, f"{node.name} answers {what}: {answer_text(result)}")

        self._wire(node, broker, name).call(ask, done)
        self.run(0.1)


def version_of(counter: int) -> DataVersion:
    """A data version whose timestamp and counter are ``counter``."""
    return DataVersion(counter, 0, counter)


def registration_of(broker: str, version: int, timeout_ms: int) -> RegisterBroker:
    """The broker's registration; each version has a topic of its own."""
    topics = {"T": QueueData(6, 8, 0, 8), f"T{version}": QueueData(6, 8, 0, 8)}
    return RegisterBroker(CLUSTER, broker, f"{broker}:1", 0, "", None, timeout_ms, False, version_of(version), topics, {}, None)


def freshness_text(freshness: Freshness) -> str:
    """The freshness in the answer to the client."""
    age = f", {freshness.staleness_ms} ms old" if freshness.level is ReadLevel.STALE else ""
    return f"answered {freshness.level} in term {freshness.term}{age}"


def answer_text(result: object) -> str:
    """The text of an answer that a broker receives."""
    if result is None:
        return "none, the connection was closed"
    if isinstance(result, DataVersionAnswer):
        stored = "nothing" if result.stored is None else f"version {result.stored.counter}"
        return f"{'changed' if result.changed else 'unchanged'}, {stored} is registered"
    assert isinstance(result, Result)
    return f"code {result.code}" + (f" ({result.remark})" if result.remark else "")
