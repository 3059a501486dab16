"""Judges registrations: the topic look-ups are judged as reads, like those of the key-value store (M1 to M10).
Pure.

Each broker of a topic is a register of its own: a registration writes its version, an unregistration writes "absent", and a
look-up reads all of them at once. Linearizability is judged on whole look-ups. Everything else is judged broker by broker, and
a look-up is as stale as its stalest broker.

After a broker's death the cluster removes it at an unknown time, so the removal is an indeterminate unregistration from the death
on. If the last registration of a life has an unknown outcome, it may arrive later. It is then an indeterminate registration,
followed by another such removal. Brokers whose changes are not all known are left out. These are brokers that no majority could
reach for a time (state ``exposed``), because even a correct cluster may drop them; brokers with the same brokerName, because an
answer contains one version for all of them; and brokers with more than LATE_MAX such late registrations.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from replicated_namesrv.spark.client_operations import ClientOperation
from replicated_namesrv.spark.histories import Distance, KeyJudgement, Read, judge
from replicated_namesrv.spark.judgements import LIMITS, by_level, event_of, rows_of
from replicated_namesrv.spark.run_records import RunRecords
from replicated_namesrv.spark.truth import DEAD, TruthSpan
from replicated_namesrv.verify import Operation, Outcome, check_history
from replicated_namesrv.verify.attribution import NEVER, KeyEvent

LATE_MAX = 6
CLUSTER = "the cluster"
"""Client name for removals by the cluster itself."""

Row = dict[str, Any]


class TopicEvent(NamedTuple):
    """A look-up of a topic, or a change of one of its brokers."""

    event: KeyEvent
    level: str | None
    broker: str | None
    """Name of the broker. None: the event is a look-up."""
    members: str | None


def topic_histories(done: Iterable[ClientOperation], spans: Sequence[TruthSpan]) -> dict[str, list[TopicEvent]]:
    """Look-ups of judged phases, and registrations and removals of all phases, by topic."""
    found: defaultdict[str, list[TopicEvent]] = defaultdict(list)
    operations = list(done)
    copies = [op for op in operations if op.kind == "register-copy" and op.outcome == "indeterminate"]
    late = _late_copies(copies, spans)
    known = _known_brokers(spans, Counter(op.key for op in late))
    opened: list[tuple[str, str, str, str | None, int]] = []
    """Changes with unknown outcome: kind, broker, topic, version and start."""
    for op in operations:
        if op.kind == "route" and op.phase is not None:
            found[op.key].append(TopicEvent(event_of(op), op.level, None, op.members))
        elif op.kind in ("register", "unregister") and op.key in known:
            for topic in op.topics:
                found[topic].append(TopicEvent(event_of(op)._replace(final=False), None, op.key, None))
    for span in spans:
        if span.state in DEAD and span.broker in known:
            opened += [("unregister", span.broker, topic, None, span.from_ns) for topic in span.topics]
    for copy in late:
        if copy.key in known:
            for topic in copy.topics:
                opened.append(("register", copy.key, topic, copy.value, copy.start_ns))
                opened.append(("unregister", copy.key, topic, None, copy.start_ns))
    for number, (kind, broker, topic, version, start_ns) in enumerate(opened, 1):
        # The numbers of these events are negative, so that they differ from those of clients' operations.
        event = KeyEvent(-1 - number, CLUSTER, kind, version, start_ns, NEVER, "indeterminate", False)
        found[topic].append(TopicEvent(event, None, broker, None))
    return found


def _late_copies(copies: Iterable[ClientOperation], spans: Sequence[TruthSpan]) -> list[ClientOperation]:
    """Those of ``copies``, which have unknown outcomes, that register the last version of a broker's life."""
    ends: dict[tuple[str, int], str | None] = {}
    of_broker: defaultdict[str, list[TruthSpan]] = defaultdict(list)
    for span in spans:  # the spans are in the order of time
        of_broker[span.broker].append(span)
        if span.state in (*DEAD, "stopping"):
            ends[span.broker, span.life] = span.version
    found = []
    for copy in copies:
        lives = [span.life for span in of_broker[copy.key] if span.from_ns <= copy.start_ns < span.until_ns]
        if lives and (copy.key, lives[0]) in ends and ends[copy.key, lives[0]] == copy.value:
            found.append(copy)
    return found


