"""The commands of the operator: changes of the members, and drains before a restart."""

from collections.abc import Iterator

from replicated_namesrv.chaos.checks.fence import JUDGED_KINDS
from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Span, Story, result, unless_stalled
from replicated_namesrv.chaos.records import FaultRecord
from replicated_namesrv.chaos.scenario import OPERATOR_KINDS, FaultKind

GRACE_NS = 1_000_000_000
"""Time in which a removed node learns of its removal, and the leader of an added node's address. A drained node has no such
time."""


def check_operator(story: Story) -> CheckResult:
    """Each change of the members and each drain succeeds. At the end, every member knows the remaining members, and no observer
    has a vote. A node that was removed or drained answers no request, and the leader does not list its address. A leader
    transfers leadership before it is removed or drained. The address of an added node is listed.

    On a busy machine a command may fail for lack of time. Then the verdict is unknown, and the lists are not compared."""
    kinds = {fault["kind"] for fault in story.manifest["scenario"]["fault"]} & OPERATOR_KINDS
    commands = [op for op in story.ops if op.kind in ("members", "drain")]
    failed = [
        f"{story.ms(op.start_ns)}: '{op.value if op.kind == 'members' else f'drain {op.key}'}' did not succeed ({op.outcome}); "
        "see the folder logs"
        for op in commands
        if not op.ok
    ]
    lists = [op for op in story.ops if op.kind == "member-list" and op.ok and not failed]
    left = " ".join(story.final_nodes)
    wrong = [f"{op.node} knows the members {op.value} at the end instead of {left}" for op in lists if op.value != left]
    wrong += [*_voting_observers(story, commands), *_never_listed(story, commands)]
    wrong += [
        f"{story.ms(one.time_ns)}: {one.node} was removed while it led; it has to transfer leadership first"
        for one in story.statuses
        if one.role == "removed" and one.leader == one.node
    ]
    asked = [(op, node) for node, out in _out(story, commands) for op in story.ops if op.node == node and _is_within(op, out)]
    wrong += [
        f"{story.ms(op.start_ns)}: {node}, which was removed or drained, answered {op.kind} of {op.client}"
        for op, node in asked
        if op.ok
    ]
    listed = [(op, node) for node, out in _out(story, commands) for op in _address_lists(story, out)]
    wrong += [
        f"{story.ms(op.start_ns)}: the address list of {op.node} contains {node}, which was removed or drained"
        for op, node in listed
        if node in (op.value or "").split()
    ]
    failed += _drained_leaders(story, commands)
    due = (story.mode == "cp" or FaultKind.DRAIN in kinds) and story.reports_removals
    looked_at = len(commands) + len(lists) + len(asked) + len(listed)
    found = result("operator's commands", Promise.BOTH, looked_at, [*wrong, *failed], due=due)
    return found if wrong else unless_stalled(story, found)


def _is_within(op: Op, out: Span) -> bool:
    return op.kind in JUDGED_KINDS and out.start_ns <= op.start_ns and op.end_ns < out.end_ns


def _address_lists(story: Story, out: Span) -> list[Op]:
    return [op for op in story.of_kind("address-list") if op.ok and out.start_ns <= op.start_ns and op.end_ns < out.end_ns]


def _voting_observers(story: Story, commands: list[Op]) -> list[str]:
    """Nodes that were added as observers, and have a vote at the end."""
    observers = {(op.value or "").split()[1] for op in commands if (op.value or "").endswith(" --observer")}
    return [
        f"{op.node} knows {node} as {role} at the end, although it was added as an observer"
        for op in story.of_kind("member-list")
        for node, role in op.members
        if op.ok and node in observers and role != "observer"
    ]


def _drained_leaders(story: Story, commands: list[Op]) -> list[str]:
    drains = [(name, out) for name, out in _out(story, [op for op in commands if op.kind == "drain"])]
    return [
        f"{story.ms(one.time_ns)}: {name} leads although it was drained; it has to transfer leadership first"
        for name, out in drains
        for one in story.statuses
        if one.node == name and one.role == "leader" and out.start_ns <= one.asked_ns and one.time_ns < out.end_ns
    ]


def _never_listed(story: Story, commands: list[Op]) -> Iterator[str]:
    """Added nodes that serve, and are in no address list until the next fault strikes them."""
    faults = [record for record in story.trace.records if isinstance(record, FaultRecord) and record.edge == "start"]
    for op in commands:
        action, _, operands = (op.value or "").partition(" ")
        if op.kind != "members" or not op.ok or action not in ("add", "replace"):
            continue
        name = operands.split()[action == "replace"]
        ready = (one.time_ns for one in story.statuses if one.node == name and one.ready and one.time_ns >= op.end_ns)
        struck = (record.began_ns for record in faults if name in record.nodes and record.began_ns >= op.end_ns)
        first_ns, last_ns = min(ready, default=story.judged.end_ns), min(struck, default=story.judged.end_ns)
        lists = _address_lists(story, Span(first_ns + GRACE_NS, last_ns))
        if lists and not any(name in (one.value or "").split() for one in lists):
            yield f"{story.ms(op.end_ns)}: {name} was added and serves, and no address list contains it"


def _out(story: Story, commands: list[Op]) -> Iterator[tuple[str, Span]]:
    """The times in which a running node must not answer requests."""
    restarts = [op for op in story.ops if op.kind == "restart"]
    for op in commands:
        action, _, name = op.key.rpartition(" ")
        if op.ok and op.kind == "drain":
            later = [restart.start_ns for restart in restarts if restart.key == name and restart.start_ns >= op.end_ns]
            yield name, Span(op.end_ns, min(later, default=story.judged.end_ns))
        elif op.ok and action in ("remove", "replace"):
            yield name, Span(op.end_ns + GRACE_NS, story.judged.end_ns)
