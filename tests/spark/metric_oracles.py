"""Every figure of single runs by its definition, in a few lines of plain Python over the records of one run."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from replicated_namesrv.verify.attribution import NEVER, KeyEvent
from tests.spark import oracles
from tests.spark.oracles import missed, source
from tests.spark.random_runs import NODES, SAMPLE_HOLDS, STANDSTILL, Row

JUDGED = ("steady", "fault", "heal")
ASKED = ("put", "get", "delete", "route")
ALIVE, GONE = ("serving", "exposed", "safe"), ("dead", "silent")
FOREVER = 10**9
CLIENTS = {"c1": "failover"}
"""Kinds of clients, as a manifest has them."""
LATE_MAX = 6

Found = Iterator[tuple[str, str, str, Any]]
"""Level, phase, side, and the measured value of one item."""


@dataclass(frozen=True)
class Op:
    """An operation joined with its outcome."""

    op: int
    client: str
    kind: str
    key: str
    level: str
    phase: str
    side: str
    start: int
    end: int | None
    outcome: str
    value: str | None
    names: dict[str, str]
    bound: str | None
    """The node that the client asked; None: it chose for itself."""
    probe: int | None
    topics: list[str]

    @property
    def access(self) -> str:
        """The kind of client. One client fails over and sends some requests to nodes of its choice."""
        if self.probe is not None:
            return "probe"
        return "failover" if self.bound is None else "each" if self.client in CLIENTS else "pinned"

    def event(self, kind: str, value: str | None) -> KeyEvent:
        end = NEVER if self.end is None or self.outcome == "indeterminate" else self.end
        return KeyEvent(self.op, self.client, kind, value, self.start, end, self.outcome, self.phase == "final")


class Run:
    """The records of one run, and values that follow directly from them."""

    def __init__(self, rows: list[Row], level: str, interval: int) -> None:
        self.rows, self.level, self.interval = rows, level, interval
        self.marks: dict[str, int] = {row["phase"]: row["time_ns"] for row in self.of("phase")}
        self.histories = cache(self._histories)

    def of(self, record: str, **same: Any) -> list[Row]:
        return [row for row in self.rows if row["record"] == record and all(row.get(k) == v for k, v in same.items())]

    def phase_of(self, at: int) -> str:
        return [phase for phase, begin in self.marks.items() if begin <= at][-1]

    def side_of(self, node: str | None, at: int) -> str:
        """The side of a node by the latest change of the links or members."""
        if node is None:
            return "none"
        changes = [row for row in self.of("fault") if row["time_ns"] <= at]
        part = next(part for part in changes[-1]["sides"] if node in part) if changes else NODES
        if len(part) == len(NODES):
            return "whole"
        voters = changes[-1].get("voters") or [NODES]
        return "majority" if any(2 * len(set(part).intersection(one)) > len(one) for one in voters) else "minority"

    @cached_property
    def ops(self) -> list[Op]:
        ends, found = {row["op"]: row for row in self.of("complete")}, []
        for row in self.of("invoke"):
            end = ends.get(row["op"], {"outcome": "indeterminate"})
            start, node = row["time_ns"], end.get("node") or row.get("node")
            value = end.get("value") if row["kind"] == "get" else row.get("value")
            names = {m["name"]: m["version"] for m in json.loads(end.get("members") or "[]")}
            found.append(
                Op(
                    row["op"], row["client"], row["kind"], row["key"], row["level"] or self.level, self.phase_of(start),
                    self.side_of(node, start), start, end.get("time_ns"), end["outcome"], value, names, row["node"],
                    row["probe"], row["topics"] or [],
                )
            )  # fmt: skip  # items grouped by line
        return found

    def series(self, node: str) -> list[list[tuple[int, int, frozenset[str]]]]:
        """Series of answers of a node: question, arrival and content of each answer. A series ends when the node is silent or the
        observer stalls."""
        found: list[list[tuple[int, int, frozenset[str]]]] = [[]]
        before: int | None = None
        for row in self.of("observe", node=node):
            moment = row["time_ns"] if row["answered"] else row["asked_ns"]
            if before is not None and moment - before > STANDSTILL:
                found.append([])
            if row["answered"]:
                names = frozenset(f"{m['name']}@{m['version']}" for m in json.loads(row["members"]))
                found[-1].append((row["asked_ns"], row["time_ns"], names))
            else:
                found.append([])
            before = moment
        return [looks for looks in found if looks]

    @cached_property
    def divergence(self) -> dict[int, tuple[float, float, int]]:
        """M14: for each moment at which an answer is known, the certain and the possible divergence, and the number of nodes
        whose answer is known."""
        series = {node: self.series(node) for node in NODES}
        moments = [moment for looks in series.values() for one in looks for look in one for moment in look[:2]]
        found = {}
        for at in range(min(moments, default=0), max(moments, default=0)):
            known = [oracles.standing(one, at) for looks in series.values() for one in looks]
            bounds = oracles.divergence_bounds([standing for standing in known if standing])
            if bounds is not None:
                found[at] = bounds
        return found

    @property
    def repaired(self) -> int | None:
        """When the last link was repaired."""
        return max((row["time_ns"] for row in self.of("fault", edge="end")), default=self.marks.get("heal"))

    def stretches(self, wanted: Callable[[int], bool]) -> list[tuple[int, int]]:
        """The longest spans of moments that are ``wanted``."""
        good = {at for at in self.divergence if wanted(at)}
        begins, ends = sorted(a for a in good if a - 1 not in good), sorted(a + 1 for a in good if a + 1 not in good)
        return list(zip(begins, ends, strict=True))

    def broker_states(self, broker: str) -> list[tuple[int, int, Row]]:
        mine = self.of("truth", broker=broker)
        ends = [row["time_ns"] for row in mine[1:]] + [FOREVER]
        return [(row["time_ns"], end, row) for row, end in zip(mine, ends, strict=True)]

    @cached_property
    def brokers(self) -> list[str]:
        return sorted({row["broker"] for row in self.of("truth")})

    def levels(self, kind: str, key: str) -> set[str]:
        return {op.level for op in self.ops if op.kind == kind and op.key == key and op.phase not in ("settle", "end")}

    def keys(self, kind: str) -> list[tuple[str, str]]:
        """Keys (topics) that were read, each with every level of these reads."""
        names = sorted({op.key for op in self.ops if op.kind == kind})
        return [(name, level) for name in names for level in sorted(self.levels(kind, name)) if self.histories(kind, name, level)]

    def _histories(self, kind: str, key: str, level: str) -> list[list[KeyEvent]]:
        """All writes of the key with the reads of that level. For a topic, one history for each of its brokers."""
        reads = [o for o in self.ops if (o.kind, o.key, o.level) == (kind, key, level) and o.phase not in ("settle", "end")]
        if kind == "get":
            writes = [o.event(o.kind, o.value) for o in self.ops if o.kind in ("put", "delete") and o.key == key]
            return [[*writes, *(o.event("get", o.value) for o in reads)]]
        found = []
        for broker in self.brokers:
            changes = self.changes(broker, key)
            if any(event.kind == "put" for event in changes):
                found.append([*changes, *(o.event("get", o.names.get(broker)) for o in reads)])
        return found

    def changes(self, broker: str, topic: str) -> list[KeyEvent]:
        """The history of a broker's registration, if all its changes are known."""
        states, group = self.broker_states(broker), broker.split("/")[0]
        late = self.late_copies(broker)
        alone = [name for name in self.brokers if name.split("/")[0] == group] == [broker]
        if any(row["state"] == "exposed" for _, _, row in states) or not alone or len(late) > LATE_MAX:
            return []
        kinds = {"register": "put", "unregister": "delete"}
        mine = [o for o in self.ops if o.key == broker and topic in o.topics]
        found = [o.event(kinds[o.kind], o.value) for o in mine if o.kind in kinds]
        unknown: list[tuple[str, str | None, int]] = []
        unknown += [("delete", None, start) for start, _, row in states if row["state"] in GONE and topic in row["topics"]]
        for copy in (copy for copy in late if topic in copy.topics):
            unknown += [("put", copy.value, copy.start), ("delete", None, copy.start)]
        number = -2
        for kind, value, start in unknown:
            number -= 1
            found.append(KeyEvent(number, "the cluster", kind, value, start, NEVER, "indeterminate", False))
        return found

    def late_copies(self, broker: str) -> list[Op]:
        """Registrations with unknown outcome that contain the last version of the life in which they were sent."""
        states, found = self.broker_states(broker), []
        for copy in (o for o in self.ops if o.kind == "register-copy" and o.key == broker and o.outcome == "indeterminate"):
            lives = [row["life"] for start, end, row in states if start <= copy.start < end]
            ends = [r for _, _, r in states if lives == [r["life"]] and r["state"] in (*GONE, "stopping")]
            if ends and ends[-1]["version"] == copy.value:
                found.append(copy)
        return found


