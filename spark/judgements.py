"""Judges the histories of one run, key by key, with the pure functions of ``histories`` and the linearizability checker. Pure.

A history is judged once for each read level, with all writes and only the reads of that level, because reads of a level that
promises less must not affect the verdict on one that promises more.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.histories import KeyJudgement, judge
from replicated_namesrv.verify import Operation, Outcome, SearchLimits, check_history
from replicated_namesrv.verify.attribution import NEVER, KeyEvent

LIMITS = SearchLimits()

Row = dict[str, Any]
Leveled = tuple[KeyEvent, str | None]
"""An event, with the read level if it is a read."""


def event_of(op: ClientOperation) -> KeyEvent:
    """The operation as an event of its key."""
    end_ns = NEVER if op.outcome == "indeterminate" or op.end_ns is None else op.end_ns
    return KeyEvent(op.op, op.client, op.kind, op.value, op.start_ns, end_ns, op.outcome, op.phase == "final")


def by_level(events: Sequence[Leveled], read: str) -> Iterator[tuple[str, list[int]]]:
    """For each level of the reads (events of the kind ``read``): the places of all writes, and of the reads at this level."""
    levels = sorted({level for event, level in events if event.kind == read and level is not None})
    for level in levels:
        yield level, [place for place, (event, own) in enumerate(events) if event.kind != read or own == level]


def judged(done: Iterable[ClientOperation]) -> list[Row]:
    """The judgement of each key of the key-value store, as rows of JUDGED. Their column ``what`` says which kind of row each is.

    Only reads of the judged phases count, but writes of all phases, because a value written during start-up may be read later."""
    keys: defaultdict[str, list[Leveled]] = defaultdict(list)
    for op in done:
        if op.kind in ("put", "delete"):
            keys[op.key].append((event_of(op)._replace(final=False), None))
        elif op.kind == "get" and op.phase is not None:
            keys[op.key].append((event_of(op), op.level))
    rows: list[Row] = []
    for key, leveled in sorted(keys.items()):
        for level, places in by_level(leveled, "get"):
            events = [leveled[place][0] for place in places]
            found = verdict(events)
            rows += rows_of(judge(events, atomic=found == "valid"), key, level, found, len(events))
    return rows


def rows_of(judgement: KeyJudgement, key: str, level: str, found: str, operations: int) -> Iterable[Row]:
    """The rows of one judgement: every answered read; every acknowledged write with its inconsistency window; the key with its
    verdict (valid, violated, unknown) and its distance from atomicity."""
    for read in judgement.reads:
        yield {"key": key, "what": "read", "level": level, **read._asdict()}
    for window in judgement.windows:
        yield {"key": key, "what": "write", "level": level, **window._asdict()}
    yield {"key": key, "what": "key", "level": level, "verdict": found, "operations": operations, **judgement.distance._asdict()}


def verdict(events: list[KeyEvent]) -> str:
    """The verdict M1 of one key, by ``replicated_namesrv.verify``."""
    operations = [
        Operation(
            event.client, event.kind, "key", event.value, int(event.start_ns),
            None if event.end_ns == NEVER else int(event.end_ns), Outcome(event.outcome),
        )
        for event in events
        if event.kind != "get" or event.outcome == "ok"
    ]  # fmt: skip  # items grouped by line
    if not operations:
        return "valid"
    return check_history(operations, LIMITS).verdict.value
