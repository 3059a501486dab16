"""The trace in the form that the checkers use: operations, phases, state of each broker, links and sides at any time. Pure."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from replicated_namesrv.chaos.effects import Effect, Link
from replicated_namesrv.chaos.records import (
    Complete,
    ExpiryRecord,
    FaultRecord,
    Invoke,
    Member,
    Observe,
    Phase,
    RecordedTrace,
    Status,
    TraceRecord,
    Truth,
    invocations,
    majority_side,
)
from replicated_namesrv.chaos.run_modes import foreign, promises_of
from replicated_namesrv.chaos.scenario import OPERATOR_KINDS
from replicated_namesrv.verify import Verdict

NEVER_NS = 1 << 62
ALIVE = ("starting", "serving", "exposed", "safe")
KEPT = ("serving", "safe")
"""States of a broker in which a correct cluster keeps it."""
JUDGED_PHASES = ("steady", "fault", "heal", "final")
READS = (
    "get",
    "kv-list",
    "route",
    "zone-route",
    "cluster",
    "topic-list",
    "member-group",
    "answer",
    "version",
    "perm",
    "topic",
    "config",
    "roles",
    "master",
    "notified",
    "watched",
    "member-list",
    "address-list",
)
"""Kinds of operations whose value is that of the answer."""


class Promise(StrEnum):
    """The modes that promise what a check tests."""

    BOTH = "ap, cp"
    AP = "ap"
    CP = "cp"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one checker."""

    name: str
    promise: Promise
    verdict: Verdict
    looked_at: int
    """Number of answers or events that were judged. If 0, the check proves nothing."""
    findings: tuple[str, ...] = ()
    """Texts of the first few violations."""
    count: int = 0
    """Number of violations."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of answers or events that were not judged, by reason."""

    due: bool = True
    """Whether the scenario guarantees answers or events for this check. If it does and none was judged, the verdict is
    unknown."""

    @property
    def idle(self) -> bool:
        """Whether the check judged nothing, and the scenario did not guarantee anything to judge."""
        return not self.due and self.looked_at == 0 and self.verdict is Verdict.UNKNOWN


FINDINGS_MAX = 5
NOTHING = "the run contains nothing that this check judges"
STALL_S, SENDS, COVERED_S = 0.5, 3, 2.5
"""The sender does not wait for answers. So if it sends nothing for several of its intervals and at least half a second, the
harness did not run. If the sender's intervals are long, gaps in the records of the nodes show a stall instead: normally there is
a record of each node every second, or a second later if the node does not answer."""

SLOWDOWN_MAX = 3.0
"""Above this slowdown, promises about time are not judged. A machine without other load has a slowdown of 1.1 to 2 on two
cores."""
PACE_LEAST, PACED_LEAST = 0.75, 20
"""Minimum pace, and minimum number of planned operations. With fewer operations the pace proves nothing and is not checked. An
idle machine reaches a pace of 0.9 and more."""


def result(
    name: str,
    promise: Promise,
    looked_at: int,
    wrong: Sequence[str],
    left_out: Mapping[str, int] | None = None,
    *,
    due: bool = True,
) -> CheckResult:
    """A result. VIOLATED if ``wrong`` has findings, UNKNOWN if nothing was judged."""
    verdict = Verdict.VIOLATED if wrong else Verdict.VALID if looked_at else Verdict.UNKNOWN
    known = {what: count for what, count in (left_out or {}).items() if count}
    told = wrong[:FINDINGS_MAX] or (() if looked_at else (NOTHING,))
    return CheckResult(name, promise, verdict, looked_at, tuple(told), len(wrong), known, due)


def unless_stalled(story: "Story", found: CheckResult) -> CheckResult:
    """The result ``found``, but unknown instead of violated if the harness stalled. During a stall clients do not ask, brokers do
    not renew and the nodes hardly run, so no duration can be judged. The same holds if clients began far fewer operations than
    planned before the faults, or if other load slowed the processes of the run (``SLOWDOWN_MAX``)."""
    why = _slowness(story)
    return found if why is None else unjudged(found, why)