def reads_of(
    run: Run, kind: str, measure: Callable[[KeyEvent, list[KeyEvent]], Any], together: Callable[[list[Any]], Any]
) -> Found:
    """The measure of each answered read before ``final``. For a look-up, ``together`` merges the measures of its brokers."""
    for key, level in run.keys(kind):
        for op in (o for o in run.ops if (o.kind, o.key, o.level, o.outcome) == (kind, key, level, "ok") and o.phase in JUDGED):
            values = [measure(e, events) for events in run.histories(kind, key, level) for e in events if e.op == op.op]
            yield level, op.phase, op.side, together(values)


def behind(read: KeyEvent, events: list[KeyEvent]) -> int | None:
    """M6. None: the value was never written."""
    return None if source(read, events) is None else len(missed(read, events))


def lag(read: KeyEvent, events: list[KeyEvent]) -> float | None:
    """Time since the acknowledgement of the first write that the read missed."""
    return None if source(read, events) is None else max((read.start_ns - w.end_ns for w in missed(read, events)), default=0)


def worst_lag(lags: list[float | None]) -> float | None:
    """The lag of a look-up is that of its stalest broker. None: one of its versions was never written, and the others are
    fresh.
    """
    stale = [value for value in lags if value]
    return max(stale) if stale else None if None in lags else 0


