"""Divergence of nodes over time, pure: from what each node answered when, to spans of equal divergence.

D(t) is the greatest distance of any two nodes whose answers are known at t; the distance of two answers is
1 - |A and B| / |A or B| (Jaccard), and 0 for two empty ones.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple


class Change(NamedTuple):
    """One node answered ``state`` in [from_ns, until_ns)."""

    node: str
    from_ns: int
    until_ns: int
    state: frozenset[str]


class Segment(NamedTuple):
    """``divergence`` (0 to 1) held in [start_ns, end_ns) among ``nodes_known`` nodes."""

    start_ns: int
    end_ns: int
    divergence: float
    nodes_known: int


def distance(left: frozenset[str], right: frozenset[str]) -> float:
    """Jaccard distance."""
    together = len(left | right)
    return 1.0 - len(left & right) / together if together else 0.0


def segments_of(changes: Iterable[Change]) -> Iterator[Segment]:
    """Segments in order of time, neighbours of equal divergence and equal number of nodes joined; spans with no known node are
    left out. Spans of one node must not overlap."""
    edges: list[tuple[int, int, str, frozenset[str] | None]] = []
    for change in changes:
        if change.until_ns > change.from_ns:
            edges.append((change.from_ns, 1, change.node, change.state))
            edges.append((change.until_ns, 0, change.node, None))
    edges.sort(key=lambda edge: (edge[0], edge[1], edge[2]))
    known: dict[str, frozenset[str]] = {}
    distances: dict[tuple[frozenset[str], frozenset[str]], float] = {}
    held: Segment | None = None
    for position, (at_ns, _, node, state) in enumerate(edges):
        if state is None:
            known.pop(node, None)
        else:
            known[node] = state
        next_ns = edges[position + 1][0] if position + 1 < len(edges) else at_ns
        if next_ns == at_ns or not known:
            continue
        segment = Segment(at_ns, next_ns, _greatest(known, distances), len(known))
        if held and held.end_ns == at_ns and held[2:] == segment[2:]:
            held = held._replace(end_ns=next_ns)
            continue
        if held:
            yield held
        held = segment
    if held:
        yield held


def _greatest(known: dict[str, frozenset[str]], distances: dict[tuple[frozenset[str], frozenset[str]], float]) -> float:
    greatest = 0.0
    for left, right in combinations(set(known.values()), 2):
        found = distances.get((left, right))
        if found is None:
            if len(distances) > 10_000:
                distances.clear()
            found = distances[left, right] = distances[right, left] = distance(left, right)
        greatest = max(greatest, found)
    return greatest
