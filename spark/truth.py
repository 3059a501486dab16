"""Compares answers with the true state of brokers: harvest, ghosts (M11, M13), and failure detection by name servers (M16). Pure.

A broker must be in the answer for a topic if it was serving the topic during the whole look-up. It must not be there if it was
dead during the whole look-up. In between, both answers are correct.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.timeline import FOREVER_NS

SERVING = ("serving", "exposed", "safe")
"""States in which a broker is alive and has registered."""
BETWEEN = ("starting", "stopping")
SILENT = "silent"
"""State of a broker that died and left its connections open."""
DEAD = ("dead", SILENT)
REGISTRATIONS = "brokers"
"""Key of the observations of registrations."""

Row = dict[str, Any]


class TruthSpan(NamedTuple):
    """A broker's state from one truth record to the next."""

    broker: str
    life: int
    state: str
    version: str | None
    topics: list[str]
    topics_before: list[str]
    from_ns: int
    until_ns: int


def truth_spans(records: RunRecords) -> list[TruthSpan]:
    """The states of all brokers, broker by broker and by time."""
    of_broker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in records.of("truth", "broker", "life", "state", "version", "topics"):
        of_broker[row["broker"]].append(row)
    found = []
    for broker, rows in sorted(of_broker.items()):
        for place, row in enumerate(rows):
            until_ns = rows[place + 1]["time_ns"] if place + 1 < len(rows) else FOREVER_NS
            before = (rows[place - 1]["topics"] or []) if place else []
            found.append(
                TruthSpan(
                    broker, row["life"], row["state"], row["version"], row["topics"] or [], before, row["time_ns"], until_ns
                )
            )
    return found


def look_ups(records: RunRecords, done: Iterable[ClientOperation], spans: Sequence[TruthSpan]) -> list[Row]:
    """Rows of LOOK_UPS, one for each answered look-up before ``final``: ``must``: number of brokers that must be in the answer;
    ``found``: how many of these are in it; ``answered``: number of brokers in the answer; ``ghosts``: how many of these must not
    be in it."""
    of_topic: dict[str, dict[str, list[TruthSpan]]] = {}
    rows = []
    for op in done:
        if op.kind != "route" or not op.ok or op.end_ns is None or op.phase in (None, "final"):
            continue
        if op.key not in of_topic:
            of_topic[op.key] = _serving(op.key, spans)
        must, may = _expected(op.key, op.start_ns, op.end_ns, of_topic[op.key])
        names = {name for name, _ in records.members(op.members)}
        rows.append(
            {
                "mode": records.about["mode"], "level": op.level, "phase": op.phase, "side": op.side, "op": op.op,
                "must": len(must), "found": len(names & must), "answered": len(names), "ghosts": len(names - may),
            }
        )  # fmt: skip  # items grouped by line
    return rows


def _serving(topic: str, spans: Sequence[TruthSpan]) -> dict[str, list[TruthSpan]]:
    """The states of the brokers that ever served the topic."""
    brokers = {span.broker for span in spans if topic in span.topics}
    found: dict[str, list[TruthSpan]] = {broker: [] for broker in sorted(brokers)}
    for span in spans:
        if span.broker in brokers:
            found[span.broker].append(span)
    return found


def _expected(topic: str, start_ns: int, end_ns: int, brokers: dict[str, list[TruthSpan]]) -> tuple[set[str], set[str]]:
    """Brokers that must be in an answer, and brokers that may be in it."""
    must, may = set(), set()
    for broker, spans in brokers.items():
        during = [span for span in spans if span.from_ns < end_ns and span.until_ns > start_ns]
        serves = [span.state in SERVING and topic in span.topics for span in during]
        if during and all(serves) and during[0].from_ns <= start_ns:
            must.add(broker)
        if any(serves) or any(_may(topic, start_ns, span) for span in during):
            may.add(broker)
    return must, may


def _may(topic: str, start_ns: int, span: TruthSpan) -> bool:
    """Whether a broker may be in the answer though it does not serve the topic now."""
    if span.state in BETWEEN:
        return topic in span.topics or topic in span.topics_before
    # A broker that changes its topics still serves the old ones until the change is acknowledged.
    return span.state in SERVING and topic in span.topics_before and span.from_ns >= start_ns


def detections(drops: Iterable[Row], spans: Iterable[TruthSpan], listings: "Listings") -> list[Row]:
    """Rows of DETECTIONS: T_D (Chen, Toueg and Aguilera 2002), one row for each death and each node that listed the broker then
    or dropped it afterwards. ``detected_ns`` is the time from the death to the last drop. A late request may list the dead broker
    once more, so there may be several drops. Null: no drop was seen. ``observed_ns``: how long after the death the node was
    observed; a drop within this time would have been seen."""
    of_broker: defaultdict[str, list[Row]] = defaultdict(list)
    for drop in drops:
        of_broker[drop["broker"]].append(drop)
    rows = []
    for span in spans:
        if span.state not in DEAD:
            continue
        last: dict[str, int] = {}
        for drop in of_broker[span.broker]:
            if span.from_ns <= drop["time_ns"] < span.until_ns:
                last[drop["node"]] = max(drop["time_ns"], last.get(drop["node"], 0))
        for node in sorted(last.keys() | listings.nodes_at(span.broker, span.from_ns)):
            detected = last[node] - span.from_ns if node in last else None
            seen_until = min(span.until_ns, listings.known_until(node)) - span.from_ns
            rows.append(
                {
                    "broker": span.broker, "life": span.life, "node": node, "detected_ns": detected,
                    "observed_ns": max(seen_until, detected or 0),
                }
            )  # fmt: skip  # items grouped by line
    return rows


