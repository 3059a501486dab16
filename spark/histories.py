"""Judges the operations on one key: anomalies, staleness, session guarantees, distance from atomicity (M2, M4 to M8, M10,
M19). Pure.

Each value is written once, so it identifies its write. Versions are partially ordered: write *v* is newer than *w* if *w* had
ended before *v* began. A read is stale if a write is newer than the one it returned and was acknowledged before the read began.
The number of such writes is its staleness. Concurrent writes make no read stale.

"Absent" is the initial state and the result of every delete. A read of "absent" is attributed to the latest delete that had begun
before the read ended, or to the initial state. This choice gives the read the newest version that it can have. Only ``_merge``
also tries the earlier deletes.

A *cluster* is a write with the reads that returned it. Cluster A comes before B if a member of A ended before a member of B
began. Two clusters conflict if each comes before the other. A history of unique values is atomic if and only if no clusters
conflict and no read ended before its write began (Gibbons & Korach 1997). Delta (M7) and Gamma (M8) measure how far operations
must be shifted or widened to remove all conflicts.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicated_namesrv.verify.attribution import (
    BEGINNING,
    NEVER,
    KeyEvent,
    Write,
    attributed,
    by_value,
    candidates,
    writes_of,
)
from replicated_namesrv.verify.session_guarantees import Broken, accesses_by_time, session_verdicts


class Read(NamedTuple):
    """Judgement of one read that was answered."""

    op: int
    anomalous: bool
    """The read cannot be merged into its write (M2)."""
    versions_behind: int | None
    """Number of versions that were acknowledged before the read began and are newer than the version that it returned (M6). None:
    no write has the value.
    """
    fresh: bool
    """The read returned the latest acknowledged write or a newer one (M5)."""
    age_ns: int | None
    """Time since the acknowledgement of the first write that the read missed; for a fresh read, of the last write. None: there
    was no write so far, or no write has the value."""
    read_your_writes: bool
    """True: the read broke this guarantee (M10). The next three fields have the same form."""
    monotonic_reads: bool
    monotonic_writes: bool
    writes_follow_reads: bool
    lost: bool
    """True for a final read that misses an acknowledged write (M19)."""
    resurrected: bool
    """True for a final read that returned a value which an acknowledged delete had removed."""


class Window(NamedTuple):
    """Inconsistency window of one acknowledged write (M4): from its acknowledgement to the last read of an older value."""

    op: int
    window_ns: int
    seen_ns: int | None
    """Time from the acknowledgement of the write to the first read after the last read of an older value. None: there was no such
    read."""
    reads_after: int


class Distance(NamedTuple):
    """Distance of a key's history from atomicity."""

    delta_ns: int | None
    """M7: the smallest shift of the starts of all reads that makes the history atomic. None: no shift does."""
    pairs: int
    conflicts: int
    gamma_max_ns: int
    """M8: the greatest of ``gammas_ns``. The widening of a pair is the smallest one that resolves its conflict. It widens each
    operation by half of it at either side."""
    gammas_ns: list[int]
    """The widenings that the conflicting pairs need. If reads of a write ended before it began, also the widening that the first
    of them needs."""


@dataclass(frozen=True, slots=True)
class KeyJudgement:
    """All judgements of one key."""

    reads: list[Read]
    windows: list[Window]
    distance: Distance


def judge(events: Iterable[KeyEvent], atomic: bool = False) -> KeyJudgement:
    """Judge the operations of one key. Failed operations and reads without an answer are left out.

    ``atomic``: the history is known to be linearizable, so it has no anomalies. Without deletes the result would be the same
    without this argument. With deletes a read of "absent" may be attributed to the wrong delete, so the anomalies that are found
    are an upper bound.
    """
    ordered = sorted(events, key=lambda event: (event.start_ns, event.op))
    writes = writes_of(ordered)
    reads = [event for event in ordered if event.kind == "get" and event.outcome == "ok"]
    acknowledged = sorted((w for w in writes if w.op is not None and w.end_ns < NEVER), key=lambda w: w.end_ns)
    history = _History(acknowledged, by_value(writes), reads)
    sessions = session_verdicts(accesses_by_time(writes, reads, history.sources))
    anomalous = set() if atomic else _merge(reads, history.of_value)
    judged = [history.judge(read, read.op in anomalous, sessions[read.op].broken) for read in reads]
    distance = _no_distance(writes, reads, history) if atomic else _distance(writes, reads, history)
    return KeyJudgement(judged, _windows(acknowledged, reads, history), distance)


