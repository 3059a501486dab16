"""Operations of one run: one for each invocation with its outcome, its phase, and the side of the node that was asked. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from replicated_namesrv.chaos.records import READER_SUFFIX
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.timeline import Timeline

ANY = "any"
"""An unknown node."""
ASKED = ("put", "get", "delete", "route")
"""Kinds of operations that clients request. Requests that brokers send on their own are not included."""
FAILOVER, PINNED, EACH, PROBE, OTHER = "failover", "pinned", "each", "probe", "other"
ACCESS = (FAILOVER, PINNED, EACH, PROBE)
"""How a client chooses nodes. FAILOVER: it asks the next node if one does not answer. PINNED: it asks one node only. EACH: it
sends a write to each node in turn. PROBE: it asks all nodes at the same time, at long intervals.

Clients of any other kind are OTHER, and have no figures of their own: a cache of routes asks rarely by design, and a reader names
a level that is the run's own level only in some modes."""

Row = dict[str, Any]


class ClientOperation(NamedTuple):
    """An invocation with its outcome. An operation without completion is indeterminate, because the harness died before its
    end.
    """

    op: int
    client: str
    kind: str
    key: str
    node: str | None
    answered_by: str | None
    access: str
    probe: int | None
    level: str
    phase: str | None
    """The judged phase in which the operation began; None: it began in no judged phase."""
    side: str
    start_ns: int
    end_ns: int | None
    outcome: str
    value: str | None
    """The value that was written, or the result of a get."""
    members: str | None
    topics: list[str]
    """The topics in a registration."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


def operations(records: RunRecords) -> list[ClientOperation]:
    """All operations of all phases, in the order in which they began."""
    completed = {row["op"]: row for row in records.of("complete", "op", "outcome", "node", "value", "members")}
    nothing: Row = {"outcome": "indeterminate", "node": None, "value": None, "members": None, "time_ns": None}
    timeline, own_level = records.timeline, records.about["read_consistency"]
    found = []
    for row in records.of("invoke", "op", "client", "kind", "key", "node", "level", "probe", "topics", "value"):
        end, start_ns = completed.get(row["op"], nothing), row["time_ns"]
        found.append(
            ClientOperation(
                row["op"], row["client"], row["kind"], row["key"], row["node"], end["node"], _access(records.clients, row),
                row["probe"], row["level"] or own_level, timeline.phase_at(start_ns),
                timeline.side_at(end["node"] or row["node"], start_ns), start_ns, end["time_ns"],
                end["outcome"] or "indeterminate", end["value"] if row["kind"] == "get" else row["value"], end["members"],
                row["topics"] or [],
            )
        )  # fmt: skip  # items grouped by line
    return found


def _access(clients: Mapping[str, str], row: Row) -> str:
    """The access of an operation, from the kind of its client in the manifest. A client that the manifest does not list counts
    as PINNED if its operation names a node, otherwise as FAILOVER.
    """
    kind = clients.get(row["client"], PINNED if row["node"] is not None else FAILOVER)
    if row["probe"] is not None or kind == PROBE:
        return PROBE
    if kind == PINNED:
        return PINNED
    if kind != FAILOVER or row["client"].endswith(READER_SUFFIX):
        return OTHER
    return FAILOVER if row["node"] is None else EACH


def probes(records: RunRecords, done: Iterable[ClientOperation]) -> list[Row]:
    """Rows of PROBES: ``answers`` of the ``asked`` nodes, and whether all answers were ``equal`` (M3). A row needs two answers.

    An empty answer and "no such key" are answers, too, and equal to each other."""
    groups: dict[tuple[Any, ...], list[ClientOperation]] = defaultdict(list)
    for op in done:
        if op.probe is not None and op.phase is not None:
            groups[op.level, op.phase, op.kind, op.key, op.probe].append(op)
    rows = []
    for (level, phase, kind, key, probe), asked in groups.items():
        answers = [sorted(records.members(op.members)) if kind == "route" else op.value for op in asked if op.ok]
        if len(answers) >= 2:
            rows.append(
                {
                    "level": level, "phase": phase, "kind": kind, "key": key, "probe": probe, "asked": len(asked),
                    "answers": len(answers), "equal": all(answer == answers[0] for answer in answers),
                    "start_ns": min(op.start_ns for op in asked),
                }
            )  # fmt: skip  # items grouped by line
    return rows


def gaps(timeline: Timeline, done: Sequence[ClientOperation]) -> list[Row]:
    """Rows of GAPS (M17): time from one success to the next, from the beginning of ``steady`` to that of ``final``.

    A client that fails over is an ``entity`` of its own, because it waits even if other clients are answered. All kinds of its
    requests count together (``all``). Its access is OTHER if it also writes to each node, because it then waits for nodes that it
    names. For all other operations the entity is the node that was asked, and each kind of operation counts alone. A gap that
    overlaps the phase ``fault`` belongs to this phase. Its side is the side of its node when the gap or the fault began,
    whichever was later.
    """
    steady, whole, fault = timeline.span("steady"), timeline.span("steady", "fault", "heal"), timeline.span("fault")
    if steady is None or whole is None:
        return []
    begin_ns, last_ns = steady.start_ns, whole.end_ns
    writers = {op.client for op in done if op.access == EACH}
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for op in done:
        if op.phase not in (None, "final"):
            if op.access == FAILOVER and op.kind in ASKED:
                ends = groups[op.level, "all", OTHER if op.client in writers else FAILOVER, op.client]
            else:
                ends = groups[op.level, op.kind, op.access, op.node or ANY]
            if op.ok and op.end_ns is not None and begin_ns <= op.end_ns <= last_ns:
                ends.append(op.end_ns)
    rows = []
    for (level, kind, access, entity), ends in groups.items():
        node = None if kind == "all" or entity == ANY else entity
        for start_ns, end_ns in pairwise(sorted([begin_ns, *ends, last_ns])):
            phase, moment_ns = "steady", start_ns
            if fault is not None and start_ns < fault.end_ns and end_ns > fault.start_ns:
                phase, moment_ns = "fault", max(start_ns, fault.start_ns)
            elif fault is not None and start_ns >= fault.end_ns:
                phase = "heal"
            rows.append(
                {
                    "level": level, "kind": kind, "access": access, "entity": entity, "phase": phase,
                    "side": timeline.side_at(node, moment_ns), "gap_ns": end_ns - start_ns,
                }
            )  # fmt: skip  # items grouped by line
    return rows
