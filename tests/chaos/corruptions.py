"""Ways in which the answers of a run may be wrong. Each changes the records to answers that no correct cluster can have given.

A corruption gets a run and the seed's randomness, and returns the run with some records changed; None if the run has no place for
it. ``FOUND_BY`` and ``FOUND_BY_OF_NODES`` name the checks that must find it, each of them.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from replicated_namesrv.chaos.checks.real_time import kv_writes, overtaken
from replicated_namesrv.chaos.checks.removal_times import last_contact
from replicated_namesrv.chaos.checks.settings_changes import SETTINGS_KEPT
from replicated_namesrv.chaos.checks.story import Op, Story
from replicated_namesrv.chaos.mqadmin import OWN_SETTING, SETTINGS, SHARED_SETTING
from replicated_namesrv.chaos.records import (
    Complete,
    ExpiryRecord,
    FaultRecord,
    Member,
    Observe,
    RecordedTrace,
    Status,
    TraceRecord,
)

_Found = TypeVar("_Found")
Changes = dict[int, TraceRecord]
Corruption = Callable[[Story, random.Random], Changes | None]

KV, REGISTRATION = "linearizable KV", "linearizable registration"
FINAL_KV, FINAL_REGISTRATION = "acknowledged KV writes at the end", "acknowledged registrations at the end"
NODE_KV, NODE_REGISTRATIONS = "each node keeps its KV entries", "each node keeps its live brokers"
QUIET = "requests are answered"
NODE_ORDERS, REPORTS = "each node keeps what mqadmin changed", "removals are reported"
RESURRECTION, SESSIONS, STATE = "no resurrection", "session guarantees", "one state for one revision"


def corrupted(story: Story, changes: Changes) -> Story:
    """The run after ``changes``: for each place, the record that replaces the one there; for place -1, a record that is added."""
    records = list(story.trace.records)
    for place, record in changes.items():
        if place >= 0:
            records[place] = record
    if -1 in changes:
        records.insert(len(records) - 1, changes[-1])
    return Story(RecordedTrace(records, 0, []), story.manifest)


def _one(rng: random.Random, found: Iterable[_Found]) -> _Found | None:
    every = list(found)
    return rng.choice(every) if every else None


def _shuffled(rng: random.Random, found: Sequence[_Found]) -> list[_Found]:
    """The values in random order: the first that fits is used, because checking all of them takes long."""
    return rng.sample(found, len(found))


def _answer(story: Story, op: Op, **changed: Any) -> Changes:
    for place, record in enumerate(story.trace.records):
        if isinstance(record, Complete) and record.op == op.op:
            return {place: replace(record, **changed)}
    raise AssertionError(f"operation {op.op} never ended")


def _is_final(story: Story, op: Op) -> bool:
    return op.client == "probe" and op.start_ns > story.phases["final"].start_ns


def _gets(story: Story, *, final: bool) -> list[Op]:
    return [op for op in story.of_kind("get") if op.ok and _is_final(story, op) == final]


def _overtaken(read: Op, writes: Sequence[Op]) -> list[Op]:
    """Puts whose value ``read`` cannot have seen."""
    older = [write for write in writes if write.kind == "put" and write.end_ns < read.start_ns]
    return [put for put in older if overtaken(read._replace(value=put.value), writes)]


def _older_value(story: Story, rng: random.Random, *, final: bool) -> Changes | None:
    writes = kv_writes(story)
    for read in _shuffled(rng, _gets(story, final=final)):
        old = _one(rng, _overtaken(read, writes.get(read.key, ())))
        if old is not None:
            return _answer(story, read, value=old.value)
    return None


def older_value(story: Story, rng: random.Random) -> Changes | None:
    """A get returns a value that had been replaced."""
    return _older_value(story, rng, final=False)


def older_value_at_the_end(story: Story, rng: random.Random) -> Changes | None:
    """One node has missed a write."""
    return _older_value(story, rng, final=True)


def value_from_nowhere(story: Story, rng: random.Random) -> Changes | None:
    """A get returns a value that was never written."""
    read = _one(rng, _gets(story, final=False))
    return None if read is None else _answer(story, read, value="from nowhere")


def value_lost(story: Story, rng: random.Random) -> Changes | None:
    """A get finds no value although one was written."""
    writes = kv_writes(story)
    for read in _shuffled(rng, _gets(story, final=False)):
        if read.value is not None and overtaken(read._replace(value=None), writes.get(read.key, ())):
            return _answer(story, read, value=None)
    return None


def deleted_value(story: Story, rng: random.Random) -> Changes | None:
    """A get returns a value that had been deleted."""
    writes = kv_writes(story)
    for read in _shuffled(rng, _gets(story, final=False)):
        mine = writes.get(read.key, [])
        deleted_ns = max((op.start_ns for op in mine if op.kind == "delete" and op.end_ns < read.start_ns), default=0)
        put = _one(rng, (op for op in mine if op.kind == "put" and op.end_ns < deleted_ns))
        if put is not None:
            return _answer(story, read, value=put.value)
    return None


def own_write_unread(story: Story, rng: random.Random) -> Changes | None:
    """A client reads a value that its own write had replaced."""
    writes = kv_writes(story)
    for read in _shuffled(rng, _gets(story, final=False)):
        mine = writes.get(read.key, [])
        own_ns = max((op.start_ns for op in mine if op.client == read.client and op.end_ns < read.start_ns), default=0)
        old = _one(rng, (op for op in _overtaken(read, mine) if op.end_ns < own_ns))
        if old is not None:
            return _answer(story, read, value=old.value)
    return None


def _listed(story: Story, broker: str, *, final: bool = False, states: Sequence[str] = ("serving", "safe")) -> list[Op]:
    """Look-ups throughout which ``broker`` was in one of these states."""
    found = []
    for op in story.of_kind("route"):
        begin, end = story.life_at(broker, op.start_ns), story.life_at(broker, op.end_ns)
        if op.members and begin is not None and begin is end and begin.state in states and _is_final(story, op) == final:
            found.append(op)
    return found


def _without(op: Op, broker: str) -> list[Member]:
    return [member for member in op.members if member.name != broker]


def broker_missing(story: Story, rng: random.Random) -> Changes | None:
    """A look-up lacks a broker that lives; also one that was exposed before."""
    broker = rng.choice(("g1/0", "g2/0"))
    read = _one(rng, _listed(story, broker))
    return None if read is None else _answer(story, read, members=_without(read, broker))


def broker_missing_at_the_end(story: Story, rng: random.Random) -> Changes | None:
    """One node lacks a broker."""
    broker = rng.choice(("g1/0", "g2/0", "g3/0"))
    read = _one(rng, _listed(story, broker, final=True))
    return None if read is None else _answer(story, read, members=_without(read, broker))


def older_registration(story: Story, rng: random.Random) -> Changes | None:
    """A look-up shows an earlier registration of a broker."""
    reads = [op for op in _listed(story, "g1/0") if op.start_ns > 2 * story.phases["steady"].start_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, members=[Member("g1/0", "1"), *_without(read, "g1/0")])


def stranger_listed(story: Story, rng: random.Random) -> Changes | None:
    """A look-up lists an unknown broker."""
    read = _one(rng, _listed(story, "g1/0"))
    return None if read is None else _answer(story, read, members=[*read.members, Member("stranger/0", "1")])


def listed_twice(story: Story, rng: random.Random) -> Changes | None:
    """A look-up lists one broker twice, as of two registrations."""
    read = _one(rng, _listed(story, rng.choice(("g1/0", "g2/0"))))
    return None if read is None else _answer(story, read, members=[*read.members, read.members[0]._replace(version="1")])


def ghost(story: Story, rng: random.Random) -> Changes | None:
    """One node continues to list a dead broker."""
    late_ns = 2_000_000_000 + story.lives["g3/0"][0].timeout_ns + 4_000_000_000
    reads = [op for op in _listed(story, "g3/0", states=("silent",)) if op.start_ns > late_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, members=[*read.members, Member("g3/0", "3")])


def permission_changed(story: Story, rng: random.Random) -> Changes | None:
    """A node answers a permission that had been replaced, or does not know the broker."""
    orders = list(story.of_kind("write-perm"))
    reads = [op for op in story.of_kind("perm") if not any(o.start_ns < op.end_ns and op.start_ns < o.end_ns for o in orders)]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, value=rng.choice([None, {"4": "6", "6": "4"}.get(str(read.value))]))


def topic_changed(story: Story, rng: random.Random) -> Changes | None:
    """A node shows a topic that was deleted, or lacks one that was not."""
    deletes = list(story.of_kind("delete-topic"))
    reads = [op for op in story.of_kind("topic") if not any(o.start_ns < op.end_ns and op.start_ns < o.end_ns for o in deletes)]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, value="900" if read.value is None else None)


def _looks(story: Story, kind: type[_Found]) -> list[tuple[int, _Found]]:
    return [(place, record) for place, record in enumerate(story.trace.records) if isinstance(record, kind)]


def revision_back(story: Story, rng: random.Random) -> Changes | None:
    """A node answers a revision lower than one answered before."""
    place, look = rng.choice([one for one in _looks(story, Observe)[10:] if one[1].answered])
    return {place: replace(look, revision=1)}


def contents_differ(story: Story, rng: random.Random) -> Changes | None:
    """Two nodes list different brokers at one revision."""
    looks = [one for one in _looks(story, Observe) if one[1].answered]
    place, look = rng.choice([one for one in looks if sum(other.revision == one[1].revision for _, other in looks) > 1])
    return {place: replace(look, members=[Member("stranger/0", "1")])}


def digests_differ(story: Story, rng: random.Random) -> Changes | None:
    """Two nodes have different digests at one index."""
    looks = _looks(story, Status)
    place, look = rng.choice([one for one in looks if sum(other.digest == one[1].digest for _, other in looks) > 1])
    return {place: replace(look, digest="another")}


def never_equal(story: Story, rng: random.Random) -> Changes | None:
    """After the last fault one node never agrees with the others."""
    node, heal_ns = rng.choice(story.nodes), story.phases["heal"].start_ns
    looks = [(place, look) for place, look in _looks(story, Observe) if look.node == node and look.time_ns > heal_ns]
    return {place: replace(look, members=list(look.members or ())[1:]) for place, look in looks}


def refused(story: Story, rng: random.Random) -> Changes | None:
    """One client has no success for longer than is promised."""
    client = rng.choice(("c1", "c2"))
    begin_ns = rng.randrange(1_100_000_000, 4_000_000_000)
    ops = [op for op in story.ops if op.client == client and begin_ns <= op.end_ns < begin_ns + 6_500_000_000]
    changes: Changes = {}
    for op in ops:
        changes |= _answer(story, op, outcome="indeterminate", value=None, members=None)
    return changes


def dropped(story: Story, rng: random.Random) -> Changes | None:
    """A node reports that it dropped a live broker."""
    return {-1: ExpiryRecord(rng.randrange(1_000_000_000, 11_000_000_000), rng.choice(story.nodes), "g1/0", "expired", 10**6)}


def _soon_after_death(story: Story) -> list[Op]:
    """Look-ups of a broker that died silently, within its time-out."""
    gone_ns = next(life.start_ns for life in story.lives["g3/0"] if life.state == "silent")
    contact = last_contact(story, "g3/0", gone_ns)
    assert contact is not None
    until_ns = contact.start_ns + story.lives["g3/0"][0].timeout_ns
    return [op for op in _listed(story, "g3/0", states=("silent",)) if op.end_ns < until_ns]


def gone_too_early(story: Story, rng: random.Random) -> Changes | None:
    """A look-up lacks a broker that died silently, before its time-out."""
    read = _one(rng, _soon_after_death(story))
    return None if read is None else _answer(story, read, members=_without(read, "g3/0"))


def removed_too_early(story: Story, rng: random.Random) -> Changes | None:
    """A node reports that it removed a silent broker before its time-out."""
    return {-1: ExpiryRecord(rng.randrange(2_000_000_000, 2_600_000_000), rng.choice(story.nodes), "g3/0", "expired", 10**6)}


def _reports(story: Story) -> list[tuple[int, ExpiryRecord]]:
    """The reports of the removal of a broker that died, except those of a node that is stopped soon after it."""
    records = enumerate(story.trace.records)
    found = [(place, told) for place, told in records if isinstance(told, ExpiryRecord) and told.broker == "g3/0"]
    return [(place, told) for place, told in found if story.mode == "cp" or told.node != "n2"]


def removal_unreported(story: Story, rng: random.Random) -> Changes | None:
    """A node does not report a removal."""
    place, told = rng.choice(_reports(story))
    return {place: replace(told, broker="nobody/0")}


def removal_with_another_cause(story: Story, rng: random.Random) -> Changes | None:
    """A node reports that the connections of a silent broker were closed."""
    place, told = rng.choice(_reports(story))
    return {place: replace(told, cause="lost")}


def setting_undone(story: Story, rng: random.Random) -> Changes | None:
    """A node answers with an earlier value of a setting."""
    reads = [op for op in story.of_kind("config") if op.key == OWN_SETTING and op.start_ns > 2 * story.phases["steady"].start_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, value=SETTINGS[OWN_SETTING])


def shared_setting_undone(story: Story, rng: random.Random) -> Changes | None:
    """A node answers with an earlier value of a setting that all nodes share."""
    read = _one(rng, [op for op in story.of_kind("config") if op.key == SHARED_SETTING])
    return None if read is None else _answer(story, read, value="false" if read.value == "true" else "true")


def older_answer_by_lease(story: Story, rng: random.Random) -> Changes | None:
    """A look-up with the level lease shows an earlier registration."""
    reads = [op for op in story.ops if op.level == "lease" and op.start_ns > 2 * story.phases["steady"].start_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, members=[Member("g1/0", "1"), *_without(read, "g1/0")])


def request_refused(story: Story, rng: random.Random) -> Changes | None:
    """A node does not answer a request although nothing is wrong."""
    until_ns = min(fault.began_ns for fault, _ in story.faults)
    ops = [op for op in story.of_kind("get", "route") if op.ok and story.judged.start_ns < op.start_ns and op.end_ns < until_ns]
    op = _one(rng, ops)
    return None if op is None else _answer(story, op, outcome="indeterminate", value=None, members=None)


def _while_fenced(story: Story) -> list[Op]:
    """Requests to a node while its fence was due, and for another second and a half."""
    cuts = [(node, cut) for node in story.nodes for cut in story.without_majority(node)]
    return [
        op
        for node, cut in cuts
        for op in story.ops
        if op.node == node and cut.start_ns + 2_500_000_000 <= op.start_ns < cut.end_ns - 1_600_000_000 and not op.ok
    ]


def answered_while_fenced(story: Story, rng: random.Random) -> Changes | None:
    """A node without a majority answers; the answer may even be correct."""
    asked = _one(rng, _while_fenced(story))
    if asked is None:
        return None
    others = [op for op in story.of_kind("route") if op.ok and op.key == asked.key and op.end_ns < asked.start_ns]
    return _answer(story, asked, outcome="ok", members=list(max(others, key=lambda op: op.end_ns).members))


def kept_while_fenced(story: Story, rng: random.Random) -> Changes | None:
    """A node without a majority lets a client wait for its time-out."""
    asked = _one(rng, _while_fenced(story))
    return None if asked is None else _answer(story, asked, time_ns=asked.start_ns + 1_500_000_000)


def never_unfenced(story: Story, rng: random.Random) -> Changes | None:
    """A node that had no majority still answers no request after it has a majority again."""
    changes: Changes = {}
    for node in story.nodes:
        for cut in story.without_majority(node):
            for op in story.ops:
                if op.node == node and op.start_ns > cut.end_ns and op.ok:
                    changes |= _answer(story, op, outcome="indeterminate", value=None, members=None)
    return changes or None


def acknowledged_put_lost(story: Story, rng: random.Random) -> Changes | None:
    """An independent node answers with a value from before its own last acknowledgement."""
    for read in _shuffled(rng, _gets(story, final=False)):
        mine = [op for op in kv_writes(story).get(read.key, ()) if op.node == read.node]
        old = _one(rng, _overtaken(read, mine))
        if old is not None:
            return _answer(story, read, value=old.value)
    return None


def put_of_another_node(story: Story, rng: random.Random) -> Changes | None:
    """An independent node answers with a value that only another node received."""
    for read in _shuffled(rng, _gets(story, final=True)):
        other = _one(rng, (op for op in kv_writes(story).get(read.key, ()) if op.node != read.node and op.kind == "put"))
        if other is not None:
            return _answer(story, read, value=other.value)
    return None


def _kept_by(story: Story, broker: str) -> list[Op]:
    """Look-ups of a node soon after it acknowledged a registration of ``broker``, far from the death of a node."""
    faults = [(one.began_ns, one.time_ns) for one in story.trace.records if isinstance(one, FaultRecord)]
    near = [(began_ns - 1_500_000_000, ended_ns + 2_500_000_000) for began_ns, ended_ns in faults]
    return [
        op for op in _listed(story, broker) if not any(begin_ns < op.end_ns and op.start_ns < end_ns for begin_ns, end_ns in near)
    ]


def live_broker_dropped(story: Story, rng: random.Random) -> Changes | None:
    """An independent node does not list a broker that registers there in time."""
    broker = rng.choice(("g1/0", "g2/0"))
    read = _one(rng, _kept_by(story, broker))
    return None if read is None else _answer(story, read, members=_without(read, broker))


def topic_change_ignored(story: Story, rng: random.Random) -> Changes | None:
    """An independent node shows a registration from before its last acknowledgement."""
    reads = [op for op in _kept_by(story, "g1/0") if op.start_ns > story.phases["heal"].start_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, members=[Member("g1/0", "1"), *_without(read, "g1/0")])


def order_undone(story: Story, rng: random.Random) -> Changes | None:
    """An independent node answers with a value from before mqadmin's last change, and shows a topic that mqadmin deleted."""
    lost = {node for one in story.trace.records if isinstance(one, FaultRecord) for node in one.nodes}
    reads = [op for op in story.of_kind("perm", "topic") if op.node not in lost]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, value={"4": "6", "6": "4"}.get(str(read.value), "900"))