def anomalous(run: Run, kind: str, key: str, level: str) -> set[int]:
    """M2: numbers of the reads that cannot be merged; of look-ups in any of their brokers' histories."""
    histories = run.histories(kind, key, level)
    if is_linearizable(run, kind, key, level):
        return set()
    return {read.op for events in histories for read in oracles.merged(events)[1]}


def is_linearizable(run: Run, kind: str, key: str, level: str) -> bool:
    """M1. A look-up reads all brokers of its topic at once."""
    histories = run.histories(kind, key, level)
    if kind == "get":
        return oracles.linearizable(histories[0])

    todo: list[tuple[KeyEvent, Any]] = []
    """Operations with the value that they wrote for a broker, or that they read for all of them."""
    for place, events in enumerate(histories):
        todo += [(e, (place, e.value)) for e in events if e.kind != "get" and e.outcome != "fail"]
    for reads in zip(*(oracles.reads_of(events) for events in histories), strict=True):
        todo.append((reads[0], tuple(read.value for read in reads)))

    def after(state: tuple[str | None, ...], place: int) -> Any:
        event, said = todo[place]
        if event.kind == "get":
            return state if said == state else oracles.ILLEGAL
        return (*state[: said[0]], said[1], *state[said[0] + 1 :])

    return oracles.legal([event for event, _ in todo], (None,) * len(histories), after)


def windows(run: Run, kind: str) -> Found:
    """M4: from each acknowledged write to the beginning of the last read of something older, if it was read at all afterwards."""
    ops = {op.op: op for op in run.ops}
    for key, level in run.keys(kind):
        for events in run.histories(kind, key, level):
            reads = oracles.reads_of(events)
            for write in (e for e in events if e.kind != "get" and e.outcome == "ok"):
                if ops[write.op].phase not in ("settle", "end") and any(read.start_ns >= write.end_ns for read in reads):
                    old = [r.start_ns - write.end_ns for r in reads if source(r, events) and write in missed(r, events)]
                    yield level, ops[write.op].phase, ops[write.op].side, max(old, default=0)


def visible(run: Run, kind: str) -> Iterator[tuple[str, int, float, float | None]]:
    """M5: of each acknowledged write that was read afterwards, level, number, and the times between which it became visible for
    good: the last read of something older, and the next read. None: no read followed."""
    for key, level in run.keys(kind):
        for events in run.histories(kind, key, level):
            reads = oracles.reads_of(events)
            for write in (e for e in events if e.kind != "get" and e.outcome == "ok"):
                ages = sorted(read.start_ns - write.end_ns for read in reads if read.start_ns >= write.end_ns)
                if ages:
                    old = [r.start_ns - write.end_ns for r in reads if source(r, events) and write in missed(r, events)]
                    stale = max(old, default=0)
                    yield level, write.op, stale, next((age for age in ages if age > stale or not old), None)


def final_keys(run: Run, kind: str, is_so: Callable[[KeyEvent, list[KeyEvent]], bool]) -> Iterator[tuple[str, str, bool]]:
    """M19: for each key and level, whether any answered final read has the property; keys without such a read are left out."""
    for key, level in run.keys(kind):
        found = [is_so(e, h) for h in run.histories(kind, key, level) for e in oracles.reads_of(h) if e.final]
        if found:
            yield level, key, any(found)


def is_resurrected(read: KeyEvent, events: list[KeyEvent]) -> bool:
    return read.value is not None and any(write.value is None for write in missed(read, events))


