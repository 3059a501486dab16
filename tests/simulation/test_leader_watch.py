"""During faults, too, a majority that can communicate has a leader; if not, the watch reports it."""

import pytest

from replicated_namesrv.raft.raft_messages import (
    Append,
    AppendReply,
    ForwardReply,
    HigherTerm,
    PreVote,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    Vote,
    VoteReply,
)  # fmt: skip  # items grouped by line
from replicated_namesrv.simulation.fault_schedule import Fault
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


def test_only_messages_that_may_delay_an_election_extend_the_time_without_a_leader() -> None:
    simulation = Simulation(Scenario(1, duration_s=9, faults=()), build_raft, declared_drift)
    for machine in simulation.machines:
        machine.start()
    simulation.world.run_until(4 * SECOND)
    watch, target = simulation.network.may_delay_election, simulation.machines[0]
    assert target.raft is not None
    term = target.raft.term
    assert term > 0
    for kind in (ReadRequest(1, 1, 1), ReadReply(1, 1, 1, 1), ForwardReply(1, 1, 1, 1, term)):
        assert not watch(target.name, kind)
    for old, counts in ((term - 1, False), (term, True), (term + 1, True)):
        assert watch(target.name, Append(1, 1, old, 1, 1, 1, 1, 0, b"")) is counts
        assert watch(target.name, AppendReply(1, 1, old, 1, True, 1)) is counts
        assert watch(target.name, Vote(1, 1, old, 1, 1, False)) is counts
        assert watch(target.name, VoteReply(1, 1, old)) is counts
        assert watch(target.name, HigherTerm(1, 1, old)) is counts
        assert watch(target.name, PreVote(1, 1, old, 1, 1)), "the answer may raise a term"
        assert watch(target.name, PreVoteReply(1, 1, old, True))
    target.crash(power_loss=False)
    assert watch(target.name, Append(1, 1, 0, 1, 1, 1, 1, 0, b"")), "the term of the next process is unknown"
    network, (link, *_) = simulation.network, simulation.network.links
    network._repeat_after(SECOND, link, ReadRequest(1, 1, 1))
    assert network.last_repeat_ns == 0
    network._repeat_after(SECOND, link, PreVote(1, 1, term, 1, 1))
    assert network.last_repeat_ns == 5 * SECOND


@pytest.mark.parametrize("off", [None, "disk_stall"])
def test_a_leader_whose_disk_is_stuck_does_not_count(off: str | None) -> None:
    """Its log is full, so it appends nothing. If it does not step down, the cluster commits nothing, although it has a leader."""
    simulation = Simulation(Scenario(14, duration_s=17, off=off, faults=()), build_raft, declared_drift)
    simulation.nemesis.schedule([Fault(0, 4 * SECOND, 13 * SECOND, "stuck_disk")])
    result = simulation.run()
    if off is None:
        assert result.violation is None, result.text
        assert result.counts["fault stuck_disk"] == 1
        assert result.counts["elections"] >= 2
    else:
        assert result.violation == "liveness", result.text
        assert 4 + 6 + 3 <= result.violated_at_s <= 17