def ghost_of_one_node(story: Story, rng: random.Random) -> Changes | None:
    """An independent node continues to list a dead broker."""
    reads = [op for op in _listed(story, "g3/0", states=("silent",)) if op.start_ns > story.phases["heal"].start_ns]
    read = _one(rng, reads)
    return None if read is None else _answer(story, read, members=[*read.members, Member("g3/0", "3")])


FOUND_BY: dict[Corruption, Sequence[str]] = {
    older_value: (KV,),
    older_value_at_the_end: (KV, FINAL_KV),
    value_from_nowhere: (KV,),
    value_lost: (KV,),
    deleted_value: (KV, RESURRECTION),
    own_write_unread: (KV, SESSIONS),
    broker_missing: (REGISTRATION,),
    broker_missing_at_the_end: (REGISTRATION, FINAL_REGISTRATION),
    older_registration: (REGISTRATION,),
    stranger_listed: (REGISTRATION,),
    listed_twice: (REGISTRATION,),
    ghost: ("no ghosts", REGISTRATION),
    permission_changed: ("write permissions",),
    topic_changed: (RESURRECTION,),
    revision_back: ("revisions never go back",),
    contents_differ: (STATE,),
    digests_differ: (STATE,),
    never_equal: ("convergence",),
    refused: ("availability",),
    dropped: ("live brokers are kept",),
    gone_too_early: (REGISTRATION,),
    removed_too_early: ("live brokers are kept",),
    older_answer_by_lease: (REGISTRATION,),
    removal_unreported: (REPORTS,),
    removal_with_another_cause: (REPORTS,),
    setting_undone: (SETTINGS_KEPT,),
    request_refused: (QUIET,),
    shared_setting_undone: (SETTINGS_KEPT,),
    answered_while_fenced: ("fence",),
    kept_while_fenced: ("fence",),
    never_unfenced: ("fence",),
}
"""The checks that must find a corruption of a run of a correct cluster."""

FOUND_BY_OF_NODES: dict[Corruption, Sequence[str]] = {
    acknowledged_put_lost: (NODE_KV,),
    put_of_another_node: (NODE_KV,),
    live_broker_dropped: (NODE_REGISTRATIONS,),
    topic_change_ignored: (NODE_REGISTRATIONS,),
    order_undone: (NODE_ORDERS,),
    gone_too_early: (NODE_REGISTRATIONS,),
    removed_too_early: (NODE_REGISTRATIONS,),
    removal_unreported: (REPORTS,),
    removal_with_another_cause: (REPORTS,),
    setting_undone: (SETTINGS_KEPT,),
    request_refused: (QUIET,),
    ghost_of_one_node: ("no ghosts",),
    never_equal: ("convergence",),
    refused: ("availability",),
}
"""The checks that must find a corruption of a run of independent nodes."""
