"""Name servers in virtual time: the shipped code, a network that tests can cut, and brokers that send what a test wants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.replicated_node import ReplicatedNode
from replicated_namesrv.routes.commands import BrokerRemoval, Command, RegisterBroker, UnregisterBrokers
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Network
from replicated_namesrv.simulation.route_cluster import NameServer, RouteCluster, SimulatedConnection, Wire, silenced
from replicated_namesrv.simulation.world import MS, SECOND, World

TIMEOUT_MS = 4_000
KEY = ("c", "a:1")
STEP_NS = 5 * MS
Ask = Callable[[NameServer, SimulatedConnection], object]


class Said:
    """One request and its result."""

    def __init__(self) -> None:
        self.ended = False
        self.result: Any = None
        """None after the end: the connection was closed and there was no answer."""


def registration(counter: int = 1, timeout_ms: int = TIMEOUT_MS, address: str = KEY[1], broker_id: int = 0) -> RegisterBroker:
    """A registration of the broker ``a``. Each counter has a topic of its own."""
    topics = {f"T{counter}": QueueData(8, 8, 6, 0), "T": QueueData(8, 8, 6, 0)}
    version = DataVersion(counter, 0, counter)
    return RegisterBroker("c", "a", address, broker_id, "", None, timeout_ms, False, version, topics, {}, None)


class Cluster:
    """A cluster that has started and serves. ``wire(node)`` is a broker's connection to a node, opened when it is first used."""

    def __init__(self, nodes: int, flags: dict[str, str]) -> None:
        self.world = World(1)
        self.invariants = Invariants(self.world)
        names = [f"n{number + 1}" for number in range(nodes)]
        self.invariants.founders = frozenset(names)
        self.servers = RouteCluster(self.world, names, RaftConfig(), flags)
        self.servers.on_failure = lambda text: self.invariants.violated("exception", text)
        self.machines = {
            name: Machine(self.world, name, self.invariants, lambda machine: self.servers.start_process(machine))
            for name in names
        }
        self.network = Network(self.world, self.machines.values(), str)
        for machine in self.machines.values():
            machine.network = self.network
            machine.start()
        self.until(lambda: all(self.servers.servers[name].serving for name in names), "all nodes serve")
        self.run(1)

    # Time

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now_ns + int(seconds * SECOND))
        assert self.invariants.violation is None, self.invariants.violation

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0) -> float:
        """Run until ``condition`` holds. Returns the seconds of virtual time."""
        began_ns = self.world.now_ns
        while not condition():
            assert self.world.now_ns - began_ns < seconds * SECOND, f"not within {seconds} virtual seconds: {what}"
            self.world.run_until(self.world.now_ns + STEP_NS)
        assert self.invariants.violation is None, self.invariants.violation
        return (self.world.now_ns - began_ns) / SECOND

    # Nodes

    def node(self, name: str) -> ReplicatedNode:
        return self.servers.servers[name].node

    @property
    def nodes(self) -> list[ReplicatedNode]:
        return [self.node(name) for name, machine in self.machines.items() if machine.is_up()]

    def leader(self) -> str:
        self.until(lambda: len(self._leaders()) == 1, "one leader")
        return self._leaders()[0]

    def _leaders(self) -> list[str]:
        return [n for n, machine in self.machines.items() if machine.is_up() and self.node(n).led_term is not None]

    def followers(self) -> list[str]:
        leader = self.leader()
        return [name for name in self.machines if name != leader]

    def serial(self) -> int:
        """Commands that the leader has applied."""
        return self.node(self.leader())._machine.serial

    def is_shown(self, name: str | None = None) -> bool:
        nodes = self.nodes if name is None else [self.node(name)]
        return all(node.state.registration(*KEY) is not None for node in nodes)

    def is_gone(self) -> bool:
        return all(node.state.registration(*KEY) is None for node in self.nodes)

    def counters(self) -> set[int]:
        found = [node.state.registration(*KEY) for node in self.nodes]
        return {-1 if held is None else held.data_version.counter for held in found}

    def isolate(self, name: str) -> Callable[[], None]:
        """Cut a node off from the others. Returns a function that ends the cut."""
        links = [link for link in self.network.links if name in link]
        self.network.cut(links, hold=False)
        return lambda: self.network.mend(links)

    def transfer(self, to: str) -> None:
        server = self.servers.servers[self.leader()]
        server.machine.enqueue(lambda process: server.raft.node.transfer_leadership(to, lambda handed_over: None))
        self.until(lambda: self._leaders() == [to], f"{to} leads")

    def remove_member(self, name: str) -> None:
        """Remove a follower from the cluster."""
        server, outcomes = self.servers.servers[self.leader()], list[Outcome]()
        change = MemberChange("remove", name)
        server.machine.enqueue(lambda process: server.raft.node.change_member(change, outcomes.append))
        self.until(lambda: bool(outcomes), "an outcome")
        assert isinstance(outcomes[0], Committed), outcomes
        self.until(lambda: not self.servers.servers[name].serving, "the removed node serves no more")

    def defend(self, defences: LivenessDefences) -> None:
        """Start all nodes anew with these rules of liveness."""
        self.servers.defences = defences
        for machine in self.machines.values():
            machine.crash(power_loss=False)
            machine.start()
        self.until(lambda: all(server.serving for server in self.servers.servers.values()), "all nodes serve")
        self.run(1)

    # Brokers

    def wire(self, name: str) -> Wire:
        return Wire(self.servers, self.machines[name], "broker", Random(1))

    def say(self, wire: Wire, ask: Ask) -> Said:
        said = Said()

        def done(result: object) -> None:
            said.ended, said.result = True, result

        wire.call(ask, done)
        return said

    def ask(self, wire: Wire, ask: Ask) -> Any:
        """The answer; None if the connection was closed instead."""
        said = self.say(wire, ask)
        self.until(lambda: said.ended, "an answer")
        return said.result

    def register(self, wire: Wire, command: RegisterBroker) -> Any:
        return self.ask(wire, lambda server, c: server.node.register(command, c))

    def propose(self, wire: Wire, command: Command) -> Any:
        return self.ask(wire, lambda server, c: server.node.propose(command, c))

    def unregister(self, wire: Wire) -> Any:
        return self.propose(wire, UnregisterBrokers((BrokerRemoval(*KEY, "a", 0, None),)))

    def heartbeat(self, wire: Wire) -> None:
        self.ask(wire, lambda server, c: server.node.heartbeat(*KEY, c))

    def query(self, wire: Wire, version: DataVersion) -> Any:
        return self.ask(wire, lambda server, c: server.node.query_data_version(*KEY, version, c))


@contextmanager
def virtual_cluster(nodes: int = 3, **flags: str) -> Iterator[Cluster]:
    """A cluster; ``flags`` are settings by name in the properties file."""
    with silenced():
        yield Cluster(nodes, flags)
