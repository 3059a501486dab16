"""The parts of a node that the liveness of brokers uses, and the data that the parts of one leader share."""

from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from replicated_namesrv.replication.consensus import Consensus
from replicated_namesrv.replication.liveness.defences import LivenessDefences
from replicated_namesrv.replication.route_machine import ProposalResult, RouteStateMachine
from replicated_namesrv.routes.state import RouteSettings


@dataclass(frozen=True)
class LivenessContext:
    """One node: its state, its group, its clocks and settings."""

    node_id: str
    members: Sequence[str]
    machine: RouteStateMachine
    consensus: Consensus
    decide: "Callable[[bytes], Future[ProposalResult | None]]"
    """Propose a command of the leader. None: it was not accepted, or its outcome is unknown."""
    initial_settings: Callable[[], RouteSettings]
    """Returns the initial settings, for a cluster that has had no leader."""
    grace_ms: float
    running_ms: Callable[[], float]
    """Returns the time in which this process ran."""
    monotonic_ms: Callable[[], float]
    """Returns the time of a clock that never goes back and never stops."""
    wall_ms: Callable[[], int]
    """Returns milliseconds since 1970."""
    rng: Random
    defences: LivenessDefences


class Term:
    """One term that this node leads."""

    def __init__(self, number: int, node: LivenessContext) -> None:
        self.number, self.node = number, node

    @property
    def is_over(self) -> bool:
        """Whether this node is no longer the leader of this term."""
        return self.node.consensus.led_term != self.number

    def time_ms(self) -> int:
        """This leader's clock, milliseconds since 1970; never before the time of an applied command."""
        return max(self.node.wall_ms(), self.node.machine.time_ms)
