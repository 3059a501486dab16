"""During faults, too, a majority that can communicate has a leader; if not, the watch reports it."""

import pytest

from replicated_namesrv.simulation.simulation import RunResult, Scenario, Simulation
from replicated_namesrv.simulation.subjects import build_raft, declared_drift
from replicated_namesrv.simulation.world import SECOND


def run_with_deaf_leader(off: str | None, heals_after_s: float) -> RunResult:
    """Three nodes. After they have elected a leader, no message reaches it any more, but its messages reach the others."""
    simulation = Simulation(Scenario(1, duration_s=4 + heals_after_s, off=off, faults=()), build_raft, declared_drift)

    def cut() -> None:
        leader = next(machine.name for machine in simulation.machines if machine.raft and machine.raft.role == "leader")
        simulation.network.cut([link for link in simulation.network.links if link[1] == leader], hold=False)

    simulation.world.after(4 * SECOND, cut)
    return simulation.run()


def test_a_cluster_that_is_not_founded_yet_needs_no_leader() -> None:
    """Founding needs all nodes. Two of them have promised to found the cluster, so they know its founders."""
    simulation = Simulation(Scenario(1, duration_s=9, faults=()), build_raft, declared_drift)
    first, *others = [machine.name for machine in simulation.machines]
    simulation.network.cut([(name, first) for name in others], hold=False)
    simulation.world.after(8 * SECOND, simulation.network.heal)
    result = simulation.run()
    assert result.violation is None, result.text


def test_others_elect_in_the_place_of_a_leader_that_hears_nobody() -> None:
    result = run_with_deaf_leader(None, heals_after_s=8)
    assert result.violation is None, result.text
    assert result.counts["bounds judged for a leader"] >= 2


def test_a_majority_without_a_leader_is_found() -> None:
    result = run_with_deaf_leader("check_quorum", heals_after_s=8)
    assert result.violation == "liveness", result.text
    assert result.violated_at_s < 12


@pytest.mark.slow
@pytest.mark.parametrize("heals_after_s", [1, 2.5])
def test_a_majority_has_the_whole_bound(heals_after_s: float) -> None:
    """The bound has not passed when the fault ends, so the run has no violation. The final checks find none either, because they
    begin after the fault."""
    result = run_with_deaf_leader("check_quorum", heals_after_s)
    assert result.violation is None, result.text