CLASSES: dict[str, Callable[[KeyEvent, list[KeyEvent]], bool]] = {
    "regular": lambda read, events: behind(read, events) == 0,
    "one version": lambda read, events: behind(read, events) in (0, 1),
    "eventual": lambda read, events: source(read, events) is not None,
    "answered": lambda read, events: True,
}


def classes(run: Run, kind: str, second: int) -> Iterator[tuple[str, str, str, dict[str, bool]]]:
    """M9: for each read of a judged key, the classes of its answer."""
    for key, level in run.keys(kind):
        histories, bad = run.histories(kind, key, level), anomalous(run, kind, key, level)
        for op in (o for o in run.ops if (o.kind, o.key, o.level) == (kind, key, level) and o.phase in JUDGED):
            own = [(e, h) for h in histories for e in h if e.op == op.op and op.outcome == "ok"]
            found = {name: bool(own) and all(holds(e, h) for e, h in own) for name, holds in CLASSES.items()}
            # For look-ups, all versions of all brokers count.
            behind_by = [behind(e, h) for e, h in own]
            found["one version"] = bool(own) and None not in behind_by and sum(b for b in behind_by if b is not None) <= 1
            found["linearizable"] = bool(own) and op.op not in bad
            found["session"] = found["eventual"] and not any(any(oracles.broken_guarantees(e, h)) for e, h in own)
            late = worst_lag([lag(e, h) for e, h in own])
            found["one second"] = found["eventual"] and late is not None and late <= second
            yield level, op.phase, op.side, found


def gaps(run: Run) -> Iterator[tuple[tuple[str, str, str, str], str, str, int]]:
    """M17: times between successes of a client that fails over, or of a kind of operation at a node: who, phase, side, gap."""
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    begin, last = run.marks["steady"], run.marks["final"]
    fault, heal = run.marks.get("fault", FOREVER), run.marks.get("heal", FOREVER)
    writers = {op.client for op in run.ops if op.access == "each" and op.phase not in ("settle", "end")}
    for op in run.ops:
        if op.phase in JUDGED:
            ends = [op.end] if op.end is not None and op.outcome == "ok" and begin <= op.end <= last else []
            is_own = op.access == "failover" and op.kind in ASKED
            access = "other" if op.client in writers else "failover"
            own = ("all", access, op.client) if is_own else (op.kind, op.access, op.bound or "any")
            groups[op.level, *own].extend(ends)
    for who, ends in groups.items():
        for start, end in pairwise(sorted([begin, *ends, last])):
            phase = "fault" if start < heal and end > fault else "heal" if start >= heal else "steady"
            node = None if who[1] == "all" or who[3] == "any" else who[3]
            yield who, phase, run.side_of(node, max(start, fault) if phase == "fault" else start), end - start


def look_ups(run: Run) -> Iterator[tuple[Op, set[str], set[str]]]:
    """Answered look-ups, with the brokers that must be in the answer, and those that may."""
    for op in run.ops:
        if op.kind == "route" and op.outcome == "ok" and op.phase in JUDGED and op.end is not None:
            must, may = set(), set()
            for broker in run.brokers:
                at = [_place(run, broker, op.key, moment) for moment in range(op.start, op.end)]
                must |= {broker} if all(place == "must" for place in at) else set()
                # A broker that changes its topics answers for the old ones until the change is acknowledged.
                changed = any(
                    op.key in before["topics"] and now["state"] in ALIVE and op.start <= now["time_ns"] < op.end
                    for before, now in pairwise(run.of("truth", broker=broker))
                )
                may |= {broker} if changed or any(at) else set()
            yield op, must, may


def _place(run: Run, broker: str, topic: str, moment: int) -> str | None:
    """Whether the broker must or may be in answers for the topic at this moment; None: neither."""
    states = [row for start, _, row in run.broker_states(broker) if start <= moment]
    if not states:
        return None
    here, before = topic in states[-1]["topics"], len(states) > 1 and topic in states[-2]["topics"]
    if states[-1]["state"] in ALIVE:
        return "must" if here else None
    return "may" if states[-1]["state"] in ("starting", "stopping") and (here or before) else None


def detections(run: Run) -> list[tuple[int, bool]]:
    """T_D: for each death of a broker and each node, the time from the death to the node's last drop of the broker. If a node
    listed the broker and did not drop it, the time for which this was observed."""
    found = []
    for broker in run.brokers:
        for start, end, row in run.broker_states(broker):
            for node in NODES:
                drops = [d["time_ns"] for d in run.of("expiry", broker=broker, node=node) if start <= d["time_ns"] < end]
                if row["state"] in GONE and drops:
                    found.append((max(drops) - start, True))
                elif row["state"] in GONE:
                    answers = _answers(run, node)
                    if any(begin <= start < until and broker in names for begin, until, names in answers):
                        found.append((min(end, max(until for _, until, _ in answers)) - start, False))
    return found


