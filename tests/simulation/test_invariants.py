"""The invariants detect each violation: scripted nodes break one rule each."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from replicated_namesrv.raft.interfaces import Committed, Work
from replicated_namesrv.raft.memory_bounds import Bounded
from replicated_namesrv.raft.payloads import NO_OP
from replicated_namesrv.simulation.application import Ledger, RegisterApplication, RegisterCommand
from replicated_namesrv.simulation.invariants import Invariants
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.network import Network
from replicated_namesrv.simulation.simulation import Scenario, Simulation
from replicated_namesrv.simulation.world import MS, SECOND, World


class ScriptedNode:
    """A node with the log and the role that a test gives it (``RaftView``)."""

    def __init__(self) -> None:
        self.role, self.term = "follower", 0
        self.leader_id: str | None = None
        self.commit_index = self.applied_index = 1
        self.first_index = self.incarnation = 1
        self.durable_index = 1
        self.failed: BaseException | None = None
        self.stopped = False
        self.sizes: dict[str, Bounded] = {}
        self.log: list[tuple[int, bytes]] = [(0, b"")]

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.log) - 1

    def _at(self, index: int) -> tuple[int, bytes] | None:
        at = index - self.first_index
        return self.log[at] if 0 <= at < len(self.log) else None

    def memory(self) -> dict[str, Bounded]:
        return self.sizes

    def term_at(self, index: int) -> int | None:
        entry = self._at(index)
        return None if entry is None else entry[0]

    def entry_at(self, index: int) -> bytes | None:
        entry = self._at(index)
        return None if entry is None else entry[1]


class ScriptedMachine:
    """The machine of a scripted node (``MachineView``)."""

    def __init__(self, name: str, raft: ScriptedNode) -> None:
        self.name = self.speaks_as = name
        self.raft: ScriptedNode | None = raft
        self.life: object = object()
        self.ran_since_ns = 0


class Cluster:
    """Two scripted nodes under watch."""

    def __init__(self) -> None:
        self.world = World(0)
        self.invariants = Invariants(self.world)
        self.nodes = [ScriptedNode(), ScriptedNode()]
        self.machines = [ScriptedMachine(f"n{number}", node) for number, node in enumerate(self.nodes)]
        for machine in self.machines:
            self.invariants.started(machine)

    def step(self, number: int, **state: Any) -> str | None:
        """Node ``number`` changes; the invariant that this breaks."""
        for name, value in state.items():
            setattr(self.nodes[number], name, value)
        self.invariants.check(self.machines[number])
        return None if self.invariants.violation is None else self.invariants.violation.name

    def commit(self, number: int, log: list[tuple[int, bytes]], term: int) -> None:
        """Node ``number`` has committed ``log``."""
        assert self.step(number, log=[(0, b""), *log], term=term, commit_index=1 + len(log)) is None


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_two_leaders_in_one_term(cluster: Cluster) -> None:
    assert cluster.step(0, role="leader", term=1) is None
    assert cluster.step(1, role="leader", term=2) is None
    assert cluster.step(0, role="follower", term=2) is None
    assert cluster.step(0, role="leader") == "election safety"


def test_a_second_leader_that_steps_down_within_its_turn(cluster: Cluster) -> None:
    assert cluster.step(0, role="leader", term=1) is None
    cluster.invariants.observer(cluster.machines[1]).role_changed("leader", 1)
    assert cluster.step(1, role="follower", term=2) == "election safety"


def test_a_leader_that_stays_after_a_newer_one_began(cluster: Cluster) -> None:
    """A late vote may elect a leader of an old term. This leader has the same time to step down (seed 353369352)."""
    cluster.invariants.deposed_ns = SECOND
    assert cluster.step(1, role="leader", term=6) is None
    cluster.world.run_until(3 * SECOND)
    assert cluster.step(0, role="leader", term=5) is None
    cluster.world.run_until(4 * SECOND)
    assert cluster.step(0) is None
    cluster.world.run_until(4 * SECOND + 1)
    assert cluster.step(0) == "deposed leader"


def test_a_leader_without_the_votes_of_a_majority(cluster: Cluster) -> None:
    """One voter that was counted twice is one voter."""
    cluster.invariants.quorum = 2
    for _ in range(2):
        cluster.invariants.observer(cluster.machines[0]).voted("n0", 1)
    assert cluster.step(0, role="leader", term=1) == "votes"
    other = Cluster()
    other.invariants.quorum = 2
    for machine in other.machines:
        other.invariants.observer(machine).voted("n0", 1)
    assert other.step(0, role="leader", term=1) is None


def test_a_node_that_holds_more_than_it_may(cluster: Cluster) -> None:
    sizes = {"inflight": (64, 64)}
    assert cluster.step(0, sizes=sizes) is None
    sizes["inflight"] = (65, 64)
    assert cluster.step(0) == "bounded memory"


def test_equal_index_and_term_with_other_payload(cluster: Cluster) -> None:
    assert cluster.step(0, log=[(0, b""), (1, b"a")], term=1) is None
    assert cluster.step(1, log=[(0, b""), (1, b"b")], term=1) == "log matching"


def test_equal_entry_after_unequal_ones(cluster: Cluster) -> None:
    assert cluster.step(0, log=[(0, b""), (1, b"a"), (3, b"c")], term=3) is None
    assert cluster.step(1, log=[(0, b""), (2, b"b"), (3, b"c")], term=3) == "log matching"


def test_two_commits_at_one_index(cluster: Cluster) -> None:
    cluster.commit(0, [(1, b"a")], 1)
    assert cluster.step(1, log=[(0, b""), (2, b"b")], term=2, commit_index=2) == "state-machine safety"


def test_leader_without_a_committed_entry(cluster: Cluster) -> None:
    cluster.commit(0, [(1, b"a")], 1)
    assert cluster.step(1, role="leader", term=2) == "leader completeness"


def test_leader_of_an_older_term_need_not_have_it(cluster: Cluster) -> None:
    cluster.commit(0, [(3, b"a")], 3)
    assert cluster.step(1, role="leader", term=2) is None


def test_cutting_a_committed_entry(cluster: Cluster) -> None:
    cluster.commit(0, [(1, b"a"), (1, b"b")], 1)
    assert cluster.step(1, log=[(0, b""), (1, b"a"), (1, b"b")], term=1) is None
    cluster.invariants.truncated("n1", 3)
    assert cluster.invariants.violation is not None
    assert cluster.invariants.violation.name == "no truncation"


def test_a_node_that_gave_up_its_incarnation_may_cut_what_it_acknowledged(cluster: Cluster) -> None:
    """It is as if it had lost its disk: it has no vote, and other nodes keep the entry."""
    cluster.commit(0, [(1, b"a"), (1, b"b")], 1)
    assert cluster.step(1, log=[(0, b""), (1, b"a"), (1, b"b")], term=1) is None
    cluster.invariants.forgot("n1", 3)
    assert cluster.step(1, log=[(0, b""), (1, b"a")]) is None
    assert cluster.invariants.truncations == 1


def test_losing_a_committed_entry_unreported(cluster: Cluster) -> None:
    cluster.commit(0, [(1, b"a"), (1, b"b")], 1)
    assert cluster.step(1, log=[(0, b""), (1, b"a"), (1, b"b")], term=1) is None
    assert cluster.step(1, log=[(0, b""), (1, b"a")]) == "no truncation"


def test_cutting_a_conflict_is_right(cluster: Cluster) -> None:
    assert cluster.step(1, log=[(0, b""), (1, b"x")], term=1) is None
    cluster.commit(0, [(2, b"a")], 2)
    assert cluster.step(1, log=[(0, b""), (2, b"a")], term=2) is None


def test_going_back(cluster: Cluster) -> None:
    cluster.commit(0, [(1, b"a")], 1)
    assert cluster.step(0, commit_index=1) == "commit index"
    other = Cluster()
    assert other.step(0, term=2) is None
    assert other.step(0, term=1) == "term"


def test_applying_what_is_not_committed(cluster: Cluster) -> None:
    assert cluster.step(0, applied_index=2) == "apply"


def test_a_sole_voter_that_commits_what_is_not_on_its_disk(cluster: Cluster) -> None:
    cluster.invariants.single_node = True
    assert cluster.step(0, role="leader", term=2, log=[(0, b""), (2, NO_OP)], commit_index=2, applied_index=2) is None
    assert cluster.step(0, durable_index=2) is None
    assert cluster.step(0, log=[(0, b""), (2, NO_OP), (2, b"a")], commit_index=3) == "durable commit"
    other = Cluster()
    other.invariants.single_node = True
    log = [(0, b""), (1, b"a"), (2, NO_OP)]
    assert other.step(0, role="leader", term=2, log=log, commit_index=3, applied_index=3) == "durable commit"


def machine_of(cluster: Cluster, over: bool = False) -> Machine:
    return cast(Machine, SimpleNamespace(name="n0", life=SimpleNamespace(over=over), world=cluster.world, ran_since_ns=0))


def broken(cluster: Cluster) -> str | None:
    return None if cluster.invariants.violation is None else cluster.invariants.violation.name


def test_things_end_exactly_once(cluster: Cluster) -> None:
    ledger = Ledger(cluster.invariants)
    end = ledger.begin("proposal 1", machine_of(cluster), SECOND)
    assert end("done")
    ledger.check()
    assert broken(cluster) is None
    assert not end("done")
    assert broken(cluster) == "exactly once"


def test_things_end_unless_their_process_does(cluster: Cluster) -> None:
    ledger = Ledger(cluster.invariants)
    ledger.begin("proposal 1", machine_of(cluster, over=True), SECOND)
    ledger.check()
    assert broken(cluster) is None
    ledger.begin("proposal 2", machine_of(cluster), SECOND)
    ledger.check()
    assert broken(cluster) == "every proposal ends"


@pytest.mark.parametrize(("paused", "expected"), [(False, "ends in time"), (True, None)])
def test_things_end_in_time_unless_their_process_is_paused(cluster: Cluster, paused: bool, expected: str | None) -> None:
    ledger, machine = Ledger(cluster.invariants), machine_of(cluster)
    end = ledger.begin("proposal 1", machine, SECOND)
    cluster.world.run_until(2 * SECOND)
    machine.ran_since_ns = SECOND if paused else 0
    end("done")
    assert broken(cluster) == expected


class IdleProcess:
    """A process that never acts by itself (``Process``)."""

    def on_connected(self, peer: str) -> None: ...

    def on_disconnected(self, peer: str) -> None: ...

    def on_message(self, peer: str, message: object) -> Work:
        return Work.SEND

    def on_synced(self, token: int) -> None: ...

    def on_sync_failed(self, token: int, error: BaseException) -> None: ...

    def tick(self) -> None: ...

    def tick_reads(self) -> None: ...

    def next_wakeup(self) -> float:
        return float("inf")

    next_read_wakeup = next_wakeup

    def stop(self) -> None: ...


class TimedProcess(IdleProcess):
    """A process that asks to be woken again and again."""

    def __init__(self, machine: Machine, pause_s: float) -> None:
        self._machine, self._pause_s, self.ticks = machine, pause_s, 0

    def tick(self) -> None:
        self.ticks += 1

    def next_wakeup(self) -> float:
        return self._machine.local_now() + self._pause_s

    next_read_wakeup = next_wakeup


@pytest.mark.parametrize(("pause_s", "expected"), [(0.0, "spinning"), (0.015, None)])
def test_a_process_spins_if_it_never_rests_not_if_its_timers_go_on_for_minutes(
    cluster: Cluster, pause_s: float, expected: str | None
) -> None:
    processes: list[TimedProcess] = []

    def start(machine: Machine) -> tuple[TimedProcess, ScriptedNode]:
        processes.append(TimedProcess(machine, pause_s))
        return processes[0], ScriptedNode()

    machine = Machine(cluster.world, "n9", cluster.invariants, start)
    machine.network = Network(cluster.world, [machine], str)
    machine.start()
    cluster.world.run_until(150 * SECOND, lambda: cluster.invariants.violation is not None)
    assert broken(cluster) == expected
    assert processes[0].ticks >= 5_000


class ScriptedApplication:
    """Scripted nodes that follow n1 (``Application``). n3 is a learner, and is promoted when the clients have written for
    ``promoted_after_ns``; None: never. Each client writes every 10 ms."""

    catch_up_ns, drain_ns, disturbs = SECOND, MS, False

    def __init__(self, simulation: Simulation, promoted_after_ns: int | None) -> None:
        self.world, self.counts = simulation.world, dict[str, int]()
        self.nodes: dict[str, ScriptedNode] = {}
        self._promoted_after_ns, self._writes, self._stopped = promoted_after_ns, False, False
        self.written_ns = 0
        """Time of the last write."""

    def start_process(self, machine: Machine) -> tuple[IdleProcess, ScriptedNode]:
        node = self.nodes[machine.name] = ScriptedNode()
        node.term, node.leader_id, node.role = 1, "n1", "follower"
        node.log = [(0, b"")]
        if machine.name == "n1":
            node.role = "leader"
        elif machine.name == "n3":
            node.role = "learner"
        return IdleProcess(), node

    def start_clients(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._stopped:
            return
        self.written_ns = self.world.now_ns
        if self._promoted_after_ns is not None and self.world.now_ns >= self._promoted_after_ns:
            self.nodes["n3"].role = "follower"
        self.world.after(10 * MS, self._write)

    def stop_clients(self) -> None:
        self._stopped = True

    def quiet(self, duration_ns: int) -> None: ...

    def provoke(self, machine: Machine, duration_ns: int) -> None: ...

    def write_steadily(self, duration_ns: int) -> None: ...

    def burst(self, machine: Machine) -> None: ...

    def read_finally(self) -> None: ...

    def check(self) -> None: ...


@pytest.mark.parametrize(("promoted_after_s", "expected"), [(1.5, None), (None, "catch-up")])
def test_a_learner_is_promoted_within_the_bound_while_writes_go_on(promoted_after_s: float | None, expected: str | None) -> None:
    applications: list[ScriptedApplication] = []

    def build(simulation: Simulation) -> ScriptedApplication:
        after_ns = None if promoted_after_s is None else int(promoted_after_s * SECOND)
        applications.append(ScriptedApplication(simulation, after_ns))
        return applications[0]

    result = Simulation(Scenario(2, duration_s=1.0, faults=()), build, lambda world: 0.05).run()
    assert result.counts["minority down"] == 0, "a seed in which the bound begins after a second"
    assert result.violation == expected
    if expected is None:
        assert 0.4 < result.catch_up_s <= 0.6
        assert applications[0].written_ns >= 2 * SECOND - 10 * MS, "writes go on until the end of the bound"
    else:
        assert result.text == "1.0 s after the last heal n3 has not been promoted"


def test_processes_that_read_their_disks_are_not_connected() -> None:
    """Seed 300221 with two spares: all machines were started at the end of the faults, and none had opened its disk."""
    simulation = Simulation(Scenario(2, faults=()), lambda built: ScriptedApplication(built, 0), lambda world: 0.05)
    for machine in simulation.machines:
        machine.opening_ms = (1_000,)
        machine.start()
    simulation.world.run_until(SECOND)
    assert simulation._is_connected()
    for machine in simulation.machines:
        machine.crash(power_loss=False)
        machine.start()
    assert not any(machine.is_up() for machine in simulation.machines)
    assert not simulation._is_connected()
    simulation._connect()
    assert simulation._is_connected()


OWN, OTHERS = RegisterCommand.encode("c1.1", "k", "v"), RegisterCommand.encode("c2.1", "k", "v")


@pytest.mark.parametrize(
    ("committed", "acknowledged", "breaks"),
    [
        (OWN, Committed(1, 2, 1), False),
        (OTHERS, Committed(1, 2, 1), True),  # ended by another command's entry
        (OWN, Committed(1, 2, 3), True),  # the entry of its term was replaced
        (OWN, Committed(1, 3, 1), True),  # nothing was committed at its index
        (OWN, Committed(2, 2, 1), True),  # the result is that of another command
    ],
)
def test_a_proposal_that_ends_committed_was_applied_by_its_own_entry(
    cluster: Cluster, committed: bytes, acknowledged: Committed, breaks: bool
) -> None:
    application = RegisterApplication(
        cluster.world, cluster.invariants, Ledger(cluster.invariants), lambda machine, state: pytest.fail("no machine starts"),
        clients=0, catch_up_ns=0, drain_ns=0, proposal_limit_ns=0, read_limit_ns=0, lease_share=0.0, ballast=0, slice_bytes=1,
    )  # fmt: skip  # items grouped by line
    cluster.commit(0, [(1, committed)], 1)
    application.history.applied("n0", "c1.1", 1, 0)
    application.acknowledged.append(("c1.1", acknowledged))
    application.check()
    assert broken(cluster) == ("acknowledged commands are committed" if breaks else None)
