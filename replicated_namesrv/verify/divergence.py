"""Divergence of nodes over time (M14) and convergence (M15), as the checks of chaos runs and the analysis of many runs use them.

An answer of a node is known from one look at the node until the next one (``known_answers``). Knowledge ends when the node does
not answer, and when the observer itself stalled. A node without a known answer differs from no other node.

D(t) is the greatest distance of any two nodes whose answers are known at t. The distance of two answers is
1 - |A and B| / |A or B| (Jaccard), and 0 for two empty ones.

Nodes are looked at one after the other, so a change that happens on all of them at once looks like a difference until the last
node was looked at. Only its duration distinguishes it from a real difference. Therefore ``resolved`` is the divergence without
differences that lasted ``resolution_ns`` or less.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import combinations, groupby, pairwise
from typing import Generic, NamedTuple, TypeVar

STALL_NS = 3_000_000_000
"""The observer looks at each node at least once a second. After three seconds without a look the node's answer is unknown."""
RESOLUTION_LOOKS = 2
"""A node is looked at again one interval after its answer. Two answers are therefore one interval plus the duration of the
second look apart, and a difference of less than two intervals may be one change that was seen on one node after the other."""

_Answer = TypeVar("_Answer")


def resolution_ns(observe_interval_ms: int) -> int:
    """Longest difference that can be an artefact of looking at one node after another."""
    return RESOLUTION_LOOKS * observe_interval_ms * 1_000_000


class Look(NamedTuple, Generic[_Answer]):
    """Consecutive looks at one node with the same answer. A single look has ``from_ns`` equal to ``last_ns``."""

    from_ns: int
    """Time of the first look: of its answer, or of the question if there was no answer."""
    last_ns: int
    answer: _Answer | None
    """None: the node did not answer."""


class Known(NamedTuple, Generic[_Answer]):
    """A node gave one answer in [from_ns, until_ns)."""

    from_ns: int
    until_ns: int
    answer: _Answer


def known_answers(looks: Iterable[Look[_Answer]]) -> Iterator[Known[_Answer]]:
    """Spans in which the answer of one node is known, by time. A last look, and one before a stall of the observer, ends its
    span."""
    begun: Look[_Answer] | None = None
    ordered = sorted(looks, key=lambda look: (look.from_ns, look.last_ns))
    for look, following in pairwise([*ordered, None]):
        assert look is not None
        begun = begun or look
        stalled = following is None or following.from_ns - look.last_ns > STALL_NS
        if following is not None and not stalled and following.answer == begun.answer:
            continue
        if begun.answer is not None:
            until_ns = look.last_ns if following is None or stalled else following.from_ns
            yield Known(begun.from_ns, until_ns, begun.answer)
        begun = None


class NodeAnswer(NamedTuple):
    """One node answered ``state`` in [from_ns, until_ns): members as ``name@version``."""

    node: str
    from_ns: int
    until_ns: int
    state: frozenset[str]


class DivergenceSegment(NamedTuple):
    """``divergence`` (0 to 1) in [start_ns, end_ns) among ``nodes_known`` nodes; ``resolved`` ignores short differences."""

    start_ns: int
    end_ns: int
    divergence: float
    nodes_known: int
    resolved: float


class _Edge(NamedTuple):
    at_ns: int
    begins: int
    """0 before 1: at equal times, ends come before begins."""
    node: str
    state: frozenset[str] | None


Pair = tuple[str, str]
Lasting = defaultdict[Pair, set[str]]
"""Members in which two nodes have a lasting difference."""


def distance(left: AbstractSet[str], right: AbstractSet[str]) -> float:
    """Jaccard distance."""
    together = len(left | right)
    return 1.0 - len(left & right) / together if together else 0.0


def segments_of(changes: Iterable[NodeAnswer], resolution_ns: int = 0) -> Iterator[DivergenceSegment]:
    """Segments by time. Neighbours with equal values are joined; spans without a known node are left out.

    Spans of one node must not overlap. Differences of ``resolution_ns`` or less are not resolved.
    """
    edges = _edges(changes)
    lasting = iter([*_lasting(edges, resolution_ns), (None, None, None, False)])
    lasting_ns, pair, name, begins = next(lasting)
    known: dict[str, frozenset[str]] = {}
    distances: dict[tuple[frozenset[str], frozenset[str]], float] = {}
    apart: Lasting = defaultdict(set)
    held: DivergenceSegment | None = None
    for position, edge in enumerate(edges):
        if edge.state is None:
            known.pop(edge.node, None)
        else:
            known[edge.node] = edge.state
        next_ns = edges[position + 1].at_ns if position + 1 < len(edges) else edge.at_ns
        if next_ns == edge.at_ns:
            continue
        while lasting_ns is not None and pair is not None and name is not None and lasting_ns <= edge.at_ns:
            (apart[pair].add if begins else apart[pair].discard)(name)
            lasting_ns, pair, name, begins = next(lasting)
        if not known:
            continue
        found = _greatest(known, distances)
        segment = DivergenceSegment(edge.at_ns, next_ns, found, len(known), _greatest_lasting(known, apart) if found else 0.0)
        if held and held.end_ns == edge.at_ns and held[2:] == segment[2:]:
            held = held._replace(end_ns=next_ns)
            continue
        if held:
            yield held
        held = segment
    if held:
        yield held


