"""What clients saw of one key, judged, pure: anomalies, staleness, sessions, how far from atomic (M2, M4 to M8, M10, M19).

Values are written once each, so a read names the write it saw. Nothing needs a total order of versions: write *v* is newer than
*w* when *w* had ended before *v* began, and a read is stale only by writes that are newer than what it returned and had been
acknowledged before it began. Concurrent writes make nobody stale.

"Absent" is written by every delete and was there at the beginning. A read of it is attributed to the latest of these that had
begun, the most favourable one; only ``clusters`` tries the earlier ones too.

A *cluster* is a write with the reads that returned it. Cluster A comes before B when a member of A ended before a member of B
began. Two that come before each other are in conflict; a history of unique values is atomic exactly if no two are and no read
ended before its write began (Gibbons & Korach 1997). Delta (M7) and Gamma (M8) are what it takes to remove all conflicts.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BEGINNING = -math.inf
NEVER = math.inf


class Event(NamedTuple):
    """One operation on the key."""

    op: int
    client: str
    kind: str
    """put, delete or get."""
    value: str | None
    start_ns: float
    end_ns: float
    """NEVER for an indeterminate one."""
    outcome: str
    final: bool
    """A read of the quiescent end of the run."""


@dataclass(slots=True)
class Write:
    """A write and the reads attributed to it."""

    op: int | None
    """None: what was there at the beginning."""
    client: str
    value: str | None
    start_ns: float
    end_ns: float
    reads: list[Event] = field(default_factory=list)
    first_end: float = field(init=False)
    """When the first of its members had ended."""
    last_start: float = field(init=False)
    """When the last of its members began."""

    def __post_init__(self) -> None:
        self.first_end, self.last_start = self.end_ns, self.start_ns

    def take(self, read: Event) -> None:
        """Count ``read`` among the members."""
        self.reads.append(read)
        self.first_end, self.last_start = min(self.first_end, read.end_ns), max(self.last_start, read.start_ns)


class Read(NamedTuple):
    """Judgement of one read that was answered."""

    op: int
    anomalous: bool
    """It cannot be merged into its write (M2)."""
    versions_behind: int | None
    """Versions acknowledged before it began and newer than what it returned (M6); None: nobody wrote what it returned."""
    fresh: bool
    """It returned the latest acknowledged write or a newer one (M5)."""
    age_ns: int | None
    """Since the acknowledgement of the first write it missed; for a fresh read, of the last one. None: no write yet."""
    read_your_writes: bool
    """True: the guarantee is broken; so for the following (M10)."""
    monotonic_reads: bool
    monotonic_writes: bool
    writes_follow_reads: bool
    lost: bool
    """A final read that misses an acknowledged write (M19)."""
    resurrected: bool
    """A final read that returns what an acknowledged delete had removed."""


class Window(NamedTuple):
    """Inconsistency window of one acknowledged write (M4): from its acknowledgement to the last read of something older."""

    op: int
    window_ns: int
    reads_after: int


class Distance(NamedTuple):
    """How far a key is from atomic."""

    delta_ns: int | None
    """M7: smallest shift of all reads' starts; None: no shift helps."""
    pairs: int
    conflicts: int
    gamma_max_ns: int
    """M8: largest of the pairs' smallest symmetric widenings, half of it on either side of each operation."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that is said of one key."""

    reads: list[Read]
    windows: list[Window]
    distance: Distance


def judge(events: Iterable[Event], atomic: bool = False) -> Judgement:
    """Judge the operations of one key. Failed ones are left out, and so are reads without an answer.

    ``atomic``: the history is known to be linearizable, so nothing in it is anomalous. Without deletes that would be found here
    too; with them a read of "absent" may have been merged into the wrong one, so the anomalies found are an upper bound.
    """
    ordered = sorted(events, key=lambda event: (event.start_ns, event.op))
    writes = _writes(ordered)
    reads = [event for event in ordered if event.kind == "get" and event.outcome == "ok"]
    acknowledged = sorted((w for w in writes if w.op is not None and w.end_ns < NEVER), key=lambda w: w.end_ns)
    history = _History(acknowledged, _by_value(writes))
    sessions = _Sessions(ordered, history)
    anomalous = set() if atomic else _merge(reads, history.by_value)
    judged = [history.judge(read, read.op in anomalous, sessions.broken[read.op]) for read in reads]
    distance = _distance(writes, [] if atomic else reads, history)
    return Judgement(judged, _windows(acknowledged, reads, history), distance)


AGE_BINS_MS = tuple(2.0**power for power in range(-4, 18))
"""Upper bounds of the bins of ``visibility``; what is older than the last one, two minutes, tells nothing more."""


