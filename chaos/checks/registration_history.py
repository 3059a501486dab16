"""Registrations as a history for the linearizability checker.

Each topic has one component for each broker. A registration writes its version to the broker's component of each of its topics,
an unregistration writes absence, and a route look-up reads all components. A death differs from a clean stop: the cluster removes
the broker at an unknown time, so this removal is an indeterminate unregistration. Special cases:

- A look-up with the level *lease* is judged like one without a level, because a lease promises the same.
- A broker that died must be listed for some time (``removal_times.py``), and its removal begins after this time.
- A broker that was ever *exposed* may have been dropped and registered again: while it is exposed, a correct CP cluster may drop
  it although it is alive (``records.Truth.state``). It is judged separately, with one history for each topic and each period in
  which it was not exposed. The first period ends with the exposure. The next begins with the registration whose acknowledgement
  ended the exposure, as a write. Answers that overlap an exposure do not count for that broker.
- A *life* is one process of a broker. Registrations without an answer at the life's end may arrive later and briefly register the
  broker again. Each counts as an indeterminate registration. Its removal counts as an indeterminate unregistration that begins at
  the life's end. A broker with more than LATE_MAX of them is also judged separately, because they make the search long.
- Groups with a slave are left out, because master and slave change the same version, that of their group.

Until the life's end, late copies of replaced versions are not in the model, because the product promises that they are no-ops
while a newer version is registered. An answer is a violation if it lists a broker that is not part of the run, a broker twice, or
a version that was never registered.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicated_namesrv.chaos.checks.removal_times import earliest_removal_ns
from replicated_namesrv.chaos.checks.story import NEVER_NS, BrokerState, Op, Story
from replicated_namesrv.chaos.recorded_brokers import DEPUTY, HEIR, PAIR
from replicated_namesrv.chaos.records import Member
from replicated_namesrv.verify import Operation, Outcome


class Period(NamedTuple):
    """A period in which a broker was not exposed: from ``start_ns`` up to ``end_ns``."""

    start_ns: int
    end_ns: int
    version: str | None
    """The version that had been registered and acknowledged when the period began. None: the period begins with the run."""


class Late(NamedTuple):
    """A request that may arrive at any time after the end of its broker's life."""

    copy: Op
    start_ns: int
    """The cluster may accept the registration only after this time. While a newer version is registered, it must not."""
    end_ns: int
    """End of the broker's life. The cluster may remove the registration that the copy makes only after this time."""


LATE_MAX = 6
GROUPS_WITH_SLAVE = (PAIR, DEPUTY)
ALWAYS = Period(0, NEVER_NS, None)


class RegistrationHistory(NamedTuple):
    """The histories for the checker, and the answers that are not judged."""

    history: list[Operation]
    left_out: Mapping[str, int]
    """For each reason, the number of answers that are not judged for a broker of their topic."""


def registrations(story: Story) -> RegistrationHistory:
    """Registrations, unregistrations and look-ups by topic. For brokers that were exposed there is a separate history for each
    topic and period."""
    late, exposed = late_copies(story), story.ever("exposed")
    answers: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.ops:
        if op.kind == "route" and op.level in (None, "lease"):
            answers[op.key].append(op)
    history: list[Operation] = []
    left_out: Counter[str] = Counter()
    apart: set[tuple[str, str]] = set()
    for broker, topics in topics_of(story).items():
        if not has_slave(broker) and broker not in exposed and len(late[broker]) <= LATE_MAX:
            history += [write for topic in topics for write in _writes(story, broker, topic, ALWAYS, late[broker])]
            continue
        apart.update((topic, broker) for topic in topics)
        about = [op for topic in topics for op in answers[topic] if op.ok]
        found = [] if has_slave(broker) else _apart(story, broker, topics, about, late[broker])
        history += found
        reason = "answers about a group with a slave" if has_slave(broker) else "answers about a broker while it was exposed"
        left_out[reason] += len(about) - sum(one.op == "route" for one in found)
    for topic, ops in answers.items():
        pair = any(has_slave(broker) for of, broker in apart if of == topic)
        for op in ops:
            listed = [one for one in op.members if (topic, one.name) not in apart and not (pair and has_slave(one.name))]
            history.append(operation(op, "route", topic, _answer(listed)))
    return RegistrationHistory(history, +left_out)


def topics_of(story: Story) -> dict[str, list[str]]:
    """For each broker: the topics that it serves during the whole run. Clients look up no other topics."""
    return {one["broker"]: one["topics"] for one in story.manifest["brokers"]}


