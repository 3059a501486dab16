"""Faults strike what their names say."""

from collections.abc import Iterable
from random import Random

import pytest

from replicated_namesrv.simulation.faults import Fault
from replicated_namesrv.simulation.network import Link
from replicated_namesrv.simulation.simulation import Scenario, Simulation
from replicated_namesrv.simulation.subjects import build_raft, declared_drift
from replicated_namesrv.simulation.world import SECOND


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
