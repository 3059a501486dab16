"""Which write a read saw: operations on one key, and the attribution of each read to a write. Pure.

Values are written once each, so a read names the write that it saw. "Absent" is written by every delete and was there at the
beginning. A read of it is attributed to the latest of these that had begun, the most favourable one.
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
    reads: list[KeyEvent] = field(default_factory=list)
    first_end: float = field(init=False)
    """When the first of its members had ended."""
    last_start: float = field(init=False)
    """When the last of its members began."""

    def __post_init__(self) -> None:
        self.first_end, self.last_start = self.end_ns, self.start_ns

    def take(self, read: KeyEvent) -> None:
        """Count ``read`` among the members."""
        self.reads.append(read)
        self.first_end, self.last_start = min(self.first_end, read.end_ns), max(self.last_start, read.start_ns)


def writes_of(events: Sequence[KeyEvent]) -> list[Write]:
    """The writes among ``events`` that may have happened, and the state at the beginning as the first one."""
    beginning = Write(None, "", None, BEGINNING, BEGINNING)
    done = [event for event in events if event.kind != "get" and event.outcome != "fail"]
    return [beginning, *(Write(e.op, e.client, e.value if e.kind == "put" else None, e.start_ns, e.end_ns) for e in done)]


def by_value(writes: Iterable[Write]) -> dict[str | None, list[Write]]:
    """Writes by what they wrote."""
    found: dict[str | None, list[Write]] = defaultdict(list)
    for write in writes:
        found[write.value].append(write)
    return found


def candidates(
    reads: Iterable[KeyEvent], of_value: Mapping[str | None, list[Write]]
) -> Iterator[tuple[KeyEvent, Sequence[Write]]]:
    """Reads in order of their ends, each with the writes that it may have seen, the latest last; the only write of a value
    always, even one that began after it. The sequence is valid until the next step."""
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
    """The write that each read saw, by the number of the read; None: nobody wrote that."""
    return {read.op: found[-1] if found else None for read, found in candidates(reads, of_value)}
