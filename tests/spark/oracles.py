"""What the figures mean, said as plainly as possible and as slowly as need be: each function is a definition, word for word."""

import itertools
import math
import random
from collections.abc import Sequence

from replicated_namesrv.spark.divergence import Change
from replicated_namesrv.spark.histories import NEVER, Event
from replicated_namesrv.verify import Operation, Outcome, Verdict, check_history


def random_history(seed: int, deletes: bool = False) -> list[Event]:
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
                Event(op, f"c{client}", kind, value, start, NEVER if outcome == "indeterminate" else now, outcome, False)
            )
    known = {event.value for event in events if event.kind == "put" and event.outcome != "fail"}
    return [event for event in events if event.kind != "get" or event.value is None or event.value in known]


def linearizable(events: Sequence[Event]) -> bool:
    """By the one checker, which shares no code with what is tested here."""
    operations = [
        Operation(
            e.client, e.kind, "k", e.value, int(e.start_ns), None if e.end_ns == NEVER else int(e.end_ns), Outcome(e.outcome)
        )
        for e in events
    ]
    return check_history(operations).verdict is Verdict.VALID


def doubled(events: Sequence[Event], reads_earlier: float = 0.0, wider: float = 0.0) -> list[Event]:
    """The history at twice the resolution, with reads begun earlier, or all widened by half of ``wider`` on either side."""
    return [
        e._replace(
            start_ns=2 * e.start_ns - wider - (2 * reads_earlier if e.kind == "get" else 0) + 100,
            end_ns=2 * e.end_ns + wider + 100,
        )
        for e in events
    ]


def _source(read: Event, events: Sequence[Event]) -> Event | None:
    """The put it returned; a history without deletes is meant."""
    return next((e for e in events if e.kind == "put" and e.outcome != "fail" and e.value == read.value), None)


def missed(read: Event, events: Sequence[Event]) -> list[Event]:
    """Writes acknowledged before the read began, and begun after what it returned had been acknowledged."""
    source = _source(read, events)
    since = -math.inf if source is None else source.end_ns
    return [e for e in events if e.kind == "put" and e.outcome == "ok" and e.end_ns < read.start_ns and e.start_ns > since]


def broken_guarantees(read: Event, events: Sequence[Event]) -> tuple[bool, bool, bool, bool]:
    """Read your writes, monotonic reads, monotonic writes, writes follow reads."""
    source = _source(read, events)
    since = -math.inf if source is None else source.end_ns
    mine = [e for e in events if e.client == read.client and e.end_ns < read.start_ns and e.outcome == "ok"]
    seen = [w for e in mine if e.kind == "get" and (w := _source(e, events)) is not None]
    causes = [
        cause
        for write in seen
        for e in events
        if e.kind == "get"
        and e.client == write.client
        and e.end_ns < write.start_ns
        and (cause := _source(e, events)) is not None
    ]
    return (
        any(e.kind == "put" and e.start_ns > since for e in mine),
        any(w.start_ns > since for w in seen),
        source is not None and any(w.client == source.client and w.start_ns > since for w in seen),
        any(cause.start_ns > since for cause in causes),
    )


def random_changes(seed: int) -> list[Change]:
    """Up to four nodes, each with states one after the other and gaps between them."""
    chooser = random.Random(seed)
    changes = []
    for node in range(chooser.randint(1, 4)):
        now = chooser.randint(0, 5)
        for _ in range(chooser.randint(1, 5)):
            until = now + chooser.randint(1, 6)
            changes.append(
                Change(
                    f"n{node}",
                    now,
                    until,
                    frozenset(f"{name}@{chooser.randint(1, 2)}" for name in chooser.sample("abcd", chooser.randint(0, 3))),
                )
            )
            now = until + chooser.choice((0, 0, 2))
    return changes


def divergence_at(changes: Sequence[Change], moment: int) -> tuple[float, int] | None:
    """Greatest Jaccard distance of two nodes with a known state, and how many have one; None if none has."""
    known = [change.state for change in changes if change.from_ns <= moment < change.until_ns]
    distances = [1 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in itertools.combinations(known, 2)]
    return (max(distances, default=0.0), len(known)) if known else None


def resolved_divergence_at(changes: Sequence[Change], moment: int, resolution: int) -> float:
    """``divergence_at`` when members in which two nodes differ for ``resolution`` or less, at a stretch, count as equal."""

    def said(node: str, name: str, at: int) -> str | None:
        """What the node says of the member; "?" when nothing is known of it."""
        states = [change.state for change in changes if change.node == node and change.from_ns <= at < change.until_ns]
        return next((m for m in states[0] if m.split("@")[0] == name), None) if states else "?"

    def differ(a: str, b: str, name: str, at: int) -> bool:
        found = said(a, name, at), said(b, name, at)
        return "?" not in found and found[0] != found[1]

    def lasts(a: str, b: str, name: str) -> bool:
        first = next(at for at in itertools.count(moment, -1) if not differ(a, b, name, at - 1))
        last = next(at for at in itertools.count(moment) if not differ(a, b, name, at))
        return last - first > resolution

    names = sorted({member.split("@")[0] for change in changes for member in change.state})
    greatest = 0.0
    for a, b in itertools.combinations(sorted({change.node for change in changes}), 2):
        apart = [name for name in names if differ(a, b, name, moment) and lasts(a, b, name)]
        common = [name for name in names if name not in apart and said(a, name, moment) not in ("?", None)]
        sides = [said(node, name, moment) for name in apart for node in (a, b)]
        if apart:
            greatest = max(greatest, 1 - len(common) / (len(common) + len([side for side in sides if side is not None])))
    return greatest