def _edges(changes: Iterable[NodeAnswer]) -> list[_Edge]:
    edges = []
    for change in changes:
        if change.until_ns > change.from_ns:
            edges.append(_Edge(change.from_ns, 1, change.node, change.state))
            edges.append(_Edge(change.until_ns, 0, change.node, None))
    return sorted(edges, key=lambda edge: edge[:3])


def _lasting(edges: list[_Edge], resolution_ns: int) -> list[tuple[int, Pair, str, bool]]:
    """When two nodes began and ceased to differ in a member, for differences longer than ``resolution_ns``, by time."""
    known: dict[str, dict[str, str]] = {}
    since: dict[tuple[Pair, str], int] = {}
    found: list[tuple[int, Pair, str, bool]] = []
    by_name: dict[frozenset[str], dict[str, str]] = {}
    for at_ns, together in groupby(edges, key=lambda edge: edge.at_ns):
        # Consecutive states that meet at one moment form one difference, because the nodes did not agree between them.
        states = {edge.node: edge.state for edge in together}
        before = {node: known.pop(node, None) for node in states}
        for node, state in states.items():
            if state is None:
                _close(since, found, node, at_ns, resolution_ns)
            else:
                known[node] = by_name.setdefault(state, {_name(member): member for member in state})
        for node, own in [(node, known[node]) for node in states if node in known]:
            former = before[node]
            changed = None if former is None else {name for name, _ in own.items() ^ former.items()}
            for other, theirs in known.items():
                pair = (min(node, other), max(node, other))
                for name in own.keys() | theirs.keys() if changed is None else changed:
                    if own.get(name) != theirs.get(name):
                        since.setdefault((pair, name), at_ns)
                    elif (start_ns := since.pop((pair, name), None)) is not None:
                        _note(found, pair, name, start_ns, at_ns, resolution_ns)
    return sorted(found, key=lambda mark: (mark[0], mark[3]))


def _name(member: str) -> str:
    return member.rpartition("@")[0] or member


def _close(
    since: dict[tuple[Pair, str], int], found: list[tuple[int, Pair, str, bool]], node: str, at_ns: int, least: int
) -> None:
    """The answer of ``node`` becomes unknown, so it differs from no node."""
    for pair, name in [key for key in since if node in key[0]]:
        _note(found, pair, name, since.pop((pair, name)), at_ns, least)


def _note(found: list[tuple[int, Pair, str, bool]], pair: Pair, name: str, start_ns: int, end_ns: int, least: int) -> None:
    if end_ns - start_ns > least:
        found.append((start_ns, pair, name, True))
        found.append((end_ns, pair, name, False))


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


def _greatest_lasting(known: dict[str, frozenset[str]], apart: Lasting) -> float:
    """Like ``_greatest``, but only lasting differences count: for all other members the second node is assumed to equal the
    first."""
    greatest = 0.0
    for (first, second), names in apart.items():
        if names:
            left, right = known[first], known[second]
            same = {member for member in left if _name(member) not in names}
            greatest = max(greatest, distance(left, same | {member for member in right if _name(member) in names}))
    return greatest


class Divergence(NamedTuple):
    """Resolved divergence of a run in two figures."""

    seconds: float
    """Time with a resolved divergence."""
    greatest: float
    """Greatest resolved divergence, 0 to 1."""


def divergence_of(segments: Iterable[DivergenceSegment]) -> Divergence:
    """The figures for the segments of one key."""
    apart = [segment for segment in segments if segment.resolved > 0]
    length_ns = sum(segment.end_ns - segment.start_ns for segment in apart)
    return Divergence(length_ns / 1e9, max((segment.resolved for segment in apart), default=0.0))


def convergence_ns(segments: Iterable[DivergenceSegment], heal_ns: int) -> int | None:
    """Convergence (M15) of one key: from ``heal_ns`` until the end of the last resolved divergence. 0 if there was none since.

    None: its end was not seen. The end is seen only if as many nodes as took part in the last moments of the divergence answered
    afterwards, because a node that stops answering does not make the nodes agree."""
    by_time = sorted(segments)
    late = [segment for segment in by_time if segment.resolved > 0 and segment.end_ns > heal_ns]
    if not late:
        return 0
    last = late[-1]
    after = max((segment.nodes_known for segment in by_time if segment.start_ns >= last.end_ns), default=0)
    return last.end_ns - heal_ns if after >= last.nodes_known else None
