"""The figures by their definitions, as simple as possible and without regard to speed."""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from replicated_namesrv.verify.attribution import NEVER, KeyEvent


def random_history(seed: int, deletes: bool = False) -> list[KeyEvent]:
    """Few clients, few operations, small times: every kind of overlap turns up."""
    chooser = random.Random(seed)
    events, written, op = [], 0, 0
    for client in range(chooser.randint(1, 3)):
        now = chooser.randint(0, 5)
        for _ in range(chooser.randint(1, 4)):
            op += 1
            start = now + chooser.randint(1, 6)
            now = start + chooser.randint(1, 8)
            kind = chooser.choice(("put", "get", "get", "delete") if deletes else ("put", "get", "get"))
            outcome = "ok" if kind == "get" else chooser.choice(("ok", "ok", "ok", "fail", "indeterminate"))
            if kind == "put":
                written += 1
            value = (
                f"v{written}"
                if kind == "put"
                else chooser.choice([None, *(f"v{n}" for n in range(1, 6))])
                if kind == "get"
                else None
            )
            events.append(
                KeyEvent(op, f"c{client}", kind, value, start, NEVER if outcome == "indeterminate" else now, outcome, False)
            )
    known = {event.value for event in events if event.kind == "put" and event.outcome != "fail"}
    return [event for event in events if event.kind != "get" or event.value is None or event.value in known]


def linearizable(events: Iterable[KeyEvent]) -> bool:
    """M1 (Herlihy & Wing): some order of all acknowledged operations, and of any of the unacknowledged ones, respects real time
    and lets each read return what the last write before it wrote, or "absent" if there was none or it was a delete."""

    todo = [e for e in events if e.outcome != "fail" and (e.kind != "get" or e.outcome == "ok")]

    def after(value: Any, place: int) -> Any:
        event = todo[place]
        return (value if event.value == value else ILLEGAL) if event.kind == "get" else event.value

    return legal(todo, None, after)


ILLEGAL = object()


def legal(todo: Sequence[KeyEvent], begin: Any, after: Callable[[Any, int], Any]) -> bool:
    """Whether an order in real time is legal; ``after`` returns the state after the operation at a place."""

    @functools.cache
    def goes_on(left: frozenset[int], state: Any) -> bool:
        first_end = min((todo[i].end_ns for i in left), default=NEVER)
        if all(todo[i].end_ns == NEVER for i in left):
            return True
        possible = ((i, after(state, i)) for i in left if todo[i].start_ns <= first_end)
        return any(goes_on(left - {i}, then) for i, then in possible if then is not ILLEGAL)

    return goes_on(frozenset(range(len(todo))), begin)


def doubled(events: Sequence[KeyEvent], reads_earlier: float = 0.0, wider: float = 0.0) -> list[KeyEvent]:
    """The history at twice the resolution, with reads begun earlier, or all widened by half of ``wider`` on either side."""
    return [
        e._replace(
            start_ns=2 * e.start_ns - wider - (2 * reads_earlier if e.kind == "get" else 0) + 100,
            end_ns=2 * e.end_ns + wider + 100,
        )
        for e in events
    ]


BEGINNING = KeyEvent(-1, "", "delete", None, -math.inf, -math.inf, "ok", False)
"""The write of the initial state."""


