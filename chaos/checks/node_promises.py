"""The promises of an independent node (AP): each node keeps the writes that it acknowledged, independently of other nodes.

A node is judged by its own acknowledgements. KV entries are kept over its restarts (kvConfig.json), registrations until its
process ends.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from replicated_namesrv.chaos.checks.real_time import kv_reads, overtaken
from replicated_namesrv.chaos.checks.registration_history import has_slave, topics_of
from replicated_namesrv.chaos.checks.removal_times import early_removals
from replicated_namesrv.chaos.checks.story import ALIVE, CheckResult, Op, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.recorded_brokers import HEARTBEAT
from replicated_namesrv.chaos.records import FaultRecord
from replicated_namesrv.chaos.scenario import FaultKind

SETTLED_NS = 1_000_000_000
"""Time after a fault, or after a registration with unknown outcome, in which an older registration may still arrive."""


ARRIVED_NS = 1_000_000_000
"""Time after which a heartbeat over an intact link has arrived. It is not answered."""


def check_node_kv(story: Story) -> CheckResult:
    """No node answers a KV value after the same node has acknowledged a later write that replaced it."""
    writes: defaultdict[tuple[str, str], list[Op]] = defaultdict(list)
    for op in story.of_kind("put", "delete"):
        for node in story.nodes if op.node is None else (op.node,):
            if op.outcome != "fail":
                writes[node, op.key].append(op)
    reads = [op for op in kv_reads(story) if op.ok and op.node is not None]
    lost = lost_disks(story)
    wrong = []
    for read in reads:
        found = writes[str(read.node), read.key]
        emptied = [
            read._replace(kind="delete", value=None, start_ns=disk.began_ns, end_ns=disk.time_ns, outcome="ok")
            for disk in lost
            if read.node in disk.nodes
        ]
        if overtaken(read, [*found, *emptied]):
            wrong.append(
                f"{story.ms(read.start_ns)}: {read.node} answers {read.key} = {read.value or 'absent'}, "
                "though it had acknowledged a later write"
            )
    return result("each node keeps its KV entries", Promise.AP, len(reads), wrong)


def lost_disks(story: Story) -> list[FaultRecord]:
    """The ends of the faults in which nodes lost their disks."""
    records = (record for record in story.trace.records if isinstance(record, FaultRecord))
    kinds = (FaultKind.JOIN_EMPTY, FaultKind.WRONG_STATE) if story.mode == "cp" else (FaultKind.JOIN_EMPTY,)
    return [record for record in records if record.name in kinds and record.edge == "end"]


def check_node_registrations(story: Story) -> CheckResult:
    """A node lists each broker that registers with it in time over an intact link, with the newest registration that the node
    acknowledged. It lists a broker that died silently until the end of its time-out.
    """
    copies: defaultdict[tuple[str, str], list[Op]] = defaultdict(list)
    for op in story.ops:
        if op.kind == "register-copy" and op.node is not None and op.value is not None:
            copies[op.node, op.key].append(op)
    for found in copies.values():
        found.sort(key=lambda op: op.end_ns)
    ends = {place: [op.end_ns for op in found] for place, found in copies.items()}
    heartbeats: defaultdict[tuple[str | None, str], list[Op]] = defaultdict(list)
    for op in story.of_kind(HEARTBEAT):
        if op.ok:
            heartbeats[op.node, op.key].append(op)
    serving: defaultdict[str, list[str]] = defaultdict(list)
    for broker, topics in topics_of(story).items():
        for topic in topics:
            serving[topic].append(broker)
    old: list[str] = []
    missing: list[str] = []
    looked_at = 0
    for read in story.ops:
        if read.kind != "route" or not read.ok or read.node is None:
            continue
        listed = {member.name: int(member.version) for member in read.members}
        for broker in serving[read.key]:
            if has_slave(broker):
                continue
            place = (read.node, broker)
            last = copies[place][: bisect_left(ends.get(place, []), read.start_ns)][-1:]
            if not last or not last[0].ok or read.key not in last[0].topics:
                continue
            if not kept(story, broker, last[0], heartbeats[place], read):
                continue
            looked_at += 1
            when = f"{story.ms(read.start_ns)}: {read.node} lists {broker} in {read.key}"
            then = f"it acknowledged {last[0].value} at {story.ms(last[0].end_ns)}"
            if broker not in listed:
                missing.append(f"{when} not at all; {then}")
            elif listed[broker] < int(str(last[0].value)):
                old.append(f"{when} only as of registration {listed[broker]}; {then}")
    early = list(early_removals(story, story.expiries))
    judged = result("each node keeps its live brokers", Promise.AP, looked_at, [*old, *early, *missing])
    return judged if old or early else unless_stalled(story, judged)  # only a missing broker can be an effect of slowness


def kept(story: Story, broker: str, last: Op, heartbeats: Sequence[Op], read: Op) -> bool:
    """True if nothing since the registration ``last`` allows the node to drop the broker before ``read`` ends. ``heartbeats``:
    those of the broker to this node."""
    life, then = story.life_at(broker, last.start_ns), story.life_at(broker, read.end_ns)
    if life is None or then is None or life.life != then.life or then.state not in (*ALIVE, "silent"):
        return False
    arrived = [op.start_ns for op in heartbeats if last.end_ns < op.start_ns and op.end_ns < read.start_ns - ARRIVED_NS]
    contacts_ns = [last.start_ns, *arrived, read.end_ns]
    if any(after - before >= life.timeout_ns for before, after in pairwise(contacts_ns)):
        return False
    return _is_undisturbed(story, broker, read, last.start_ns - SETTLED_NS)


def _is_undisturbed(story: Story, broker: str, read: Op, since_ns: int) -> bool:
    """True if neither the broker's link to the node nor the node has had a fault since ``since_ns``, and every registration and
    query since then was answered. A broker closes a connection over which an answer does not come in time.
    """
    touched = any(
        f"{broker}>{read.node}" in fault.links or (not fault.links and read.node in fault.nodes)
        for fault in story.faults_in(since_ns, read.end_ns)
    )
    return not touched and not any(
        op.node == read.node and not op.ok and op.end_ns > since_ns and op.start_ns < read.end_ns
        for op in (*story.copies_of(broker), *story.queries_of(broker))
    )


def check_node_orders(story: Story) -> CheckResult:
    """A node's answers agree with the last permission, and the last deletion of a topic, that it acknowledged to mqadmin.

    Answers are left out if a registration before them may have undone the change."""
    orders: defaultdict[tuple[str | None, str], list[Op]] = defaultdict(list)
    for op in story.of_kind("write-perm", "delete-topic"):
        if op.outcome != "fail":
            orders[op.node, op.key].append(op)
    wrong: list[str] = []
    looked_at = left_out = 0
    for read in story.of_kind("perm", "topic"):
        mine = orders[read.node, read.key]
        last = max((op for op in mine if op.ok and op.end_ns < read.start_ns), key=lambda op: op.end_ns, default=None)
        if not read.ok or last is None:
            continue
        unsure = any(
            op is not last and op.start_ns < read.end_ns and (not op.ok or op.end_ns > last.start_ns) for op in mine
        )  # a change without an answer may be delayed and take effect after the last one
        stays = _permission_stays if read.kind == "perm" else _topic_stays_away
        if unsure or not stays(story, last, read):
            left_out += 1
            continue
        looked_at += 1
        if read.value != last.value:
            what = f"permission {read.value} of" if read.kind == "perm" else "topic"
            wrong.append(
                f"{story.ms(read.start_ns)}: {read.node} answers {what} {read.key}, though it had acknowledged "
                f"{'its deletion' if last.value is None else last.value} at {story.ms(last.end_ns)}"
            )
    exempt = {"answers after a registration that may have undone the change": left_out}
    return result("each node keeps what mqadmin changed", Promise.AP, looked_at, wrong, exempt)


def _permission_stays(story: Story, order: Op, read: Op) -> bool:
    """Whether the node keeps the broker with the same registration from ``order`` to the end of ``read``. A new registration
    would restore the permission."""
    life, then = story.life_at(read.key, order.start_ns), story.life_at(read.key, read.end_ns)
    if life is None or then is None or life.life != then.life or then.state not in ALIVE:
        return False
    since_ns = order.start_ns - life.timeout_ns
    copies = [
        op for op in story.copies_of(read.key) if op.node == read.node and op.end_ns > since_ns and op.start_ns < read.end_ns
    ]
    copies.sort(key=lambda op: op.start_ns)
    if not copies or copies[0].end_ns >= order.start_ns or len({op.value for op in copies}) > 1:
        return False
    in_time = all(after.end_ns - before.start_ns < life.timeout_ns for before, after in pairwise([*copies, read]))
    return in_time and _is_undisturbed(story, read.key, read, min(since_ns, order.start_ns - SETTLED_NS))


def _topic_stays_away(story: Story, order: Op, read: Op) -> bool:
    """Whether every registration with the topic had ended before ``order``."""
    copies = (op for op in story.ops if op.kind == "register-copy" and op.node == read.node and read.key in op.topics)
    return all(op.outcome != "indeterminate" and op.end_ns < order.start_ns for op in copies)
