"""Attribution of reads to writes: which write of a key a read saw. Pure.

A value that is written once identifies the write. Absence is the initial state and the result of every delete, and a value
can be written more than once. A read of these is attributed to the latest candidate that had begun, which is the most favourable
choice.
"""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BEGINNING = -math.inf
NEVER = math.inf


class KeyEvent(NamedTuple):
    """One operation on the key."""

    op: int
    client: str
    kind: str
    """The operation: put, delete or get."""
    value: str | None
    start_ns: float
    end_ns: float
    """NEVER if the outcome is indeterminate."""
    outcome: str
    final: bool
    """True for a read after the faults, when nothing is written any more."""


@dataclass(slots=True)
class Write:
    """A write and the reads attributed to it."""

    op: int | None
    """None for the initial state."""
    client: str
    value: str | None
    start_ns: float
    end_ns: float
    reads: list[KeyEvent] = field(default_factory=list)
    first_end: float = field(init=False)
    """End of the member that ended first."""
    last_start: float = field(init=False)
    """Start of the member that started last. Members are the write and its reads."""

    def __post_init__(self) -> None:
        self.first_end, self.last_start = self.end_ns, self.start_ns

    def take(self, read: KeyEvent) -> None:
        """Add ``read`` to the members."""
        self.reads.append(read)
        self.first_end, self.last_start = min(self.first_end, read.end_ns), max(self.last_start, read.start_ns)


def writes_of(events: Sequence[KeyEvent]) -> list[Write]:
    """The writes among ``events`` that may have happened; the first item is the initial state."""
    beginning = Write(None, "", None, BEGINNING, BEGINNING)
    done = [event for event in events if event.kind != "get" and event.outcome != "fail"]
    return [beginning, *(Write(e.op, e.client, e.value if e.kind == "put" else None, e.start_ns, e.end_ns) for e in done)]


def by_value(writes: Iterable[Write]) -> dict[str | None, list[Write]]:
    """Writes by value."""
    found: dict[str | None, list[Write]] = defaultdict(list)
    for write in writes:
        found[write.value].append(write)
    return found


def candidates(
    reads: Iterable[KeyEvent], of_value: Mapping[str | None, list[Write]]
) -> Iterator[tuple[KeyEvent, Sequence[Write]]]:
    """The reads in the order of their ends, each with the writes that it may have seen, the latest write last. The only write of
    a value is always a candidate, even if it began after the read. The sequence is valid until the next step."""
    waiting = {value: sorted(group, key=lambda w: w.start_ns, reverse=True) for value, group in of_value.items() if group[1:]}
    begun: dict[str | None, list[Write]] = defaultdict(list)
    for read in sorted(reads, key=lambda event: (event.end_ns, event.op)):
        later = waiting.get(read.value)
        if later is None:
            yield read, of_value.get(read.value, [])
            continue
        while later and later[-1].start_ns <= read.end_ns:
            insort(begun[read.value], later.pop(), key=lambda w: (w.end_ns, w.start_ns))
        yield read, begun[read.value]


def attributed(reads: Iterable[KeyEvent], of_value: Mapping[str | None, list[Write]]) -> dict[int, Write | None]:
    """The write that each read saw, by the read's number. None: no write has that value."""
    return {read.op: found[-1] if found else None for read, found in candidates(reads, of_value)}
