"""Faults strike what their names say."""

from collections.abc import Iterable
from random import Random

import pytest

from replicated_namesrv.simulation.fault_schedule import FIRST_LONG, LONG, Fault, plan_long_faults
from replicated_namesrv.simulation.faults import Nemesis
from replicated_namesrv.simulation.network import Link
from replicated_namesrv.simulation.simulation import Scenario, Simulation
from replicated_namesrv.simulation.subjects import build_raft, declared_drift
from replicated_namesrv.simulation.world import SECOND, World


@pytest.mark.parametrize("seed", range(5))
def test_all_links_of_one_machine_flap(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an earlier version, a victim was drawn for each link, so some links of several machines flapped."""
    simulation = Simulation(Scenario(seed, nodes=5, faults=()), build_raft, declared_drift)
    links, cuts = simulation.network.links, list[list[Link]]()

    def cut(cut_links: Iterable[Link], hold: bool) -> None:
        cuts.append(list(cut_links))

    monkeypatch.setattr(simulation.network, "cut", cut)
    simulation.nemesis._do_flapping(Random(seed), Fault(0, 0, SECOND, "flapping"))
    simulation.world.run_until(SECOND)
    assert len(cuts) > 1
    assert all(each == cuts[0] for each in cuts)
    assert cuts[0] in [[link for link in links if machine.name in link] for machine in simulation.machines]


def test_some_seeds_cut_one_direction_for_minutes() -> None:
    planned = {seed: plan_long_faults(World(seed), 30 * SECOND) for seed in range(400)}
    long = {seed: faults for seed, faults in planned.items() if faults}
    assert 10 <= len(long) <= 60
    assert any(len(faults) == 1 for faults in long.values())
    assert any(len(faults) > 4 for faults in long.values())
    for faults in long.values():
        assert faults[0].kind == LONG
        assert 120 <= faults[0].duration_ns / SECOND <= 240
        assert all(fault.at_ns >= 30 * SECOND and fault.end_ns < faults[0].end_ns for fault in faults[1:])


@pytest.mark.slow
def test_a_long_cut_is_one_way_and_lasts_for_its_minutes() -> None:
    seed = next(seed for seed in range(100) if plan_long_faults(World(seed), SECOND))
    simulation = Simulation(Scenario(seed, duration_s=1.0, faults=(FIRST_LONG,)), build_raft, declared_drift)
    (fault,) = simulation.faults
    seen: list[set[Link]] = []

    def look() -> None:
        seen.append({link for link in simulation.network.links if simulation.network.is_cut(link)})

    for at_ns in (fault.at_ns + 1, fault.at_ns + 60 * SECOND, fault.end_ns - 1):
        simulation.world.after(at_ns, look)
    result = simulation.run()
    assert result.violation is None, result.text
    assert result.virtual_s > 120
    assert seen[0]
    assert seen == [seen[0]] * 3
    assert not any((target, source) in seen[0] for source, target in seen[0])
    assert simulation.network.is_whole


def struck(kind: str, seed: int, is_down: bool) -> dict[str, int]:
    """The faults that are counted after one of ``kind``. ``is_down``: all processes were killed before."""
    simulation = Simulation(Scenario(seed, duration_s=8.0, clients=4, faults=()), build_raft, declared_drift)

    def strike() -> None:
        for machine in simulation.machines:
            if is_down:
                machine.crash(power_loss=False)
                machine.kept_down = True
        simulation.nemesis.schedule([Fault(0, 4 * SECOND, 2 * SECOND, kind)])

    simulation.world.after(3 * SECOND, strike)
    for machine in simulation.machines:
        machine.start()
    simulation._application.start_clients()
    simulation.world.run_until(8 * SECOND)
    simulation.nemesis.heal()
    return simulation.nemesis.struck


@pytest.mark.slow
@pytest.mark.parametrize("kind", Nemesis.kinds())
def test_a_fault_is_counted_only_if_it_had_an_effect(kind: str) -> None:
    """On machines that are down, no fault has an effect. With other seeds it has one, but not with each: for example, the only
    message in its time is not the one that would be lost."""
    assert struck(kind, 1, is_down=True) == {}
    assert any(struck(kind, seed, is_down=False) == {kind: 1} for seed in range(1, 9))


def test_the_disk_of_a_voter_that_is_up_alone_is_not_rolled_back() -> None:
    """Seed 310185 with four spares: all machines had lost power, and one of three voters had started again. Its disk was rolled
    back as if it were the only voter, while another voter had lost its disk."""
    simulation = Simulation(Scenario(1, spares=1, duration_s=8.0, clients=4, faults=()), build_raft, declared_drift)
    for machine in simulation.machines:
        machine.start()
    simulation._application.start_clients()
    simulation.world.run_until(3 * SECOND)
    first, *others = simulation.nemesis.voting()
    assert others
    for machine in others:
        machine.crash(power_loss=False)
    simulation.nemesis._do_old_image(Random(1), Fault(0, 0, SECOND, "old_image"))
    for machine in others:
        machine.start()
    simulation.world.run_until(6 * SECOND)
    assert not first.restored
    assert "old_image" not in simulation.nemesis.struck


@pytest.mark.parametrize(("off", "expected"), [(None, None), ("current_votes", "votes")])
def test_split_votes_elect_nobody_by_votes_for_earlier_terms(off: str | None, expected: str | None) -> None:
    """A late vote for an earlier term must not make a repeated vote count twice."""
    simulation = Simulation(Scenario(1, 5, 9.0, off=off, clients=1, faults=()), build_raft, declared_drift)
    simulation.nemesis.schedule([Fault(0, 4 * SECOND, 5 * SECOND, "split_votes")])
    result = simulation.run()
    assert result.violation == expected, result.text
    assert result.counts["fault split_votes"] == 1