def visibility(events: Iterable[Event]) -> dict[float, tuple[int, int]]:
    """M5: pairs of an acknowledged write and a read begun after that, by the time between them (upper bound of its bin, ms):
    how many there are, and in how many the read saw the write or something newer, or concurrent with it."""
    ordered = sorted(events, key=lambda event: (event.start_ns, event.op))
    writes = _writes(ordered)
    acknowledged = sorted((w for w in writes if w.op is not None and w.end_ns < NEVER), key=lambda w: w.end_ns)
    history = _History(acknowledged, _by_value(writes))
    ends = [write.end_ns for write in acknowledged]
    counts = [[0, 0] for _ in AGE_BINS_MS]
    for read in ordered:
        if read.kind != "get" or read.outcome != "ok" or read.final:
            continue
        source = history.source(read)
        if source is None:
            continue  # of a value that nobody wrote, nothing can be said
        marks = [bisect_left(ends, read.start_ns), *(bisect_left(ends, read.start_ns - age * 1e6) for age in AGE_BINS_MS)]
        for count, upper, lower in zip(counts, marks, marks[1:], strict=False):
            count[0] += upper - lower
        for write in history.missed(read, source):
            place = bisect_left(AGE_BINS_MS, (read.start_ns - write.end_ns) / 1e6)
            if place < len(counts):
                counts[place][1] += 1
    return {age: (pairs, pairs - unseen) for age, (pairs, unseen) in zip(AGE_BINS_MS, counts, strict=True) if pairs}


def _writes(events: Sequence[Event]) -> list[Write]:
    beginning = Write(None, "", None, BEGINNING, BEGINNING)
    done = [event for event in events if event.kind != "get" and event.outcome != "fail"]
    return [beginning, *(Write(e.op, e.client, e.value if e.kind == "put" else None, e.start_ns, e.end_ns) for e in done)]


def _by_value(writes: Iterable[Write]) -> dict[str | None, list[Write]]:
    found: dict[str | None, list[Write]] = defaultdict(list)
    for write in writes:
        found[write.value].append(write)
    return found


def _candidates(read: Event, by_value: dict[str | None, list[Write]]) -> list[Write]:
    """Writes that ``read`` may have seen, the latest first; the only write of a value always, even one that began after it."""
    found = by_value.get(read.value, [])
    if len(found) == 1:
        return found
    return sorted((w for w in found if w.start_ns < read.end_ns), key=lambda w: (w.end_ns, w.start_ns), reverse=True)


class _History:
    """Acknowledged writes in the order of their acknowledgement."""

    def __init__(self, acknowledged: list[Write], by_value: dict[str | None, list[Write]]) -> None:
        self.by_value = by_value
        self._acknowledged = acknowledged
        self._ends = [write.end_ns for write in acknowledged]

    def source(self, read: Event) -> Write | None:
        """The write that ``read`` saw; None: nobody wrote that."""
        return next(iter(_candidates(read, self.by_value)), None)

    def missed(self, read: Event, source: Write | None) -> list[Write]:
        """Acknowledged before ``read`` began and newer than ``source``, in order of acknowledgement."""
        before = self._acknowledged[: bisect_left(self._ends, read.start_ns)]
        since = BEGINNING if source is None else source.end_ns
        first = bisect_left(self._ends, since)  # a newer one ends after ``since``
        return [write for write in before[first:] if write.start_ns > since]

    def judge(self, read: Event, anomalous: bool, broken: "_Broken") -> Read:
        source = self.source(read)
        missed = self.missed(read, source)
        last = bisect_left(self._ends, read.start_ns) - 1
        since = missed[0].end_ns if missed else self._ends[last] if last >= 0 else None
        resurrected = read.final and read.value is not None and any(write.value is None for write in missed)
        return Read(
            read.op,
            anomalous,
            None if source is None else len(missed),
            source is not None and not missed,
            None if since is None else int(read.start_ns - since),
            *broken,
            read.final and bool(missed),
            resurrected,
        )


class _Broken(NamedTuple):
    read_your_writes: bool
    monotonic_reads: bool
    monotonic_writes: bool
    writes_follow_reads: bool