def writes_of(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    return [BEGINNING, *(e for e in events if e.kind != "get" and e.outcome != "fail")]


def reads_of(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    return [e for e in events if e.kind == "get" and e.outcome == "ok"]


def candidates(read: KeyEvent, events: Sequence[KeyEvent]) -> list[KeyEvent]:
    """The writes of the value that the read returned, the latest end first. If there are several, only those that had begun
    before the read ended. Empty: the value was never written.
    """
    found = [w for w in writes_of(events) if w.value == read.value]
    begun = [w for w in found if w.start_ns <= read.end_ns] if len(found) > 1 else found
    return sorted(begun, key=lambda w: (w.end_ns, w.start_ns), reverse=True)


def source(read: KeyEvent, events: Sequence[KeyEvent]) -> KeyEvent | None:
    """The write that the read saw. If several writes are possible, the most favourable one."""
    return next(iter(candidates(read, events)), None)


def missed(read: KeyEvent, events: Sequence[KeyEvent]) -> list[KeyEvent]:
    """M6: writes that were acknowledged before the read began, and that began after the returned value had been acknowledged."""
    saw = source(read, events)
    since = -math.inf if saw is None else saw.end_ns
    return [e for e in events if e.kind != "get" and e.outcome == "ok" and e.end_ns < read.start_ns and e.start_ns > since]


def broken_guarantees(read: KeyEvent, events: Sequence[KeyEvent]) -> tuple[bool, bool, bool, bool]:
    """M10 (Terry et al.): read your writes, monotonic reads, monotonic writes, writes follow reads."""
    saw = source(read, events)
    since = -math.inf if saw is None else saw.end_ns
    mine = [e for e in events if e.client == read.client and e.end_ns < read.start_ns and e.outcome == "ok"]
    seen = [w for e in mine if e.kind == "get" and (w := source(e, events)) is not None]
    causes = [
        cause
        for write in seen
        for e in reads_of(events)
        if e.client == write.client and e.end_ns < write.start_ns and (cause := source(e, events)) is not None
    ]
    return (
        any(e.kind != "get" and e.start_ns > since for e in mine),
        any(w.start_ns > since for w in seen),
        saw is not None and any(w.client == saw.client and w.start_ns > since for w in seen),
        any(cause.start_ns > since for cause in causes),
    )


Clusters = dict[KeyEvent, list[KeyEvent]]
"""Each write with the reads that returned it."""


def comes_before(a: Sequence[KeyEvent], b: Sequence[KeyEvent], widened: float = 0.0) -> bool:
    """Whether an operation of ``a`` ended before an operation of ``b`` began. All are widened by half of ``widened`` on either
    side."""
    return any(x.end_ns + widened / 2 < y.start_ns - widened / 2 for x in a for y in b)


def has_cycle(clusters: Clusters) -> bool:
    """Whether the graph of ``comes_before``, with a vertex for each cluster, has a cycle."""
    left = [[write, *reads] for write, reads in clusters.items()]
    while left:
        first = [b for b in left if not any(a is not b and comes_before(a, b) for a in left)]
        if not first:
            return True
        left = [b for b in left if b not in first]
    return False


def merged(events: Sequence[KeyEvent]) -> tuple[Clusters, list[KeyEvent]]:
    """M2 (Lu et al.): the reads are merged into their writes one after the other. Returns the clusters, and the reads that cannot
    be merged without a cycle."""
    clusters: Clusters = {write: [] for write in writes_of(events)}
    anomalous = []
    for read in sorted(reads_of(events), key=lambda e: (e.end_ns, e.op)):
        for write in candidates(read, events):
            if not read.end_ns < write.start_ns and not has_cycle({**clusters, write: [*clusters[write], read]}):
                clusters[write].append(read)
                break
        else:
            anomalous.append(read)
    return clusters, anomalous


def unique(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    """The history with a unique value for each write. A read returns the value of the write into which it was merged, or else of
    the most favourable one. Reads of values that were never written are left out."""
    clusters, _ = merged(events)
    saw = {read: write for write, reads in clusters.items() for read in reads}
    found = [e._replace(kind="put", value=_own(e)) for e in events if e.kind != "get"]
    for read in reads_of(events):
        write = saw.get(read) or source(read, events)
        if write is not None:
            found.append(read._replace(value=_own(write)))
    return found


def _own(write: KeyEvent) -> str | None:
    return None if write is BEGINNING else f"{write.value} by {write.op}"


def delta(events: Sequence[KeyEvent], atomic: bool) -> int | None:
    """M7 (Golab, Li and Shah): the least whole number by which all reads have to begin earlier; None: there is none. ``atomic``:
    the whole history is known to be linearizable, so reads of "absent" are attributed correctly."""
    if atomic:
        return 0
    known = unique(events)
    if len(reads_of(known)) < len(reads_of(events)):
        return None
    enough = bisect.bisect_left(range(LONGEST), True, key=lambda earlier: linearizable(doubled(known, reads_earlier=earlier)))
    return enough if enough < LONGEST else None


LONGEST = 220
"""A time that is longer than any history here."""


def gammas(events: Sequence[KeyEvent], atomic: bool) -> tuple[int, list[int], list[int]]:
    """M8 (Golab et al.): the number of pairs of clusters, the scores of pairs in conflict, and the scores of clusters with a read
    that ended before its write began. A score is the least whole number by which every operation has to be widened, half of it on
    either side, so that one no longer comes before the other."""
    if atomic:
        kept = [w for w in writes_of(events) if w.outcome == "ok" or w in [source(read, events) for read in reads_of(events)]]
        return len(list(itertools.combinations(kept, 2))), [], []
    known = unique(events)
    clusters = [[BEGINNING, *(e for e in reads_of(known) if e.value is None)]]
    for write in (e for e in known if e.kind == "put" and e.outcome != "fail"):
        seen = [e for e in reads_of(known) if e.value == write.value]
        if seen or write.outcome == "ok":
            clusters.append([write, *seen])
    pairs = list(itertools.combinations(clusters, 2))

    def least(a: Sequence[KeyEvent], b: Sequence[KeyEvent]) -> int:
        return next(w for w in itertools.count() if not (comes_before(a, b, w) and comes_before(b, a, w)))

    alone = [next(w for w in itertools.count() if not comes_before(reads, [write], w)) for write, *reads in clusters]
    return len(pairs), [score for a, b in pairs if (score := least(a, b))], [score for score in alone if score]


Seen = tuple[int, int, frozenset[str]]
"""Question and arrival of an answer, and its members."""


def random_series(seed: int) -> dict[str, list[list[Seen]]]:
    """Up to four nodes, each with series of answers one after the other, and gaps between the series."""
    chooser = random.Random(seed)
    found: dict[str, list[list[Seen]]] = {}
    for node in range(chooser.randint(1, 4)):
        now, state = chooser.randint(0, 5), frozenset[str]()
        found[f"n{node}"] = []
        for _ in range(chooser.randint(1, 2)):
            series = []
            for _ in range(chooser.randint(1, 6)):
                if chooser.random() < 0.6:
                    names = chooser.sample("abc", chooser.randint(0, 3))
                    state = frozenset(f"{name}@{chooser.randint(1, 2)}" for name in names)
                asked, now = now, now + chooser.randint(0, 3)
                series.append((asked, now, state))
                now += chooser.randint(1, 5)
            found[f"n{node}"].append(series)
            now += 5
    return found


Standing = tuple[frozenset[str], ...]


def standing(series: Sequence[Seen], moment: int) -> Standing:
    """States that a node may be in at a moment, from its answers without silence between; empty if nothing is known. The state in
    an answer is that of some moment between question and arrival, and changes at most once between two looks."""
    if not series[0][1] <= moment < series[-1][0]:
        return ()
    pairs = ((one, other) for one, other in itertools.pairwise(series) if one[0] <= moment < other[1])
    return tuple(sorted({look[2] for pair in pairs for look in pair}, key=sorted))


def divergence_bounds(standings: Sequence[Standing]) -> tuple[float, float, int] | None:
    """Certain and possible divergence, and the number of known nodes. None: no node is known."""
    bounds = [_bounds(one, other) for one, other in itertools.combinations(standings, 2)]
    greatest = (max((pair[place] for pair in bounds), default=0.0) for place in (0, 1))
    return (*greatest, len(standings)) if standings else None  # type: ignore[return-value]  # two bounds and a number


@functools.cache
def _bounds(one: Standing, other: Standing) -> tuple[float, float]:
    """All values of all members. A member that changed may have any value at the least distance, and its old or new value at the
    greatest."""
    names = sorted({member.split("@")[0] for standing in (one, other) for state in standing for member in state})
    every = {name: {m for s in (one, other) for state in s for m in state if m.split("@")[0] == name} for name in names}

    def values(standing: Standing, name: str, free: bool) -> list[str | None]:
        found = {next((m for m in state if m.split("@")[0] == name), None) for state in standing}
        return sorted({*found, *every[name], None} if free and len(found) > 1 else found, key=str)

    def distances(free: bool) -> list[float]:
        sides = [[values(standing, name, free) for name in names] for standing in (one, other)]
        found = []
        for mine in itertools.product(*sides[0]):
            for theirs in itertools.product(*sides[1]):
                a, b = {m for m in mine if m}, {m for m in theirs if m}
                found.append(1 - len(a & b) / len(a | b) if a | b else 0.0)
        return found

    return min(distances(True)), max(distances(False))
