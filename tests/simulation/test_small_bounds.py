"""In a share of the runs, the bounds of memory are small, and the load reaches them."""

import pytest

from replicated_namesrv.simulation.campaign import cores, run_all
from replicated_namesrv.simulation.simulation import Scenario
from replicated_namesrv.simulation.subjects import has_small_bounds
from replicated_namesrv.simulation.world import World


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ordinary_seeds_reach_the_bounds_of_log_and_proposals() -> None:
    """Without these runs, a bound that is missing in the code would be no violation of "bounded memory"."""
    seeds = [seed for seed in range(60) if has_small_bounds(World(seed))]
    assert 6 <= len(seeds) <= 20
    reached: dict[str, int] = {}
    for result in run_all([Scenario(seed) for seed in seeds], cores()):
        assert result.violation is None, f"{result.text}\n{result.scenario.command()}"
        for name in ("log", "pending_proposals_bytes"):
            reached[name] = reached.get(name, 0) + result.counts.get(f"bound reached {name}", 0)
    assert reached["log"] >= 2
    assert reached["pending_proposals_bytes"] >= 2