def _answers(run: Run, node: str) -> list[tuple[int, int, set[str]]]:
    """Each answer of a node, until the next look at it. The last answer, and an answer before a stall, end at once."""
    looks, found = run.of("observe", node=node), []
    moments = [row["time_ns"] if row["answered"] else row["asked_ns"] for row in looks]
    for place, row in enumerate(looks):
        following = moments[place + 1] if place + 1 < len(looks) else moments[place]
        until = following if following - moments[place] <= STANDSTILL else moments[place]
        if row["answered"]:
            found.append((moments[place], until, {m["name"] for m in json.loads(row["members"])}))
    return found


def later_than(times: list[tuple[int, bool]], moment: int) -> float:
    """Kaplan and Meier's estimate: the share of events that come after ``moment``."""
    share = 1.0
    for at in sorted({time for time, seen in times if seen and time <= moment}):
        share *= 1 - sum(time == at and seen for time, seen in times) / sum(time >= at for time, _ in times)
    return share


def survived(share: float) -> Callable[[list[tuple[int, bool]]], float | None]:
    """The least time by which ``share`` of the events came. None: they were not seen."""

    def of(times: list[tuple[int, bool]]) -> float | None:
        return next((at for at in sorted({t for t, seen in times if seen}) if later_than(times, at) <= 1 - share + 1e-12), None)

    return of


def mistakes(run: Run) -> Iterator[tuple[bool, int | None, int | None]]:
    """For each drop of a live broker: whether the broker was exposed; T_M, the time until it was listed again; T_MR, the time
    until this node next dropped it in the same life."""
    for broker in run.brokers:
        for node in NODES:
            drops = [d["time_ns"] for d in run.of("expiry", broker=broker, node=node)]
            spans = [span for span in run.broker_states(broker) if span[2]["state"] in ALIVE]
            wrong = [(at, row) for at in drops for start, end, row in spans if start <= at < end]
            for at, row in wrong:
                same = [span for span in spans if span[2]["life"] == row["life"]]
                later = [other - at for other, its in wrong if other > at and its["life"] == row["life"]]
                back = [seen - at for seen in _listings(run, node, broker) if at < seen < max(end for _, end, _ in same)]
                recurrence = min(later, default=None)
                yield row["state"] == "exposed", min([*back[:1], *later], default=None), recurrence


def _listings(run: Run, node: str, broker: str) -> list[int]:
    """The times at which a node was first seen to list the broker again, in order."""
    looks = run.of("observe", node=node)
    states = [look["members"] if look["answered"] else None for look in looks]
    moments = [look["time_ns"] if look["answered"] else look["asked_ns"] for look in looks]
    found = []
    for place, members in enumerate(states):
        follows = place and states[place - 1] == members and moments[place] - moments[place - 1] <= STANDSTILL
        if members and f'"{broker}"' in members and not follows:
            found.append(moments[place])
    return found


def leaders(run: Run) -> Iterator[int]:
    """M18: at each moment, the number of nodes whose latest valid sample says leader. The moments lie between the first and the
    last sample with a role. Moments without a valid sample are left out."""
    samples = run.of("status")
    spans = []
    for mine in ([s for s in samples if s["node"] == node] for node in NODES):
        ends = [s["time_ns"] for s in mine[1:]] + [s["time_ns"] for s in mine[-1:]]
        spans += [(s, s["time_ns"], min(end, s["time_ns"] + SAMPLE_HOLDS)) for s, end in zip(mine, ends, strict=True)]
    told = [span for span in spans if span[0]["role"] is not None]
    for at in range(min((start for _, start, _ in told), default=0), max((end for _, _, end in told), default=0)):
        speaking = [s for s, start, end in spans if start <= at < end]
        if speaking:
            yield sum(s["role"] == "leader" and s["answered"] for s in speaking)


def probes(run: Run) -> Found:
    """M3: of each probe with two answers or more, whether they were the same."""
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for op in run.ops:
        if op.probe is not None and op.outcome == "ok" and op.phase in JUDGED and op.kind in ("get", "route"):
            groups[op.level, op.phase, op.kind, op.key, op.probe].append(op.names if op.kind == "route" else op.value)
    for (level, phase, *_), answers in groups.items():
        if len(answers) > 1:
            yield level, phase, "all", float(all(answer == answers[0] for answer in answers))
