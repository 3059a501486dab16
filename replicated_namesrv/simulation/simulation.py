"""One run: a cluster, its clients and its faults under one seed, from the first boot to the final checks.

Phases:

1. Faults strike until ``duration``. In this time there must be a leader whenever there can be one (``LeaderWatch``). In some
   runs one direction of links is cut for minutes, and this phase lasts until the cut ends.
2. Everything is healed, except that in half of the runs a minority of the machines stays down. If enough voters are left, a
   leader must commit new entries within the application's bound.
3. The minority is started. Each node must catch up, and learners must be promoted, while the clients continue.
4. The clients stop, all requests must end, every node is read once more, and the application checks the history.
5. If the application ``disturbs``, a follower is cut off and returns, twice. The leader must keep its term.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from replicated_namesrv.raft.members import Kind
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.simulation.application import Application, Ledger
from replicated_namesrv.simulation.fault_schedule import LONG, Fault, plan_faults, plan_long_faults, plan_rare_faults
from replicated_namesrv.simulation.faults import Nemesis
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.leader_watch import LOOK_NS, LeaderWatch
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.member_operator import MemberOperator
from replicated_namesrv.simulation.network import CONNECT_NS, Network
from replicated_namesrv.simulation.world import MS, SECOND, World

_FAR_FACTOR = 2
"""Factor of the time limit for catching up if links are slow."""
Build = Callable[["Simulation"], Application]
"""Creates the application of a run. It may draw from the world's randomness and set the nemesis's ``transfer``."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All parameters of a run."""

    seed: int
    nodes: int = 3
    duration_s: float = 30.0
    """Virtual time in which faults strike."""
    subject: str = "raft"
    """``raft``, or ``plain`` for unmodified PySyncObj."""
    off: str | None = None
    """Name of the defence that is switched off; None: none is."""
    clients: int | None = None
    """Number of clients. None: it is drawn from the seed."""
    faults: tuple[int, ...] | None = None
    """Only these faults of the schedule. None: all."""
    application: str = "registers"
    """The application on the shipped core: ``registers``, or ``routes`` with brokers."""
    spares: int = 0
    """Machines that an operator adds as members and removes; 0: the members do not change."""

    def command(self) -> str:
        """The command line that repeats this run."""
        parts = [f"namesrv simulate --seeds {self.seed}:{self.seed + 1} --nodes {self.nodes} --duration-s {self.duration_s:g}"]
        if self.subject == "plain":
            parts.append("--plain")
        if self.application != "registers":
            parts.append(f"--application {self.application}")
        if self.spares:
            parts.append(f"--spares {self.spares}")
        if self.off is not None:
            parts.append(f"--off {self.off}")
        if self.clients is not None:
            parts.append(f"--clients {self.clients}")
        if self.faults is not None:
            parts.append(f"--faults {','.join(map(str, self.faults)) or 'none'}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run."""

    scenario: Scenario
    violation: str | None
    """Name of the broken invariant."""
    text: str
    """Details of the violation."""
    violated_at_s: float
    digest: str
    """Digest of the whole trace."""
    catch_up_s: float
    """Time from the last heal until every node had caught up."""
    virtual_s: float
    wall_s: float
    counts: dict[str, int]
    """Counts of elections, truncations, messages, outcomes, faults …"""
    faults: tuple[Fault, ...]
    lines: tuple[str, ...] = field(repr=False, default=())
    """The readable trace, if requested."""


def describe_message(message: object) -> str:
    """One short line for the readable trace. Long bytes are shown as their length; incarnations are left out."""
    fields = message._asdict() if isinstance(message, tuple) and hasattr(message, "_asdict") else {"": message}
    shown = []
    for name, value in fields.items():
        if name not in ("source", "destination"):
            shown.append(f"{name} {f'{len(value)} bytes' if isinstance(value, bytes) else value}")
    return f"{type(message).__name__}({', '.join(shown)})"


class Simulation:
    """A cluster in a world."""

    def __init__(
        self, scenario: Scenario, build: "Build", clock_drift_max: Callable[[World], float], *, readable: bool = False
    ) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, readable)
        self.invariants = Invariants(self.world)
        self.invariants.single_node = scenario.nodes == 1
        self.ledger = Ledger(self.invariants)
        self.names = [f"n{number}" for number in range(1, scenario.nodes + 1)]
        """The founders."""
        self.machines = [
            Machine(self.world, f"n{number}", self.invariants, lambda machine: self._application.start_process(machine))
            for number in range(1, scenario.nodes + scenario.spares + 1)
        ]
        self.invariants.founders = frozenset(self.names)
        self.network = Network(self.world, self.machines, describe_message)
        mean_sync_ms = self.world.random("disks").choice((0.2, 1.0, 15.0))
        for machine in self.machines:
            machine.network, machine.disk.mean_ms = self.network, mean_sync_ms
        self.nemesis = Nemesis(self.world, self.machines, self.network, clock_drift_max(self.world))
        self.nemesis.watch_joins = self.invariants.watch_joins
        self.may_be_far = False
        """Whether the drawn settings allow slow links. With windows of one message, no node would catch up in time over slow
        links."""
        self.always: Collection[str] = ()
        """Kinds of rare faults that this run must have; set by ``build``."""
        self.may_rejoin = False
        """Whether a node may get a new disk at the end, while clients write steadily; set by ``build``."""
        self._application = build(self)
        self.nemesis.burst = self._application.burst
        self.nemesis.provoke, self.nemesis.quiet = self._application.provoke, self._application.quiet
        self._leader_watch = LeaderWatch(
            self.machines, self.network, self.invariants, self._application.catch_up_ns, members_change=scenario.spares > 0
        )
        self.nemesis.may_vote = self._leader_watch.voters
        self.network.may_delay_election = self._leader_watch.may_delay_election
        self._operator: MemberOperator | None = None
        if scenario.spares:
            self._operator = MemberOperator(self.world, self.machines, self.invariants, self.ledger, self.nemesis)
            self.nemesis.voting, self.nemesis.is_settled = self._leader_watch.voters, self._is_settled
        self.nemesis.busy_until_ns = end_ns = int(scenario.duration_s * SECOND)
        planned = plan_faults(self.world, end_ns, self.nemesis.kinds())
        if LONG not in self.nemesis.spared:
            planned += plan_long_faults(self.world, end_ns)
        planned += plan_rare_faults(self.world, end_ns, self.always)
        self.faults = tuple(fault for fault in planned if scenario.faults is None or fault.number in scenario.faults)
        self._reached: set[str] = set()
        """Names of the sizes that were at least at nine tenths of their bounds; ``log`` if a log accepted no more entries."""
        self.catch_up_s = 0.0
        self.minority_down = self.went_on = self.rejoined = 0
        """``minority_down``: 1 if a minority stayed down. ``went_on``: 1 if the other nodes had to commit."""

    def members(self) -> list[Machine]:
        """The machines of all members, by the committed configuration."""
        names = self.invariants.member_names()
        return [machine for machine in self.machines if machine.name in names]

    def _is_settled(self) -> bool:
        """True if no change of the members is in progress."""
        nodes = [machine.raft for machine in self.members() if isinstance(machine.raft, RaftNode)]
        return all(
            not node.configuration.last_change and all(m.kind is not Kind.LEARNER for m in node.configuration.members.values())
            for node in nodes
        )

    def _stopped(self) -> bool:
        if self.network.flood is not None and self.invariants.violation is None:
            self.invariants.violated("no flood", self.network.flood)
        return self.invariants.violation is not None

    def _run(self, duration_ns: int) -> None:
        if not self._stopped():
            self.world.run_until(self.world.now_ns + duration_ns, self._stopped)

    def _run_watched(self, duration_ns: int) -> None:
        """Check during the run that there is a leader whenever there can be one."""
        end_ns = self.world.now_ns + duration_ns
        while self.world.now_ns < end_ns and not self._stopped():
            self._run(min(LOOK_NS, end_ns - self.world.now_ns))
            if not self._stopped():
                self._leader_watch.look(self.world.now_ns)
                self._look_at_memory()

    def _look_at_memory(self) -> None:
        for machine in self.machines:
            if isinstance(machine.raft, RaftNode) and machine.raft.log.is_full:
                self._reached.add("log")
            if machine.raft is not None:
                self._reached.update(name for name, (size, bound) in machine.raft.memory().items() if 10 * size >= 9 * bound)

    def run(self) -> RunResult:
        """Run to the end or to the first violation."""
        started = time.perf_counter()
        self.nemesis.draw_clock_rates()
        for machine in self.machines:
            machine.start()
        self._application.start_clients()
        if self._operator is not None:
            self._operator.start()
        self.nemesis.schedule(self.faults)
        self.nemesis.stop_minority()
        self._run_watched(int(self.scenario.duration_s * SECOND))
        if self._operator is not None:
            self._operator.stop()
        self._run_watched(max((fault.end_ns for fault in self.faults if fault.kind == LONG), default=0) - self.world.now_ns)
        if not self._stopped():
            self.nemesis.heal()
            self._commit_without_minority()
            self.nemesis.start_minority()
            self._catch_up()
        self._application.stop_clients()
        self._run(self._application.drain_ns)
        if not self._stopped():
            self._application.read_finally()
        self._run(5 * SECOND)
        if not self._stopped():
            self._application.check()
        if self.scenario.nodes > 1 and self._application.disturbs and not self._stopped():
            self._disturb()
        return self._result(time.perf_counter() - started)

    def _catch_up(self) -> None:
        """Check that within the bound every node has the entries committed at the heal and knows the one leader."""
        self._connect()
        rejoins = self._rejoin_during_writes()
        healed_ns, target = self.world.now_ns, self.invariants.highest_committed
        end_ns = healed_ns + self._application.catch_up_ns * (_FAR_FACTOR if rejoins or self._write_from_afar() else 1)
        while self.world.now_ns < end_ns and not self._stopped():
            if self._lag(target) is None:
                break
            self._run(10 * MS)
        self.catch_up_s = (self.world.now_ns - healed_ns) / SECOND
        lag = self._lag(target)
        if lag is not None:
            self.invariants.violated("catch-up", f"{self.catch_up_s:.1f} s after the last heal {lag}")
        self._run(end_ns - self.world.now_ns)
        self.network.late_ms.clear()

    def _connect(self) -> None:
        """Wait until all processes are connected. The time limits of the following checks do not include this time."""
        end_ns = self.world.now_ns + CONNECT_NS
        while self.world.now_ns < end_ns and not self._stopped() and not self._is_connected():
            self._run(10 * MS)

    def _is_connected(self) -> bool:
        is_opening = any(machine.process is not None and not machine.is_up() for machine in self.machines)
        return self.network.is_connected and not is_opening

    def _rejoin_during_writes(self) -> bool:
        """In some runs, a node gets a new disk and its links are slow, while writes go on for the whole time limit."""
        rng = self.world.random("rejoin")
        if not (self.may_be_far and self.may_rejoin) or rng.random() < 0.4:
            return False
        end_ns = self.world.now_ns + 3 * SECOND
        while not self.nemesis.may_lose_disk():
            if self.world.now_ns >= end_ns or self._stopped():
                return False
            self._run(10 * MS)
        leader = self.nemesis.leader()
        machine = rng.choice([machine for machine in self.members() if machine is not leader])
        self.nemesis.replace_disk(machine)
        delays = {link: rng.choice((10, 25)) for link in self.network.links if machine.name in link}
        if rng.random() < 0.5:  # one-sided latency
            delays = {link: delay for link, delay in delays.items() if link[0] == machine.name}
        self.network.late_ms.update(delays)
        self._application.write_steadily(_FAR_FACTOR * self._application.catch_up_ns)
        self.rejoined += 1
        return True

    def _write_from_afar(self) -> bool:
        """In some runs, make the links as slow as links between data centres, and let writes come one after the other."""
        rng = self.world.random("catch-up")
        if not self.may_be_far or rng.random() < 0.7:
            return False
        self.network.late_ms.update(dict.fromkeys(self.network.links, rng.choice((2, 10, 25))))
        self._application.provoke(rng.choice(self.machines), SECOND)
        return True

    def _commit_without_minority(self) -> None:
        """If enough voters are up, and one of them has all committed entries, check that they elect a leader and commit more.

        The bound starts when the last late message that may delay an election has arrived: an append of the machine that is down
        counts as contact with the leader."""
        if not self.nemesis.down:
            return
        self.minority_down += 1
        self._connect()
        target = self.invariants.highest_committed
        end_ns = max(self.world.now_ns, self.network.last_repeat_ns) + self._application.catch_up_ns
        able = self._able(target)
        if (up := next((machine for machine in self.members() if machine not in self.nemesis.down), None)) is None:
            return  # the members changed while the processes connected, and all members are down now
        self._application.provoke(up, SECOND // 4)
        while self.world.now_ns < end_ns and not self._stopped() and self.invariants.highest_committed <= target:
            self._run(10 * MS)
        able = able and self._able(target)  # a process whose disk was rolled back or copied may have rejoined in this time
        if able and self.invariants.highest_committed <= target:
            down = ", ".join(machine.name for machine in self.nemesis.down)
            self.invariants.violated(
                "liveness",
                f"{down} stays down; the others could elect a leader and commit, but nothing was committed after {target}",
            )
        self.went_on += able

    def _able(self, target: int) -> bool:
        """Whether a majority of the voters of the committed configuration is up, and one of them has all committed entries."""
        voters = self._leader_watch.voters()
        enough = self._leader_watch.suffices([machine.name for machine in voters])
        return enough and any(self._leader_watch.has(machine, target) for machine in voters)

    def _disturb(self) -> None:
        """Check that a follower that can send but not receive, and one that returns from isolation, do not depose the leader."""
        leader, followers = None, []
        for machine in self.machines:
            if machine.raft is not None and machine.raft.role == "leader":
                leader = machine
            elif machine in self._leader_watch.voters():
                followers.append(machine)
        if leader is None or leader.raft is None:
            self.invariants.violated("catch-up", "there is no leader at the end")
            return
        others = [machine.name for machine in (leader, *followers[1:])]
        if not followers or not self._leader_watch.suffices(others):
            return  # there is only one voter, or there is no majority without the node that is cut off
        term, name = leader.raft.term, followers[0].name
        links = [link for link in self.network.links if name in link]
        for what, cut in (("was deaf", [link for link in links if link[1] == name]), ("came back from isolation", links)):
            self.network.cut(cut, hold=False)
            self._run(self._application.catch_up_ns)
            self.network.mend(cut)
            self._run(self._application.catch_up_ns)
            if self._stopped():
                return
            if leader.raft is None or leader.raft.role != "leader" or leader.raft.term != term:
                self.invariants.violated("no disruption", f"{name} {what} and deposed {leader.name}, leader of term {term}")
                return

    def _lag(self, target: int) -> str | None:
        members = self.members()
        leaders = {machine.raft.leader_id if machine.raft else None for machine in members}
        if len(leaders) > 1 or None in leaders:
            return "the nodes do not know one leader: " + ", ".join(
                f"{machine.name} {'is down' if machine.raft is None else f'regards {machine.raft.leader_id} as leader'}"
                for machine in members
            )
        for machine in members:
            if machine.raft is not None and machine.raft.applied_index < target:
                return f"{machine.name} has applied {machine.raft.applied_index} of {target}"
            if machine.raft is not None and machine.raft.role == "learner":
                return f"{machine.name} has not been promoted"
        return None

    def _result(self, wall_s: float) -> RunResult:
        violation = self.invariants.violation
        self.nemesis.judge_all()
        counts = {
            "events": self.world.events,
            "messages": self.network.sent,
            "elections": self.invariants.elections,
            "truncations": self.invariants.truncations,
            "snapshots installed": self.invariants.restores,
            "entries committed": len(self.invariants.committed),
            "minority down": self.minority_down,
            "minority down, others able": self.went_on,
            "rejoined during writes": self.rejoined,
            "bounds judged for a leader": self._leader_watch.judged,
            "boots": sum(machine.boots for machine in self.machines),
            **{f"tolerated {name}": count for name, count in self.invariants.tolerated.items()},
            **{f"fault {kind}": count for kind, count in sorted(self.nemesis.struck.items())},
            **{f"bound reached {name}": 1 for name in sorted(self._reached)},
            **dict(sorted(self.ledger.outcomes.items())),
            **self._application.counts,
        }
        return RunResult(
            self.scenario,
            None if violation is None else violation.name,
            "" if violation is None else violation.text,
            (self.world.now_ns if violation is None else violation.at_ns) / SECOND,
            self.world.trace.digest(),
            self.catch_up_s,
            self.world.now_ns / SECOND,
            wall_s,
            counts,
            self.faults,
            tuple(self.world.trace.lines),
        )