class _Sessions:
    """Session guarantees of every client on this key (Terry et al. 1994), read by read.

    ``broken`` holds for each answered read which guarantee it broke: it returned something older than what its client had
    written (read your writes) or read before (monotonic reads), than a later write of the same writer it had read before
    (monotonic writes), or than what the writer of something it had read before knew when writing that (writes follow reads).
    """

    def __init__(self, ordered: Sequence[Event], history: _History) -> None:
        self.broken: dict[int, _Broken] = {}
        self._history = history
        clients: dict[str, list[Event]] = defaultdict(list)
        for event in ordered:
            clients[event.client].append(event)
        known_before = self._known_before(clients)
        for events in clients.values():
            self._walk(events, known_before)

    def _known_before(self, clients: dict[str, list[Event]]) -> dict[int, float]:
        """For each write the greatest start of a write that its client had read before it."""
        known: dict[int, float] = {}
        for events in clients.values():
            for event in events:
                if event.kind != "get":
                    known[event.op] = max(
                        (source.start_ns for source, _ in self._sources(events, event.start_ns)), default=BEGINNING
                    )
        return known

    def _sources(self, events: Sequence[Event], until_ns: float) -> list[tuple[Write, Event]]:
        reads = [e for e in events if e.kind == "get" and e.outcome == "ok" and e.end_ns < until_ns]
        return [(source, read) for read in reads if (source := self._history.source(read)) is not None]

    def _walk(self, events: Sequence[Event], known_before: dict[int, float]) -> None:
        own = [e for e in events if e.kind != "get" and e.outcome == "ok"]
        for read in events:
            if read.kind != "get" or read.outcome != "ok":
                continue
            source = self._history.source(read)
            end_ns = BEGINNING if source is None else source.end_ns
            before = [seen for seen, _ in self._sources(events, read.start_ns)]
            writer = None if source is None or source.op is None else source.client
            self.broken[read.op] = _Broken(
                any(write.end_ns < read.start_ns and write.start_ns > end_ns for write in own),
                any(seen.start_ns > end_ns for seen in before),
                any(seen.client == writer and seen.op is not None and seen.start_ns > end_ns for seen in before),
                any(seen.op is not None and known_before[seen.op] > end_ns for seen in before),
            )


def _merge(reads: Sequence[Event], by_value: dict[str | None, list[Write]]) -> set[int]:
    """Numbers of the reads that cannot be merged into their write, taken in order of their ends (Lu et al. 2015)."""
    clusters = [write for group in by_value.values() for write in group]
    anomalous: set[int] = set()
    for read in sorted(reads, key=lambda event: (event.end_ns, event.op)):
        for write in _candidates(read, by_value):
            if read.end_ns >= write.start_ns and not _would_conflict(write, read, clusters):
                write.take(read)
                break
        else:
            anomalous.add(read.op)
    return anomalous


def _would_conflict(write: Write, read: Event, clusters: Sequence[Write]) -> bool:
    first_end, last_start = min(write.first_end, read.end_ns), max(write.last_start, read.start_ns)
    return any(other is not write and other.first_end < last_start and first_end < other.last_start for other in clusters)


def _windows(acknowledged: Sequence[Write], reads: Sequence[Event], history: _History) -> list[Window]:
    found: dict[int, list[float]] = {write.op: [0, 0] for write in acknowledged if write.op is not None}
    for read in reads:
        for write in history.missed(read, history.source(read)):
            assert write.op is not None
            entry = found[write.op]
            entry[0] = max(entry[0], read.start_ns - write.end_ns)
    starts = sorted(read.start_ns for read in reads)
    return [
        Window(write.op, int(found[write.op][0]), len(starts) - bisect_left(starts, write.end_ns))
        for write in acknowledged
        if write.op is not None
    ]


class _Zone(NamedTuple):
    first_end: float
    last_start: float
    write_start: float
    read_start: float


def _distance(writes: Sequence[Write], reads: Sequence[Event], history: _History) -> Distance:
    """Delta and Gamma with every read in its cluster, anomalous or not."""
    placed = {read.op for write in writes for read in write.reads}
    members = {id(write): list(write.reads) for write in writes}
    impossible = False
    gamma = 0.0
    for read in reads:
        if read.op in placed:
            continue
        source = history.source(read)
        if source is None:
            impossible = True  # of a value that nobody wrote, neither says anything
            continue
        members[id(source)].append(read)
        if read.end_ns < source.start_ns:
            impossible = True
            gamma = max(gamma, source.start_ns - read.end_ns)
    zones = sorted(_zone(write, members[id(write)]) for write in writes if write.end_ns < NEVER or members[id(write)])
    ends = [zone.first_end for zone in zones]
    delta, conflicts = 0.0, 0
    for position, zone in enumerate(zones):
        upper = bisect_left(ends, zone.last_start)
        for other in zones[position + 1 : upper]:
            if other.last_start > zone.first_end and other.first_end < zone.last_start:
                conflicts += 1
                gamma = max(gamma, min(other.last_start - zone.first_end, zone.last_start - other.first_end))
                delta = max(delta, min(_shift(zone, other), _shift(other, zone)))
    pairs = len(zones) * (len(zones) - 1) // 2
    hopeless = impossible or delta == math.inf
    return Distance(None if hopeless else int(delta), pairs, conflicts, int(gamma))


def _zone(write: Write, reads: Sequence[Event]) -> _Zone:
    first_end = min([write.end_ns, *(read.end_ns for read in reads)])
    read_start = max((read.start_ns for read in reads), default=BEGINNING)
    return _Zone(first_end, max(write.start_ns, read_start), write.start_ns, read_start)


def _shift(before: _Zone, after: _Zone) -> float:
    """How much earlier the reads of ``after`` have to begin for it to no longer come after ``before``."""
    return math.inf if after.write_start > before.first_end else after.read_start - before.first_end