def despite_slowness(story: "Story", judged: Callable[[float], CheckResult]) -> CheckResult:
    """The result of ``judged(1)``, where the argument is a factor for the time limits. If the machine was too slow to judge
    times, a violation counts only if it remains with longer limits. Their factor is twice the *excess*: the worst measure of
    slowness as a multiple of its bound."""
    found = judged(1.0)
    if (why := _slowness(story)) is None or found.verdict is not Verdict.VIOLATED:
        return found
    excess = max(story.stalled_s / story.stall_s, PACE_LEAST / max(story.pace, 0.01), story.slowdown / SLOWDOWN_MAX)
    patient = judged(2 * excess)
    return patient if patient.verdict is Verdict.VIOLATED else unjudged(found, why)


def is_slow(story: "Story") -> bool:
    """Whether no duration can be judged."""
    return _slowness(story) is not None


def _slowness(story: "Story") -> str | None:
    """Why no duration can be judged."""
    if story.stalled_s > story.stall_s:
        return f"the harness itself stalled for {story.stalled_s:.1f} s, so no time can be judged"
    if story.pace < PACE_LEAST:
        why = f"before any fault clients began {story.pace:.0%} of the operations that the scenario asks for"
        return f"{why}: the machine is too busy, so no time can be judged"
    if story.slowdown > SLOWDOWN_MAX:
        why = f"the processes of the run waited {story.slowdown - 1:.1f} times as long for a core as they ran"
        return f"{why}: the machine is too busy, so no time can be judged"
    return None


def unjudged(found: CheckResult, why: str) -> CheckResult:
    """``found``, but unknown instead of violated. The findings follow ``why``."""
    if found.verdict is not Verdict.VIOLATED:
        return found
    return replace(found, verdict=Verdict.UNKNOWN, findings=(why, *found.findings), count=0)


class Op(NamedTuple):
    """One operation: its request and its answer."""

    op: int
    client: str
    kind: str
    key: str
    level: str | None
    probe: int | None
    topics: tuple[str, ...]
    start_ns: int
    end_ns: int
    """When the operation ended; NEVER_NS if its outcome is unknown to the client."""
    outcome: str
    node: str | None
    """The node that answered. If none did, the node that was asked."""
    value: str | None
    """The value that was written or read."""
    members: tuple[Member, ...]

    @property
    def ok(self) -> bool:
        """The operation certainly happened."""
        return self.outcome == "ok"


class Span(NamedTuple):
    """The time from ``start_ns`` up to ``end_ns``."""

    start_ns: int
    end_ns: int


class BrokerState(NamedTuple):
    """A broker's state from ``start_ns`` on."""

    start_ns: int
    life: int
    state: str
    version: str | None
    timeout_ns: int
    """The time without contact after which a node removes the broker. An independent node also removes a broker when it closes
    the broker's idle connection."""


class Connectivity(NamedTuple):
    """State of links and nodes from ``start_ns`` on."""

    start_ns: int
    broken: frozenset[Link]
    sides: tuple[tuple[str, ...], ...]
    """The sides of the members."""
    voters: tuple[tuple[str, ...], ...]
    """Each set of voters that may be in force; there are several only while members change."""


