"""Check of role switches: whether routes list each broker of the master-slave pair under its current broker id.

A broker has one id in its group. A registration under another id replaces the earlier id. So we treat the id as a value: a
registration writes it, and a route of the topic reads it. A delayed copy of an older registration writes the older id again.
The rules of ``overtaken`` apply. In CP the writes through all nodes count. In AP only writes that the answering node received
count.

    the answer about a broker            it is wrong if
    two ids                              always
    an id                                a later acknowledged registration under another id had replaced it
    not listed, CP                       the broker had registered, and no broker of the pair was exposed or gone before
    not listed, AP                       it had registered at this node within its time-out, no broker of the pair was gone, and
                                         no fault was near
    another permission than the topic's  always: nothing changes the permission of the pair

The answer to a slave's registration names the master of the group, because the slave copies its data. It is wrong if it names a
broker that another one had replaced as master, or names none although the node must list the master (as above).

Reading ids instead of whole registrations is enough, because both brokers of the pair register the topics of the master.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from replicated_namesrv.chaos.checks.node_promises import SETTLED_NS
from replicated_namesrv.chaos.checks.real_time import overtaken
from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.recorded_brokers import MASTER, PAIR
from replicated_namesrv.chaos.records import READ_WRITE

ROLES, MASTER_ID = "roles of a pair", "0"
_GONE = ("dead", "silent", "stopping")


def check_roles(story: Story) -> CheckResult:
    """No answer lists a broker of the pair under an earlier id, lacks a broker of the pair, or has a wrong permission."""
    asked = [op for op in story.of_kind("roles") if op.key == PAIR]
    reads = [op for op in asked if op.ok]
    writes = _writes(story)
    wrong: list[str] = []
    missing: list[str] = []
    looked_at = left_out = 0
    for read in reads:
        when = f"{story.ms(read.start_ns)}: {read.node}"
        if read.members and read.value != READ_WRITE:
            wrong.append(f"{when} answers permission {read.value} of {read.key}")
        for broker, found in writes.items():
            ids = [member.version for member in read.members if member.name == broker]
            mine = found if story.mode == "cp" else [op for op in found if op.node == read.node]
            if len(ids) > 1:
                wrong.append(f"{when} lists {broker} under the ids {', '.join(ids)}")
            elif ids:
                looked_at += 1
                if overtaken(read._replace(value=ids[0]), mine):
                    wrong.append(f"{when} lists {broker} under id {ids[0]}, which it had given up")
            elif not _must_be_listed(story, broker, writes, mine, read):
                left_out += 1
            else:
                looked_at += 1
                missing.append(f"{when} does not list {broker}, which had registered")
    masters_looked_at, masters = _wrong_masters(story, writes)
    looked_at, missing = looked_at + masters_looked_at, [*missing, *masters]
    exempt = {"answers without a broker that the node may have dropped": left_out}
    judged = result(ROLES, Promise.BOTH, looked_at, [*wrong, *missing], exempt, due=bool(asked))
    # only a missing broker can be an effect of slowness, and only if a node has removed it
    was_removed = not story.reports_removals or any(is_of_pair(told.broker) for told in story.expiries)
    return unless_stalled(story, judged) if was_removed and not wrong else judged


def _wrong_masters(story: Story, writes: Mapping[str, Sequence[Op]]) -> tuple[int, list[str]]:
    """(answers judged, findings) for the masters that answers name to slaves."""
    looked_at, wrong = 0, []
    became = [op._replace(value=broker) for broker, found in writes.items() for op in found if op.value == MASTER_ID]
    for read in (op for op in story.of_kind(MASTER) if is_of_pair(op.key)):
        mine = [op for op in became if read.ok and (story.mode == "cp" or op.node == read.node)]
        last = max((op for op in mine if op.ok and op.end_ns < read.start_ns), key=lambda op: op.end_ns, default=None)
        if last is None:
            continue
        when = f"{story.ms(read.start_ns)}: {read.node} reports to {read.client} that"
        if read.value is not None:
            looked_at += 1
            if overtaken(read, mine):
                wrong.append(f"{when} its master is {read.value}, which another broker had replaced")
            continue
        of_last = [op for op in writes[str(last.value)] if story.mode == "cp" or op.node == read.node]
        since = (op for op in of_last if op.start_ns < read.end_ns and op.end_ns > last.start_ns)
        is_still = all(op.value == MASTER_ID for op in since)
        if is_still and _must_be_listed(story, str(last.value), writes, of_last, read):
            looked_at += 1
            wrong.append(f"{when} it has no master, but {last.value} had registered as master")
    return looked_at, wrong


def is_of_pair(broker: str) -> bool:
    """Whether the broker belongs to the group whose brokers switch roles."""
    return broker.startswith(f"{PAIR}/")


def _writes(story: Story) -> dict[str, list[Op]]:
    """For each broker: its registrations that may have happened, with the broker id as value, sorted by their ends."""
    found: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("register-copy"):
        if is_of_pair(op.key) and op.outcome != "fail":
            end_ns = op.end_ns if op.ok else NEVER_NS
            found[op.client].append(op._replace(kind="roles", value=op.key.partition("/")[2], end_ns=end_ns))
    for writes in found.values():
        writes.sort(key=lambda op: op.end_ns)
    return dict(found)


def _must_be_listed(story: Story, broker: str, writes: Mapping[str, Sequence[Op]], mine: Sequence[Op], read: Op) -> bool:
    """True if nothing allows the node to have dropped the broker, or to have given its id to the other broker.

    ``writes``: the registrations of all brokers. ``mine``: the registrations of this broker that count."""
    before = mine[: bisect_left([op.end_ns for op in mine], read.start_ns)]
    if not before or any(not op.ok and op.start_ns < read.end_ns for op in mine):
        return False
    last = before[-1]
    others = [op for other, found in writes.items() if other != broker for op in found]
    lives = [life for name, lives in story.lives.items() if is_of_pair(name) for life in lives]
    gone = _GONE if story.mode == "ap" else (*_GONE, "exposed")
    if any(op.value == last.value and op.start_ns < read.end_ns and op.end_ns > last.start_ns for op in others):
        return False
    if any(life.state in gone and life.start_ns < read.end_ns for life in lives):
        return False
    if story.mode == "cp":
        return True
    in_time = read.end_ns - last.start_ns < min(life.timeout_ns for life in lives) if lives else False
    since_ns = last.start_ns - SETTLED_NS
    touched = any(
        f"{broker}>{read.node}" in fault.links or (not fault.links and read.node in fault.nodes)
        for fault in story.faults_in(since_ns, read.end_ns)
    )
    return in_time and not touched
