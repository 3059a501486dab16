"""The check that nodes serve their clients while there is no fault: they refuse no request, and close no connection.

The other checks judge the content of answers, and accept that a request fails. So they do not notice a node that, for example,
fences itself for a moment every few seconds.
"""

from collections.abc import Sequence

from replicated_namesrv.chaos.checks.fence import JUDGED_KINDS
from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story, result, unless_stalled
from replicated_namesrv.chaos.records import Election

SETTLED_NS = 3_000_000_000
"""Time after a fault or an election in which clients may still notice it."""
BEFORE_NS = 1_000_000_000
"""Time before an election in which the previous leader may not have answered."""


def check_quiet_requests(story: Story) -> CheckResult:
    """Before the faults, and at the end when all nodes have agreed again, every request of a client is answered. Requests near an
    election are left out.

    The first report of a leader belongs to the phase ``settle``. It names the leader at that time, so it does not count as an
    election."""
    elections = (record for record in story.trace.records if isinstance(record, Election))
    elections_ns = [record.time_ns for record in elections if record.time_ns >= story.judged.start_ns]
    wrong: list[str] = []
    looked_at = 0
    for op in _of_clients(story):
        until_ns = min(op.end_ns, story.judged.end_ns)
        if not _is_quiet(story, elections_ns, op.start_ns, until_ns):
            continue
        looked_at += 1
        if not op.ok:
            who = op.node or "a node"
            took_s = (until_ns - op.start_ns) / 1e9
            wrong.append(f"{story.ms(op.start_ns)}: {who} did not answer {op.kind} {op.key} of {op.client} ({took_s:.3f} s)")
    return unless_stalled(story, result("requests are answered", Promise.BOTH, looked_at, wrong))


def _of_clients(story: Story) -> list[Op]:
    """The requests of clients to members, before the faults and in ``final``. Requests without an end are left out, because the
    run cancels the last requests of some clients."""
    begin_ns, end_ns = story.judged.start_ns, min((fault.began_ns for fault, _ in story.faults), default=NEVER_NS)
    final_ns = story.phases["final"].start_ns if "final" in story.phases else NEVER_NS
    founders, remaining = {None, *story.founders}, {None, *story.final_nodes}
    return [
        op
        for op in story.ops
        if op.kind in JUDGED_KINDS
        and op.client not in story.lives
        and op.end_ns != NEVER_NS
        and ((begin_ns <= op.start_ns < end_ns and op.node in founders) or (op.start_ns >= final_ns and op.node in remaining))
    ]


def _is_quiet(story: Story, elections_ns: Sequence[int], start_ns: int, end_ns: int) -> bool:
    if any(at_ns - BEFORE_NS < end_ns and start_ns < at_ns + SETTLED_NS for at_ns in elections_ns):
        return False
    return not story.faults_in(start_ns - SETTLED_NS, end_ns)
