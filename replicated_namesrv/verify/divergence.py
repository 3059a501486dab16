"""Divergence and convergence of nodes (M14, M15 of spark/DESIGN.md), for the checks of chaos runs and the analysis of many runs.

A look asks a node for its answer. The answer is the node's state at some moment between the question (``asked``) and its arrival,
so the observation is censored: between two looks with different answers, the time of the change is unknown. Therefore D(t), the
greatest Jaccard distance of any two nodes whose answers are known at t, is given by two bounds:

- ``certain``: the least distance that the answers permit. A member that changed between two looks may have had any value there.
- ``possible``: the greatest distance of the answers before and after such a change.

A series of equal answers of a node is known from the arrival of the first answer until the last question was sent. A node's
answer is unknown after a question without an answer, and while the observer stalled. A node without a known answer differs from
no other node. A state that changed and changed back between two looks is not observed.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import combinations, pairwise
from typing import Generic, NamedTuple, TypeVar

STALL_NS = 3_000_000_000
"""The observer looks at each node at least once a second. After three seconds without a look the node's answer is unknown."""

_Answer = TypeVar("_Answer")


class Look(NamedTuple, Generic[_Answer]):
    """Consecutive looks at one node with the same answer. For a single look, the times of the last look equal those of the
    first.
    """

    asked_ns: int
    """Time of the question of the first look."""
    from_ns: int
    """Arrival of the first answer, or the time of its question if no answer came."""
    last_asked_ns: int
    last_ns: int
    answer: _Answer | None
    """The answer of the node in these looks. None: the node did not answer."""


class Known(NamedTuple, Generic[_Answer]):
    """A node gave one answer from ``from_ns`` until ``until_ns``, when the next look had another result."""

    from_ns: int
    until_ns: int
    answer: _Answer
    last_asked_ns: int
    """Question of the last look with this answer. Until then the node certainly had this state."""
    follows: bool
    """Whether the node is known to have had another answer at the look before."""


def known_answers(looks: Iterable[Look[_Answer]]) -> Iterator[Known[_Answer]]:
    """Spans in which the answer of one node is known, by time. The last look, and a look before a stall of the observer, end the
    span of their answer."""
    begun: Look[_Answer] | None = None
    follows = False
    ordered = sorted(looks, key=lambda look: (look.from_ns, look.last_ns))
    for look, following in pairwise([*ordered, None]):
        assert look is not None
        begun = begun or look
        stalled = following is None or following.from_ns - look.last_ns > STALL_NS
        if following is not None and not stalled and following.answer == begun.answer:
            continue
        if begun.answer is not None:
            until_ns = look.last_ns if following is None or stalled else following.from_ns
            yield Known(begun.from_ns, until_ns, begun.answer, look.last_asked_ns, follows)
        follows = begun.answer is not None and not stalled
        begun = None


class NodeAnswer(NamedTuple):
    """A span (``Known``) in which one node answered ``state``. Each member of ``state`` is ``name@version``."""

    node: str
    from_ns: int
    until_ns: int
    state: frozenset[str]
    last_asked_ns: int
    follows: bool


class DivergenceSegment(NamedTuple):
    """Bounds of the divergence (0 to 1) in [start_ns, end_ns) among ``nodes_known`` nodes."""

    start_ns: int
    end_ns: int
    certain: float
    possible: float
    nodes_known: int


State = frozenset[str]
Standing = tuple[State, ...]
"""States that a node may be in at one moment: one, or those before and after a change."""


def distance(left: AbstractSet[str], right: AbstractSet[str]) -> float:
    """Jaccard distance."""
    together = len(left | right)
    return 1.0 - len(left & right) / together if together else 0.0


def segments_of(answers: Iterable[NodeAnswer]) -> Iterator[DivergenceSegment]:
    """Segments by time. Neighbours with equal values are joined; spans without a known node are left out."""
    edges = sorted(_edges(answers), key=lambda edge: edge[:2])
    may_be: defaultdict[str, list[State]] = defaultdict(list)
    bounds = _Bounds()
    held: DivergenceSegment | None = None
    for position, (at_ns, begins, node, state) in enumerate(edges):
        if begins:
            may_be[node].append(state)
        else:
            may_be[node].remove(state)
            if not may_be[node]:
                del may_be[node]
        next_ns = edges[position + 1][0] if position + 1 < len(edges) else at_ns
        if next_ns == at_ns or not may_be:
            continue
        certain, possible = bounds.greatest([tuple(states) for states in may_be.values()])
        segment = DivergenceSegment(at_ns, next_ns, certain, possible, len(may_be))
        if held and held.end_ns == at_ns and held[2:] == segment[2:]:
            held = held._replace(end_ns=next_ns)
            continue
        if held:
            yield held
        held = segment
    if held:
        yield held


def _edges(answers: Iterable[NodeAnswer]) -> Iterator[tuple[int, int, str, State]]:
    """The times at which each node began (1) and ceased (0) to be possibly in a state, as (time, edge, node, state)."""
    of_node: defaultdict[str, list[NodeAnswer]] = defaultdict(list)
    for answer in answers:
        of_node[answer.node].append(answer)
    for node, found in of_node.items():
        found.sort(key=lambda answer: answer.from_ns)
        series: list[list[NodeAnswer]] = []
        for answer in found:
            if answer.follows and series:
                series[-1].append(answer)
            else:
                series.append([answer])
        for one in series:
            first_ns, last_ns = one[0].from_ns, one[-1].last_asked_ns
            for place, answer in enumerate(one):
                start_ns = max(first_ns, one[place - 1].last_asked_ns) if place else first_ns
                end_ns = min(last_ns, one[place + 1].from_ns) if place + 1 < len(one) else last_ns
                if start_ns < end_ns:
                    yield start_ns, 1, node, answer.state
                    yield end_ns, 0, node, answer.state


