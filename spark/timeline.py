"""The phases of a run, and each node's side of the fault over time. Pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from replicated_namesrv.chaos.records import majority_side

NOWHERE = "none"
"""Side of an operation whose node is not known."""

JUDGED_PHASES = ("steady", "fault", "heal", "final")

WHOLE, MAJORITY, MINORITY = "whole", "majority", "minority"
"""Sides. whole: all nodes are connected. majority: the connected part has more than half of the voters. While members change, it
has more than half of one of the sets of voters that may be in force. minority: the rest."""
FOREVER_NS = 2**63 - 1

Row = dict[str, Any]


class PhaseSpan(NamedTuple):
    """A phase of a run."""

    phase: str
    start_ns: int
    end_ns: int


class SideSpan(NamedTuple):
    """The side of a node from one change of a fault to the next."""

    node: str
    side: str
    start_ns: int
    end_ns: int


class Timeline:
    """Phases and sides of one run, from its records ``phase`` and ``fault`` by time."""

    def __init__(self, phases: Sequence[Row], faults: Sequence[Row]) -> None:
        # Each phase begins where the previous one ends. The record ``end`` closes the last phase and is not a phase itself.
        self.phases = [PhaseSpan(one["phase"], one["time_ns"], other["time_ns"]) for one, other in pairwise(phases)]
        self._starts = [span.start_ns for span in self.phases]
        self._until_ns = phases[-1]["time_ns"] if phases else 0
        self.sides = _sides(faults)
        self._of_node: defaultdict[str, list[SideSpan]] = defaultdict(list)
        for span in self.sides:
            self._of_node[span.node].append(span)
        ends = [row["time_ns"] for row in faults if row["edge"] == "end"]
        heal = self.span("heal")
        self.repaired_ns: int | None = max(ends, default=heal and heal.start_ns)
        """When the last link was repaired, as recorded. Without such a record, the beginning of ``heal``. None: the run has
        neither of them."""

    def span(self, *phases: str) -> PhaseSpan | None:
        """From the beginning of the first of these phases to the end of the last. None: the run has none of them."""
        found = [span for span in self.phases if span.phase in phases]
        if not found:
            return None
        return PhaseSpan(phases[0], min(span.start_ns for span in found), max(span.end_ns for span in found))

    def phase_at(self, moment_ns: int) -> str | None:
        """The judged phase of a moment. None: it is in no judged phase."""
        place = bisect_right(self._starts, moment_ns) - 1
        if place < 0 or moment_ns >= self.phases[place].end_ns or self.phases[place].phase not in JUDGED_PHASES:
            return None
        return self.phases[place].phase

    def side_at(self, node: str | None, moment_ns: int) -> str:
        """The side of ``node`` at a moment: ``whole`` if no fault was active, ``none`` if the operation has no node."""
        if node is None:
            return NOWHERE
        return next((span.side for span in self._of_node[node] if span.start_ns <= moment_ns < span.end_ns), WHOLE)


def _sides(faults: Sequence[Row]) -> list[SideSpan]:
    """The sides from each change of a fault to the next. Before the first change all nodes are on the side ``whole``. The nodes
    are those that are members at that time."""
    edges = sorted((row for row in faults if row["sides"] is not None), key=lambda row: (row["time_ns"], row["edge"] != "end"))
    found = []
    for place, row in enumerate(edges):
        until_ns = edges[place + 1]["time_ns"] if place + 1 < len(edges) else FOREVER_NS
        nodes = [node for part in row["sides"] for node in part]
        majorities = [majority_side(row["sides"], [voters]) for voters in row["voters"] or [nodes]]
        if until_ns > row["time_ns"]:
            for part in row["sides"]:
                side = WHOLE if len(part) == len(nodes) else MAJORITY if part in majorities else MINORITY
                found += [SideSpan(node, side, row["time_ns"], until_ns) for node in part]
    return found