def _writes(story: Story, broker: str, topic: str, period: Period, late: Iterable[Late]) -> Iterator[Operation]:
    """All writes that can have changed how ``topic`` lists ``broker`` in one of its periods."""
    if period.version is not None:
        yield Operation(broker, "register", topic, [broker, period.version], period.start_ns, period.start_ns, Outcome.OK)
    for op in story.of_kind("register", "unregister"):
        if op.key == broker and topic in op.topics and op.start_ns < period.end_ns and op.end_ns > period.start_ns:
            yield operation(op, op.kind, topic, [broker, op.value] if op.kind == "register" else broker)
    for life in story.lives[broker]:
        if life.state in ("dead", "silent") and period.start_ns <= life.start_ns < period.end_ns:
            yield _open(earliest_removal_ns(story, broker, life), "unregister", topic, broker)
    for copy, start_ns, end_ns in late:
        if start_ns < period.end_ns and int(copy.value or 0) >= int(period.version or 0):
            yield _open(start_ns, "register", topic, [broker, copy.value])
            yield _open(end_ns, "unregister", topic, broker)


def _apart(story: Story, broker: str, topics: Iterable[str], about: Iterable[Op], late: Sequence[Late]) -> list[Operation]:
    """The histories of a broker that was exposed: one for each of its topics and periods."""
    found: list[Operation] = []
    for number, period in enumerate(periods(story, broker), 1):
        reads = [op for op in about if period.start_ns <= op.start_ns and op.end_ns <= period.end_ns]
        for topic in topics:
            ops = list(_writes(story, broker, topic, period, late))
            for op in reads:
                if op.key == topic:
                    ops.append(operation(op, "route", topic, _answer(one for one in op.members if one.name == broker)))
            found += [op._replace(key=f"{topic} of {broker}, period {number}") for op in ops]
    return found


def _answer(members: Iterable[Member]) -> list[list[str]]:
    """An answer in the checker's form. If a broker is listed twice, the second entry gets a name that was never registered, so
    that no order is legal.
    """
    found: dict[str, str] = {}
    for name, version in members:
        found[name if name not in found else f"{name} listed again"] = version
    return [[name, version] for name, version in found.items()]


def periods(story: Story, broker: str) -> list[Period]:
    """Periods in which the broker was not exposed. While it is exposed, a correct CP cluster may drop it although it is alive
    (``records.Truth.state``)."""
    acknowledged = [op for op in story.of_kind("register") if op.key == broker and op.ok and op.value is not None]
    found, begun = [], ALWAYS
    is_exposed = False
    for life in story.lives[broker]:
        if life.state == "exposed" and not is_exposed:
            found.append(begun._replace(end_ns=life.start_ns))
            is_exposed = True
        elif life.state in ("safe", "serving") and is_exposed:
            versions = [int(str(op.value)) for op in acknowledged if op.end_ns <= life.start_ns]
            begun = Period(life.start_ns, NEVER_NS, str(max(versions, default=0)))
            is_exposed = False
    return found if is_exposed else [*found, begun]


def has_slave(broker: str) -> bool:
    """Whether the broker belongs to a group with a slave."""
    group = broker.partition("/")[0]
    return group in GROUPS_WITH_SLAVE or group.startswith(HEIR)


def operation(op: Op, kind: str, key: str, value: object) -> Operation:
    """The operation in the checker's form."""
    end_ns = None if op.end_ns == NEVER_NS else op.end_ns
    return Operation(op.client, kind, key, value, op.start_ns, end_ns, Outcome(op.outcome))  # type: ignore[arg-type]  # a kind is one of the literals


def _open(start_ns: int, kind: str, topic: str, value: object) -> Operation:
    return Operation("the cluster", kind, topic, value, start_ns, None, Outcome.INDETERMINATE)  # type: ignore[arg-type]  # a kind is one of the literals


def late_copies(story: Story) -> defaultdict[str, list[Late]]:
    """For each broker: the registrations whose outcome is unknown, or which were not answered before the end of its life."""
    last: dict[tuple[str, int], BrokerState] = {}
    for broker, lives in story.lives.items():
        for life in lives:
            if life.state in ("stopping", "dead", "silent"):
                last[broker, life.life] = life
    found: defaultdict[str, list[Late]] = defaultdict(list)
    for op in story.ops:
        if op.kind == "register-copy" and (op.outcome == "indeterminate" or op.ok):
            life_then = story.life_at(op.key, op.start_ns)
            end = None if life_then is None else last.get((op.key, life_then.life))
            if end is not None and (not op.ok or op.end_ns > end.start_ns):
                found[op.key].append(Late(op, op.start_ns if end.version == op.value else end.start_ns, end.start_ns))
    return found
