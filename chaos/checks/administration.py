"""Checks of mqadmin's changes: a broker's write permission, and the deletion of topics that brokers dropped.

The permission and the existence of a topic are values that are written and read. So they are judged like KV entries, by real time
(``overtaken``). Only mqadmin and registrations write them: a registration of the locked broker restores its permission, and a
registration with a topic creates the topic. A correct cluster may drop an *exposed* broker. From then on its permission may be
restored at any time, and its topics are not judged.
"""

from collections import defaultdict

from replicated_namesrv.chaos.checks.real_time import overtaken
from replicated_namesrv.chaos.checks.story import KEPT, NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.records import READ_WRITE


def check_write_perm(story: Story) -> CheckResult:
    """No node answers a write permission that an acknowledged change had replaced before the question."""
    writes: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("write-perm"):
        if op.outcome != "fail":
            writes[op.key].append(op)
    for op in story.of_kind("register"):
        if op.key in writes:
            writes[op.key].append(op._replace(value=READ_WRITE))
    for broker, found in writes.items():
        unknown = found[0]._replace(end_ns=NEVER_NS, outcome="indeterminate")
        dropped = [life for life in story.lives.get(broker, ()) if life.state not in ("starting", *KEPT)]
        found += [unknown._replace(start_ns=life.start_ns, value=value) for life in dropped for value in (READ_WRITE, None)]
    reads = [op for op in story.of_kind("perm") if op.ok and op.key in writes]
    wrong = [
        f"{story.ms(read.start_ns)}: {read.node} answers permission {read.value} of {read.key}, changed before"
        if read.value is not None
        else f"{story.ms(read.start_ns)}: {read.node} does not know {read.key}, which had registered"
        for read in reads
        if overtaken(read, writes[read.key])
    ]
    return result("write permissions", Promise.CP, len(reads), wrong)


def misjudged_topics(story: Story) -> tuple[int, int, list[str]]:
    """(answers judged, answers left out, findings). A finding is a topic that is shown after its broker dropped it and mqadmin
    deleted it, or a topic that is not shown although its broker registered it and nobody deleted it."""
    writes: defaultdict[str, list[Op]] = defaultdict(list)
    unsure_ns: dict[str, int] = {}
    asked = {op.key for op in story.of_kind("topic")}
    for op in story.of_kind("register", "delete-topic"):
        for topic in (op.key,) if op.kind == "delete-topic" else asked.intersection(op.topics):
            writes[topic].append(op)
        if op.kind == "register":
            lives = [life.start_ns for life in story.lives.get(op.key, ()) if life.state not in ("starting", *KEPT)]
            for topic in asked.intersection(op.topics):
                unsure_ns[topic] = min(lives, default=unsure_ns.get(topic, NEVER_NS))
    wrong, looked_at, left_out = [], 0, 0
    for read in story.of_kind("topic"):
        if read.ok and read.end_ns >= unsure_ns.get(read.key, NEVER_NS):
            left_out += 1
        elif read.ok:
            looked_at += 1
            if overtaken(read, [op for op in writes[read.key] if op.outcome != "fail"]):
                what = "shows" if read.value is not None else "does not show"
                wrong.append(f"{story.ms(read.start_ns)}: {read.node} {what} topic {read.key}, changed before")
    return looked_at, left_out, wrong