class Story:
    """The content of a trace, by subject."""

    def __init__(self, trace: RecordedTrace, manifest: Mapping[str, Any]) -> None:
        """Raises ValueError and similar errors if manifest and trace are inconsistent."""
        self.trace, self.manifest = trace, manifest
        self.nodes: list[str] = [node["node"] for node in manifest["nodes"]]
        self.mode: str = promises_of(manifest["mode"])
        """The mode whose promises apply: ap or cp. For a foreign name server, the promises of ap apply."""
        self.founders: list[str] = [node["node"] for node in manifest["nodes"] if not node.get("spare")]
        """The nodes that ran from the beginning."""
        self.reports_removals: bool = foreign(manifest["mode"]) is None
        """Whether the nodes report when and why they remove a broker."""
        self.has_mqadmin: bool = manifest["scenario"]["workload"].get("mqadmin", False)
        """Whether the workload changes write permissions and deletes topics."""
        self.sets_settings: bool = manifest.get("sets_settings", False)
        """Whether the workload changes settings."""
        self.has_pair: bool = manifest["scenario"]["workload"].get("pair", False)
        """Whether the workload has a group whose brokers switch roles."""
        self.has_heirs: bool = manifest["scenario"]["workload"].get("heirs", 0) > 0
        """Whether the workload has groups in which another broker takes the place of the master."""
        self.has_deputy: bool = manifest["scenario"]["workload"].get("deputy", False)
        """Whether the workload has a group whose slave acts as master."""
        self.has_reports: bool = "watched" in manifest.get("asks", ())
        """Whether the reports of changes were recorded."""
        self.has_sample: bool = manifest["scenario"]["workload"].get("sample", False)
        """Whether the workload has a broker about which everything is known."""
        self.has_zones: bool = manifest["scenario"]["workload"].get("zones", False)
        """Whether the workload asks for the routes of a zone."""
        self.has_operator: bool = any(fault["kind"] in OPERATOR_KINDS for fault in manifest["scenario"].get("fault", ()))
        """Whether an operator changes the members or drains nodes."""
        self.origin_ns = trace.records[0].time_ns
        self.ops = [_op(invoke, end) for invoke, end in _ended(trace)]
        self.phases = self._phases()
        self.lives: dict[str, list[BrokerState]] = defaultdict(list)
        founders = tuple(sorted(self.founders))
        self.standings = [Connectivity(0, frozenset(), (founders,), (founders,))]
        self.observations: list[Observe] = []
        self.statuses: list[Status] = []
        self.expiries: list[ExpiryRecord] = []
        self._sort(trace.records)
        self.kinds: dict[str, str] = {client["client"]: client["kind"] for client in manifest["clients"]}

    def _sort(self, records: Iterable[TraceRecord]) -> None:
        in_force: dict[int, tuple[frozenset[Link], bool]] = {}
        for record in records:
            match record:
                case Truth():
                    timeout_ns = record.timeout_ms * 1_000_000
                    if self.mode == "ap":
                        timeout_ns = min(timeout_ns, self.idle_ns)
                    life = BrokerState(record.time_ns, record.life, record.state, record.version, timeout_ns)
                    self.lives[record.broker].append(life)
                case Observe():
                    self.observations.append(record)
                case Status():
                    self.statuses.append(record)
                case ExpiryRecord():
                    self.expiries.append(record)
                case FaultRecord():
                    breaks = record.variant is not None and Effect(record.variant).breaks
                    links = frozenset(Link(*link.split(">")) for link in record.links)
                    in_force[record.fault] = (links, breaks and record.edge == "start")
                    broken = frozenset(link for found, now in in_force.values() if now for link in found)
                    sides = tuple(tuple(side) for side in record.sides)
                    at_ns = record.began_ns if record.edge == "start" else record.time_ns
                    self.standings.append(Connectivity(at_ns, broken, sides, self._voters(record)))

    def _voters(self, record: FaultRecord) -> tuple[tuple[str, ...], ...]:
        return (tuple(self.nodes),) if record.voters is None else tuple(map(tuple, record.voters))

    @cached_property
    def final_nodes(self) -> list[str]:
        """The members after the last fault."""
        return sorted(node for side in self.standings[-1].sides for node in side)

    def _phases(self) -> dict[str, Span]:
        marks = [record for record in self.trace.records if isinstance(record, Phase)]
        if not marks:  # no phase was recorded: the run was interrupted before the first one
            return {}
        ends = [*(mark.time_ns for mark in marks[1:]), self.trace.records[-1].time_ns]
        return {mark.phase: Span(mark.time_ns, end_ns) for mark, end_ns in zip(marks, ends, strict=True)}

    @property
    def judged(self) -> Span:
        """From the beginning of ``steady`` to the end of ``final``."""
        spans = [self.phases[name] for name in JUDGED_PHASES if name in self.phases]
        return Span(spans[0].start_ns, spans[-1].end_ns) if spans else Span(0, 0)

    @property
    def stalled_s(self) -> float:
        """The longest time in which the harness recorded nothing."""
        times = sorted(record.time_ns for record in self.trace.records if record.time_ns <= self.judged.end_ns)
        return max((after - before for before, after in pairwise(times)), default=0) / 1e9

    @property
    def stall_s(self) -> float:
        """A gap between records of this length or more is a stall of the harness."""
        sends_per_s = float(self.manifest["scenario"]["workload"]["sends_per_s"])
        return max(STALL_S, min(COVERED_S, SENDS / sends_per_s))

    @property
    def writes_to_all(self) -> bool:
        """Whether a KV write goes to every name server in turn, until one does not answer."""
        return bool(self.manifest["scenario"]["workload"].get("kv_writes", "one") == "all")

    @cached_property
    def pace(self) -> float:
        """Share of the planned operations that clients began in ``steady``. Each client waits for an answer before the next
        operation.
        """
        span, workload = self.phases.get("steady", Span(0, 0)), self.manifest["scenario"]["workload"]
        per_write = len(self.founders) if self.writes_to_all else 1
        kv_per_s = workload["kv_per_s"] * (1 + per_write) / 2  # / 2, because half of the operations are reads
        rates: dict[str, float] = {name: kv_per_s for name in self.kinds if name.startswith("kv-")}
        rates |= {name: workload["lookups_per_s"] for name in self.kinds if name.startswith(("pinned-", "failover-"))}
        due = sum(rates.values()) * (span.end_ns - span.start_ns) / 1e9
        if due < PACED_LEAST:
            return 1.0
        return sum(op.client in rates and span.start_ns <= op.start_ns < span.end_ns for op in self.ops) / due

    @cached_property
    def slowdown(self) -> float:
        """Largest slowdown by other load of any phase in which brokers are up; 1.0 for traces that do not record it.

        ``settle`` counts, too: if a broker closes its connections just after it, and a node was slow or stalled in it, the nodes
        keep the broker until its time-out."""
        marks = [record for record in self.trace.records if isinstance(record, Phase)]
        judged = [after.slowdown for mark, after in pairwise(marks) if mark.phase in ("settle", *JUDGED_PHASES)]
        return max((slowdown for slowdown in judged if slowdown is not None), default=1.0)

    def setting_ms(self, name: str, default: int) -> int:
        """A setting of all nodes in milliseconds, or ``default``."""
        for setting in reversed(self.manifest.get("settings", ())):
            key, _, value = str(setting).partition("=")
            if key == name:
                return int(value)
        return default

    @property
    def idle_ns(self) -> int:
        """The time after which nodes close an idle connection."""
        return self.setting_ms("serverChannelMaxIdleTimeSeconds", 120) * 1_000_000_000

    def without_majority(self, node: str) -> list[Span]:
        """The times in which ``node`` ran and could not reach a majority. Each of these times begins after the links were
        completely cut, and ends before a link is restored."""
        return self._cuts.get(node, [])

    @cached_property
    def _cuts(self) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {node: [] for node in self.nodes}
        since: dict[str, int] = {}
        held: dict[int, list[str]] = {}
        ending = 0  # the number of faults whose end has begun and is not complete
        for time_ns, record, completes in self._fault_moments():
            if not completes:
                ending += 1
                for node, since_ns in since.items():
                    found[node].append(Span(since_ns, time_ns))
                since.clear()
                continue
            ending -= self._may_restore(record)
            held.pop(record.fault, None)
            if record.edge == "start" and not record.links:
                held[record.fault] = record.nodes
            unwell = {node for nodes in held.values() for node in nodes}
            voters = self._voters(record)
            may_have_majority = {node for one in voters for node in majority_side(record.sides, [one])}
            members = {node for side in record.sides for node in side}
            for node in self.nodes:
                is_cut = node in members and node not in may_have_majority and node not in unwell
                if is_cut and node not in since and not ending:
                    since[node] = time_ns
                elif not is_cut and node in since:
                    found[node].append(Span(since.pop(node), record.began_ns))
        for node, since_ns in since.items():
            found[node].append(Span(since_ns, self.judged.end_ns))
        return found

    def _fault_moments(self) -> list[tuple[int, FaultRecord, bool]]:
        """The moments at which faults changed, in order of time. True: a beginning or an end was complete. False: an end began
        that may restore a majority. Moments of other faults may come between the beginning and the completion of an end."""
        edges = [record for record in self.trace.records if isinstance(record, FaultRecord)]
        moments = [(record.time_ns, record, True) for record in edges]
        moments += [(record.began_ns, record, False) for record in edges if self._may_restore(record)]
        return sorted(moments, key=lambda moment: (moment[0], moment[2]))

    def _may_restore(self, record: FaultRecord) -> bool:
        """Whether this is the end of a fault of links between nodes, or of processes."""
        between_nodes = any(set(link.split(">")) <= set(self.nodes) for link in record.links)
        return record.edge == "end" and (between_nodes or not record.links)

    def faults_in(self, start_ns: int, end_ns: int) -> list[FaultRecord]:
        """The faults that were in force in this time, or that began or ended in it, each as the record of its beginning."""
        return [fault for fault, until_ns in self.faults if fault.began_ns <= end_ns and until_ns >= start_ns]

    @cached_property
    def faults(self) -> list[tuple[FaultRecord, int]]:
        """Each fault with the time at which its end was complete."""
        found: list[tuple[FaultRecord, int]] = []
        open_faults: dict[int, FaultRecord] = {}
        for record in self.trace.records:
            if isinstance(record, FaultRecord):
                begun = open_faults.pop(record.fault, None)
                if begun is not None:
                    found.append((begun, record.time_ns))
                if record.edge == "start":
                    open_faults[record.fault] = record
        return found + [(fault, NEVER_NS) for fault in open_faults.values()]

    def copies_of(self, broker: str) -> list[Op]:
        """A broker's registrations, as requests to single nodes."""
        return self._by_broker["register-copy"].get(broker, [])

    def queries_of(self, broker: str) -> list[Op]:
        """The queries for a broker's data version."""
        return self._by_broker["version"].get(broker, [])

    @cached_property
    def _by_broker(self) -> dict[str, dict[str, list[Op]]]:
        found: dict[str, dict[str, list[Op]]] = {"register-copy": defaultdict(list), "version": defaultdict(list)}
        for op in self.ops:
            if op.kind in found:
                found[op.kind][op.key].append(op)
        return found

    def life_at(self, broker: str, time_ns: int) -> BrokerState | None:
        """The state of a broker at a time. None: before its start."""
        lives = self.lives.get(broker, [])
        place = bisect_right(lives, time_ns, key=lambda life: life.start_ns)
        return lives[place - 1] if place else None

    def of_kind(self, *kinds: str) -> Iterator[Op]:
        """Operations of these kinds that do not ask for a weaker level than the run's."""
        return (op for op in self.ops if op.kind in kinds and op.level is None)

    def ms(self, time_ns: int) -> str:
        """A time as text, relative to the first record."""
        return f"{(time_ns - self.origin_ns) / 1e9:.3f} s"

    def ever(self, state: str) -> set[str]:
        """Brokers that were in a given state at any time."""
        return {broker for broker, lives in self.lives.items() if any(life.state == state for life in lives)}


