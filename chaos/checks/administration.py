"""What mqadmin changed: a broker's write permission, and topics that brokers dropped.

Each is a value that is written and read, so the reasoning is that of KV entries from real time alone (``overtaken``). Besides
mqadmin's orders there is one writer: a registration. That of the broker whose permission changes gives the permission back; that
of a broker with a topic brings the topic about. A correct cluster may drop a broker that is *exposed*: then its permission may be
given back at any time, and its topics are judged no more.
"""

from collections import defaultdict

from replicated_namesrv.chaos.checks.real_time import overtaken
from replicated_namesrv.chaos.checks.story import NEVER_NS, CheckResult, Op, Promise, Story, result
from replicated_namesrv.chaos.records import READ_WRITE


def check_write_perm(story: Story) -> CheckResult:
    """No node answers a write permission that an acknowledged change had replaced."""
    writes: defaultdict[str, list[Op]] = defaultdict(list)
    for op in story.of_kind("write-perm"):
        if op.outcome != "fail":
            writes[op.key].append(op)
    for op in story.of_kind("register"):
        if op.key in writes:
            writes[op.key].append(op._replace(value=READ_WRITE))
    for broker, found in writes.items():
        unknown = found[0]._replace(value=READ_WRITE, end_ns=NEVER_NS, outcome="indeterminate")
        exposed = (life for life in story.lives.get(broker, ()) if life.state == "exposed")
        found += [unknown._replace(start_ns=life.start_ns) for life in exposed]
    reads = [op for op in story.of_kind("perm") if op.ok and op.value is not None and op.key in writes]
    wrong = [
        f"{story.ms(read.start_ns)}: {read.node} answers permission {read.value} of {read.key}, changed before"
        for read in reads
        if overtaken(read, writes[read.key])
    ]
    return result("write permissions", Promise.CP, len(reads), wrong)


def deleted_topics_shown(story: Story) -> tuple[int, list[str]]:
    """(answers looked at, what is wrong): topics shown although their broker had dropped them and they had been deleted since."""
    writes: defaultdict[str, list[Op]] = defaultdict(list)
    exposed_ns: dict[str, int] = {}
    asked = {op.key for op in story.of_kind("topic")}
    for op in story.of_kind("register", "delete-topic"):
        for topic in (op.key,) if op.kind == "delete-topic" else asked.intersection(op.topics):
            writes[topic].append(op)
        if op.kind == "register":
            lives = [life.start_ns for life in story.lives.get(op.key, ()) if life.state == "exposed"]
            for topic in asked.intersection(op.topics):
                exposed_ns[topic] = min(lives, default=exposed_ns.get(topic, NEVER_NS))
    wrong, looked_at = [], 0
    for read in story.of_kind("topic"):
        if not read.ok or read.value is None or read.end_ns >= exposed_ns.get(read.key, NEVER_NS):
            continue
        looked_at += 1
        if overtaken(read, [op for op in writes[read.key] if op.outcome != "fail"]):
            wrong.append(f"{story.ms(read.start_ns)}: {read.node} shows topic {read.key}, deleted before")
    return looked_at, wrong