CACHED_MAX = 10_000
"""Maximum number of cached results. A result has the bounds for one pair of standings."""


class _Bounds:
    """Least and greatest distance of standings."""

    def __init__(self) -> None:
        self._known: dict[tuple[Standing, Standing], tuple[float, float]] = {}

    def greatest(self, standings: Iterable[Standing]) -> tuple[float, float]:
        """Over all pairs of ``standings``: the maximum of their least distances, and the maximum of their greatest distances."""
        certain = possible = 0.0
        for one, other in combinations(set(standings), 2):
            low, high = self._of(one, other)
            certain, possible = max(certain, low), max(possible, high)
        # Two nodes with the same two possible states differ if only one of the nodes has changed.
        doubts = [standing for standing in standings if len(standing) > 1]
        for standing in {doubt for doubt in doubts if doubts.count(doubt) > 1}:
            possible = max(possible, self._of(standing, standing)[1])
        return certain, possible

    def _of(self, one: Standing, other: Standing) -> tuple[float, float]:
        found = self._known.get((one, other))
        if found is None:
            if len(self._known) > CACHED_MAX:
                self._known.clear()
            found = self._known[one, other] = self._known[other, one] = _distances(one, other)
        return found


def _distances(one: Standing, other: Standing) -> tuple[float, float]:
    """Least and greatest distance of two standings, computed member by member."""
    if len(one) == len(other) == 1:
        found = distance(one[0], other[0])
        return found, found
    ours, theirs = _values(one), _values(other)
    low_equal = low_all = high_equal = high_all = 0
    for name in ours.keys() | theirs.keys():
        mine, their = ours.get(name, _ABSENT), theirs.get(name, _ABSENT)
        equal, total = _least(mine, their)
        low_equal, low_all = low_equal + equal, low_all + total
        equal, total = _most(mine, their)
        high_equal, high_all = high_equal + equal, high_all + total
    return _share_apart(low_equal, low_all), _share_apart(high_equal, high_all)


def _share_apart(equal: int, total: int) -> float:
    return 1.0 - equal / total if total else 0.0


_ABSENT: frozenset[str | None] = frozenset([None])


def _values(standing: Standing) -> dict[str, frozenset[str | None]]:
    """The values that each member may have; None: absent."""
    found: dict[str, set[str | None]] = defaultdict(set)
    for place, state in enumerate(standing):
        for member in state:
            name = member.rpartition("@")[0] or member
            if name not in found and place:
                found[name].add(None)
            found[name].add(member)
        for name in found.keys() - {member.rpartition("@")[0] or member for member in state}:
            found[name].add(None)
    return {name: frozenset(values) for name, values in found.items()}


def _least(mine: frozenset[str | None], their: frozenset[str | None]) -> tuple[int, int]:
    """What one member adds to the number of equal members and to the number of all members. If several values of the member are
    possible, the values with the least distance count."""
    known = [next(iter(values)) for values in (mine, their) if len(values) == 1]
    if len(known) == 2 and known[0] != known[1]:
        return 0, 2 - known.count(None)
    return (0, 0) if known and known[0] is None else (1, 1)


def _most(mine: frozenset[str | None], their: frozenset[str | None]) -> tuple[int, int]:
    """What one member adds to the number of equal members and to the number of all members. If several values of the member are
    possible, the values with the greatest distance count."""
    apart = max((2 - [a, b].count(None) for a in mine for b in their if a != b), default=0)
    if apart:
        return 0, apart
    return (0, 0) if None in mine else (1, 1)


class Divergence(NamedTuple):
    """Divergence of a run in a few figures."""

    seconds: float
    """Time in which nodes certainly differed."""
    greatest: float
    """Greatest certain divergence, 0 to 1."""
    possible_seconds: float
    """Time in which nodes possibly differed."""


def divergence_of(segments: Iterable[DivergenceSegment]) -> Divergence:
    """The figures for the segments of one key."""
    found = list(segments)
    apart, maybe = [one for one in found if one.certain > 0], [one for one in found if one.possible > 0]
    seconds, possible = (sum(one.end_ns - one.start_ns for one in part) / 1e9 for part in (apart, maybe))
    return Divergence(seconds, max((one.certain for one in apart), default=0.0), possible)


class Convergence(NamedTuple):
    """Convergence (M15) of nodes that had differed. None: convergence was not seen."""

    after_ns: int | None
    """From the repair to the end of the last certain difference; 0 if it had ended before."""
    agreed_ns: int | None
    """From the repair to the first moment after the last certain difference at which the nodes certainly agreed."""


def convergence_of(segments: Iterable[DivergenceSegment], fault_ns: int, repair_ns: int) -> Convergence | None:
    """Convergence of one key after the repair of the last link. None: since ``fault_ns`` nodes never differed for certain.

    The end of a difference counts only if at least as many nodes answer after it as before it: a node that stops answering does
    not make the nodes agree."""
    by_time = sorted(segments)
    apart = [segment for segment in by_time if segment.certain > 0 and segment.end_ns > fault_ns]
    if not apart:
        return None
    last = apart[-1]
    after = [one for one in by_time if one.start_ns >= last.end_ns and one.nodes_known >= last.nodes_known]
    agreed = next((one.start_ns for one in after if one.possible == 0), None)
    return Convergence(
        max(0, last.end_ns - repair_ns) if after or last.end_ns <= repair_ns else None,
        None if agreed is None else max(0, agreed - repair_ns),
    )