class _History:
    """The acknowledged writes in the order of their acknowledgements, and the write that each read saw."""

    def __init__(self, acknowledged: list[Write], of_value: Mapping[str | None, list[Write]], reads: Iterable[KeyEvent]) -> None:
        self.of_value = of_value
        self._acknowledged = acknowledged
        self._ends = [write.end_ns for write in acknowledged]
        self.sources = attributed(reads, of_value)

    def source(self, read: KeyEvent) -> Write | None:
        """The write that ``read`` saw. None: no write has its value."""
        return self.sources[read.op]

    def missed(self, read: KeyEvent, source: Write | None) -> list[Write]:
        """Writes acknowledged before ``read`` began and newer than ``source``, in the order of their acknowledgements."""
        since = BEGINNING if source is None else source.end_ns
        first = bisect_left(self._ends, since)  # newer writes are those that ended after ``since``
        return [write for write in self._acknowledged[first : bisect_left(self._ends, read.start_ns)] if write.start_ns > since]

    def judge(self, read: KeyEvent, anomalous: bool, broken: Broken) -> Read:
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
            None if since is None or source is None else int(read.start_ns - since),
            *broken,
            read.final and bool(missed),
            resurrected,
        )


def _merge(reads: Sequence[KeyEvent], of_value: Mapping[str | None, list[Write]]) -> set[int]:
    """Numbers of the reads that cannot be merged into their write. Reads are processed in the order of their ends (Lu et al.
    2015).
    """
    clusters = _Clusters([write for group in of_value.values() for write in group], reads)
    anomalous: set[int] = set()
    for read, possible in candidates(reads, of_value):
        if not any(read.end_ns >= write.start_ns and clusters.take(write, read) for write in reversed(possible)):
            anomalous.add(read.op)
    return anomalous


class _Clusters:
    """All clusters, with a logarithmic search for a cluster that comes both before and after a given one.

    A cluster's ``last_start`` is stored at the place of its member that ended first; places are in order of ends. A binary
    tree of maxima then gives the greatest ``last_start`` of all clusters with a member that ended before a given time.
    """

    def __init__(self, writes: Sequence[Write], reads: Sequence[KeyEvent]) -> None:
        members = sorted([*((w.end_ns, False, id(w)) for w in writes), *((r.end_ns, True, r.op) for r in reads)])
        self._ends = [end_ns for end_ns, _, _ in members]
        self._places = {member[1:]: place for place, member in enumerate(members)}
        self._size = len(members)
        self._greatest = [BEGINNING] * (2 * self._size)
        self._held = {id(write): self._places[False, id(write)] for write in writes}
        for write in writes:
            self._set(self._held[id(write)], write.last_start)

    def take(self, write: Write, read: KeyEvent) -> bool:
        """Add ``read`` to the members of ``write``, unless its cluster would then conflict with another."""
        first_end, last_start = min(write.first_end, read.end_ns), max(write.last_start, read.start_ns)
        held = self._held[id(write)]
        self._set(held, BEGINNING)
        good = self._greatest_before(bisect_left(self._ends, last_start)) <= first_end
        if good:
            if read.end_ns < write.first_end:
                held = self._held[id(write)] = self._places[True, read.op]
            write.take(read)
        self._set(held, write.last_start)
        return good

    def _set(self, place: int, value: float) -> None:
        greatest, place = self._greatest, place + self._size
        greatest[place] = value
        while place > 1:
            place //= 2
            greatest[place] = max(greatest[2 * place], greatest[2 * place + 1])

    def _greatest_before(self, until: int) -> float:
        found, low, high = BEGINNING, self._size, self._size + until
        while low < high:
            if low & 1:
                found = max(found, self._greatest[low])
                low += 1
            if high & 1:
                high -= 1
                found = max(found, self._greatest[high])
            low, high = low // 2, high // 2
        return found


