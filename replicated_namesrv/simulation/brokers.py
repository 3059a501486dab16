"""``--application routes``: the route state machine and broker liveness on top of Raft, with simulated brokers that start and
fail.

Each broker registers periodically with every node, as RocketMQ's do. Some are *frugal*: they register with one node, every third
of their time-out, and use another node when that one fails. At seeded times a broker changes its topics, restarts, swaps its id
with its partner, unregisters, falls silent with its connections open, or is cut off from a node. A restarted broker keeps its
content, has lost it, or returns at another address. The old process is killed, or stopped with its UNREGISTER_BROKER requests
delayed. In some runs many brokers fall silent, or close their connection, at the same time (a burst). Leaders are lost on purpose
until the faults end. After some bursts, each leader is lost before it has led for the brokers' whole time-out. In addition to the
invariants of Raft, these rules are checked:

- A linearizable read on any node shows each broker that was acknowledged and is still in contact with a majority, with the
  newest acknowledged version or a newer one.
- A broker that was acknowledged by any node within half of its time-out is never dropped.
- A dead broker is dropped within its time-out, plus a third of it for each change of leader. Only time with a leader counts.
- No node shows a broker after the answer to its unregistration, until a registration has reached a node after that answer. This
  holds if the broker was acknowledged under its present id before the unregistration reached a node. (Otherwise registration and
  unregistration are concurrent: either may come first.) Exception: the unregistration named an epoch that had already ended, for
  example because another broker took the id. Then nodes may show a newer registration of the broker itself.
- Two nodes that have applied the same entries have the same digest, entry by entry.
- The leader measures the silence of every registered broker.
- At the end all nodes are equal and show every live broker with its present content, and no dead one. The end is later than the
  longest time-out after the last fault.
"""

from asyncio import Future
from collections.abc import Callable
from random import Random

from replicated_namesrv.errors import NamesrvError
from replicated_namesrv.model import DataVersion, QueueData
from replicated_namesrv.replication.command_kinds import SUSPICION_VERSION
from replicated_namesrv.replication.route_machine import RouteStateMachine
from replicated_namesrv.routes.commands import BrokerRemoval, RegisterBroker, UnregisterBrokers
from replicated_namesrv.routes.results import Result
from replicated_namesrv.service import DataVersionAnswer, Freshness, ReadLevel
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.process_views import Process, RaftView
from replicated_namesrv.simulation.route_cluster import NameServer, RouteCluster, SimulatedConnection, Wire
from replicated_namesrv.simulation.world import MS, SECOND, World, exponential

CLUSTER = "c"
SAME_PROCESS_NS = 1_500 * MS
"""Connections that are opened within this time count as those of one process. So a late ``UNREGISTER_BROKER`` (104) of a process
also unregisters the next process, if that process connected within this time.
"""
REMOVAL_WAIT_NS = 6 * SECOND
"""The longest time for which an ``UNREGISTER_BROKER`` (104) waits at a node."""
SETTLED_NS = 2 * SECOND
"""Time after a restart or a swap of ids in which a node may drop the broker. The check that live brokers are never dropped
ignores the broker during this time."""
TIMEOUTS_MS = (2_500, 4_000, 4_000, 9_000)
BURST_MAX = 60
"""Bound on the number of brokers that end at once: enough to distinguish a removal of many from a removal of a few, and few
enough to cost little."""
LED_SLACK_NS, CHANGE_SLACK_NS = 3 * SECOND, 700 * MS
"""Extra time for a removal, because commits over slow disks take long; and extra time for each change of leader, because requests
are in flight."""
SAMPLE_NS = 100 * MS
Key = tuple[str, str]