def _known_brokers(spans: Iterable[TruthSpan], late: Counter[str]) -> set[str]:
    """Brokers whose changes are all known."""
    exposed: dict[str, bool] = {}
    for span in spans:
        exposed[span.broker] = exposed.get(span.broker, False) or span.state == "exposed"
    alone = Counter(broker.partition("/")[0] for broker in exposed)
    return {
        broker
        for broker, ever in exposed.items()
        if not ever and alone[broker.partition("/")[0]] == 1 and late[broker] <= LATE_MAX
    }


def judged_registrations(records: RunRecords, histories: dict[str, list[TopicEvent]]) -> list[Row]:
    """The judgement of each topic: rows of JUDGED, where a read is a look-up and a key is a topic."""
    rows: list[Row] = []
    for topic, history in sorted(histories.items()):
        for level, places in by_level([(one.event, one.level) for one in history], "route"):
            rows += _judged_topic(records, topic, [history[place] for place in places], level)
    return rows


def _judged_topic(records: RunRecords, topic: str, history: Sequence[TopicEvent], level: str) -> Iterable[Row]:
    written = {one.broker for one in history if one.broker is not None and one.event.kind == "register"}
    looks = [
        (one.event, {name: version for name, version in records.members(one.members) if name in written})
        for one in history
        if one.broker is None and one.event.outcome == "ok"
    ]
    changes = [(one.event, one.broker) for one in history if one.broker is not None and one.broker in written]
    found = _verdict(looks, changes)
    parts: list[KeyJudgement] = []
    for broker in sorted(written):
        events = [event._replace(kind="get", value=versions.get(broker)) for event, versions in looks]
        events += [
            event._replace(kind="put" if event.kind == "register" else "delete") for event, own in changes if own == broker
        ]
        parts.append(judge(events, atomic=found == "valid"))
    if parts:
        yield from rows_of(together(parts), topic, level, found, len(history))


def _verdict(looks: Sequence[tuple[KeyEvent, dict[str, str]]], changes: Sequence[tuple[KeyEvent, str]]) -> str:
    """M1 of a topic: whole look-ups against registrations."""
    said: list[Operation] = []
    for event, versions in looks:
        said.append(_operation(event, [[name, version] for name, version in sorted(versions.items())]))
    for event, broker in changes:
        said.append(_operation(event, [broker, event.value] if event.kind == "register" else broker))
    return check_history(said, LIMITS).verdict.value if said else "valid"


def _operation(event: KeyEvent, value: Any) -> Operation:
    end_ns = None if event.end_ns == NEVER else int(event.end_ns)
    return Operation(event.client, event.kind, "topic", value, int(event.start_ns), end_ns, Outcome(event.outcome))


def together(parts: Sequence[KeyJudgement]) -> KeyJudgement:
    """Merge the judgements of a topic's brokers into one of the topic. All brokers have the same reads, the look-ups of the
    topic.
    """
    reads: defaultdict[int, list[Read]] = defaultdict(list)
    for part in parts:
        for read in part.reads:
            reads[read.op].append(read)
    distances = [part.distance for part in parts]
    deltas = [distance.delta_ns for distance in distances]
    whole = Distance(
        None if None in deltas else max(delta for delta in deltas if delta is not None),
        sum(distance.pairs for distance in distances),
        sum(distance.conflicts for distance in distances),
        max(distance.gamma_max_ns for distance in distances),
        sorted(gamma for distance in distances for gamma in distance.gammas_ns),
    )
    return KeyJudgement([_worst(found) for found in reads.values()], [w for part in parts for w in part.windows], whole)


def _worst(found: Sequence[Read]) -> Read:
    """Merge the judgements of one look-up, which is as stale as its stalest broker. Its age is the greatest age of the versions
    that it missed. If it missed none, its age is the smallest age of the versions that it saw.
    """
    behind = [read.versions_behind for read in found]
    stale = [read.age_ns for read in found if read.age_ns is not None and not read.fresh]
    seen = [read.age_ns for read in found if read.age_ns is not None]
    fresh = all(read.fresh for read in found)
    return Read(
        op=found[0].op,
        anomalous=any(read.anomalous for read in found),
        versions_behind=None if None in behind else sum(count for count in behind if count is not None),
        fresh=fresh,
        age_ns=max(stale, default=None) if not fresh else min(seen, default=None),
        read_your_writes=any(read.read_your_writes for read in found),
        monotonic_reads=any(read.monotonic_reads for read in found),
        monotonic_writes=any(read.monotonic_writes for read in found),
        writes_follow_reads=any(read.writes_follow_reads for read in found),
        lost=any(read.lost for read in found),
        resurrected=any(read.resurrected for read in found),
    )
