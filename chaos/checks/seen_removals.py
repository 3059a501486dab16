"""Removals of brokers as the observer saw them: how long nodes took to remove silent ones, and how often they removed live ones.

It uses only what each node answered, so it is the same measure for every mode. A node that was killed in between has forgotten
its brokers, which is not a removal. The precision of the measure is the observation interval.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from replicated_namesrv.chaos.checks.registration_history import has_slave
from replicated_namesrv.chaos.checks.story import ALIVE, BrokerState, Story
from replicated_namesrv.chaos.records import Observe
from replicated_namesrv.chaos.scenario import FaultKind

_FORGETS = frozenset(
    {
        *(FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.RESTART, FaultKind.ROLLING_RESTART, FaultKind.JOIN_EMPTY),
        *(FaultKind.DRAIN, FaultKind.WRONG_STATE),
    }
)


class SeenRemovals(NamedTuple):
    """The removals by the nodes of a run."""

    silent_s: tuple[float, ...]
    """For each broker that died silently, and each node: the time from the death until the node no longer listed the broker."""
    live: int
    """Number of removals of living brokers, counted once per node. It includes brokers that were cut off."""


class SeenRemoval(NamedTuple):
    """The removal of a broker, as seen in two successive answers of a node."""

    node: str
    broker: str
    before: Observe
    """The last answer that lists the broker."""
    after: Observe
    """The next answer, which does not list it."""
    life: BrokerState
    """The state of the broker at the time of the second answer."""


def seen_removals(story: Story) -> Iterator[SeenRemoval]:
    """All removals until the end of the judged part of the run, except in groups with a slave. The first deaths happen just
    before this part begins."""
    looks: defaultdict[str, list[Observe]] = defaultdict(list)
    for one in story.observations:
        if one.key == "brokers" and one.answered and one.time_ns <= story.judged.end_ns:
            looks[one.node].append(one)
    for node, seen in looks.items():
        seen.sort(key=lambda one: one.time_ns)
        for before, after in pairwise(seen):
            gone = {member.name for member in before.members or ()} - {member.name for member in after.members or ()}
            for broker in sorted(gone):
                life = story.life_at(broker, after.time_ns)
                if life is None or has_slave(broker) or _forgot(story, node, before.time_ns, after.time_ns):
                    continue
                yield SeenRemoval(node, broker, before, after, life)


def removals(story: Story) -> SeenRemovals:
    """Measure all removals."""
    silent_s: list[float] = []
    live = 0
    for _, broker, before, after, life in seen_removals(story):
        if life.state == "silent":
            silent_s.append((after.time_ns - life.start_ns) / 1e9)
        earlier = story.life_at(broker, before.asked_ns)
        live += life.state in ALIVE and earlier is not None and earlier.life == life.life
    return SeenRemovals(tuple(silent_s), live)


def _forgot(story: Story, node: str, start_ns: int, end_ns: int) -> bool:
    return any(fault.name in _FORGETS and node in fault.nodes for fault in story.faults_in(start_ns, end_ns))
