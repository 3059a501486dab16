"""Name servers, leases and brokers in the simulated world: some seeds always, many when there is time.

Repeat a failing seed with ``namesrv simulate --application routes --seeds N:N+1``; the failure prints the command.
"""

import os
import subprocess
import sys
from itertools import islice

import pytest

from replicated_namesrv.simulation.campaign import cores, run_all
from replicated_namesrv.simulation.fault_schedule import Fault
from replicated_namesrv.simulation.route_cluster import silenced
from replicated_namesrv.simulation.simulation import RunResult, Scenario, Simulation
from replicated_namesrv.simulation.subjects import build_routes, declared_drift, run
from replicated_namesrv.simulation.world import SECOND
from tests.simulation.test_simulate import fresh_seed, judge

FIXED_SEEDS = (*range(9), 100, 113, 121)
"""The last three seeds found faults in earlier versions: a renewal got the time of its refusal, and refused proposals were
repeated without a pause."""
FRESH_SEEDS = 6


def scenario(seed: int, nodes: int = 3, duration_s: float = 30.0) -> Scenario:
    return Scenario(seed, nodes, duration_s, application="routes")


def judge_load(results: list[RunResult]) -> None:
    """No violation, and the runs contained enough events to find one."""
    judge(results)
    for what, least in (("reads of a live broker", 100), ("brokers dropped", 5), ("renewals", 500), ("elections", 10)):
        assert sum(result.counts[what] for result in results) >= least, f"too few {what}"


def test_a_seed() -> None:
    judge([run(scenario(1, duration_s=3.0))])


@pytest.mark.slow
@pytest.mark.parametrize("off", [None, "fatal_errors"])
def test_memory_runs_out_in_the_route_machine_of_one_node(off: str | None) -> None:
    """The process stops. If the error counted as the result of the command, the states of the nodes would differ."""
    with silenced():
        simulation = Simulation(Scenario(4, 3, 8.0, application="routes", off=off, faults=()), build_routes, declared_drift)
        simulation.nemesis.schedule([Fault(0, 3 * SECOND, SECOND, "no_memory")])
        result = simulation.run()
    assert sum(machine.memory_errors for machine in simulation.machines) == 1
    assert result.counts["fault no_memory"] == 1
    if off is None:
        assert result.violation is None, result.text
        assert result.counts["boots"] == 3 + 1 + result.counts["minority down"]
    else:
        assert result.violation == "equal states", result.text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fixed_seeds() -> None:
    judge_load(list(run_all([scenario(seed, 5 if seed % 6 == 5 else 3) for seed in FIXED_SEEDS], cores())))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fresh_seeds() -> None:
    first = fresh_seed()
    print(f"fresh seeds: namesrv simulate --application routes --seeds {first}:{first + FRESH_SEEDS}")
    judge(list(run_all([scenario(first + number) for number in range(FRESH_SEEDS)], cores())))


@pytest.mark.slow
def test_equal_seeds_give_equal_traces_whatever_the_hash_seed() -> None:
    code = (
        "from replicated_namesrv.simulation.simulation import Scenario; from replicated_namesrv.simulation.subjects import run; "
        "print(run(Scenario(3, duration_s=4.0, application='routes')).digest)"
    )
    digests = set()
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        digests.add(ran.stdout.strip())
    assert len(digests) == 1


@pytest.mark.slow
def test_a_broker_whose_id_another_has_now_may_be_replaced() -> None:
    """Two brokers swap ids in an outage. The registration of one broker arrives. Its id is the one under which the other broker
    is known."""
    judge([run(Scenario(986291789, duration_s=13.1, application="routes", faults=()))])


@pytest.mark.slow
def test_seeds_need_the_rule_that_silent_brokers_are_removed() -> None:
    """Which seeds find a missing rule changes with the code, so two of forty must find it."""
    found = (bool(run(Scenario(seed, application="routes", off="silent_removed")).violation) for seed in range(40))
    if sum(islice(filter(None, found), 2)) < 2:
        pytest.fail("too few seeds of 0:40: namesrv simulate --application routes --seeds 0:40 --off silent_removed")