def _windows(acknowledged: Sequence[Write], reads: Sequence[KeyEvent], history: _History) -> list[Window]:
    found: dict[int, list[float]] = {write.op: [0, 0] for write in acknowledged if write.op is not None}
    for read in reads:
        source = history.source(read)
        if source is None:
            continue  # if no write has the read's value, no write is known to be newer
        for write in history.missed(read, source):
            assert write.op is not None
            entry = found[write.op]
            entry[0] = max(entry[0], read.start_ns - write.end_ns)
    starts = sorted(read.start_ns for read in reads)
    windows = []
    for write in acknowledged:
        if write.op is not None:
            stale_ns = int(found[write.op][0])
            first = bisect_left(starts, write.end_ns)
            following = bisect_right(starts, write.end_ns + stale_ns) if stale_ns else first
            seen_ns = int(starts[following] - write.end_ns) if following < len(starts) else None
            windows.append(Window(write.op, stale_ns, seen_ns, len(starts) - first))
    return windows


class _Zone(NamedTuple):
    first_end: float
    last_start: float
    write_start: float
    read_start: float


def _distance(writes: Sequence[Write], reads: Sequence[KeyEvent], history: _History) -> Distance:
    """Delta and Gamma of a history with every read in the cluster of its write, also anomalous reads."""
    placed = {read.op for write in writes for read in write.reads}
    members = {id(write): list(write.reads) for write in writes}
    impossible = False
    early: dict[int, float] = {}
    for read in reads:
        if read.op in placed:
            continue
        source = history.source(read)
        if source is None:
            impossible = True  # nobody wrote this value: the history has no Delta, and Gamma leaves this read out
            continue
        members[id(source)].append(read)
        if read.end_ns < source.start_ns:
            impossible = True
            early[id(source)] = max(early.get(id(source), 0.0), source.start_ns - read.end_ns)
    zones = sorted(_zone(write, members[id(write)]) for write in writes if write.end_ns < NEVER or members[id(write)])
    ends = [zone.first_end for zone in zones]
    delta, gammas = 0.0, []
    for position, zone in enumerate(zones):
        upper = bisect_left(ends, zone.last_start)
        for other in zones[position + 1 : upper]:
            if other.last_start > zone.first_end and other.first_end < zone.last_start:
                gammas.append(int(min(other.last_start - zone.first_end, zone.last_start - other.first_end)))
                delta = max(delta, min(_shift(zone, other), _shift(other, zone)))
    pairs = len(zones) * (len(zones) - 1) // 2
    hopeless = impossible or delta == math.inf
    scores = sorted([*gammas, *map(int, early.values())])
    return Distance(None if hopeless else int(delta), pairs, len(gammas), max(scores, default=0), scores)


def _no_distance(writes: Sequence[Write], reads: Sequence[KeyEvent], history: _History) -> Distance:
    """The distance of a history that is known to be linearizable."""
    seen = {id(history.source(read)) for read in reads}
    count = sum(write.end_ns < NEVER or id(write) in seen for write in writes)
    return Distance(0, count * (count - 1) // 2, 0, 0, [])


def _zone(write: Write, reads: Sequence[KeyEvent]) -> _Zone:
    first_end = min([write.end_ns, *(read.end_ns for read in reads)])
    read_start = max((read.start_ns for read in reads), default=BEGINNING)
    return _Zone(first_end, max(write.start_ns, read_start), write.start_ns, read_start)


def _shift(before: _Zone, after: _Zone) -> float:
    """The shift of the reads of ``after`` with which ``after`` no longer comes after ``before``."""
    return math.inf if after.write_start > before.first_end else after.read_start - before.first_end
