"""CP with one defence switched off, in runs in which the checkers detect this while unmodified CP passes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from replicated_namesrv.chaos.run import RunPlan
from replicated_namesrv.chaos.scenario import load

SEED = 2


class Mutation(NamedTuple):
    """The switched-off defence, and the run that shows it."""

    defences: str
    """Names in ``raft.raft_config.Defences``, with commas."""
    scenario: str
    """A file of this folder."""
    conditions: tuple[str, ...] = ()
    """Options of ``tests.support.node_without_defence``, for the nodes of both runs."""
    read_consistency: str = "linearizable"


MUTATIONS = (
    Mutation("at_most_once", "slow-follower"),
    Mutation("incarnations", "emptied-node"),
    Mutation("durable_acks", "power-loss", ("--sync-ms", "80")),
    Mutation("read_term_commit", "quick-hand-overs", ("--sync-ms", "80")),
    Mutation("check_quorum", "deaf-leader"),
    Mutation("read_index", "hand-overs", ("--election-ms", "1500")),
    Mutation("transfer_ends_lease", "hand-overs", ("--election-ms", "1500"), "lease"),
    Mutation("read_index,check_quorum", "leaders-cut-off"),
)


def plan(mutation: Mutation, seed: int, *, off: bool) -> RunPlan:
    """The run with the defences ``off``, or as shipped under the same conditions."""
    scenario = load(str(Path(__file__).parent / f"{mutation.scenario}.toml"))
    command = [sys.executable, "-m", "tests.support.node_without_defence", *mutation.conditions]
    if off:
        command += ["--off", mutation.defences]
    suite = f"mutations/{mutation.defences}"
    return RunPlan(scenario, "cp", 3, seed, suite, mutation.read_consistency, node_command=command)


def chosen(names: Sequence[str]) -> list[Mutation]:
    """The mutations that switch off these defences; all mutations if none is named."""
    return [mutation for mutation in MUTATIONS if not names or mutation.defences in names]