class Life:
    """One process of a broker: its content, and the answers that it received."""

    def __init__(self, brokers: "Brokers", broker: "Broker", address: str) -> None:
        self.address, self.key = address, (CLUSTER, address)
        self.began_ns = brokers.world.now_ns
        rng = brokers.world.random(f"{broker.name}/{address}/{broker.lives}")
        self.wires = {m.name: Wire(brokers.cluster, m, f"{broker.name}@{address}", rng) for m in brokers.machines}
        self.acknowledged_ns: dict[str, int] = {}
        """For each node: when the last registration that it acknowledged was sent."""
        self.acknowledged_count = -1
        self.is_running = True
        self.home = rng.randrange(len(brokers.machines))
        """Position of the node with which a frugal broker registers."""
        self.is_leaving = False
        """Whether the broker has begun to unregister."""
        self.has_ended = False
        """Whether the process sends nothing more, although it has not unregistered from all nodes."""
        self.left_ns: int | None = None
        """When an unregistration was first answered."""
        self.left_epoch: int | None = None
        """The epoch that this unregistration named; None: it applies to the epoch at its arrival."""


class Broker:
    """A broker through all its lives."""

    def __init__(self, brokers: "Brokers", number: int) -> None:
        self._brokers, self._world = brokers, brokers.world
        self.name = f"b{number}"
        self.rng: Random = self._world.random(f"broker/{self.name}")
        self.group, self.broker_id = f"g{number // 2}", number % 2
        self.timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self._is_frugal = self.rng.random() < 0.25
        self._period_ns = self.timeout_ms * MS // (3 if self._is_frugal else 5)
        self.count = self._id_count = 0
        """``count``: counter in the data version. ``_id_count``: the counter when this broker began to use its id."""
        self.lives = 0
        self._changed_ns = 0
        self.topics = self._topics()
        self.is_steady = True
        """False from the time at which another process may have sent requests with this broker's id or address."""
        self.alone_ns = 0
        """From this time on, no other process of this broker, or with its id, exists. If it is in the future, an
        ``UNREGISTER_BROKER`` (104) of such a process may still wait at a node."""
        self.life = self._begin(f"10.0.{number}.1:10911")

    def _topics(self) -> dict[str, QueueData]:
        names = {f"T{self.rng.randrange(6)}" for _ in range(4)} | {f"{self.group}.{self.count % 4}", self.group}
        return {name: QueueData(self.rng.choice((8, 16)), 8, 6, 0) for name in sorted(names)}

    def _begin(self, address: str) -> Life:
        self.lives += 1
        self._id_count = self.count
        life = Life(self._brokers, self, address)
        self._world.note(f"{self.name} starts at {address}")
        self._world.after(int(self.rng.random() * self._period_ns) + 1, self._round, life)
        return life

    def command(self) -> RegisterBroker:
        """Its current registration."""
        version = DataVersion(self._changed_ns // MS, 0, self.count)
        return RegisterBroker(
            CLUSTER,
            self.group,
            self.life.address,
            self.broker_id,
            "",
            None,
            self.timeout_ms,
            False,
            version,
            self.topics,
            {},
            None,
        )

    # Actions

    def _round(self, life: Life) -> None:
        if life is not self.life or not life.is_running:
            return
        self._say_to_all(life)
        self._world.after(self._period_ns, self._round, life)

    def _say_to_all(self, life: Life) -> None:
        machines = self._brokers.machines
        for machine in [machines[life.home]] if self._is_frugal else machines:
            self._say(life, machine)

    def _say(self, life: Life, machine: Machine) -> None:
        wire, command, count, sent_ns = life.wires[machine.name], self.command(), self.count, self._world.now_ns
        kind = self.rng.random()
        if kind < 0.15:
            wire.call(lambda server, c: self._heartbeat(server, c, life), lambda _: None)
        if kind < 0.3:
            version = command.data_version
            wire.call(lambda server, c: self._query(server, c, life, version), self._compared)

        def answered(result: object) -> None:
            if isinstance(result, Result) and result.code == 0 and life is self.life:
                life.acknowledged_ns[machine.name] = max(life.acknowledged_ns.get(machine.name, -1), sent_ns)
                life.acknowledged_count = max(life.acknowledged_count, count)
            else:
                self._leave_home(life, machine)

        wire.call(lambda server, c: self._brokers.register(server, c, command), answered)
        self._world.after(3 * SECOND, self._give_up, life, machine, sent_ns, wire.connection)

    def _heartbeat(self, server: NameServer, connection: SimulatedConnection, life: Life) -> None:
        self._brokers.arrived(life.key)
        server.node.heartbeat(*life.key, connection)

    def _query(self, server: NameServer, connection: SimulatedConnection, life: Life, version: DataVersion) -> object:
        self._brokers.arrived(life.key)
        outcome = server.node.query_data_version(*life.key, version, connection)
        if isinstance(outcome, Future):
            outcome.add_done_callback(lambda _: self._brokers.arrived(life.key))
        return outcome

    def _compared(self, answer: object) -> None:
        assert answer is None or isinstance(answer, DataVersionAnswer)

    def _give_up(self, life: Life, machine: Machine, sent_ns: int, connection: SimulatedConnection | None) -> None:
        """Close the request's connection after 3 s without an answer. RocketMQ's brokers do the same after
        ``registerBrokerTimeoutMills`` (5.3: 24 s). A later connection stays."""
        if life.is_running and life is self.life and life.acknowledged_ns.get(machine.name, -1) < sent_ns:
            if life.wires[machine.name].connection is connection:
                life.wires[machine.name].hang_up()
            self._leave_home(life, machine)

    def _leave_home(self, life: Life, machine: Machine) -> None:
        """This node failed; a frugal broker goes to another one in its next round."""
        machines = self._brokers.machines
        if machine is machines[life.home]:
            life.home = (life.home + 1) % len(machines)

    def change(self) -> None:
        """Change the content."""
        if self.life.is_running:
            self.count += 1
            self._changed_ns = self._world.now_ns
            self.topics = self._topics()
            self._say_to_all(self.life)

    def kill(self) -> None:
        """The process ends; its connections are closed."""
        self._world.note(f"{self.name} is killed")
        self.life.is_running = False
        for wire in self.life.wires.values():
            wire.hang_up()

    def fall_silent(self) -> None:
        """Stop all requests but keep the connections open."""
        self._world.note(f"{self.name} falls silent")
        self.life.is_running = False
        for wire in self.life.wires.values():
            wire.forget()

    def stop_late(self) -> None:
        """Stop the process cleanly, but delay some of its ``UNREGISTER_BROKER`` (104) requests until the next process runs."""
        self._world.note(f"{self.name} stops, and its last requests are late")
        life, removal = self.life, BrokerRemoval(CLUSTER, self.life.address, self.group, self.broker_id, None)
        life.is_running = False
        for wire in (wire for wire in life.wires.values() if wire.is_open):
            if self.rng.random() < 0.7:
                wire.hold_back(int(self.rng.random() * 3 * SECOND))
            for _ in range(self.rng.choice((1, 1, 2))):
                wire.call(lambda server, c: server.node.propose(UnregisterBrokers((removal,)), c), lambda _: None)
            wire.hang_up()

    def leave(self) -> None:
        """Send ``UNREGISTER_BROKER`` (104) to every node in turn, then end the process."""
        self._world.note(f"{self.name} unregisters")
        life, left = self.life, list(self._brokers.machines)
        life.is_running, life.is_leaving = False, True
        removal = BrokerRemoval(CLUSTER, life.address, self.group, self.broker_id, None)

        def next_one() -> None:
            if not left or life.has_ended:
                for wire in life.wires.values():
                    wire.hang_up()
                return
            machine = left.pop(0)
            state: dict[str, bool | int | None] = {"over": False, "acknowledged": False, "epoch": None}

            def ask(server: NameServer, connection: SimulatedConnection) -> object:
                state["acknowledged"] = life.acknowledged_count >= self._id_count
                state["epoch"] = server.node.liveness.attachments.registered_epoch(life.key, connection.connection_id)
                return server.node.propose(command, connection)

            def over(result: object) -> None:
                if isinstance(result, Result) and life.left_ns is None and state["acknowledged"]:
                    life.left_ns, life.left_epoch = self._world.now_ns, state["epoch"]
                if not state["over"]:
                    state["over"] = True
                    next_one()

            command = UnregisterBrokers((removal,))
            life.wires[machine.name].call(ask, over)
            self._world.after(SECOND, over, None)

        next_one()

    def restart(self) -> None:
        """Start a new process: with the same content, with a lost disk, or at another address.

        A request to unregister the former process may still wait at a node. If the connection of the request is not older than
        ``SAME_PROCESS_NS``, the request may remove the new process (``replication/DESIGN.md``, "Known limits").
        """
        alone_ns = now_ns = self._world.now_ns
        dialled_ns = max(self.life.began_ns, *(wire.dialled_ns for wire in self.life.wires.values()))
        if self.life.is_running:
            if self.rng.random() < 0.5 and now_ns - dialled_ns > SAME_PROCESS_NS:
                self.stop_late()
            else:
                self.kill()
        elif self.life.is_leaving:  # kill the former process before the next one starts
            self.life.has_ended = True
            for wire in self.life.wires.values():
                wire.hang_up()
            if now_ns - dialled_ns <= SAME_PROCESS_NS:
                alone_ns = now_ns + REMOVAL_WAIT_NS
        address, kind = self.life.address, self.rng.random()
        self.is_steady, self.alone_ns = False, alone_ns
        if kind < 0.3:
            self.count, self._changed_ns = 0, self._world.now_ns
        elif kind < 0.6:
            host, _, port = address.partition(":")
            address = f"{host.rpartition('.')[0]}.{self.lives + 1}:{port}"
        self.life = self._begin(address)

    def switch(self, other: "Broker") -> None:
        """Swap the ids of master and slave."""
        self._world.note(f"{self.name} and {other.name} switch ids")
        self.is_steady = other.is_steady = False
        self.alone_ns = other.alone_ns = self._world.now_ns
        self.broker_id, other.broker_id = other.broker_id, self.broker_id
        for broker in (self, other):
            broker.change()
            broker._id_count = broker.count

    # Expectations

    def is_acknowledged(self) -> bool:
        """Whether the broker must not be dropped: it is alive, no other process uses its id or address, and a node has recently
        acknowledged it.

        An acknowledgement from before a swap of ids does not count: the broker that now has the old id replaces that
        registration.
        """
        life, now_ns = self.life, self._world.now_ns
        since_ns = max(now_ns - self.timeout_ms * MS // 2, life.began_ns, self.alone_ns)
        is_alone = now_ns - self.alone_ns > SETTLED_NS
        return life.is_running and is_alone and max(life.acknowledged_ns.values(), default=-1) >= since_ns

    def is_heard(self) -> bool:
        """Whether the broker must be shown: it is alive and ``is_steady``, and a majority has recently acknowledged it."""
        life, machines = self.life, self._brokers.machines
        since_ns = self._world.now_ns - self.timeout_ms * MS // 2
        lately = sum(1 for at_ns in life.acknowledged_ns.values() if at_ns >= max(since_ns, life.began_ns))
        return life.is_running and self.is_steady and 2 * lately > len(machines)


class DeadBroker:
    """A broker that is dead and still registered."""

    def __init__(self, contact_ns: int) -> None:
        self.contact_ns = contact_ns
        """When the last request of the broker arrived."""
        self.led_ns = self.changes = 0


class Brokers:
    """``simulation.application.Application``."""

    def __init__(
        self, world: World, invariants: Invariants, cluster: RouteCluster, catch_up_ns: int, brokers: int, readers: int
    ) -> None:
        self.world, self.invariants, self.cluster, self.catch_up_ns = world, invariants, cluster, catch_up_ns
        self.machines: list[Machine] = []
        self._rng = world.random("brokers")
        self._count, self._readers = brokers, readers
        self.brokers: list[Broker] = []
        self._is_over = False
        self._quiet_until_ns = 0
        self._digests: dict[int, bytes] = {}
        self._newest = 0
        self._shown: set[Key] = set()
        self._arrived_ns: dict[Key, int] = {}
        """When a registration of this address last reached a node."""
        self._contact_ns: dict[Key, int] = {}
        """When any request of this address last arrived or was answered."""
        self._memos: dict[tuple[int, Key], tuple[RegisterBroker, int]] = {}
        self.drain_ns = 0
        self.disturbs = world.random("disturbance").random() < 0.25
        self.transfer: Callable[[Machine, str | None], None] = lambda machine, peer: None
        """Asks the leader on ``machine`` to transfer leadership."""
        self.is_sheltered: Callable[[], bool] = lambda: False
        """Whether a fault is in force during which nodes have to stay connected."""
        self._dead: dict[Key, DeadBroker] = {}
        self._unwatched: set[tuple[str, str, int]] = set()
        """Registrations whose silence the leader did not measure at the last check."""
        self.chase_until_ns = 0
        """Leaders are lost on purpose until this time."""
        self._led: tuple[str, int] | None = None
        counted = ("registrations", "renewals", "reads", "reads by lease", "reads of a live broker", "brokers dropped")
        self.counts = dict.fromkeys(counted, 0)
        cluster.on_failure = lambda text: invariants.violated("exception", text)
        cluster.on_applied = self._applied

    # Application

    def start_process(self, machine: Machine) -> tuple[Process, RaftView]:
        return self.cluster.start_process(machine)

    def start_clients(self) -> None:
        self.brokers = [Broker(self, number) for number in range(self._count)]
        self.drain_ns = max(broker.timeout_ms for broker in self.brokers) * MS + LED_SLACK_NS + 2 * SECOND
        if self._rng.random() < 0.3:
            self.world.after(int((2 + 10 * self._rng.random()) * SECOND), self._burst)
        self.world.after(SECOND, self._act)
        self.world.after(SECOND, self._chase)
        self.world.after(SECOND, self._sample)
        for _ in range(self._readers):
            self.world.after(SECOND, self._read)

    def stop_clients(self) -> None:
        """Stop all changes of brokers: live brokers continue to register, and dead brokers stay dead."""
        self._is_over = True

    def quiet(self, duration_ns: int) -> None:
        self._quiet_until_ns = self.world.now_ns + duration_ns

    def provoke(self, machine: Machine, duration_ns: int) -> None:
        """Change all live brokers, and read on ``machine`` meanwhile. If all brokers are dead, one starts, because there must be
        a writer."""
        if not any(broker.life.is_running for broker in self.brokers):
            self.brokers[0].restart()
        for broker in self.brokers:
            broker.change()
        for number in range(20):
            self.world.after(duration_ns * number // 20 + 1, self._read_on, machine, self._rng.choice(self.brokers))

    def write_steadily(self, duration_ns: int) -> None:
        """No-op: not used for brokers."""

    def burst(self, machine: Machine) -> None:
        """No-op: the fault is disabled for brokers."""

    def read_finally(self) -> None:
        """No-op: ``check`` looks at the state of every node."""

    # Load

    def _act(self) -> None:
        if self._is_over:
            return
        self.world.after(int(exponential(self._rng) * 700 * MS) + 1, self._act)
        broker, choice = self._rng.choice(self.brokers), self._rng.random()
        if self.world.now_ns < self._quiet_until_ns:
            return
        if not broker.life.is_running:
            if choice < 0.4:
                broker.restart()
        elif choice < 0.5:
            broker.change()
        elif choice < 0.58:
            broker.restart()
        elif choice < 0.64:
            number = self.brokers.index(broker)
            other = self.brokers[number ^ 1] if number ^ 1 < len(self.brokers) else broker
            if other is not broker and other.life.is_running:
                broker.switch(other)
        elif choice < 0.74:
            broker.leave()
        elif choice < 0.8:
            broker.kill()
        elif choice < 0.86:
            broker.fall_silent()
        else:
            wire = broker.life.wires[self._rng.choice(self.machines).name]
            wire.is_cut = True
            self.world.after(int(exponential(self._rng) * 3 * SECOND) + 1, self._mend, wire)

    def _burst(self) -> None:
        """Many brokers register over one connection and then end at the same time: they fall silent, or their connection
        closes."""
        wire = Wire(self.cluster, self._rng.choice(self.machines), "burst", self.world.random("burst"))
        timeout_ms, count = self._rng.choice(TIMEOUTS_MS[:2]), self._rng.randrange(5, BURST_MAX)
        ends = wire.forget if self._rng.random() < 0.5 else wire.hang_up
        topics = {f"T{number}": QueueData(8, 8, 6, 0) for number in range(2)}
        version = DataVersion(1, 0, 1)
        commands = [
            RegisterBroker(CLUSTER, f"x{n}", f"10.9.0.{n}:1", 0, "", None, timeout_ms, False, version, topics, {}, None)
            for n in range(count)
        ]
        self.world.note(f"{count} brokers register with {wire.machine.name}, and end soon")

        def ask(server: NameServer, connection: SimulatedConnection) -> object:
            for command in commands:
                self._register(server, connection, command)
            return None

        wire.call(ask, lambda _: None)
        self.world.after(int((0.5 + self._rng.random()) * SECOND), ends)
        if self._rng.random() < 0.5:  # so each leader is lost just before it would remove the silent brokers
            self._lose_leader(10, int(timeout_ms * MS * (0.6 + 0.3 * self._rng.random())), is_cut=self._rng.random() < 0.5)

    @staticmethod
    def _mend(wire: Wire) -> None:
        wire.is_cut = False

    # Leaders

    def _leader(self) -> NameServer | None:
        """The leader, if it has applied the LEAD command of its term."""
        servers = (self.cluster.servers.get(machine.name) for machine in self.machines if machine.is_up())
        leading = [server for server in servers if server is not None and server.is_alive and server.node.led_term is not None]
        ready = [s for s in leading if s.node.liveness.role is not None and s.node.liveness.role.silence is not None]
        return max(ready, key=lambda server: server.node.led_term or 0, default=None)

    def _chase(self) -> None:
        """Lose leaders one after the other, or cut all links for some seconds. Repeat this until ``chase_until_ns``."""
        left_ns = self.chase_until_ns - self.world.now_ns
        if left_ns <= 0:
            return
        self.world.after(int(exponential(self._rng) * 8 * SECOND) + 1, self._chase)
        if self.world.now_ns >= self._quiet_until_ns and len(self.machines) > 1:
            kind = self._rng.random()
            if kind < 0.25:
                self.world.note("all links are cut")
                self._cut(self.machines, min(left_ns, int((1.5 + 4 * self._rng.random()) * SECOND)))
            else:
                pause_ns = int((0.3 if self._rng.random() < 0.5 else 1.5) * SECOND + 2 * self._rng.random() * SECOND)
                self._lose_leader(self._rng.randint(2, 6), pause_ns, is_cut=kind < 0.6)

    def _lose_leader(self, times: int, pause_ns: int, is_cut: bool) -> None:
        leader = self._leader()
        left_ns = self.chase_until_ns - self.world.now_ns
        if left_ns <= 0 or not times:
            return
        if leader is not None and is_cut:
            self._cut([leader.machine], min(left_ns, 700 * MS))
        elif leader is not None:
            self.transfer(leader.machine, None)
        self.world.after(pause_ns, self._lose_leader, times - 1, pause_ns, is_cut)

    def _cut(self, machines: list[Machine], duration_ns: int) -> None:
        if self.is_sheltered():
            return
        network = machines[0].network
        assert network is not None
        names = {machine.name for machine in machines}
        links = [link for link in network.links if names.intersection(link)]
        network.cut(links, hold=False)
        self.world.after(duration_ns, network.mend, links)

    # The dead

    def _sample(self) -> None:
        """Add the time with a leader that runs for every broker that is dead and still registered."""
        self.world.after(SAMPLE_NS, self._sample)
        leader = self._leader()
        if leader is None or leader.machine.pauses:
            return
        led = leader.machine.name, leader.node.led_term or 0
        is_change, self._led = led != self._led, led
        state, machine = leader.node.state, leader.node._machine
        self._check_watched(leader)
        living = {broker.life.key for broker in self.brokers if broker.life.is_running}
        for registration in state.registrations():
            key = registration.cluster_name, registration.broker_addr
            if key in living or machine.command_version < SUSPICION_VERSION:
                self._dead.pop(key, None)
                continue
            dead = self._dead.get(key)
            if dead is None or dead.contact_ns != self._contact_ns.get(key, 0):
                self._dead[key] = dead = DeadBroker(self._contact_ns.get(key, 0))
            dead.led_ns += SAMPLE_NS
            dead.changes += is_change
            timeout_ns = registration.heartbeat_timeout_ms * MS
            bound_ns = timeout_ns + LED_SLACK_NS + dead.changes * (timeout_ns // 3 + CHANGE_SLACK_NS)
            if dead.led_ns > bound_ns:
                text = f"{registration.broker_addr} is dead and registered after {dead.led_ns / SECOND:.1f} s with a leader"
                self.invariants.violated("dead brokers are removed in time", f"{text} and {dead.changes} leaders")
        for key in [key for key in self._dead if state.registration(*key) is None]:
            del self._dead[key]

    def _check_watched(self, leader: NameServer) -> None:
        """Check that the leader measures the silence of every registered broker. It is a violation if two checks in a row find
        the same registration, because the leader learns of a registration in a later turn."""
        role = leader.node.liveness.role
        silence = None if role is None else role.silence
        unwatched = (
            {
                (registration.cluster_name, registration.broker_addr, registration.epoch)
                for registration in leader.node.state.registrations()
                if not silence.watches((registration.cluster_name, registration.broker_addr))
            }
            if silence is not None
            else set()
        )
        lasting = unwatched & self._unwatched
        self._unwatched = unwatched
        if lasting:
            self.invariants.violated("silence is measured", f"{leader.machine.name} measures no silence of {sorted(lasting)}")

    def arrived(self, key: Key) -> None:
        """Record that a request of this broker arrived at a node, or was answered."""
        self._contact_ns[key] = self.world.now_ns

    def register(self, server: NameServer, connection: SimulatedConnection, command: RegisterBroker) -> object:
        """``REGISTER_BROKER`` (103) at a node, with a memo like the server's."""
        outcome = self._register(server, connection, command)
        if isinstance(outcome, Future):
            outcome.add_done_callback(lambda _: self.arrived((command.cluster_name, command.broker_addr)))
        return outcome

    def _register(self, server: NameServer, connection: SimulatedConnection, command: RegisterBroker) -> object:
        key = (command.cluster_name, command.broker_addr)
        self._arrived_ns[key] = self.world.now_ns
        self.arrived(key)
        self.counts["registrations"] += 1
        slot = (id(server), key)
        generation = server.node.state.group_generation(command.broker_name)
        if self._memos.get(slot) == (command, generation):
            renewed = server.node.renew_unchanged(*key, connection)
            if isinstance(renewed, Future):
                self.counts["renewals"] += 1
                return or_else(renewed, lambda received: server.node.register(command, connection, received))
        outcome = server.node.register(command, connection)
        if isinstance(outcome, Future):
            outcome.add_done_callback(lambda future: self._remember(server, slot, command, generation, future))
        return outcome

    def _remember(
        self,
        server: NameServer,
        slot: tuple[int, Key],
        command: RegisterBroker,
        generation: int,
        future: "Future[Result]",
    ) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        result, state = future.result(), server.node.state
        same_generation = state.group_generation(command.broker_name) == generation
        if not result.changed and result.epoch is not None and same_generation:
            self._memos[slot] = (command, generation)

    # Reads

    def _read(self) -> None:
        self.world.after(int(exponential(self._rng) * (300 if self._is_over else 80) * MS) + 1, self._read)
        self._read_on(self._rng.choice(self.machines), self._rng.choice(self.brokers))

    def _read_on(self, machine: Machine, broker: Broker) -> None:
        server = self.cluster.servers.get(machine.name)
        if server is not None and server.is_alive:
            machine.enqueue(lambda process: self._ask(server, broker))

    def _ask(self, server: NameServer, broker: Broker) -> None:
        if not server.is_alive or not server.serving:
            return
        life, was_heard, count, began_ns = broker.life, broker.is_heard(), broker.life.acknowledged_count, self.world.now_ns
        had_left, fence = life.left_ns is not None, life.left_epoch
        level = ReadLevel.LEASE if self._rng.random() < 0.5 else ReadLevel.LINEARIZABLE
        with server.loop.running():
            try:
                barrier = server.node.barrier(level, None)
            except NamesrvError:
                return

        def read(future: "Future[Freshness]") -> None:
            if not future.cancelled() and future.exception() is None and life is broker.life:
                looked(future.result())

        def looked(freshness: Freshness) -> None:
            self.counts["reads"] += 1
            self.counts["reads by lease"] += freshness.level is ReadLevel.LEASE
            held = server.node.state.registration(*life.key)
            where = f"a {freshness.level} read on {server.machine.name}, begun at {began_ns / SECOND:.3f} s,"
            if was_heard and broker.is_heard():
                self.counts["reads of a live broker"] += 1
                if held is None:
                    self.invariants.violated("registrations are shown", f"{where} does not show {broker.name} ({life.address})")
                elif held.data_version.counter < count:
                    shown = held.data_version.counter
                    text = f"{where} shows {broker.name} in version {shown}; {count} was acknowledged"
                    self.invariants.violated("registrations are shown", text)
            is_left = had_left and held is not None and (fence is None or held.epoch <= fence)
            if is_left and self._arrived_ns.get(life.key, 0) <= (life.left_ns or 0):
                text = f"{where} shows {broker.name} ({life.address}), whose unregistration was answered"
                self.invariants.violated("unregistered brokers are not shown", text)

        if isinstance(barrier, Future):
            barrier.add_done_callback(read)
        else:
            looked(barrier)

    # Invariants

    def _applied(self, server: NameServer, index: int, state: RouteStateMachine) -> None:
        digest = state.digest()
        if self._digests.setdefault(index, digest) != digest:
            self.invariants.violated("equal states", f"{server.machine.name} has another state than others after entry {index}")
        if index <= self._newest:
            return
        self._newest = index
        shown = {(r.cluster_name, r.broker_addr) for r in state.state.registrations()}
        dropped, self._shown = self._shown - shown, shown
        if dropped:
            self.counts["brokers dropped"] += len(dropped)
            for broker in self.brokers:
                if broker.life.key in dropped and (broker.is_acknowledged() or broker.is_heard()):
                    text = f"entry {index} drops {broker.name} ({broker.life.address}), which was acknowledged recently"
                    self.invariants.violated("live brokers stay registered", text)

    def check(self) -> None:
        """Check that all nodes are equal and show the live brokers."""
        states = {machine.name: self.cluster.servers[machine.name].node.state for machine in self.machines}
        digests = {name: state.digest().hex() for name, state in states.items()}
        if len(set(digests.values())) > 1:
            self.invariants.violated("all nodes equal", f"digests differ at the end: {digests}")
        for name, state in states.items():
            for broker in self.brokers:
                self._check_broker(name, broker, state.registration(*broker.life.key))
            living = {broker.life.key for broker in self.brokers if broker.life.is_running}
            for registration in state.registrations():
                if (registration.cluster_name, registration.broker_addr) not in living:
                    text = f"{name} still shows {registration.broker_addr}, which is dead"
                    self.invariants.violated("dead brokers are removed", text)

    def _check_broker(self, name: str, broker: Broker, held: object) -> None:
        if not broker.life.is_running:
            return
        command = broker.command()
        shown = self.cluster.servers[name].node.state
        if held is None:
            self.invariants.violated("registrations are shown", f"at the end {name} does not show {broker.name}")
        elif shown.unchanged_result(command) is None:
            text = f"at the end {name} shows another registration of {broker.name} than {broker.name} sent: {held}"
            self.invariants.violated("registrations are shown", text)


def or_else(renewed: "Future[Result | int]", register: Callable[[int], object]) -> "Future[object]":
    """The result of the renewal. If the renewal returns a revision instead, the result of the registration, received at this
    revision."""
    done: Future[object] = renewed.get_loop().create_future()

    def settle(future: "Future[object]") -> None:
        if future.cancelled():
            done.cancel()
        elif (error := future.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(future.result())

    def ended(future: "Future[Result | int]") -> None:
        if future.cancelled() or future.exception() is not None or not isinstance(received := future.result(), int):
            settle(future)  # type: ignore[arg-type]  # a result is an object
            return
        outcome = register(received)
        if isinstance(outcome, Future):
            outcome.add_done_callback(settle)
        else:
            done.set_result(outcome)

    renewed.add_done_callback(ended)
    return done