def _ended(trace: RecordedTrace) -> Iterator[tuple[Invoke, Complete | None]]:
    """Each operation with its end. Raises ValueError for a sequence that no recorder can have written."""
    ends = Counter(record.op for record in trace.records if isinstance(record, Complete))
    begun: set[int] = set()
    for invoke, end in invocations(trace.records):
        if invoke.op in begun or ends[invoke.op] > 1:
            raise ValueError(f"operation {invoke.op} begins or ends twice")
        if end is not None and end.time_ns < invoke.time_ns:
            raise ValueError(f"operation {invoke.op} ends before it begins")
        begun.add(invoke.op)
        yield invoke, end
    if (never := ends.keys() - begun) and not trace.corrupt:
        raise ValueError(f"operation {min(never)} ends and never began")


def _op(invoke: Invoke, end: Any) -> Op:
    read = invoke.kind in READS
    return Op(
        op=invoke.op,
        client=invoke.client,
        kind=invoke.kind,
        key=invoke.key,
        level=invoke.level,
        probe=invoke.probe,
        topics=tuple(invoke.topics or ()),
        start_ns=invoke.time_ns,
        end_ns=NEVER_NS if end is None else end.time_ns,
        outcome="indeterminate" if end is None else end.outcome,
        node=(None if end is None else end.node) or invoke.node,
        value=(None if end is None else end.value) if read else invoke.value,
        members=() if end is None or end.members is None else tuple(end.members),
    )
