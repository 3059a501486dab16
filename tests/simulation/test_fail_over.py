"""Bounds the time without a leader by the virtual clock, so the result does not depend on the load of the machine."""

import statistics
from collections.abc import Callable
from random import Random

import pytest

from replicated_namesrv.raft.interfaces import Committed, Outcome
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.simulation.machine import Machine
from replicated_namesrv.simulation.process_views import Process
from replicated_namesrv.simulation.simulation import Scenario, Simulation
from replicated_namesrv.simulation.subjects import build_raft, declared_drift
from replicated_namesrv.simulation.world import MS, SECOND

pytestmark = pytest.mark.slow
SEEDS = range(30)
MEDIAN_S, WORST_S = 0.6, 1.2
"""Limits of the time to the next commit; etcd with its usual settings takes 1 to 2 s."""
STEP_DOWN_S = 0.6
"""Two of the least election times."""


def running(seed: int) -> Simulation:
    """A simulation with drifting clocks and writing clients, without faults. It is stopped at a random moment at which all nodes
    follow one leader."""
    simulation = Simulation(Scenario(seed, nodes=5 if seed % 5 == 4 else 3, faults=()), build_raft, declared_drift)
    simulation.nemesis.draw_clock_rates()
    for machine in simulation.machines:
        machine.start()
    simulation._application.start_clients()
    simulation.world.run_until(2 * SECOND + Random(seed).randrange(SECOND))
    assert leader_of(simulation) is not None
    return simulation


def leader_of(simulation: Simulation) -> Machine | None:
    leading = [m for m in simulation.machines if m.raft is not None and m.raft.role == "leader"]
    return max(leading, key=lambda m: m.raft.term if m.raft else 0, default=None)


def until(simulation: Simulation, condition: Callable[[], object], what: str) -> float:
    """Virtual seconds until ``condition`` is true."""
    began_ns = simulation.world.now_ns
    while not condition():
        assert simulation.world.now_ns < began_ns + 20 * SECOND, f"not within 20 s: {what}"
        assert simulation.invariants.violation is None, simulation.invariants.violation
        simulation.world.run_until(simulation.world.now_ns + MS)
    return (simulation.world.now_ns - began_ns) / SECOND


def next_commit(simulation: Simulation, machine: Machine) -> float:
    """Virtual seconds until ``machine``, asked at once, has committed a command."""
    outcomes: list[Outcome] = []

    def ask(process: Process) -> None:
        assert isinstance(process, RaftNode)
        process.propose(b"probe\0k\0v", outcomes.append, 20_000)

    machine.enqueue(ask)
    return until(simulation, lambda: outcomes and isinstance(outcomes[0], Committed), "a commit")


def kill(simulation: Simulation, leader: Machine) -> None:
    leader.crash(power_loss=False)


def stop(simulation: Simulation, leader: Machine) -> None:
    leader.pause()


def cut_off(simulation: Simulation, leader: Machine) -> None:
    simulation.network.cut([link for link in simulation.network.links if leader.name in link], hold=False)


@pytest.mark.parametrize("strike", [kill, stop])
def test_next_commit_after_the_leader_is_gone(strike: Callable[[Simulation, Machine], None]) -> None:
    took: dict[int, float] = {}
    for seed in SEEDS:
        simulation = running(seed)
        leader = leader_of(simulation)
        assert leader is not None
        strike(simulation, leader)
        took[seed] = next_commit(simulation, next(m for m in simulation.machines if m is not leader))
    assert statistics.median(took.values()) <= MEDIAN_S, took
    assert max(took.values()) <= WORST_S, f"seeds above: { {seed: s for seed, s in took.items() if s > WORST_S} }"


def test_a_cut_leader_steps_down_and_the_heal_causes_no_election() -> None:
    for seed in SEEDS:
        simulation = running(seed)
        old = leader_of(simulation)
        assert old is not None
        assert old.raft is not None
        cut_off(simulation, old)
        raft = old.raft
        took_s = until(simulation, lambda: raft.role != "leader", "the cut leader steps down")  # noqa: B023 - called within this turn of the loop
        assert took_s <= STEP_DOWN_S, f"seed {seed}: {took_s} s"
        until(simulation, lambda: leader_of(simulation) not in (None, old), "another leader")  # noqa: B023 - called within this turn of the loop
        simulation.world.run_until(simulation.world.now_ns + SECOND)
        new = leader_of(simulation)
        assert new is not None
        assert new.raft is not None
        term = new.raft.term
        simulation.network.heal()
        until(simulation, lambda: raft.leader_id == new.name, "the old leader follows")  # noqa: B023 - called within this turn of the loop
        simulation.world.run_until(simulation.world.now_ns + 3 * SECOND)
        assert (leader_of(simulation), new.raft.term) == (new, term), f"seed {seed}: an election at the heal"
