"""The fence: a node without a majority stops serving after ``fenceAfterMs``, and serves again after the fault has ended.

From ``fenceAfterMs`` (and some slack) until the fault ends, a running node answers no request of a client, and it keeps no
connection open: a request to it fails at once, not by a time-out. Its status says that it is not ready, so that balancers do not
choose it.
"""

from collections.abc import Iterator

from replicated_namesrv.chaos.checks.story import CheckResult, Op, Promise, Span, Story, despite_slowness, result
from replicated_namesrv.chaos.records import Status

SLACK_NS = 1_000_000_000
"""Time that a node may take in addition to ``fenceAfterMs``, to answer the requests already decided and to close connections."""
JUDGED_KINDS = (
    "get",
    "put",
    "delete",
    "route",
    "register-copy",
    "unregister-copy",
    "perm",
    "topic",
    "write-perm",
    "delete-topic",
    "set-config",
    "config",
    "roles",
    "kv-list",
    "zone-route",
    "cluster",
    "topic-list",
    "member-group",
    "answer",
    "version",
)


def check_fence(story: Story) -> CheckResult:
    """Without a majority no node answers or keeps a connection, and after the heal each node serves again."""
    return despite_slowness(story, lambda patience: _judged(story, int(SLACK_NS * patience)))


def _judged(story: Story, slack_ns: int) -> CheckResult:
    wrong: list[str] = []
    looked_at = 0
    due = False
    after_ns = story.setting_ms("fenceAfterMs", 1_500) * 1_000_000 + slack_ns
    timeout_ns = int(story.manifest["scenario"]["workload"]["operation_timeout_ms"] * 1e6)
    serves_stale = "noQuorumPolicy=serve-stale" in story.manifest.get("settings", ())
    for node in () if serves_stale else story.nodes:
        for cut in story.without_majority(node):
            fenced = Span(cut.start_ns + after_ns, cut.end_ns)
            due |= fenced.end_ns - fenced.start_ns > SLACK_NS
            for op in _asked(story, node, fenced):
                looked_at += 1
                when = f"{story.ms(op.start_ns)}: {node}, without a majority since {story.ms(cut.start_ns)},"
                if op.ok:
                    wrong.append(f"{when} answered {op.kind} {op.key} of {op.client}")
                elif op.end_ns - op.start_ns >= timeout_ns:
                    wrong.append(f"{when} kept the connection of {op.client} and did not answer")
            for status in _statuses(story, node, fenced):
                looked_at += 1
                if status.ready:
                    when = f"{story.ms(status.time_ns)}: {node}, without a majority since {story.ms(cut.start_ns)},"
                    wrong.append(f"{when} says that it is ready")
        heals = [cut.end_ns for cut in story.without_majority(node) if cut.end_ns < story.judged.end_ns]
        if heals and "final" in story.phases and node in story.final_nodes:
            looked_at += 1
            if not any(op.node == node and op.ok and op.start_ns > heals[-1] for op in story.ops):
                wrong.append(f"{node} had a majority again at {story.ms(heals[-1])}, and answered nothing after that")
    return result("fence", Promise.CP, looked_at, wrong, due=due)


def _statuses(story: Story, node: str, fenced: Span) -> list[Status]:
    """The answers with the status of ``node`` that began and ended within ``fenced``."""
    found = [one for one in story.statuses if one.node == node and one.answered]
    return [one for one in found if fenced.start_ns <= one.asked_ns and one.time_ns < fenced.end_ns]


def _asked(story: Story, node: str, fenced: Span) -> Iterator[Op]:
    """Requests answered by ``node``, or sent to it alone, that began and ended within ``fenced``, over a link without a fault."""
    for op in story.ops:
        if op.node != node or op.kind not in JUDGED_KINDS or op.start_ns < fenced.start_ns or op.end_ns >= fenced.end_ns:
            continue
        if not any(f"{op.client}>{node}" in fault.links for fault in story.faults_in(op.start_ns, op.end_ns)):
            yield op