def observed_detections(spans: Iterable[TruthSpan], listings: "Listings") -> list[Row]:
    """Rows of DETECTIONS from the answers of the nodes alone, for name servers that do not report removals (RocketMQ's own).

    ``detected_ns`` is the time from the death until the first answer after the last one that listed the broker."""
    rows = []
    for span in spans:
        if span.state not in DEAD:
            continue
        for node in sorted(listings.nodes_at(span.broker, span.from_ns)):
            until_ns = min(span.until_ns, listings.known_until(node))
            gone_ns = listings.gone_ns(span.broker, node, span.from_ns, until_ns)
            rows.append(
                {
                    "broker": span.broker, "life": span.life, "node": node,
                    "detected_ns": None if gone_ns is None else gone_ns - span.from_ns,
                    "observed_ns": max(until_ns, gone_ns or 0) - span.from_ns,
                }
            )  # fmt: skip  # items grouped by line
    return rows


class Listings:
    """The times at which each node's known answers listed each broker, from rows of STATES."""

    def __init__(self, records: RunRecords, states: Iterable[Row]) -> None:
        self._spans: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._until: defaultdict[str, int] = defaultdict(int)
        self._begins: defaultdict[str, list[int]] = defaultdict(list)
        for row in states:
            if row["key"] == REGISTRATIONS:
                self._begins[row["node"]].append(row["from_ns"])
                self._until[row["node"]] = max(self._until[row["node"]], row["until_ns"])
                for name, _ in records.members(row["members"]):
                    self._spans[name].append((row["from_ns"], row["until_ns"], row["node"]))

    def nodes_at(self, broker: str, moment_ns: int) -> set[str]:
        """The nodes whose answers listed the broker at this moment."""
        return {node for from_ns, until_ns, node in self._spans[broker] if from_ns <= moment_ns < until_ns}

    def begins(self, broker: str, node: str) -> Iterator[int]:
        """Times at which answers of the node with this broker began."""
        return (from_ns for from_ns, _, own in self._spans[broker] if own == node)

    def gone_ns(self, broker: str, node: str, from_ns: int, until_ns: int) -> int | None:
        """The start of the first answer after the last answer that listed the broker in this period. None: the node listed the
        broker to the end, or gave no further answer."""
        last_ns = max((end for begin, end, own in self._spans[broker] if own == node and begin < until_ns and end > from_ns))
        return min((begin for begin in self._begins[node] if last_ns <= begin < until_ns), default=None)

    def known_until(self, node: str) -> int:
        """The last time at which the node's answer was known."""
        return self._until[node]


def mistakes(drops: Iterable[Row], spans: Iterable[TruthSpan], listings: Listings) -> list[Row]:
    """Rows of MISTAKES, drops of a live broker: ``mistake_ns`` until the node lists it again (null: not seen), ``recurrence_ns``
    until the node's next mistake about this broker (null: none).

    Both times are measured within one life of the broker: after the end of a life a drop is correct, and the definition of
    mistakes assumes that nothing fails (Chen, Toueg and Aguilera 2002)."""
    alive: defaultdict[str, list[TruthSpan]] = defaultdict(list)
    ends: defaultdict[tuple[str, int], int] = defaultdict(int)
    for span in spans:
        if span.state in SERVING:
            alive[span.broker].append(span)
            ends[span.broker, span.life] = max(ends[span.broker, span.life], span.until_ns)
    wrong: defaultdict[tuple[str, int, str], dict[int, TruthSpan]] = defaultdict(dict)
    for drop in drops:
        for span in alive[drop["broker"]]:
            if span.from_ns <= drop["time_ns"] < span.until_ns:
                wrong[span.broker, span.life, drop["node"]][drop["time_ns"]] = span
    rows = []
    for (broker, life, node), found in wrong.items():
        moments = sorted(found)
        for place, at_ns in enumerate(moments):
            recurrence = moments[place + 1] - at_ns if place + 1 < len(moments) else None
            back = [begun - at_ns for begun in listings.begins(broker, node) if at_ns < begun < ends[broker, life]]
            # A node cannot drop a broker that it does not list. So before its next drop it had listed the broker again, even if
            # no look saw this.
            lasted = min([*back, *([] if recurrence is None else [recurrence])], default=None)
            rows.append(
                {
                    "broker": broker, "node": node, "at_ns": at_ns, "exposed": found[at_ns].state == "exposed",
                    "mistake_ns": lasted, "recurrence_ns": recurrence,
                }
            )  # fmt: skip  # items grouped by line
    return rows
