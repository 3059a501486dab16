"""Checks that clients never see older data after newer: session guarantees, revisions, and one state for each revision."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from replicated_namesrv.chaos.checks.real_time import kv_writes, overtaken, read_writes
from replicated_namesrv.chaos.checks.registration_history import late_copies
from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.records import Election
from replicated_namesrv.chaos.scenario import FaultKind
from replicated_namesrv.verify.attribution import NEVER, KeyEvent, attributed, by_value, writes_of
from replicated_namesrv.verify.session_guarantees import OLDEST, SessionAccess, Version, accesses_by_time, session_verdicts

LEADERS = "one leader in each term"
ROUTES_DIGEST = 32
"""Hexadecimal digits of the digest of routes and KV entries."""


def check_sessions(story: Story) -> CheckResult:
    """Each client has the session guarantees (``verify.session_guarantees``): for each KV key by the times of the writes, and
    for each broker of a topic by the numbers of its registrations."""
    ops = [op for op in story.of_kind("put", "delete", "get", "route") if op.ok and op.client != "probe"]
    wrong = [*_broken_kv(story, ops), *_broken_routes(story, ops)]
    return result("session guarantees", Promise.CP, len(ops), wrong)


def _broken_kv(story: Story, ops: Sequence[Op]) -> Iterator[str]:
    by_op = {op.op: op for op in ops if op.kind != "route"}
    reads: defaultdict[str, list[KeyEvent]] = defaultdict(list)
    for op in by_op.values():
        if op.kind == "get":
            reads[op.key].append(_event(op))
    for key, written in read_writes(story).items():
        writes = writes_of([_event(op) for op in written])
        of_value = by_value(writes)
        accesses = [
            # A client need not read a value it never learned. If several writes may have produced the value that was read, the
            # client need not read this value or a newer one later.
            access._replace(is_certain=len(of_value[by_op[access.op].value]) == 1)
            if access.reads
            else access
            if access.op in by_op
            else access._replace(end_ns=NEVER)
            for access in accesses_by_time(writes, reads[key], attributed(reads[key], of_value))
        ]
        values: dict[int | None, str] = {op.op: op.value or "it deleted" for op in written}
        for number, (broken, newest) in session_verdicts(accesses).items():
            if any(broken):
                read = by_op[number]
                seen = f"finds {key} absent" if read.value is None else f"reads {key} = {read.value}"
                yield f"{story.ms(read.start_ns)}: {read.client} {seen} after it knew {values[newest.op]}"


def _event(op: Op) -> KeyEvent:
    end_ns = NEVER if op.outcome == "indeterminate" else op.end_ns
    return KeyEvent(op.op, op.client, op.kind, op.value, op.start_ns, end_ns, op.outcome, False)


def _broken_routes(story: Story, ops: Sequence[Op]) -> Iterator[str]:
    """Findings about routes. A registration in an answer is left out if a copy of it may have arrived after the broker left. The
    cluster may accept this copy, although the broker had registered a newer version in its life."""
    left_ns: dict[tuple[str, str | None], int] = {}
    for name, copies in late_copies(story).items():
        for late in copies:
            left_ns[name, late.copy.value] = min(late.end_ns, left_ns.get((name, late.copy.value), NEVER_NS))
    by_op = {op.op: op for op in ops if op.kind == "route"}
    accesses: defaultdict[tuple[str, str], dict[int, SessionAccess]] = defaultdict(dict)
    for op in by_op.values():
        for name, told in op.members:
            if op.end_ns > left_ns.get((name, told), NEVER_NS):
                continue
            version = Version(int(told), int(told))
            accesses[op.key, name][op.op] = SessionAccess(op.op, op.client, op.start_ns, op.end_ns, True, version)
    for (_, name), of_broker in accesses.items():
        for number, (broken, newest) in session_verdicts(of_broker.values()).items():
            if any(broken):
                read, version = by_op[number], of_broker[number].version or OLDEST
                yield (
                    f"{story.ms(read.start_ns)}: {read.client} sees registration {version.first:.0f} of {name} at {read.node} "
                    f"after it knew {newest.first:.0f}"
                )


def check_revisions(story: Story) -> CheckResult:
    """If a question is asked after the answer to an earlier one has arrived, its answer does not have a lower revision, whichever
    nodes answered.
    """
    answered = [one for one in story.observations if one.answered and one.revision is not None]
    by_end = sorted(answered, key=lambda one: one.time_ns)
    wrong, place, highest = [], 0, 0
    for one in sorted(answered, key=lambda one: one.asked_ns):
        while place < len(by_end) and by_end[place].time_ns < one.asked_ns:
            highest = max(highest, by_end[place].revision or 0)
            place += 1
        if (one.revision or 0) < highest:
            wrong.append(f"{story.ms(one.time_ns)}: {one.node} answers revision {one.revision} after {highest} had been answered")
    return result("revisions never go back", Promise.CP, len(answered), wrong)


def check_same_state(story: Story) -> CheckResult:
    """Nodes at the same log index or revision have the same state, and states of different revisions have different digests. A
    node is left out while its state is wrong because of a fault."""
    seen: dict[tuple[str, int], tuple[str, object]] = {}
    wrong, looked_at = [], 0
    facts: list[tuple[int, str, tuple[str, int], object]] = [
        (one.time_ns, one.node, ("digest at index", one.applied_index), one.digest)
        for one in story.statuses
        if one.applied_index is not None and one.digest is not None
    ]
    facts += [
        (one.time_ns, one.node, (f"{one.key} at revision", one.revision), tuple(one.members or ()))
        for one in story.observations
        if one.revision is not None
    ]
    altered = [(fault, end_ns) for fault, end_ns in story.faults if fault.name == FaultKind.WRONG_STATE]
    left_out = 0
    for time_ns, node, place, state in sorted(facts, key=lambda fact: fact[0]):
        if any(node in fault.nodes and fault.began_ns <= time_ns <= end_ns for fault, end_ns in altered):
            left_out += 1
            continue
        looked_at += 1
        other, before = seen.setdefault(place, (node, state))
        if before != state:
            wrong.append(f"{story.ms(time_ns)}: {node} and {other} differ in {place[0]} {place[1]}")
    wrong += _constant_digests(story)
    exempt = {"answers of a node whose state a fault has altered": left_out}
    return result("one state for one revision", Promise.CP, looked_at, wrong, exempt)


def _constant_digests(story: Story) -> Iterator[str]:
    """States of different revisions with the same digest: then equal digests do not show equal states. A digest begins with that
    of the routes and KV entries, which depends on the revision."""
    seen: dict[str, int] = {}
    for one in story.statuses:
        if one.digest is None or one.revision is None:
            continue
        routes = one.digest[:ROUTES_DIGEST]
        if seen.setdefault(routes, one.revision) != one.revision:
            yield f"{story.ms(one.time_ns)}: {one.node} has the digest of revision {seen[routes]} at revision {one.revision}"


def check_leaders(story: Story) -> CheckResult:
    """All nodes that know the leader of a term know the same one, and a node that leads names itself."""
    facts = [(one.time_ns, one.node, one.term, one.leader) for one in story.statuses if one.leader is not None]
    facts += [(one.time_ns, one.node, one.term, one.node) for one in story.statuses if one.role == "leader"]
    facts += [(one.time_ns, one.node, one.term, one.node) for one in story.trace.records if isinstance(one, Election)]
    seen: dict[int, tuple[str, str]] = {}
    wrong, looked_at = [], 0
    for time_ns, node, term, leader in sorted(facts, key=lambda fact: fact[0]):
        if term is None:
            continue
        looked_at += 1
        other, before = seen.setdefault(term, (node, leader))
        if before != leader:
            wrong.append(f"{story.ms(time_ns)}: {node} has {leader} as leader of term {term}, and {other} had {before}")
    return result(LEADERS, Promise.CP, looked_at, wrong)


def stale_kv_reads(story: Story) -> int:
    """Number of gets that returned a value which an acknowledged write had certainly replaced before the get began."""
    writes = kv_writes(story)
    return sum(overtaken(op, writes.get(op.key, ())) for op in story.of_kind("get") if op.ok)
